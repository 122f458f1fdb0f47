/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: virtual memory management: reserved ranges, handles to physical memory, mappings of one handle at any
 * number of addresses, access rights. As on real devices nothing here waits for queued work: what still uses a
 * range that is unmapped faults. Under the big lock.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "tools/simcuda/core.h"

struct vmm_handle {
    uint64_t id; /* what the job holds */
    unsigned refs;
    unsigned n_maps;
    uint64_t bytes;
    CUmemAllocationProp prop;
    struct sim_pages pages;
    struct vmm_handle *next;
};
struct vmm_map { /* one cuMemMap; the mapping's object */
    struct vmm_handle *handle;
    struct sim_ctx *ctx;
    CUmemAccess_flags access[16];
};
struct vmm_range { /* reserved by the job */
    CUdeviceptr base;
    struct vmm_range *next;
};
static struct vmm_handle *vmm_handles;
static struct vmm_range *vmm_ranges;

static bool aligned(uint64_t value)
{
    return value != 0 && value % sim_options.granularity == 0;
}

static struct vmm_handle *find_handle(CUmemGenericAllocationHandle id)
{
    struct vmm_handle *h = vmm_handles;
    while (h != NULL && h->id != id) {
        h = h->next;
    }
    return h != NULL && h->refs > 0 ? h : NULL;
}

