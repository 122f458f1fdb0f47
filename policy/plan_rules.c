/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules run over the steps, twice (plan_int.h): first each group is given a set with foresight, and it is seen who
 * is in whose way; then all runs as at run time, and what it costs is counted.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/plan_int.h"

#define NONE PS_PLAN_NONE

struct running {
    struct ps_planning *p;
    struct ps_planning_step *s;
    struct ps_lanes lanes;
    struct ps_lanes_group *groups;
    struct ps_plan_moves *moves; /* NULL: not asked for, or choosing */
    bool choosing;
    uint32_t at;
    uint64_t out_pages, moved_pages, valid_bytes;
    uint64_t loose_bytes; /* of groups in no set, tails apart, and temporaries */
    struct ps_planning_result result;
};

static uint32_t number_of(const struct running *r, const struct ps_lanes_group *g)
{
    return (uint32_t)(g - r->groups);
}

static bool is_alive(const struct running *r, uint32_t tensor)
{
    const struct ps_planning_tensor *t = &r->s->tensors[tensor];

    return t->born <= r->at && t->died > r->at;
}

static uint64_t tensor_pages(const struct running *r, uint32_t tensor)
{
    const struct ps_planning_site *site = &r->p->sites[r->s->tensors[tensor].site];

    if (site->tail_bytes == 0) {
        return 0;
    }
    const uint64_t valid = ps_planning_valid(site, &r->s->given->tensors[tensor]);
    const uint64_t page = r->p->settings->page_bytes;

    return valid > site->home_bytes ? (valid - site->home_bytes + page - 1) / page : 0;
}

static uint64_t group_pages(const struct running *r, uint32_t group)
{
    uint64_t n = 0;

    for (uint32_t t = r->s->groups[group].first; t != NONE; t = r->s->tensors[t].next) {
        n += is_alive(r, t) ? tensor_pages(r, t) : 0;
    }
    return n;
}

static uint64_t group_valid(const struct running *r, uint32_t group)
{
    uint64_t sum = 0;

    for (uint32_t t = r->s->groups[group].first; t != NONE; t = r->s->tensors[t].next) {
        const struct ps_planning_site *site = &r->p->sites[r->s->tensors[t].site];

        if (is_alive(r, t) && !site->temporary && site->known) {
            sum += ps_planning_valid(site, &r->s->given->tensors[t]);
        }
    }
    return sum;
}

/* All places of a set of that name, as a group that finds no set needs them. */
static uint64_t own_bytes(const struct running *r, uint32_t group)
{
    const struct ps_planning_name *name = &r->p->names[r->s->groups[group].name];

    return name->home_bytes + name->tail_bytes;
}

static struct ps_plan_trip *trip_of(const struct running *r, uint32_t group)
{
    return r->moves == NULL ? NULL : &r->moves->trips[group];
}

static void leave(struct running *r, const struct ps_lanes_group *g)
{
    const uint64_t pages = group_pages(r, number_of(r, g));
    struct ps_plan_trip *trip = trip_of(r, number_of(r, g));

    if (trip != NULL) {
        *trip = (struct ps_plan_trip){r->at, NONE, NONE, NONE};
    }
    r->out_pages += pages;
    r->moved_pages += pages;
    r->valid_bytes += group_valid(r, number_of(r, g));
    if (r->out_pages > r->result.most_pages) {
        r->result.most_pages = r->out_pages;
    }
}

static void come(struct running *r, const struct ps_lanes_group *g)
{
    const uint64_t pages = group_pages(r, number_of(r, g));
    struct ps_plan_trip *trip = trip_of(r, number_of(r, g));

    if (trip != NULL) {
        trip->come = r->at;
    }
    r->out_pages -= pages;
    r->moved_pages += pages;
}

static void took(struct running *r, const struct ps_lanes_taken *taken)
{
    if (taken->before != NULL && taken->now) {
        leave(r, taken->before);
    }
    if (taken->before != NULL && r->moves != NULL) {
        trip_of(r, number_of(r, taken->before))->gone = r->at;
    }
    if (taken->before != NULL && r->choosing) {
        r->s->groups[number_of(r, taken->before)].stash = true;
    }
}

static void boundary(struct running *r, const struct ps_lanes_group *but)
{
    struct ps_lanes_group *leaving[PS_LANES_MAX];
    const uint32_t n = ps_lanes_boundary(&r->lanes, but, leaving);

    for (uint32_t i = 0; i < n; i++) {
        leave(r, leaving[i]);
    }
}

