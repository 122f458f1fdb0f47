/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What spills: against every way there is on small cases, against the bound on schedules of real jobs and on recorded
 * traces, and against Megatron-LM's rule.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/spill.h"
#include "tests/support/check_main.h"
#include "tests/support/steps.h"

#define NONE PS_PLAN_NONE

/* A byte a nanosecond: waits are bytes. */
static const uint64_t one_byte_a_ns = 1000000000;

struct outcome {
    uint64_t ours, first_come, bound;
    struct ps_spill spill; /* ours */
};

static void decide(const struct ps_spill_step *step, const struct ps_spill_settings *s,
                   struct outcome *o)
{
    const struct ps_spill_item *items = step->items;
    struct ps_spill other;

    ck_assert_int_eq(ps_spill_plan(step, s, PS_SPILL_LAST_NEEDED, &o->spill), PS_OK);
    ck_assert_int_eq(ps_spill_plan(step, s, PS_SPILL_FIRST_COME, &other), PS_OK);
    ck_assert_int_eq(ps_spill_bound(step, s, &o->bound), PS_OK);
    o->ours = o->spill.wait_ns;
    o->first_come = other.wait_ns;
    ps_spill_fini(&other);
    for (uint32_t i = 0; i < step->n_items; i++) {
        const struct ps_spill_move *m = &o->spill.moves[i];

        ck_assert_uint_le(m->host_bytes, items[i].bytes);
        ck_assert_uint_le(m->direct_bytes, m->host_bytes);
        ck_assert_int_eq(m->out == NONE, m->host_bytes == 0);
        if (m->host_bytes != 0) {
            ck_assert_uint_ge(m->out, items[i].leave);
            ck_assert_uint_le(m->out, items[i].come);
            ck_assert(items[i].due == NONE || (m->back >= m->out && m->back <= items[i].due));
        }
    }
}

/* ---- every way there is ---- */

#define ITEMS_MOST  3
#define BYTES_MOST  3
#define CASE_EVENTS 12
#define STATES      (CASE_EVENTS * 4 + 1) * 8 * 64

struct small_case {
    uint64_t times[CASE_EVENTS];
    struct ps_spill_item items[ITEMS_MOST];
    uint32_t n;
    int device;
};

/* The job stands before a stop (event and kind), so many ticks away, with so many bytes of each on the host. */
struct standing {
    int stop, gap, host[ITEMS_MOST];
};

static uint32_t code_of(const struct standing *s)
{
    return (uint32_t)((s->stop * 8 + s->gap) * 64 + s->host[0] * 16 + s->host[1] * 4 + s->host[2]);
}

static struct standing standing_of(uint32_t code)
{
    return (struct standing){.stop = (int)(code / 512),
                             .gap = (int)(code / 64 % 8),
                             .host = {(int)(code / 16 % 4), (int)(code / 4 % 4), (int)(code % 4)}};
}

/* Whether the stop `event`, `kind` (leave 0, gone 1, come 2, due 3) of an item is behind. */
static bool is_behind(const struct standing *s, uint32_t event, int kind)
{
    return event != NONE && (int)(event * 4) + kind < s->stop;
}

static int pages_used(const struct small_case *c, const struct standing *s)
{
    int pages = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        if (is_behind(s, c->items[i].gone, 1) && !is_behind(s, c->items[i].come, 2)) {
            pages += (int)c->items[i].bytes - s->host[i];
        }
    }
    return pages;
}

/* Passes the stop if that is possible. */
static bool pass(const struct small_case *c, struct standing *s)
{
    const int event = s->stop / 4, kind = s->stop % 4;

    s->stop++;
    if (kind == 1 && pages_used(c, s) > c->device) {
        return false;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        if (kind == 2 && (int)c->items[i].come == event && c->items[i].due == NONE) {
            s->host[i] = 0;
        }
        if (kind == 3 && (int)c->items[i].due == event && s->host[i] != 0) {
            return false;
        }
    }
    if (kind == 3 && event + 1 < CASE_EVENTS) {
        s->gap = (int)(c->times[event + 1] - c->times[event]);
    }
    return true;
}

struct search {
    const struct small_case *c;
    unsigned char *waited; /* of each standing, the least; 255: not reached */
    uint32_t *list[2];     /* reached with as many waits; with one more */
    uint32_t n[2];
};

