/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: stream-ordered allocation: what is reused when, what pools keep, and what they give back. */
#include "tests/sim/driver_test.h"

#define BYTES   ((size_t)65536)
#define N_SEEDS 8

static CUmemoryPool default_pool(void)
{
    CUmemoryPool pool;

    ok(cuDeviceGetDefaultMemPool(&pool, 0));
    return pool;
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
    uint64_t value;

    ok(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static uint64_t reserved(void)
{
    return attribute(default_pool(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static void keep_all(void)
{
    uint64_t all = UINT64_MAX;

    ok(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

static CUdeviceptr alloc(size_t bytes, CUstream s)
{
    CUdeviceptr p;

    ok(cuMemAllocAsync(&p, bytes, s));
    return p;
}

START_TEST(a_stream_reuses_what_it_freed)
{
    dt_start_seeded(_i, "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    uint32_t sum = 0;

    keep_all();
    for (uint32_t i = 0; i < 20; i++) {
        const CUdeviceptr a = alloc(BYTES, s), b = alloc(BYTES / 2, s);

        dt_fill(s, a, i, BYTES / 4);
        dt_fill(s, b, 100 * i, BYTES / 8);
        sum = dt_word(s, a + BYTES - 4) + dt_word(s, b);
        ck_assert_uint_eq(sum, (uint64_t)101 * i);
        ok(cuMemFreeAsync(a, s));
        ok(cuMemFreeAsync(b, s));
    }
    ck_assert_uint_eq(reserved(), BYTES + BYTES / 2);
    ck_assert_uint_eq(attribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    ck_assert_uint_eq(attribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_HIGH), BYTES + BYTES / 2);
}
END_TEST

START_TEST(another_stream_reuses_only_what_comes_before_it)
{
    dt_start("eager=0");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr flag = dt_alloc(4096);
    CUevent e;

    keep_all();
    ok(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    const CUdeviceptr p = alloc(BYTES, a);
    dt_spin(a, flag, 1);
    dt_fill(a, p, 7, BYTES / 4);
    ok(cuMemFreeAsync(p, a));
    const CUdeviceptr q = alloc(BYTES, b);
    ck_assert_uint_eq(reserved(), 2 * (uint64_t)BYTES); /* not p's memory */
    dt_fill(b, q, 1, BYTES / 4);
    ck_assert_uint_eq(dt_word(b, q), 1);
    ok(cuEventRecord(e, a));
    ok(cuStreamWaitEvent(b, e, 0));
    const CUdeviceptr r = alloc(BYTES, b);
    ck_assert_uint_eq(reserved(), 2 * (uint64_t)BYTES); /* p's memory: its free comes before */
    dt_set_flag(CU_STREAM_PER_THREAD, flag, 1);
    dt_fill(b, r, 2, BYTES / 4);
    ok(cuStreamSynchronize(a));
    ck_assert_uint_eq(dt_word(b, r), 2);
    ck_assert_uint_eq(dt_word(b, q), 1);
}
END_TEST

START_TEST(pieces_of_other_sizes_are_put_together)
{
    dt_start_seeded(_i, "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr p[8];

    keep_all();
    for (int i = 0; i < 8; i++) {
        p[i] = alloc(BYTES, s);
        dt_fill(s, p[i], 1, BYTES / 4);
    }
    for (int i = 0; i < 8; i++) {
        ok(cuMemFreeAsync(p[i], s));
    }
    const CUdeviceptr big = alloc(7 * (size_t)BYTES + 4096, s);
    dt_fill(s, big, 9, (7 * BYTES + 4096) / 4);
    const CUdeviceptr rest = alloc(BYTES - 4096, s);
    dt_fill(s, rest, 3, (BYTES - 4096) / 4);
    ck_assert_uint_eq(reserved(), 8 * (uint64_t)BYTES);
    for (uint32_t at = 0; at < 7 * BYTES; at += 4096) {
        ck_assert_uint_eq(dt_word(s, big + at), 9);
    }
    ck_assert_uint_eq(dt_word(s, rest), 3);
}
END_TEST

START_TEST(a_synchronisation_gives_back_what_is_above_the_threshold)
{
    dt_start("");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    uint64_t keep = BYTES;
    size_t before, after, total;

    ok(cuMemGetInfo(&before, &total));
    CUdeviceptr p = alloc(4 * (size_t)BYTES, s);
    ok(cuMemFreeAsync(p, s));
    ok(cuStreamSynchronize(s));
    ok(cuMemGetInfo(&after, &total));
    ck_assert_uint_eq(before, after);
    ok(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    p = alloc(BYTES, s);
    const CUdeviceptr q = alloc(BYTES, s);
    ok(cuMemFreeAsync(p, s));
    ok(cuMemFreeAsync(q, s));
    ok(cuStreamSynchronize(s));
    ck_assert_uint_eq(reserved(), keep);
}
END_TEST

START_TEST(trimming_keeps_what_is_not_done)
{
    dt_start("eager=0");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);

    keep_all();
    const CUdeviceptr p = alloc(BYTES, s), q = alloc(BYTES, s);
    ok(cuMemFreeAsync(p, s));
    ok(cuMemPoolTrimTo(default_pool(), 0));
    ck_assert_uint_eq(reserved(), 2 * (uint64_t)BYTES);
    ok(cuStreamSynchronize(s));
    ok(cuMemPoolTrimTo(default_pool(), 0));
    ck_assert_uint_eq(reserved(), BYTES);
    dt_fill(s, q, 1, BYTES / 4);
    ck_assert_uint_eq(dt_word(s, q), 1);
}
END_TEST

START_TEST(unused_pool_memory_serves_other_allocations)
{
    dt_start("");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr p = alloc(48u << 20, s);

    keep_all();
    ok(cuMemFreeAsync(p, s));
    ok(cuStreamSynchronize(s));
    ck_assert_uint_eq(reserved(), 48u << 20);
    ok(cuMemAlloc(&p, 40u << 20)); /* only if the pool gives some back */
    ck_assert_uint_le(reserved(), 24u << 20);
}
END_TEST

START_TEST(out_of_memory_waits_for_frees_that_are_queued)
{
    dt_start("eager=0");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr p = alloc(48u << 20, a);

    dt_fill(a, p, 1, 16);
    ok(cuMemFreeAsync(p, a));
    const CUdeviceptr q =
        alloc(48u << 20, b); /* same memory, with a dependency of the pool's own */
    dt_fill(b, q, 2, 16);
    ck_assert_uint_eq(dt_word(b, q), 2);
}
END_TEST

START_TEST(explicit_pools_stand_alone)
{
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemoryPool pool, asked;
    CUdeviceptr p;

    dt_start("");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);

    ok(cuMemPoolCreate(&pool, &props));
    ok(cuMemAllocFromPoolAsync(&p, BYTES, pool, s));
    ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), BYTES);
    ck_assert_uint_eq(reserved(), 0);
    ok(cuPointerGetAttribute(&asked, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    ck_assert_ptr_eq(asked, pool);
    ok(cuDeviceSetMemPool(0, pool));
    (void)alloc(BYTES, s);
    ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 2 * (uint64_t)BYTES);
    ok(cuMemPoolDestroy(pool));
    fails(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
    dt_fill(s, p, 6, 1);
    ck_assert_uint_eq(dt_word(s, p), 6); /* what lives outlives its pool */
    ok(cuMemFreeAsync(p, s));
    ok(cuStreamSynchronize(s));
    fails(cuMemPoolDestroy(default_pool()), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(a_plain_free_of_pool_memory_waits)
{
    dt_start("eager=0");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr p = alloc(BYTES, s);

    dt_fill(s, p, 1, BYTES / 4);
    ok(cuMemFree(p));
    ok(cuStreamQuery(s));
    fails(cuMemFreeAsync(p, s), CUDA_ERROR_INVALID_VALUE);
    ck_assert_uint_eq(reserved(), 0);
}
END_TEST

START_TEST(contents_survive_a_thousand_allocations)
{
    enum { N = 24 };
    CUdeviceptr p[N] = {0};
    CUstream s[3];
    CUevent e;
    uint32_t value[N];

    dt_start_seeded(_i, "");
    srand((unsigned)_i);
    ok(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 3; i++) {
        s[i] = dt_stream(i == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
    }
    for (uint32_t round = 0; round < 1000; round++) {
        const int i = rand() % N, from = rand() % 3, to = rand() % 3;
        const uint32_t words = (uint32_t)(i + 1) * 700;

        if (p[i] != 0) {
            ok(cuEventRecord(e, s[i % 3]));
            ok(cuStreamWaitEvent(s[from], e, 0));
            ck_assert_uint_eq(dt_word(s[from], p[i] + 4 * (uint64_t)(words - 1)), value[i]);
            ok(cuMemFreeAsync(p[i], s[from]));
        }
        if (rand() % 4 == 0) {
            ok(cuEventRecord(e, s[from]));
            ok(cuStreamWaitEvent(s[to], e, 0));
        }
        p[i] = alloc(4 * (size_t)words, s[i % 3]);
        value[i] = round;
        dt_fill(s[i % 3], p[i], round, words);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pools");
    TCase *tc = tcase_create("pools");

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, a_stream_reuses_what_it_freed, 0, N_SEEDS);
    tcase_add_test(tc, another_stream_reuses_only_what_comes_before_it);
    tcase_add_loop_test(tc, pieces_of_other_sizes_are_put_together, 0, 3);
    tcase_add_test(tc, a_synchronisation_gives_back_what_is_above_the_threshold);
    tcase_add_test(tc, trimming_keeps_what_is_not_done);
    tcase_add_test(tc, unused_pool_memory_serves_other_allocations);
    tcase_add_test(tc, out_of_memory_waits_for_frees_that_are_queued);
    tcase_add_test(tc, explicit_pools_stand_alone);
    tcase_add_test(tc, a_plain_free_of_pool_memory_waits);
    tcase_add_loop_test(tc, contents_survive_a_thousand_allocations, 0, 4);
    suite_add_tcase(s, tc);
    return ps_check_main(s);
}
