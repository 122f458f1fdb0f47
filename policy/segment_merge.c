/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two recorded steps of one kind as one step. Events of the older that have no like in the latest (tensors that had no
 * rows there) are put behind the like of the event that came before them. Linear. Called with the caller's lock held.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/segment.h"

struct merging {
    const struct ps_record *latest, *older;
    const struct ps_plan_event *older_events; /* with the returns */
    uint32_t n_older;
    struct ps_plan_event *events; /* the latest's with the returns, then all */
    struct ps_plan_tensor *tensors;
    uint32_t *names;
    uint32_t n_events, n_tensors;
    uint32_t *twin;   /* of the older's tensors: index in the merged */
    uint32_t *at;     /* of the latest's events: position by kind and index; see place() */
    uint32_t *anchor; /* of the older's: behind which of the latest; PS_PLAN_NONE: it has a like */
};

static bool about_tensor(const struct ps_plan_event *e)
{
    return e->kind == PS_PLAN_ALLOC || e->kind == PS_PLAN_FREE;
}

/* Room in `at`: push, pop and return of each group, alloc and free of each tensor. */
static uint32_t *place(const struct merging *m, enum ps_plan_kind kind, uint32_t index)
{
    const uint32_t n_groups = m->latest->n_groups;

    switch (kind) {
    case PS_PLAN_PUSH:
        return &m->at[index];
    case PS_PLAN_POP:
        return &m->at[n_groups + index];
    case PS_PLAN_RETURN:
        return &m->at[2 * n_groups + index];
    case PS_PLAN_ALLOC:
        return &m->at[3 * n_groups + 2 * index];
    case PS_PLAN_FREE:
    default:
        return &m->at[3 * n_groups + 2 * index + 1];
    }
}

static void merge_tensor(struct ps_plan_tensor *to, const struct ps_plan_tensor *from)
{
    to->bytes = from->bytes > to->bytes ? from->bytes : to->bytes;
    if (to->valid == PS_PLAN_UNKNOWN) {
        to->valid = from->valid;
    } else if (from->valid != PS_PLAN_UNKNOWN) {
        to->valid =
            (to->valid + from->valid + 1) / 2; /* the larger one would make every home too large */
    }
}

/* Pairs tensors of the same group and ordinal. Both lists of a group ascend. first, next: scratch. */
static void pair_tensors(struct merging *m, uint32_t *first, uint32_t *next)
{
    const struct ps_record *a = m->latest, *b = m->older;

    for (uint32_t g = 0; g < a->n_groups; g++) {
        first[g] = PS_PLAN_NONE;
    }
    for (uint32_t i = a->n_tensors; i-- > 0;) {
        next[i] = first[a->tensors[i].group];
        first[a->tensors[i].group] = i;
    }
    for (uint32_t i = 0; i < b->n_tensors; i++) {
        const struct ps_plan_tensor *t = &b->tensors[i];
        uint32_t *like = &first[t->group];

        while (*like != PS_PLAN_NONE && a->tensors[*like].ordinal < t->ordinal) {
            *like = next[*like];
        }
        if (*like != PS_PLAN_NONE && a->tensors[*like].ordinal == t->ordinal) {
            m->twin[i] = *like;
            merge_tensor(&m->tensors[*like], t);
        } else {
            m->twin[i] = m->n_tensors;
            m->tensors[m->n_tensors++] = *t;
        }
    }
}

/* Where an event without a like goes, when the latest's events up to `behind` were before it. PS_PLAN_NONE: nowhere. */
static uint32_t anchor_of(const struct merging *m, const struct ps_plan_event *e, uint32_t index,
                          uint32_t behind)
{
    if (e->kind == PS_PLAN_RETURN && m->latest->groups[index].held) {
        return PS_PLAN_NONE; /* the latest did not return it: so be it */
    }
    if (e->kind == PS_PLAN_ALLOC) {
        const uint32_t pop = *place(m, PS_PLAN_POP, m->tensors[index].group);

        return pop != PS_PLAN_NONE && pop <= behind ? pop - 1 : behind;
    }
    return behind;
}

