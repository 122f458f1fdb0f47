/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations and frees. Only stream-ordered allocations from a device's default pool are the
 * engine's; what is left alone is told to it, so that it counts. Any thread; the default pools are
 * found once a device.
 */
#include "shim/hooks.h"

#define N_DEVICES 64

static _Atomic(CUmemoryPool) default_pools[N_DEVICES]; /* constant for a device; set from NULL */

CUmemoryPool ps_hook_default_pool(CUdevice device)
{
    CUmemoryPool pool = NULL;

    if (device < 0 || device >= N_DEVICES) {
        return NULL;
    }
    pool = atomic_load_explicit(&default_pools[device], memory_order_relaxed);
    if (pool == NULL && ps_driver.cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS) {
        atomic_store_explicit(&default_pools[device], pool, memory_order_relaxed);
    }
    return pool;
}

/* Whether `pool` (NULL: the current one) of the current device is its default pool. */
static bool is_default_pool(CUmemoryPool pool)
{
    CUdevice device;

    if (ps_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) {
        return false;
    }
    if (pool == NULL && ps_driver.cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS) {
        return false;
    }
    return pool != NULL && pool == ps_hook_default_pool(device);
}

/* True: done, *ptr_p is the engine's. again: the same call has been here before. */
static bool take_over(CUdeviceptr *ptr_p, size_t bytes, CUmemoryPool pool, CUstream stream,
                      bool again)
{
    if (ptr_p == NULL || bytes == 0 || !ps_paging()) {
        return false;
    }
    if (!again && !ps_engine_alloc_concerns()) {
        return false;
    }
    if (!is_default_pool(pool)) {
        ps_engine_note_alloc(bytes);
        return false;
    }
    return (!again || ps_engine_alloc_again()) && ps_engine_alloc(ptr_p, bytes, stream);
}

CUresult ps_hook_alloc_async(PFN_cuMemAllocAsync_v11020 real, bool ptds, CUdeviceptr *ptr_p,
                             size_t bytes, CUstream stream)
{
    if (take_over(ptr_p, bytes, NULL, ps_stream_resolve(stream, ptds), false)) {
        return CUDA_SUCCESS;
    }
    CUresult r = real(ptr_p, bytes, stream);

    if (ps_hook_again(r)) {
        if (take_over(ptr_p, bytes, NULL, ps_stream_resolve(stream, ptds), true)) {
            return CUDA_SUCCESS;
        }
        r = real(ptr_p, bytes, stream);
    }
    if (r == CUDA_SUCCESS && ptr_p != NULL) {
        ps_engine_alloc_left(*ptr_p, bytes, ps_stream_resolve(stream, ptds));
    }
    return r;
}

CUresult ps_hook_alloc_from_pool(PFN_cuMemAllocFromPoolAsync_v11020 real, bool ptds,
                                 CUdeviceptr *ptr_p, size_t bytes, CUmemoryPool pool,
                                 CUstream stream)
{
    if (pool != NULL && take_over(ptr_p, bytes, pool, ps_stream_resolve(stream, ptds), false)) {
        return CUDA_SUCCESS;
    }
    CUresult r = real(ptr_p, bytes, pool, stream);

    if (ps_hook_again(r)) {
        if (pool != NULL && take_over(ptr_p, bytes, pool, ps_stream_resolve(stream, ptds), true)) {
            return CUDA_SUCCESS;
        }
        r = real(ptr_p, bytes, pool, stream);
    }
    if (r == CUDA_SUCCESS && ptr_p != NULL) {
        ps_engine_alloc_left(*ptr_p, bytes, ps_stream_resolve(stream, ptds));
    }
    return r;
}

/* Seen, counted and left alone: it may be exported by legacy IPC, and names no stream. */
static void note(CUresult r, size_t bytes)
{
    if (r == CUDA_SUCCESS && ps_paging()) {
        ps_engine_note_alloc(bytes);
    }
}

CUresult ps_hook_mem_alloc(PFN_cuMemAlloc_v3020 real, bool ptds, CUdeviceptr *ptr_p, size_t bytes)
{
    CUresult r = real(ptr_p, bytes);

    (void)ptds;
    if (ps_hook_again(r)) {
        r = real(ptr_p, bytes);
    }
    note(r, bytes);
    return r;
}

/* NOLINTNEXTLINE(readability-function-size): the driver's parameters */
CUresult ps_hook_mem_alloc_pitch(PFN_cuMemAllocPitch_v3020 real, bool ptds, CUdeviceptr *ptr_p,
                                 size_t *pitch_p, size_t width, size_t height, unsigned element)
{
    CUresult r = real(ptr_p, pitch_p, width, height, element);

    (void)ptds;
    if (ps_hook_again(r)) {
        r = real(ptr_p, pitch_p, width, height, element);
    }
    note(r, pitch_p == NULL ? 0 : *pitch_p * height);
    return r;
}

CUresult ps_hook_mem_alloc_managed(PFN_cuMemAllocManaged_v6000 real, bool ptds, CUdeviceptr *ptr_p,
                                   size_t bytes, unsigned flags)
{
    CUresult r = real(ptr_p, bytes, flags);

    (void)ptds;
    if (ps_hook_again(r)) {
        r = real(ptr_p, bytes, flags);
    }
    note(r, bytes);
    return r;
}

/* Ours are freed by us even after paging has ended. */
CUresult ps_hook_free(PFN_cuMemFree_v3020 real, bool ptds, CUdeviceptr ptr)
{
    (void)ptds;
    return ps_in_window(ptr) && ps_engine_free_sync(ptr) ? CUDA_SUCCESS : real(ptr);
}

CUresult ps_hook_free_async(PFN_cuMemFreeAsync_v11020 real, bool ptds, CUdeviceptr ptr,
                            CUstream stream)
{
    const CUstream resolved = ps_stream_resolve(stream, ptds);

    if (ps_in_window(ptr) && ps_engine_free_async(ptr, resolved)) {
        return CUDA_SUCCESS;
    }
    return real(ptr, stream);
}
