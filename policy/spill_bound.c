/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that any rule waits; see spill.h. Take a moment at which something is gone or comes. All bytes out beyond
 * the device's pages are on the host then. For any earlier and any later moment: those of them that left their lane
 * since the earlier one crossed the link outward between it and now; those that are due until the later one cross it
 * inward between now and then. So all but what left before and is due after take, one behind the other, the time from
 * the earlier to the later moment; if that is a shorter time of the job, it waits for the rest inside this window.
 * Windows that do not overlap add up; the heaviest sum of such is the bound.
 */
#include <stdlib.h>

#include "policy/spill_int.h"

struct window {
    uint32_t from, to; /* moments: phases of events, see moment() */
    int64_t wait;
};

struct bounding {
    const struct ps_spill_item *items;
    const struct ps_spill_stops *stops;
    int64_t device;
    int64_t *leave_time, *due_time; /* of items */
    uint32_t *out;                  /* items that are out now */
    uint64_t *due;                  /* of them, with the items */
    struct window *windows;
    uint32_t n_out;
    size_t n_windows, room;
};

/* Waits are at gone and at due; something may leave and come back before the wait at the same event. */
static uint32_t moment(uint32_t event, enum ps_spill_stop_kind kind)
{
    return 3 * event + (kind == PS_SPILL_LEAVE ? 0 : kind == PS_SPILL_GONE ? 1 : 2);
}

static bool add_window(struct bounding *b, uint32_t from, uint32_t to, int64_t wait)
{
    if (wait <= 0) {
        return true;
    }
    if (b->n_windows == b->room) {
        const size_t room = b->room == 0 ? 1024 : 2 * b->room;
        void *more = realloc(b->windows, room * sizeof(*b->windows));

        if (more == NULL) {
            return false;
        }
        b->windows = more;
        b->room = room;
    }
    b->windows[b->n_windows++] = (struct window){from, to, wait};
    return true;
}

/* Those that are out, by when they left; b->out is kept in that order, as they leave before they are gone. */
static void put_out(struct bounding *b, uint32_t item)
{
    uint32_t i = b->n_out++;

    while (i > 0 && b->items[b->out[i - 1]].leave > b->items[item].leave) {
        b->out[i] = b->out[i - 1];
        i--;
    }
    b->out[i] = item;
}

static void take_out(struct bounding *b, uint32_t item)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_out; i++) {
        if (b->out[i] != item) {
            b->out[n++] = b->out[i];
        }
    }
    b->n_out = n;
}

/* Where a window begins or ends. */
struct side {
    uint32_t moment;
    int64_t time;
};

/*
 * Windows around `now` that begin at a leave, or now, and end at `to`. What is due later than `due` and left before may
 * have been on the host all the time.
 */
static bool windows_to(struct bounding *b, struct side now, struct side to, uint32_t due,
                       int64_t excess)
{
    int64_t must = excess;

    for (uint32_t i = 0; i < b->n_out && must > 0; i++) {
        const struct ps_spill_item *item = &b->items[b->out[i]];

        /* The first of its event: all before have left earlier. */
        if (i == 0 || b->items[b->out[i - 1]].leave != item->leave) {
            if (!add_window(b, moment(item->leave, PS_SPILL_LEAVE), to.moment,
                            must - (to.time - b->leave_time[b->out[i]]))) {
                return false;
            }
        }
        must -= item->due > due ? (int64_t)item->bytes : 0;
    }
    return to.moment <= now.moment ||
           add_window(b, now.moment, to.moment, must - (to.time - now.time));
}

