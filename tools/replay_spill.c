/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `pagedstash replay` finds out about less memory: the least that a step needs, and what spills and waits when
 * homes and device pages get less than the plan asks for. One thread.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/replay.h"

/* Plans that move 10, 20, … 100 percent: the more moves, the smaller the homes. */
#define PERCENTS 10
/* Bytes that a stash moves on an H200 (docs/plan.md). */
#define COPIED_A_NS 4000

/* ---- the least memory ---- */

static void find_least(const struct ps_replay *r, struct ps_replay_spill *out)
{
    for (uint32_t i = 0; i < r->n_steps; i++) {
        const struct ps_plan_step *s = &r->steps[i];

        for (uint32_t e = 0; e < s->n_events; e++) {
            out->other_bytes = s->events[e].other_bytes > out->other_bytes
                                   ? s->events[e].other_bytes
                                   : out->other_bytes;
        }
    }
    for (uint32_t i = 0; i < r->plan.n_slots; i++) {
        out->lane_bytes += r->plan.slot_bytes[i];
    }
}

/* The most that the tensors of one group take at once. live: one for each group. */
static void find_group(const struct ps_plan_step *s, uint64_t *live, struct ps_replay_spill *out)
{
    for (uint32_t e = 0; e < s->n_events; e++) {
        const uint8_t kind = s->events[e].kind;

        if (kind != PS_PLAN_ALLOC && kind != PS_PLAN_FREE) {
            continue;
        }
        const struct ps_plan_tensor *t = &s->tensors[s->events[e].index];

        live[t->group] += kind == PS_PLAN_ALLOC ? t->bytes : -t->bytes;
        out->group_bytes = live[t->group] > out->group_bytes ? live[t->group] : out->group_bytes;
    }
}

/* ---- times ---- */

bool ps_replay_times(const struct ps_replay *r, uint32_t step, uint64_t *times,
                     struct ps_replay_spill *out)
{
    const struct ps_plan_step *s = &r->steps[step];
    const uint64_t length = r->context->kind_ns[r->kinds[step]];
    uint64_t now = 0, turn = 0;
    uint32_t first = s->n_events;

    for (uint32_t e = 0; e < s->n_events; e++) {
        now = s->events[e].time_ns > now ? s->events[e].time_ns : now;
        times[e] = now;
        if (s->events[e].kind == PS_PLAN_RETURN && first == s->n_events) {
            first = e;
            turn = now;
        }
    }
    out->step_ns = length > now ? length : now;
    out->stretched = length > now && now > turn;
    for (uint32_t e = first; out->stretched && e < s->n_events; e++) {
        times[e] =
            turn + (uint64_t)((__uint128_t)(times[e] - turn) * (length - turn) / (now - turn));
    }
    return now != 0;
}

/* ---- budgets ---- */

/* A plan that moves so much, and what is out under it. */
struct attempt {
    struct ps_plan plan;
    struct ps_spill_item *items;
    uint32_t n_items, percent;
};

struct attempts {
    const struct ps_replay *r;
    const struct ps_plan_step *step;
    uint64_t *times;
    struct attempt list[PERCENTS + 1];
    uint32_t n;
};

static bool attempt(struct attempts *a, uint32_t step, uint32_t percent)
{
    struct attempt *t = &a->list[a->n];
    struct ps_plan_settings settings = a->r->args->plan;

    settings.moved_percent = percent;
    if (ps_plan_make(a->r->steps, a->r->n_steps, &settings, &t->plan) != PS_OK) {
        return false;
    }
    a->n++;
    t->percent = percent;
    t->items = malloc((a->step->n_tensors + 1u) * sizeof(*t->items));
    return t->items != NULL && ps_spill_items(&t->plan, a->step, step, settings.page_bytes,
                                              t->items, &t->n_items) == PS_OK;
}

/* Waits, and the time that copies take from the job. */
static uint64_t cost_of(const struct ps_plan *plan, uint64_t wait_ns)
{
    return wait_ns + plan->moved_bytes / COPIED_A_NS;
}

