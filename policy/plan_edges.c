/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups that can't share a lane, since there are moments at which both have to be in: from a group's first allocation
 * to its pop, and from its return to its end. And groups that would rather not: those of two
 * boundaries one behind the other, since the second's tails are brought in while the first is at work. See plan_int.h.
 */
#include <stdlib.h>

#include "policy/plan_int.h"

#define NONE PS_PLAN_NONE

/* There are at most four lanes: of more groups that are in at a moment, further ones find none anyway. */
#define ACTIVE_MAX 8

struct active {
    struct {
        uint32_t group, end;
    } list[ACTIVE_MAX];
    uint32_t n;
};

static bool add_half(struct ps_planning_step *s, uint32_t from, uint32_t to)
{
    if (s->n_edges == s->edges_room) {
        const uint32_t room = s->edges_room == 0 ? 256 : 2 * s->edges_room;
        void *more = realloc(s->edges, room * sizeof(*s->edges));

        if (more == NULL) {
            return false;
        }
        s->edges = more;
        s->edges_room = room;
    }
    s->edges[s->n_edges] = (struct ps_planning_edge){.group = to, .next = s->groups[from].edge};
    s->groups[from].edge = s->n_edges++;
    return true;
}

/* The group is in from `at` until `end`, and so are those of the list that have not ended. */
static bool enter(struct ps_planning_step *s, struct active *active, uint32_t group, uint32_t at,
                  uint32_t end)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < active->n; i++) {
        if (active->list[i].end <= at) {
            continue;
        }
        active->list[n++] = active->list[i];
        if (active->list[i].group != group && (!add_half(s, group, active->list[i].group) ||
                                               !add_half(s, active->list[i].group, group))) {
            return false;
        }
    }
    if (n < ACTIVE_MAX) {
        active->list[n].group = group;
        active->list[n++].end = end;
    }
    active->n = n;
    return true;
}

/* When the group may leave first; the step's end: it never may. */
static uint32_t may_leave(const struct ps_planning_group *g)
{
    if (g->back < g->pop || g->after_pop == NONE || g->after_pop == g->back) {
        return g->died; /* it returns before it could leave */
    }
    return g->pop < g->died ? g->pop : g->died;
}

static bool edges_of_event(struct ps_planning_step *s, struct active *active, uint32_t at)
{
    const struct ps_plan_event *e = &s->given->events[at];

    if (e->kind == PS_PLAN_ALLOC) {
        const uint32_t index = s->given->tensors[e->index].group;
        const struct ps_planning_group *g = &s->groups[index];

        return g->born != at || enter(s, active, index, at, may_leave(g));
    }
    if (e->kind == PS_PLAN_RETURN) {
        const struct ps_planning_group *g = &s->groups[e->index];
        const bool over = g->born == NONE || g->died <= at || may_leave(g) == g->died;

        return over || enter(s, active, e->index, at, g->died);
    }
    return true;
}

uint32_t ps_planning_root(struct ps_planning_step *s, uint32_t group, bool *other_p)
{
    uint32_t root = group;
    bool other = false;

    while (s->groups[root].parent != NONE) {
        other = other != s->groups[root].other;
        root = s->groups[root].parent;
    }
    *other_p = other;
    while (group != root) {
        struct ps_planning_group *g = &s->groups[group];
        const bool here = g->other;

        group = g->parent;
        g->parent = root;
        g->other = other;
        other = other != here;
    }
    return root;
}

/* Different lanes for both, if they are not bound already. */
static void part(struct ps_planning_step *s, uint32_t a, uint32_t b)
{
    bool other_a, other_b;
    const uint32_t root_a = ps_planning_root(s, a, &other_a);
    const uint32_t root_b = ps_planning_root(s, b, &other_b);

    if (root_a != root_b) {
        s->groups[root_b].parent = root_a;
        s->groups[root_b].other = other_a == other_b;
    }
}

/* Pushes after pushes are the few in a pipeline's steps: returns have the first word. */
static void part_neighbours(struct ps_planning_step *s, enum ps_plan_kind kind)
{
    const struct ps_plan_event *before = NULL;

    for (uint32_t at = 0; at < s->given->n_events; at++) {
        const struct ps_plan_event *e = &s->given->events[at];

        if (e->kind != PS_PLAN_PUSH && e->kind != PS_PLAN_RETURN) {
            continue;
        }
        if (before != NULL && e->kind == kind &&
            (kind == PS_PLAN_RETURN || before->kind == PS_PLAN_PUSH) &&
            s->groups[e->index].born != NONE && s->groups[before->index].born != NONE) {
            part(s, before->index, e->index);
        }
        before = e;
    }
}

enum ps_status ps_planning_edges(struct ps_planning *p)
{
    for (uint32_t i = 0; i < p->n_steps; i++) {
        struct active active = {.n = 0};

        for (uint32_t at = 0; at < p->steps[i].given->n_events; at++) {
            if (!edges_of_event(&p->steps[i], &active, at)) {
                return PS_ERR_MEMORY;
            }
        }
        part_neighbours(&p->steps[i], PS_PLAN_RETURN);
        part_neighbours(&p->steps[i], PS_PLAN_PUSH);
    }
    return PS_OK;
}