static int compare_due(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* All windows around the moment at which the stop comes and that end later. */
static bool windows_at(struct bounding *b, const struct ps_spill_stop *stop, int64_t excess)
{
    const struct side now = {moment(stop->event, PS_SPILL_GONE), stop->time};

    for (uint32_t i = 0; i < b->n_out; i++) {
        b->due[i] = (uint64_t)b->items[b->out[i]].due << 32 | b->out[i];
    }
    qsort(b->due, b->n_out, sizeof(*b->due), compare_due);
    for (uint32_t i = 0; i < b->n_out; i++) {
        const uint32_t item = (uint32_t)b->due[i], due = b->items[item].due;

        if (due == PS_PLAN_NONE || (i > 0 && b->due[i - 1] >> 32 == due)) {
            continue;
        }
        const struct side to = {moment(due, PS_SPILL_DUE), b->due_time[item]};

        if (!windows_to(b, now, to, due, excess)) {
            return false;
        }
    }
    return true;
}

static bool find_windows(struct bounding *b)
{
    int64_t level = 0;

    for (uint32_t i = 0; i < b->stops->n; i++) {
        const struct ps_spill_stop *stop = &b->stops->list[i];

        if (stop->kind == PS_SPILL_LEAVE) {
            b->leave_time[stop->item] = stop->time;
        } else if (stop->kind == PS_SPILL_DUE) {
            b->due_time[stop->item] = stop->time;
        }
    }
    for (uint32_t i = 0; i < b->stops->n; i++) {
        const struct ps_spill_stop *stop = &b->stops->list[i];
        const bool last =
            i + 1 == b->stops->n || stop[1].event != stop->event || stop[1].kind != stop->kind;

        if (stop->kind == PS_SPILL_GONE) {
            const struct side now = {moment(stop->event, PS_SPILL_GONE), stop->time};

            level += (int64_t)b->items[stop->item].bytes;
            put_out(b, stop->item);
            if (last && level > b->device && !windows_to(b, now, now, 0, level - b->device)) {
                return false;
            }
        } else if (stop->kind == PS_SPILL_COME) {
            if (level > b->device && !windows_at(b, stop, level - b->device)) {
                return false;
            }
            level -= (int64_t)b->items[stop->item].bytes;
            take_out(b, stop->item);
        }
    }
    return true;
}

static int compare_windows(const void *a, const void *b)
{
    const struct window *x = a, *y = b;

    return (x->to > y->to) - (x->to < y->to);
}

/* The heaviest sum of windows that do not overlap. best: one for each moment, and one. */
static int64_t heaviest(struct bounding *b, int64_t *best, uint32_t n_moments)
{
    size_t at = 0;

    if (b->n_windows == 0) {
        return 0;
    }
    qsort(b->windows, b->n_windows, sizeof(*b->windows), compare_windows);
    best[0] = 0;
    for (uint32_t m = 1; m < n_moments; m++) {
        best[m] = best[m - 1];
        for (; at < b->n_windows && b->windows[at].to == m; at++) {
            const int64_t sum = best[b->windows[at].from] + b->windows[at].wait;

            best[m] = sum > best[m] ? sum : best[m];
        }
    }
    return best[n_moments - 1];
}

enum ps_status ps_spill_bound(const struct ps_spill_step *step,
                              const struct ps_spill_settings *settings, uint64_t *wait_ns_p)
{
    struct ps_spill_stops stops;
    struct bounding b = {.items = step->items, .stops = &stops};
    const uint32_t n_moments = 3 * step->n_events + 3;
    const size_t n = step->n_items + (size_t)1;
    enum ps_status status = ps_spill_stops_make(step, settings, &stops);

    if (status != PS_OK) {
        return status;
    }
    b.device = settings->device_bytes > INT64_MAX ? INT64_MAX : (int64_t)settings->device_bytes;
    b.leave_time = calloc(n, sizeof(*b.leave_time));
    b.due_time = calloc(n, sizeof(*b.due_time));
    b.out = calloc(n, sizeof(*b.out));
    b.due = calloc(n, sizeof(*b.due));
    int64_t *best = calloc(n_moments, sizeof(*best));

    status = PS_ERR_MEMORY;
    if (b.leave_time != NULL && b.due_time != NULL && b.out != NULL && b.due != NULL &&
        best != NULL && find_windows(&b)) {
        *wait_ns_p = ps_spill_ns(settings, heaviest(&b, best, n_moments));
        status = PS_OK;
    }
    free(b.leave_time);
    free(b.due_time);
    free(b.out);
    free(b.due);
    free(best);
    free(b.windows);
    free(stops.list);
    return status;
}
