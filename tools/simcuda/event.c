/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: events. A record is an operation; the event keeps the newest one, so that a wait means the record as it was
 * when the wait was queued. Under the big lock.
 */
#include <stdlib.h>

#include "tools/simcuda/core.h"

void sim_event_unref(struct sim_event *e)
{
    if (--e->refs == 0) {
        free(e->cap_nodes);
        free(e);
    }
}

static CUresult check(CUevent handle, struct sim_event **event_p)
{
    if (!sim_handle_is(handle, SIM_K_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *event_p = (struct sim_event *)handle;
    return (*event_p)->ctx->error;
}

CUresult CUDAAPI cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    SIM_ENTER(SIM_CTX, t);
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (phEvent == NULL || (Flags & ~known) != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if ((Flags & CU_EVENT_INTERPROCESS) != 0) {
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    struct sim_event *e = sim_calloc(1, sizeof *e);
    e->refs = 1;
    e->flags = Flags;
    e->ctx = sim_ctx_current(t);
    sim_handle_add(e, SIM_K_EVENT);
    *phEvent = (CUevent)e;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent hEvent)
{
    SIM_ENTER(0, t);
    if (!sim_handle_is(hEvent, SIM_K_EVENT)) {
        return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    struct sim_event *e = (struct sim_event *)hEvent;
    sim_handle_remove(e, SIM_K_EVENT);
    sim_capture_forget_event(e);
    struct sim_op *rec = e->rec;
    e->rec = NULL; /* the record holds a reference to the event */
    sim_event_unref(e);
    sim_op_unref(rec);
    return sim_leave(CUDA_SUCCESS);
}

void sim_event_recorded(struct sim_event *e, struct sim_op *op)
{
    sim_capture_forget_event(e);
    struct sim_op *old = e->rec;
    e->rec = sim_op_ref(op);
    sim_op_unref(old);
}

static CUresult record(struct sim_thread *t, struct sim_event *e, CUstream hStream, bool external)
{
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (s->ctx != e->ctx) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (s->capture != NULL) {
        return external ? sim_capture_event_node(s, e, CU_GRAPH_NODE_TYPE_EVENT_RECORD)
                        : sim_capture_record(s, e);
    }
    struct sim_op *op = sim_op_new(SIM_OP_RECORD, s, "cuEventRecord");
    op->event = e;
    e->refs++;
    (void)sim_op_ref(op);
    result = sim_submit(t, op);
    if (result != CUDA_SUCCESS) {
        sim_op_unref(op);
        return result;
    }
    sim_event_recorded(e, op);
    sim_op_unref(op);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream)
{
    SIM_ENTER(0, t);
    struct sim_event *e;
    const CUresult result = check(hEvent, &e);
    return sim_leave(result == CUDA_SUCCESS ? record(t, e, hStream, false) : result);
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    SIM_ENTER(0, t);
    struct sim_event *e;
    CUresult result = check(hEvent, &e);
    if (result == CUDA_SUCCESS && (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) != 0) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    const bool external = (flags & CU_EVENT_RECORD_EXTERNAL) != 0;
    return sim_leave(result == CUDA_SUCCESS ? record(t, e, hStream, external) : result);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    SIM_ENTER(0, t);
    struct sim_event *e;
    struct sim_stream *s;
    CUresult result = check(hEvent, &e);
    if (result == CUDA_SUCCESS) {
        result = sim_stream_get(t, hStream, &s);
    }
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    if (s->capture != NULL && (Flags & CU_EVENT_WAIT_EXTERNAL) != 0) {
        return sim_leave(sim_capture_event_node(s, e, CU_GRAPH_NODE_TYPE_WAIT_EVENT));
    }
    if (e->capture != NULL || s->capture != NULL) {
        return sim_leave(sim_capture_wait(t, s, e));
    }
    if (e->rec == NULL) {
        sim_check_empty_wait(s);
        return sim_leave(CUDA_SUCCESS); /* never recorded: nothing to wait for */
    }
    struct sim_op *op = sim_op_new(SIM_OP_WAIT, s, "cuStreamWaitEvent");
    sim_op_dep(op, e->rec);
    return sim_leave(sim_submit(t, op));
}

CUresult CUDAAPI cuEventQuery(CUevent hEvent)
{
    SIM_ENTER(SIM_UNSAFE, t);
    struct sim_event *e;
    CUresult result = check(hEvent, &e);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    if (e->capture != NULL) {
        return sim_leave(CUDA_ERROR_CAPTURED_EVENT);
    }
    sim_progress(1); /* a loop of queries must come to an end */
    if (e->ctx->error != CUDA_SUCCESS) {
        return sim_leave(e->ctx->error);
    }
    if (e->rec != NULL && e->rec->state != SIM_OP_DONE) {
        t->waiting = "asks in vain, cuEventQuery";
        sim_check_deadlock();
        return sim_leave(CUDA_ERROR_NOT_READY);
    }
    if (e->rec != NULL) {
        sim_check_host_saw(t, e->rec);
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent)
{
    SIM_ENTER(SIM_UNSAFE, t);
    struct sim_event *e;
    CUresult result = check(hEvent, &e);
    if (result == CUDA_SUCCESS && e->capture != NULL) {
        result = CUDA_ERROR_CAPTURED_EVENT;
    }
    if (result == CUDA_SUCCESS && e->rec != NULL) {
        result = sim_wait_op(t, e->rec, "cuEventSynchronize");
        sim_pools_after_sync();
    }
    return sim_leave(result);
}

static CUresult elapsed(float *ms, const struct sim_event *a, const struct sim_event *b)
{
    if (((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) != 0 || a->rec == NULL ||
        b->rec == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (a->rec->state != SIM_OP_DONE || b->rec->state != SIM_OP_DONE) {
        return CUDA_ERROR_NOT_READY;
    }
    *ms = (float)((double)((int64_t)b->rec->done_ns - (int64_t)a->rec->done_ns) * 1e-6);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SIM_ENTER(0, t);
    struct sim_event *a = NULL;
    struct sim_event *b = NULL;
    CUresult result = check(hStart, &a);
    if (result == CUDA_SUCCESS) {
        result = check(hEnd, &b);
    }
    return sim_leave(result != CUDA_SUCCESS  ? result
                     : pMilliseconds == NULL ? CUDA_ERROR_INVALID_VALUE
                                             : elapsed(pMilliseconds, a, b));
}

CUresult CUDAAPI cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SIM_ENTER(0, t);
    struct sim_event *a = NULL;
    struct sim_event *b = NULL;
    CUresult result = check(hStart, &a);
    if (result == CUDA_SUCCESS) {
        result = check(hEnd, &b);
    }
    return sim_leave(result != CUDA_SUCCESS  ? result
                     : pMilliseconds == NULL ? CUDA_ERROR_INVALID_VALUE
                                             : elapsed(pMilliseconds, a, b));
}