static void reach(struct search *r, struct standing s, unsigned waits, int which)
{
    for (;;) {
        const uint32_t code = code_of(&s);
        struct standing next = s;

        if (r->waited[code] > waits) {
            r->waited[code] = (unsigned char)waits;
            r->list[which][r->n[which]++] = code;
        }
        if (s.gap != 0 || s.stop == CASE_EVENTS * 4 || !pass(r->c, &next)) {
            return;
        }
        s = next;
    }
}

/* All that the link may do in one tick; then the job goes on, or waits. */
static void tick(struct search *r, const struct standing *s, unsigned waits)
{
    const struct small_case *c = r->c;

    for (int out = -1; out < (int)c->n; out++) {
        for (int back = -1; back < (int)c->n; back++) {
            struct standing next = *s;

            if (out >= 0) {
                const struct ps_spill_item *i = &c->items[out];

                if (!is_behind(s, i->leave, 0) || is_behind(s, i->come, 2) ||
                    ++next.host[out] > (int)i->bytes) {
                    continue;
                }
            }
            if (back >= 0 && (s->host[back] == 0 || !is_behind(s, c->items[back].gone, 1))) {
                continue;
            }
            next.host[back < 0 ? 0 : back] -= back >= 0;
            if (pages_used(c, &next) > c->device) {
                continue;
            }
            reach(r, next, waits + 1, 1);
            if (next.gap > 0) {
                next.gap--;
                reach(r, next, waits, 0);
            }
        }
    }
}

static unsigned least_waits(const struct small_case *c)
{
    struct search r = {.c = c, .waited = malloc(STATES)};
    const struct standing begin = {0};
    unsigned waits = 0;
    bool done = false;

    ck_assert_ptr_nonnull(r.waited);
    memset(r.waited, 255, STATES);
    for (int i = 0; i < 2; i++) {
        r.list[i] = malloc(STATES * 4 * sizeof(uint32_t));
        ck_assert_ptr_nonnull(r.list[i]);
    }
    reach(&r, begin, 0, 0);
    while (!done) {
        for (uint32_t i = 0; i < r.n[0] && !done; i++) {
            const struct standing s = standing_of(r.list[0][i]);

            done = s.stop == CASE_EVENTS * 4;
            if (!done && r.waited[r.list[0][i]] == waits) {
                tick(&r, &s, waits);
            }
        }
        if (!done) {
            uint32_t *list = r.list[0];

            r.list[0] = r.list[1];
            r.n[0] = r.n[1];
            r.list[1] = list;
            r.n[1] = 0;
            ck_assert_uint_lt(++waits, 250);
        }
    }
    free(r.waited);
    free(r.list[0]);
    free(r.list[1]);
    return waits;
}

/* Shapes: a pass there and back (0), in the same order (1), any (2). */
static void make_case(uint64_t seed, struct small_case *c)
{
    uint64_t random = seed;
    const uint32_t shape = steps_below(&random, 3);

    memset(c, 0, sizeof(*c));
    c->n = 1 + steps_below(&random, ITEMS_MOST);
    for (uint32_t e = 1; e < CASE_EVENTS; e++) {
        c->times[e] = c->times[e - 1] + steps_below(&random, 4);
    }
    for (uint32_t i = 0; i < c->n; i++) {
        struct ps_spill_item *item = &c->items[i];

        item->bytes = 1 + steps_below(&random, BYTES_MOST);
        item->leave = shape == 2 ? steps_below(&random, 6) : i;
        item->gone = item->leave + steps_below(&random, 2);
        item->come = shape == 0   ? 6 + 2 * (c->n - 1 - i)
                     : shape == 1 ? 5 + 2 * i
                                  : item->gone + steps_below(&random, 5);
        item->due = item->come + steps_below(&random, 2);
        if (steps_below(&random, 8) == 0) {
            item->due = NONE;
        }
    }
    c->device = (int)steps_below(&random, 5);
}

