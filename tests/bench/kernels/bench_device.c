/* SPDX-License-Identifier: Apache-2.0 */
/* The device, the driver's functions and the images that kernel_bench uses. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/kernels/bench.h"

#define EXIT_SKIPPED  77 /* meson's */
#define SCRATCH_BYTES (UINT64_C(512) << 20)

extern const unsigned char ps_content_image[];

struct ps_driver drv;
struct bench_fns fns;

void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("kernel_bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void must(CUresult result, const char *what)
{
    const char *name = NULL;

    if (result == CUDA_SUCCESS) {
        return;
    }
    if (drv.cuGetErrorName == NULL || drv.cuGetErrorName(result, &name) != CUDA_SUCCESS) {
        name = "CUDA error";
    }
    die("%s: %s", what, name);
}

static void *find(PFN_cuGetProcAddress_v12000 get, const char *name, int version, bool needed)
{
    void *fn = NULL;
    const CUresult result = get(name, &fn, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL);

    if (needed && (result != CUDA_SUCCESS || fn == NULL)) {
        die("the driver has no %s", name);
    }
    return result == CUDA_SUCCESS ? fn : NULL;
}

static void find_driver(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    PFN_cuGetProcAddress_v12000 get = NULL;

    if (lib == NULL) {
        fprintf(stderr, "kernel_bench: skipped, no driver: %s\n", dlerror());
        exit(EXIT_SKIPPED);
    }
    *(void **)&get = dlsym(lib, "cuGetProcAddress_v2");
    if (get == NULL) {
        die("the driver has no cuGetProcAddress_v2");
    }
#define PS_DRIVER_FN(_name, _version, _needed)                                                     \
    *(void **)&drv._name = find(get, #_name, _version, _needed);
#include "kernels/driver_fns.def"
#undef PS_DRIVER_FN
#define FIND(_name, _version) *(void **)&fns._name = find(get, #_name, _version, true);
    BENCH_FNS(FIND)
#undef FIND
}

static CUfunction function(CUmodule module, const char *name)
{
    CUfunction f = NULL;

    MUST(drv.cuModuleGetFunction(&f, module, name));
    return f;
}

static void find_kernels(struct bench *b)
{
    CUmodule content = NULL;

    MUST(drv.cuModuleLoadData(&content, ps_content_image));
    b->fill = function(content, "bench_fill");
    b->check = function(content, "bench_check");
    b->numbers = function(content, "bench_numbers");
    b->same = function(content, "bench_same");
    b->read = function(content, "bench_read");
    b->empty = function(content, "bench_empty");
    b->large = function(content, "bench_large");
    MUST(ps_kernels_load(&drv, &b->kernels));
    const CUfunction moving[] = {b->kernels.stash, b->kernels.restore};

    for (size_t i = 0; i < sizeof(moving) / sizeof(moving[0]); i++) {
        MUST(fns.cuFuncSetAttribute(moving[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                    200 << 10));
        MUST(fns.cuFuncSetAttribute(moving[i], CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                    100));
    }
}

void bench_init(struct bench *b)
{
    CUdevice device = 0;
    CUcontext context = NULL;
    int n = 0;
    int least = 0;
    int greatest = 0;

    find_driver();
    const CUresult started = fns.cuInit(0);

    if (started == CUDA_ERROR_NO_DEVICE) {
        fprintf(stderr, "kernel_bench: skipped, no device\n");
        exit(EXIT_SKIPPED);
    }
    must(started, "cuInit");
    MUST(fns.cuDeviceGet(&device, 0));
    MUST(fns.cuDeviceGetName(b->device, sizeof(b->device), device));
    MUST(drv.cuDevicePrimaryCtxRetain(&context, device));
    MUST(drv.cuCtxSetCurrent(context));
    MUST(drv.cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    b->n_multiprocessors = (unsigned)n;
    MUST(drv.cuCtxGetStreamPriorityRange(&least, &greatest));
    MUST(drv.cuStreamCreateWithPriority(&b->out, CU_STREAM_NON_BLOCKING, least));
    MUST(drv.cuStreamCreateWithPriority(&b->beside, CU_STREAM_NON_BLOCKING, least));
    for (int i = 0; i < EVENTS_MAX; i++) {
        MUST(drv.cuEventCreate(&b->events[i], CU_EVENT_DEFAULT));
    }
    find_kernels(b);
    b->errors = device_alloc(sizeof(uint64_t));
    MUST(fns.cuMemsetD8Async(b->errors, 0, sizeof(uint64_t), b->out));
    b->scratch_bytes = SCRATCH_BYTES;
    b->scratch = device_alloc(b->scratch_bytes);
    MUST(drv.cuMemsetD32Async(b->scratch, 1, b->scratch_bytes / 4, b->out));
    MUST(drv.cuStreamSynchronize(b->out));
}

uint64_t bench_random(struct bench *b)
{
    uint64_t z = b->seed += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

CUdeviceptr device_alloc(uint64_t bytes)
{
    CUdeviceptr at = 0;

    MUST(fns.cuMemAlloc(&at, bytes > 0 ? bytes : 1));
    return at;
}

void launch_1d(CUfunction f, unsigned blocks, unsigned threads, CUstream stream, void **params)
{
    MUST(drv.cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL));
}

void fill_content(const struct bench *b, CUdeviceptr at, uint64_t bytes,
                  const struct content_params *c)
{
    uint64_t n = bytes / 16;
    void *params[] = {&at, &n, (void *)c};

    launch_1d(b->fill, b->n_multiprocessors * 4, 512, b->out, params);
}

void check_content(const struct bench *b, CUdeviceptr at, uint64_t bytes,
                   const struct content_params *c)
{
    uint64_t n = bytes / 16;
    CUdeviceptr errors = b->errors;
    void *params[] = {&at, &n, (void *)c, &errors};

    launch_1d(b->check, b->n_multiprocessors * 4, 512, b->out, params);
}

void gate(const struct bench *b, CUstream stream)
{
    CUdeviceptr at = b->scratch;
    uint64_t n = b->scratch_bytes / 16;
    uint64_t never = 0;
    void *params[] = {&at, &n, &never};

    launch_1d(b->read, b->n_multiprocessors * 4, 512, stream, params);
    launch_1d(b->read, b->n_multiprocessors * 4, 512, stream, params);
}

uint64_t n_errors(const struct bench *b)
{
    uint64_t n = 0;

    MUST(drv.cuStreamSynchronize(b->out));
    MUST(fns.cuMemcpyDtoH(&n, b->errors, sizeof(n)));
    return n;
}
