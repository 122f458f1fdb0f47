/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: what an address is: attributes and ranges. Under the big lock. */
#include <string.h>

#include "tools/simcuda/core.h"

/* What is known of one address. */
struct facts {
    bool device, managed, host, mapped, pool;
    CUdeviceptr base;
    uint64_t bytes;
    uint64_t serial;
    int ordinal;
    struct sim_ctx *ctx;
    const struct sim_hostmem *pinned;
};

static bool look(CUdeviceptr ptr, struct facts *f)
{
    *f = (struct facts){.ordinal = -1};
    const struct sim_mapping *m;
    if (sim_va_find(ptr, &m, NULL)) {
        f->device = true;
        f->managed = m->owner == SIM_OWNER_MANAGED;
        f->mapped = m->owner == SIM_OWNER_VMM;
        f->pool = m->owner == SIM_OWNER_POOL;
        f->base = m->base;
        f->bytes = m->bytes;
        f->serial = m->serial;
        f->ordinal = m->device;
        if (f->pool) {
            const struct sim_block *b = m->object;
            f->bytes = b->asked;
            return b->state == SIM_BLOCK_LIVE && ptr - b->base < b->asked;
        }
        if (!f->mapped) {
            sim_plain_info(m, &f->bytes, &f->ctx);
        }
        return ptr - f->base < f->bytes;
    }
    f->pinned = sim_hostmem_find((const void *)(uintptr_t)ptr);
    if (f->pinned == NULL) {
        return false;
    }
    f->host = true;
    f->base = (CUdeviceptr)(uintptr_t)f->pinned->base;
    f->bytes = f->pinned->bytes;
    f->serial = f->pinned->serial | 1ull << 63;
    f->ctx = f->pinned->ctx;
    f->ordinal = f->ctx->device;
    return true;
}

#define PUT(_type, _value)                                                                         \
    do {                                                                                           \
        const _type put_ = (_type)(_value);                                                        \
        memcpy(data, &put_, sizeof put_);                                                          \
    } while (0)

/* NOLINTNEXTLINE(readability-function-size): one case an attribute */
static CUresult get(const struct facts *f, CUdeviceptr ptr, CUpointer_attribute attribute,
                    void *data)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        PUT(uintptr_t, f->ctx);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        PUT(unsigned, f->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        PUT(CUdeviceptr, ptr);
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!f->host && !f->managed) {
            PUT(uintptr_t, 0);
            return CUDA_ERROR_INVALID_VALUE;
        }
        PUT(uintptr_t, ptr);
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        PUT(unsigned, 0);
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        PUT(unsigned long long, f->serial);
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        PUT(unsigned, f->managed);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        PUT(int, f->ordinal);
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        PUT(bool, f->device && !f->mapped && !f->pool);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        PUT(CUdeviceptr, f->base);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        PUT(size_t, f->bytes);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        PUT(bool, true);
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        PUT(unsigned long long, 0);
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        PUT(bool, false);
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        PUT(unsigned, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        PUT(uintptr_t, 0);
        if (f->pool) {
            const struct sim_mapping *m;
            (void)sim_va_find(ptr, &m, NULL);
            PUT(uintptr_t, ((const struct sim_block *)m->object)->pool);
        }
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        PUT(size_t, f->mapped ? f->bytes : 0);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        PUT(CUdeviceptr, f->mapped ? f->base : 0);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        PUT(unsigned long long, f->serial);
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    SIM_ENTER(0, t);
    struct facts f;
    if (data == NULL || !look(ptr, &f)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(get(&f, ptr, attribute, data));
}

/* Unknown addresses are answered with zeros here, not with an error. */
CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                        void **data, CUdeviceptr ptr)
{
    SIM_ENTER(0, t);
    struct facts f;
    if (attributes == NULL || data == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const bool known = look(ptr, &f);
    if (!known) {
        f = (struct facts){.ordinal = -2, .host = true};
    }
    for (unsigned i = 0; i < numAttributes; i++) {
        if (!known && attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            memset(data[i], 0, sizeof(unsigned));
        } else if (!known && (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                              attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)) {
            memset(data[i], 0, sizeof(void *));
        } else {
            (void)get(&f, ptr, attributes[i], data[i]);
        }
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                       CUdeviceptr ptr)
{
    SIM_ENTER(0, t);
    struct facts f;
    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !look(ptr, &f)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    SIM_ENTER(0, t);
    struct facts f;
    if (!look(dptr, &f) || f.host) {
        return sim_leave(CUDA_ERROR_NOT_FOUND);
    }
    if (pbase != NULL) {
        *pbase = f.base;
    }
    if (psize != NULL) {
        *psize = f.bytes;
    }
    return sim_leave(CUDA_SUCCESS);
}
