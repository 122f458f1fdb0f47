/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is ordered after what, as a job may count on it. Each lane has a clock of all lanes; an event's record carries
 * the clock on. Where a use is not ordered, an event and a wait are put in, so that every program is free of races.
 * Orders that the driver gives but that are not counted on here only cost a wait too many.
 */
#include "tests/fuzz/calls.h"

static void join(uint32_t *to, const uint32_t *from)
{
    for (unsigned i = 0; i < FZ_LANES; i++) {
        to[i] = to[i] < from[i] ? from[i] : to[i];
    }
}

/* What the next operation of the lane is ordered after in any case. */
static void look_around(struct fz_world *w, unsigned lane)
{
    struct fz_lane *l = &w->lane[lane];

    join(l->clock, w->host);
    if (lane == FZ_LEGACY) {
        for (unsigned i = 1; i < w->n_lanes; i++) {
            if (w->lane[i].blocking && w->lane[i].live) {
                join(l->clock, w->lane[i].clock);
            }
        }
    } else if (l->blocking) {
        join(l->clock, w->lane[FZ_LEGACY].clock);
    }
}

static bool reachable(const struct fz_world *w, unsigned lane)
{
    return lane == FZ_LEGACY || lane == FZ_OWN(w) || lane >= FZ_CREATED;
}

static void wait_for(struct fz_world *w, unsigned lane, unsigned other)
{
    struct fz_lane *to = &w->lane[lane];
    struct fz_lane *from = &w->lane[other];
    CUevent e;

    if (from->gone || !reachable(w, other)) {
        FZ_SAY("  lane %u waits for the tail of lane %u\n", lane, other);
        OK(cuStreamWaitEvent, to->handle, from->tail, 0);
        join(to->clock, from->tail_clock);
        return;
    }
    FZ_SAY("  lane %u waits for lane %u\n", lane, other);
    look_around(w, other);
    OK(cuEventCreate, &e, CU_EVENT_DISABLE_TIMING);
    OK(cuEventRecord, e, from->handle);
    OK(cuStreamWaitEvent, to->handle, e, 0);
    OK(cuEventDestroy_v2, e);
    join(to->clock, from->clock);
}

void fz_use(struct fz_world *w, struct fz_tensor *t, unsigned lane, bool write)
{
    fz_name(t);
    look_around(w, lane);
    if (t->written > w->lane[lane].clock[t->writer]) {
        wait_for(w, lane, t->writer);
    }
    for (unsigned i = 0; write && i < w->n_lanes; i++) {
        if (t->read[i] > w->lane[lane].clock[i]) {
            wait_for(w, lane, i);
        }
    }
    fz_require(w->n_pending < FZ_PENDING, "operands");
    w->pending[w->n_pending].t = t;
    w->pending[w->n_pending++].write = write;
}

void fz_issue(struct fz_world *w, unsigned lane)
{
    struct fz_lane *l = &w->lane[lane];

    look_around(w, lane);
    l->clock[lane]++;
    for (unsigned i = 0; i < w->n_pending; i++) {
        struct fz_tensor *t = w->pending[i].t;

        FZ_SAY("  lane %u %s %d [%#llx + %zu)\n", lane, w->pending[i].write ? "writes" : "reads",
               (int)(t - w->tensor), (unsigned long long)t->at, t->bytes);
        if (w->pending[i].write) {
            t->writer = lane;
            t->written = l->clock[lane];
            memset(t->read, 0, sizeof(t->read));
        } else {
            t->read[lane] = l->clock[lane];
        }
    }
    w->n_pending = 0;
}

static void note_tail(struct fz_world *w, unsigned lane)
{
    struct fz_lane *l = &w->lane[lane];

    if (l->tail == NULL) {
        OK(cuEventCreate, &l->tail, CU_EVENT_DISABLE_TIMING);
    }
    look_around(w, lane);
    OK(cuEventRecord_ptsz, l->tail, l->handle);
    memcpy(l->tail_clock, l->clock, sizeof(l->clock));
}

void fz_issued(struct fz_world *w, unsigned lane)
{
    fz_name(NULL);
    /* Other threads cannot name it. */
    if (lane > FZ_LEGACY && lane < FZ_CREATED) {
        note_tail(w, lane);
    }
}

void fz_host_saw(struct fz_world *w, unsigned lane)
{
    join(w->host, w->lane[lane].clock);
}

void fz_sync_all(struct fz_world *w)
{
    FZ_SAY("  the host waits for all\n");
    if (fz_u8(&w->in) % 2 == 0) {
        OK(cuCtxSynchronize);
    } else {
        OK(cuCtxSynchronize_v2, w->ctx);
    }
    for (unsigned i = 0; i < w->n_lanes; i++) {
        fz_host_saw(w, i);
    }
    fz_reads_check(w);
}

void fz_lanes_begin(struct fz_world *w)
{
    w->n_lanes = FZ_CREATED;
    w->lane[FZ_LEGACY] = (struct fz_lane){.handle = CU_STREAM_LEGACY, .live = true};
    for (unsigned i = 1; i < FZ_CREATED; i++) {
        w->lane[i] =
            (struct fz_lane){.handle = CU_STREAM_PER_THREAD, .live = true, .blocking = true};
    }
    for (unsigned i = 0; i < FZ_EVENTS; i++) {
        OK(cuEventCreate, &w->event[i].event, i % 2 == 0 ? CU_EVENT_DISABLE_TIMING : 0);
    }
}

