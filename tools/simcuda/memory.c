/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: plain device allocations. Each has pages of its own, so that the checker sees accesses by page. Freeing
 * waits for the context. Under the big lock.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "tools/simcuda/core.h"

struct plain {
    struct plain *next;
    struct sim_ctx *ctx;
    uint64_t bytes;
    struct sim_pages pages;
    struct sim_mapping *mapping;
    CUdeviceptr base;
};
static struct plain *plains;

bool sim_pages_get(struct sim_pages *p, int device, uint64_t n_pages)
{
    if (sim_pages_alloc(p, device, n_pages)) {
        return true;
    }
    sim_pools_reclaim(device, n_pages);
    return sim_pages_alloc(p, device, n_pages);
}

CUresult sim_plain_alloc(struct sim_ctx *ctx, uint64_t bytes, enum sim_owner owner,
                         CUdeviceptr *ptr_p)
{
    if (bytes == 0 || ptr_p == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes > sim_options.mem) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_pages pages;
    const uint64_t n_pages = SIM_ROUND(bytes, SIM_PAGE) / SIM_PAGE;
    if (!sim_pages_get(&pages, ctx->device, n_pages)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUdeviceptr base = sim_va_reserve(n_pages * SIM_PAGE, SIM_PAGE, 0);
    if (base == 0) {
        sim_pages_free(&pages);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct plain *p = sim_calloc(1, sizeof *p);
    p->ctx = ctx;
    p->bytes = bytes;
    p->pages = pages;
    p->base = base;
    p->mapping = sim_va_map(base, &p->pages, owner, PROT_READ | PROT_WRITE, p);
    p->next = plains;
    plains = p;
    sim_check_alloc(NULL, base, n_pages * SIM_PAGE);
    *ptr_p = base;
    return CUDA_SUCCESS;
}

static void release(struct plain *p)
{
    for (struct plain **link = &plains; *link != NULL; link = &(*link)->next) {
        if (*link == p) {
            *link = p->next;
            break;
        }
    }
    sim_check_free(NULL, p->base, p->mapping->bytes);
    sim_va_unmap(p->mapping);
    sim_va_release(p->base);
    sim_pages_free(&p->pages);
    free(p);
}

void sim_plain_ctx_gone(struct sim_ctx *ctx)
{
    for (struct plain *p = plains, *next; p != NULL; p = next) {
        next = p->next;
        if (p->ctx == ctx) {
            release(p);
        }
    }
}

void sim_plain_info(const struct sim_mapping *m, uint64_t *bytes_p, struct sim_ctx **ctx_p)
{
    const struct plain *p = m->object;
    *bytes_p = p->bytes;
    *ctx_p = p->ctx;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    return sim_leave(sim_plain_alloc(sim_ctx_current(t), bytesize, SIM_OWNER_PLAIN, dptr));
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
                                    size_t Height, unsigned int ElementSizeBytes)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    const bool element = ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
    if (pPitch == NULL || WidthInBytes == 0 || Height == 0 || !element) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const size_t pitch = SIM_ROUND(WidthInBytes, 512);
    const CUresult result =
        sim_plain_alloc(sim_ctx_current(t), pitch * Height, SIM_OWNER_PLAIN, dptr);
    if (result == CUDA_SUCCESS) {
        *pPitch = pitch;
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(sim_plain_alloc(sim_ctx_current(t), bytesize, SIM_OWNER_MANAGED, dptr));
}

/* Advice about memory that does not move. */
CUresult CUDAAPI cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    SIM_ENTER(0, t);
    (void)advice;
    (void)device;
    return sim_leave(sim_va_mapped(devPtr, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                                CUmemLocation location)
{
    SIM_ENTER(0, t);
    (void)advice;
    (void)location;
    return sim_leave(sim_va_mapped(devPtr, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult prefetch(struct sim_thread *t, CUdeviceptr devPtr, size_t count, CUstream hStream)
{
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    return result == CUDA_SUCCESS && !sim_va_mapped(devPtr, count) ? CUDA_ERROR_INVALID_VALUE
                                                                   : result;
}

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                                    CUstream hStream)
{
    SIM_ENTER(0, t);
    (void)dstDevice;
    return sim_leave(prefetch(t, devPtr, count, hStream));
}

CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                       unsigned int flags, CUstream hStream)
{
    SIM_ENTER(0, t);
    (void)location;
    return sim_leave(flags != 0 ? CUDA_ERROR_INVALID_VALUE : prefetch(t, devPtr, count, hStream));
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    if (dptr == 0) {
        return sim_leave(CUDA_SUCCESS);
    }
    CUresult result;
    if (sim_pool_free_sync(t, dptr, &result)) {
        return sim_leave(result);
    }
    const struct sim_mapping *m;
    if (!sim_va_find(dptr, &m, NULL) || m->base != dptr ||
        (m->owner != SIM_OWNER_PLAIN && m->owner != SIM_OWNER_MANAGED)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct plain *p = m->object;
    result = sim_ctx_wait(t, p->ctx, "cuMemFree");
    /* waiting lets other threads in: is it still there? */
    if (!sim_va_find(dptr, &m, NULL) || m->object != p) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    release(p);
    return sim_leave(result);
}