/*
 * The record's events, with the returns that its touches tell, each before the event that followed. NULL: no memory.
 */
static struct ps_plan_event *with_returns(const struct ps_record *r, const uint32_t *returns,
                                          uint32_t *n_p)
{
    struct ps_plan_event *out = malloc(((size_t)r->n_events + r->n_groups + 1) * sizeof(*out));
    uint32_t n = 0, from = 0;

    for (uint32_t i = 0; out != NULL && i < r->n_touches; i++) {
        const struct ps_seg_touch *t = &r->touches[i];

        if (returns[t->group] != i) {
            continue;
        }
        memcpy(out + n, r->events + from, (t->event - from) * sizeof(*out));
        n += t->event - from;
        from = t->event;
        out[n] = r->events[t->event - 1]; /* a push and a pop were before it */
        out[n].kind = PS_PLAN_RETURN;
        out[n].index = t->group;
        out[n].time_ns = t->time_ns > out[n].time_ns ? t->time_ns : out[n].time_ns;
        n++;
    }
    if (out != NULL) {
        memcpy(out + n, r->events + from, (r->n_events - from) * sizeof(*out));
        *n_p = n + r->n_events - from;
    }
    return out;
}

/* Finds where the older's events go. *same_returns_p as of ps_kind_merge. */
static void anchor_events(struct merging *m, bool *same_returns_p)
{
    const struct ps_record *a = m->latest;
    uint32_t behind = 0, last_return = 0;

    for (uint32_t i = 0; i < m->n_older; i++) {
        const struct ps_plan_event *e = &m->older_events[i];
        const uint32_t index = about_tensor(e) ? m->twin[e->index] : e->index;
        const bool known = !about_tensor(e) || index < a->n_tensors;
        const uint32_t at = known ? *place(m, (enum ps_plan_kind)e->kind, index) : PS_PLAN_NONE;

        if (at == PS_PLAN_NONE) {
            m->anchor[i] = anchor_of(m, e, index, behind);
            *same_returns_p = *same_returns_p && m->anchor[i] != PS_PLAN_NONE;
            continue;
        }
        m->anchor[i] = PS_PLAN_NONE;
        m->events[at].other_bytes =
            e->other_bytes > m->events[at].other_bytes ? e->other_bytes : m->events[at].other_bytes;
        behind = at > behind ? at : behind;
        if (e->kind == PS_PLAN_RETURN) {
            *same_returns_p = *same_returns_p && at >= last_return;
            last_return = at;
        }
    }
}

/* Puts the older's events behind their anchors, in their order. out: room for all; start: for the latest's and one. */
static void weave(struct merging *m, struct ps_plan_event *out, uint32_t *start)
{
    const uint32_t n = m->n_events;

    memset(start, 0, (n + 1u) * sizeof(*start));
    for (uint32_t i = 0; i < m->n_older; i++) {
        if (m->anchor[i] != PS_PLAN_NONE) {
            start[m->anchor[i] + 1]++;
        }
    }
    for (uint32_t j = 0; j < n; j++) {
        start[j + 1] += start[j] + 1;
        out[start[j]] = m->events[j];
    }
    m->n_events = start[n];
    for (uint32_t i = 0; i < m->n_older; i++) {
        if (m->anchor[i] != PS_PLAN_NONE) {
            struct ps_plan_event e = m->older_events[i];

            e.index = about_tensor(&e) ? m->twin[e.index] : e.index;
            e.time_ns = m->events[m->anchor[i]].time_ns;
            out[++start[m->anchor[i]]] = e;
        }
    }
    free(m->events);
    m->events = out;
}

