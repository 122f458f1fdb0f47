/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver behind device.h. Looked up by dlopen and cuGetProcAddress_v2, entry by entry, as
 * libcudart does. Any thread may call in; the structure is written once, before other threads
 * exist. Parameter blocks are thread-local.
 */
#include "tools/demo/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const unsigned char demo_image[]; /* the kernels' fat binary, made at build time */

/* One storage for all kinds of parameters: what one launch leaves lies in another's words. */
union demo_block {
    struct demo_args args;
    struct demo_prepare prepare;
    struct demo_product product;
};

/*
 * A thread's parameter blocks. Most launches use the first; every so often one uses another in
 * turn, and finds words of some 80 launches ago in it: a few layers back, about as often as
 * recorded training steps show it.
 */
#define N_BLOCKS    8
#define OTHER_EVERY 11
static _Thread_local union demo_block thread_blocks[N_BLOCKS];
static _Thread_local unsigned n_launches;

static union demo_block *block(void)
{
    const unsigned turn = n_launches / OTHER_EVERY;
    return &thread_blocks[n_launches % OTHER_EVERY == 0 ? 1 + turn % (N_BLOCKS - 1) : 0];
}

static const char *const kernel_names[DEMO_N_KERNELS] = {
#define DEMO_NAME(_name) "demo_" #_name,
    DEMO_KERNELS(DEMO_NAME)
#undef DEMO_NAME
};

struct demo_args *demo_args(void)
{
    return &block()->args;
}

struct demo_prepare *demo_prepare_args(void)
{
    return &block()->prepare;
}

struct demo_product *demo_product_args(void)
{
    return &block()->product;
}

static void check(const struct demo_device *dev, CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) {
        return;
    }
    const char *name = NULL;
    if (dev->cu.cuGetErrorName == NULL || dev->cu.cuGetErrorName(result, &name) != CUDA_SUCCESS) {
        name = "unknown error";
    }
    fprintf(stderr, "pagedstash-demo: %s failed: %s\n", what, name);
    exit(result == CUDA_ERROR_NO_DEVICE ? DEMO_EXIT_NO_DEVICE : EXIT_FAILURE);
}