/* False: no memory. Homes that do not fit are not tried. */
static bool try_budget(const struct attempts *a, const struct attempt *t, uint64_t bytes,
                       struct ps_replay_budget *best)
{
    const struct ps_spill_step step = {a->times, t->items, a->step->n_events, t->n_items};
    const uint64_t left = bytes - t->plan.home_bytes;
    const uint64_t pages = left < t->plan.pool_bytes ? left : t->plan.pool_bytes;
    const struct ps_spill_settings settings = {pages, a->r->args->link_rate};
    struct ps_spill ours, other;
    uint64_t bound;

    if (t->plan.home_bytes > bytes) {
        return true;
    }
    if (ps_spill_plan(&step, &settings, PS_SPILL_LAST_NEEDED, &ours) != PS_OK) {
        return false;
    }
    const bool better = best->moved_percent == 0 || cost_of(&t->plan, ours.wait_ns) < best->cost_ns;
    bool ok = true;

    if (better) {
        ok = ps_spill_plan(&step, &settings, PS_SPILL_FIRST_COME, &other) == PS_OK;
        if (ok) {
            ok = ps_spill_bound(&step, &settings, &bound) == PS_OK;
            *best = (struct ps_replay_budget){
                .bytes = bytes,
                .moved_percent = t->percent,
                .home_bytes = t->plan.home_bytes,
                .pool_bytes = pages,
                .lane_bytes = t->plan.lane_bytes,
                .peak_bytes = t->plan.peak_bytes - t->plan.pool_bytes + pages,
                .out_bytes = ours.out_bytes,
                .host_bytes = ours.host_bytes,
                .cost_ns = cost_of(&t->plan, ours.wait_ns),
                .wait_ns = ours.wait_ns,
                .first_come_ns = other.wait_ns,
                .bound_ns = ok ? bound : 0,
            };
            ps_spill_fini(&other);
        }
    }
    ps_spill_fini(&ours);
    return ok;
}

static bool try_budgets(struct attempts *a, struct ps_replay_spill *out)
{
    static const uint32_t percents[] = {100, 80, 60, 40, 20, 0};
    const uint64_t wanted = a->r->plan.home_bytes + a->r->plan.pool_bytes;
    const bool one = a->r->args->budget != UINT64_MAX;

    for (uint32_t i = 0; i < (one ? 1 : sizeof(percents) / sizeof(percents[0])); i++) {
        struct ps_replay_budget *b = &out->budgets[out->n_budgets];
        const uint64_t bytes = one ? a->r->args->budget : wanted / 100 * percents[i];

        for (uint32_t k = 0; k < a->n; k++) {
            if (!try_budget(a, &a->list[k], i == 0 && !one ? wanted : bytes, b)) {
                return false;
            }
        }
        out->n_budgets += b->moved_percent != 0;
    }
    return true;
}

bool ps_replay_spill(const struct ps_replay *r, uint32_t step, struct ps_replay_spill *spill_p)
{
    struct attempts a = {.r = r, .step = &r->steps[step]};
    uint64_t *live = calloc(a.step->n_groups + 1u, sizeof(*live));
    bool ok = live != NULL;

    memset(spill_p, 0, sizeof(*spill_p));
    a.times = malloc((a.step->n_events + 1u) * sizeof(*a.times));
    ok = ok && a.times != NULL;
    if (ok) {
        find_least(r, spill_p);
        find_group(a.step, live, spill_p);
    }
    if (ok && ps_replay_times(r, step, a.times, spill_p)) {
        for (uint32_t i = 0; i <= PERCENTS && ok; i++) {
            const uint32_t percent = i == 0 ? r->args->plan.moved_percent : i * 100 / PERCENTS;

            ok = (i != 0 && percent <= r->args->plan.moved_percent) || attempt(&a, step, percent);
        }
        ok = ok && try_budgets(&a, spill_p);
    }
    for (uint32_t i = 0; i < a.n; i++) {
        free(a.list[i].items);
        ps_plan_fini(&a.list[i].plan);
    }
    free(a.times);
    free(live);
    return ok;
}
