/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c against a driver table that records what it is asked and fails where it is told to. */
#include <string.h>

#include "kernels/kernels.h"
#include "tests/support/check_main.h"

#define N_FUNCTIONS 6

static struct {
    int n_modules; /* loaded now */
    int n_functions, n_loads, n_launches;
    int fail_function, fail_load; /* the n-th from 1; 0: never */
    CUresult fail_module;
    unsigned grid, block, shared;
    struct ps_batch batch; /* of the last launch of one */
    struct ps_shift shift;
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
    ck_assert(gy == 1 && gz == 1 && by == 1 && bz == 1 && extra == NULL);
    ck_assert_ptr_eq(stream, CU_STREAM_PER_THREAD);
    seen.n_launches++;
    seen.grid = gx;
    seen.block = bx;
    seen.shared = shared;
    if (strcmp((const char *)f, "ps_shift") == 0) {
        memcpy(&seen.shift, params[0], sizeof(seen.shift));
    } else if (strcmp((const char *)f, "ps_grow") != 0) {
        memcpy(&seen.batch, params[0], sizeof(seen.batch));
    }
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
    ck_assert_uint_eq(k.n_multiprocessors, 10);
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
    struct ps_kernels k = {.n_multiprocessors = 77};

    seen.fail_function = _i <= N_FUNCTIONS ? _i : 0;
    seen.fail_load = _i > N_FUNCTIONS && _i <= 2 * N_FUNCTIONS ? _i - N_FUNCTIONS : 0;
    seen.fail_module = _i > 2 * N_FUNCTIONS ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_SUCCESS;
    ck_assert_int_eq(ps_kernels_load(&driver, &k), wanted[(_i - 1) / N_FUNCTIONS]);
    ck_assert_int_eq(seen.n_modules, 0);
    ck_assert_uint_eq(k.n_multiprocessors, 77);
    ck_assert_ptr_null(k.module);
}
END_TEST

/* A shape, what it is put to, and what comes of it. */
static const struct {
    struct ps_shape shape; /* blocks, unit, chunk, slots */
    uint64_t bytes[3];
    uint32_t page_bytes, n_items;
    unsigned grid, unit_shift, chunk_shift, shared;
} shapes[] = {
    {{40, 512, 512, 4}, {512}, 512, 1, 1, 9, 9, 8192},
    {{40, 512, 512, 4}, {0}, 512, 1, 1, 9, 9, 8192},
    {{40, 512, 512, 4}, {8208}, 512, 1, 17, 9, 9, 8192},
    {{40, 512, 512, 4}, {512, 1024, 16}, 512, 3, 4, 9, 9, 8192},
    {{40, 512, 512, 4}, {19968, 16}, 512, 2, 40, 9, 9, 8192},
    {{40, 512, 512, 4}, {19968, 32, 32}, 512, 3, 40, 9, 9, 8192},
    {{40, 512, 512, 4}, {UINT64_C(1) << 32}, 512, 1, 40, 9, 9, 8192},
    /* Units are parts of pages, a 32nd at least, and chunks parts of units. */
    {{1000, 16384, 8192, 4}, {65536 * 3 + 16}, 65536, 1, 16, 14, 13, 32768},
    {{10, 16384, 65536, 2}, {65536 * 3 + 16}, 65536, 1, 10, 14, 14, 32768},
    {{0, 16384, 4096, 3}, {5 << 20}, 2 << 20, 1, 96, 16, 12, 12288},
    {{0, 16384, 4096, 3}, {5 << 20}, 512, 1, 10240, 9, 9, 8192},
    {{0, 16, 16, 2}, {1536}, 512, 1, 96, 4, 4, 8192},
    /* No more units than can be counted. */
    {{7, 16, 16, 2},
     {UINT64_C(1) << 32, UINT64_C(1) << 32, UINT64_C(1) << 32},
     512,
     3,
     7,
     4,
     4,
     8192},
};

