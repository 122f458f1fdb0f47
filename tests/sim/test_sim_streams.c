/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: streams, events, host callbacks and values do what the driver's do, whatever order ran. */
#include <pthread.h>
#include <unistd.h>

#include <cudaTypedefs.h>

#include "tests/sim/driver_test.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);

#define N_SEEDS 8

START_TEST(work_waits_for_a_call_that_needs_it)
{
    dt_start("eager=0");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);
    uint32_t *seen;

    ok(cuMemHostAlloc((void **)&seen, 4096, 0));
    *seen = 7;
    dt_fill(s, x, 9, 1);
    ok(cuMemcpyDtoHAsync(seen, x, 4, s));
    ck_assert_uint_eq(*seen, 7);
    ok(cuStreamSynchronize(s));
    ck_assert_uint_eq(*seen, 9);
}
END_TEST

START_TEST(one_stream_is_in_order)
{
    dt_start_seeded(_i, "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);

    for (uint32_t i = 0; i < 50; i++) {
        dt_fill(s, x, i, 16);
        dt_add(s, x, 1, 16);
    }
    ck_assert_uint_eq(dt_word(s, x), 50);
}
END_TEST

START_TEST(an_event_orders_two_streams)
{
    dt_start_seeded(_i, "");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);
    CUevent e;

    ok(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    for (uint32_t i = 0; i < 20; i++) {
        dt_fill(a, x, i, 16);
        ok(cuEventRecord(e, a));
        ok(cuStreamWaitEvent(b, e, 0));
        dt_add(b, x, 100, 16);
        ok(cuEventRecord(e, b));
        ok(cuStreamWaitEvent(a, e, 0));
    }
    ck_assert_uint_eq(dt_word(b, x), 119);
}
END_TEST

START_TEST(without_an_event_some_order_differs)
{
    unsigned differed = 0;

    dt_start_seeded(_i, "eager=0");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);

    for (uint32_t i = 0; i < 200; i++) {
        dt_fill(a, x, 1, 1);
        dt_fill(b, x, 2, 1);
        ok(cuCtxSynchronize());
        differed += dt_word(a, x) == 1;
    }
    ck_assert_uint_gt(differed, 0);
    ck_assert_uint_lt(differed, 200);
}
END_TEST