/* The group that returns at the event, if it is a return of one that is out; else NONE. */
static uint32_t next_return(const struct running *r, uint32_t event)
{
    if (event == NONE || r->s->given->events[event].kind != PS_PLAN_RETURN) {
        return NONE;
    }
    const uint32_t group = r->s->given->events[event].index;

    return r->groups[group].place == PS_LANES_OUT ? group : NONE;
}

static void ahead(struct running *r, uint32_t group)
{
    struct ps_lanes_taken taken;

    if (group != NONE && ps_lanes_ahead(&r->lanes, &r->groups[group], &taken)) {
        took(r, &taken);
        come(r, &r->groups[group]);
    }
}

/* What speaks against a lane, weightiest first. */
struct against {
    uint32_t conflicts; /* moments at which two groups would have to be in it */
    bool new_set;
    enum ps_lanes_claim claim;
    uint32_t soft; /* neighbours in time: no restore ahead, or a wait for a stash just begun */
    uint32_t
        next_back; /* of who would have to leave, counted from the end: the later, the better */
};

static uint32_t lane_of(const struct running *r, uint32_t group)
{
    const uint32_t set = r->s->groups[group].set;

    return set == NONE ? NONE : r->p->sets[set].lane;
}

/* Whether the boundary's group is in the lane then, or wants to be. */
static bool is_near(const struct running *r, uint32_t event, uint32_t lane)
{
    if (event == NONE) {
        return false;
    }
    const uint32_t group = r->s->given->events[event].index;

    return lane_of(r, group) == lane && r->s->groups[group].died > r->at;
}

/* With two lanes: whether the group belongs into the other one. */
static bool is_wrong(struct running *r, uint32_t group, uint32_t lane)
{
    bool other;
    const uint32_t root = ps_planning_root(r->s, group, &other);
    const uint32_t anchor = r->s->groups[root].anchor;

    return r->lanes.n_lanes == 2 && anchor != NONE && lane != (anchor ^ (uint32_t)other);
}

static void settle_lane(struct running *r, uint32_t group, uint32_t lane)
{
    bool other;
    struct ps_planning_group *root = &r->s->groups[ps_planning_root(r->s, group, &other)];

    if (root->anchor == NONE && lane < 2) {
        root->anchor = lane ^ (uint32_t)other;
    }
}

static struct against weigh(struct running *r, uint32_t group, uint32_t lane)
{
    const struct ps_planning_group *g = &r->s->groups[group];
    const struct ps_lanes_group *holder = r->lanes.holder[lane];
    struct against a = {.claim = ps_lanes_claim(&r->lanes, lane)};

    a.new_set = ps_lanes_free_set(&r->lanes, r->p->names[g->name].name, lane) == PS_LANES_NONE;
    if (a.claim == PS_LANES_TAKEN) {
        a.conflicts = UINT32_MAX;
        return a;
    }
    for (uint32_t e = g->edge; e != NONE; e = r->s->edges[e].next) {
        a.conflicts += lane_of(r, r->s->edges[e].group) == lane;
    }
    a.soft = 8u * is_wrong(r, group, lane) + is_near(r, g->before_push, lane) +
             is_near(r, g->after_push, lane) + is_near(r, g->before_back, lane) +
             is_near(r, g->after_back, lane);
    a.next_back =
        holder == NULL ? 0 : r->s->given->n_events - r->s->groups[number_of(r, holder)].back;
    return a;
}

static bool is_less(const struct against *a, const struct against *b)
{
    if (a->conflicts != b->conflicts) {
        return a->conflicts < b->conflicts;
    }
    if (a->new_set != b->new_set) {
        return b->new_set;
    }
    if (a->claim != b->claim) {
        return a->claim < b->claim;
    }
    return a->soft != b->soft ? a->soft < b->soft : a->next_back < b->next_back;
}

static bool make_set(struct ps_planning *p, struct ps_lanes *l, uint32_t name, uint32_t lane)
{
    if (p->n_sets == p->sets_room) {
        const uint32_t room = p->sets_room == 0 ? 64 : 2 * p->sets_room;
        void *more = realloc(p->sets, room * sizeof(*p->sets));

        if (more == NULL) {
            return false;
        }
        p->sets = more;
        p->sets_room = room;
    }
    p->sets[p->n_sets++] = (struct ps_plan_set){.name = p->names[name].name, .lane = lane};
    p->names[name].n_sets++;
    return ps_lanes_add(l, p->names[name].name, lane) == PS_OK;
}