START_TEST(a_launch_has_its_shape)
{
    struct ps_kernels k;
    struct ps_batch b = {.page_bytes = shapes[_i].page_bytes, .n_items = shapes[_i].n_items};
    uint64_t first = 0;

    for (unsigned i = 0; i < b.n_items; i++) {
        b.items[i].bytes = shapes[_i].bytes[i];
    }
    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    const struct ps_shape other = {1, 512, 512, 2};
    const enum ps_pace pace = (enum ps_pace)(_i % 3);
    k.out = (struct ps_shapes){other, other, other, other};
    *(pace == PS_QUIET  ? &k.out.quiet
      : pace == PS_HOST ? &k.out.host
                        : &k.out.small) = shapes[_i].shape;
    k.out.fast.unit_bytes = UINT32_MAX; /* all is small */
    k.n_multiprocessors = UINT32_MAX / 16;
    k.in = k.out;

    for (int restores = 0; restores < 2; restores++) {
        memset(&seen.batch, 0xa5, sizeof(seen.batch));
        ck_assert_int_eq((restores ? ps_kernels_restore
                                   : ps_kernels_stash)(&driver, &k, CU_STREAM_PER_THREAD, &b, pace),
                         CUDA_SUCCESS);
        ck_assert_uint_eq(seen.grid, shapes[_i].grid);
        ck_assert_uint_eq(seen.block, 32);
        ck_assert_uint_eq(seen.shared, shapes[_i].shared);
        ck_assert_uint_eq(seen.batch.unit_shift, shapes[_i].unit_shift);
        ck_assert_uint_eq(seen.batch.ring.chunk_shift, shapes[_i].chunk_shift);
        ck_assert_uint_eq(seen.batch.ring.n_slots, shapes[_i].shape.n_slots);
        first = 0;
        for (unsigned i = 0; i < b.n_items; i++) {
            ck_assert_uint_eq(seen.batch.items[i].bytes, shapes[_i].bytes[i]);
            ck_assert_uint_eq(seen.batch.first_page[i], first);
            first += ps_batch_item_pages(&b, &b.items[i]);
        }
    }
}
END_TEST

/* _i: pace and direction. More than PS_RING_MAX must be asked for in another way, which no driver need grant. */
START_TEST(what_is_built_in_asks_for_no_more_than_a_block_has)
{
    static const uint32_t pages[] = {512, 4096, 65536, 262144, 2 << 20};
    const enum ps_pace pace = (enum ps_pace)(_i % 3);
    struct ps_kernels k;

    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    for (unsigned i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        for (uint64_t bytes = 512; bytes <= UINT64_C(1) << 32; bytes *= 64) {
            for (int host = 0; host < 2; host++) {
                struct ps_batch b = {.page_bytes = pages[i], .n_items = 1};

                b.items[0].bytes = bytes;
                b.host_list = b.host_pieces = host != 0 ? 64 : 0;
                seen.shared = UINT32_MAX;
                ck_assert_int_eq((_i < 3 ? ps_kernels_stash : ps_kernels_restore)(
                                     &driver, &k, CU_STREAM_PER_THREAD, &b, pace),
                                 CUDA_SUCCESS);
                ck_assert_uint_le(seen.shared, PS_RING_MAX);
            }
        }
    }
}
END_TEST

/* A stash with host pages, or that looks beyond rows, has units of a page; a restore need not. */
START_TEST(a_stash_that_must_goes_by_the_page)
{
    struct ps_kernels k;
    struct ps_batch b = {.page_bytes = 4096, .n_items = 2};

    b.items[0].bytes = b.items[1].bytes = 65536;
    b.items[1].unit_bytes = 64;
    if (_i == 0) {
        b.host_list = b.host_pieces = 64;
    } else {
        b.items[1].rows = 64;
        b.items[1].rows_kind = _i == 2 ? PS_ROWS_TRUSTED : 0;
        b.outcomes = 64;
    }
    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    k.out.small = k.in.quiet = (struct ps_shape){0, 512, 512, 3};
    ck_assert_int_eq(ps_kernels_stash(&driver, &k, CU_STREAM_PER_THREAD, &b, PS_FAST),
                     CUDA_SUCCESS);
    ck_assert_uint_eq(seen.batch.unit_shift, _i == 2 ? 9 : 12);
    ck_assert_int_eq(ps_kernels_restore(&driver, &k, CU_STREAM_PER_THREAD, &b, PS_QUIET),
                     CUDA_SUCCESS);
    ck_assert_uint_eq(seen.batch.unit_shift, 9);
}
END_TEST

