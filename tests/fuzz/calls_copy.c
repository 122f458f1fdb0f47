/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of every form, fills, and words written in stream order; each done on the model at the same time. */
#include "tests/fuzz/calls.h"

/* A part of a tensor. */
struct part {
    struct fz_tensor *t;
    size_t at, bytes;
};

static struct part part_of(struct fz_world *w, struct fz_tensor *t)
{
    const unsigned b = fz_u8(&w->in);
    struct part p = {t, 0, t->bytes};

    if (b % 4 != 0) {
        p.at = (size_t)(b / 4) * 61 % t->bytes;
        p.bytes = b % 4 == 1 ? t->bytes - p.at : 1 + (t->bytes - p.at - 1) / b;
    }
    return p;
}

static uint8_t *host_data(struct fz_world *w, size_t bytes)
{
    uint8_t *host = fz_host(w, bytes);
    const unsigned seed = fz_u8(&w->in);

    for (size_t i = 0; i < bytes; i++) {
        host[i] = i < bytes / 3 ? (uint8_t)(seed + i * 7) : 0;
    }
    return host;
}

static void to_device(struct fz_world *w, const struct part *p, unsigned form)
{
    uint8_t *host = host_data(w, p->bytes);
    const bool waits = form % 2 != 0;
    const struct fz_use u = waits ? fz_lane_default(w) : fz_lane_choose(w);
    const CUdeviceptr to = p->t->at + p->at;
    const CUdeviceptr from = (CUdeviceptr)(uintptr_t)host;

    fz_use(w, p->t, u.lane, true);
    fz_issue(w, u.lane);
    switch (form % 4) {
    case 0:
        ON_LANE(cuMemcpyHtoDAsync_v2, u, to, host, p->bytes);
        break;
    case 1:
        DEFAULT_LANE(cuMemcpyHtoD_v2, u, to, host, p->bytes);
        break;
    case 2:
        ON_LANE(cuMemcpyAsync, u, to, from, p->bytes);
        break;
    default:
        DEFAULT_LANE(cuMemcpy, u, to, from, p->bytes);
        break;
    }
    fz_issued(w, u.lane);
    memcpy(p->t->model + p->at, host, p->bytes);
}

static void to_host(struct fz_world *w, const struct part *p, unsigned form)
{
    uint8_t *host = fz_host(w, p->bytes);
    const bool waits = form % 2 != 0;
    const struct fz_use u = waits ? fz_lane_default(w) : fz_lane_choose(w);
    const CUdeviceptr from = p->t->at + p->at;
    const CUdeviceptr to = (CUdeviceptr)(uintptr_t)host;
    const uint8_t *want = p->t->model + p->at;

    fz_use(w, p->t, u.lane, false);
    fz_issue(w, u.lane);
    switch (form % 4) {
    case 0:
        ON_LANE(cuMemcpyDtoHAsync_v2, u, host, from, p->bytes);
        break;
    case 1:
        DEFAULT_LANE(cuMemcpyDtoH_v2, u, host, from, p->bytes);
        fz_compare(host, want, p->bytes, "a copy to the host");
        break;
    case 2:
        ON_LANE(cuMemcpyAsync, u, to, from, p->bytes);
        break;
    default:
        DEFAULT_LANE(cuMemcpy, u, to, from, p->bytes);
        break;
    }
    fz_issued(w, u.lane);
    fz_expect(w, host, want, p->bytes);
}

static void on_device(struct fz_world *w, const struct part *p, const struct part *q, unsigned form)
{
    const size_t bytes = p->bytes < q->bytes ? p->bytes : q->bytes;
    const bool waits = form % 2 != 0;
    const struct fz_use u = waits ? fz_lane_default(w) : fz_lane_choose(w);
    const CUdeviceptr to = p->t->at + p->at;
    const CUdeviceptr from = q->t->at + q->at;

    if (p->t == q->t) {
        return;
    }
    fz_use(w, q->t, u.lane, false);
    fz_use(w, p->t, u.lane, true);
    fz_issue(w, u.lane);
    switch (form % 6) {
    case 0:
        ON_LANE(cuMemcpyDtoDAsync_v2, u, to, from, bytes);
        break;
    case 1:
        DEFAULT_LANE(cuMemcpyDtoD_v2, u, to, from, bytes);
        break;
    case 2:
        ON_LANE(cuMemcpyAsync, u, to, from, bytes);
        break;
    case 3:
        DEFAULT_LANE(cuMemcpy, u, to, from, bytes);
        break;
    case 4:
        ON_LANE(cuMemcpyPeerAsync, u, to, w->ctx, from, w->ctx, bytes);
        break;
    default:
        DEFAULT_LANE(cuMemcpyPeer, u, to, w->ctx, from, w->ctx, bytes);
        break;
    }
    fz_issued(w, u.lane);
    memcpy(p->t->model + p->at, q->t->model + q->at, bytes);
}

