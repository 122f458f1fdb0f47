/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, captures, contexts, peers: what begins and ends under the engine. Any thread. What ends
 * is told before the real call, what begins after it has succeeded.
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
    (void)ptds;
    if (stream != NULL && ps_window_live()) {
        ps_engine_stream_destroying(stream);
    }
    return real(stream);
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

void ps_hook_context_destroying(CUcontext ctx)
{
    ps_params_purge();
    if (ctx != NULL) {
        ps_engine_context_destroying(ctx);
    }
}

#if CUDA_VERSION >= 12040
void ps_hook_green_destroying(CUgreenCtx green)
{
    const PFN_cuCtxFromGreenCtx_v12040 from =
        (PFN_cuCtxFromGreenCtx_v12040)ps_driver_symbol("cuCtxFromGreenCtx");
    CUcontext ctx = NULL;

    if (from != NULL && green != NULL && from(&ctx, green) == CUDA_SUCCESS) {
        ps_hook_context_destroying(ctx);
    }
}
#endif

static void primary_ending(CUdevice device, bool gone)
{
    ps_params_purge();
    ps_engine_primary_ending(device, gone);
}

void ps_hook_device_resetting(CUdevice device)
{
    primary_ending(device, false);
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
    const CUresult r = real(device);
    unsigned flags = 0;
    int active = 1;

    (void)ptds;
    if (r == CUDA_SUCCESS && get_state != NULL &&
        get_state(device, &flags, &active) == CUDA_SUCCESS && active == 0) {
        primary_ending(device, true);
    }
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
