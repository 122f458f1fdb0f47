/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the tensors that a call names it may read and write when the tape is played. A recorded
 * launch is not known to use what its parameters hold: words may be left over, and two streams may
 * read one tensor side by side. So vector clocks are kept for the streams and the host, and an
 * access is made only where the recorded order puts it behind the last write (then it reads), and
 * also behind all reads since (then it writes too), and before the free. All host threads are one,
 * as what they tell each other is not on the tape.
 *
 * One thread. Clocks: n_streams + 1 numbers for each stream, the host, and each event.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/tape/tape.h"

struct use {
    struct tape_access *access; /* NULL: the allocation */
    uint32_t actor;
    uint32_t tick;
};

struct uses {
    struct use *list;
    uint32_t n, room;
    uint32_t last_write; /* index */
};

struct order {
    struct tape *t;
    uint32_t n_actors; /* streams, then the host */
    uint32_t *clocks;  /* n_actors rows */
    uint32_t **events; /* NULL: never recorded */
    struct uses *uses; /* by allocation */
    bool failed;       /* out of memory */
};

static uint32_t *clock_of(const struct order *o, uint32_t actor)
{
    return o->clocks + (size_t)actor * o->n_actors;
}

static uint32_t host(const struct order *o)
{
    return o->n_actors - 1;
}

static void join(const struct order *o, uint32_t *to, const uint32_t *from)
{
    for (uint32_t i = 0; i < o->n_actors; i++) {
        to[i] = from[i] > to[i] ? from[i] : to[i];
    }
}

static bool is_legacy(const struct tape_stream *s)
{
    return s->handle == 1;
}

/* In step with the legacy stream of its device. */
static bool is_blocking(const struct tape_stream *s)
{
    return (s->flags & 1) == 0;
}

/* A new operation of the stream; returns its tick. */
static uint32_t enqueue(struct order *o, uint32_t stream)
{
    const struct tape_stream *s = &o->t->streams[stream];
    uint32_t *clock = clock_of(o, stream);

    join(o, clock, clock_of(o, host(o)));
    for (uint32_t i = 0; is_blocking(s) && i < o->t->n_streams; i++) {
        const struct tape_stream *other = &o->t->streams[i];

        if (i != stream && is_blocking(other) && other->device == s->device &&
            is_legacy(other) != is_legacy(s)) {
            join(o, clock, clock_of(o, i));
        }
    }
    return ++clock[stream];
}

static void host_waits(struct order *o, uint32_t stream)
{
    (void)enqueue(o, stream); /* for the legacy stream's sake: it waits for the blocking ones */
    join(o, clock_of(o, host(o)), clock_of(o, stream));
}

static void host_waits_for_all(struct order *o)
{
    for (uint32_t i = 0; i < o->t->n_streams; i++) {
        join(o, clock_of(o, host(o)), clock_of(o, i));
    }
}

static bool before(const struct order *o, const struct use *u, uint32_t actor)
{
    return clock_of(o, actor)[u->actor] >= u->tick;
}

/* ---- uses of one tensor ---- */

static void add_use(struct order *o, struct uses *u, struct use use, bool write)
{
    if (u->n == u->room) {
        const uint32_t room = u->room == 0 ? 8 : 2 * u->room;
        void *more = realloc(u->list, room * sizeof(*u->list));

        if (more == NULL) {
            o->failed = true;
            return;
        }
        u->list = more;
        u->room = room;
    }
    u->last_write = write ? u->n : u->last_write;
    u->list[u->n++] = use;
}

/* What an access of the stream's newest operation may be. */
static enum tape_mode decide(const struct order *o, const struct uses *u, uint32_t stream)
{
    enum tape_mode mode = TAPE_WRITE;

    if (u->n == 0) {
        return TAPE_NAMED;
    }
    for (uint32_t i = u->last_write; i < u->n; i++) {
        if (!before(o, &u->list[i], stream)) {
            if (i == u->last_write) {
                return TAPE_NAMED;
            }
            mode = TAPE_READ;
        }
    }
    return mode;
}

static void take_access(struct order *o, struct tape_access *a, uint32_t stream, uint32_t tick,
                        bool read_only)
{
    struct uses *u = &o->uses[a->alloc];
    const struct use use = {a, stream, tick};
    enum tape_mode mode = decide(o, u, stream);

    if (read_only && mode == TAPE_WRITE) {
        mode = TAPE_READ;
    }
    a->mode = (uint32_t)mode;
    if (mode != TAPE_NAMED) {
        add_use(o, u, use, mode == TAPE_WRITE);
    }
}

/* What is not known to have ended when the memory goes is not done. */
static void take_free(struct order *o, uint32_t alloc, uint32_t actor)
{
    struct uses *u = &o->uses[alloc];

    for (uint32_t i = 0; i < u->n; i++) {
        if (u->list[i].access != NULL && !before(o, &u->list[i], actor)) {
            u->list[i].access->mode = TAPE_NAMED;
        }
    }
    u->n = 0;
}