/* The set for the group, made if there is none. NONE in *set_p: no lane is to be had. False: out of memory. */
static bool choose(struct running *r, uint32_t group, uint32_t *set_p)
{
    const uint32_t name = r->s->groups[group].name;
    const uint32_t lanes = r->p->names[name].tails ? r->lanes.n_lanes : 0;
    uint32_t lane = NONE;
    struct against best = {0};
    bool any_free = false;

    for (uint32_t i = 0; i < lanes; i++) {
        const struct against a = weigh(r, group, i);

        any_free = any_free || !a.new_set;
        if (lane == NONE || is_less(&a, &best)) {
            best = a;
            lane = i;
        }
    }
    *set_p = NONE;
    if (lane != NONE && best.claim == PS_LANES_TAKEN) {
        return true;
    }
    settle_lane(r, group, lane);
    *set_p = ps_lanes_free_set(&r->lanes, r->p->names[name].name, lane);
    if (*set_p == PS_LANES_NONE) {
        *set_p = r->p->n_sets;
        r->p->n_extra_sets += any_free;
        return make_set(r->p, &r->lanes, name, lane);
    }
    return true;
}

static bool born(struct running *r, uint32_t group)
{
    struct ps_planning_group *g = &r->s->groups[group];
    struct ps_lanes_taken taken;

    if (r->choosing && !choose(r, group, &g->set)) {
        return false;
    }
    if ((g->set != NONE || !r->choosing) &&
        ps_lanes_acquire(&r->lanes, &r->groups[group], r->p->names[g->name].name, g->set, &taken)) {
        ps_assert(!r->choosing || taken.set == g->set);
        g->set = taken.set;
        took(r, &taken);
    } else {
        g->set = NONE;
        r->result.n_conflicts++;
        r->loose_bytes += own_bytes(r, group);
    }
    return true;
}

static void died(struct running *r, uint32_t group)
{
    struct ps_lanes_group *g = &r->groups[group];

    if (!g->owns) {
        r->loose_bytes -= own_bytes(r, group);
    } else if (g->place == PS_LANES_SPARE) {
        r->loose_bytes -= r->p->names[r->s->groups[group].name].tail_bytes;
    }
    const struct ps_lanes_group *next = ps_lanes_free(&r->lanes, g);

    if (next != NULL) {
        come(r, next);
    }
}

static void returned(struct running *r, uint32_t group)
{
    struct ps_lanes_group *g = &r->groups[group];
    struct ps_lanes_taken taken;

    boundary(r, g);
    if (r->s->groups[group].born == NONE || r->s->groups[group].died <= r->at) {
        return;
    }
    if (r->moves != NULL && trip_of(r, group)->leave != NONE) {
        trip_of(r, group)->due = r->at;
    }
    switch (ps_lanes_return(&r->lanes, g, &taken)) {
    case PS_LANES_CAME_BACK:
        r->out_pages -= group_pages(r, group);
        break;
    case PS_LANES_CAME_IN:
        took(r, &taken);
        come(r, g);
        r->result.n_late++;
        break;
    case PS_LANES_CAME_APART:
        come(r, g);
        r->result.n_conflicts++;
        r->loose_bytes += r->p->names[r->s->groups[group].name].tail_bytes;
        break;
    case PS_LANES_CAME_NOT:
    case PS_LANES_WAS_IN:
    default:
        break;
    }
    if (!r->choosing) {
        const uint32_t next = next_return(r, r->s->groups[group].after_back);

        if (r->moves != NULL) {
            r->moves->after_return[group] = next;
        }
        ahead(r, next);
    }
}

static void popped(struct running *r, uint32_t group)
{
    const struct ps_planning_group *g = &r->s->groups[group];

    ps_lanes_close(&r->lanes, &r->groups[group]);
    if (ps_lanes_leave(&r->lanes, &r->groups[group])) {
        leave(r, &r->groups[group]);
    }
    if (g->born != NONE && g->died == r->at) {
        died(r, group);
    }
    if (!r->choosing && g->after_push == g->after_pop) {
        const uint32_t next = next_return(r, g->after_push);

        if (r->moves != NULL) {
            r->moves->after_push[group] = next;
        }
        ahead(r, next);
    }
}

static void freed(struct running *r, uint32_t tensor)
{
    const uint32_t group = r->s->given->tensors[tensor].group;
    const struct ps_lanes_group *g = &r->groups[group];

    if (g->place == PS_LANES_LEAVING || g->place == PS_LANES_OUT) {
        r->out_pages -= tensor_pages(r, tensor);
    }
    if (r->s->groups[group].born != NONE && r->s->groups[group].died == r->at) {
        died(r, group);
    }
}

/* What the job's own allocator gives a temporary; 0: the tensor is none. */
static uint64_t temporary_bytes(const struct running *r, uint32_t tensor)
{
    return r->p->sites[r->s->tensors[tensor].site].temporary
               ? ps_planning_round(r->s->given->tensors[tensor].bytes, r->p->settings->granularity)
               : 0;
}