START_TEST(what_is_large_is_not_launched_as_if_it_were_small)
{
    struct ps_kernels k;
    struct ps_batch b = {.page_bytes = 65536, .n_items = 1};

    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    k.n_multiprocessors = 2;
    k.out.fast = (struct ps_shape){10, 65536, 8192, 5};
    k.out.small = (struct ps_shape){10, 4096, 4096, 4};
    k.out.host = (struct ps_shape){10, 4096, 4096, 6};
    k.in.quiet = (struct ps_shape){10, 4096, 4096, 3};
    b.items[0].bytes = UINT64_C(2) * 8 * 65536 - 16;
    ck_assert_int_eq(ps_kernels_stash(&driver, &k, CU_STREAM_PER_THREAD, &b, PS_FAST),
                     CUDA_SUCCESS);
    ck_assert_uint_eq(seen.batch.ring.n_slots, 4);
    b.items[0].bytes += 16;
    ck_assert_int_eq(ps_kernels_stash(&driver, &k, CU_STREAM_PER_THREAD, &b, PS_FAST),
                     CUDA_SUCCESS);
    ck_assert_uint_eq(seen.batch.ring.n_slots, 5);
    ck_assert_int_eq(ps_kernels_stash(&driver, &k, CU_STREAM_PER_THREAD, &b, PS_HOST),
                     CUDA_SUCCESS);
    ck_assert_uint_eq(seen.batch.ring.n_slots, 6);
    ck_assert_int_eq(ps_kernels_restore(&driver, &k, CU_STREAM_PER_THREAD, &b, PS_QUIET),
                     CUDA_SUCCESS);
    ck_assert_uint_eq(seen.batch.ring.n_slots, 3);
}
END_TEST

START_TEST(the_others_are_few_blocks)
{
    struct ps_kernels k;
    struct ps_batch b = {.page_bytes = 512, .n_items = 1};
    static const uint64_t bytes[] = {0, 512, 513 + 15, 4608, 5120, UINT64_C(1) << 32};
    static const unsigned grid[] = {1, 1, 2, 9, 10, 10};

    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    b.items[0].bytes = bytes[_i];
    b.items[0].flags = 1;
    ck_assert_int_eq(ps_kernels_drop(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_uint_eq(seen.grid, 1);
    ck_assert_uint_eq(seen.block, 32);
    ck_assert_int_eq(ps_kernels_grow(&driver, &k, CU_STREAM_PER_THREAD, 64, 1, 2), CUDA_SUCCESS);
    ck_assert_uint_eq(seen.grid, 1);
    ck_assert_int_eq(ps_kernels_clean(&driver, &k, CU_STREAM_PER_THREAD, &b), CUDA_SUCCESS);
    ck_assert_uint_eq(seen.grid, grid[_i]);
    ck_assert_uint_eq(seen.batch.items[0].flags, 1);
    ck_assert_int_eq(seen.n_launches, 3);
}
END_TEST

/* Whatever there may be to copy: what more blocks store to the host stalls those of the job. */
START_TEST(a_shift_is_few_blocks)
{
    struct ps_kernels k;
    const struct ps_shift s = {.to = 32,
                               .from = 64,
                               .count = 8,
                               .note = 16,
                               .first = 3,
                               .n_pages = UINT32_MAX,
                               .page_bytes = 2u << 20,
                               .to_host = (uint8_t)_i};

    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    ck_assert_int_eq(ps_kernels_shift(&driver, &k, CU_STREAM_PER_THREAD, &s), CUDA_SUCCESS);
    ck_assert_int_eq(seen.n_launches, 1);
    ck_assert_uint_le(seen.grid, 4);
    ck_assert_uint_gt(seen.grid, 0);
    ck_assert_uint_eq(seen.block, 32);
    ck_assert_uint_ge(seen.shift.ring.n_slots, 2);
    ck_assert_uint_eq(seen.shared, (1u << seen.shift.ring.chunk_shift) * seen.shift.ring.n_slots);
    ck_assert_uint_le(seen.shared, PS_RING_MAX);
    seen.shift.ring = s.ring;
    ck_assert(memcmp(&seen.shift, &s, sizeof(s)) == 0);
}
END_TEST

START_TEST(an_empty_batch_launches_nothing)
{
    struct ps_kernels k;
    const struct ps_batch b = {.page_bytes = 512};

    ck_assert_int_eq(ps_kernels_load(&driver, &k), CUDA_SUCCESS);
    ck_assert_int_eq(ps_kernels_stash(&driver, &k, CU_STREAM_PER_THREAD, &b, PS_FAST),
                     CUDA_SUCCESS);
    ck_assert_int_eq(ps_kernels_restore(&driver, &k, CU_STREAM_PER_THREAD, &b, PS_QUIET),
                     CUDA_SUCCESS);
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
    tcase_add_loop_test(t, a_launch_has_its_shape, 0, (int)(sizeof(shapes) / sizeof(shapes[0])));
    tcase_add_loop_test(t, what_is_built_in_asks_for_no_more_than_a_block_has, 0, 6);
    tcase_add_loop_test(t, a_stash_that_must_goes_by_the_page, 0, 3);
    tcase_add_test(t, what_is_large_is_not_launched_as_if_it_were_small);
    tcase_add_loop_test(t, the_others_are_few_blocks, 0, 6);
    tcase_add_loop_test(t, a_shift_is_few_blocks, 0, 2);
    tcase_add_test(t, an_empty_batch_launches_nothing);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