START_TEST(no_way_waits_less_on_small_cases)
{
    uint64_t ours = 0, least = 0, bound = 0, first_come = 0;

    for (uint64_t seed = (uint64_t)_i * 250 + 1; seed <= (uint64_t)_i * 250 + 250; seed++) {
        struct small_case c;
        struct outcome o;

        make_case(seed, &c);
        const struct ps_spill_settings s = {(uint64_t)c.device, one_byte_a_ns};
        const unsigned best = least_waits(&c);

        decide(&(struct ps_spill_step){c.times, c.items, CASE_EVENTS, c.n}, &s, &o);
        ck_assert_msg(o.ours >= best, "seed %lu: waits %lu, which is less than %u",
                      (unsigned long)seed, (unsigned long)o.ours, best);
        ck_assert_msg(o.bound <= best, "seed %lu: bound %lu, but %u is possible",
                      (unsigned long)seed, (unsigned long)o.bound, best);
        ck_assert_uint_ge(o.first_come, best);
        ours += o.ours;
        least += best;
        bound += o.bound;
        first_come += o.first_come;
        ps_spill_fini(&o.spill);
    }
    ck_assert_uint_eq(bound, least);
    ck_assert_uint_gt(first_come * 10, ours * 15);
    ck_assert_uint_le(ours * 100, least * 102);
}
END_TEST

/* ---- steps of real jobs ---- */

static const uint64_t link_rate = UINT64_C(55000000000);

static struct steps_shape layer_shape(void)
{
    return (struct steps_shape){.schedule = STEPS_SEQUENTIAL,
                                .stages = 1,
                                .virtual_stages = 1,
                                .microbatches = 1,
                                .layers = 12,
                                .capacity_percent = 200,
                                .spread_percent = 15,
                                .row_bytes = 1024 * STEPS_MIB,
                                .other_bytes = 1000 * STEPS_MIB,
                                .temporaries = true,
                                .seed = 1};
}

/* Times of events, of layers that take so long in forward, half of it in their region; twice in backward. */
static uint64_t *times_of(const struct ps_plan_step *step, uint64_t layer_ns)
{
    uint64_t *times = malloc((step->n_events + 1u) * sizeof(*times));
    uint64_t now = 0;

    ck_assert_ptr_nonnull(times);
    for (uint32_t e = 0; e < step->n_events; e++) {
        const uint8_t kind = step->events[e].kind;
        const bool first_free =
            kind == PS_PLAN_FREE && e > 0 && step->events[e - 1].kind == PS_PLAN_RETURN;

        now += kind == PS_PLAN_PUSH || kind == PS_PLAN_POP ? layer_ns / 2
               : kind == PS_PLAN_RETURN || first_free      ? layer_ns
                                                           : 0;
        times[e] = now;
    }
    return times;
}

/* Pages of all that is out at once, at the most. */
static uint64_t most_out(const struct ps_spill_item *items, uint32_t n)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t sum = 0;

        for (uint32_t k = 0; k < n; k++) {
            sum += items[k].gone <= items[i].gone && items[k].come >= items[i].gone ? items[k].bytes
                                                                                    : 0;
        }
        most = sum > most ? sum : most;
    }
    return most;
}

/* Nanoseconds, of several steps and budgets. */
struct sums {
    uint64_t ours, first_come, bound;
};

/* With device pages for so many tenths of what is out at most: from so many on. */
static void decide_step(const struct ps_plan_step *step, const uint64_t *times,
                        uint32_t moved_percent, uint32_t from, struct sums *sums)
{
    const struct ps_plan_settings settings = {2 * STEPS_MIB, STEPS_MIB / 4, moved_percent, 10};
    struct ps_spill_item *items = malloc((step->n_tensors + 1u) * sizeof(*items));
    struct ps_plan plan;
    const uint64_t half = moved_percent == 100 ? 51 : 50;
    uint32_t n;

    ck_assert_ptr_nonnull(items);
    ck_assert_int_eq(ps_plan_make(step, 1, &settings, &plan), PS_OK);
    ck_assert_int_eq(ps_spill_items(&plan, step, 0, settings.page_bytes, items, &n), PS_OK);
    ck_assert_uint_ne(n, 0);
    const struct ps_spill_step spilling = {times, items, step->n_events, n};
    const uint64_t most = most_out(items, n);

    for (uint32_t part = from; part <= 10; part += 2) {
        const struct ps_spill_settings s = {most * part / 10, link_rate};
        struct outcome o;

        decide(&spilling, &s, &o);
        ck_assert_uint_ge(o.ours, o.bound);
        ck_assert(part < 10 || (o.ours == 0 && o.spill.out_bytes == 0));
        ck_assert(part == 10 || o.spill.host_bytes >= most - s.device_bytes);
        if (part > 0) { /* with no pages there is nothing to choose */
            sums->ours += o.ours;
            sums->first_come += o.first_come;
            sums->bound += o.bound;
            ck_assert_msg(o.ours * 100 <= o.first_come * half || o.ours * 10 <= o.bound * 11,
                          "%u tenths, %u %% moved: we wait %lu us, first come %lu us", part,
                          moved_percent, (unsigned long)o.ours / 1000,
                          (unsigned long)o.first_come / 1000);
        }
        ps_spill_fini(&o.spill);
    }
    ps_plan_fini(&plan);
    free(items);
}

