/* SPDX-License-Identifier: Apache-2.0 */
/* Sets and lanes; see lanes.h. Free sets of one name and lane are a leftist heap, so that the lowest is at hand. */
#include "policy/lanes.h"

#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"

#define NONE    PS_LANES_NONE
#define COLUMNS (PS_LANES_MAX + 1) /* one for sets without tails */

enum ps_status ps_lanes_init(struct ps_lanes *l, uint32_t n_lanes, const uint32_t *names,
                             uint32_t n_names)
{
    uint32_t *copy = malloc((n_names + (size_t)1) * sizeof(*copy));
    uint32_t *heaps = malloc((n_names + (size_t)1) * COLUMNS * sizeof(*heaps));

    ps_assert(n_lanes <= PS_LANES_MAX);
    if (copy == NULL || heaps == NULL) {
        free(copy);
        free(heaps);
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < n_names; i++) {
        copy[i] = names[i];
    }
    for (size_t i = 0; i < (size_t)n_names * COLUMNS; i++) {
        heaps[i] = NONE;
    }
    *l = (struct ps_lanes){
        .names = copy, .free_sets = heaps, .n_names = n_names, .n_lanes = n_lanes};
    return PS_OK;
}

void ps_lanes_fini(struct ps_lanes *l)
{
    free(l->sets);
    free(l->names);
    free(l->free_sets);
    memset(l, 0, sizeof(*l));
}

/* Index of the name, or NONE. */
static uint32_t find_name(const struct ps_lanes *l, uint32_t name)
{
    uint32_t low = 0, high = l->n_names;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (l->names[middle] < name) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < l->n_names && l->names[low] == name ? low : NONE;
}

static uint32_t *heap_of(const struct ps_lanes *l, uint32_t name_index, uint32_t lane)
{
    return &l->free_sets[(size_t)name_index * COLUMNS + (lane == NONE ? PS_LANES_MAX : lane)];
}

static uint32_t rank_of(const struct ps_lanes *l, uint32_t set)
{
    return set == NONE ? 0 : l->sets[set].rank;
}

/* As deep as the logarithm: each step follows a right edge. */
static uint32_t merge(struct ps_lanes *l, uint32_t a, uint32_t b) // NOLINT(misc-no-recursion)
{
    if (a == NONE || b == NONE) {
        return a == NONE ? b : a;
    }
    const uint32_t top = a < b ? a : b;
    struct ps_lanes_set *s = &l->sets[top];

    s->right = merge(l, s->right, a < b ? b : a);
    if (rank_of(l, s->left) < rank_of(l, s->right)) {
        const uint32_t left = s->left;

        s->left = s->right;
        s->right = left;
    }
    s->rank = rank_of(l, s->right) + 1;
    return top;
}

static void put_free(struct ps_lanes *l, uint32_t set)
{
    struct ps_lanes_set *s = &l->sets[set];

    s->owner = NULL;
    if (!s->queued) {
        uint32_t *heap = heap_of(l, find_name(l, s->name), s->lane);

        s->left = s->right = NONE;
        s->rank = 1;
        s->queued = true;
        *heap = merge(l, *heap, set);
    }
}

/* The lowest free set of the heap, or NONE. */
static uint32_t lowest(struct ps_lanes *l, uint32_t *heap)
{
    while (*heap != NONE && l->sets[*heap].owner != NULL) {
        struct ps_lanes_set *s = &l->sets[*heap];

        s->queued = false;
        *heap = merge(l, s->left, s->right);
    }
    return *heap;
}

enum ps_status ps_lanes_add(struct ps_lanes *l, uint32_t name, uint32_t lane)
{
    ps_assert(find_name(l, name) != NONE);
    ps_assert(lane == NONE || lane < l->n_lanes);
    if (l->n_sets == l->room) {
        const uint32_t room = l->room == 0 ? 64 : 2 * l->room;
        void *more = realloc(l->sets, room * sizeof(l->sets[0]));

        if (more == NULL) {
            return PS_ERR_MEMORY;
        }
        l->sets = more;
        l->room = room;
    }
    l->sets[l->n_sets] = (struct ps_lanes_set){.name = name, .lane = lane};
    put_free(l, l->n_sets++);
    return PS_OK;
}

enum ps_lanes_claim ps_lanes_claim(const struct ps_lanes *l, uint32_t lane)
{
    const struct ps_lanes_group *h = l->holder[lane];

