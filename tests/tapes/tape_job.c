/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes calls of every kind that a tape tells, and prints for each the record that must stand there
 * (tapes.py compares): kind and numbers as `pagedstash-tape --records` prints them, in hexadecimal.
 */
#include <pthread.h>
#include <stdarg.h>

#include "tests/sim/scenario.h"

#define H(_x) ((uint64_t)(uintptr_t)(_x))

CUresult CUDAAPI cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult CUDAAPI cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t n, CUstream s);

static uint8_t host[SC_BYTES];
static CUstream s;

static void record(const char *kind, unsigned n, ...)
{
    va_list args;

    va_start(args, n);
    printf("%s", kind);
    for (unsigned i = 0; i < n; i++) {
        printf(" %" PRIx64, va_arg(args, uint64_t));
    }
    putchar('\n');
    va_end(args);
}
#define U(_x) ((uint64_t)(_x))

static CUdeviceptr alloc(size_t bytes, bool tensor)
{
    const CUdeviceptr p = sc_alloc(bytes, s);

    record("ALLOC", 5, U(0), H(s), U(p), U(bytes), U(tensor));
    return p;
}

static void row(uint64_t form, CUstream stream, uint64_t dst, uint64_t src, uint64_t n)
{
    record("COPY", 11, form, H(stream), dst, src, n, U(1), U(1), n, n, n, n);
}

static void fill(uint64_t form, CUstream stream, CUdeviceptr dst, const uint64_t v[5])
{
    record("FILL", 8, form, H(stream), U(dst), v[0], v[1], v[2], v[3], v[4]);
}

static void copies(CUdeviceptr a, CUdeviceptr b)
{
    sc_ok(cuMemcpyHtoDAsync(a, host, 100, s));
    row(5, s, a, H(host), 100);
    sc_ok(cuMemcpyDtoHAsync(host, a, 100, s));
    row(3, s, H(host), a, 100);
    sc_ok(cuMemcpyDtoDAsync(b, a, 64, s));
    row(1, s, b, a, 64);
    sc_ok(cuMemcpyAsync(b, H(host), 32, s));
    row(5, s, b, H(host), 32);
    sc_ok(cuMemcpyAsync(H(host), b, 32, s));
    row(3, s, H(host), b, 32);
    sc_ok(cuStreamSynchronize(s));
    record("STREAM_SYNC", 1, H(s));
    sc_ok(cuMemcpyDtoH(host, a, 100));
    row(2, CU_STREAM_LEGACY, H(host), a, 100);
    sc_ok(cuMemcpyDtoD_v2_ptds(b, a, 16));
    row(0, CU_STREAM_PER_THREAD, b, a, 16);
    sc_ok(cuMemcpyPeer(b, sc_ctx, a, sc_ctx, 8));
    row(0, CU_STREAM_LEGACY, b, a, 8);
    CUDA_MEMCPY3D c;

    memset(&c, 0, sizeof(c));
    c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    c.srcDevice = a;
    c.srcPitch = 64;
    c.srcHeight = 4;
    c.srcY = 1;
    c.dstMemoryType = CU_MEMORYTYPE_HOST;
    c.dstHost = host;
    c.WidthInBytes = 32;
    c.Height = 2;
    c.Depth = 3;
    sc_ok(cuMemcpy3DAsync(&c, s));
    record("COPY", 11, U(3), H(s), H(host), U(a + 64), U(32), U(2), U(3), U(32), U(64), U(64),
           U(256));
    sc_ok(cuCtxSynchronize());
    record("CONTEXT_SYNC", 0);
}

static void fills(CUdeviceptr a)
{
    sc_ok(cuMemsetD8Async(a, 7, 100, s));
    fill(1, s, a, (const uint64_t[5]){1, 7, 100, 1, 0});
    sc_ok(cuMemsetD16Async(a, 0xfffe, 100, s));
    fill(1, s, a, (const uint64_t[5]){2, 0xfffe, 100, 1, 0});
    sc_ok(cuMemsetD32Async(a, 0xfffffffe, 100, s));
    fill(1, s, a, (const uint64_t[5]){4, 0xfffffffe, 100, 1, 0});
    sc_ok(cuMemsetD2D32Async(a, 64, 5, 3, 4, s));
    fill(1, s, a, (const uint64_t[5]){4, 5, 3, 4, 64});
    sc_ok(cuStreamSynchronize(s));
    record("STREAM_SYNC", 1, H(s));
    sc_ok(cuMemsetD8Async_ptsz(a, 1, 1, NULL));
    fill(1, CU_STREAM_PER_THREAD, a, (const uint64_t[5]){1, 1, 1, 1, 0});
    sc_ok(cuCtxSynchronize());
    record("CONTEXT_SYNC", 0);
}

