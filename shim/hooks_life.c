/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, captures, contexts, peers: what begins and ends under the engine. Any thread. What ends
 * is told before the real call and, as what begins, after it has succeeded.
 */
#include "shim/hooks_life.h"
#include "shim/hooks.h"
#include "shim/params.h"

static _Atomic bool capture_begun; /* set for good, before the job's first capture begins */

bool ps_capture_ever_begun(void)
{
    return atomic_load_explicit(&capture_begun, memory_order_relaxed);
}

void ps_hook_unseen(const char *what)
{
    if (ps_paging() || ps_window_live()) {
        ps_engine_end_paging(what);
    }
}

/* ---- streams ---- */

static void stream_created(CUresult r, const CUstream *stream_p, unsigned flags)
{
    if (r == CUDA_SUCCESS && stream_p != NULL && ps_paging()) {
        ps_engine_stream_created(*stream_p, flags);
    }
}

CUresult ps_hook_stream_create(PFN_cuStreamCreate_v2000 real, bool ptds, CUstream *stream_p,
                               unsigned flags)
{
    CUresult r = real(stream_p, flags);

    (void)ptds;
    if (ps_hook_again(r)) {
        r = real(stream_p, flags);
    }
    stream_created(r, stream_p, flags);
    return r;
}

CUresult ps_hook_stream_create_priority(PFN_cuStreamCreateWithPriority_v5050 real, bool ptds,
                                        CUstream *stream_p, unsigned flags, int priority)
{
    CUresult r = real(stream_p, flags, priority);

    (void)ptds;
    if (ps_hook_again(r)) {
        r = real(stream_p, flags, priority);
    }
    stream_created(r, stream_p, flags);
    return r;
}

#if CUDA_VERSION >= 12050
CUresult ps_hook_green_stream_create(PFN_cuGreenCtxStreamCreate_v12050 real, bool ptds,
                                     CUstream *stream_p, CUgreenCtx green, unsigned flags,
                                     int priority)
{
    CUresult r = real(stream_p, green, flags, priority);

    (void)ptds;
    if (ps_hook_again(r)) {
        r = real(stream_p, green, flags, priority);
    }
    stream_created(r, stream_p, flags);
    return r;
}
#endif

CUresult ps_hook_stream_destroy(PFN_cuStreamDestroy_v4000 real, bool ptds, CUstream stream)
{
    bool blocking = false;

    (void)ptds;
    if (stream != NULL && ps_window_live()) {
        blocking = ps_engine_stream_destroying(stream);
    }
    const CUresult r = real(stream);

    if (r == CUDA_SUCCESS) {
        ps_engine_stream_destroyed(blocking);
    }
    return r;
}

/* ---- captures ---- */

static void capture_beginning(CUstream stream, bool ptds)
{
    atomic_store_explicit(&capture_begun, true, memory_order_relaxed);
    if (ps_window_live()) {
        ps_engine_capture_beginning(ps_stream_resolve(stream, ptds));
    }
}

CUresult ps_hook_begin_capture_v1(PFN_cuStreamBeginCapture_v10000 real, bool ptds, CUstream stream)
{
    capture_beginning(stream, ptds);
    return real(stream);
}

CUresult ps_hook_begin_capture(PFN_cuStreamBeginCapture_v10010 real, bool ptds, CUstream stream,
                               CUstreamCaptureMode mode)
{
    capture_beginning(stream, ptds);
    return real(stream, mode);
}

#if CUDA_VERSION >= 12030
/* NOLINTNEXTLINE(readability-function-size): the driver's parameters */
CUresult ps_hook_begin_capture_to_graph(PFN_cuStreamBeginCaptureToGraph_v12030 real, bool ptds,
                                        CUstream stream, CUgraph graph,
                                        const CUgraphNode *dependencies,
                                        const CUgraphEdgeData *edges, size_t n_dependencies,
                                        CUstreamCaptureMode mode)
{
    capture_beginning(stream, ptds);
    return real(stream, graph, dependencies, edges, n_dependencies, mode);
}
#endif

/* ---- contexts ---- */

/* The driver may refuse each of these; nothing may be lost then. */
CUresult ps_hook_context_destroy(PFN_cuCtxDestroy_v4000 real, bool ptds, CUcontext ctx)
{
    struct ps_engine *const e = ctx != NULL ? ps_engine_context_ending(ctx) : NULL;

    (void)ptds;
    ps_params_purge();
    const CUresult r = real(ctx);

    ps_engine_ended(e, r == CUDA_SUCCESS);
    return r;
}

#if CUDA_VERSION >= 12040
CUresult ps_hook_green_destroy(PFN_cuGreenCtxDestroy_v12040 real, bool ptds, CUgreenCtx green)
{
    const PFN_cuCtxFromGreenCtx_v12040 from =
        (PFN_cuCtxFromGreenCtx_v12040)ps_driver_symbol("cuCtxFromGreenCtx");
    struct ps_engine *e = NULL;
    CUcontext ctx = NULL;

    (void)ptds;
    ps_params_purge();
    if (from != NULL && green != NULL && from(&ctx, green) == CUDA_SUCCESS) {
        e = ps_engine_context_ending(ctx);
    }
    const CUresult r = real(green);

    ps_engine_ended(e, r == CUDA_SUCCESS);
    return r;
}
#endif

CUresult ps_hook_primary_reset(PFN_cuDevicePrimaryCtxReset_v11000 real, bool ptds, CUdevice device)
{
    struct ps_engine *const e = ps_engine_primary_ending(device);

    (void)ptds;
    ps_params_purge();
    const CUresult r = real(device);

    ps_engine_ended(e, r == CUDA_SUCCESS);
    return r;
}

/*
 * How many retains are open only the driver knows, so whether this was the last one is seen
 * afterwards.
 */
CUresult ps_hook_primary_release(PFN_cuDevicePrimaryCtxRelease_v11000 real, bool ptds,
                                 CUdevice device)
{
    const PFN_cuDevicePrimaryCtxGetState_v7000 get_state =
        (PFN_cuDevicePrimaryCtxGetState_v7000)ps_driver_symbol("cuDevicePrimaryCtxGetState");
    struct ps_engine *const e = ps_engine_primary_ending(device);
    const CUresult r = real(device);
    unsigned flags = 0;
    int active = 1;

    (void)ptds;
    const bool gone = r == CUDA_SUCCESS && get_state != NULL &&
                      get_state(device, &flags, &active) == CUDA_SUCCESS && active == 0;
    if (gone) {
        ps_params_purge();
    }
    ps_engine_ended(e, gone);
    return r;
}

CUresult ps_hook_enable_peer(PFN_cuCtxEnablePeerAccess_v4000 real, bool ptds, CUcontext peer,
                             unsigned flags)
{
    CUresult r = real(peer, flags);

    (void)ptds;
    if (ps_hook_again(r)) {
        r = real(peer, flags);
    }
    if (r == CUDA_SUCCESS && ps_paging()) {
        ps_engine_peer_enabled(peer);
    }
    return r;
}