/* False: out of memory. */
static bool run_event(struct running *r)
{
    const struct ps_plan_event *e = &r->s->given->events[r->at];

    switch ((enum ps_plan_kind)e->kind) {
    case PS_PLAN_PUSH:
        boundary(r, NULL);
        break;
    case PS_PLAN_POP:
        popped(r, e->index);
        break;
    case PS_PLAN_ALLOC: {
        const uint32_t group = r->s->given->tensors[e->index].group;

        if (r->s->groups[group].born == r->at && !born(r, group)) {
            return false;
        }
        r->loose_bytes += temporary_bytes(r, e->index);
        break;
    }
    case PS_PLAN_FREE:
        r->loose_bytes -= temporary_bytes(r, e->index);
        freed(r, e->index);
        break;
    case PS_PLAN_RETURN:
        returned(r, e->index);
        break;
    }
    if (e->other_bytes + r->loose_bytes > r->result.floating_bytes) {
        r->result.floating_bytes = e->other_bytes + r->loose_bytes;
    }
    return true;
}

static enum ps_status start(struct running *r, struct ps_planning *p, struct ps_planning_step *s)
{
    *r = (struct running){.p = p, .s = s};
    r->groups = calloc(s->given->n_groups + (size_t)1, sizeof(*r->groups));
    if (r->groups == NULL ||
        ps_lanes_init(&r->lanes, p->n_lanes, p->name_list, p->n_names) != PS_OK) {
        free(r->groups);
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < p->n_sets; i++) {
        if (ps_lanes_add(&r->lanes, p->sets[i].name, p->sets[i].lane) != PS_OK) {
            ps_lanes_fini(&r->lanes);
            free(r->groups);
            return PS_ERR_MEMORY;
        }
    }
    return PS_OK;
}

static enum ps_status finish(struct running *r)
{
    enum ps_status status = PS_OK;

    for (r->at = 0; r->at < r->s->given->n_events && status == PS_OK; r->at++) {
        status = run_event(r) ? PS_OK : PS_ERR_MEMORY;
    }
    ps_lanes_fini(&r->lanes);
    free(r->groups);
    return status;
}

enum ps_status ps_planning_choose(struct ps_planning *p, uint32_t n_lanes)
{
    enum ps_status status = PS_OK;

    p->n_lanes = n_lanes;
    p->n_sets = p->n_extra_sets = 0;
    for (uint32_t i = 0; i < p->n_names; i++) {
        p->names[i].n_sets = 0;
    }
    for (uint32_t i = 0; i < p->n_steps && status == PS_OK; i++) {
        struct running r;

        for (uint32_t g = 0; g < p->steps[i].given->n_groups; g++) {
            p->steps[i].groups[g].set = NONE;
            p->steps[i].groups[g].anchor = NONE;
            p->steps[i].groups[g].stash = false;
        }
        status = start(&r, p, &p->steps[i]);
        if (status == PS_OK) {
            r.choosing = true;
            status = finish(&r);
        }
    }
    return status;
}

static void keep_moves(const struct ps_planning_step *s, struct ps_plan_moves *m)
{
    for (uint32_t g = 0; g < s->given->n_groups; g++) {
        m->stash[g] = s->groups[g].stash;
        m->set[g] = s->groups[g].set;
    }
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

enum ps_status ps_planning_run(struct ps_planning *p, struct ps_plan_moves *moves,
                               struct ps_planning_result *result_p)
{
    struct ps_planning_result sum = {0};

    for (uint32_t i = 0; i < p->n_steps; i++) {
        struct running r;
        enum ps_status status = start(&r, p, &p->steps[i]);

        if (status != PS_OK) {
            return status;
        }
        for (uint32_t g = 0; g < p->steps[i].given->n_groups; g++) {
            r.groups[g].stash = p->steps[i].groups[g].stash;
        }
        r.moves = moves == NULL ? NULL : &moves[i];
        status = finish(&r);
        if (status != PS_OK) {
            return status;
        }
        if (moves != NULL) {
            keep_moves(&p->steps[i], &moves[i]);
        }
        sum.n_conflicts += r.result.n_conflicts;
        sum.n_late += r.result.n_late;
        sum.most_pages = larger(sum.most_pages, r.result.most_pages);
        sum.floating_bytes = larger(sum.floating_bytes, r.result.floating_bytes);
        sum.valid_bytes = larger(sum.valid_bytes, r.valid_bytes);
        sum.moved_bytes = larger(sum.moved_bytes, r.moved_pages * p->settings->page_bytes);
    }
    *result_p = sum;
    return PS_OK;
}
