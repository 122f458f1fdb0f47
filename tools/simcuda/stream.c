/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: streams: the legacy and per-thread default ones, created ones, and hidden lanes for graphs. A destroyed
 * stream lives on without a handle until its last operation is done. Under the big lock.
 */
#include <stdlib.h>

#include "tools/simcuda/core.h"

struct sim_stream *sim_stream_new(struct sim_ctx *ctx, enum sim_stream_kind kind, bool blocking,
                                  int priority)
{
    static uint32_t n_ids;
    struct sim_stream *s = sim_calloc(1, sizeof *s);
    s->id = ++n_ids;
    s->kind = kind;
    s->blocking = blocking;
    s->priority = priority;
    s->ctx = ctx;
    s->next = ctx->streams;
    ctx->streams = s;
    return s;
}

struct sim_stream *sim_stream_hidden(struct sim_ctx *ctx)
{
    return sim_stream_new(ctx, SIM_STREAM_CREATED, false, 0);
}

void sim_stream_reap(struct sim_stream *s)
{
    if (!s->destroyed || s->head != NULL) {
        return;
    }
    for (struct sim_stream **link = &s->ctx->streams; *link != NULL; link = &(*link)->next) {
        if (*link == s) {
            *link = s->next;
            break;
        }
    }
    sim_op_unref(s->tail);
    sim_check_stream_gone(s);
    sim_sched_stream_gone(s);
    free(s->cap_deps);
    /* Operations that are done may still name their stream in reports and in the order of frees: the shell stays,
     * a few words for each stream ever destroyed. */
    s->tail = NULL;
    s->cap_deps = NULL;
    s->n_cap_deps = 0;
    s->clock = NULL;
    s->sched = NULL;
    s->next = NULL;
    static struct sim_stream *graveyard; /* reachable, for leak checkers */
    s->next = graveyard;
    graveyard = s;
}

void sim_stream_drop(struct sim_stream *s)
{
    if (s->capture != NULL) {
        sim_capture_stream_gone(s);
    }
    if (!s->destroyed) { /* else it went with its context */
        s->destroyed = true;
        sim_stream_reap(s);
    }
}

struct owned { /* a thread's default stream in one context */
    struct owned *next;
    uint32_t thread;
    struct sim_stream *stream;
};
static struct owned *thread_streams;

struct sim_stream *sim_stream_of_thread(struct sim_thread *t, struct sim_ctx *ctx)
{
    for (const struct owned *o = thread_streams; o != NULL; o = o->next) {
        if (o->thread == t->id && o->stream->ctx == ctx) {
            return o->stream;
        }
    }
    struct owned *o = sim_calloc(1, sizeof *o);
    o->thread = t->id;
    o->stream = sim_stream_new(ctx, SIM_STREAM_PER_THREAD, true, 0);
    o->next = thread_streams;
    thread_streams = o;
    return o->stream;
}

static void drop_thread_streams(uint32_t thread, const struct sim_ctx *ctx)
{
    for (struct owned **link = &thread_streams; *link != NULL;) {
        struct owned *o = *link;
        if ((thread != 0 && o->thread == thread) || (ctx != NULL && o->stream->ctx == ctx)) {
            *link = o->next;
            sim_stream_drop(o->stream);
            free(o);
        } else {
            link = &o->next;
        }
    }
}

void sim_stream_thread_gone(struct sim_thread *t)
{
    drop_thread_streams(t->id, NULL);
}

void sim_stream_ctx_gone(struct sim_ctx *ctx)
{
    drop_thread_streams(0, ctx);
    while (ctx->streams != NULL) {
        struct sim_stream *s = ctx->streams;
        sim_handle_remove(s, SIM_K_STREAM);
        sim_stream_drop(s);
    }
}

