/* SPDX-License-Identifier: Apache-2.0 */
/* See rig.h. On the software driver the kernels are rows of this program, on a real one an image made by nvcc. */
#include "tests/bench/launch/rig.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/simkernel.h"

extern const unsigned char bench_image[]; /* made at build time */

const struct bench_shape bench_shapes[BENCH_N_SHAPES] = {
#define X(_name, _n, _size) {#_name, _n, _size},
    BENCH_SHAPES(X)
#undef X
};

/* ---- kernels on the software driver ---- */

static void run_nothing(const struct ps_sim_block *block, void *const *params)
{
    (void)block;
    (void)params;
}

#define X(_name, _n, _size)                                                                        \
    static const size_t _name##_sizes[] = {[0 ...(_n) - 1] = (_size)};                             \
    static const size_t _name##_aligns[] = {[0 ...(_n) - 1] = 8};
BENCH_SHAPES(X)
#undef X

static const struct ps_sim_kernel rows[BENCH_N_SHAPES] = {
#define X(_name, _n, _size) {#_name, run_nothing, _n, _name##_sizes, _name##_aligns},
    BENCH_SHAPES(X)
#undef X
};

static void add_kernels(void *cuda)
{
    void (*add)(const struct ps_sim_kernel *rows, size_t n) = NULL;

    *(void **)&add = dlsym(cuda, "simcuda_add_kernels");
    if (add != NULL) {
        add(rows, BENCH_N_SHAPES);
    }
}

/* ---- look-ups ---- */

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "launch_cost: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

void bench_ok(CUresult r, const char *what)
{
    char why[32];

    if (r != CUDA_SUCCESS) {
        snprintf(why, sizeof(why), "CUDA error %d", (int)r);
        fail(what, why);
    }
}

typedef void *(*dlsym_fn)(void *handle, const char *name);

/* libc's own, by its version: the library stands in for the one that this program is bound to. */
static dlsym_fn plain_dlsym(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    void *const libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    dlsym_fn find = NULL;

    for (size_t i = 0; libc != NULL && find == NULL && i < sizeof(versions) / sizeof(*versions);
         i++) {
        *(void **)&find = dlvsym(libc, "dlsym", versions[i]);
    }
    if (find == NULL) {
        fail("dlsym", "not found in libc.so.6");
    }
    return find;
}

static void *find(dlsym_fn look_up, void *cuda, const char *name)
{
    void *const p = look_up(cuda, name);

    if (p == NULL) {
        fail(name, "not found");
    }
    return p;
}

/* The comparison is of nothing unless the one is the library's and the other the driver's. */
static void must_lie_in(void *p, const char *name, const char *object)
{
    Dl_info info;

    if (dladdr(p, &info) == 0 || info.dli_fname == NULL || strstr(info.dli_fname, object) == NULL) {
        fail(name, object[3] == 'p' ? "is not the library's: is it preloaded?"
                                    : "is not the driver's own");
    }
}

#define HOOKED(_field, _symbol) (*(void **)&rig->_field = find(dlsym, cuda, _symbol))
#define BARE(_field, _symbol)   (*(void **)&rig->_field = find(plain, cuda, _symbol))

static void look_up(struct bench_rig *rig, void *cuda)
{
    const dlsym_fn plain = plain_dlsym();

    HOOKED(launch, "cuLaunchKernel");
    HOOKED(stream_create, "cuStreamCreate");
    HOOKED(stream_destroy, "cuStreamDestroy_v2");
    HOOKED(alloc, "cuMemAllocAsync");
    HOOKED(free, "cuMemFreeAsync");
    HOOKED(copy, "cuMemcpyDtoDAsync_v2");
    BARE(bare_launch, "cuLaunchKernel");
    BARE(bare_synchronize, "cuStreamSynchronize");
    must_lie_in(*(void **)&rig->launch, "cuLaunchKernel", "libpagedstash");
    must_lie_in(*(void **)&rig->bare_launch, "cuLaunchKernel", "libcuda");
}

/* ---- the device ---- */

static void make_context(struct bench_rig *rig, void *cuda)
{
    const PFN_cuInit_v2000 init = (PFN_cuInit_v2000)find(dlsym, cuda, "cuInit");
    const PFN_cuDriverGetVersion_v2020 version =
        (PFN_cuDriverGetVersion_v2020)find(dlsym, cuda, "cuDriverGetVersion");
    const PFN_cuDeviceGet_v2000 get = (PFN_cuDeviceGet_v2000)find(dlsym, cuda, "cuDeviceGet");
    const PFN_cuDeviceGetName_v2000 name =
        (PFN_cuDeviceGetName_v2000)find(dlsym, cuda, "cuDeviceGetName");
    const PFN_cuDevicePrimaryCtxRetain_v7000 retain =
        (PFN_cuDevicePrimaryCtxRetain_v7000)find(dlsym, cuda, "cuDevicePrimaryCtxRetain");
    const PFN_cuCtxSetCurrent_v4000 set =
        (PFN_cuCtxSetCurrent_v4000)find(dlsym, cuda, "cuCtxSetCurrent");
    CUcontext ctx;
    CUdevice device;

    OK(init(0));
    OK(version(&rig->driver_version));
    OK(get(&device, 0));
    OK(name(rig->device, sizeof(rig->device), device));
    OK(retain(&ctx, device));
    OK(set(ctx));
    rig->simulated = strstr(rig->device, "simcuda") != NULL;
}

static void load_kernels(struct bench_rig *rig, void *cuda)
{
    const PFN_cuModuleLoadData_v2000 load =
        (PFN_cuModuleLoadData_v2000)find(dlsym, cuda, "cuModuleLoadData");
    const PFN_cuModuleGetFunction_v2000 get =
        (PFN_cuModuleGetFunction_v2000)find(dlsym, cuda, "cuModuleGetFunction");
    CUmodule module;

    add_kernels(cuda);
    OK(load(&module, bench_image));
    for (unsigned i = 0; i < BENCH_N_SHAPES; i++) {
        OK(get(&rig->kernel[i], module, bench_shapes[i].name));
    }
}

static void make_source(struct bench_rig *rig, void *cuda)
{
    const PFN_cuMemAlloc_v3020 alloc = (PFN_cuMemAlloc_v3020)find(dlsym, cuda, "cuMemAlloc_v2");
    const PFN_cuMemcpyHtoD_v3020 upload =
        (PFN_cuMemcpyHtoD_v3020)find(dlsym, cuda, "cuMemcpyHtoD_v2");
    uint64_t *const words = malloc(rig->bytes);

    if (words == NULL) {
        fail("malloc", "no memory");
    }
    for (uint64_t i = 0; i < rig->bytes / sizeof(*words); i++) {
        words[i] = i * UINT64_C(0x9e3779b97f4a7c15);
    }
    OK(alloc(&rig->source, rig->bytes));
    OK(upload(rig->source, words, rig->bytes));
    free(words);
}

void bench_rig_open(struct bench_rig *rig, uint64_t bytes)
{
    void *const cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (cuda == NULL) {
        fail("libcuda.so.1", "cannot be loaded");
    }
    memset(rig, 0, sizeof(*rig));
    rig->bytes = bytes;
    look_up(rig, cuda);
    make_context(rig, cuda);
    load_kernels(rig, cuda);
    make_source(rig, cuda);
}
