/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of hooks.def that the software driver refuses ("not supported"), with arguments as a job gives them: the
 * wrapper makes what they name resident, in order, or keeps it for good; then the driver refuses the call, and no byte
 * may have changed. Memory of ours is refused as pool memory is where a call takes none of that.
 */
#include "tests/fuzz/calls.h"

/* As a job names a thing that it cannot have here: the driver refuses the call before it looks at the handle. */
static uint64_t nothing[64];
#define HANDLE(_type) ((_type)(void *)nothing)

static void refused(CUresult r, const char *call)
{
    fz_require(r == CUDA_ERROR_NOT_SUPPORTED, "%s gives %d", call, (int)r);
}
#define NO(_symbol, ...) refused(CALL(_symbol, __VA_ARGS__), #_symbol)
#define NO_LANE(_symbol, _l, ...)                                                                  \
    refused((_l)->ptds ? CALL(_symbol##_ptsz, __VA_ARGS__) : CALL(_symbol, __VA_ARGS__), #_symbol)

/* ---- memory that a call takes only if it is not pool memory ---- */

/* Whether the stash answers for the tensor; what is out is surely its. */
static bool ours(const struct fz_tensor *t)
{
    CUipcMemHandle h;
    const CUresult r = CALL(cuIpcGetMemHandle, &h, t->at);

    fz_require(r == CUDA_ERROR_NOT_SUPPORTED ||
                   (r == CUDA_ERROR_INVALID_VALUE && t->kind == FZ_POOL && fz_stash),
               "cuIpcGetMemHandle gives %d", (int)r);
    fz_require(r == CUDA_ERROR_INVALID_VALUE || !fz_is_out(t), "a tensor that is out is whose?");
    return r == CUDA_ERROR_INVALID_VALUE;
}

static void as_pool_memory(bool our, CUresult r, const char *call)
{
    fz_require(r == (our ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED), "%s gives %d",
               call, (int)r);
}
#define POOL(_our, _symbol, ...) as_pool_memory(_our, CALL(_symbol, __VA_ARGS__), #_symbol)
#define POOL_LANE(_our, _symbol, _l, ...)                                                          \
    as_pool_memory(_our,                                                                           \
                   (_l)->ptds ? CALL(_symbol##_ptsz, __VA_ARGS__, (_l)->handle)                    \
                              : CALL(_symbol, __VA_ARGS__, (_l)->handle),                          \
                   #_symbol)

static void exports(const struct fz_tensor *t)
{
    CUmemPoolPtrExportData out;
    unsigned value = 0;
    void *values[1] = {&value};
    size_t sizes[1] = {sizeof(value)};
    CUmem_range_attribute names[1] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY};
    const bool our = ours(t);

    POOL(our, cuMemPoolExportPointer, &out, t->at);
    POOL(our, cuMemRangeGetAttribute, &value, sizeof(value), names[0], t->at, t->bytes);
    POOL(our, cuMemRangeGetAttributes, values, sizes, names, 1, t->at, t->bytes);
    POOL(our, cuMulticastBindAddr, 1, 0, t->at, t->bytes, 0);
}

/* Calls for managed memory, or for mappings of the job's own, that take no memory of ours. */
static void not_pool(const struct fz_use *u, const struct fz_tensor *t, unsigned pick)
{
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    const CUmemAccessDesc access = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    unsigned long long flags;

    if (pick % 2 == 0) {
        POOL(true, cuMemAdvise, t->at, t->bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, 0);
        POOL(true, cuMemAdvise_v2, t->at, t->bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, here);
        POOL_LANE(true, cuMemPrefetchAsync, u, t->at, t->bytes, 0);
        POOL_LANE(true, cuMemPrefetchAsync_v2, u, t->at, t->bytes, here, 0);
        as_pool_memory(true,
                       u->ptds ? CALL(cuStreamAttachMemAsync_ptsz, u->handle, t->at, 0, 1)
                               : CALL(cuStreamAttachMemAsync, u->handle, t->at, 0, 1),
                       "cuStreamAttachMemAsync");
        return;
    }
    POOL(true, cuMemMap, t->at, 4096, 0, 1, 0);
    POOL(true, cuMemGetAccess, &flags, &here, t->at);
    POOL(true, cuMemUnmap, t->at, 4096);
    POOL(true, cuMemSetAccess, t->at, 4096, &access, 1);
    POOL(true, cuMemAddressFree, t->at, 4096);
    POOL(true, cuMemRetainAllocationHandle, &h, (void *)(uintptr_t)t->at);
}

static void batches(const struct fz_use *u, const struct fz_tensor *t,
                    const struct fz_tensor *other)
{
    CUdeviceptr at[2] = {other->at, t->at + t->bytes / 2};
    size_t sizes[2] = {other->bytes, t->bytes / 2};
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    size_t first = 0;
    const bool one = ours(t);
    const bool our = ours(other) || one;

    POOL_LANE(our, cuMemDiscardBatchAsync, u, at, sizes, 2, 0);
    POOL_LANE(our, cuMemDiscardAndPrefetchBatchAsync, u, at, sizes, 2, &here, &first, 1, 0);
    POOL_LANE(our, cuMemPrefetchBatchAsync, u, at, sizes, 2, &here, &first, 1, 0);
}

/* ---- calls in a stream that read or write the tensor ---- */

static void decompress(const struct fz_use *u, const struct fz_tensor *to,
                       const struct fz_tensor *from)
{
    CUmemDecompressParams p[2];
    uint32_t *count = (uint32_t *)(uintptr_t)(to->at + to->bytes / 8 * 4);
    size_t failed = 0;

    memset(p, 0, sizeof(p));
    for (unsigned i = 0; i < 2; i++) {
        p[i].src = (const void *)(uintptr_t)(from->at + 16 * i);
        p[i].srcNumBytes = 16;
        p[i].dst = (void *)(uintptr_t)(to->at + 16 * i);
        p[i].dstNumBytes = 16;
        p[i].dstActBytes = count;
        p[i].algo = CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE;
    }
    NO_LANE(cuMemBatchDecompressAsync, u, p, 2, 0, &failed, u->handle);
}

static void array_copies(const struct fz_use *u, const struct fz_tensor *t, bool from)
{
    const size_t part = t->bytes / 2;

    if (from && u->ptds) {
        NO(cuMemcpyAtoD_v2_ptds, t->at, HANDLE(CUarray), 0, part);
    } else if (from) {
        NO(cuMemcpyAtoD_v2, t->at, HANDLE(CUarray), 0, part);
    } else if (u->ptds) {
        NO(cuMemcpyDtoA_v2_ptds, HANDLE(CUarray), 0, t->at + part, t->bytes - part);
    } else {
        NO(cuMemcpyDtoA_v2, HANDLE(CUarray), 0, t->at + part, t->bytes - part);
    }
}

static void memops(const struct fz_use *u, CUdeviceptr p)
{
    CUstreamBatchMemOpParams ops[3];

    memset(ops, 0, sizeof(ops));
    ops[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[0].writeValue.address = p;
    ops[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    ops[1].waitValue.address = p;
    ops[2].operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    NO_LANE(cuStreamBatchMemOp, u, u->handle, 3, ops, 0);
}

/* The first forms of the calls of fz_op_value. */
static void values(struct fz_world *w, const struct fz_use *u, const struct fz_tensor *t,
                   unsigned pick)
{
    const CUdeviceptr p = t->at + t->bytes / 16 * 8;

    switch (pick % 5) {
    case 0:
        NO_LANE(cuStreamWriteValue32, u, u->handle, p, pick, 0);
        break;
    case 1:
        NO_LANE(cuStreamWaitValue32, u, u->handle, p, pick, CU_STREAM_WAIT_VALUE_EQ);
        break;
    case 2:
        NO_LANE(cuStreamWriteValue64, u, u->handle, p, pick < 8 ? fz_stale(w) : pick, 0);
        break;
    case 3:
        NO_LANE(cuStreamWaitValue64, u, u->handle, p, pick, CU_STREAM_WAIT_VALUE_EQ);
        break;
    default:
        memops(u, p);
        break;
    }
}

static void in_order(struct fz_world *w, unsigned form, unsigned pick)
{
    const bool waits = form % 3 == 2;
    const struct fz_use u = waits ? fz_lane_default(w) : fz_lane_choose(w);
    struct fz_tensor *t = fz_tensor_choose(w, &u);
    struct fz_tensor *other = fz_tensor_choose(w, &u);
    uint32_t before[FZ_LANES];

    if (t == NULL) {
        return;
    }
    memcpy(before, w->lane[u.lane].clock, sizeof(before));
    fz_use(w, t, u.lane, true);
    if (t != other) {
        fz_use(w, other, u.lane, false);
    }
    switch (form % 3) {
    case 0:
        decompress(&u, t, other);
        break;
    case 1:
        values(w, &u, t, pick);
        break;
    default:
        array_copies(&u, t, pick % 2 == 0);
        break;
    }
    /* Nothing was queued, so nothing is ordered behind it. */
    w->n_pending = 0;
    fz_name(NULL);
    memcpy(w->lane[u.lane].clock, before, sizeof(before));
}

/* ---- what keeps the address for good ---- */

static CUDA_KERNEL_NODE_PARAMS_v1 first_form(CUfunction f, void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS_v1){.func = f,
                                        .gridDimX = 3,
                                        .gridDimY = 1,
                                        .gridDimZ = 1,
                                        .blockDimX = 32,
                                        .blockDimY = 1,
                                        .blockDimZ = 1,
                                        .kernelParams = params};
}

/* An empty graph's node, or a further one, is given parameters in vain. */
struct bare {
    CUgraph g;
    CUgraphNode node, more;
    CUgraphExec exec;
};

static void kernel_nodes(struct fz_world *w, struct bare *b, const struct fz_tensor *t,
                         unsigned pick)
{
    CUdeviceptr at = t->at;
    uint64_t n = t->bytes / 8;
    void *params[] = {&at, &n, &n, &n};
    CUfunction f;

    OK(cuModuleGetFunction, &f, w->module, "test_rows");
    const CUDA_KERNEL_NODE_PARAMS_v1 k = first_form(f, params);

    if (pick == 0) {
        NO(cuGraphAddKernelNode, &b->more, b->g, &b->node, 1, &k);
    } else if (pick == 1) {
        NO(cuGraphKernelNodeSetParams, b->node, &k);
    } else {
        NO(cuGraphExecKernelNodeSetParams, b->exec, b->node, &k);
    }
}

static void memop_nodes(const struct fz_world *w, struct bare *b, const struct fz_tensor *t,
                        const struct fz_tensor *other, unsigned pick)
{
    CUstreamBatchMemOpParams op;

    memset(&op, 0, sizeof(op));
    op.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    op.writeValue.address = other->at;
    op.writeValue.value64 = t->at;
    const CUDA_BATCH_MEM_OP_NODE_PARAMS m = {.ctx = w->ctx, .count = 1, .paramArray = &op};

    if (pick == 0) {
        NO(cuGraphAddBatchMemOpNode, &b->more, b->g, &b->node, 1, &m);
    } else if (pick == 1) {
        NO(cuGraphBatchMemOpNodeSetParams, b->node, &m);
    } else {
        NO(cuGraphExecBatchMemOpNodeSetParams, b->exec, b->node, &m);
    }
}

static void nodes(struct fz_world *w, const struct fz_tensor *t, const struct fz_tensor *other,
                  unsigned pick)
{
    struct bare b;

    PLAIN(cuGraphCreate(&b.g, 0));
    PLAIN(cuGraphAddEmptyNode(&b.node, b.g, NULL, 0));
    OK(cuGraphInstantiateWithFlags, &b.exec, b.g, 0);
    if (pick % 2 == 0) {
        kernel_nodes(w, &b, t, pick / 2 % 3);
    } else {
        memop_nodes(w, &b, t, other, pick / 2 % 3);
    }
    PLAIN(cuGraphExecDestroy(b.exec));
    PLAIN(cuGraphDestroy(b.g));
}

static void texture_object(const struct fz_tensor *t, bool linear)
{
    const CUDA_TEXTURE_DESC how = {.filterMode = CU_TR_FILTER_MODE_POINT};
    CUDA_RESOURCE_DESC r;
    CUtexObject object;

    memset(&r, 0, sizeof(r));
    if (linear) {
        r.resType = CU_RESOURCE_TYPE_LINEAR;
        r.res.linear.devPtr = t->at;
        r.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8;
        r.res.linear.numChannels = 4;
        r.res.linear.sizeInBytes = t->bytes;
    } else {
        r.resType = CU_RESOURCE_TYPE_PITCH2D;
        r.res.pitch2D.devPtr = t->at;
        r.res.pitch2D.format = CU_AD_FORMAT_UNSIGNED_INT8;
        r.res.pitch2D.numChannels = 4;
        r.res.pitch2D.width = 16;
        r.res.pitch2D.height = 8;
        r.res.pitch2D.pitchInBytes = 64;
    }
    NO(cuTexObjectCreate, &object, &r, &how, NULL);
}

static void textures(const struct fz_tensor *t, unsigned pick)
{
    const CUDA_ARRAY_DESCRIPTOR d = {16, 8, CU_AD_FORMAT_UNSIGNED_INT8, 4};
    size_t offset;

    switch (pick % 5) {
    case 0:
    case 1:
        texture_object(t, pick % 5 == 0);
        break;
    case 2:
        NO(cuTexRefSetAddress_v2, &offset, HANDLE(CUtexref), t->at, t->bytes);
        break;
    case 3:
        NO(cuTexRefSetAddress2D_v2, HANDLE(CUtexref), &d, t->at, 64);
        break;
    default:
        NO(cuTexRefSetAddress2D_v3, HANDLE(CUtexref), &d, t->at, 64);
        break;
    }
}

static void handed_out(const struct fz_tensor *t, bool map)
{
    CUtensorMap tensor;
    const cuuint64_t dim[1] = {16};
    const cuuint64_t stride[1] = {16};
    const cuuint32_t step[1] = {1};
    void *at = (void *)(uintptr_t)t->at;
    int fd = -1;

    if (!map) {
        NO(cuMemGetHandleForAddressRange, &fd, t->at, t->bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
           0);
        return;
    }
    NO(cuTensorMapEncodeIm2colWide, &tensor, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, at, dim, stride, 0,
       0, 1, 1, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W,
       CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void launch_list(struct fz_world *w, const struct fz_use *u, const struct fz_tensor *t)
{
    CUdeviceptr at = t->at;
    uint64_t n = t->bytes / 8;
    void *params[] = {&at, &n, &n, &n};
    CUDA_LAUNCH_PARAMS_v1 list = {.gridDimX = 1,
                                  .gridDimY = 1,
                                  .gridDimZ = 1,
                                  .blockDimX = 32,
                                  .blockDimY = 1,
                                  .blockDimZ = 1,
                                  .hStream = u->handle,
                                  .kernelParams = params};

    OK(cuModuleGetFunction, &list.function, w->module, "test_rows");
    NO(cuLaunchCooperativeKernelMultiDevice, &list, 1, 0);
}

/* ---- what names no memory of the job's ---- */

static void arrays(void)
{
    const CUDA_ARRAY_DESCRIPTOR d = {16, 8, CU_AD_FORMAT_UNSIGNED_INT8, 4};
    const CUDA_ARRAY3D_DESCRIPTOR d3 = {16, 8, 2, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
    CUipcMemHandle h = {{0}};
    CUdeviceptr at;
    CUarray array;
    CUmipmappedArray levels;

    NO(cuArrayCreate_v2, &array, &d);
    NO(cuArray3DCreate_v2, &array, &d3);
    NO(cuMipmappedArrayCreate, &levels, &d3, 2);
    NO(cuIpcOpenMemHandle_v2, &at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static void handles(struct fz_world *w)
{
    CUlibrary library;
    CUdeviceptr at;
    size_t size;
    CUstream s;

    NO(cuLibraryGetGlobal, &at, &size, w->library, "none");
    NO(cuLibraryLoadFromFile, &library, "any", NULL, NULL, 0, NULL, NULL, 0);
    NO(cuGreenCtxStreamCreate, &s, HANDLE(CUgreenCtx), CU_STREAM_NON_BLOCKING, 0);
    NO(cuGreenCtxDestroy, HANDLE(CUgreenCtx));
}

/* What was not destroyed lives on. */
static void first_destroys(struct fz_world *w)
{
    struct fz_use u;
    CUevent e;

    OK(cuEventCreate, &e, CU_EVENT_DISABLE_TIMING);
    if (fz_lane_created(w, &u)) {
        ON_LANE(cuEventRecord, u, e);
        NO(cuStreamDestroy, u.handle);
    }
    NO(cuEventDestroy, e);
    OK(cuEventDestroy_v2, e);
}

void fz_op_refused(struct fz_world *w)
{
    const unsigned form = fz_u8(&w->in);

    if (form % 16 < 6) {
        in_order(w, form % 16, form / 16);
        return;
    }
    const struct fz_use u = fz_lane_choose(w);
    const struct fz_tensor *t = fz_tensor_choose(w, &u);
    const struct fz_tensor *other = fz_tensor_choose(w, &u);

    if (t == NULL) {
        return;
    }
    FZ_SAY("refused: %u, tensors %d and %d\n", form % 16, (int)(t - w->tensor),
           (int)(other - w->tensor));
    const unsigned pick = form / 16;

    fz_name(t);
    fz_name(other);
    switch (form % 16) {
    case 6:
        exports(t);
        break;
    case 7:
        if (ours(t)) {
            not_pool(&u, t, pick);
        }
        break;
    case 8:
    case 9:
        batches(&u, t, other);
        break;
    case 10:
        nodes(w, t, other, pick);
        break;
    case 11:
        textures(t, pick);
        break;
    case 12:
        handed_out(t, pick % 2 == 0);
        break;
    case 13:
        launch_list(w, &u, t);
        break;
    case 14:
        first_destroys(w);
        break;
    default:
        arrays();
        handles(w);
        break;
    }
    fz_name(NULL);
}
