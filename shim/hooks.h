/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the wrappers of hooks_wrap.c are made of: entering and leaving, the statements that rows of
 * hooks.def run before the real call, and the bodies of rows that need one of their own. Any
 * thread. No lock is held anywhere here.
 */
#ifndef PS_SHIM_HOOKS_H
#define PS_SHIM_HOOKS_H

#include "shim/cuda_api.h"

#include "shim/driver.h"
#include "shim/engine.h"
#include "shim/intercept.h"

#define PS_ADDRESS(_pointer) ((CUdeviceptr)(uintptr_t)(_pointer))
/* Host-to-device payloads up to this size are searched for addresses. */
#define PS_PAYLOAD_MAX ((size_t)64 << 10)

/* How deep this thread is inside wrappers: what runs below one passes straight to libcuda. */
extern __thread unsigned ps_hook_depth __attribute__((tls_model("initial-exec")));

/*
 * Whether an address of ours can be named at all: the window exists, and not everything is resident
 * for good.
 */
static inline bool ps_window_live(void)
{
    return atomic_load_explicit(&ps_window_size, memory_order_relaxed) != 0 &&
           (ps_paging() || atomic_load_explicit(&ps_coming_home, memory_order_relaxed));
}

/*
 * Entering a wrapper. Returns the function to call, or NULL when there is no driver. *straight_p:
 * return that call's result and do nothing else (called by libcuda itself, or below another
 * wrapper); else ps_hook_leave must follow.
 */
void *ps_hook_enter(enum ps_hook_id id, const void *caller, bool *straight_p);
static inline void ps_hook_leave(void)
{
    ps_hook_depth--;
}
/* What a wrapper answers when there is nothing to call. */
CUresult ps_hook_no_driver(void);

/*
 * Makes the tensors of both lists resident, in order before what `stream` does next; pins them
 * while it is capturing. Where nothing but stale words was found, it only counts those.
 */
CUresult ps_hook_begin_slow(struct ps_touches *touch, struct ps_touches *pin, CUstream stream);
static inline CUresult ps_hook_begin(struct ps_touches *touch, struct ps_touches *pin,
                                     CUstream stream)
{
    return touch->last == 0 && pin->last == 0 ? CUDA_SUCCESS
                                              : ps_hook_begin_slow(touch, pin, stream);
}
static inline void ps_hook_end(struct ps_touches *touch, CUstream stream)
{
    if (touch->n != 0) {
        ps_touch_leave(touch, stream);
    } else if (atomic_load_explicit(&ps_following, memory_order_relaxed)) {
        ps_touch_follow(stream);
    }
}
/*
 * True when a call that gave `r` is worth making once more: it ran out of memory and we gave some
 * back.
 */
static inline bool ps_hook_again(CUresult r)
{
    return r == CUDA_ERROR_OUT_OF_MEMORY && ps_engine_give_back();
}
bool ps_hook_capturing(CUstream stream);
/* Of a device; NULL when the driver does not say. */
CUmemoryPool ps_hook_default_pool(CUdevice device);

/* Live tensors of ours answer as pool memory does where that differs from mapped memory. */
bool ps_hook_owned(CUdeviceptr ptr);
bool ps_hook_owned_any(const CUdeviceptr *ptrs, size_t count);

/* ---- statements: addresses that a call names (NULL structures are the driver's to refuse) ---- */
void ps_scan_range(struct ps_touches *t, CUdeviceptr address, size_t bytes);
void ps_scan_rect(struct ps_touches *t, CUdeviceptr address, size_t pitch, size_t width,
                  size_t height);
/*
 * Host memory about to be copied to the device: the addresses in it. Nothing when `source` is
 * device memory.
 */
void ps_scan_payload(struct ps_touches *pin, CUdeviceptr source, size_t bytes);
/* Host memory, as far as the driver knows. */
bool ps_host_readable(CUdeviceptr address);
void ps_scan_copy2d(struct ps_touches *t, struct ps_touches *pin, const CUDA_MEMCPY2D_v2 *copy);
void ps_scan_copy3d(struct ps_touches *t, struct ps_touches *pin, const CUDA_MEMCPY3D_v2 *copy);
void ps_scan_copy3d_peer(struct ps_touches *t, struct ps_touches *pin,
                         const CUDA_MEMCPY3D_PEER_v1 *copy);
void ps_scan_batch(struct ps_touches *t, struct ps_touches *pin, const CUdeviceptr *dsts,
                   const CUdeviceptr *srcs, const size_t *sizes, size_t count);
#if CUDA_VERSION >= 12080
void ps_scan_batch3d(struct ps_touches *t, struct ps_touches *pin,
                     const CUDA_MEMCPY3D_BATCH_OP_v1 *ops, size_t count);
#endif
#if CUDA_VERSION >= 12060
void ps_scan_decompress(struct ps_touches *t, const CUmemDecompressParams *params, size_t count);
#endif
void ps_scan_memops(struct ps_touches *t, struct ps_touches *pin,
                    const CUstreamBatchMemOpParams_v1 *ops, unsigned count);
/* f may be NULL (then the driver refuses the call); a CUkernel may be cast to it. */
void ps_scan_launch(struct ps_touches *t, CUfunction f, void *const *kernel_params,
                    void *const *extra);
void ps_scan_launch_list(struct ps_touches *pin, const CUDA_LAUNCH_PARAMS_v1 *list, unsigned count);
void ps_scan_kernel_node(struct ps_touches *pin, const CUDA_KERNEL_NODE_PARAMS_v1 *node);
void ps_scan_kernel_node_v2(struct ps_touches *pin, const CUDA_KERNEL_NODE_PARAMS_v2 *node);
void ps_scan_memset_node(struct ps_touches *pin, const CUDA_MEMSET_NODE_PARAMS_v1 *node);
void ps_scan_memop_node(struct ps_touches *pin, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 *node);
#if CUDA_VERSION >= 12020
void ps_scan_graph_node(struct ps_touches *pin, const CUgraphNodeParams *node);
#endif
void ps_scan_resource(struct ps_touches *pin, const CUDA_RESOURCE_DESC_v1 *resource);

