/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: making, asking and tuning memory pools. Under the big lock. */
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/pool.h"

static bool valid_device(CUdevice dev)
{
    return dev >= 0 && dev < sim_options.devices;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    SIM_ENTER(0, t);
    if (pool_out == NULL || !valid_device(dev)) {
        return sim_leave(pool_out == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE);
    }
    *pool_out = (CUmemoryPool)sim_pool_default(dev);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    SIM_ENTER(0, t);
    if (pool == NULL || !valid_device(dev)) {
        return sim_leave(pool == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE);
    }
    *pool = (CUmemoryPool)sim_pool_current(dev);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    SIM_ENTER(0, t);
    if (!valid_device(dev) || !sim_handle_is(pool, SIM_K_POOL)) {
        return sim_leave(valid_device(dev) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE);
    }
    sim_pool_set_current(dev, (struct sim_pool *)pool);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                        CUmemAllocationType type)
{
    SIM_ENTER(0, t);
    if (pool_out == NULL || location == NULL || type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        location->type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(location->id)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *pool_out = (CUmemoryPool)sim_pool_default(location->id);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    SIM_ENTER(0, t);
    if (pool == NULL || poolProps == NULL ||
        poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    if (!valid_device(poolProps->location.id)) {
        return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    struct sim_pool *p = sim_pool_new(poolProps->location.id, true);
    p->props = *poolProps;
    *pool = (CUmemoryPool)p;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    SIM_ENTER(0, t);
    if (!sim_handle_is(pool, SIM_K_POOL) || !((struct sim_pool *)pool)->explicit_) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    sim_handle_remove(pool, SIM_K_POOL);
    sim_pool_destroy((struct sim_pool *)pool);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    SIM_ENTER(SIM_UNSAFE, t);
    if (!sim_handle_is(pool, SIM_K_POOL)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    sim_pool_trim((struct sim_pool *)pool, minBytesToKeep);
    return sim_leave(CUDA_SUCCESS);
}

/* The attribute's place: an int for the three switches, a 64-bit number for the others. */
static int *switch_of(struct sim_pool *p, CUmemPool_attribute attr)
{
    return attr == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES     ? &p->follow_events
           : attr == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC         ? &p->opportunistic
           : attr == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? &p->internal_deps
                                                                       : NULL;
}

static uint64_t *number_of(struct sim_pool *p, CUmemPool_attribute attr)
{
    return attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD      ? &p->threshold
           : attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? &p->reserved
           : attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH    ? &p->reserved_high
           : attr == CU_MEMPOOL_ATTR_USED_MEM_CURRENT     ? &p->used
           : attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH        ? &p->used_high
                                                          : NULL;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SIM_ENTER(0, t);
    if (!sim_handle_is(pool, SIM_K_POOL) || value == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const int *flag = switch_of((struct sim_pool *)pool, attr);
    const uint64_t *number = number_of((struct sim_pool *)pool, attr);
    if (flag != NULL) {
        memcpy(value, flag, sizeof *flag);
    } else if (number != NULL) {
        memcpy(value, number, sizeof *number);
    } else {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SIM_ENTER(0, t);
    if (!sim_handle_is(pool, SIM_K_POOL) || value == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct sim_pool *p = (struct sim_pool *)pool;
    int *flag = switch_of(p, attr);
    uint64_t number = 0;
    if (flag != NULL) {
        memcpy(flag, value, sizeof *flag);
        return sim_leave(CUDA_SUCCESS);
    }
    memcpy(&number, value, sizeof number);
    if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        p->threshold = number;
    } else if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && number == 0) {
        p->reserved_high = p->reserved;
    } else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH && number == 0) {
        p->used_high = p->used;
    } else {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    SIM_ENTER(0, t);
    if (!sim_handle_is(pool, SIM_K_POOL) || (map == NULL && count > 0)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct sim_pool *p = (struct sim_pool *)pool;
    for (size_t i = 0; i < count; i++) {
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            !valid_device(map[i].location.id)) {
            return sim_leave(CUDA_ERROR_INVALID_VALUE);
        }
        p->access[map[i].location.id] = map[i].flags;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool,
                                    CUmemLocation *location)
{
    SIM_ENTER(0, t);
    if (flags == NULL || location == NULL || !sim_handle_is(memPool, SIM_K_POOL) ||
        location->type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(location->id)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = ((struct sim_pool *)memPool)->access[location->id];
    return sim_leave(CUDA_SUCCESS);
}
