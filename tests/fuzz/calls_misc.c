/* SPDX-License-Identifier: Apache-2.0 */
/* Everything else a job does: modules, pools, queries, second contexts, mappings of its own, addresses handed out. */
#include "tests/fuzz/calls.h"

#include <nvtx3/nvToolsExt.h>

/* A look-up gives what the job has already. */
static void look_up(void)
{
    CUdriverProcAddressQueryResult found;
    void *f = NULL;
    void *g = NULL;

    OK(cuGetProcAddress, "cuLaunchKernel", &f, 12000, CU_GET_PROC_ADDRESS_DEFAULT);
    OK(cuGetProcAddress_v2, "cuLaunchKernel", &g, 12000,
       CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &found);
    fz_require(f == fz_real[PS_HOOK_cuLaunchKernel] && g == fz_real[PS_HOOK_cuLaunchKernel_ptsz],
               "another function");
}

void fz_op_module(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);
    CUmodule m = NULL;
    CUmodule other = NULL;

    if (b % 16 == 15) {
        look_up();
    }
    switch (b % 5) {
    case 0:
        OK(cuModuleLoadData, &m, "");
        break;
    case 1:
        OK(cuModuleLoadDataEx, &m, "", 0, NULL, NULL);
        break;
    case 2:
        OK(cuModuleLoadFatBinary, &m, "");
        break;
    case 3:
        OK(cuModuleLoad, &m, "any");
        break;
    default:
        OK(cuLibraryUnload, w->library);
        OK(cuLibraryLoadData, &w->library, "", NULL, NULL, 0, NULL, NULL, 0);
        fz_require(CALL(cuLibraryGetModule, &other, w->library) == CUDA_ERROR_NOT_SUPPORTED, "?");
        return;
    }
    CUfunction f;
    CUdeviceptr at;
    size_t size;

    OK(cuModuleGetFunction, &f, m, "test_rows");
    fz_require(CALL(cuModuleGetGlobal_v2, &at, &size, m, "none") == CUDA_ERROR_NOT_FOUND, "?");
    /* The one in use goes, the new one stays: handles of functions change hands. */
    OK(cuModuleUnload, w->module);
    w->module = m;
}