/* ---- statements: ends of life ---- */
/* The job uses something that we cannot follow: everything becomes resident for good. */
void ps_hook_unseen(const char *what);

/* ---- bodies: function(real, ptds, arguments of the row) ---- */
CUresult ps_hook_mem_alloc(PFN_cuMemAlloc_v3020 real, bool ptds, CUdeviceptr *ptr_p, size_t bytes);
CUresult ps_hook_mem_alloc_pitch(PFN_cuMemAllocPitch_v3020 real, bool ptds, CUdeviceptr *ptr_p,
                                 size_t *pitch_p, size_t width, size_t height, unsigned element);
CUresult ps_hook_mem_alloc_managed(PFN_cuMemAllocManaged_v6000 real, bool ptds, CUdeviceptr *ptr_p,
                                   size_t bytes, unsigned flags);
CUresult ps_hook_alloc_async(PFN_cuMemAllocAsync_v11020 real, bool ptds, CUdeviceptr *ptr_p,
                             size_t bytes, CUstream stream);
CUresult ps_hook_alloc_from_pool(PFN_cuMemAllocFromPoolAsync_v11020 real, bool ptds,
                                 CUdeviceptr *ptr_p, size_t bytes, CUmemoryPool pool,
                                 CUstream stream);
CUresult ps_hook_free(PFN_cuMemFree_v3020 real, bool ptds, CUdeviceptr ptr);
CUresult ps_hook_free_async(PFN_cuMemFreeAsync_v11020 real, bool ptds, CUdeviceptr ptr,
                            CUstream stream);

CUresult ps_hook_stream_create(PFN_cuStreamCreate_v2000 real, bool ptds, CUstream *stream_p,
                               unsigned flags);
CUresult ps_hook_stream_create_priority(PFN_cuStreamCreateWithPriority_v5050 real, bool ptds,
                                        CUstream *stream_p, unsigned flags, int priority);
#if CUDA_VERSION >= 12050
CUresult ps_hook_green_stream_create(PFN_cuGreenCtxStreamCreate_v12050 real, bool ptds,
                                     CUstream *stream_p, CUgreenCtx green, unsigned flags,
                                     int priority);
#endif
CUresult ps_hook_stream_destroy(PFN_cuStreamDestroy_v4000 real, bool ptds, CUstream stream);
CUresult ps_hook_begin_capture_v1(PFN_cuStreamBeginCapture_v10000 real, bool ptds, CUstream stream);
CUresult ps_hook_begin_capture(PFN_cuStreamBeginCapture_v10010 real, bool ptds, CUstream stream,
                               CUstreamCaptureMode mode);
#if CUDA_VERSION >= 12030
CUresult ps_hook_begin_capture_to_graph(PFN_cuStreamBeginCaptureToGraph_v12030 real, bool ptds,
                                        CUstream stream, CUgraph graph,
                                        const CUgraphNode *dependencies,
                                        const CUgraphEdgeData *edges, size_t n_dependencies,
                                        CUstreamCaptureMode mode);
#endif
CUresult ps_hook_context_destroy(PFN_cuCtxDestroy_v4000 real, bool ptds, CUcontext ctx);
#if CUDA_VERSION >= 12040
CUresult ps_hook_green_destroy(PFN_cuGreenCtxDestroy_v12040 real, bool ptds, CUgreenCtx green);
#endif
CUresult ps_hook_primary_reset(PFN_cuDevicePrimaryCtxReset_v11000 real, bool ptds, CUdevice device);
CUresult ps_hook_primary_release(PFN_cuDevicePrimaryCtxRelease_v11000 real, bool ptds,
                                 CUdevice device);
CUresult ps_hook_enable_peer(PFN_cuCtxEnablePeerAccess_v4000 real, bool ptds, CUcontext peer,
                             unsigned flags);

CUresult ps_hook_address_range(PFN_cuMemGetAddressRange_v3020 real, bool ptds, CUdeviceptr *base_p,
                               size_t *size_p, CUdeviceptr ptr);
CUresult ps_hook_pointer_attribute(PFN_cuPointerGetAttribute_v4000 real, bool ptds, void *data,
                                   CUpointer_attribute attribute, CUdeviceptr ptr);
CUresult ps_hook_pointer_attributes(PFN_cuPointerGetAttributes_v7000 real, bool ptds,
                                    unsigned count, CUpointer_attribute *attributes, void **data,
                                    CUdeviceptr ptr);
CUresult ps_hook_pool_trim(PFN_cuMemPoolTrimTo_v11020 real, bool ptds, CUmemoryPool pool,
                           size_t keep);
CUresult ps_hook_pool_attribute(PFN_cuMemPoolGetAttribute_v11020 real, bool ptds, CUmemoryPool pool,
                                CUmemPool_attribute attribute, void *value);
CUresult ps_hook_pool_access(PFN_cuMemPoolSetAccess_v11020 real, bool ptds, CUmemoryPool pool,
                             const CUmemAccessDesc *map, size_t count);

CUresult ps_hook_get_proc_address_v1(PFN_cuGetProcAddress_v11030 real, bool ptds, const char *name,
                                     void **pfn, int version, cuuint64_t flags);
CUresult ps_hook_get_proc_address(PFN_cuGetProcAddress_v12000 real, bool ptds, const char *name,
                                  void **pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status_p);

#endif