void fz_op_copy(struct fz_world *w)
{
    const unsigned form = fz_u8(&w->in);
    const struct fz_use u = fz_lane_choose(w); /* defines what it chooses */
    struct fz_tensor *a = fz_tensor_choose(w, &u);
    struct fz_tensor *b = fz_tensor_choose(w, &u);

    if (a == NULL) {
        return;
    }
    const struct part p = part_of(w, a);
    const struct part q = part_of(w, b);

    switch (form % 3) {
    case 0:
        to_device(w, &p, form / 3);
        break;
    case 1:
        to_host(w, &p, form / 3);
        break;
    default:
        on_device(w, &p, &q, form / 3);
        break;
    }
}

/* ---- boxes ---- */

struct side {
    struct fz_tensor *t; /* or NULL */
    uint8_t *host;
    uint8_t *model; /* of the same bytes */
    size_t x, pitch, rows;
};

struct box {
    size_t width, height, depth;
};

static size_t span_of(const struct side *s, const struct box *b)
{
    return ((b->depth - 1) * s->rows + b->height - 1) * s->pitch + s->x + b->width;
}

static CUdeviceptr address(const struct side *s)
{
    return s->t != NULL ? s->t->at : (CUdeviceptr)(uintptr_t)s->host;
}

/* What kind of memory the copy says it is: sometimes whatever the address tells. */
static CUmemorytype type_of(const struct side *s, unsigned form)
{
    if (form % 4 == 3) {
        return CU_MEMORYTYPE_UNIFIED;
    }
    return s->t != NULL ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

static void copy_2d(const struct side *to, const struct side *from, const struct box *b,
                    const struct fz_use *u, unsigned form)
{
    const CUDA_MEMCPY2D c = {.srcXInBytes = from->x,
                             .srcMemoryType = type_of(from, form),
                             .srcHost = from->host,
                             .srcDevice = address(from),
                             .srcPitch = from->pitch,
                             .dstXInBytes = to->x,
                             .dstMemoryType = type_of(to, form),
                             .dstHost = to->host,
                             .dstDevice = address(to),
                             .dstPitch = to->pitch,
                             .WidthInBytes = b->width,
                             .Height = b->height};

    if (form / 4 == 0) {
        ON_LANE(cuMemcpy2DAsync_v2, *u, &c);
    } else if (form / 4 == 1) {
        DEFAULT_LANE(cuMemcpy2D_v2, *u, &c);
    } else {
        DEFAULT_LANE(cuMemcpy2DUnaligned_v2, *u, &c);
    }
}

#define FILL_3D(_c)                                                                                \
    do {                                                                                           \
        (_c).srcXInBytes = from->x;                                                                \
        (_c).srcMemoryType = type_of(from, form);                                                  \
        (_c).srcHost = from->host;                                                                 \
        (_c).srcDevice = address(from);                                                            \
        (_c).srcPitch = from->pitch;                                                               \
        (_c).srcHeight = from->rows;                                                               \
        (_c).dstXInBytes = to->x;                                                                  \
        (_c).dstMemoryType = type_of(to, form);                                                    \
        (_c).dstHost = to->host;                                                                   \
        (_c).dstDevice = address(to);                                                              \
        (_c).dstPitch = to->pitch;                                                                 \
        (_c).dstHeight = to->rows;                                                                 \
        (_c).WidthInBytes = b->width;                                                              \
        (_c).Height = b->height;                                                                   \
        (_c).Depth = b->depth;                                                                     \
    } while (0)

static void copy_3d(struct fz_world *w, const struct side *to, const struct side *from,
                    const struct box *b, const struct fz_use *u, unsigned form)
{
    CUDA_MEMCPY3D c = {0};
    CUDA_MEMCPY3D_PEER p = {.srcContext = w->ctx, .dstContext = w->ctx};

    FILL_3D(c);
    FILL_3D(p);
    switch (form / 4) {
    case 0:
        ON_LANE(cuMemcpy3DAsync_v2, *u, &c);
        break;
    case 1:
        DEFAULT_LANE(cuMemcpy3D_v2, *u, &c);
        break;
    case 2:
        ON_LANE(cuMemcpy3DPeerAsync, *u, &p);
        break;
    default:
        DEFAULT_LANE(cuMemcpy3DPeer, *u, &p);
        break;
    }
}

static void copy_box_model(const struct side *to, const struct side *from, const struct box *b)
{
    for (size_t z = 0; z < b->depth; z++) {
        for (size_t y = 0; y < b->height; y++) {
            memcpy(to->model + (z * to->rows + y) * to->pitch + to->x,
                   from->model + (z * from->rows + y) * from->pitch + from->x, b->width);
        }
    }
}

/* A side of a box that fits into the tensor, or into host memory. */
static struct side make_side(struct fz_world *w, struct fz_tensor *t, struct box *b)
{
    const unsigned f = fz_u8(&w->in);
    struct side s = {.t = t, .x = f % 4, .rows = b->height + f / 32};

    s.pitch = b->width + s.x + f / 4 % 8;
    while (t != NULL && span_of(&s, b) > t->bytes) {
        if (b->depth > 1) {
            b->depth--;
        } else {
            b->height--;
        }
    }
    s.model = t == NULL ? NULL : t->model;
    return s;
}

void fz_op_box(struct fz_world *w)
{
    const unsigned form = fz_u8(&w->in);
    const unsigned dims = fz_u8(&w->in);
    const bool flat = form / 16 % 2 == 0;
    const unsigned which = form / 4 % (flat ? 3 : 4);
    const bool waits = flat ? which != 0 : which % 2 != 0;
    const struct fz_use u = waits ? fz_lane_default(w) : fz_lane_choose(w);
    struct fz_tensor *a = fz_tensor_choose(w, &u);
    struct fz_tensor *c = fz_tensor_choose(w, &u);
    struct box b = {1 + (size_t)dims * 3, 1 + dims % 6, flat ? 1 : 1 + dims % 3};
    const bool peer = !flat && which >= 2;
    const unsigned way = peer ? 2 : form / 32 % 3;

    if (a == NULL || (way == 2 && a == c)) {
        return;
    }
    struct side to = make_side(w, way == 1 ? NULL : a, &b);
    struct side from = make_side(w, way == 0 ? NULL : c, &b);

    if (to.t == NULL) {
        to.host = fz_host(w, span_of(&to, &b));
        memset(to.host, 0, span_of(&to, &b));
        to.model = calloc(1, span_of(&to, &b));
    }
    if (from.t == NULL) {
        from.host = host_data(w, span_of(&from, &b));
        from.model = from.host;
    } else {
        fz_use(w, from.t, u.lane, false);
    }
    if (to.t != NULL) {
        fz_use(w, to.t, u.lane, true);
    }
    fz_issue(w, u.lane);
    if (flat) {
        copy_2d(&to, &from, &b, &u, 4 * which + form % 4);
    } else {
        copy_3d(w, &to, &from, &b, &u, 4 * which + form % 4);
    }
    fz_issued(w, u.lane);
    copy_box_model(&to, &from, &b);
    if (to.t == NULL) {
        fz_expect(w, to.host, to.model, span_of(&to, &b));
        free(to.model);
    }
}

/* ---- batches ---- */

static void batch_3d(const struct fz_use *u, struct fz_tensor *to, struct fz_tensor *from,
                     unsigned form)
{
    const size_t width = to->bytes < from->bytes ? to->bytes : from->bytes;
    CUDA_MEMCPY3D_BATCH_OP op;
    size_t failed = 0;

    memset(&op, 0, sizeof(op));
    op.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = from->at;
    op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.dst.op.ptr.ptr = to->at;
    op.extent = (CUextent3D){width, 1, 1};
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    if (form % 2 == 0) {
        ON_LANE(cuMemcpy3DBatchAsync, *u, 1, &op, &failed, 0);
    } else {
        ON_LANE(cuMemcpy3DBatchAsync_v2, *u, 1, &op, 0);
    }
    memcpy(to->model, from->model, width);
}

static void batch_1d(struct fz_world *w, const struct fz_use *u, struct fz_tensor *to,
                     struct fz_tensor *from, uint8_t *host, unsigned form)
{
    const size_t bytes = to->bytes < from->bytes ? to->bytes : from->bytes;
    CUdeviceptr dsts[2] = {to->at, (CUdeviceptr)(uintptr_t)host};
    CUdeviceptr srcs[2] = {from->at, from->at};
    size_t sizes[2] = {bytes, from->bytes};
    CUmemcpyAttributes attr = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t first = 0;
    size_t failed = 0;

    if (form % 2 == 0) {
        ON_LANE(cuMemcpyBatchAsync, *u, dsts, srcs, sizes, 2, &attr, &first, 1, &failed);
    } else {
        ON_LANE(cuMemcpyBatchAsync_v2, *u, dsts, srcs, sizes, 2, &attr, &first, 1);
    }
    memcpy(to->model, from->model, bytes);
    fz_expect(w, host, from->model, from->bytes);
}

void fz_op_batch(struct fz_world *w)
{
    const unsigned form = fz_u8(&w->in);
    struct fz_use u;

    if (!fz_lane_created(w, &u)) {
        return;
    }
    struct fz_tensor *to = fz_tensor_choose(w, &u);
    struct fz_tensor *from = fz_tensor_choose(w, &u);

    if (to == NULL || to == from) {
        return;
    }
    uint8_t *host = fz_host(w, from->bytes);

    fz_use(w, to, u.lane, true);
    fz_use(w, from, u.lane, false);
    fz_issue(w, u.lane);
    if (form % 4 < 2) {
        batch_1d(w, &u, to, from, host, form);
    } else {
        batch_3d(&u, to, from, form);
    }
    fz_issued(w, u.lane);
}

/* ---- fills ---- */

static void fill_model(uint8_t *to, uint32_t value, unsigned unit, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        memcpy(to + i * unit, &value, unit);
    }
}