static void events(CUstream other)
{
    CUevent e;

    sc_ok(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    record("EVENT_CREATE", 2, H(e), U(CU_EVENT_DISABLE_TIMING));
    sc_ok(cuEventRecord(e, s));
    record("EVENT_RECORD", 3, H(e), H(s), U(0));
    sc_ok(cuStreamWaitEvent(other, e, 0));
    record("STREAM_WAIT", 3, H(other), H(e), U(0));
    sc_ok(cuEventSynchronize(e));
    record("EVENT_SYNC", 1, H(e));
    sc_ok(cuEventQuery(e));
    record("EVENT_QUERY", 2, H(e), U(0));
    sc_ok(cuStreamSynchronize(other));
    record("STREAM_SYNC", 1, H(other));
    sc_ok(cuStreamQuery(other));
    record("STREAM_QUERY", 2, H(other), U(0));
    record("EVENT_DESTROY", 1, H(e));
    sc_ok(cuEventDestroy(e));
}

/* The bytes of the parameters in `raw`, as they must stand there. */
static void launches(CUdeviceptr a)
{
    uint64_t n = 64, seed = 3;
    struct {
        uint64_t to, n, seed;
    } packed = {a, 32, 4};
    size_t bytes = sizeof(packed);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    CUfunction f;

    sc_ok(cuModuleGetFunction(&f, sc_module, "test_write"));
    sc_ok(cuLaunchKernel(f, 2, 3, 1, 32, 1, 1, 0, s, (void *[]){&a, &n, &seed}, NULL));
    printf("LAUNCH test_write %" PRIx64 " 0 2 3 1 20 1 1 0 18 raw %016" PRIx64 "%016" PRIx64
           "%016" PRIx64 "\n",
           H(s), __builtin_bswap64(a), __builtin_bswap64(n), __builtin_bswap64(seed));
    sc_ok(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, extra));
    printf("LAUNCH test_write %" PRIx64 " 1 1 1 1 1 1 1 0 18 raw %016" PRIx64 "%016" PRIx64
           "%016" PRIx64 "\n",
           H(s), __builtin_bswap64(a), __builtin_bswap64(32), __builtin_bswap64(4));
}

static void *second(void *arg)
{
    sc_ok(cuCtxSetCurrent(sc_ctx));
    nvtxRangePushA("not of interest");
    puts("PUSH not of interest");
    const CUdeviceptr p = alloc(SC_BYTES, false); /* the region is another thread's */

    record("FREE", 3, U(0), H(s), U(p));
    sc_free(p, s);
    nvtxRangePop();
    puts("POP");
    return arg;
}

int main(void)
{
    CUstream other;
    pthread_t thread;
    CUdeviceptr sync_p;

    sc_start();
    puts("begin");
    sc_ok(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    record("STREAM_CREATE", 3, H(s), U(1), U(0));
    sc_ok(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, -1));
    record("STREAM_CREATE", 3, H(other), U(1), U(1));
    sc_ok(cuMemAlloc(&sync_p, 1000));
    record("ALLOC", 5, U(2), H(CU_STREAM_LEGACY), U(sync_p), U(1000), U(0));
    const CUdeviceptr outside = alloc(SC_BYTES, false);

    nvtxRangePushA("moe_experts");
    puts("PUSH moe_experts");
    const CUdeviceptr a = alloc(SC_BYTES, true), small = alloc(100, false);

    pthread_create(&thread, NULL, second, NULL);
    pthread_join(thread, NULL);
    nvtxRangePop();
    puts("POP");
    copies(a, outside);
    fills(a);
    launches(a);
    events(other);
    record("FREE", 3, U(0), H(s), U(a));
    sc_free(a, s);
    record("FREE", 3, U(0), H(s), U(small));
    sc_free(small, s);
    record("STREAM_DESTROY", 1, H(other));
    sc_ok(cuStreamDestroy(other));
    sc_ok(cuCtxSynchronize());
    record("CONTEXT_SYNC", 0);
    puts("END");
    return 0;
}
