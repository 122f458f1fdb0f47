/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: copies in all forms, as boxes of rows and slices. Addresses tell host from device. Host memory that is not
 * pinned is read at the call (staged), and a copy into it returns when it is done, as the driver's do; a
 * synchronous copy between device addresses returns at once. Under the big lock.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"

struct sim_place sim_place_linear(CUdeviceptr address)
{
    const bool device = sim_va_is_device(address);
    return (struct sim_place){.is_host = !device,
                              .host = device ? NULL : (uint8_t *)(uintptr_t)address,
                              .device = device ? address : 0};
}

static bool is_pageable(const struct sim_place *p)
{
    return p->is_host && !sim_hostmem_pinned(p->host, 1);
}

/* Copies the pageable source into memory of the operation's own, packed. */
static void stage(struct sim_copy *c)
{
    uint8_t *packed = sim_calloc(c->depth * c->height, c->width);
    uint8_t *to = packed;
    for (size_t z = 0; z < c->depth; z++) {
        for (size_t y = 0; y < c->height; y++) {
            memcpy(to, c->src.host + (z * c->src.height + y) * c->src.pitch, c->width);
            to += c->width;
        }
    }
    c->staging = packed;
    c->src.host = packed;
    c->src.pitch = c->width;
    c->src.height = c->height;
}

struct sim_op *sim_copy_make(struct sim_stream *s, const struct sim_copy *c, const char *name,
                             bool may_stage)
{
    struct sim_op *op = sim_op_new(SIM_OP_COPY, s, name);
    op->copy = *c;
    if (may_stage && is_pageable(&c->src)) {
        stage(&op->copy);
    }
    return op;
}

static bool box_is_there(const struct sim_copy *c, const struct sim_place *p)
{
    if (p->is_host) {
        return p->host != NULL;
    }
    for (size_t z = 0; z < c->depth; z++) {
        for (size_t y = 0; y < c->height; y++) {
            if (!sim_va_mapped(p->device + (z * p->height + y) * p->pitch, c->width)) {
                return false;
            }
        }
    }
    return true;
}

enum wait { WAIT_NEVER, WAIT_SYNC };

static CUresult submit(struct sim_thread *t, CUstream hStream, const struct sim_copy *c,
                       const char *name, enum wait wait)
{
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS || c->width == 0 || c->height == 0 || c->depth == 0) {
        return result;
    }
    if (!box_is_there(c, &c->src) || !box_is_there(c, &c->dst)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool captured = s->capture != NULL;
    struct sim_op *op = sim_copy_make(s, c, name, !captured);
    (void)sim_op_ref(op);
    result = sim_submit(t, op);
    const bool between_devices = !c->src.is_host && !c->dst.is_host;
    if (result == CUDA_SUCCESS && !captured &&
        ((wait == WAIT_SYNC && !between_devices) || is_pageable(&c->dst))) {
        result = sim_wait_op(t, op, name);
    }
    sim_op_unref(op);
    return result;
}

static struct sim_copy linear(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return (struct sim_copy){.dst = sim_place_linear(dst),
                             .src = sim_place_linear(src),
                             .width = bytes,
                             .height = 1,
                             .depth = 1};
}

#define LINEAR(_dst, _src, _bytes, _stream, _wait)                                                 \
    SIM_ENTER(0, t);                                                                               \
    const struct sim_copy c =                                                                      \
        linear((CUdeviceptr)(uintptr_t)(_dst), (CUdeviceptr)(uintptr_t)(_src), _bytes);            \
    return sim_leave(submit(t, _stream, &c, __func__, _wait))

CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    LINEAR(dst, src, ByteCount, NULL, WAIT_SYNC);
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    LINEAR(dst, src, ByteCount, hStream, WAIT_NEVER);
}

CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    LINEAR(dstDevice, srcHost, ByteCount, NULL, WAIT_SYNC);
}

CUresult CUDAAPI cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    LINEAR(dstHost, srcDevice, ByteCount, NULL, WAIT_SYNC);
}

CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    LINEAR(dstDevice, srcDevice, ByteCount, NULL, WAIT_SYNC);
}

CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                      CUstream hStream)
{
    LINEAR(dstDevice, srcHost, ByteCount, hStream, WAIT_NEVER);
}

CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                      CUstream hStream)
{
    LINEAR(dstHost, srcDevice, ByteCount, hStream, WAIT_NEVER);
}

CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                      size_t ByteCount, CUstream hStream)
{
    LINEAR(dstDevice, srcDevice, ByteCount, hStream, WAIT_NEVER);
}

/* ---- between contexts ---- */

/* Ordered after all that both contexts have queued, and before what comes later in either. */
static CUresult peer(struct sim_thread *t, CUcontext dst, CUcontext src, const struct sim_copy *c,
                     CUstream *hStream)
{
    struct sim_ctx *a, *b;
    CUresult result = sim_ctx_check(dst, &a);
    if (result == CUDA_SUCCESS) {
        result = sim_ctx_check(src, &b);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (hStream != NULL) {
        return submit(t, *hStream, c, "cuMemcpyPeerAsync", WAIT_NEVER);
    }
    const bool own = t->ptds;
    struct sim_stream *in_a = own ? sim_stream_of_thread(t, a) : a->legacy;
    struct sim_stream *in_b = own ? sim_stream_of_thread(t, b) : b->legacy;
    if (c->width == 0 || c->height == 0 || c->depth == 0) {
        return CUDA_SUCCESS;
    }
    if (!box_is_there(c, &c->src) || !box_is_there(c, &c->dst)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_op *before = sim_op_new(SIM_OP_NOP, in_b, "cuMemcpyPeer");
    (void)sim_op_ref(before);
    sim_op_queue(t, before);
    struct sim_op *op = sim_copy_make(in_a, c, "cuMemcpyPeer", true);
    sim_op_dep(op, before);
    (void)sim_op_ref(op);
    sim_op_queue(t, op);
    struct sim_op *after = sim_op_new(SIM_OP_NOP, in_b, "cuMemcpyPeer");
    sim_op_dep(after, op);
    sim_op_queue(t, after);
    sim_op_unref(before);
    sim_op_unref(op);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                              CUcontext srcContext, size_t ByteCount)
{
    SIM_ENTER(0, t);
    const struct sim_copy c = linear(dstDevice, srcDevice, ByteCount);
    return sim_leave(peer(t, dstContext, srcContext, &c, NULL));
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
                                   CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
                                   CUstream hStream)
{
    SIM_ENTER(0, t);
    const struct sim_copy c = linear(dstDevice, srcDevice, ByteCount);
    return sim_leave(peer(t, dstContext, srcContext, &c, &hStream));
}

/* ---- boxes ---- */

struct side {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    size_t pitch, height, x, y, z;
};

static CUresult place_of(const struct side *side, struct sim_place *p)
{
    CUdeviceptr base;
    if (side->type == CU_MEMORYTYPE_HOST) {
        base = (CUdeviceptr)(uintptr_t)side->host;
    } else if (side->type == CU_MEMORYTYPE_DEVICE || side->type == CU_MEMORYTYPE_UNIFIED) {
        base = side->device;
    } else {
        return CUDA_ERROR_NOT_SUPPORTED; /* arrays */
    }
    *p = sim_place_linear(base + (side->z * side->height + side->y) * side->pitch + side->x);
    p->pitch = side->pitch;
    p->height = side->height;
    return CUDA_SUCCESS;
}

static CUresult box(const struct side *dst, const struct side *src, size_t width, size_t height,
                    size_t depth, struct sim_copy *c)
{
    *c = (struct sim_copy){.width = width, .height = height, .depth = depth};
    const size_t widest = height > 1 || depth > 1 ? width : 0;
    if ((dst->pitch != 0 && dst->pitch < widest + dst->x) ||
        (src->pitch != 0 && src->pitch < widest + src->x) ||
        (height > 1 && (dst->pitch == 0 || src->pitch == 0))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = place_of(dst, &c->dst);
    return result == CUDA_SUCCESS ? place_of(src, &c->src) : result;
}

static CUresult from_2d(const CUDA_MEMCPY2D *d, struct sim_copy *c)
{
    const size_t rows = d->Height;
    const struct side dst = {d->dstMemoryType,
                             d->dstHost,
                             d->dstDevice,
                             d->dstPitch == 0 ? d->WidthInBytes : d->dstPitch,
                             rows,
                             d->dstXInBytes,
                             d->dstY,
                             0};
    const struct side src = {d->srcMemoryType,
                             d->srcHost,
                             d->srcDevice,
                             d->srcPitch == 0 ? d->WidthInBytes : d->srcPitch,
                             rows,
                             d->srcXInBytes,
                             d->srcY,
                             0};
    return box(&dst, &src, d->WidthInBytes, rows, 1, c);
}

CUresult sim_copy_from_3d(const CUDA_MEMCPY3D *d, struct sim_copy *c)
{
    if (d->srcLOD != 0 || d->dstLOD != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct side dst = {d->dstMemoryType,
                             d->dstHost,
                             d->dstDevice,
                             d->dstPitch == 0 ? d->WidthInBytes : d->dstPitch,
                             d->dstHeight == 0 ? d->Height : d->dstHeight,
                             d->dstXInBytes,
                             d->dstY,
                             d->dstZ};
    const struct side src = {d->srcMemoryType,
                             d->srcHost,
                             d->srcDevice,
                             d->srcPitch == 0 ? d->WidthInBytes : d->srcPitch,
                             d->srcHeight == 0 ? d->Height : d->srcHeight,
                             d->srcXInBytes,
                             d->srcY,
                             d->srcZ};
    return box(&dst, &src, d->WidthInBytes, d->Height, d->Depth, c);
}

static CUresult run_2d(struct sim_thread *t, const CUDA_MEMCPY2D *d, CUstream hStream,
                       const char *name, enum wait wait)
{
    struct sim_copy c;
    if (d == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = from_2d(d, &c);
    return result == CUDA_SUCCESS ? submit(t, hStream, &c, name, wait) : result;
}

static CUresult run_3d(struct sim_thread *t, const CUDA_MEMCPY3D *d, CUstream hStream,
                       const char *name, enum wait wait)
{
    struct sim_copy c;
    if (d == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = sim_copy_from_3d(d, &c);
    return result == CUDA_SUCCESS ? submit(t, hStream, &c, name, wait) : result;
}

CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    SIM_ENTER(0, t);
    return sim_leave(run_2d(t, pCopy, NULL, "cuMemcpy2D", WAIT_SYNC));
}

CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    SIM_ENTER(0, t);
    return sim_leave(run_2d(t, pCopy, NULL, "cuMemcpy2DUnaligned", WAIT_SYNC));
}

CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    SIM_ENTER(0, t);
    return sim_leave(run_2d(t, pCopy, hStream, "cuMemcpy2DAsync", WAIT_NEVER));
}

CUresult CUDAAPI cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    SIM_ENTER(0, t);
    return sim_leave(run_3d(t, pCopy, NULL, "cuMemcpy3D", WAIT_SYNC));
}

CUresult CUDAAPI cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    SIM_ENTER(0, t);
    return sim_leave(run_3d(t, pCopy, hStream, "cuMemcpy3DAsync", WAIT_NEVER));
}

static CUresult run_3d_peer(struct sim_thread *t, const CUDA_MEMCPY3D_PEER *d, CUstream *hStream)
{
    if (d == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUDA_MEMCPY3D plain = {.srcXInBytes = d->srcXInBytes,
                                 .srcY = d->srcY,
                                 .srcZ = d->srcZ,
                                 .srcMemoryType = d->srcMemoryType,
                                 .srcHost = d->srcHost,
                                 .srcDevice = d->srcDevice,
                                 .srcPitch = d->srcPitch,
                                 .srcHeight = d->srcHeight,
                                 .dstXInBytes = d->dstXInBytes,
                                 .dstY = d->dstY,
                                 .dstZ = d->dstZ,
                                 .dstMemoryType = d->dstMemoryType,
                                 .dstHost = d->dstHost,
                                 .dstDevice = d->dstDevice,
                                 .dstPitch = d->dstPitch,
                                 .dstHeight = d->dstHeight,
                                 .WidthInBytes = d->WidthInBytes,
                                 .Height = d->Height,
                                 .Depth = d->Depth};
    struct sim_copy c;
    const CUresult result = sim_copy_from_3d(&plain, &c);
    return result == CUDA_SUCCESS ? peer(t, d->dstContext, d->srcContext, &c, hStream) : result;
}

CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
    SIM_ENTER(0, t);
    return sim_leave(run_3d_peer(t, pCopy, NULL));
}

CUresult CUDAAPI cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
    SIM_ENTER(0, t);
    return sim_leave(run_3d_peer(t, pCopy, &hStream));
}