static void decide_stages(struct steps_shape shape, uint32_t moved_percent, struct sums *sums)
{
    for (uint32_t stages = 2; stages <= 8; stages *= 2) {
        for (uint32_t stage = 0; stage < stages; stage += stages / 2) {
            struct made_step made;

            shape.stages = stages;
            shape.stage = stage;
            shape.microbatches = 2 * stages;
            steps_make(&shape, &made);
            uint64_t *times = times_of(&made.step, UINT64_C(8000000));

            decide_step(&made.step, times, moved_percent, 0, sums);
            free(times);
            steps_free(&made);
        }
    }
}

/* With homes as a plan makes them; and with none, where all that is out moves. */
START_TEST(pipelines_wait_as_little_as_the_link_allows)
{
    struct steps_shape shape = layer_shape();
    const bool homes = _i % 2 == 0;
    struct sums sums = {0};

    shape.schedule = (enum steps_schedule)(_i / 2);
    shape.virtual_stages = 2;
    shape.layers = shape.schedule == STEPS_SEQUENTIAL ? 12 : 3;
    for (uint32_t percent = homes ? 10 : 100; percent <= (homes ? 50 : 100); percent += 20) {
        decide_stages(shape, percent, &sums);
    }
    ck_assert_uint_gt(sums.bound, 0);
    ck_assert_msg(sums.ours * 100 <= sums.bound * (homes ? 110 : 118),
                  "we wait %lu us, bound %lu us", (unsigned long)sums.ours / 1000,
                  (unsigned long)sums.bound / 1000);
    ck_assert_uint_le(sums.ours * 4, sums.first_come);
}
END_TEST

/* ---- cases by hand ---- */

/* Three tails of 10, out one after the other, back the other way round; a byte a tick. */
static const struct ps_spill_item three[] = {
    {.bytes = 10, .group = 0, .tensor = 0, .leave = 0, .gone = 1, .come = 5, .due = 6},
    {.bytes = 10, .group = 1, .tensor = 1, .leave = 1, .gone = 2, .come = 4, .due = 5},
    {.bytes = 10, .group = 2, .tensor = 2, .leave = 2, .gone = 3, .come = 3, .due = 4},
};

START_TEST(what_is_needed_last_goes_first)
{
    const uint64_t times[] = {0, 4, 8, 12, 16, 20, 24};
    const struct ps_spill_settings s = {20, one_byte_a_ns};
    struct ps_spill spill;

    ck_assert_int_eq(ps_spill_plan(&(struct ps_spill_step){times, three, 7, 3}, &s,
                                   PS_SPILL_LAST_NEEDED, &spill),
                     PS_OK);
    ck_assert_uint_eq(spill.wait_ns, 0);
    ck_assert_uint_eq(spill.moves[0].host_bytes, 10);
    ck_assert_uint_eq(spill.moves[0].out, 0);
    ck_assert_uint_eq(spill.moves[0].back, 3); /* pages are free, long before it is due */
    ck_assert_uint_eq(spill.moves[1].host_bytes + spill.moves[2].host_bytes, 0);
    ck_assert_uint_eq(spill.host_bytes, 10);
    ps_spill_fini(&spill);
    /* The one that finds no pages is the one that is needed first. */
    ck_assert_int_eq(
        ps_spill_plan(&(struct ps_spill_step){times, three, 7, 3}, &s, PS_SPILL_FIRST_COME, &spill),
        PS_OK);
    ck_assert_uint_eq(spill.moves[2].host_bytes, 10);
    ck_assert_uint_eq(spill.wait_ns, 10 - 4 + 10 - 4); /* out from 8 to 12, back from 12 to 16 */
    ps_spill_fini(&spill);
}
END_TEST

