/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses that copies, fills and stream memory operations name. Any thread; no state but one
 * pointer found once. An address before or after a tensor is settled by the engine; here only the
 * effective first and last byte are worked out. Host pointers are looked at too: with unified
 * addressing they may be device memory.
 */
#include "shim/hooks.h"
#include "shim/params.h"

void ps_scan_range(struct ps_touches *t, CUdeviceptr address, size_t bytes)
{
    if (bytes != 0 && ps_window_live()) {
        ps_touches_add_range(t, address, bytes);
    }
}

/* The bytes from the first to the last of `height` rows. */
static size_t rect_bytes(size_t pitch, size_t width, size_t height)
{
    return width == 0 || height == 0 ? 0 : pitch * (height - 1) + width;
}

void ps_scan_rect(struct ps_touches *t, CUdeviceptr address, size_t pitch, size_t width,
                  size_t height)
{
    ps_scan_range(t, address, rect_bytes(pitch, width, height));
}

/* ---- payloads ---- */

static _Atomic(void *) pointer_attribute; /* libcuda's cuPointerGetAttribute */

bool ps_host_readable(CUdeviceptr address)
{
    void *p = atomic_load_explicit(&pointer_attribute, memory_order_relaxed);
    CUmemorytype type = CU_MEMORYTYPE_HOST;

    if (p == NULL) {
        p = ps_driver_symbol("cuPointerGetAttribute");
        if (p == NULL) {
            return true;
        }
        atomic_store_explicit(&pointer_attribute, p, memory_order_relaxed);
    }
    /*
     * Memory that the driver does not know is ordinary host memory; it then answers
     * CUDA_ERROR_INVALID_VALUE.
     */
    return ((PFN_cuPointerGetAttribute_v4000)p)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
               CUDA_SUCCESS ||
           type == CU_MEMORYTYPE_HOST;
}

static bool payload_wanted(CUdeviceptr source, size_t bytes)
{
    return bytes >= sizeof(uint64_t) && bytes <= PS_PAYLOAD_MAX && source != 0 &&
           ps_window_live() && !ps_in_window(source) && ps_host_readable(source);
}

void ps_scan_payload(struct ps_touches *pin, CUdeviceptr source, size_t bytes)
{
    if (payload_wanted(source, bytes)) {
        ps_params_scan(pin, (const void *)(uintptr_t)source, bytes);
    }
}

/* ---- boxes: one side of a copy in up to three dimensions ---- */

struct side {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    size_t x, y, z, pitch, rows;
};

struct box {
    size_t width, height, depth;
};

static CUdeviceptr side_start(const struct side *s)
{
    CUdeviceptr base = 0;

    if (s->type == CU_MEMORYTYPE_HOST) {
        base = PS_ADDRESS(s->host);
    } else if (s->type != CU_MEMORYTYPE_ARRAY) {
        base = s->device;
    }
    return base == 0 ? 0 : base + (s->z * s->rows + s->y) * s->pitch + s->x;
}

static void scan_side(struct ps_touches *t, const struct side *s, const struct box *b)
{
    const CUdeviceptr start = side_start(s);

    if (start != 0 && b->width != 0 && b->height != 0 && b->depth != 0) {
        ps_scan_range(t, start, ((b->depth - 1) * s->rows + b->height - 1) * s->pitch + b->width);
    }
}

static void scan_payload_box(struct ps_touches *pin, const struct side *s, const struct box *b)
{
    const CUdeviceptr start = side_start(s);

    if (b->width > PS_PAYLOAD_MAX || b->height > PS_PAYLOAD_MAX || b->depth > PS_PAYLOAD_MAX ||
        !payload_wanted(start, b->width * b->height * b->depth)) {
        return;
    }
    for (size_t z = 0; z < b->depth; z++) {
        for (size_t y = 0; y < b->height; y++) {
            const CUdeviceptr row = start + (z * s->rows + y) * s->pitch;

            ps_params_scan(pin, (const void *)(uintptr_t)row, b->width);
        }
    }
}

static void scan_sides(struct ps_touches *t, struct ps_touches *pin, struct side *dst,
                       struct side *src, const struct box *b)
{
    struct side *const sides[2] = {dst, src};

    for (unsigned i = 0; i < 2; i++) {
        /* 0 stands for "no gaps". */
        sides[i]->pitch = sides[i]->pitch == 0 ? b->width : sides[i]->pitch;
        sides[i]->rows = sides[i]->rows == 0 ? b->height : sides[i]->rows;
        scan_side(t, sides[i], b);
    }
    if (src->type != CU_MEMORYTYPE_ARRAY && src->type != CU_MEMORYTYPE_DEVICE) {
        scan_payload_box(pin, src, b);
    }
}

void ps_scan_copy2d(struct ps_touches *t, struct ps_touches *pin, const CUDA_MEMCPY2D_v2 *copy)
{
    if (copy == NULL || !ps_window_live()) {
        return;
    }
    const struct box b = {copy->WidthInBytes, copy->Height, 1};
    struct side dst = {copy->dstMemoryType, copy->dstHost,
                       copy->dstDevice,     copy->dstXInBytes,
                       copy->dstY,          0,
                       copy->dstPitch,      0};
    struct side src = {copy->srcMemoryType, copy->srcHost,
                       copy->srcDevice,     copy->srcXInBytes,
                       copy->srcY,          0,
                       copy->srcPitch,      0};

    scan_sides(t, pin, &dst, &src, &b);
}