START_TEST(a_wait_means_the_record_of_its_time)
{
    dt_start_seeded(_i, "");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr flag = dt_alloc(4096), x = dt_alloc(4096);
    CUevent e, never;

    ok(cuEventCreate(&e, 0));
    ok(cuEventCreate(&never, 0));
    ok(cuStreamWaitEvent(b, never, 0));
    dt_fill(a, x, 5, 1);
    ok(cuEventRecord(e, a));
    ok(cuStreamWaitEvent(b, e, 0));
    dt_spin(a, flag, 1);
    ok(cuEventRecord(e, a)); /* again: whoever waited already does not wait for this one */
    ck_assert_uint_eq(dt_word(b, x), 5);
    fails(cuEventQuery(e), CUDA_ERROR_NOT_READY);
    fails(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
    dt_set_flag(b, flag, 1);
    ok(cuEventSynchronize(e));
    ok(cuEventQuery(e));
    ok(cuStreamQuery(a));
}
END_TEST

START_TEST(events_know_their_times_and_their_end)
{
    dt_start("");
    const CUstream s = dt_stream(0);
    const CUdeviceptr x = dt_alloc(4096);
    CUevent a, b, untimed;
    float ms = -1;

    ok(cuEventCreate(&a, 0));
    ok(cuEventCreate(&b, 0));
    ok(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    fails(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
    ok(cuEventRecord(a, s));
    dt_fill(s, x, 1, 1);
    ok(cuEventRecord(b, s));
    ok(cuEventSynchronize(b));
    ok(cuEventElapsedTime(&ms, a, b));
    ck_assert(ms >= 0 && ms < 60000);
    ok(cuEventRecord(untimed, s));
    ok(cuEventSynchronize(untimed));
    fails(cuEventElapsedTime(&ms, a, untimed), CUDA_ERROR_INVALID_HANDLE);
    ok(cuEventDestroy(a));
    fails(cuEventDestroy(a), CUDA_ERROR_INVALID_HANDLE);
    fails(cuEventRecord(a, s), CUDA_ERROR_INVALID_HANDLE);
    fails(cuEventCreate(&a, 1u << 20), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(the_legacy_stream_is_a_barrier_for_blocking_streams)
{
    dt_start_seeded(_i, "");
    const CUstream blocking = dt_stream(CU_STREAM_DEFAULT), after = dt_stream(CU_STREAM_DEFAULT);
    const CUstream aside = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr flag = dt_alloc(4096), x = dt_alloc(4096);

    dt_spin(blocking, flag, 1);
    dt_add(NULL, x, 1, 1);
    dt_add(after, x, 1, 1);
    dt_fill(aside, x + 1024, 3, 1);
    ok(cuStreamSynchronize(aside));
    for (int i = 0; i < 20; i++) {
        fails(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
        fails(cuStreamQuery(after), CUDA_ERROR_NOT_READY);
    }
    ck_assert_uint_eq(dt_word(aside, x), 0);
    dt_set_flag(aside, flag, 1);
    ck_assert_uint_eq(dt_word(after, x), 2);
}
END_TEST

struct own {
    CUdeviceptr flag;
    CUstream stop; /* where to say so */
    unsigned long long id;
};

static void *spin_in_own_stream(void *arg)
{
    struct own *own = arg;

    ok(cuCtxSetCurrent(dt_ctx));
    ok(cuStreamGetId(CU_STREAM_PER_THREAD, &own->id));
    dt_spin(CU_STREAM_PER_THREAD, own->flag, 1);
    ok(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    return NULL;
}

START_TEST(each_thread_has_a_default_stream)
{
    PFN_cuLaunchKernel_v7000_ptsz launch;
    PFN_cuStreamQuery_v7000_ptsz query;
    pthread_t thread;

    dt_start_seeded(_i, "");
    struct own own = {.flag = dt_alloc(4096)};
    const CUdeviceptr x = dt_alloc(4096);
    unsigned long long id, legacy;
    uint32_t value = 6;
    uint64_t n = 1;

    ok(cuGetProcAddress("cuLaunchKernel", (void **)&launch, 12000,
                        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
    ok(cuGetProcAddress("cuStreamQuery", (void **)&query, 12000,
                        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
    ck_assert_int_eq(pthread_create(&thread, NULL, spin_in_own_stream, &own), 0);
    ok(launch(dt_function("sim_fill"), 1, 1, 1, 1, 1, 1, 0, NULL,
              (void *[]){(void *)&x, &value, &n}, NULL));
    ck_assert_uint_eq(dt_word(CU_STREAM_PER_THREAD, x), 6);
    ok(query(NULL));
    ok(cuStreamGetId(CU_STREAM_PER_THREAD, &id));
    ok(cuStreamGetId(NULL, &legacy));
    dt_set_flag(CU_STREAM_PER_THREAD, own.flag, 1);
    pthread_join(thread, NULL);
    ck_assert_uint_ne(id, own.id);
    ck_assert_uint_ne(id, legacy);
}
END_TEST

struct called {
    int n;
    CUresult inside;
};

static void CUDA_CB called(void *arg)
{
    struct called *c = arg;

    c->n++;
    c->inside = cuCtxSynchronize();
}

static void CUDA_CB called_back(CUstream stream, CUresult status, void *arg)
{
    (void)stream;
    *(CUresult *)arg = status;
}

START_TEST(callbacks_are_in_order_and_may_not_call_the_driver)
{
    dt_start_seeded(_i, "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);
    struct called c = {0, CUDA_SUCCESS};
    CUresult status = CUDA_ERROR_UNKNOWN;

    dt_fill(s, x, 1, 1);
    ok(cuLaunchHostFunc(s, called, &c));
    dt_add(s, x, 1, 1);
    ok(cuStreamAddCallback(s, called_back, &status, 0));
    ok(cuStreamSynchronize(s));
    ck_assert_int_eq(c.n, 1);
    fails(c.inside, CUDA_ERROR_NOT_PERMITTED);
    ok(status);
    ck_assert_uint_eq(dt_word(s, x), 2);
}
END_TEST

START_TEST(values_order_streams_and_host)
{
    dt_start_seeded(_i, "");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr word = dt_alloc(4096), x = dt_alloc(4096);
    uint64_t *host;

    ok(cuMemHostAlloc((void **)&host, 4096, 0));
    __atomic_store_n(host, 0, __ATOMIC_RELAXED);
    ok(cuStreamWaitValue32(b, word, 3, CU_STREAM_WAIT_VALUE_GEQ));
    dt_add(b, x, 10, 1);
    ok(cuStreamWaitValue64(b, (CUdeviceptr)(uintptr_t)host, 1ull << 40, CU_STREAM_WAIT_VALUE_EQ));
    dt_fill(a, x, 1, 1);
    fails(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    ok(cuStreamWriteValue32(a, word, 4, 0));
    ok(cuStreamWriteValue64(a, (CUdeviceptr)(uintptr_t)host, 1ull << 40, 0));
    ck_assert_uint_eq(dt_word(b, x), 11);
    fails(cuStreamWaitValue32(a, 0x1000, 1, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(a_destroyed_stream_ends_its_work)
{
    dt_start_seeded(_i, "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);
    CUevent e;

    ok(cuEventCreate(&e, 0));
    dt_fill(s, x, 8, 1);
    ok(cuEventRecord(e, s));
    ok(cuStreamDestroy(s));
    fails(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
    ok(cuEventSynchronize(e));
    ck_assert_uint_eq(dt_word(NULL, x), 8);
}
END_TEST

START_TEST(a_deadlock_is_told)
{
    dt_start("hang=1");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr word = dt_alloc(4096);

    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
    ok(cuStreamWaitValue32(a, word, 3, CU_STREAM_WAIT_VALUE_EQ));
    ok(cuStreamSynchronize(a));
}
END_TEST

static void *destroys(void *ctx)
{
    CUcontext now;

    ok(cuCtxSetCurrent(ctx));
    ok(cuCtxDestroy(ctx));
    ok(cuCtxGetCurrent(&now));
    ck_assert_ptr_null(now);
    return NULL;
}

/* Only the thread that destroys it loses it. */
START_TEST(a_destroyed_context_stays_current_elsewhere)
{
    pthread_t thread;
    CUcontext doomed, now;
    CUdevice device;

    dt_start("");
    ok(cuCtxCreate_v2(&doomed, 0, 0));
    ck_assert_int_eq(pthread_create(&thread, NULL, destroys, doomed), 0);
    pthread_join(thread, NULL);
    ok(cuCtxGetCurrent(&now));
    ck_assert_ptr_eq(now, doomed);
    fails(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    fails(cuCtxGetDevice(&device), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    fails(cuCtxPushCurrent(doomed), CUDA_ERROR_INVALID_CONTEXT);
    ok(cuCtxPopCurrent(&now));
    ck_assert_ptr_eq(now, doomed);
    ok(cuCtxGetCurrent(&now));
    ck_assert_ptr_eq(now, dt_ctx);
    ok(cuCtxSynchronize());
    ok(cuDevicePrimaryCtxReset(0));
    fails(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("streams");
    TCase *seeded = tcase_create("whatever the seed");
    TCase *once = tcase_create("once");

    tcase_set_timeout(seeded, 60);
    tcase_set_timeout(once, 120);
    tcase_add_loop_test(seeded, one_stream_is_in_order, 0, N_SEEDS);
    tcase_add_loop_test(seeded, an_event_orders_two_streams, 0, N_SEEDS);
    tcase_add_loop_test(seeded, a_wait_means_the_record_of_its_time, 0, N_SEEDS);
    tcase_add_loop_test(seeded, the_legacy_stream_is_a_barrier_for_blocking_streams, 0, N_SEEDS);
    tcase_add_loop_test(seeded, each_thread_has_a_default_stream, 0, N_SEEDS);
    tcase_add_loop_test(seeded, callbacks_are_in_order_and_may_not_call_the_driver, 0, N_SEEDS);
    tcase_add_loop_test(seeded, values_order_streams_and_host, 0, N_SEEDS);
    tcase_add_loop_test(seeded, a_destroyed_stream_ends_its_work, 0, N_SEEDS);
    tcase_add_loop_test(once, without_an_event_some_order_differs, 0, 1);
    tcase_add_test(once, work_waits_for_a_call_that_needs_it);
    tcase_add_test(once, events_know_their_times_and_their_end);
    tcase_add_test(once, a_destroyed_context_stays_current_elsewhere);
    tcase_add_exit_test(once, a_deadlock_is_told, 86);
    suite_add_tcase(s, seeded);
    suite_add_tcase(s, once);
    return ps_check_main(s);
}
