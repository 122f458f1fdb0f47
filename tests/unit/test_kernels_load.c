/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c against a driver table that records what it is asked and fails where it is told to. */
#include <string.h>

#include "kernels/kernels.h"
#include "tests/support/check_main.h"

#define N_FUNCTIONS 5

static struct {
    int n_modules; /* loaded now */
    int n_functions, n_loads, n_launches;
    int fail_function, fail_load; /* the n-th from 1; 0: never */
    CUresult fail_module;
    unsigned grid, block;
    const void *argument; /* of the last launch, the first */
    const void *image;
} seen;

static CUresult ctx_get_device(CUdevice *device)
{
    *device = 3;
    return CUDA_SUCCESS;
}

static CUresult device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ck_assert_int_eq(device, 3);
    ck_assert_int_eq(attribute, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    *value = 10;
    return CUDA_SUCCESS;
}

static CUresult module_load_data(CUmodule *module, const void *image)
{
    if (seen.fail_module != CUDA_SUCCESS) {
        return seen.fail_module;
    }
    seen.image = image;
    seen.n_modules++;
    *module = (CUmodule)&seen;
    return CUDA_SUCCESS;
}

static CUresult module_unload(CUmodule module)
{
    ck_assert_ptr_eq(module, (CUmodule)&seen);
    seen.n_modules--;
    return CUDA_SUCCESS;
}

static CUresult module_get_function(CUfunction *function, CUmodule module, const char *name)
{
    ck_assert_ptr_eq(module, (CUmodule)&seen);
    ck_assert_int_eq(strncmp(name, "ps_", 3), 0);
    if (++seen.n_functions == seen.fail_function) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *function = (CUfunction)name;
    return CUDA_SUCCESS;
}

static CUresult func_load(CUfunction function)
{
    ck_assert_ptr_nonnull(function);
    return ++seen.n_loads == seen.fail_load ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* The parameter list is the driver's. */
/* NOLINTNEXTLINE(readability-function-size) */
static CUresult launch_kernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, CUstream stream,
                              void **params, void **extra)
{
    ck_assert_ptr_nonnull(f);
    ck_assert(gy == 1 && gz == 1 && by == 1 && bz == 1 && shared == 0 && extra == NULL);
    ck_assert_ptr_eq(stream, CU_STREAM_PER_THREAD);
    seen.n_launches++;
    seen.grid = gx;
    seen.block = bx;
    seen.argument = params[0];
    return CUDA_SUCCESS;
}

static struct ps_driver driver;

static void setup(void)
{
    memset(&seen, 0, sizeof(seen));
    memset(&driver, 0, sizeof(driver));
    driver.cuCtxGetDevice = ctx_get_device;
    driver.cuDeviceGetAttribute = device_get_attribute;
    driver.cuModuleLoadData = module_load_data;
    driver.cuModuleUnload = module_unload;
    driver.cuModuleGetFunction = module_get_function;
    driver.cuFuncLoad = func_load;
    driver.cuLaunchKernel = launch_kernel;
}

START_TEST(the_image_is_a_fatbin_and_every_function_is_loaded_at_once)
{
    static const unsigned char magic[] = {0x50, 0xed, 0x55, 0xba};
    struct ps_kernels k;

    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    ck_assert(memcmp(seen.image, magic, sizeof(magic)) == 0);
    ck_assert_int_eq(seen.n_functions, N_FUNCTIONS);
    ck_assert_int_eq(seen.n_loads, N_FUNCTIONS);
    ck_assert_uint_eq(k.n_blocks, 40);
    ps_kernels_unload(&driver, &k);
    ck_assert_int_eq(seen.n_modules, 0);
    ps_kernels_unload(&driver, &k);
    ck_assert_int_eq(seen.n_modules, 0);
}
END_TEST

START_TEST(an_older_driver_need_not_know_cuFuncLoad)
{
    struct ps_kernels k;

    driver.cuFuncLoad = NULL;
    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    ck_assert_int_eq(seen.n_functions, N_FUNCTIONS);
}
END_TEST

/* _i: first a missing function, then one that cannot be loaded, last an image the driver refuses. */
START_TEST(after_a_failure_nothing_stays_loaded)
{
    static const CUresult wanted[] = {CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY,
                                      CUDA_ERROR_NO_BINARY_FOR_GPU};
    struct ps_kernels k = {.n_blocks = 77};

    seen.fail_function = _i <= N_FUNCTIONS ? _i : 0;
    seen.fail_load = _i > N_FUNCTIONS && _i <= 2 * N_FUNCTIONS ? _i - N_FUNCTIONS : 0;
    seen.fail_module = _i > 2 * N_FUNCTIONS ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
    ck_assert_int_eq(ps_kernels_load(&driver, &k), wanted[(_i - 1) / N_FUNCTIONS]);
    ck_assert_int_eq(seen.n_modules, 0);
    ck_assert_uint_eq(k.n_blocks, 77);
    ck_assert_ptr_null(k.module);
}
END_TEST

static const struct {
    uint64_t bytes[3];
    unsigned n_items, grid;
} grids[] = {
    {{512}, 1, 1},
    {{0}, 1, 1},
    {{8208}, 1, 17},
    {{512, 1024, 16}, 3, 4},
    {{19968}, 1, 39},
    {{19968, 16}, 2, 40},
    {{UINT64_C(1) << 32}, 1, 40},
};

START_TEST(there_are_no_more_blocks_than_pages)
{
    struct ps_kernels k;
    struct ps_batch b = {.page_bytes = 512, .n_items = grids[_i].n_items};

    for (unsigned i = 0; i < b.n_items; i++) {
        b.items[i].bytes = grids[_i].bytes[i];
        b.items[i].flags = 1;
    }
    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    ck_assert_int_eq(ps_kernels_stash(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_uint_eq(seen.grid, grids[_i].grid);
    ck_assert_ptr_eq(seen.argument, &b);
    ck_assert_int_eq(ps_kernels_restore(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_uint_eq(seen.grid, grids[_i].grid);
    ck_assert_int_eq(ps_kernels_drop(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_uint_eq(seen.grid, 1);
    ck_assert_int_eq(ps_kernels_grow(&driver, &k, CU_STREAM_PER_THREAD, 64, 1, 2), CUDA_SUCCESS);
    ck_assert_uint_eq(seen.grid, 1);
    ck_assert_int_eq(ps_kernels_clean(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_uint_eq(seen.grid, grids[_i].grid < 10 ? grids[_i].grid : 10);
    ck_assert_int_eq(seen.n_launches, 5);
}
END_TEST

START_TEST(an_empty_batch_launches_nothing)
{
    struct ps_kernels k;
    const struct ps_batch b = {.page_bytes = 512};

    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    ck_assert_int_eq(ps_kernels_stash(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_int_eq(ps_kernels_restore(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_int_eq(ps_kernels_drop(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_int_eq(ps_kernels_clean(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_int_eq(seen.n_launches, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels");
    TCase *t = tcase_create("loading and launching");

    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, the_image_is_a_fatbin_and_every_function_is_loaded_at_once);
    tcase_add_test(t, an_older_driver_need_not_know_cuFuncLoad);
    tcase_add_loop_test(t, after_a_failure_nothing_stays_loaded, 1, 2 * N_FUNCTIONS + 2);
    tcase_add_loop_test(t, there_are_no_more_blocks_than_pages, 0,
                        (int)(sizeof(grids) / sizeof(grids[0])));
    tcase_add_test(t, an_empty_batch_launches_nothing);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
