/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: contexts, primary and created, and each thread's stack of them. A context that is gone keeps its memory
 * block, for it stays current where it was, but for the thread that destroyed it. Under the big lock.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"

struct sim_ctx *sim_contexts;
static struct sim_ctx *primaries[16];
static unsigned primary_flags[16];
static struct sim_ctx *gone; /* reachable, for leak checkers */

struct sim_ctx *sim_ctx_current(struct sim_thread *t)
{
    return t->n_stack == 0 ? NULL : t->stack[t->n_stack - 1];
}

CUresult sim_ctx_check(CUcontext handle, struct sim_ctx **ctx_p)
{
    if (!sim_handle_is(handle, SIM_K_CTX)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *ctx_p = (struct sim_ctx *)handle;
    return CUDA_SUCCESS;
}

void sim_ctx_used(const struct sim_thread *t, const struct sim_ctx *ctx, const char *call)
{
    if (ctx->ender != NULL && ctx->ender != t) {
        sim_check_ending(call);
    }
}

void sim_ctx_fail(struct sim_ctx *ctx, CUresult error)
{
    if (ctx->error == CUDA_SUCCESS) {
        ctx->error = error;
    }
    sim_cond_wake();
}

static struct sim_ctx *create(int device, unsigned flags, bool primary)
{
    static unsigned long long n_ids;
    struct sim_ctx *ctx = sim_calloc(1, sizeof *ctx);
    ctx->device = device;
    ctx->flags = flags;
    ctx->primary = primary;
    ctx->id = ++n_ids;
    ctx->next = sim_contexts;
    sim_contexts = ctx;
    ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
    ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 << 20;
    ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    ctx->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    ctx->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128;
    ctx->legacy = sim_stream_new(ctx, SIM_STREAM_LEGACY, true, 0);
    sim_handle_add(ctx, SIM_K_CTX);
    return ctx;
}

CUresult sim_ctx_wait(struct sim_thread *t, struct sim_ctx *ctx, const char *what)
{
    /* Snapshot: work that other threads queue meanwhile is not waited for. */
    struct sim_op **tails = NULL;
    size_t n = 0;
    for (const struct sim_stream *s = ctx->streams; s != NULL; s = s->next) {
        if (s->tail != NULL) {
            sim_push(&tails, &n, sim_op_ref(s->tail));
        }
    }
    CUresult result = ctx->error;
    for (size_t i = 0; i < n; i++) {
        const CUresult one = sim_wait_op(t, tails[i], what);
        result = one != CUDA_SUCCESS ? one : result;
        sim_op_unref(tails[i]);
    }
    free(tails);
    sim_check_ctx_saw(ctx);
    return result;
}

static void destroy(struct sim_thread *t, struct sim_ctx *ctx)
{
    ctx->ender = t;
    (void)sim_ctx_wait(t, ctx, "destruction of a context");
    sim_handle_remove(ctx, SIM_K_CTX);
    sim_stream_ctx_gone(ctx);
    sim_plain_ctx_gone(ctx);
    sim_hostmem_ctx_gone(ctx);
    for (struct sim_ctx **link = &sim_contexts; *link != NULL; link = &(*link)->next) {
        if (*link == ctx) {
            *link = ctx->next;
            break;
        }
    }
    if (!ctx->primary && sim_ctx_current(t) == ctx) {
        t->n_stack--;
    }
    ctx->ender = NULL;
    ctx->error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    ctx->next = gone;
    gone = ctx;
}

static bool is_device(CUdevice dev)
{
    return dev >= 0 && dev < sim_options.devices;
}

static CUresult push(struct sim_thread *t, struct sim_ctx *ctx)
{
    if (t->n_stack == SIM_CTX_STACK) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    t->stack[t->n_stack++] = ctx;
    return CUDA_SUCCESS;
}

static CUresult create_and_push(struct sim_thread *t, CUcontext *pctx, unsigned flags, CUdevice dev)
{
    if (pctx == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (t->n_stack == SIM_CTX_STACK) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_ctx *ctx = create(dev, flags, false);
    *pctx = (CUcontext)ctx;
    return push(t, ctx);
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    SIM_ENTER(0, t);
    return sim_leave(create_and_push(t, pctx, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                                unsigned int flags, CUdevice dev)
{
    SIM_ENTER(0, t);
    if (paramsArray != NULL || numParams != 0) {
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    return sim_leave(create_and_push(t, pctx, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
                                unsigned int flags, CUdevice dev)
{
    SIM_ENTER(0, t);
    if (ctxCreateParams != NULL &&
        (ctxCreateParams->execAffinityParams != NULL || ctxCreateParams->cigParams != NULL)) {
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    return sim_leave(create_and_push(t, pctx, flags, dev));
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
    SIM_ENTER(0, t);
    struct sim_ctx *c;
    const CUresult result = sim_ctx_check(ctx, &c);
    if (result != CUDA_SUCCESS || c->primary) {
        return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    destroy(t, c);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext ctx)
{
    SIM_ENTER(0, t);
    struct sim_ctx *c;
    const CUresult result = sim_ctx_check(ctx, &c);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    sim_ctx_used(t, c, "cuCtxPushCurrent");
    return sim_leave(push(t, c));
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *pctx)
{
    SIM_ENTER(0, t);
    if (t->n_stack == 0) {
        return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    struct sim_ctx *ctx = t->stack[--t->n_stack];
    if (pctx != NULL) {
        *pctx = (CUcontext)ctx;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx)
{
    SIM_ENTER(0, t);
    if (ctx == NULL) {
        t->n_stack -= t->n_stack > 0;
        return sim_leave(CUDA_SUCCESS);
    }
    struct sim_ctx *c;
    const CUresult result = sim_ctx_check(ctx, &c);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    sim_ctx_used(t, c, "cuCtxSetCurrent");
    if (t->n_stack == 0) {
        return sim_leave(push(t, c));
    }
    t->stack[t->n_stack - 1] = c;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *pctx)
{
    SIM_ENTER(0, t);
    if (pctx == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *pctx = (CUcontext)sim_ctx_current(t);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
    SIM_ENTER(0, t);
    const struct sim_ctx *ctx = sim_ctx_current(t);
    if (ctx == NULL || device == NULL) {
        return sim_leave(ctx == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE);
    }
    if (ctx->error == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
        return sim_leave(ctx->error);
    }
    *device = ctx->device;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    SIM_ENTER(0, t);
    struct sim_ctx *c = sim_ctx_current(t);
    const CUresult result = ctx == NULL ? CUDA_SUCCESS : sim_ctx_check(ctx, &c);
    if (result != CUDA_SUCCESS || c == NULL || device == NULL) {
        return sim_leave(device == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
    }
    *device = c->device;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int *flags)
{
    SIM_ENTER(SIM_CTX, t);
    if (flags == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = sim_ctx_current(t)->flags;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxSetFlags(unsigned int flags)
{
    SIM_ENTER(SIM_CTX, t);
    sim_ctx_current(t)->flags = flags;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    SIM_ENTER(0, t);
    struct sim_ctx *c = sim_ctx_current(t);
    const CUresult result = ctx == NULL ? CUDA_SUCCESS : sim_ctx_check(ctx, &c);
    if (result != CUDA_SUCCESS || c == NULL || ctxId == NULL) {
        return sim_leave(ctxId == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
    }
    *ctxId = c->id;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    CUresult result = sim_ctx_wait(t, sim_ctx_current(t), "cuCtxSynchronize");
    if (result == CUDA_SUCCESS) {
        sim_pools_after_sync();
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
    SIM_ENTER(SIM_UNSAFE, t);
    struct sim_ctx *c;
    CUresult result = sim_ctx_check(ctx, &c);
    if (result == CUDA_SUCCESS) {
        result = sim_ctx_wait(t, c, "cuCtxSynchronize");
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    SIM_ENTER(SIM_CTX, t);
    if (pvalue == NULL || (unsigned)limit >= CU_LIMIT_MAX) {
        return sim_leave(pvalue == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNSUPPORTED_LIMIT);
    }
    *pvalue = sim_ctx_current(t)->limits[limit];
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
    SIM_ENTER(SIM_CTX, t);
    if ((unsigned)limit >= CU_LIMIT_MAX) {
        return sim_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
    }
    sim_ctx_current(t)->limits[limit] = value;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    SIM_ENTER(SIM_CTX, t);
    if (pconfig == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *pconfig = CU_FUNC_CACHE_PREFER_NONE;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config)
{
    SIM_ENTER(SIM_CTX, t);
    return sim_leave((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE
                                                                   : CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    SIM_ENTER(0, t);
    struct sim_ctx *c;
    const CUresult result = ctx == NULL ? CUDA_SUCCESS : sim_ctx_check(ctx, &c);
    if (result != CUDA_SUCCESS || version == NULL) {
        return sim_leave(version == NULL ? CUDA_ERROR_INVALID_VALUE : result);
    }
    *version = 3020;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    SIM_ENTER(SIM_CTX, t);
    if (leastPriority != NULL) {
        *leastPriority = 0;
    }
    if (greatestPriority != NULL) {
        *greatestPriority = -5;
    }
    return sim_leave(CUDA_SUCCESS);
}

/* ---- primary contexts ---- */

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    SIM_ENTER(0, t);
    if (pctx == NULL || !is_device(dev)) {
        return sim_leave(pctx == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE);
    }
    if (primaries[dev] == NULL) {
        primaries[dev] = create(dev, primary_flags[dev], true);
    }
    primaries[dev]->refs++;
    *pctx = (CUcontext)primaries[dev];
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    SIM_ENTER(0, t);
    if (!is_device(dev) || primaries[dev] == NULL) {
        return sim_leave(is_device(dev) ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_DEVICE);
    }
    if (--primaries[dev]->refs == 0) {
        destroy(t, primaries[dev]);
        primaries[dev] = NULL;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    SIM_ENTER(0, t);
    if (!is_device(dev)) {
        return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    if (primaries[dev] != NULL) {
        destroy(t, primaries[dev]);
        primaries[dev] = NULL;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    SIM_ENTER(0, t);
    if (!is_device(dev)) {
        return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    if (flags != NULL) {
        *flags = primary_flags[dev];
    }
    if (active != NULL) {
        *active = primaries[dev] != NULL;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    SIM_ENTER(0, t);
    if (!is_device(dev)) {
        return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    primary_flags[dev] = flags;
    return sim_leave(CUDA_SUCCESS);
}

/* ---- peers: pairs of contexts, not of devices ---- */

static bool has_peer(const struct sim_ctx *ctx, const struct sim_ctx *peer)
{
    for (size_t i = 0; i < ctx->n_peers; i++) {
        if (ctx->peers[i] == peer) {
            return true;
        }
    }
    return false;
}

static void remove_peer(struct sim_ctx *ctx, const struct sim_ctx *peer)
{
    size_t kept = 0;
    for (size_t i = 0; i < ctx->n_peers; i++) {
        if (ctx->peers[i] != peer) {
            ctx->peers[kept++] = ctx->peers[i];
        }
    }
    ctx->n_peers = kept;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_ctx *peer;
    const CUresult result = sim_ctx_check(peerContext, &peer);
    struct sim_ctx *ctx = sim_ctx_current(t);
    if (result != CUDA_SUCCESS || Flags != 0 || peer->device == ctx->device) {
        return sim_leave(result != CUDA_SUCCESS ? result
                         : Flags != 0           ? CUDA_ERROR_INVALID_VALUE
                         : peer == ctx          ? CUDA_ERROR_INVALID_CONTEXT
                                                : CUDA_ERROR_INVALID_DEVICE);
    }
    if (has_peer(ctx, peer)) {
        return sim_leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    sim_push(&ctx->peers, &ctx->n_peers, peer);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peerContext)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_ctx *peer;
    const CUresult result = sim_ctx_check(peerContext, &peer);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    struct sim_ctx *ctx = sim_ctx_current(t);
    if (!has_peer(ctx, peer)) {
        return sim_leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    }
    remove_peer(ctx, peer);
    return sim_leave(CUDA_SUCCESS);
}