static void fill(const struct fz_use *u, CUdeviceptr at, unsigned form, unsigned v, size_t n)
{
    switch (form) {
    case 0:
        ON_LANE(cuMemsetD8Async, *u, at, (unsigned char)v, n);
        break;
    case 1:
        ON_LANE(cuMemsetD16Async, *u, at, (unsigned short)v, n);
        break;
    case 2:
        ON_LANE(cuMemsetD32Async, *u, at, v, n);
        break;
    case 3:
        DEFAULT_LANE(cuMemsetD8_v2, *u, at, (unsigned char)v, n);
        break;
    case 4:
        DEFAULT_LANE(cuMemsetD16_v2, *u, at, (unsigned short)v, n);
        break;
    default:
        DEFAULT_LANE(cuMemsetD32_v2, *u, at, v, n);
        break;
    }
}

/* n elements a row. */
static void fill_rows(const struct fz_use *u, CUdeviceptr at, unsigned form, unsigned v,
                      const size_t size[3])
{
    switch (form) {
    case 0:
        ON_LANE(cuMemsetD2D8Async, *u, at, size[0], (unsigned char)v, size[1], size[2]);
        break;
    case 1:
        ON_LANE(cuMemsetD2D16Async, *u, at, size[0], (unsigned short)v, size[1], size[2]);
        break;
    case 2:
        ON_LANE(cuMemsetD2D32Async, *u, at, size[0], v, size[1], size[2]);
        break;
    case 3:
        DEFAULT_LANE(cuMemsetD2D8_v2, *u, at, size[0], (unsigned char)v, size[1], size[2]);
        break;
    case 4:
        DEFAULT_LANE(cuMemsetD2D16_v2, *u, at, size[0], (unsigned short)v, size[1], size[2]);
        break;
    default:
        DEFAULT_LANE(cuMemsetD2D32_v2, *u, at, size[0], v, size[1], size[2]);
        break;
    }
}