void fz_op_pool(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemoryPool pool;
    cuuint64_t value = 0;
    size_t free_bytes = 0;
    size_t total = 0;

    PLAIN(cuDeviceGetDefaultMemPool(&pool, 0));
    switch (b % 5) {
    case 0:
        OK(cuMemPoolTrimTo, pool, (size_t)0);
        break;
    case 1:
        OK(cuMemPoolTrimTo, w->pool, (size_t)0);
        break;
    case 2:
        OK(cuMemPoolSetAccess, pool, &access, 1);
        break;
    case 3:
        OK(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
        PLAIN(cuMemGetInfo_v2(&free_bytes, &total));
        fz_require(free_bytes <= total, "%zu of %zu", free_bytes, total);
        break;
    default:
        OK(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
        break;
    }
    size_t live = 0;

    for (unsigned i = 0; i < FZ_TENSORS; i++) {
        live += w->tensor[i].live && w->tensor[i].kind == FZ_POOL ? w->tensor[i].bytes : 0;
    }
    /* What is reserved may be less: what is out needs only its rows. */
    fz_require(b % 5 < 4 || value >= live, "%llu bytes in the pool, %zu in tensors",
               (unsigned long long)value, live);
}

/* ---- queries ---- */

#define ATTRIBUTES 8

static void query_all(struct fz_world *w, const struct fz_tensor *t, CUdeviceptr at)
{
    unsigned type = 0, managed = 7;
    int ordinal = -1;
    CUdeviceptr pointer = 0, start = 0;
    size_t size = 0;
    uintptr_t pool = 1, ctx = 1;
    CUmemoryPool want = NULL;
    CUpointer_attribute names[ATTRIBUTES] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void *data[ATTRIBUTES] = {&type, &ordinal, &pointer, &start, &size, &pool, &ctx, &managed};

    memset(&managed, 0, sizeof(managed));
    OK(cuPointerGetAttributes, ATTRIBUTES, names, data, at);
    if (t->kind == FZ_POOL) {
        PLAIN(cuDeviceGetDefaultMemPool(&want, 0));
    } else if (t->kind == FZ_OTHER_POOL) {
        want = w->pool;
    }
    fz_require(type == CU_MEMORYTYPE_DEVICE && ordinal == 0 && pointer == at, "type %u of %d", type,
               ordinal);
    fz_require(start == t->at && size == t->bytes, "%#llx + %zu, not %#llx + %zu",
               (unsigned long long)start, size, (unsigned long long)t->at, t->bytes);
    fz_require(pool == (uintptr_t)want, "pool %#lx, not %p", (unsigned long)pool, (void *)want);
    fz_require((ctx == 0) == (want != NULL), "context %#lx", (unsigned long)ctx);
    fz_require((managed & 0xff) == (t->kind == FZ_MANAGED), "managed %u", managed);
}

void fz_op_query(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);
    const struct fz_use u = fz_lane_choose(w);
    struct fz_tensor *t = fz_tensor_choose(w, &u);
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned type = 0;

    if (t == NULL) {
        return;
    }
    const CUdeviceptr at = t->at + (b / 8 * 97) % t->bytes;

    switch (b % 4) {
    case 0:
        OK(cuMemGetAddressRange_v2, &base, b % 8 == 0 ? NULL : &size, at);
        fz_require(base == t->at && (b % 8 == 0 || size == t->bytes), "%#llx + %zu",
                   (unsigned long long)base, size);
        break;
    case 1:
        query_all(w, t, at);
        break;
    case 2:
        OK(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
        fz_require(type == CU_MEMORYTYPE_DEVICE, "type %u", type);
        break;
    default:
        /* No host pointer, except to managed memory. */
        fz_require((CALL(cuPointerGetAttribute, &base, CU_POINTER_ATTRIBUTE_HOST_POINTER, at) ==
                    CUDA_SUCCESS) == (t->kind == FZ_MANAGED),
                   "a host pointer");
        break;
    }
}

/* ---- addresses that are handed out: what they name must stay ---- */

static void tensor_maps(const struct fz_tensor *t, unsigned first)
{
    CUtensorMap map = {{0}};
    const cuuint64_t dim[1] = {16};
    const cuuint64_t stride[1] = {16};
    const cuuint32_t box[1] = {8};
    const cuuint32_t step[1] = {1};
    const int corner[1] = {0};
    void *at = (void *)(uintptr_t)t->at;

    for (unsigned i = 0; i < 3; i++) {
        switch ((first + i) % 3) {
        case 0:
            OK(cuTensorMapEncodeTiled, &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, at, dim, stride, box,
               step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
            break;
        case 1:
            OK(cuTensorMapEncodeIm2col, &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, at, dim, stride,
               corner, corner, 1, 1, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
            break;
        default:
            OK(cuTensorMapReplaceAddress, &map, at);
            break;
        }
    }
}

void fz_op_pin(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);
    const struct fz_use u = fz_lane_choose(w);
    struct fz_tensor *t = fz_tensor_choose(w, &u);
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    const unsigned one = 1;
    unsigned long long id = 0;

    if (t == NULL) {
        return;
    }
    if (t->kind == FZ_MANAGED || t->kind == FZ_PLAIN) {
        OK(cuMemAdvise, t->at, t->bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, 0);
        OK(cuMemAdvise_v2, t->at, t->bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, here);
        ON_LANE(cuMemPrefetchAsync, u, t->at, t->bytes, 0);
        ON_LANE(cuMemPrefetchAsync_v2, u, t->at, t->bytes, here, 0);
        fz_ok(u.ptds ? CALL(cuStreamAttachMemAsync_ptsz, u.handle, t->at, 0, 1)
                     : CALL(cuStreamAttachMemAsync, u.handle, t->at, 0, 1),
              "cuStreamAttachMemAsync");
        return;
    }
    fz_name(t);
    /* Rarely: a pinned tensor never moves again. */
    if (b % 8 == 0) {
        tensor_maps(t, b / 8);
    } else if (b % 8 == 1) {
        OK(cuPointerSetAttribute, &one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, t->at);
    } else if (b % 8 == 2) {
        OK(cuPointerGetAttribute, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, t->at);
        fz_require(id != 0, "no number");
    }
    fz_name(NULL);
}

/* ---- a mapping of the job's own ---- */

void fz_op_mapping(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const size_t bytes = (size_t)2 << 20;
    CUmemGenericAllocationHandle h;
    CUmemGenericAllocationHandle again;
    unsigned long long flags = 0;
    CUdeviceptr at;
    uint8_t *host = fz_host(w, 64);

    PLAIN(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    OK(cuMemCreate, &h, 4096, &prop, 0);
    OK(cuMemMap, at, 4096, 0, h, 0);
    OK(cuMemSetAccess, at, 4096, &access, 1);
    OK(cuMemGetAccess, &flags, &access.location, at);
    fz_require(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "flags %llu", flags);
    OK(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)at);
    PLAIN(cuMemRelease(again));
    OK(cuMemsetD8_v2, at, (unsigned char)b, 64);
    OK(cuMemcpyDtoH_v2, host, at, 64);
    fz_require(host[63] == b, "%u, not %u", host[63], b);
    OK(cuMemUnmap, at, 4096);
    PLAIN(cuMemRelease(h));
    OK(cuMemAddressFree, at, bytes);
}

/* ---- contexts ---- */

static CUcontext make_context(unsigned form, int device)
{
    CUcontext ctx = NULL;

    switch (form % 3) {
    case 0:
        OK(cuCtxCreate_v2, &ctx, 0, device);
        break;
    case 1:
        OK(cuCtxCreate_v3, &ctx, NULL, 0, 0, device);
        break;
    default:
        OK(cuCtxCreate_v4, &ctx, NULL, 0, device);
        break;
    }
    return ctx;
}

/* A job within the job: another context with a region of its own, ended by a free or with everything in it. */
static void inner_job(struct fz_world *w, CUcontext ctx, unsigned b)
{
    CUdeviceptr p[3];
    static uint8_t found[FZ_WORKERS][4096];
    CUstream s;

    OK(cuStreamCreate, &s, CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < 3; i++) {
        fz_push(w, 0);
        OK(cuMemAllocAsync, &p[i], 4096, s);
        OK(cuMemsetD8Async, p[i], (unsigned char)(b + i), 1024, s);
        OK(cuMemsetD8Async, p[i] + 1024, 0, 3072, s);
        fz_pop(w);
    }
    if (b % 8 < 4) {
        fz_require(CALL(cuCtxDestroy, ctx) == CUDA_ERROR_NOT_SUPPORTED, "cuCtxDestroy");
    }
    for (unsigned i = 3; i-- > 0;) {
        OK(cuMemcpyDtoHAsync_v2, found[w->worker], p[i], 4096, s);
        PLAIN(cuStreamSynchronize(s));
        fz_require(found[w->worker][1023] == (uint8_t)(b + i) && found[w->worker][1024] == 0,
                   "another context's tensor");
        if (b % 2 == 0) {
            OK(cuMemFreeAsync, p[i], s);
        }
    }
    if (b % 4 == 0) {
        OK(cuStreamDestroy_v2, s);
    }
}

/* The driver refuses to end the context: everything lives on. */
static void refused_ends(const struct fz_world *w, unsigned b)
{
    switch (b % 8) {
    case 0:
        fz_require(CALL(cuCtxDestroy, w->ctx) == CUDA_ERROR_NOT_SUPPORTED, "cuCtxDestroy");
        break;
    case 1:
        fz_require(CALL(cuCtxDestroy_v2, w->ctx) == CUDA_ERROR_INVALID_CONTEXT,
                   "a primary context is destroyed");
        break;
    case 2:
        fz_require(CALL(cuDevicePrimaryCtxReset, 0) == CUDA_ERROR_NOT_SUPPORTED,
                   "cuDevicePrimaryCtxReset");
        break;
    case 3:
        fz_require(CALL(cuDevicePrimaryCtxRelease, 0) == CUDA_ERROR_NOT_SUPPORTED,
                   "cuDevicePrimaryCtxRelease");
        break;
    default:
        break;
    }
}

void fz_op_context(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);
    CUcontext popped;
    CUcontext again;

    if (b % 8 >= 3) {
        OK(cuDevicePrimaryCtxRetain, &again, 0);
        fz_require(again == w->ctx, "another primary context");
        OK(cuDevicePrimaryCtxRelease_v2, 0);
        OK(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 1024);
        refused_ends(w, b / 8);
        return;
    }
    FZ_SAY("a second context on device %u\n", b % 2);
    CUcontext ctx = make_context(b, (int)(b % 2));

    if (b % 2 == 1) {
        PLAIN(cuCtxPushCurrent_v2(w->ctx));
        const CUresult r = CALL(cuCtxEnablePeerAccess, ctx, 0);

        fz_require(r == CUDA_SUCCESS || r == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "%d", (int)r);
        PLAIN(cuCtxDisablePeerAccess(ctx));
        PLAIN(cuCtxPopCurrent_v2(&popped));
    }
    inner_job(w, ctx, b / 8);
    PLAIN(cuCtxSynchronize());
    OK(cuCtxDestroy_v2, ctx);
    PLAIN(cuCtxGetCurrent(&again));
    if (again == ctx) {
        PLAIN(cuCtxPopCurrent_v2(&popped));
    }
    PLAIN(cuCtxSetCurrent(w->ctx));
}

/* ---- the end of paging ---- */

bool fz_some_out(const struct fz_world *w)
{
    for (unsigned i = 0; i < FZ_TENSORS; i++) {
        if (fz_is_out(&w->tensor[i])) {
            return true;
        }
    }
    return false;
}

/* The driver refuses all of them, so the job goes on. */
void fz_last_act(struct fz_world *w, unsigned row)
{
    CUfunction f;
    CUresult r = CUDA_SUCCESS;
    struct fz_use u = fz_lane_choose(w);

    FZ_SAY("the last act\n");
    OK(cuModuleGetFunction, &f, w->module, "test_rows");
    for (unsigned i = 0; i < FZ_TENSORS; i++) {
        if (w->tensor[i].live) {
            fz_name(&w->tensor[i]);
        }
    }
    if (row == PS_HOOK_cuCtxDetach) {
        r = CALL(cuCtxDetach, w->ctx);
    } else if (row == PS_HOOK_cuLaunch) {
        r = CALL(cuLaunch, f);
    } else if (row == PS_HOOK_cuLaunchGrid) {
        r = CALL(cuLaunchGrid, f, 1, 1);
    } else if (row == PS_HOOK_cuLaunchGridAsync) {
        r = CALL(cuLaunchGridAsync, f, 1, 1, u.handle);
    }
    fz_name(NULL);
    fz_require(r == CUDA_ERROR_NOT_SUPPORTED, "the last act gives %d", (int)r);
    fz_require(!fz_some_out(w), "a tensor is still out");
}