/* ---- batches ---- */

static CUresult batch(struct sim_thread *t, const CUdeviceptr *dsts, const CUdeviceptr *srcs,
                      const size_t *sizes, size_t count, CUstream hStream)
{
    if (count == 0 || dsts == NULL || srcs == NULL || sizes == NULL || hStream == NULL) {
        return CUDA_ERROR_INVALID_VALUE; /* the default stream is refused, as by the driver */
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const struct sim_copy c = linear(dsts[i], srcs[i], sizes[i]);
        result = submit(t, hStream, &c, "cuMemcpyBatchAsync", WAIT_NEVER);
    }
    return result;
}

/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                    size_t count, CUmemcpyAttributes *attrs, size_t *attrsIdxs,
                                    size_t numAttrs, size_t *failIdx, CUstream hStream)
{
    SIM_ENTER(0, t);
    (void)attrs;
    (void)attrsIdxs;
    (void)numAttrs;
    (void)failIdx;
    return sim_leave(batch(t, dsts, srcs, sizes, count, hStream));
}

/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
CUresult CUDAAPI cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                       size_t count, CUmemcpyAttributes *attrs, size_t *attrsIdxs,
                                       size_t numAttrs, CUstream hStream)
{
    SIM_ENTER(0, t);
    (void)attrs;
    (void)attrsIdxs;
    (void)numAttrs;
    return sim_leave(batch(t, dsts, srcs, sizes, count, hStream));
}