    if (h == NULL) {
        return PS_LANES_FREE;
    }
    if (h->place == PS_LANES_LEAVING) {
        return PS_LANES_FROM_OUT;
    }
    if (!h->ripe || h->returned || h->pinned) {
        return PS_LANES_TAKEN;
    }
    return h->ahead ? PS_LANES_FROM_NEXT : PS_LANES_FROM_IN;
}

/* The group comes into a lane that is to be had. */
static void take_lane(struct ps_lanes *l, struct ps_lanes_group *g, uint32_t lane,
                      struct ps_lanes_taken *taken_p)
{
    struct ps_lanes_group *before = l->holder[lane];

    taken_p->lane = lane;
    taken_p->before = before;
    taken_p->now = before != NULL && before->place == PS_LANES_IN;
    if (before != NULL) {
        before->place = PS_LANES_OUT;
        before->ahead = false;
    }
    g->place = PS_LANES_IN;
    l->holder[lane] = g;
    if (l->waiting[lane] == g) {
        l->waiting[lane] = NULL;
    }
}

static void own(struct ps_lanes *l, struct ps_lanes_group *g, uint32_t set,
                struct ps_lanes_taken *taken_p)
{
    l->sets[set].owner = g;
    g->owns = true;
    g->set = set;
    *taken_p = (struct ps_lanes_taken){.set = set, .lane = NONE};
    if (l->sets[set].lane != NONE) {
        take_lane(l, g, l->sets[set].lane, taken_p);
    }
}

/* Whether a lane of claim `a` goes before the one of claim `b`. */
static bool is_better(const struct ps_lanes *l, uint32_t lane, uint32_t set, uint32_t best_lane,
                      uint32_t best_set)
{
    const enum ps_lanes_claim a = ps_lanes_claim(l, lane), b = ps_lanes_claim(l, best_lane);

    if (a != b || a == PS_LANES_FREE) {
        return a != b ? a < b : set < best_set;
    }
    return l->holder[lane]->order < l->holder[best_lane]->order;
}

bool ps_lanes_acquire(struct ps_lanes *l, struct ps_lanes_group *g, uint32_t name, uint32_t wanted,
                      struct ps_lanes_taken *taken_p)
{
    const uint32_t name_index = find_name(l, name);
    uint32_t best = NONE, best_lane = 0;

    ps_assert(!g->owns);
    if (name_index == NONE) {
        return false;
    }
    if (wanted < l->n_sets && l->sets[wanted].owner == NULL && l->sets[wanted].name == name &&
        (l->sets[wanted].lane == NONE ||
         ps_lanes_claim(l, l->sets[wanted].lane) != PS_LANES_TAKEN)) {
        own(l, g, wanted, taken_p);
        return true;
    }
    for (uint32_t lane = 0; lane < l->n_lanes; lane++) {
        const uint32_t set = lowest(l, heap_of(l, name_index, lane));

        if (set != NONE && ps_lanes_claim(l, lane) != PS_LANES_TAKEN &&
            (best == NONE || is_better(l, lane, set, best_lane, best))) {
            best = set;
            best_lane = lane;
        }
    }
    if (best == NONE) {
        best = lowest(l, heap_of(l, name_index, NONE));
    }
    if (best == NONE) {
        return false;
    }
    own(l, g, best, taken_p);
    return true;
}

void ps_lanes_close(struct ps_lanes *l, struct ps_lanes_group *g)
{
    if (!g->closed) {
        g->closed = true;
        g->order = ++l->order;
    }
}

static bool may_begin(const struct ps_lanes_group *g)
{
    return g->place == PS_LANES_IN && g->stash && !g->returned && !g->pinned && !g->ahead;
}

static void begin_leaving(struct ps_lanes *l, struct ps_lanes_group *g)
{
    g->place = PS_LANES_LEAVING;
    g->order = ++l->order;
}

bool ps_lanes_leave(struct ps_lanes *l, struct ps_lanes_group *g)
{
    ps_assert(g->closed);
    g->ripe = true;
    if (!may_begin(g)) {
        return false;
    }
    begin_leaving(l, g);
    return true;
}

uint32_t ps_lanes_boundary(struct ps_lanes *l, const struct ps_lanes_group *but,
                           struct ps_lanes_group *leave_p[PS_LANES_MAX])
{
    uint32_t n = 0;