/* The two structures share their members' names. */
#define SCAN_COPY3D(_t, _pin, _copy)                                                               \
    do {                                                                                           \
        if ((_copy) != NULL && ps_window_live()) {                                                 \
            const struct box b = {(_copy)->WidthInBytes, (_copy)->Height, (_copy)->Depth};         \
            struct side dst = {(_copy)->dstMemoryType, (_copy)->dstHost,  (_copy)->dstDevice,      \
                               (_copy)->dstXInBytes,   (_copy)->dstY,     (_copy)->dstZ,           \
                               (_copy)->dstPitch,      (_copy)->dstHeight};                        \
            struct side src = {(_copy)->srcMemoryType, (_copy)->srcHost,  (_copy)->srcDevice,      \
                               (_copy)->srcXInBytes,   (_copy)->srcY,     (_copy)->srcZ,           \
                               (_copy)->srcPitch,      (_copy)->srcHeight};                        \
                                                                                                   \
            scan_sides(_t, _pin, &dst, &src, &b);                                                  \
        }                                                                                          \
    } while (0)

void ps_scan_copy3d(struct ps_touches *t, struct ps_touches *pin, const CUDA_MEMCPY3D_v2 *copy)
{
    SCAN_COPY3D(t, pin, copy);
}

void ps_scan_copy3d_peer(struct ps_touches *t, struct ps_touches *pin,
                         const CUDA_MEMCPY3D_PEER_v1 *copy)
{
    SCAN_COPY3D(t, pin, copy);
}

/* ---- batches ---- */

void ps_scan_batch(struct ps_touches *t, struct ps_touches *pin, const CUdeviceptr *dsts,
                   const CUdeviceptr *srcs, const size_t *sizes, size_t count)
{
    if (dsts == NULL || srcs == NULL || sizes == NULL || !ps_window_live()) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        ps_scan_range(t, dsts[i], sizes[i]);
        ps_scan_range(t, srcs[i], sizes[i]);
        ps_scan_payload(pin, srcs[i], sizes[i]);
    }
}

#if CUDA_VERSION >= 12080
/* A pointer operand's first byte names its tensor: a copy cannot reach over into another one. */
static void scan_operand(struct ps_touches *t, const CUmemcpy3DOperand_v1 *operand)
{
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER) {
        ps_scan_range(t, operand->op.ptr.ptr, 1);
    }
}

static void scan_operand_payload(struct ps_touches *pin, const CUDA_MEMCPY3D_BATCH_OP_v1 *op)
{
    /*
     * With two pointers an element is one byte; an array's is larger, and no kernel reads addresses
     * there.
     */
    if (op->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
        op->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER) {
        return;
    }
    const size_t pitch = op->src.op.ptr.rowLength;
    const size_t rows = op->src.op.ptr.layerHeight;
    const struct box b = {op->extent.width, op->extent.height, op->extent.depth};
    const struct side src = {.type = CU_MEMORYTYPE_UNIFIED,
                             .device = op->src.op.ptr.ptr,
                             .pitch = pitch == 0 ? b.width : pitch,
                             .rows = rows == 0 ? b.height : rows};

    scan_payload_box(pin, &src, &b);
}

void ps_scan_batch3d(struct ps_touches *t, struct ps_touches *pin,
                     const CUDA_MEMCPY3D_BATCH_OP_v1 *ops, size_t count)
{
    if (ops == NULL || !ps_window_live()) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        scan_operand(t, &ops[i].dst);
        scan_operand(t, &ops[i].src);
        scan_operand_payload(pin, &ops[i]);
    }
}
#endif

#if CUDA_VERSION >= 12060
void ps_scan_decompress(struct ps_touches *t, const CUmemDecompressParams *params, size_t count)
{
    if (params == NULL || !ps_window_live()) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        ps_scan_range(t, PS_ADDRESS(params[i].src), params[i].srcNumBytes);
        ps_scan_range(t, PS_ADDRESS(params[i].dst), params[i].dstNumBytes);
        ps_scan_range(t, PS_ADDRESS(params[i].dstActBytes), sizeof(*params[i].dstActBytes));
    }
}
#endif

/* ---- stream memory operations ---- */

void ps_scan_memops(struct ps_touches *t, struct ps_touches *pin,
                    const CUstreamBatchMemOpParams_v1 *ops, unsigned count)
{
    if (ops == NULL || !ps_window_live()) {
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        switch ((int)ops[i].operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            ps_scan_range(t, ops[i].waitValue.address, 4);
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            ps_scan_range(t, ops[i].waitValue.address, 8);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            ps_scan_range(t, ops[i].writeValue.address, 4);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            ps_scan_range(t, ops[i].writeValue.address, 8);
            ps_touches_add(pin, ops[i].writeValue.value64);
            break;
        case CU_STREAM_MEM_OP_BARRIER:
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
            break;
        default: /* newer than we know: whatever of it looks like an address */
            ps_params_scan(pin, &ops[i], sizeof(ops[i]));
            break;
        }
    }
}