/* ---- records ---- */

static void take_alloc(struct order *o, const struct tape_event *e)
{
    const struct use use = {NULL, e->stream, enqueue(o, e->stream)};

    add_use(o, &o->uses[e->thing], use, true);
}

static void take_copy(struct order *o, struct tape_event *e)
{
    const uint32_t tick = enqueue(o, e->stream);

    for (uint32_t i = 0; i < e->n_access; i++) {
        take_access(o, &e->access[i], e->stream, tick, e->access[i].alloc != e->dst.alloc);
    }
    if (e->kind == PS_TAPE_COPY &&
        (e->form & (PS_TAPE_ASYNC | PS_TAPE_DST_HOST)) == PS_TAPE_DST_HOST) {
        host_waits(o, e->stream);
    }
}

static void take_launch(struct order *o, struct tape_event *e)
{
    const uint32_t tick = enqueue(o, e->stream);

    for (uint32_t i = 0; i < e->n_access; i++) {
        take_access(o, &e->access[i], e->stream, tick, false);
    }
}

static void take_event_record(struct order *o, const struct tape_event *e)
{
    uint32_t **at = &o->events[e->thing];

    enqueue(o, e->stream);
    if (*at == NULL) {
        *at = malloc(o->n_actors * sizeof(**at));
    }
    if (*at == NULL) {
        o->failed = true;
        return;
    }
    memcpy(*at, clock_of(o, e->stream), o->n_actors * sizeof(**at));
}

static void take_event(struct order *o, uint32_t event, uint32_t actor)
{
    if (o->events[event] != NULL) {
        join(o, clock_of(o, actor), o->events[event]);
    }
}

static void take_record(struct order *o, struct tape_event *e)
{
    switch ((int)e->kind) {
    case PS_TAPE_ALLOC:
        take_alloc(o, e);
        break;
    case PS_TAPE_FREE:
        if (e->form == PS_TAPE_ALLOC_SYNC && e->thing != TAPE_NONE) {
            host_waits_for_all(o);
        }
        enqueue(o, e->stream);
        if (e->thing != TAPE_NONE) {
            take_free(o, e->thing, e->stream);
        }
        break;
    case PS_TAPE_LAUNCH:
        take_launch(o, e);
        break;
    case PS_TAPE_COPY:
    case PS_TAPE_FILL:
        take_copy(o, e);
        break;
    case PS_TAPE_EVENT_RECORD:
        take_event_record(o, e);
        break;
    case PS_TAPE_STREAM_WAIT:
        enqueue(o, e->stream);
        take_event(o, e->thing, e->stream);
        break;
    case PS_TAPE_EVENT_SYNC:
        take_event(o, e->thing, host(o));
        break;
    case PS_TAPE_EVENT_QUERY:
        if (e->form == 0) {
            take_event(o, e->thing, host(o));
        }
        break;
    case PS_TAPE_STREAM_SYNC:
        host_waits(o, e->stream);
        break;
    case PS_TAPE_STREAM_QUERY:
        if (e->form == 0) {
            host_waits(o, e->stream);
        }
        break;
    case PS_TAPE_CONTEXT_SYNC:
        host_waits_for_all(o);
        break;
    default:
        break;
    }
}

/* Gives each launch that reads something its place in its stream's results. */
static void number_results(struct tape *t)
{
    for (size_t i = 0; i < t->n_events; i++) {
        struct tape_event *e = &t->events[i];
        bool any = false;

        e->result = TAPE_NONE;
        for (uint32_t k = 0; k < e->n_access; k++) {
            any = any || e->access[k].mode != TAPE_NAMED;
            t->n_races += e->access[k].mode == TAPE_NAMED;
        }
        if (any && e->kind == PS_TAPE_LAUNCH) {
            e->result = t->streams[e->stream].n_results++;
        }
    }
}

bool tape_order(struct tape *t)
{
    struct order o = {.t = t, .n_actors = t->n_streams + 1};

    o.clocks = calloc((size_t)o.n_actors * o.n_actors, sizeof(*o.clocks));
    o.events = calloc((size_t)t->n_cuda_events + 1, sizeof(*o.events));
    o.uses = calloc((size_t)t->n_allocs + 1, sizeof(*o.uses));
    o.failed = o.clocks == NULL || o.events == NULL || o.uses == NULL;
    for (size_t i = 0; !o.failed && i < t->n_events; i++) {
        take_record(&o, &t->events[i]);
    }
    for (uint32_t i = 0; o.uses != NULL && i < t->n_allocs; i++) {
        free(o.uses[i].list);
    }
    for (uint32_t i = 0; o.events != NULL && i < t->n_cuda_events; i++) {
        free(o.events[i]);
    }
    free(o.clocks);
    free(o.events);
    free(o.uses);
    if (!o.failed) {
        number_results(t);
    }
    return !o.failed;
}
