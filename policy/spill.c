/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule of spill.h, carried out over the step's stops. Both directions of the link are simulated between the stops;
 * a tree over the moments at which pages are needed tells at once how much must go to the host, and what may come back.
 *
 * Two choices are open. How early bytes may come back into pages that others need before, if the link can send those
 * others away in time: too early, and the link has no time left for what nobody foresaw; too late, and it does not do
 * at the end. And whether those who come back last make room for who is due next: that costs traffic. All combinations
 * are tried, the one that waits least is taken.
 */
#include "policy/spill.h"

#include <stdlib.h>
#include <string.h>

#include "policy/spill_int.h"

#define NONE        PS_PLAN_NONE
#define PARTS       8 /* of the time between stops, where room is made for what comes back in it */
#define ALWAYS      1000000
#define NOTHING     (-(INT64_C(1) << 62))
#define DEVICE_MOST (UINT64_C(1) << 60) /* more than all items may be */

/* ---- the most over a range, with additions to ranges ---- */

struct tree {
    int64_t *most, *added; /* added: to all below, not yet in their `most` */
    uint32_t n;            /* a power of two */
};

static bool tree_init(struct tree *t, uint32_t n)
{
    t->n = 1;
    while (t->n < n) {
        t->n *= 2;
    }
    t->most = malloc(2 * (size_t)t->n * sizeof(*t->most));
    t->added = calloc(2 * (size_t)t->n, sizeof(*t->added));
    for (uint32_t i = 0; t->most != NULL && i < 2 * t->n; i++) {
        t->most[i] = NOTHING;
    }
    return t->most != NULL && t->added != NULL;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Once all leaves are set. */
static void tree_build(struct tree *t)
{
    for (size_t i = t->n; i-- > 1;) {
        t->most[i] = larger(t->most[2 * i], t->most[2 * i + 1]);
    }
}

static void tree_lift(struct tree *t, size_t i)
{
    for (i /= 2; i > 0; i /= 2) {
        t->most[i] = larger(t->most[2 * i], t->most[2 * i + 1]) + t->added[i];
    }
}

/* To [from, to). */
static void tree_add(struct tree *t, uint32_t from, uint32_t to, int64_t value)
{
    uint32_t low = from + t->n, high = to + t->n;

    if (from >= to) {
        return;
    }
    for (uint32_t a = low, b = high; a < b; a /= 2, b /= 2) {
        if ((a & 1) != 0) {
            t->most[a] += value;
            t->added[a++] += value;
        }
        if ((b & 1) != 0) {
            t->most[--b] += value;
            t->added[b] += value;
        }
    }
    tree_lift(t, low);
    tree_lift(t, high - 1);
}

static int64_t most_at(const struct tree *t, uint32_t i)
{
    int64_t value = t->most[i];

    for (i /= 2; i > 0; i /= 2) {
        value += t->added[i];
    }
    return value;
}

/* Of [from, to); NOTHING of an empty one. */
static int64_t tree_most(const struct tree *t, uint32_t from, uint32_t to)
{
    int64_t most = NOTHING;

    for (uint32_t a = from + t->n, b = to + t->n; from < to && a < b; a /= 2, b /= 2) {
        if ((a & 1) != 0) {
            most = larger(most, most_at(t, a++));
        }
        if ((b & 1) != 0) {
            most = larger(most, most_at(t, --b));
        }
    }
    return most;
}

/* ---- heaps of items: the largest key first ---- */

struct heap {
    struct {
        int64_t key;
        uint32_t item;
    } * list;
    uint32_t n;
};

static void heap_push(struct heap *h, int64_t key, uint32_t item)
{
    uint32_t i = h->n++;

    while (i > 0 && h->list[(i - 1) / 2].key < key) {
        h->list[i] = h->list[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->list[i].key = key;
    h->list[i].item = item;
}

static uint32_t heap_pop(struct heap *h)
{
    const uint32_t item = h->list[0].item;
    const int64_t key = h->list[--h->n].key;
    uint32_t i = 0;

    for (uint32_t child = 1; child < h->n; child = 2 * i + 1) {
        child += child + 1 < h->n && h->list[child + 1].key > h->list[child].key;
        if (h->list[child].key <= key) {
            break;
        }
        h->list[i] = h->list[child];
        i = child;
    }
    h->list[i] = h->list[h->n];
    return item;
}

/* ---- spilling ---- */

struct state {
    int64_t bytes, host;  /* of it on the host */
    int64_t due;          /* when */
    uint32_t first, last; /* needs: it is in device pages at those from first to before last */
    bool left, gone, come, returning;
};

/* Which of the ways. */
struct way {
    int64_t trusting; /* so many times as early as the link needs; 0: never */
    bool swapping;
};

struct spilling {
    struct way way;
    const struct ps_spill_item *items;
    const struct ps_spill_settings *settings;
    struct ps_spill *spill;
    struct state *states;
    uint32_t *aside;
    struct heap out;  /* may go to the host: who comes back last first */
    struct heap back; /* on the host: who is due first first */
    struct tree
        urgent; /* at each need: bytes too many, less what the link carries until then from the step's begin */
    struct tree level; /* at each need: bytes too many */
    uint32_t need;     /* the next */
    uint32_t event;    /* the latest passed */
    int64_t pages;     /* in use */
    int64_t host, waited, now;
};

static void send(struct spilling *s, uint32_t item, int64_t bytes)
{
    struct state *i = &s->states[item];
    struct ps_spill_move *m = &s->spill->moves[item];
    const uint32_t from = i->first > s->need ? i->first : s->need;

    if (i->host == 0) {
        heap_push(&s->back, -(int64_t)s->items[item].due, item);
    }
    i->host += bytes;
    s->host += bytes;
    s->pages -= i->gone ? bytes : 0;
    tree_add(&s->urgent, from, i->last, -bytes);
    tree_add(&s->level, from, i->last, -bytes);
    m->out = m->out == NONE ? s->event : m->out;
    m->host_bytes += (uint64_t)bytes;
    m->direct_bytes += i->gone ? 0 : (uint64_t)bytes;
    s->spill->out_bytes += (uint64_t)bytes;
    if ((uint64_t)s->host > s->spill->host_bytes) {
        s->spill->host_bytes = (uint64_t)s->host;
    }
}

static void receive(struct spilling *s, uint32_t item, int64_t bytes)
{
    struct state *i = &s->states[item];
    struct ps_spill_move *m = &s->spill->moves[item];

    i->host -= bytes;
    i->returning = true;
    s->host -= bytes;
    if (!i->come) {
        s->pages += bytes;
        tree_add(&s->urgent, s->need, i->last, bytes);
        tree_add(&s->level, s->need, i->last, bytes);
    }
    m->back = m->back == NONE ? s->event : m->back;
}

static bool may_go(const struct state *i)
{
    return i->left && !i->come && !i->returning && i->host < i->bytes;
}

/* How much of the item must go until `time`, for everything to be in time later. */
static int64_t must_go(const struct spilling *s, const struct state *i, int64_t time)
{
    const uint32_t from = i->first > s->need ? i->first : s->need;
    const int64_t most = tree_most(&s->urgent, from, i->last);

    return most == NOTHING ? 0 : smaller(most + time, i->bytes - i->host);
}

/* For as long as the link carries `room`, until `time`. The answer is what is left of it. */
static int64_t send_some(struct spilling *s, int64_t room, int64_t time)
{
    uint32_t n_aside = 0;
    bool done = false;

    while (!done && room > 0 && s->out.n > 0) {
        const uint32_t item = heap_pop(&s->out);
        const struct state *i = &s->states[item];

        if (!may_go(i)) {
            continue;
        }
        /* What is in its lane for longer does not help with the next need. */
        const bool next = tree_most(&s->urgent, s->need, s->need + 1) + time > 0;
        const int64_t bytes = next && i->first > s->need ? 0 : smaller(must_go(s, i, time), room);

        if (bytes > 0) {
            send(s, item, bytes);
            room -= bytes;
        }
        /* Others in pages serve fewer needs. */
        done = bytes <= 0 && i->first <= s->need && i->gone;
        s->aside[n_aside++] = item;
    }
    while (n_aside > 0) {
        const uint32_t item = s->aside[--n_aside];

        if (may_go(&s->states[item])) {
            heap_push(&s->out, s->items[item].come, item);
        }
    }
    return room;
}

/* Pages that the item, which is in none, can have until it has its lane. May be negative. */
static int64_t pages_for(const struct spilling *s, const struct state *i)
{
    const bool trusting = i->due - s->now <= s->way.trusting * i->host;
    const int64_t most = trusting ? tree_most(&s->urgent, s->need, i->last) + s->now
                                  : tree_most(&s->level, s->need, i->last);
    const int64_t free_now = (int64_t)s->settings->device_bytes - s->pages;

    return s->need < i->last ? smaller(free_now, -most) : free_now;
}

/* How much of the item may come back now. */
static int64_t may_come(const struct spilling *s, const struct state *i)
{
    if (i->come) {
        return i->host;
    }
    return i->gone ? larger(0, smaller(i->host, pages_for(s, i))) : 0;
}

static void receive_some(struct spilling *s, int64_t room)
{
    while (room > 0 && s->back.n > 0) {
        const uint32_t item = s->back.list[0].item;
        const int64_t bytes = smaller(may_come(s, &s->states[item]), room);

        if (s->states[item].host == 0) {
            heap_pop(&s->back);
            continue;
        }
        if (bytes == 0) {
            break;
        }
        receive(s, item, bytes);
        room -= bytes;
    }
}

/* Room for who is due next, and is still on the host, at the cost of who comes back last. */
static void make_room(struct spilling *s, int64_t room)
{
    while (room > 0 && s->back.n > 0 && s->out.n > 0) {
        const uint32_t next = s->back.list[0].item;
        const uint32_t last = s->out.list[0].item;
        const struct state *n = &s->states[next], *l = &s->states[last];
        const int64_t want = n->come || !n->gone ? 0 : n->host - pages_for(s, n);
        const int64_t bytes = smaller(smaller(want, room), l->bytes - l->host);

        if (!may_go(l)) {
            heap_pop(&s->out);
            continue;
        }
        if (bytes <= 0 || !l->gone || s->items[last].come <= s->items[next].due) {
            break;
        }
        send(s, last, bytes);
        room -= bytes;
    }
}

/* What comes back takes no pages that are made free meanwhile: so it goes first. */
static void run_link(struct spilling *s, int64_t room, int64_t time)
{
    const int64_t parts = s->way.swapping ? PARTS : 1, begin = s->now;

    for (int64_t i = 0; i < parts; i++) {
        const int64_t part = room * (i + 1) / parts - room * i / parts;
        const int64_t until = begin + (time - begin) * (i + 1) / parts;

        receive_some(s, part);
        const int64_t left = send_some(s, part, until);

        if (s->way.swapping) {
            make_room(s, left);
        }
        s->now = until;
    }
}

static void wait_for(struct spilling *s, int64_t bytes, int64_t time)
{
    if (bytes > 0) {
        run_link(s, bytes, time);
        s->waited += bytes;
    }
}

/* ---- stops: all of one kind at one event ---- */

static void leave(struct spilling *s, const struct ps_spill_stop *stops, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        const struct ps_spill_item *item = &s->items[stops[k].item];

        s->states[stops[k].item].left = true;
        heap_push(&s->out, item->come, stops[k].item);
    }
}

static void go(struct spilling *s, const struct ps_spill_stop *stops, uint32_t n)
{
    wait_for(s, tree_most(&s->level, s->need, s->need + 1), stops->time);
    for (uint32_t k = 0; k < n; k++) {
        struct state *i = &s->states[stops[k].item];

        i->gone = true;
        s->pages += i->bytes - i->host;
    }
    s->need++;
}

static void come(struct spilling *s, const struct ps_spill_stop *stops, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        struct state *i = &s->states[stops[k].item];

        i->come = true;
        s->pages -= i->bytes - i->host;
        if (s->items[stops[k].item].due == NONE) { /* freed */
            s->host -= i->host;
            i->host = 0;
        }
    }
}

static void return_to(struct spilling *s, const struct ps_spill_stop *stops, uint32_t n)
{
    int64_t bytes = 0;

    for (uint32_t k = 0; k < n; k++) {
        bytes += s->states[stops[k].item].host;
    }
    wait_for(s, bytes, stops->time);
}

static void run(struct spilling *s, const struct ps_spill_stops *stops)
{
    static void (*const kinds[])(struct spilling *, const struct ps_spill_stop *, uint32_t) = {
        [PS_SPILL_LEAVE] = leave,
        [PS_SPILL_GONE] = go,
        [PS_SPILL_COME] = come,
        [PS_SPILL_DUE] = return_to,
    };
    uint32_t n;

    for (uint32_t at = 0; at < stops->n; at += n) {
        const struct ps_spill_stop *first = &stops->list[at];

        for (n = 1;
             at + n < stops->n && first[n].event == first->event && first[n].kind == first->kind;
             n++) {
        }
        if (at > 0) {
            run_link(s, first->time - first[-1].time, first->time);
        }
        s->event = first->event;
        kinds[first->kind](s, first, n);
    }
}

/* ---- needs ---- */

/* One at each event at which something is gone: how many bytes more than pages are out there. */
static void find_needs(struct spilling *s, const struct ps_spill_stops *stops)
{
    int64_t level = -(int64_t)s->settings->device_bytes;
    uint32_t n = 0, event = NONE;

    for (uint32_t at = 0; at < stops->n; at++) {
        const struct ps_spill_stop *stop = &stops->list[at];
        struct state *i = &s->states[stop->item];

        if (stop->kind == PS_SPILL_DUE) {
            i->due = stop->time;
        }
        if (stop->kind == PS_SPILL_COME) {
            level -= i->bytes;
            i->last = n;
        }
        if (stop->kind != PS_SPILL_GONE) {
            continue;
        }
        n += stop->event != event;
        event = stop->event;
        level += i->bytes;
        i->first = n - 1;
        s->level.most[s->level.n + n - 1] = level;
        s->urgent.most[s->urgent.n + n - 1] = level - stop->time;
    }
    tree_build(&s->level);
    tree_build(&s->urgent);
}

static void spilling_fini(struct spilling *s)
{
    free(s->states);
    free(s->aside);
    free(s->out.list);
    free(s->back.list);
    free(s->urgent.most);
    free(s->urgent.added);
    free(s->level.most);
    free(s->level.added);
}

static bool spilling_init(struct spilling *s, uint32_t n_items)
{
    const size_t n = n_items + (size_t)1;

    s->states = calloc(n, sizeof(*s->states));
    s->aside = malloc(n * sizeof(*s->aside));
    s->out.list = malloc(n * sizeof(*s->out.list));
    s->back.list = malloc(n * sizeof(*s->back.list));
    return tree_init(&s->urgent, n_items + 1) && tree_init(&s->level, n_items + 1) &&
           s->states != NULL && s->aside != NULL && s->out.list != NULL && s->back.list != NULL;
}

static bool make_moves(struct ps_spill *spill, uint32_t n)
{
    *spill = (struct ps_spill){.n_moves = n};
    spill->moves = calloc(n + (size_t)1, sizeof(*spill->moves));
    for (uint32_t i = 0; spill->moves != NULL && i < n; i++) {
        spill->moves[i].out = spill->moves[i].back = NONE;
    }
    return spill->moves != NULL;
}

static enum ps_status spill_one_way(const struct ps_spill_step *step,
                                    const struct ps_spill_settings *settings,
                                    const struct ps_spill_stops *stops, struct way way,
                                    struct ps_spill *spill)
{
    struct spilling s = {.items = step->items, .settings = settings, .spill = spill, .way = way};
    const bool ok = spilling_init(&s, step->n_items) && make_moves(spill, step->n_items);

    if (ok) {
        for (uint32_t i = 0; i < step->n_items; i++) {
            s.states[i].bytes = (int64_t)step->items[i].bytes;
        }
        find_needs(&s, stops);
        run(&s, stops);
        spill->wait_ns = ps_spill_ns(settings, s.waited);
    }
    spilling_fini(&s);
    return ok ? PS_OK : PS_ERR_MEMORY;
}

static bool is_better(const struct ps_spill *a, const struct ps_spill *b)
{
    return a->wait_ns != b->wait_ns ? a->wait_ns < b->wait_ns : a->out_bytes < b->out_bytes;
}

static enum ps_status spill_last_needed(const struct ps_spill_step *step,
                                        const struct ps_spill_settings *settings,
                                        const struct ps_spill_stops *stops, struct ps_spill *spill)
{
    static const struct way ways[] = {{0, false}, {8, false}, {32, false}, {ALWAYS, false},
                                      {0, true},  {8, true},  {32, true},  {ALWAYS, true}};

    for (uint32_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct ps_spill other = {0};
        const enum ps_status status = spill_one_way(step, settings, stops, ways[i], &other);

        if (status != PS_OK) {
            return status;
        }
        if (i == 0 || is_better(&other, spill)) {
            ps_spill_fini(spill);
            *spill = other;
        } else {
            ps_spill_fini(&other);
        }
    }
    return PS_OK;
}

enum ps_status ps_spill_plan(const struct ps_spill_step *step,
                             const struct ps_spill_settings *settings, enum ps_spill_rule rule,
                             struct ps_spill *spill_p)
{
    struct ps_spill spill = {0};
    struct ps_spill_stops stops;
    struct ps_spill_settings bounded = *settings;
    enum ps_status status = ps_spill_stops_make(step, settings, &stops);

    if (status != PS_OK) {
        return status;
    }
    if (bounded.device_bytes > DEVICE_MOST) {
        bounded.device_bytes = DEVICE_MOST;
    }
    if (rule == PS_SPILL_LAST_NEEDED) {
        status = spill_last_needed(step, &bounded, &stops, &spill);
    } else {
        status = make_moves(&spill, step->n_items)
                     ? ps_spill_first_come(step, &bounded, &stops, &spill)
                     : PS_ERR_MEMORY;
    }
    free(stops.list);
    if (status != PS_OK) {
        ps_spill_fini(&spill);
        return status;
    }
    *spill_p = spill;
    return PS_OK;
}

void ps_spill_fini(struct ps_spill *spill)
{
    free(spill->moves);
    memset(spill, 0, sizeof(*spill));
}
