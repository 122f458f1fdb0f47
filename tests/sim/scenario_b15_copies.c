/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every form of copy and fill, synchronous and not, in the legacy and the per-thread stream, on tensors that are out:
 * the bytes come back in the order of the stream that the copy itself is ordered in.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS 16
#define N_STEPS  2
#define PITCH    ((size_t)512)
#define ROWS     (SC_BYTES / PITCH)

/* Exported by drivers for programs built with per-thread default streams. */
CUresult CUDAAPI cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes);
CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes);
CUresult CUDAAPI cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t n);

static uint8_t host[SC_BYTES];
static uint8_t *pinned;
static CUdeviceptr plain;

static void copy_2d(CUdeviceptr from, CUdeviceptr to, CUstream s, bool unaligned)
{
    CUDA_MEMCPY2D c;

    memset(&c, 0, sizeof(c));
    c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    c.srcDevice = from;
    c.srcPitch = PITCH;
    c.srcXInBytes = 64;
    c.srcY = 3;
    c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    c.dstDevice = to;
    c.dstPitch = PITCH;
    c.dstXInBytes = 32;
    c.WidthInBytes = PITCH - 128;
    c.Height = ROWS - 3;
    if (s != NULL) {
        sc_ok(cuMemcpy2DAsync(&c, s));
    } else {
        sc_ok(unaligned ? cuMemcpy2DUnaligned(&c) : cuMemcpy2D(&c));
    }
}

static void copy_3d(CUdeviceptr from, void *to, CUstream s)
{
    CUDA_MEMCPY3D c;

    memset(&c, 0, sizeof(c));
    c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    c.srcDevice = from;
    c.srcPitch = PITCH;
    c.srcHeight = ROWS / 4;
    c.srcY = 1;
    c.dstMemoryType = CU_MEMORYTYPE_HOST;
    c.dstHost = to;
    c.dstPitch = PITCH;
    c.dstHeight = ROWS / 4;
    c.WidthInBytes = 200;
    c.Height = ROWS / 4 - 1;
    c.Depth = 4;
    sc_ok(s != NULL ? cuMemcpy3DAsync(&c, s) : cuMemcpy3D(&c));
}

static void show(const char *what, const void *data)
{
    sc_print(what, data, SC_BYTES);
}

/* The stream is ordered with the legacy stream, or the caller has waited for it. */
static void synchronous(CUdeviceptr x, int form)
{
    memset(host, form, sizeof(host));
    switch (form) {
    case 0:
        sc_ok(cuMemcpyDtoH(host, x, SC_BYTES));
        break;
    case 1:
        sc_ok(cuMemcpyHtoD(x + 4096, host, 8192));
        break;
    case 2:
        sc_ok(cuMemcpyDtoD(plain, x, SC_BYTES));
        break;
    case 3:
        sc_ok(cuMemcpy(plain, x + 512, SC_BYTES - 512));
        break;
    case 4:
        copy_2d(x, plain, NULL, false);
        break;
    case 5:
        copy_2d(x, plain, NULL, true);
        break;
    case 6:
        copy_3d(x, host, NULL);
        break;
    case 7:
        sc_ok(cuMemcpyPeer(plain, sc_ctx, x, sc_ctx, SC_BYTES));
        break;
    case 8:
        sc_ok(cuMemsetD8(x + 1024, 7, 4096));
        break;
    case 9:
        sc_ok(cuMemsetD32(x + 8192, 0x12345678, 1024));
        break;
    default:
        sc_ok(cuMemsetD2D16(x, PITCH, 0xabcd, 100, ROWS));
        break;
    }
    show("host", host);
}
#define N_SYNCHRONOUS 11

