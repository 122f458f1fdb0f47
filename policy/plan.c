/* SPDX-License-Identifier: Apache-2.0 */
/* The planner: tries numbers of lanes and keeps the best; see plan.h and plan_int.h. */
#include "policy/plan.h"

#include <stdlib.h>
#include <string.h>

#include "policy/plan_int.h"

#define NONE        PS_PLAN_NONE
#define BYTES_MOST  (UINT64_C(1) << 62) /* sums stop here */
#define ROUNDS_MOST 3

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > BYTES_MOST - b ? BYTES_MOST : a + b;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) || product > BYTES_MOST ? BYTES_MOST : product;
}

/* Sets and sizes depend on each other through the names that have tails: until they are the same. */
static enum ps_status settle(struct ps_planning *p, uint32_t n_lanes)
{
    for (uint32_t i = 0; i < p->n_names; i++) {
        p->names[i].tails = true;
    }
    for (uint32_t round = 0; round < ROUNDS_MOST; round++) {
        uint32_t before = 0, after = 0;
        enum ps_status status = ps_planning_choose(p, n_lanes);

        for (uint32_t i = 0; i < p->n_names; i++) {
            before += p->names[i].tails;
        }
        status = status == PS_OK ? ps_planning_sizes(p) : status;
        if (status != PS_OK) {
            return status;
        }
        for (uint32_t i = 0; i < p->n_names; i++) {
            after += p->names[i].tails;
        }
        if (after == before) {
            break;
        }
    }
    return PS_OK;
}

/* The sums of the plan, from the sets, the sizes and what the rules came to. */
static void sum_up(const struct ps_planning *p, const struct ps_planning_result *r,
                   struct ps_plan *plan)
{
    const struct ps_plan_settings *s = p->settings;
    uint64_t slots = 0;

    plan->n_lanes = p->n_lanes;
    plan->n_slots = p->n_slots;
    for (uint32_t i = 0; i < p->n_slots; i++) {
        plan->slot_bytes[i] = p->slot_bytes[i];
        slots = add(slots, p->slot_bytes[i]);
        plan->spare_bytes =
            p->slot_bytes[i] > plan->spare_bytes ? p->slot_bytes[i] : plan->spare_bytes;
    }
    plan->lane_bytes = times(slots, p->n_lanes);
    for (uint32_t i = 0; i < p->n_names; i++) {
        const struct ps_planning_name *name = &p->names[i];

        plan->home_bytes = add(plan->home_bytes, times(name->n_sets, name->home_bytes));
        plan->group_tail_bytes =
            name->tail_bytes > plan->group_tail_bytes ? name->tail_bytes : plan->group_tail_bytes;
    }
    const uint64_t pages = times(r->most_pages, s->page_bytes);

    plan->pool_bytes =
        ps_planning_round(add(pages, times(pages / 100, s->pool_percent)), s->granularity);
    plan->temporary_bytes = p->temporary_bytes;
    plan->peak_bytes = add(add(add(plan->home_bytes, plan->lane_bytes), r->floating_bytes),
                           add(plan->pool_bytes, plan->spare_bytes));
    plan->plain_peak_bytes = p->plain_peak_bytes;
    plan->bound_bytes = p->bound_bytes;
    plan->valid_bytes = r->valid_bytes;
    plan->moved_bytes = r->moved_bytes;
    plan->n_conflicts = r->n_conflicts;
    plan->n_late = r->n_late;
    plan->adopt = plan->peak_bytes < plan->plain_peak_bytes && plan->n_slots != 0;
}

static bool is_better(const struct ps_plan *a, const struct ps_plan *b)
{
    if (a->n_conflicts != b->n_conflicts) {
        return a->n_conflicts < b->n_conflicts;
    }
    return a->peak_bytes < b->peak_bytes;
}

/* One with more lanes might be better only where a lane was missing. */
static bool is_settled(const struct ps_planning *p, const struct ps_plan *plan)
{
    return plan->n_conflicts == 0 && p->n_extra_sets == 0;
}

/*
 * One lane does where all groups come before all returns: between two regions there is time for one to leave, or to
 * come in. Where they alternate, as in a pipeline, the next to return would wait for each newcomer to leave.
 */
static bool alternates(const struct ps_plan_step *s)
{
    uint32_t n_live = 0;
    bool returned = false;

    for (uint32_t i = 0; i < s->n_events; i++) {
        const enum ps_plan_kind kind = s->events[i].kind;

        if (kind == PS_PLAN_PUSH && returned && n_live > 0) {
            return true;
        }
        n_live += kind == PS_PLAN_ALLOC;
        n_live -= kind == PS_PLAN_FREE;
        returned = (returned || kind == PS_PLAN_RETURN) && n_live > 0;
    }
    return false;
}

static uint32_t least_lanes(const struct ps_planning *p)
{
    uint32_t n = 1;

    for (uint32_t i = 0; i < p->n_steps; i++) {
        n = alternates(p->steps[i].given) ? 2 : n;
    }
    return n;
}

static enum ps_status choose_lanes(struct ps_planning *p, uint32_t *n_lanes_p)
{
    struct ps_plan best = {0};

    for (uint32_t n = least_lanes(p); n <= PS_PLAN_LANES_MAX; n++) {
        struct ps_plan plan = {0};
        struct ps_planning_result result;
        enum ps_status status = settle(p, n);

        status = status == PS_OK ? ps_planning_run(p, NULL, &result) : status;
        if (status != PS_OK) {
            return status;
        }
        sum_up(p, &result, &plan);
        if (best.n_lanes == 0 || is_better(&plan, &best)) {
            best = plan;
        }
        if (is_settled(p, &plan)) {
            break;
        }
    }
    *n_lanes_p = best.n_lanes;
    return PS_OK;
}