static bool merge_older(struct merging *m, bool *same_returns_p)
{
    const struct ps_record *a = m->latest, *b = m->older;
    const size_t n_places = 3 * (size_t)a->n_groups + 2 * (size_t)a->n_tensors;
    uint32_t *first = calloc(a->n_groups + 1u, sizeof(*first));
    uint32_t *next = calloc(a->n_tensors + 1u, sizeof(*next));
    uint32_t *start = malloc((m->n_events + 1u) * sizeof(*start));
    struct ps_plan_event *out = malloc(((size_t)m->n_events + m->n_older + 1) * sizeof(*out));

    m->twin = malloc((b->n_tensors + 1u) * sizeof(*m->twin));
    m->anchor = malloc((m->n_older + 1u) * sizeof(*m->anchor));
    m->at = malloc((n_places + 1) * sizeof(*m->at));
    const bool ok = first != NULL && next != NULL && start != NULL && out != NULL &&
                    m->twin != NULL && m->anchor != NULL && m->at != NULL;

    if (ok) {
        memset(m->at, 0xff, n_places * sizeof(*m->at));
        for (uint32_t i = 0; i < m->n_events; i++) {
            *place(m, (enum ps_plan_kind)m->events[i].kind, m->events[i].index) = i;
        }
        pair_tensors(m, first, next);
        anchor_events(m, same_returns_p);
        weave(m, out, start);
    } else {
        free(out);
    }
    free(first);
    free(next);
    free(start);
    free(m->twin);
    free(m->anchor);
    free(m->at);
    return ok;
}

/* The events of one, returns found with the help of the other (NULL: there is none). NULL: no memory. */
static struct ps_plan_event *events_of(const struct ps_record *r, const struct ps_record *other,
                                       uint32_t *n_p, bool *same_p)
{
    uint32_t *returns = malloc((r->n_groups + 1u) * sizeof(*returns));
    struct ps_plan_event *events = NULL;

    if (returns != NULL && ps_record_returns(r, other, returns, same_p)) {
        events = with_returns(r, returns, n_p);
    }
    free(returns);
    return events;
}

enum ps_status ps_kind_merge(const struct ps_kind *kind, struct ps_plan_step *step_p,
                             bool *same_returns_p)
{
    const struct ps_record *a = &kind->record[0];
    const struct ps_record *b = kind->record[1].serial != 0 ? &kind->record[1] : NULL;
    struct merging m = {.latest = a, .older = b};
    struct ps_plan_event *older = NULL;
    bool same = true, ignored;

    m.events = events_of(a, b, &m.n_events, &same);
    m.tensors = calloc((size_t)a->n_tensors + kind->record[1].n_tensors + 1, sizeof(*m.tensors));
    m.names = malloc((a->n_groups + 1u) * sizeof(*m.names));
    if (m.events == NULL || m.tensors == NULL || m.names == NULL) {
        goto err;
    }
    memcpy(m.names, a->names, a->n_groups * sizeof(*m.names));
    if (a->n_tensors != 0) {
        memcpy(m.tensors, a->tensors, a->n_tensors * sizeof(*m.tensors));
    }
    m.n_tensors = a->n_tensors;
    if (b != NULL) {
        older = events_of(b, a, &m.n_older, &ignored);
        m.older_events = older;
        if (older == NULL || !merge_older(&m, &same)) {
            goto err;
        }
    }
    free(older);
    *step_p = (struct ps_plan_step){.events = m.events,
                                    .tensors = m.tensors,
                                    .names = m.names,
                                    .n_events = m.n_events,
                                    .n_tensors = m.n_tensors,
                                    .n_groups = a->n_groups};
    *same_returns_p = same;
    return PS_OK;
err:
    free(older);
    free(m.events);
    free(m.tensors);
    free(m.names);
    return PS_ERR_MEMORY;
}

void ps_plan_step_free(struct ps_plan_step *step)
{
    free((void *)(uintptr_t)step->events);
    free((void *)(uintptr_t)step->tensors);
    free((void *)(uintptr_t)step->names);
    *step = (struct ps_plan_step){0};
}