/* Per-thread variants: ordered in this thread's own stream. */
static void per_thread(CUdeviceptr x, int form)
{
    switch (form) {
    case 0:
        sc_ok(cuMemcpyDtoH_v2_ptds(host, x, SC_BYTES));
        show("host", host);
        break;
    case 1:
        sc_ok(cuMemcpyHtoD_v2_ptds(x + 4096, host, 8192));
        break;
    case 2:
        sc_ok(cuMemcpyDtoD_v2_ptds(x + 4096, x + 32768, 8192));
        break;
    default:
        sc_ok(cuMemsetD8_v2_ptds(x + 512, 3, 8192));
        break;
    }
    sc_ok(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}
#define N_PER_THREAD 4

#if CUDA_VERSION >= 13000
static void copy_batch(CUdeviceptr x, CUstream s)
{
    CUdeviceptr to[2] = {plain, plain + 8192}, from[2] = {x + 4096, x + 32768};
    size_t bytes[2] = {4096, 8192}, first = 0;
    CUmemcpyAttributes attributes;

    memset(&attributes, 0, sizeof(attributes));
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    sc_ok(cuMemcpyBatchAsync(to, from, bytes, 2, &attributes, &first, 1, s));
}
#else
static void copy_batch(CUdeviceptr x, CUstream s)
{
    sc_ok(cuMemcpyDtoDAsync(plain, x + 4096, 4096, s));
    sc_ok(cuMemcpyDtoDAsync(plain + 8192, x + 32768, 8192, s));
}
#endif

static void asynchronous(CUdeviceptr x, int form, CUstream s)
{
    switch (form) {
    case 0:
        sc_ok(cuMemcpyDtoHAsync(pinned, x, SC_BYTES, s));
        break;
    case 1:
        sc_ok(cuMemcpyHtoDAsync(x + 4096, pinned, 8192, s));
        break;
    case 2:
        sc_ok(cuMemcpyDtoDAsync(plain, x, SC_BYTES, s));
        break;
    case 3:
        sc_ok(cuMemcpyAsync(plain, x + 512, SC_BYTES - 512, s));
        break;
    case 4:
        copy_2d(x, plain, s, false);
        break;
    case 5:
        copy_3d(x, pinned, s);
        break;
    case 6:
        sc_ok(cuMemcpyPeerAsync(plain, sc_ctx, x, sc_ctx, SC_BYTES, s));
        break;
    case 7:
        sc_ok(cuMemsetD8Async(x + 1024, 7, 4096, s));
        break;
    case 8:
        sc_ok(cuMemsetD16Async(x + 8192, 0x1234, 1024, s));
        break;
    case 9:
        copy_batch(x, s);
        break;
    default:
        sc_ok(cuMemsetD2D32Async(x, PITCH, 0xabcdef01, 50, ROWS, s));
        break;
    }
}
#define N_ASYNCHRONOUS 11

/* One step; the layers are long out when they are copied, the oldest first. */
static void step(uint64_t seed, int kind, CUstream s)
{
    struct sc_layer layers[N_LAYERS];
    const int forms[] = {N_SYNCHRONOUS, N_SYNCHRONOUS, N_ASYNCHRONOUS, N_PER_THREAD};

    for (int i = 0; i < N_LAYERS; i++) {
        sc_forward(&layers[i], seed + (uint64_t)i, s);
    }
    for (int i = 0; i < N_LAYERS; i++) {
        sc_ok(cuMemsetD8Async(plain, i, SC_BYTES, s));
        if (kind == 1 || kind == 3) {
            sc_ok(cuStreamSynchronize(s)); /* not ordered with the stream of the copy */
        }
        if (kind <= 1) {
            synchronous(layers[i].x, i % forms[kind]);
        } else if (kind == 2) {
            asynchronous(layers[i].x, i % forms[kind], s);
        } else {
            per_thread(layers[i].x, i % forms[kind]);
        }
        if (kind <= 1) {
            sc_ok(cuStreamSynchronize(CU_STREAM_LEGACY));
        }
        sc_digest(plain, SC_WORDS, s);
    }
    for (int i = N_LAYERS - 1; i >= 0; i--) {
        sc_backward(&layers[i], s);
    }
    sc_results_print("step");
    show("pinned", pinned);
}

int main(void)
{
    CUstream blocking;

    sc_start();
    const CUstream s = sc_stream();

    sc_ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    sc_ok(cuMemHostAlloc((void **)&pinned, SC_BYTES, 0));
    memset(pinned, 9, SC_BYTES);
    sc_ok(cuMemAlloc(&plain, SC_BYTES));
    for (unsigned n = 0; n < N_STEPS; n++) {
        for (int kind = 0; kind < 4; kind++) {
            step(n * (uint64_t)1000 + (uint64_t)kind * 100, kind, kind == 0 ? blocking : s);
        }
    }
    return sc_end();
}
