/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a row of hooks.def and its arguments to a record. All forms of a copy become one, all fills
 * another. Calls that touch memory in other ways stand on the tape by their name, so that nobody
 * takes a tape for whole that is not. Any thread; no state.
 */
#include "shim/tape.h"

#include <stdarg.h>

#include "shim/hooks.h"

/* How the arguments of a row are read. */
enum shape {
    SILENT, /* says nothing about memory or order */
    CALL,   /* told by its name only */
    ALLOC,
    ALLOC_ASYNC,
    ALLOC_POOL,
    ALLOC_MANAGED,
    ALLOC_PITCH,
    FREE,
    FREE_ASYNC,
    STREAM_CREATE,
    STREAM_PRIORITY,
    STREAM_GREEN,
    STREAM_DESTROY,
    STREAM_SYNC,
    STREAM_QUERY,
    STREAM_WAIT,
    EVENT_CREATE,
    EVENT_DESTROY,
    EVENT_RECORD,
    EVENT_RECORD_FLAGS,
    EVENT_SYNC,
    EVENT_QUERY,
    CONTEXT_SYNC,
    LAUNCH,
    LAUNCH_COOPERATIVE,
    LAUNCH_EX,
    COPY_UNIFIED,
    COPY_DTOD,
    COPY_DTOH,
    COPY_HTOD,
    COPY_ATOD,
    COPY_DTOA,
    COPY_PEER,
    COPY_2D,
    COPY_3D,
    COPY_3D_PEER,
    COPY_BATCH,
    FILL_8,
    FILL_16,
    FILL_32,
    FILL_2D8,
    FILL_2D16,
    FILL_2D32,
    PURGE,
};