static CUresult operand(const CUmemcpy3DOperand *o, struct side *side)
{
    if (o->type != CU_MEMCPY_OPERAND_TYPE_POINTER) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *side = (struct side){.type = CU_MEMORYTYPE_UNIFIED,
                          .device = o->op.ptr.ptr,
                          .pitch = o->op.ptr.rowLength,
                          .height = o->op.ptr.layerHeight};
    return CUDA_SUCCESS;
}

static CUresult batch_3d(struct sim_thread *t, size_t n, const CUDA_MEMCPY3D_BATCH_OP *ops,
                         CUstream hStream)
{
    if (n == 0 || ops == NULL || hStream == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < n && result == CUDA_SUCCESS; i++) {
        const CUextent3D e = ops[i].extent;
        struct side dst, src;
        struct sim_copy c;
        result = operand(&ops[i].dst, &dst);
        if (result == CUDA_SUCCESS) {
            result = operand(&ops[i].src, &src);
        }
        if (result == CUDA_SUCCESS) {
            dst.pitch = dst.pitch == 0 ? e.width : dst.pitch;
            src.pitch = src.pitch == 0 ? e.width : src.pitch;
            dst.height = dst.height == 0 ? e.height : dst.height;
            src.height = src.height == 0 ? e.height : src.height;
            result = box(&dst, &src, e.width, e.height, e.depth, &c);
        }
        if (result == CUDA_SUCCESS) {
            result = submit(t, hStream, &c, "cuMemcpy3DBatchAsync", WAIT_NEVER);
        }
    }
    return result;
}

CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
                                      size_t *failIdx, unsigned long long flags, CUstream hStream)
{
    SIM_ENTER(0, t);
    (void)failIdx;
    return sim_leave(flags != 0 ? CUDA_ERROR_INVALID_VALUE : batch_3d(t, numOps, opList, hStream));
}

CUresult CUDAAPI cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
                                         unsigned long long flags, CUstream hStream)
{
    SIM_ENTER(0, t);
    return sim_leave(flags != 0 ? CUDA_ERROR_INVALID_VALUE : batch_3d(t, numOps, opList, hStream));
}