static bool make_moves(struct ps_plan_moves *m, uint32_t n_groups)
{
    const size_t n = n_groups + (size_t)1;

    m->n_groups = n_groups;
    m->stash = calloc(n, sizeof(*m->stash));
    m->after_push = malloc(n * sizeof(*m->after_push));
    m->after_return = malloc(n * sizeof(*m->after_return));
    m->set = malloc(n * sizeof(*m->set));
    m->trips = malloc(n * sizeof(*m->trips));
    if (m->stash == NULL || m->after_push == NULL || m->after_return == NULL || m->set == NULL ||
        m->trips == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < n_groups; i++) {
        m->after_push[i] = m->after_return[i] = m->set[i] = NONE;
        m->trips[i] = (struct ps_plan_trip){NONE, NONE, NONE, NONE};
    }
    return true;
}

static void copy_sites(const struct ps_planning *p, struct ps_plan *plan)
{
    for (uint32_t i = 0; i < p->n_sites; i++) {
        const struct ps_planning_site *from = &p->sites[i];

        plan->sites[i] = (struct ps_plan_site){
            .name = p->names[from->name].name,
            .ordinal = from->ordinal,
            .class = from->temporary         ? PS_PLAN_TEMPORARY
                     : from->tail_bytes != 0 ? PS_PLAN_STASH
                                             : PS_PLAN_RESIDENT,
            .slot = from->tail_bytes != 0 ? from->slot : NONE,
            .bytes = ps_planning_round(from->bytes, p->settings->granularity),
            .home_bytes = from->home_bytes,
        };
    }
    for (uint32_t i = 0; i < p->n_sets; i++) {
        plan->sets[i] = p->sets[i];
    }
}

/* The plan for the number of lanes chosen. */
static enum ps_status fill(struct ps_planning *p, struct ps_plan *plan)
{
    struct ps_planning_result result;
    enum ps_status status;

    plan->n_sites = p->n_sites;
    plan->n_sets = p->n_sets;
    plan->sites = calloc(p->n_sites + (size_t)1, sizeof(*plan->sites));
    plan->sets = calloc(p->n_sets + (size_t)1, sizeof(*plan->sets));
    plan->moves = calloc(p->n_steps + (size_t)1, sizeof(*plan->moves));
    if (plan->sites == NULL || plan->sets == NULL || plan->moves == NULL) {
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < p->n_steps; i++) {
        plan->n_moves = i + 1;
        if (!make_moves(&plan->moves[i], p->steps[i].given->n_groups)) {
            return PS_ERR_MEMORY;
        }
    }
    status = ps_planning_run(p, plan->moves, &result);
    if (status == PS_OK) {
        sum_up(p, &result, plan);
        copy_sites(p, plan);
    }
    return status;
}

enum ps_status ps_plan_make(const struct ps_plan_step *steps, uint32_t n_steps,
                            const struct ps_plan_settings *settings, struct ps_plan *plan_p)
{
    struct ps_planning p;
    struct ps_plan plan = {0};
    uint32_t n_lanes = 0;
    enum ps_status status = ps_planning_init(&p, steps, n_steps, settings);

    status = status == PS_OK ? ps_planning_edges(&p) : status;
    status = status == PS_OK ? choose_lanes(&p, &n_lanes) : status;
    if (status == PS_OK && n_lanes != p.n_lanes) {
        status = settle(&p, n_lanes);
    }
    status = status == PS_OK ? fill(&p, &plan) : status;
    ps_planning_fini(&p);
    if (status != PS_OK) {
        ps_plan_fini(&plan);
        return status;
    }
    *plan_p = plan;
    return PS_OK;
}

void ps_plan_fini(struct ps_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_moves; i++) {
        free(plan->moves[i].stash);
        free(plan->moves[i].after_push);
        free(plan->moves[i].after_return);
        free(plan->moves[i].set);
        free(plan->moves[i].trips);
    }
    free(plan->moves);
    free(plan->sites);
    free(plan->sets);
    memset(plan, 0, sizeof(*plan));
}

const struct ps_plan_site *ps_plan_find(const struct ps_plan *plan, uint32_t name, uint32_t ordinal)
{
    uint32_t low = 0, high = plan->n_sites;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const struct ps_plan_site *site = &plan->sites[middle];

        if (site->name == name && site->ordinal == ordinal) {
            return site;
        }
        if (site->name < name || (site->name == name && site->ordinal < ordinal)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

enum ps_status ps_plan_lanes(const struct ps_plan *plan, struct ps_lanes *lanes_p)
{
    uint32_t *names = malloc((plan->n_sites + (size_t)1) * sizeof(*names));
    uint32_t n = 0;
    struct ps_lanes lanes;

    if (names == NULL) {
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < plan->n_sites; i++) {
        if (n == 0 || names[n - 1] != plan->sites[i].name) {
            names[n++] = plan->sites[i].name;
        }
    }
    enum ps_status status = ps_lanes_init(&lanes, plan->n_lanes, names, n);

    free(names);
    if (status != PS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < plan->n_sets && status == PS_OK; i++) {
        status = ps_lanes_add(&lanes, plan->sets[i].name, plan->sets[i].lane);
    }
    if (status != PS_OK) {
        ps_lanes_fini(&lanes);
        return status;
    }
    *lanes_p = lanes;
    return PS_OK;
}