void fz_op_fill(struct fz_world *w)
{
    const unsigned form = fz_u8(&w->in);
    const unsigned v = fz_u8(&w->in) % 4 * 0x5a17;
    const bool waits = form % 6 >= 3;
    const unsigned unit = 1u << form % 3;
    const struct fz_use u = waits ? fz_lane_default(w) : fz_lane_choose(w);
    struct fz_tensor *t = fz_tensor_choose(w, &u);

    if (t == NULL) {
        return;
    }
    const size_t at = (size_t)(form / 16) * 8;
    const size_t bytes = t->bytes - at;

    fz_use(w, t, u.lane, true);
    fz_issue(w, u.lane);
    if (form / 6 % 2 == 0) {
        fill(&u, t->at + at, form % 6, v, bytes / unit);
        fill_model(t->model + at, v, unit, bytes / unit);
    } else {
        const size_t pitch = 128 + 8 * (size_t)(v % 8);
        const size_t size[3] = {pitch, 96 / unit, bytes / pitch};

        fill_rows(&u, t->at + at, form % 6, v, size);
        for (size_t y = 0; y < size[2]; y++) {
            fill_model(t->model + at + y * pitch, v, unit, 96 / unit);
        }
    }
    fz_issued(w, u.lane);
}

/* ---- words in stream order ---- */