void fz_lanes_end(struct fz_world *w)
{
    for (unsigned i = 0; i < w->n_lanes; i++) {
        if (w->lane[i].tail != NULL) {
            OK(cuEventDestroy_v2, w->lane[i].tail);
        }
        if (i >= FZ_CREATED && !w->lane[i].gone) {
            OK(cuStreamDestroy_v2, w->lane[i].handle);
        }
    }
    for (unsigned i = 0; i < FZ_EVENTS; i++) {
        OK(cuEventDestroy_v2, w->event[i].event);
    }
}

void fz_lane_create(struct fz_world *w)
{
    if (w->n_lanes == FZ_LANES) {
        return;
    }
    const unsigned kind = fz_u8(&w->in);
    const unsigned flags = kind % 4 == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    struct fz_lane *l = &w->lane[w->n_lanes];

    *l = (struct fz_lane){.live = true, .blocking = flags == CU_STREAM_DEFAULT};
    if ((kind & 8) != 0) {
        OK(cuStreamCreateWithPriority, &l->handle, flags, -(int)(kind >> 4 & 1));
    } else {
        OK(cuStreamCreate, &l->handle, flags);
    }
    FZ_SAY("lane %u is created%s\n", w->n_lanes, l->blocking ? ", blocking" : "");
    w->n_lanes++;
}

bool fz_lane_created(struct fz_world *w, struct fz_use *u_p)
{
    const unsigned b = fz_u8(&w->in);
    const unsigned n = w->n_lanes - FZ_CREATED;

    for (unsigned i = 0; i < n; i++) {
        const unsigned lane = FZ_CREATED + (b / 2 + i) % n;

        if (!w->lane[lane].gone) {
            *u_p = (struct fz_use){lane, w->lane[lane].handle, b % 2 != 0};
            return true;
        }
    }
    return false;
}

void fz_lane_destroy(struct fz_world *w)
{
    struct fz_use u;

    if (!fz_lane_created(w, &u)) {
        return;
    }
    FZ_SAY("lane %u is destroyed\n", u.lane);
    note_tail(w, u.lane);
    OK(cuStreamDestroy_v2, u.handle);
    w->lane[u.lane].gone = true;
    w->lane[u.lane].live = false;
}

struct fz_use fz_lane_default(struct fz_world *w)
{
    const bool ptds = fz_below(&w->in, 3) == 2;
    const unsigned lane = ptds ? FZ_OWN(w) : FZ_LEGACY;

    return (struct fz_use){lane, NULL, ptds};
}

/* Mostly the first created stream, as a job's. */
struct fz_use fz_lane_choose(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);
    struct fz_use u;

    if (b < 128 && w->n_lanes > FZ_CREATED && !w->lane[FZ_CREATED].gone) {
        return (struct fz_use){FZ_CREATED, w->lane[FZ_CREATED].handle, b % 8 == 7};
    }
    switch (b % 8) {
    case 0:
        return (struct fz_use){FZ_LEGACY, NULL, false};
    case 1:
        return (struct fz_use){FZ_LEGACY, CU_STREAM_LEGACY, (b & 8) != 0};
    case 2:
        return (struct fz_use){FZ_OWN(w), NULL, true};
    case 3:
        return (struct fz_use){FZ_OWN(w), CU_STREAM_PER_THREAD, (b & 8) != 0};
    default:
        break;
    }
    if (fz_lane_created(w, &u)) {
        return u;
    }
    return (struct fz_use){FZ_LEGACY, NULL, false};
}

void fz_op_event(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);
    struct fz_event *e = &w->event[b % FZ_EVENTS];
    const struct fz_use u = fz_lane_choose(w);
    CUresult r;

    FZ_SAY("event %u: %u, lane %u\n", b % FZ_EVENTS, b / FZ_EVENTS % 5, u.lane);
    switch (b / FZ_EVENTS % 5) {
    case 0:
    case 1:
        look_around(w, u.lane);
        if (b / 32 % 2 == 0) {
            ON_LANE(cuEventRecord, u, e->event);
        } else if (u.ptds) {
            OK(cuEventRecordWithFlags_ptsz, e->event, u.handle, 0);
        } else {
            OK(cuEventRecordWithFlags, e->event, u.handle, 0);
        }
        memcpy(e->clock, w->lane[u.lane].clock, sizeof(e->clock));
        e->recorded = true;
        break;
    case 2:
        fz_ok(u.ptds ? CALL(cuStreamWaitEvent_ptsz, u.handle, e->event, 0)
                     : CALL(cuStreamWaitEvent, u.handle, e->event, 0),
              "cuStreamWaitEvent");
        join(w->lane[u.lane].clock, e->clock);
        break;
    case 3:
        OK(cuEventSynchronize, e->event);
        join(w->host, e->clock);
        break;
    default:
        r = CALL(cuEventQuery, e->event);
        fz_require(r == CUDA_SUCCESS || (r == CUDA_ERROR_NOT_READY && e->recorded), "%d", (int)r);
        if (r == CUDA_SUCCESS) {
            join(w->host, e->clock);
        }
        break;
    }
}

void fz_op_sync(struct fz_world *w)
{
    const unsigned b = fz_below(&w->in, 4);
    const struct fz_use u = fz_lane_choose(w);

    if (b == 0) {
        fz_sync_all(w);
        return;
    }
    if (b == 3) {
        const CUresult r =
            u.ptds ? CALL(cuStreamQuery_ptsz, u.handle) : CALL(cuStreamQuery, u.handle);

        fz_require(r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY, "%d", (int)r);
        return;
    }
    FZ_SAY("the host waits for lane %u\n", u.lane);
    if (u.lane == FZ_LEGACY) { /* for others only what the lane was given counts */
        look_around(w, u.lane);
    }
    fz_ok(u.ptds ? CALL(cuStreamSynchronize_ptsz, u.handle) : CALL(cuStreamSynchronize, u.handle),
          "cuStreamSynchronize");
    fz_host_saw(w, u.lane);
}
