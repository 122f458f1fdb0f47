/* SPDX-License-Identifier: Apache-2.0 */
/* fence.c against a driver table that counts what it is asked. */
#include "shim/driver.h"
#include "shim/engine_int.h"
#include "shim/fence.h"
#include "tests/support/check_main.h"

struct ps_driver ps_driver;

uint64_t ps_thread_number(void)
{
    return 1;
}

static struct {
    int n_created, n_destroyed, n_waits;
    CUresult record;
} seen;

static int events[8];

static CUresult event_create(CUevent *event, unsigned flags)
{
    ck_assert_uint_eq(flags, CU_EVENT_DISABLE_TIMING);
    *event = (CUevent)(void *)&events[seen.n_created++];
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    ck_assert_ptr_nonnull(event);
    seen.n_destroyed++;
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    ck_assert_ptr_nonnull(event);
    ck_assert_ptr_nonnull(stream);
    return seen.record;
}

static CUresult event_query(CUevent event)
{
    ck_assert_ptr_nonnull(event);
    return CUDA_ERROR_NOT_READY;
}

static CUresult stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    ck_assert_ptr_nonnull(stream);
    ck_assert_ptr_nonnull(event);
    ck_assert_uint_eq(flags, CU_EVENT_WAIT_DEFAULT);
    seen.n_waits++;
    return CUDA_SUCCESS;
}

static struct ps_fences pool;
static const CUstream stream = (CUstream)(void *)&seen;
static uint64_t key;

static void setup(void)
{
    ps_driver.cuEventCreate = event_create;
    ps_driver.cuEventDestroy = event_destroy;
    ps_driver.cuEventRecord = event_record;
    ps_driver.cuEventQuery = event_query;
    ps_driver.cuStreamWaitEvent = stream_wait;
    key = ps_stream_key(NULL, stream);
}

START_TEST(a_stream_with_a_destroyed_ones_handle_waits)
{
    CUresult r;
    struct ps_fence *f = ps_fence_record(&pool, NULL, stream, &r);

    ck_assert_int_eq(ps_fence_wait(f, key, stream), CUDA_SUCCESS);
    ck_assert_int_eq(seen.n_waits, 0);
    ps_fences_retire(&pool, key, (uint64_t)1 << 62 | 1);
    ck_assert_int_eq(ps_fence_wait(f, key, stream), CUDA_SUCCESS);
    ck_assert_int_eq(seen.n_waits, 1);
    ps_fence_unref(&pool, f);

    struct ps_fence *again = ps_fence_record(&pool, NULL, stream, &r);

    ck_assert_int_eq(ps_fence_wait(again, key, stream), CUDA_SUCCESS);
    ck_assert_int_eq(seen.n_waits, 1);
    ps_fence_unref(&pool, again);
    ps_fences_fini(&pool);
    ck_assert_int_eq(seen.n_destroyed, seen.n_created);
}
END_TEST

START_TEST(an_event_that_cannot_be_recorded_is_not_used_again)
{
    CUresult r;
    struct ps_fence *f = ps_fence_record(&pool, NULL, stream, &r);

    ps_fence_unref(&pool, f);
    seen.record = CUDA_ERROR_INVALID_HANDLE;
    ck_assert_ptr_null(ps_fence_record(&pool, NULL, stream, &r));
    ck_assert_int_eq(r, CUDA_ERROR_INVALID_HANDLE);
    ck_assert_int_eq(seen.n_destroyed, 1);
    seen.record = CUDA_SUCCESS;
    f = ps_fence_record(&pool, NULL, stream, &r);
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(seen.n_created, 2);
    ps_fence_unref(&pool, f);
    ps_fences_fini(&pool);
    ck_assert_int_eq(seen.n_destroyed, 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fences");
    TCase *t = tcase_create("handles");

    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, a_stream_with_a_destroyed_ones_handle_waits);
    tcase_add_test(t, an_event_that_cannot_be_recorded_is_not_used_again);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
