/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries whose answers our addresses would change. A live tensor of ours answers as memory of the
 * device's default pool does, so that nobody takes it for memory that can be exported, registered
 * or mapped. Any thread; no state.
 *
 * As pool memory: no context (CU_POINTER_ATTRIBUTE_CONTEXT is NULL), not capable of legacy IPC, no
 * shareable handle, not managed, the default pool as its pool, its own size as range and block.
 * Memory advice, prefetch and discard are for managed memory and answer CUDA_ERROR_INVALID_VALUE;
 * so do export, retain and mapping calls. BUFFER_ID is unique for each allocation even where an
 * address is used again; who asks for it is about to register the memory, so it stays.
 */
#include "shim/hooks.h"

#include <string.h>

#define OUR_ID (UINT64_C(1) << 63) /* apart from the driver's own ids, which count from 1 */

bool ps_hook_owned(CUdeviceptr ptr)
{
    struct ps_tensor_info info;

    return ps_in_window(ptr) && ps_engine_query(ptr, &info);
}

bool ps_hook_owned_any(const CUdeviceptr *ptrs, size_t count)
{
    for (size_t i = 0; ptrs != NULL && i < count; i++) {
        if (ps_hook_owned(ptrs[i])) {
            return true;
        }
    }
    return false;
}

CUresult ps_hook_address_range(PFN_cuMemGetAddressRange_v3020 real, bool ptds, CUdeviceptr *base_p,
                               size_t *size_p, CUdeviceptr ptr)
{
    struct ps_tensor_info info;

    (void)ptds;
    if (!ps_in_window(ptr) || !ps_engine_query(ptr, &info)) {
        return real(base_p, size_p, ptr);
    }
    if (base_p != NULL) {
        *base_p = info.base;
    }
    if (size_p != NULL) {
        *size_p = info.bytes;
    }
    return CUDA_SUCCESS;
}

/* ---- pointer attributes ---- */

union value {
    uint64_t u64;
    unsigned u32;
    unsigned char flag;
    void *pointer;
};

/* The attribute's size, 0: pool memory has none, -1: not known here. */
static int attribute_of(const struct ps_tensor_info *info, CUpointer_attribute attribute,
                        CUdeviceptr ptr, union value *v)
{
    memset(v, 0, sizeof(*v));
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return sizeof(v->pointer);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        v->u32 = CU_MEMORYTYPE_DEVICE;
        return sizeof(v->u32);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        v->u64 = ptr;
        return sizeof(v->u64);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return 0;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        v->u64 = OUR_ID | info->serial;
        return sizeof(v->u64);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return sizeof(v->flag);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        v->u32 = (unsigned)info->device;
        return sizeof(v->u32);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        v->u64 = info->base;
        return sizeof(v->u64);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        v->u64 = info->bytes;
        return sizeof(v->u64);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        v->flag = 1;
        return sizeof(v->flag);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return sizeof(v->u64);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        v->u32 = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return sizeof(v->u32);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        v->pointer = ps_hook_default_pool(info->device);
        return sizeof(v->pointer);
    default:
        return -1;
    }
}

/* Who asks for these is about to register or export the memory. */
static CUresult pin_if_exporting(CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct ps_touches pin;

    if (attribute != CU_POINTER_ATTRIBUTE_BUFFER_ID &&
        attribute != CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID) {
        return CUDA_SUCCESS;
    }
    ps_touches_init(&pin);
    ps_touches_add(&pin, ptr);
    return ps_touch_pin(&pin, CU_STREAM_LEGACY);
}

CUresult ps_hook_pointer_attribute(PFN_cuPointerGetAttribute_v4000 real, bool ptds, void *data,
                                   CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct ps_tensor_info info;
    union value v;

    (void)ptds;
    if (data == NULL || !ps_in_window(ptr) || !ps_engine_query(ptr, &info)) {
        return real(data, attribute, ptr);
    }
    const int size = attribute_of(&info, attribute, ptr, &v);

    if (size < 0) {
        return real(data, attribute, ptr);
    }
    if (size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult r = pin_if_exporting(attribute, ptr);

    if (r == CUDA_SUCCESS) {
        memcpy(data, &v, (size_t)size);
    }
    return r;
}

/* The plural form gives NULL for what the memory does not have. */
CUresult ps_hook_pointer_attributes(PFN_cuPointerGetAttributes_v7000 real, bool ptds,
                                    unsigned count, CUpointer_attribute *attributes, void **data,
                                    CUdeviceptr ptr)
{
    struct ps_tensor_info info;

    (void)ptds;
    if (attributes == NULL || data == NULL || !ps_in_window(ptr) || !ps_engine_query(ptr, &info)) {
        return real(count, attributes, data, ptr);
    }
    for (unsigned i = 0; i < count; i++) {
        union value v;
        const int size = attribute_of(&info, attributes[i], ptr, &v);
        CUresult r = CUDA_SUCCESS;

        if (size < 0) {
            r = real(1, &attributes[i], &data[i], ptr);
        } else {
            r = pin_if_exporting(attributes[i], ptr);
            if (r == CUDA_SUCCESS) {
                memcpy(data[i], &v, size == 0 ? sizeof(void *) : (size_t)size);
            }
        }
        if (r != CUDA_SUCCESS) {
            return r;
        }
    }
    return CUDA_SUCCESS;
}

/* ---- pools ---- */

CUresult ps_hook_pool_trim(PFN_cuMemPoolTrimTo_v11020 real, bool ptds, CUmemoryPool pool,
                           size_t keep)
{
    const CUresult r = real(pool, keep);

    (void)ptds;
    if (r == CUDA_SUCCESS && ps_paging()) {
        ps_engine_trim(pool);
    }
    return r;
}

/*
 * Our bytes are added to the pool's; to its high marks too, which may then be above the true ones.
 */
CUresult ps_hook_pool_attribute(PFN_cuMemPoolGetAttribute_v11020 real, bool ptds, CUmemoryPool pool,
                                CUmemPool_attribute attribute, void *value)
{
    const CUresult r = real(pool, attribute, value);
    uint64_t used = 0, reserved = 0;
    cuuint64_t sum = 0;

    (void)ptds;
    const bool is_used =
        attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    const bool is_reserved = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ||
                             attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;

    if (r != CUDA_SUCCESS || !(is_used || is_reserved) ||
        atomic_load_explicit(&ps_window_size, memory_order_relaxed) == 0) {
        return r;
    }
    ps_engine_pool_bytes(pool, &used, &reserved);
    memcpy(&sum, value, sizeof(sum));
    sum += is_used ? used : reserved;
    memcpy(value, &sum, sizeof(sum));
    return r;
}

CUresult ps_hook_pool_access(PFN_cuMemPoolSetAccess_v11020 real, bool ptds, CUmemoryPool pool,
                             const CUmemAccessDesc *map, size_t count)
{
    const CUresult r = real(pool, map, count);

    (void)ptds;
    if (r == CUDA_SUCCESS && ps_paging()) {
        ps_engine_pool_access(pool, map, count);
    }
    return r;
}