/* The other rule is no straw man: it takes pages again that have become free. */
START_TEST(pages_are_taken_again)
{
    const uint64_t times[] = {0, 4, 8, 12, 16, 20, 24};
    const struct ps_spill_item items[] = {
        {.bytes = 10, .group = 0, .tensor = 0, .leave = 0, .gone = 1, .come = 2, .due = 3},
        {.bytes = 10, .group = 1, .tensor = 1, .leave = 3, .gone = 4, .come = 5, .due = 6},
    };
    const struct ps_spill_step step = {times, items, 7, 2};
    const struct ps_spill_settings s = {10, one_byte_a_ns};
    struct ps_spill spill;

    for (int rule = PS_SPILL_LAST_NEEDED; rule <= PS_SPILL_FIRST_COME; rule++) {
        ck_assert_int_eq(ps_spill_plan(&step, &s, (enum ps_spill_rule)rule, &spill), PS_OK);
        ck_assert_uint_eq(spill.out_bytes, 0);
        ck_assert_uint_eq(spill.wait_ns, 0);
        ps_spill_fini(&spill);
    }
}
END_TEST

START_TEST(what_is_freed_does_not_come_back)
{
    const uint64_t times[] = {0, 4, 8, 12, 16, 20, 24};
    const struct ps_spill_settings s = {0, one_byte_a_ns};
    struct ps_spill_item items[3];
    struct ps_spill spill;

    memcpy(items, three, sizeof(items));
    for (int i = 0; i < 3; i++) {
        items[i].due = NONE;
    }
    for (int rule = PS_SPILL_LAST_NEEDED; rule <= PS_SPILL_FIRST_COME; rule++) {
        ck_assert_int_eq(ps_spill_plan(&(struct ps_spill_step){times, items, 7, 3}, &s,
                                       (enum ps_spill_rule)rule, &spill),
                         PS_OK);
        ck_assert_uint_eq(spill.wait_ns, 30 - 12);
        ck_assert_uint_eq(spill.moves[0].back, NONE);
        ps_spill_fini(&spill);
    }
}
END_TEST

START_TEST(impossible_items_are_refused)
{
    const uint64_t times[] = {0, 4, 8, 12, 16, 20, 24}, backwards[] = {0, 4, 3, 12, 16, 20, 24};
    struct ps_spill_settings s = {20, one_byte_a_ns};
    struct ps_spill_item items[3];
    struct ps_spill spill;
    uint64_t bound;

    for (int what = 0; what < 6; what++) {
        memcpy(items, three, sizeof(items));
        items[1].leave = what == 0 ? 3 : items[1].leave;
        items[1].gone = what == 1 ? 5 : items[1].gone;
        items[1].due = what == 2 ? 7 : what == 3 ? 3 : items[1].due;
        items[1].bytes = what == 4 ? UINT64_MAX : items[1].bytes;
        s.link_rate = what == 5 ? 0 : one_byte_a_ns;
        ck_assert_int_eq(ps_spill_plan(&(struct ps_spill_step){times, items, 7, 3}, &s,
                                       PS_SPILL_LAST_NEEDED, &spill),
                         PS_ERR_INVALID);
        ck_assert_int_eq(ps_spill_bound(&(struct ps_spill_step){times, items, 7, 3}, &s, &bound),
                         PS_ERR_INVALID);
    }
    s.link_rate = one_byte_a_ns;
    ck_assert_int_eq(ps_spill_plan(&(struct ps_spill_step){backwards, three, 7, 3}, &s,
                                   PS_SPILL_FIRST_COME, &spill),
                     PS_ERR_INVALID);
    s.device_bytes = UINT64_MAX;
    ck_assert_int_eq(ps_spill_plan(&(struct ps_spill_step){times, three, 7, 3}, &s,
                                   PS_SPILL_LAST_NEEDED, &spill),
                     PS_OK);
    ck_assert_uint_eq(spill.out_bytes, 0);
    ps_spill_fini(&spill);
    ck_assert_int_eq(ps_spill_plan(&(struct ps_spill_step){times, three, 0, 0}, &s,
                                   PS_SPILL_LAST_NEEDED, &spill),
                     PS_OK);
    ps_spill_fini(&spill);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *s = suite_create("spill");
    TCase *t = tcase_create("rule");

    tcase_set_timeout(t, 60);
    tcase_add_test(t, what_is_needed_last_goes_first);
    tcase_add_test(t, pages_are_taken_again);
    tcase_add_test(t, what_is_freed_does_not_come_back);
    tcase_add_test(t, impossible_items_are_refused);
    tcase_add_loop_test(t, no_way_waits_less_on_small_cases, 0, 4);
    tcase_add_loop_test(t, pipelines_wait_as_little_as_the_link_allows, 0, 6);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return ps_check_main(make_suite());
}