CUresult sim_stream_get(struct sim_thread *t, CUstream handle, struct sim_stream **stream_p)
{
    if (handle != NULL && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        if (!sim_handle_is(handle, SIM_K_STREAM)) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        *stream_p = (struct sim_stream *)handle;
        sim_ctx_used(t, (*stream_p)->ctx, "a call that names a stream");
        return (*stream_p)->ctx->error;
    }
    struct sim_ctx *ctx = sim_ctx_current(t);
    if (ctx == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const bool own = handle == CU_STREAM_PER_THREAD || (handle == NULL && t->ptds);
    *stream_p = own ? sim_stream_of_thread(t, ctx) : ctx->legacy;
    return ctx->error;
}

static CUresult create(struct sim_thread *t, CUstream *phStream, unsigned int flags, int priority)
{
    if (phStream == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const int clamped = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    struct sim_stream *s = sim_stream_new(sim_ctx_current(t), SIM_STREAM_CREATED,
                                          (flags & CU_STREAM_NON_BLOCKING) == 0, clamped);
    sim_handle_add(s, SIM_K_STREAM);
    *phStream = (CUstream)s;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    SIM_ENTER(SIM_CTX, t);
    return sim_leave(create(t, phStream, Flags, 0));
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    SIM_ENTER(SIM_CTX, t);
    return sim_leave(create(t, phStream, flags, priority));
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream hStream)
{
    SIM_ENTER(0, t);
    if (!sim_handle_is(hStream, SIM_K_STREAM)) {
        return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    sim_handle_remove(hStream, SIM_K_STREAM);
    sim_stream_drop((struct sim_stream *)hStream);
    return sim_leave(CUDA_SUCCESS);
}

/* What stands against waiting for or asking about a stream. */
static CUresult waitable(struct sim_stream *s)
{
    if (s->capture != NULL) {
        sim_capture_invalidate(s->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return s->kind == SIM_STREAM_LEGACY ? sim_capture_implicit(s->ctx) : CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS) {
        result = waitable(s);
    }
    if (result == CUDA_SUCCESS && s->kind == SIM_STREAM_LEGACY) {
        /* what is queued in the blocking streams is ordered before it */
        struct sim_op *op = sim_op_new(SIM_OP_NOP, s, "cuStreamSynchronize");
        (void)sim_op_ref(op);
        sim_op_queue(t, op);
        result = sim_wait_op(t, op, "cuStreamSynchronize");
        sim_op_unref(op);
    } else if (result == CUDA_SUCCESS && s->tail != NULL) {
        result = sim_wait_op(t, s->tail, "cuStreamSynchronize");
    }
    if (result == CUDA_SUCCESS) {
        sim_pools_after_sync();
    }
    return sim_leave(result);
}

static CUresult query(struct sim_thread *t, struct sim_stream *s)
{
    if (s->kind == SIM_STREAM_LEGACY) {
        for (const struct sim_stream *x = s->ctx->streams; x != NULL; x = x->next) {
            if (x->blocking && x->head != NULL) {
                return CUDA_ERROR_NOT_READY;
            }
        }
    }
    if (s->head != NULL) {
        return CUDA_ERROR_NOT_READY;
    }
    for (const struct sim_stream *x = s->ctx->streams; x != NULL && s->kind == SIM_STREAM_LEGACY;
         x = x->next) {
        if (x->blocking && x->tail != NULL) {
            sim_check_host_saw(t, x->tail);
        }
    }
    if (s->tail != NULL) {
        sim_check_host_saw(t, s->tail);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamQuery(CUstream hStream)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS) {
        result = waitable(s);
    }
    if (result == CUDA_SUCCESS) {
        sim_progress(1); /* a loop of queries must come to an end */
        result = s->ctx->error != CUDA_SUCCESS ? s->ctx->error : query(t, s);
    }
    if (result == CUDA_ERROR_NOT_READY) {
        t->waiting = "asks in vain, cuStreamQuery";
        sim_check_deadlock();
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS && flags != NULL) {
        *flags = s->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    }
    return sim_leave(flags == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUresult CUDAAPI cuStreamGetPriority(CUstream hStream, int *priority)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS && priority != NULL) {
        *priority = s->priority;
    }
    return sim_leave(priority == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS && pctx != NULL) {
        *pctx = (CUcontext)s->ctx;
    }
    return sim_leave(pctx == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUresult CUDAAPI cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS && pCtx != NULL && pGreenCtx != NULL) {
        *pCtx = (CUcontext)s->ctx;
        *pGreenCtx = NULL;
    }
    return sim_leave(pCtx == NULL || pGreenCtx == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUresult CUDAAPI cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS && device != NULL) {
        *device = s->ctx->device;
    }
    return sim_leave(device == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS && streamId != NULL) {
        *streamId = s->id;
    }
    return sim_leave(streamId == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUresult CUDAAPI cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                        unsigned int flags)
{
    SIM_ENTER(0, t);
    (void)length;
    (void)flags;
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    return sim_leave(result == CUDA_SUCCESS && !sim_va_mapped(dptr, 1) ? CUDA_ERROR_INVALID_VALUE
                                                                       : result);
}