static void look_up(struct demo_device *dev)
{
    dev->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (dev->library == NULL) {
        fprintf(stderr, "pagedstash-demo: cannot load libcuda.so.1: %s\n", dlerror());
        exit(DEMO_EXIT_NO_DEVICE);
    }
    PFN_cuGetProcAddress_v12000 get = NULL;
    *(void **)&get = dlsym(dev->library, "cuGetProcAddress_v2");
    if (get == NULL) {
        fprintf(stderr, "pagedstash-demo: libcuda.so.1 is older than CUDA 12\n");
        exit(DEMO_EXIT_NO_DEVICE);
    }
    static const struct {
        const char *name;
        int version;
        size_t offset;
    } wanted[] = {
#define DEMO_FN(_name, _version, _asked) {#_name, _asked, offsetof(struct demo_driver, _name)},
#include "tools/demo/device_fns.def"
#undef DEMO_FN
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *fn = NULL;
        CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        const CUresult result =
            get(wanted[i].name, &fn, wanted[i].version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
        if (result != CUDA_SUCCESS || fn == NULL) {
            fprintf(stderr, "pagedstash-demo: the driver has no %s\n", wanted[i].name);
            exit(DEMO_EXIT_NO_DEVICE);
        }
        memcpy((char *)&dev->cu + wanted[i].offset, &fn, sizeof(fn));
    }
}

/* The pool keeps what is freed, as frameworks set it. */
static void keep_pool(const struct demo_device *dev)
{
    CUmemoryPool pool;
    cuuint64_t threshold = UINT64_MAX;
    check(dev, dev->cu.cuDeviceGetDefaultMemPool(&pool, dev->device), "cuDeviceGetDefaultMemPool");
    check(dev, dev->cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
          "cuMemPoolSetAttribute");
}

void demo_device_open(struct demo_device *dev)
{
    memset(dev, 0, sizeof(*dev));
    look_up(dev);
    check(dev, dev->cu.cuInit(0), "cuInit");
    check(dev, dev->cu.cuDeviceGet(&dev->device, 0), "cuDeviceGet");
    check(dev, dev->cu.cuDeviceGetName(dev->name, sizeof(dev->name), dev->device),
          "cuDeviceGetName");
    dev->simulated = strstr(dev->name, "simcuda") != NULL;
    int n_processors = 0;
    check(dev,
          dev->cu.cuDeviceGetAttribute(&n_processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                       dev->device),
          "cuDeviceGetAttribute");
    dev->n_blocks = dev->simulated ? 3 : 8 * n_processors;
    check(dev, dev->cu.cuDevicePrimaryCtxRetain(&dev->context, dev->device),
          "cuDevicePrimaryCtxRetain");
    demo_device_enter(dev);
    keep_pool(dev);
    check(dev, dev->cu.cuModuleLoadData(&dev->module, demo_image), "cuModuleLoadData");
    for (int i = 0; i < DEMO_N_KERNELS; i++) {
        check(dev, dev->cu.cuModuleGetFunction(&dev->kernels[i], dev->module, kernel_names[i]),
              kernel_names[i]);
    }
}

void demo_device_close(struct demo_device *dev)
{
    check(dev, dev->cu.cuModuleUnload(dev->module), "cuModuleUnload");
    check(dev, dev->cu.cuDevicePrimaryCtxRelease(dev->device), "cuDevicePrimaryCtxRelease");
}

void demo_device_enter(const struct demo_device *dev)
{
    check(dev, dev->cu.cuCtxSetCurrent(dev->context), "cuCtxSetCurrent");
}

CUdeviceptr demo_alloc(const struct demo_device *dev, CUstream stream, uint64_t bytes)
{
    CUdeviceptr ptr = 0;
    if (bytes > 0) { /* an empty tensor has no memory */
        check(dev, dev->cu.cuMemAllocAsync(&ptr, bytes, stream), "cuMemAllocAsync");
    }
    return ptr;
}

void demo_free(const struct demo_device *dev, CUstream stream, CUdeviceptr *ptr)
{
    if (*ptr != 0) {
        check(dev, dev->cu.cuMemFreeAsync(*ptr, stream), "cuMemFreeAsync");
    }
    *ptr = 0;
}

void demo_zero(const struct demo_device *dev, CUstream stream, CUdeviceptr ptr, uint64_t bytes)
{
    if (bytes > 0) {
        check(dev, dev->cu.cuMemsetD32Async(ptr, 0, bytes / 4, stream), "cuMemsetD32Async");
    }
}

void demo_copy(const struct demo_device *dev, CUstream stream, CUdeviceptr to, CUdeviceptr from,
               uint64_t bytes)
{
    if (bytes > 0) {
        check(dev, dev->cu.cuMemcpyDtoDAsync(to, from, bytes, stream), "cuMemcpyDtoDAsync");
    }
}

void demo_read(const struct demo_device *dev, void *to, CUdeviceptr from, size_t bytes)
{
    check(dev, dev->cu.cuMemcpyDtoH(to, from, bytes), "cuMemcpyDtoH");
}

static unsigned threads_of(const struct demo_device *dev)
{
    return dev->simulated ? 1 : DEMO_THREADS;
}

static unsigned blocks_for(const struct demo_device *dev, int64_t wanted)
{
    if (wanted < 1) {
        return 1;
    }
    return wanted < dev->n_blocks ? (unsigned)wanted : (unsigned)dev->n_blocks;
}

void demo_launch(const struct demo_device *dev, CUstream stream, enum demo_kernel kernel,
                 int64_t n_items)
{
    const unsigned threads = threads_of(dev);
    const unsigned blocks = blocks_for(dev, (n_items + threads - 1) / threads);
    void *params[] = {&block()->args};
    check(dev,
          dev->cu.cuLaunchKernel(dev->kernels[kernel], blocks, 1, 1, threads, 1, 1, 0, stream,
                                 params, NULL),
          kernel_names[kernel]);
    n_launches++;
}

void demo_launch_prepare(const struct demo_device *dev, CUstream stream)
{
    const unsigned threads = threads_of(dev);
    void *params[] = {&block()->prepare};
    check(dev,
          dev->cu.cuLaunchKernel(dev->kernels[DEMO_K_prepare], 1, 1, 1, threads, 1, 1, 0, stream,
                                 params, NULL),
          "demo_prepare");
    n_launches++;
}

/* Parameters by one packed buffer, as libraries with generated kernels pass them. */
void demo_launch_product(const struct demo_device *dev, CUstream stream, int64_t n_tiles)
{
    size_t bytes = sizeof(struct demo_product);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block()->product, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, CU_LAUNCH_PARAM_END};
    check(dev,
          dev->cu.cuLaunchKernel(dev->kernels[DEMO_K_product], blocks_for(dev, n_tiles), 1, 1,
                                 threads_of(dev), 1, 1, 0, stream, NULL, extra),
          "demo_product");
    n_launches++;
}

CUstream demo_stream_create(const struct demo_device *dev)
{
    CUstream stream;
    check(dev, dev->cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
}

void demo_stream_destroy(const struct demo_device *dev, CUstream stream)
{
    check(dev, dev->cu.cuStreamDestroy(stream), "cuStreamDestroy");
}

void demo_stream_wait(const struct demo_device *dev, CUstream stream)
{
    check(dev, dev->cu.cuStreamSynchronize(stream), "cuStreamSynchronize");
}

void demo_stream_order(const struct demo_device *dev, CUstream before, CUstream after)
{
    if (before == after) {
        return;
    }
    CUevent event;
    check(dev, dev->cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    check(dev, dev->cu.cuEventRecord(event, before), "cuEventRecord");
    check(dev, dev->cu.cuStreamWaitEvent(after, event, 0), "cuStreamWaitEvent");
    check(dev, dev->cu.cuEventDestroy(event), "cuEventDestroy");
}

uint64_t demo_used_bytes(const struct demo_device *dev)
{
    size_t unused = 0, total = 0;
    check(dev, dev->cu.cuMemGetInfo(&unused, &total), "cuMemGetInfo");
    return total - unused;
}

bool demo_take_exact_peak(const struct demo_device *dev, uint64_t *bytes_p)
{
    uint64_t (*take)(void) = NULL;
    *(void **)&take = dlsym(dev->library, "simcuda_take_peak");
    if (take == NULL) {
        return false;
    }
    *bytes_p = take();
    return true;
}