static void value_batch(const struct fz_use *u, CUdeviceptr at, uint64_t v)
{
    CUstreamBatchMemOpParams ops[2];

    memset(ops, 0, sizeof(ops));
    ops[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[0].writeValue.address = at;
    ops[0].writeValue.value64 = v;
    ops[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[1].waitValue.address = at;
    ops[1].waitValue.value = (uint32_t)v;
    ops[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    fz_ok(u->ptds ? CALL(cuStreamBatchMemOp_v2_ptsz, u->handle, 2, ops, 0)
                  : CALL(cuStreamBatchMemOp_v2, u->handle, 2, ops, 0),
          "cuStreamBatchMemOp");
}

/* Waits for what is there. */
static void value_there(const struct fz_use *u, CUdeviceptr p, const uint8_t *model, bool wide)
{
    const unsigned eq = CU_STREAM_WAIT_VALUE_EQ;
    uint64_t v;

    memcpy(&v, model, sizeof(v));
    if (wide) {
        fz_ok(u->ptds ? CALL(cuStreamWaitValue64_v2_ptsz, u->handle, p, v, eq)
                      : CALL(cuStreamWaitValue64_v2, u->handle, p, v, eq),
              "cuStreamWaitValue64");
    } else {
        fz_ok(u->ptds ? CALL(cuStreamWaitValue32_v2_ptsz, u->handle, p, (uint32_t)v, eq)
                      : CALL(cuStreamWaitValue32_v2, u->handle, p, (uint32_t)v, eq),
              "cuStreamWaitValue32");
    }
}

void fz_op_value(struct fz_world *w)
{
    const unsigned form = fz_u8(&w->in);
    const struct fz_use u = fz_lane_choose(w);
    struct fz_tensor *t = fz_tensor_choose(w, &u);

    if (t == NULL) {
        return;
    }
    const size_t at = form / 8 % (t->bytes / 8) * 8;
    const CUdeviceptr p = t->at + at;
    const uint64_t v = form % 16 == 5 ? fz_stale(w) : form * UINT64_C(0x100000001);
    const unsigned eq = CU_STREAM_WAIT_VALUE_EQ;
    const bool wide = form % 4 != 0;
    const bool there = form % 4 < 2 && form / 8 % 4 == 3;

    fz_use(w, t, u.lane, true); /* to the checker a wait is a write */
    fz_issue(w, u.lane);
    if (there) {
        value_there(&u, p, t->model + at, wide);
        fz_issued(w, u.lane);
        return;
    }
    if (form % 4 == 3) {
        value_batch(&u, p, v);
    } else if (wide) {
        fz_ok(u.ptds ? CALL(cuStreamWriteValue64_v2_ptsz, u.handle, p, v, 0)
                     : CALL(cuStreamWriteValue64_v2, u.handle, p, v, 0),
              "cuStreamWriteValue64");
        fz_ok(u.ptds ? CALL(cuStreamWaitValue64_v2_ptsz, u.handle, p, v, eq)
                     : CALL(cuStreamWaitValue64_v2, u.handle, p, v, eq),
              "cuStreamWaitValue64");
    } else {
        fz_ok(u.ptds ? CALL(cuStreamWriteValue32_v2_ptsz, u.handle, p, (uint32_t)v, 0)
                     : CALL(cuStreamWriteValue32_v2, u.handle, p, (uint32_t)v, 0),
              "cuStreamWriteValue32");
        fz_ok(u.ptds ? CALL(cuStreamWaitValue32_v2_ptsz, u.handle, p, (uint32_t)v, eq)
                     : CALL(cuStreamWaitValue32_v2, u.handle, p, (uint32_t)v, eq),
              "cuStreamWaitValue32");
    }
    fz_issued(w, u.lane);
    memcpy(t->model + at, &v, wide ? 8 : 4);
}