#define SYNC_AND_ASYNC(_name, _shape)                                                              \
    [PS_HOOK_##_name] = {_shape, 0}, [PS_HOOK_##_name##_ptds] = {_shape, 0}
#define BOTH(_name, _shape, _form)                                                                 \
    [PS_HOOK_##_name] = {_shape, _form}, [PS_HOOK_##_name##_ptsz] = {_shape, _form}
/* A synchronous function, and its asynchronous form. */
#define FOUR(_sync, _async, _shape)                                                                \
    SYNC_AND_ASYNC(_sync, _shape), BOTH(_async, _shape, PS_TAPE_ASYNC)

static const struct {
    uint8_t shape;
    uint8_t form;
} rows[PS_N_HOOKS] = {
    [PS_HOOK_cuMemAlloc_v2] = {ALLOC, PS_TAPE_ALLOC_SYNC},
    [PS_HOOK_cuMemAllocManaged] = {ALLOC_MANAGED, PS_TAPE_ALLOC_MANAGED},
    [PS_HOOK_cuMemAllocPitch_v2] = {ALLOC_PITCH, PS_TAPE_ALLOC_SYNC},
    BOTH(cuMemAllocAsync, ALLOC_ASYNC, PS_TAPE_ALLOC_ASYNC),
    BOTH(cuMemAllocFromPoolAsync, ALLOC_POOL, PS_TAPE_ALLOC_POOL),
    [PS_HOOK_cuMemFree_v2] = {FREE, PS_TAPE_ALLOC_SYNC},
    BOTH(cuMemFreeAsync, FREE_ASYNC, PS_TAPE_ALLOC_ASYNC),
    [PS_HOOK_cuStreamCreate] = {STREAM_CREATE, 0},
    [PS_HOOK_cuStreamCreateWithPriority] = {STREAM_PRIORITY, 0},
#if CUDA_VERSION >= 12050
    [PS_HOOK_cuGreenCtxStreamCreate] = {STREAM_GREEN, 0},
#endif
    [PS_HOOK_cuStreamDestroy] = {STREAM_DESTROY, 0},
    [PS_HOOK_cuStreamDestroy_v2] = {STREAM_DESTROY, 0},
    BOTH(cuStreamSynchronize, STREAM_SYNC, 0),
    BOTH(cuStreamQuery, STREAM_QUERY, 0),
    BOTH(cuStreamWaitEvent, STREAM_WAIT, 0),
    [PS_HOOK_cuEventCreate] = {EVENT_CREATE, 0},
    [PS_HOOK_cuEventDestroy] = {EVENT_DESTROY, 0},
    [PS_HOOK_cuEventDestroy_v2] = {EVENT_DESTROY, 0},
    BOTH(cuEventRecord, EVENT_RECORD, 0),
    BOTH(cuEventRecordWithFlags, EVENT_RECORD_FLAGS, 0),
    [PS_HOOK_cuEventSynchronize] = {EVENT_SYNC, 0},
    [PS_HOOK_cuEventQuery] = {EVENT_QUERY, 0},
    [PS_HOOK_cuCtxSynchronize] = {CONTEXT_SYNC, 0},
#if CUDA_VERSION >= 13000
    [PS_HOOK_cuCtxSynchronize_v2] = {CONTEXT_SYNC, 0},
#endif
    BOTH(cuLaunchKernel, LAUNCH, 0),
    BOTH(cuLaunchCooperativeKernel, LAUNCH_COOPERATIVE, 0),
    BOTH(cuLaunchKernelEx, LAUNCH_EX, 0),
    FOUR(cuMemcpy, cuMemcpyAsync, COPY_UNIFIED),
    FOUR(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, COPY_DTOD),
    FOUR(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, COPY_DTOH),
    FOUR(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, COPY_HTOD),
    SYNC_AND_ASYNC(cuMemcpyAtoD_v2, COPY_ATOD),
    SYNC_AND_ASYNC(cuMemcpyDtoA_v2, COPY_DTOA),
    FOUR(cuMemcpyPeer, cuMemcpyPeerAsync, COPY_PEER),
    FOUR(cuMemcpy2D_v2, cuMemcpy2DAsync_v2, COPY_2D),
    SYNC_AND_ASYNC(cuMemcpy2DUnaligned_v2, COPY_2D),
    FOUR(cuMemcpy3D_v2, cuMemcpy3DAsync_v2, COPY_3D),
    FOUR(cuMemcpy3DPeer, cuMemcpy3DPeerAsync, COPY_3D_PEER),
#if CUDA_VERSION >= 12080
    BOTH(cuMemcpyBatchAsync, COPY_BATCH, PS_TAPE_ASYNC),
    BOTH(cuMemcpy3DBatchAsync, CALL, 0),
#endif
#if CUDA_VERSION >= 13000
    BOTH(cuMemcpyBatchAsync_v2, COPY_BATCH, PS_TAPE_ASYNC),
    BOTH(cuMemcpy3DBatchAsync_v2, CALL, 0),
#endif
    FOUR(cuMemsetD8_v2, cuMemsetD8Async, FILL_8),
    FOUR(cuMemsetD16_v2, cuMemsetD16Async, FILL_16),
    FOUR(cuMemsetD32_v2, cuMemsetD32Async, FILL_32),
    FOUR(cuMemsetD2D8_v2, cuMemsetD2D8Async, FILL_2D8),
    FOUR(cuMemsetD2D16_v2, cuMemsetD2D16Async, FILL_2D16),
    FOUR(cuMemsetD2D32_v2, cuMemsetD2D32Async, FILL_2D32),
    BOTH(cuGraphLaunch, CALL, 0),
    BOTH(cuStreamBeginCapture, CALL, 0),
    BOTH(cuStreamBeginCapture_v2, CALL, 0),
#if CUDA_VERSION >= 12030
    BOTH(cuStreamBeginCaptureToGraph, CALL, 0),
#endif
    BOTH(cuStreamBatchMemOp, CALL, 0),
    BOTH(cuStreamBatchMemOp_v2, CALL, 0),
    BOTH(cuStreamWaitValue32, CALL, 0),
    BOTH(cuStreamWaitValue32_v2, CALL, 0),
    BOTH(cuStreamWaitValue64, CALL, 0),
    BOTH(cuStreamWaitValue64_v2, CALL, 0),
    BOTH(cuStreamWriteValue32, CALL, 0),
    BOTH(cuStreamWriteValue32_v2, CALL, 0),
    BOTH(cuStreamWriteValue64, CALL, 0),
    BOTH(cuStreamWriteValue64_v2, CALL, 0),
    [PS_HOOK_cuLaunch] = {CALL, 0},
    [PS_HOOK_cuLaunchGrid] = {CALL, 0},
    [PS_HOOK_cuLaunchGridAsync] = {CALL, 0},
    [PS_HOOK_cuLaunchCooperativeKernelMultiDevice] = {CALL, 0},
    [PS_HOOK_cuMemMap] = {CALL, 0},
    [PS_HOOK_cuMemUnmap] = {CALL, 0},
    [PS_HOOK_cuIpcOpenMemHandle_v2] = {CALL, 0},
    [PS_HOOK_cuTensorMapEncodeIm2col] = {CALL, 0},
    [PS_HOOK_cuTensorMapEncodeTiled] = {CALL, 0},
    [PS_HOOK_cuTexObjectCreate] = {CALL, 0},
    [PS_HOOK_cuCtxDestroy] = {PURGE, 0},
    [PS_HOOK_cuCtxDestroy_v2] = {PURGE, 0},
    [PS_HOOK_cuDevicePrimaryCtxRelease] = {PURGE, 0},
    [PS_HOOK_cuDevicePrimaryCtxRelease_v2] = {PURGE, 0},
    [PS_HOOK_cuDevicePrimaryCtxReset] = {PURGE, 0},
    [PS_HOOK_cuDevicePrimaryCtxReset_v2] = {PURGE, 0},
    [PS_HOOK_cuModuleUnload] = {PURGE, 0},
    [PS_HOOK_cuLibraryUnload] = {PURGE, 0},
};

#define H(_handle) ((uint64_t)(uintptr_t)(_handle))

static void put1(enum ps_tape_kind kind, uint64_t a)
{
    ps_tape_put(kind, &a);
}

static void put3(enum ps_tape_kind kind, uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t fields[] = {a, b, c};

    ps_tape_put(kind, fields);
}

/* ---- launches ---- */

static void put_launch(enum shape shape, CUstream stream, va_list args)
{
    struct ps_tape_launch l = {.stream = stream};

    if (shape == LAUNCH_EX) {
        const CUlaunchConfig *config = va_arg(args, const CUlaunchConfig *);

        l.f = va_arg(args, CUfunction);
        l.grid[0] = config->gridDimX;
        l.grid[1] = config->gridDimY;
        l.grid[2] = config->gridDimZ;
        l.block[0] = config->blockDimX;
        l.block[1] = config->blockDimY;
        l.block[2] = config->blockDimZ;
        l.shared = config->sharedMemBytes;
    } else {
        l.f = va_arg(args, CUfunction);
        for (unsigned i = 0; i < 3; i++) {
            l.grid[i] = va_arg(args, unsigned);
        }
        for (unsigned i = 0; i < 3; i++) {
            l.block[i] = va_arg(args, unsigned);
        }
        l.shared = va_arg(args, unsigned);
        (void)va_arg(args, CUstream);
    }
    l.params = va_arg(args, void **);
    l.extra = shape == LAUNCH_COOPERATIVE ? NULL : va_arg(args, void **);
    ps_tape_put_launch(&l);
}

/* ---- copies ---- */

static void put_row(unsigned form, CUstream stream, CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    const struct ps_tape_copy c = {
        .form = form,
        .stream = stream,
        .dst = dst,
        .src = src,
        .width = bytes,
        .height = 1,
        .depth = 1,
        .dst_pitch = bytes,
        .dst_layer = bytes,
        .src_pitch = bytes,
        .src_layer = bytes,
    };

    if (bytes != 0) {
        ps_tape_put_copy(&c);
    }
}

static void put_unified(unsigned form, CUstream stream, CUdeviceptr dst, CUdeviceptr src,
                        size_t bytes)
{
    form |= ps_host_readable(dst) ? PS_TAPE_DST_HOST : 0;
    form |= ps_host_readable(src) ? PS_TAPE_SRC_HOST : 0;
    put_row(form, stream, dst, src, bytes);
}

static void put_linear(enum shape shape, unsigned form, CUstream stream, va_list args)
{
    CUdeviceptr dst, src = 0;

    if (shape == COPY_DTOH) {
        dst = PS_ADDRESS(va_arg(args, void *));
        src = va_arg(args, CUdeviceptr);
        form |= PS_TAPE_DST_HOST;
    } else {
        dst = va_arg(args, CUdeviceptr);
        if (shape == COPY_HTOD) {
            src = PS_ADDRESS(va_arg(args, const void *));
            form |= PS_TAPE_SRC_HOST;
        } else if (shape == COPY_PEER) {
            (void)va_arg(args, CUcontext);
            src = va_arg(args, CUdeviceptr);
            (void)va_arg(args, CUcontext);
        } else {
            src = va_arg(args, CUdeviceptr);
        }
    }
    const size_t bytes = va_arg(args, size_t);

    if (shape == COPY_UNIFIED) {
        put_unified(form, stream, dst, src, bytes);
    } else {
        put_row(form, stream, dst, src, bytes);
    }
}

static void put_array(enum shape shape, unsigned form, CUstream stream, va_list args)
{
    CUdeviceptr device = 0;

    if (shape == COPY_ATOD) {
        device = va_arg(args, CUdeviceptr);
        (void)va_arg(args, CUarray);
        (void)va_arg(args, size_t);
        put_row(form | PS_TAPE_SRC_ARRAY, stream, device, 0, va_arg(args, size_t));
    } else {
        (void)va_arg(args, CUarray);
        (void)va_arg(args, size_t);
        device = va_arg(args, CUdeviceptr);
        put_row(form | PS_TAPE_DST_ARRAY, stream, 0, device, va_arg(args, size_t));
    }
}

struct side {
    CUmemorytype type;
    CUdeviceptr host, device;
    size_t x, y, z, pitch, layer_rows;
};

/* First byte; whether it is on the host, or in an array. */
static CUdeviceptr settle(const struct side *s, size_t pitch, size_t layer_rows, bool *host_p,
                          bool *array_p)
{
    const bool array = s->type == CU_MEMORYTYPE_ARRAY;
    const CUdeviceptr base = s->type == CU_MEMORYTYPE_HOST ? s->host : s->device;

    *array_p = array;
    *host_p = s->type == CU_MEMORYTYPE_HOST ||
              (s->type == CU_MEMORYTYPE_UNIFIED && ps_host_readable(base));
    return array ? 0 : base + (s->z * layer_rows + s->y) * pitch + s->x;
}

static void put_box(struct ps_tape_copy *c, const struct side *dst, const struct side *src)
{
    bool host, array;

    c->dst_pitch = dst->pitch == 0 ? c->width : dst->pitch;
    c->dst_layer = c->dst_pitch * (dst->layer_rows == 0 ? c->height : dst->layer_rows);
    c->src_pitch = src->pitch == 0 ? c->width : src->pitch;
    c->src_layer = c->src_pitch * (src->layer_rows == 0 ? c->height : src->layer_rows);
    c->dst = settle(dst, c->dst_pitch, c->dst_layer / c->dst_pitch, &host, &array);
    c->form |= (host ? PS_TAPE_DST_HOST : 0) | (array ? PS_TAPE_DST_ARRAY : 0);
    c->src = settle(src, c->src_pitch, c->src_layer / c->src_pitch, &host, &array);
    c->form |= (host ? PS_TAPE_SRC_HOST : 0) | (array ? PS_TAPE_SRC_ARRAY : 0);
    ps_tape_put_copy(c);
}

#define SIDE(_p, _which, _z, _rows)                                                                \
    {                                                                                              \
        (_p)->_which##MemoryType, PS_ADDRESS((_p)->_which##Host), (_p)->_which##Device,            \
            (_p)->_which##XInBytes, (_p)->_which##Y, _z, (_p)->_which##Pitch, _rows                \
    }

static void put_2d(unsigned form, CUstream stream, const CUDA_MEMCPY2D_v2 *p)
{
    const struct side dst = SIDE(p, dst, 0, 0), src = SIDE(p, src, 0, 0);
    struct ps_tape_copy c = {.form = form, .stream = stream};

    c.width = p->WidthInBytes;
    c.height = p->Height;
    c.depth = 1;
    if (c.width != 0 && c.height != 0) {
        put_box(&c, &dst, &src);
    }
}

#define PUT_3D(_form, _stream, _p)                                                                 \
    do {                                                                                           \
        const struct side dst = SIDE(_p, dst, (_p)->dstZ, (_p)->dstHeight);                        \
        const struct side src = SIDE(_p, src, (_p)->srcZ, (_p)->srcHeight);                        \
        struct ps_tape_copy c = {.form = (_form), .stream = (_stream)};                            \
                                                                                                   \
        c.width = (_p)->WidthInBytes;                                                              \
        c.height = (_p)->Height;                                                                   \
        c.depth = (_p)->Depth;                                                                     \
        if (c.width != 0 && c.height != 0 && c.depth != 0) {                                       \
            put_box(&c, &dst, &src);                                                               \
        }                                                                                          \
    } while (0)

static void put_3d(unsigned form, CUstream stream, const CUDA_MEMCPY3D_v2 *p)
{
    PUT_3D(form, stream, p);
}

static void put_3d_peer(unsigned form, CUstream stream, const CUDA_MEMCPY3D_PEER_v1 *p)
{
    PUT_3D(form, stream, p);
}

static void put_batch(unsigned form, CUstream stream, va_list args)
{
    const CUdeviceptr *dsts = va_arg(args, CUdeviceptr *);
    const CUdeviceptr *srcs = va_arg(args, CUdeviceptr *);
    const size_t *sizes = va_arg(args, size_t *);
    const size_t n = va_arg(args, size_t);

    for (size_t i = 0; i < n; i++) {
        put_unified(form, stream, dsts[i], srcs[i], sizes[i]);
    }
}

static void put_copy(enum shape shape, unsigned form, CUstream stream, va_list args)
{
    switch ((int)shape) {
    case COPY_ATOD:
    case COPY_DTOA:
        put_array(shape, form, stream, args);
        break;
    case COPY_2D:
        put_2d(form, stream, va_arg(args, const CUDA_MEMCPY2D_v2 *));
        break;
    case COPY_3D:
        put_3d(form, stream, va_arg(args, const CUDA_MEMCPY3D_v2 *));
        break;
    case COPY_3D_PEER:
        put_3d_peer(form, stream, va_arg(args, const CUDA_MEMCPY3D_PEER_v1 *));
        break;
    case COPY_BATCH:
        put_batch(form, stream, args);
        break;
    default:
        put_linear(shape, form, stream, args);
        break;
    }
}

/* ---- fills ---- */

static void put_fill(enum shape shape, unsigned form, CUstream stream, va_list args)
{
    struct ps_tape_fill f = {.form = form, .stream = stream, .height = 1};

    f.dst = va_arg(args, CUdeviceptr);
    if (shape >= FILL_2D8) {
        f.pitch = va_arg(args, size_t);
    }
    f.element = 1u << (shape >= FILL_2D8 ? shape - FILL_2D8 : shape - FILL_8);
    f.value = f.element == 4 ? va_arg(args, unsigned) : (unsigned)va_arg(args, int);
    f.width = va_arg(args, size_t);
    if (shape >= FILL_2D8) {
        f.height = va_arg(args, size_t);
    }
    if (f.width != 0 && f.height != 0) {
        ps_tape_put_fill(&f);
    }
}

/* ---- allocations, streams, events ---- */

static void put_alloc(enum shape shape, unsigned form, CUstream stream, va_list args)
{
    const CUdeviceptr *ptr_p = va_arg(args, CUdeviceptr *);
    size_t bytes;

    if (shape == ALLOC_PITCH) {
        bytes = *va_arg(args, size_t *);
        (void)va_arg(args, size_t);
        bytes *= va_arg(args, size_t);
    } else {
        bytes = va_arg(args, size_t);
    }
    ps_tape_put_alloc(form, stream, *ptr_p, bytes);
}

static void put_stream(enum shape shape, va_list args)
{
    const CUstream *stream_p = va_arg(args, CUstream *);
    int priority = 0;

    if (shape == STREAM_GREEN) {
        (void)va_arg(args, CUgreenCtx);
    }
    const unsigned flags = va_arg(args, unsigned);

    if (shape != STREAM_CREATE) {
        priority = va_arg(args, int);
    }
    put3(PS_TAPE_STREAM_CREATE, H(*stream_p), flags, ps_tape_zigzag(priority));
}

static void put_event(enum shape shape, CUresult r, CUstream stream, va_list args)
{
    switch ((int)shape) {
    case EVENT_CREATE: {
        const CUevent *event_p = va_arg(args, CUevent *);

        put3(PS_TAPE_EVENT_CREATE, H(*event_p), va_arg(args, unsigned), 0);
        break;
    }
    case EVENT_RECORD:
    case EVENT_RECORD_FLAGS: {
        const CUevent event = va_arg(args, CUevent);

        (void)va_arg(args, CUstream);
        put3(PS_TAPE_EVENT_RECORD, H(event), H(stream),
             shape == EVENT_RECORD ? 0 : va_arg(args, unsigned));
        break;
    }
    case EVENT_SYNC:
        put1(PS_TAPE_EVENT_SYNC, H(va_arg(args, CUevent)));
        break;
    case EVENT_QUERY:
        put3(PS_TAPE_EVENT_QUERY, H(va_arg(args, CUevent)), (uint64_t)r, 0);
        break;
    case STREAM_WAIT: {
        (void)va_arg(args, CUstream);
        const CUevent event = va_arg(args, CUevent);

        put3(PS_TAPE_STREAM_WAIT, H(stream), H(event), va_arg(args, unsigned));
        break;
    }
    default:
        break;
    }
}

/* ---- from the wrappers ---- */

void ps_tape_before(enum ps_hook_id id, CUstream stream, ...)
{
    va_list args;

    va_start(args, stream);
    switch (rows[id].shape) {
    case FREE:
        ps_tape_put_free(rows[id].form, CU_STREAM_LEGACY, va_arg(args, CUdeviceptr));
        break;
    case FREE_ASYNC: {
        const CUdeviceptr ptr = va_arg(args, CUdeviceptr);

        ps_tape_put_free(rows[id].form, stream, ptr);
        break;
    }
    case STREAM_DESTROY:
        put1(PS_TAPE_STREAM_DESTROY, H(va_arg(args, CUstream)));
        break;
    case EVENT_DESTROY:
        put1(PS_TAPE_EVENT_DESTROY, H(va_arg(args, CUevent)));
        break;
    case PURGE:
        ps_tape_purge();
        break;
    default:
        break;
    }
    va_end(args);
}

static bool counts_as_made(enum shape shape, CUresult r)
{
    return r == CUDA_SUCCESS ||
           (r == CUDA_ERROR_NOT_READY && (shape == EVENT_QUERY || shape == STREAM_QUERY));
}

void ps_tape_after(enum ps_hook_id id, CUresult r, CUstream stream, ...)
{
    const enum shape shape = (enum shape)rows[id].shape;
    const unsigned form = rows[id].form;
    va_list args;

    if (!counts_as_made(shape, r)) {
        return;
    }
    va_start(args, stream);
    if (shape >= FILL_8 && shape <= FILL_2D32) {
        put_fill(shape, form, stream, args);
    } else if (shape >= COPY_UNIFIED && shape <= COPY_BATCH) {
        put_copy(shape, form, stream, args);
    } else if (shape >= LAUNCH && shape <= LAUNCH_EX) {
        put_launch(shape, stream, args);
    } else if (shape >= ALLOC && shape <= ALLOC_PITCH) {
        put_alloc(shape, form, stream, args);
    } else if (shape >= STREAM_CREATE && shape <= STREAM_GREEN) {
        put_stream(shape, args);
    } else if (shape == CALL) {
        ps_tape_put_call(ps_hook_table[id].symbol, stream);
    } else if (shape == CONTEXT_SYNC) {
        ps_tape_put(PS_TAPE_CONTEXT_SYNC, NULL);
    } else if (shape == STREAM_SYNC) {
        put1(PS_TAPE_STREAM_SYNC, H(stream));
    } else if (shape == STREAM_QUERY) {
        put3(PS_TAPE_STREAM_QUERY, H(stream), (uint64_t)r, 0);
    } else {
        put_event(shape, r, stream, args);
    }
    va_end(args);
}