    for (uint32_t lane = 0; lane < l->n_lanes; lane++) {
        struct ps_lanes_group *h = l->holder[lane];

        if (h == NULL || h == but || !h->closed) {
            continue;
        }
        h->ripe = true;
        if (may_begin(h)) {
            begin_leaving(l, h);
            leave_p[n++] = h;
        }
    }
    return n;
}

void ps_lanes_stay(struct ps_lanes *l, struct ps_lanes_group *g)
{
    (void)l;
    if (g->place == PS_LANES_LEAVING) {
        g->place = PS_LANES_IN;
    }
}

enum ps_lanes_came ps_lanes_return(struct ps_lanes *l, struct ps_lanes_group *g,
                                   struct ps_lanes_taken *taken_p)
{
    const uint32_t lane = g->owns ? l->sets[g->set].lane : NONE;

    g->returned = true;
    g->ahead = false;
    if (lane == NONE) {
        return PS_LANES_CAME_NOT;
    }
    if (l->waiting[lane] == g) {
        l->waiting[lane] = NULL;
    }
    if (g->place == PS_LANES_LEAVING) {
        g->place = PS_LANES_IN;
        return PS_LANES_CAME_BACK;
    }
    if (g->place != PS_LANES_OUT) {
        return PS_LANES_WAS_IN;
    }
    if (ps_lanes_claim(l, lane) == PS_LANES_TAKEN) {
        g->place = PS_LANES_SPARE;
        return PS_LANES_CAME_APART;
    }
    taken_p->set = g->set;
    take_lane(l, g, lane, taken_p);
    return PS_LANES_CAME_IN;
}

bool ps_lanes_ahead(struct ps_lanes *l, struct ps_lanes_group *g, struct ps_lanes_taken *taken_p)
{
    if (g == NULL || g->place != PS_LANES_OUT) {
        return false;
    }
    const uint32_t lane = l->sets[g->set].lane;

    if (ps_lanes_claim(l, lane) > PS_LANES_FROM_OUT) {
        l->waiting[lane] = g;
        return false;
    }
    taken_p->set = g->set;
    take_lane(l, g, lane, taken_p);
    g->ahead = true;
    return true;
}

struct ps_lanes_group *ps_lanes_free(struct ps_lanes *l, struct ps_lanes_group *g)
{
    struct ps_lanes_group *next = NULL;

    if (g->owns) {
        const uint32_t lane = l->sets[g->set].lane;

        if (lane != NONE && l->waiting[lane] == g) {
            l->waiting[lane] = NULL;
        }
        if (lane != NONE && l->holder[lane] == g) {
            next = l->waiting[lane];
            l->holder[lane] = next;
            l->waiting[lane] = NULL;
        }
        put_free(l, g->set);
    }
    if (next != NULL) {
        next->place = PS_LANES_IN;
        next->ahead = true;
    }
    g->owns = false;
    g->place = PS_LANES_NOWHERE;
    return next;
}

uint32_t ps_lanes_free_set(struct ps_lanes *l, uint32_t name, uint32_t lane)
{
    const uint32_t name_index = find_name(l, name);

    return name_index == NONE ? NONE : lowest(l, heap_of(l, name_index, lane));
}

bool ps_lanes_check(const struct ps_lanes *l)
{
    for (uint32_t lane = 0; lane < PS_LANES_MAX; lane++) {
        const struct ps_lanes_group *h = l->holder[lane], *w = l->waiting[lane];

        if (h != NULL && (!h->owns || l->sets[h->set].owner != h || l->sets[h->set].lane != lane ||
                          (h->place != PS_LANES_IN && h->place != PS_LANES_LEAVING))) {
            return false;
        }
        if (w != NULL && (!w->owns || l->sets[w->set].lane != lane || w->place != PS_LANES_OUT)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < l->n_sets; i++) {
        const struct ps_lanes_set *s = &l->sets[i];
        const struct ps_lanes_group *g = s->owner;

        if (g == NULL) {
            if (!s->queued) {
                return false;
            }
            continue;
        }
        if (!g->owns || g->set != i) {
            return false;
        }
        const bool holds = g->place == PS_LANES_IN || g->place == PS_LANES_LEAVING;

        if ((s->lane == NONE) != (g->place == PS_LANES_NOWHERE) ||
            (s->lane != NONE && holds != (l->holder[s->lane] == g))) {
            return false;
        }
    }
    return true;
}