static struct vmm_range *find_range(CUdeviceptr base)
{
    struct vmm_range *r = vmm_ranges;
    while (r != NULL && r->base != base) {
        r = r->next;
    }
    return r;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option)
{
    SIM_ENTER(0, t);
    (void)option;
    if (!sim_options.vmm) {
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    if (granularity == NULL || prop == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *granularity = sim_options.granularity;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                                     CUdeviceptr addr, unsigned long long flags)
{
    SIM_ENTER(SIM_UNSAFE, t);
    if (!sim_options.vmm) {
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    if (ptr == NULL || !aligned(size) || flags != 0 || (alignment & (alignment - 1)) != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const uint64_t align =
        alignment > sim_options.granularity ? alignment : sim_options.granularity;
    const CUdeviceptr base = sim_va_reserve(size, align, addr);
    if (base == 0) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    struct vmm_range *r = sim_calloc(1, sizeof *r);
    r->base = base;
    r->next = vmm_ranges;
    vmm_ranges = r;
    *ptr = base;
    return sim_leave(CUDA_SUCCESS);
}

/* True when any page of the range is mapped. */
static bool any_mapped(CUdeviceptr base, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += sim_options.granularity) {
        if (sim_va_find(base + at, NULL, NULL)) {
            return true;
        }
    }
    return false;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(SIM_UNSAFE, t);
    struct vmm_range *r = find_range(ptr);
    if (r == NULL || sim_va_reserved(ptr) != size || any_mapped(ptr, size)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (struct vmm_range **link = &vmm_ranges; *link != NULL; link = &(*link)->next) {
        if (*link == r) {
            *link = r->next;
            break;
        }
    }
    free(r);
    sim_va_release(ptr);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                             const CUmemAllocationProp *prop, unsigned long long flags)
{
    SIM_ENTER(SIM_UNSAFE, t);
    static uint64_t n_ids;
    if (!sim_options.vmm) {
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    if (handle == NULL || prop == NULL || !aligned(size) || flags != 0 ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    if (prop->location.id < 0 || prop->location.id >= sim_options.devices) {
        return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    struct sim_pages pages;
    if (size > sim_options.mem || !sim_pages_get(&pages, prop->location.id, size / SIM_PAGE)) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    struct vmm_handle *h = sim_calloc(1, sizeof *h);
    h->id = 0x51300000000ull + ++n_ids;
    h->refs = 1;
    h->bytes = size;
    h->prop = *prop;
    h->pages = pages;
    h->next = vmm_handles;
    vmm_handles = h;
    *handle = h->id;
    return sim_leave(CUDA_SUCCESS);
}

static void release_if_unused(struct vmm_handle *h)
{
    if (h->refs > 0 || h->n_maps > 0) {
        return;
    }
    for (struct vmm_handle **link = &vmm_handles; *link != NULL; link = &(*link)->next) {
        if (*link == h) {
            *link = h->next;
            break;
        }
    }
    sim_pages_free(&h->pages);
    free(h);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(SIM_UNSAFE, t);
    struct vmm_handle *h = find_handle(handle);
    if (h == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    h->refs--;
    release_if_unused(h);
    return sim_leave(CUDA_SUCCESS);
}

/* The whole of [ptr, ptr + size) lies in one range that the job reserved. */
static bool in_range(CUdeviceptr ptr, uint64_t size)
{
    CUdeviceptr base;
    uint64_t bytes;
    return sim_va_range(ptr, size, &base, &bytes) && find_range(base) != NULL;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    SIM_ENTER(SIM_UNSAFE, t);
    struct vmm_handle *h = find_handle(handle);
    if (h == NULL || offset != 0 || flags != 0 || !aligned(size) || !aligned(ptr) ||
        size != h->bytes || !in_range(ptr, size) || any_mapped(ptr, size)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct vmm_map *map = sim_calloc(1, sizeof *map);
    map->handle = h;
    map->ctx = sim_ctx_current(t);
    h->n_maps++;
    (void)sim_va_map(ptr, &h->pages, SIM_OWNER_VMM, PROT_NONE, map);
    return sim_leave(CUDA_SUCCESS);
}

/*
 * True when [ptr, ptr + size) is made of whole mappings of this file; with gaps allowed when `gaps`.
 */
static bool whole_mappings(CUdeviceptr ptr, uint64_t size, bool gaps)
{
    uint64_t at = 0;
    while (at < size) {
        const struct sim_mapping *m;
        if (!sim_va_find(ptr + at, &m, NULL)) {
            if (!gaps) {
                return false;
            }
            at += sim_options.granularity;
            continue;
        }
        if (m->owner != SIM_OWNER_VMM || m->base != ptr + at || m->bytes > size - at) {
            return false;
        }
        at += m->bytes;
    }
    return true;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(SIM_UNSAFE, t);
    if (!aligned(ptr) || !aligned(size) || !in_range(ptr, size) ||
        !whole_mappings(ptr, size, false)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (uint64_t at = 0; at < size;) {
        const struct sim_mapping *found;
        (void)sim_va_find(ptr + at, &found, NULL);
        struct sim_mapping *m = (struct sim_mapping *)(uintptr_t)found;
        struct vmm_map *map = m->object;
        at += m->bytes;
        sim_va_unmap(m);
        map->handle->n_maps--;
        release_if_unused(map->handle);
        free(map);
    }
    return sim_leave(CUDA_SUCCESS);
}

static int prot_of(const struct vmm_map *map)
{
    int prot = PROT_NONE;
    for (size_t i = 0; i < sizeof map->access / sizeof map->access[0]; i++) {
        if (map->access[i] == CU_MEM_ACCESS_FLAGS_PROT_READ) {
            prot |= PROT_READ;
        } else if (map->access[i] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            prot |= PROT_READ | PROT_WRITE;
        }
    }
    return prot;
}

static bool valid_desc(const CUmemAccessDesc *d)
{
    return d->location.type == CU_MEM_LOCATION_TYPE_DEVICE && d->location.id >= 0 &&
           d->location.id < sim_options.devices &&
           (d->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
            d->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
            d->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                                size_t count)
{
    SIM_ENTER(SIM_UNSAFE, t);
    if (desc == NULL || count == 0 || !aligned(size) || !in_range(ptr, size) ||
        !whole_mappings(ptr, size, false)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < count; i++) {
        if (!valid_desc(&desc[i])) {
            return sim_leave(CUDA_ERROR_INVALID_VALUE);
        }
    }
    for (uint64_t at = 0; at < size;) {
        const struct sim_mapping *found;
        (void)sim_va_find(ptr + at, &found, NULL);
        struct sim_mapping *m = (struct sim_mapping *)(uintptr_t)found;
        struct vmm_map *map = m->object;
        for (size_t i = 0; i < count; i++) {
            map->access[desc[i].location.id] = desc[i].flags;
        }
        sim_va_protect(m, prot_of(map));
        at += m->bytes;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                                CUdeviceptr ptr)
{
    SIM_ENTER(0, t);
    const struct sim_mapping *m;
    if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        location->id < 0 || location->id >= sim_options.devices || !sim_va_find(ptr, &m, NULL) ||
        m->owner != SIM_OWNER_VMM) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = ((const struct vmm_map *)m->object)->access[location->id];
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    SIM_ENTER(SIM_UNSAFE, t);
    const struct sim_mapping *m;
    if (handle == NULL || !sim_va_find((CUdeviceptr)(uintptr_t)addr, &m, NULL) ||
        m->owner != SIM_OWNER_VMM) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct vmm_handle *h = ((struct vmm_map *)m->object)->handle;
    h->refs++;
    *handle = h->id;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                        CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(0, t);
    const struct vmm_handle *h = find_handle(handle);
    if (prop == NULL || h == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *prop = h->prop;
    return sim_leave(CUDA_SUCCESS);
}
