/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: pinned host memory: allocated or the job's own, registered. Ordinary memory. Under the big lock. */
#include <stdlib.h>
#include <time.h>

#include "tools/simcuda/core.h"
#include "tools/simcuda/late.h"

static struct sim_hostmem **areas;
static size_t n_areas;

struct sim_hostmem *sim_hostmem_find(const void *p)
{
    const uintptr_t address = (uintptr_t)p;
    for (size_t i = 0; i < n_areas; i++) {
        if (address - (uintptr_t)areas[i]->base < areas[i]->bytes) {
            return areas[i];
        }
    }
    return NULL;
}

bool sim_hostmem_pinned(const void *p, size_t bytes)
{
    const struct sim_hostmem *h = sim_hostmem_find(p);
    return h != NULL && bytes <= h->bytes - (size_t)((const uint8_t *)p - h->base);
}

static void add(struct sim_ctx *ctx, void *base, size_t bytes, unsigned flags, bool registered)
{
    static uint64_t n_serials;
    struct sim_hostmem *h = sim_calloc(1, sizeof *h);
    h->base = base;
    h->bytes = bytes;
    h->flags = flags;
    h->registered = registered;
    h->ctx = ctx;
    h->serial = ++n_serials;
    sim_push(&areas, &n_areas, h);
}

static void drop(size_t i)
{
    sim_late_forget(areas[i]->base, areas[i]->bytes);
    sim_check_hostmem_gone(areas[i]);
    if (!areas[i]->registered) {
        free(areas[i]->base);
    }
    free(areas[i]);
    n_areas--;
    areas[i] = areas[n_areas];
    if (n_areas == 0) {
        free(areas);
        areas = NULL;
    } else if ((n_areas & (n_areas - 1)) == 0) { /* sim_push counts on the capacity */
        areas = sim_realloc(areas, n_areas * sizeof(struct sim_hostmem *));
    }
}

void sim_hostmem_ctx_gone(struct sim_ctx *ctx)
{
    size_t i = 0;
    while (i < n_areas) {
        if (areas[i]->ctx == ctx) {
            drop(i); /* the last one takes its place */
        } else {
            i++;
        }
    }
}

static CUresult alloc(struct sim_thread *t, void **pp, size_t bytesize, unsigned flags)
{
    if (pp == NULL || bytesize == 0 || flags > 7) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    void *p = NULL;
    if (posix_memalign(&p, SIM_PAGE, SIM_ROUND(bytesize, SIM_PAGE)) != 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    add(sim_ctx_current(t), p, bytesize, flags, false);
    *pp = p;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    return sim_leave(alloc(t, pp, bytesize, Flags));
}

CUresult CUDAAPI cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    return sim_leave(alloc(t, pp, bytesize, 0));
}

static bool find_index(const void *p, bool registered, size_t *i_p)
{
    for (size_t i = 0; i < n_areas; i++) {
        if (areas[i]->base == p && areas[i]->registered == registered) {
            *i_p = i;
            return true;
        }
    }
    return false;
}

CUresult CUDAAPI cuMemFreeHost(void *p)
{
    SIM_ENTER(SIM_UNSAFE, t);
    size_t i;
    if (!find_index(p, false, &i)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const CUresult result = sim_ctx_wait(t, areas[i]->ctx, "cuMemFreeHost");
    if (!find_index(p, false, &i)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    drop(i);
    return sim_leave(result);
}

CUresult CUDAAPI cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    const struct timespec pause = {sim_options.pin_ms / 1000,
                                   (long)(sim_options.pin_ms % 1000) * 1000000};
    (void)nanosleep(&pause, NULL);
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    if (p == NULL || bytesize == 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (sim_hostmem_find(p) != NULL) {
        return sim_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    add(sim_ctx_current(t), p, bytesize, Flags, true);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemHostUnregister(void *p)
{
    SIM_ENTER(SIM_UNSAFE, t);
    size_t i;
    if (!find_index(p, true, &i)) {
        return sim_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    const CUresult result = sim_ctx_wait(t, areas[i]->ctx, "cuMemHostUnregister");
    if (find_index(p, true, &i)) {
        drop(i);
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    SIM_ENTER(0, t);
    if (pdptr == NULL || Flags != 0 || sim_hostmem_find(p) == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *pdptr = (CUdeviceptr)(uintptr_t)p;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    SIM_ENTER(0, t);
    const struct sim_hostmem *h = sim_hostmem_find(p);
    if (pFlags == NULL || h == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *pFlags = h->flags | CU_MEMHOSTALLOC_PORTABLE;
    return sim_leave(CUDA_SUCCESS);
}
