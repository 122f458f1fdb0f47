/* SPDX-License-Identifier: Apache-2.0 */
/* The items of a step under its plan, and their stops in order; see spill.h and spill_int.h. */
#include <stdlib.h>

#include "policy/spill_int.h"

#define BYTES_LIMIT (INT64_C(1) << 60)
#define SECOND      UINT64_C(1000000000)

/* ---- items ---- */

/* seen: the most that was valid of a tensor of its site; 0: of none is it known. */
static uint64_t tail_bytes(const struct ps_plan_site *site, const struct ps_plan_tensor *t,
                           uint64_t seen, uint64_t page_bytes)
{
    uint64_t valid = t->valid != PS_PLAN_UNKNOWN ? t->valid : seen != 0 ? seen : t->bytes;

    valid = valid < t->bytes ? valid : t->bytes;
    valid = valid > site->home_bytes ? valid - site->home_bytes : 0;
    return (valid + page_bytes - 1) / page_bytes * page_bytes;
}

/* By site of the plan, what tensors were seen to hold. NULL: no memory. */
static uint64_t *look_at_sites(const struct ps_plan *plan, const struct ps_plan_step *step)
{
    uint64_t *seen = calloc(plan->n_sites + 1u, sizeof(*seen));

    for (uint32_t i = 0; seen != NULL && i < step->n_tensors; i++) {
        const struct ps_plan_tensor *t = &step->tensors[i];
        const struct ps_plan_site *site = ps_plan_find(plan, step->names[t->group], t->ordinal);
        uint64_t *const its = site != NULL ? &seen[site - plan->sites] : NULL;

        if (its != NULL && t->valid != PS_PLAN_UNKNOWN && t->valid > *its) {
            *its = t->valid;
        }
    }
    return seen;
}

static struct ps_spill_item item_of(const struct ps_plan_trip *trip, uint32_t n_events)
{
    struct ps_spill_item item = {.leave = trip->leave, .gone = trip->gone, .due = trip->due};

    item.come = trip->come;
    if (trip->come == PS_PLAN_NONE || trip->due == PS_PLAN_NONE) {
        item.come = trip->come == PS_PLAN_NONE ? n_events : trip->come;
        item.due = PS_PLAN_NONE;
    }
    return item;
}

/* Frees of what is out: nothing of it comes back. */
static void note_frees(const struct ps_plan_step *step, struct ps_spill_item *items, uint32_t n,
                       uint32_t *found)
{
    for (uint32_t i = 0; i < n; i++) {
        found[items[i].tensor] = i;
    }
    for (uint32_t e = 0; e < step->n_events; e++) {
        if (step->events[e].kind != PS_PLAN_FREE || found[step->events[e].index] == PS_PLAN_NONE) {
            continue;
        }
        struct ps_spill_item *item = &items[found[step->events[e].index]];

        if (e < item->come) {
            item->come = e > item->gone ? e : item->gone;
            item->due = PS_PLAN_NONE;
        }
    }
}

enum ps_status ps_spill_items(const struct ps_plan *plan, const struct ps_plan_step *step,
                              uint32_t kind, uint64_t page_bytes, struct ps_spill_item *items,
                              uint32_t *n_items_p)
{
    uint32_t *found = malloc((step->n_tensors + 1u) * sizeof(*found));
    uint64_t *seen = look_at_sites(plan, step);
    uint32_t n = 0;

    if (found == NULL || seen == NULL) {
        free(found);
        free(seen);
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < step->n_tensors; i++) {
        const struct ps_plan_tensor *t = &step->tensors[i];
        const struct ps_plan_site *site = ps_plan_find(plan, step->names[t->group], t->ordinal);
        const struct ps_plan_trip *trip = &plan->moves[kind].trips[t->group];

        found[i] = PS_PLAN_NONE;
        if (site == NULL || site->class != PS_PLAN_STASH || trip->gone == PS_PLAN_NONE) {
            continue;
        }
        items[n] = item_of(trip, step->n_events);
        items[n].bytes = tail_bytes(site, t, seen[site - plan->sites], page_bytes);
        items[n].group = t->group;
        items[n].tensor = i;
        n += items[n].bytes != 0;
    }
    note_frees(step, items, n, found);
    free(found);
    free(seen);
    *n_items_p = n;
    return PS_OK;
}

/* ---- stops ---- */

static int compare_stops(const void *a, const void *b)
{
    const struct ps_spill_stop *x = a, *y = b;

    if (x->event != y->event) {
        return x->event < y->event ? -1 : 1;
    }
    return x->kind != y->kind ? (x->kind > y->kind) - (x->kind < y->kind)
                              : (x->item > y->item) - (x->item < y->item);
}

static bool is_sound(const struct ps_spill_item *i, uint32_t n_events)
{
    return i->leave <= i->gone && i->gone <= i->come && i->come <= n_events &&
           i->leave < n_events && i->gone < n_events && i->bytes < BYTES_LIMIT &&
           (i->due == PS_PLAN_NONE || (i->come <= i->due && i->due < n_events));
}

static int64_t time_of(const struct ps_spill_step *step, uint32_t event,
                       const struct ps_spill_settings *settings)
{
    const uint32_t last = step->n_events - 1; /* there are items, so there are events */
    const uint64_t ns = step->times_ns[event < last ? event : last] - step->times_ns[0];
    const __uint128_t bytes = (__uint128_t)ns * settings->link_rate / SECOND;

    return bytes > BYTES_LIMIT ? BYTES_LIMIT : (int64_t)bytes;
}

uint64_t ps_spill_ns(const struct ps_spill_settings *settings, int64_t bytes)
{
    const __uint128_t rate = settings->link_rate;

    return (uint64_t)(((__uint128_t)bytes * SECOND + rate - 1) / rate);
}

enum ps_status ps_spill_stops_make(const struct ps_spill_step *step,
                                   const struct ps_spill_settings *settings,
                                   struct ps_spill_stops *stops_p)
{
    const struct ps_spill_item *items = step->items;
    const uint32_t n_events = step->n_events, n_items = step->n_items;
    __uint128_t sum = 0;
    uint32_t n = 0;

    for (uint32_t e = 1; e < n_events; e++) {
        if (step->times_ns[e] < step->times_ns[e - 1]) {
            return PS_ERR_INVALID;
        }
    }
    for (uint32_t i = 0; i < n_items; i++) {
        sum += items[i].bytes;
        if (!is_sound(&items[i], n_events) || sum > (__uint128_t)BYTES_LIMIT) {
            return PS_ERR_INVALID;
        }
    }
    if (settings->link_rate == 0 || n_items > UINT32_MAX / 8) {
        return PS_ERR_INVALID;
    }
    struct ps_spill_stop *list = malloc((4 * (size_t)n_items + 1) * sizeof(*list));

    if (list == NULL) {
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < n_items; i++) {
        const uint32_t events[] = {items[i].leave, items[i].gone, items[i].come, items[i].due};

        for (int k = PS_SPILL_LEAVE; k <= PS_SPILL_DUE; k++) {
            if (events[k] != PS_PLAN_NONE) {
                list[n++] = (struct ps_spill_stop){.time = time_of(step, events[k], settings),
                                                   .event = events[k],
                                                   .item = i,
                                                   .kind = (uint8_t)k};
            }
        }
    }
    qsort(list, n, sizeof(*list), compare_stops);
    *stops_p = (struct ps_spill_stops){.list = list, .n = n};
    return PS_OK;
}
