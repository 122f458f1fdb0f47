/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker behind the software driver: each planted fault is reported in one run, whatever the seed, and the
 * correct twin of the same program is silent. Even loop indices are the correct twin; a half of the index is the seed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#include "kernels/layout.h"
#include "tests/sim/sim_kernels.h"
#include "tests/support/check_main.h"
#include "tools/simcuda/access.h"
#include "tools/simcuda/hb.h"

#define N_SEEDS 6
#define PLANTED (_i % 2 == 1)
#define BYTES   ((size_t)0x8000)
#define WORDS   (BYTES / 8)
#define PAGE    ((size_t)1024) /* of the pool */
#define N_PAGES ((size_t)256)
#define N_SLOTS ((size_t)256)

#define ok(_call) ck_assert_int_eq((int)(_call), (int)CUDA_SUCCESS)

static CUcontext ctx;
static CUmodule module;
static CUstream one, two;
static CUevent event;
static CUdeviceptr x, result;

static void start(int index, const char *more)
{
    char text[200];

    snprintf(text, sizeof(text),
             "mem=64M,va=1G,granularity=4K,check=1,check_exit=0,log=/dev/null,seed=%d,eager=%d%s",
             index / 2 + 1, index % 3 * 2, more);
    setenv("SIMCUDA", text, 1);
    ok(cuInit(0));
    ok(cuDevicePrimaryCtxRetain(&ctx, 0));
    ok(cuCtxSetCurrent(ctx));
    ok(cuModuleLoadData(&module, ""));
    ok(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    ok(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ok(cuMemAlloc(&x, BYTES));
    ok(cuMemAlloc(&result, 4096));
}

static void launch(CUstream stream, const char *name, void **params)
{
    CUfunction f;

    ok(cuModuleGetFunction(&f, module, name));
    ok(cuLaunchKernel(f, 4, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void write_to(CUstream stream, CUdeviceptr to, uint64_t seed)
{
    uint64_t n = WORDS;

    launch(stream, "test_write", (void *[]){&to, &n, &seed});
}

static void read_from(CUstream stream, CUdeviceptr from)
{
    uint64_t n = WORDS;
    CUdeviceptr none = 0;

    launch(stream, "test_read", (void *[]){&from, &n, &none});
}

/* `to` waits for what `from` was given so far. */
static void order(CUstream from, CUstream to)
{
    ok(cuEventRecord(event, from));
    ok(cuStreamWaitEvent(to, event, 0));
}

static void expect_none(void)
{
    ok(cuCtxSynchronize());
    ck_assert_msg(simcuda_check_count() == 0, "%s", simcuda_check_text(0));
}

static void expect_kind(int kind, const char *first, const char *second)
{
    const char *a, *b;

    ck_assert_uint_ge(simcuda_check_count(), 1);
    ck_assert_msg(simcuda_check_kind(0, &a, &b) == kind, "%s", simcuda_check_text(0));
    ck_assert_str_eq(a, first);
    ck_assert_str_eq(b, second);
}

/* One of the two orders in which an unordered pair may have run. */
static void expect_pair(const char *writer, const char *reader)
{
    ok(cuCtxSynchronize());
    const char *a, *b;
    const int kind = simcuda_check_kind(0, &a, &b);

    ck_assert_uint_ge(simcuda_check_count(), 1);
    if (kind == HB_WRITE_READ) {
        ck_assert_str_eq(a, writer);
        ck_assert_str_eq(b, reader);
    } else {
        ck_assert_msg(kind == HB_READ_WRITE, "%s", simcuda_check_text(0));
        ck_assert_str_eq(a, reader);
        ck_assert_str_eq(b, writer);
    }
}

START_TEST(a_missing_wait)
{
    start(_i, "");
    write_to(one, x, 1);
    ok(cuEventRecord(event, one));
    if (!PLANTED) {
        ok(cuStreamWaitEvent(two, event, 0));
    }
    read_from(two, x);
    if (PLANTED) {
        expect_pair("test_write", "test_read");
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(a_missing_record)
{
    start(_i, "");
    write_to(one, x, 1);
    if (!PLANTED) {
        ok(cuEventRecord(event, one));
    }
    ok(cuStreamWaitEvent(two, event, 0));
    read_from(two, x);
    if (PLANTED) {
        expect_pair("test_write", "test_read");
        ck_assert(simcuda_check_kind(0, NULL, NULL) != HB_WRITE_READ ||
                  strstr(simcuda_check_text(0), "which had never been recorded") != NULL);
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(an_event_recorded_before_the_work)
{
    start(_i, "");
    if (PLANTED) {
        ok(cuEventRecord(event, one));
    }
    write_to(one, x, 1);
    if (!PLANTED) {
        ok(cuEventRecord(event, one));
    }
    ok(cuStreamWaitEvent(two, event, 0));
    write_to(two, x, 2);
    if (PLANTED) {
        ok(cuCtxSynchronize());
        expect_kind(HB_WRITE_WRITE, "test_write", "test_write");
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(copies_are_accesses)
{
    static char host[BYTES];

    start(_i, "");
    write_to(one, x, 1);
    if (!PLANTED) {
        ok(cuStreamSynchronize(one));
    }
    ok(cuMemcpyDtoHAsync(host, x, BYTES, two));
    if (PLANTED) {
        expect_pair("test_write", "cuMemcpyDtoHAsync_v2");
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(halves_of_one_allocation_are_apart)
{
    uint64_t n = WORDS / 2, seed = 1;
    CUdeviceptr right;

    start(_i, "");
    right = x + (PLANTED ? BYTES / 2 - 8 : BYTES / 2);
    launch(one, "test_write", (void *[]){&x, &n, &seed});
    launch(two, "test_write", (void *[]){&right, &n, &seed});
    ok(cuCtxSynchronize());
    if (PLANTED) {
        expect_kind(HB_WRITE_WRITE, "test_write", "test_write");
    } else {
        expect_none();
    }
}
END_TEST

/* Legacy stream against a blocking stream: ordered; against one that does not block: not. */
START_TEST(the_legacy_stream_is_a_barrier_for_blocking_streams_only)
{
    CUstream blocking;

    start(_i, "");
    ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    write_to(PLANTED ? one : blocking, x, 1);
    read_from(CU_STREAM_LEGACY, x);
    if (PLANTED) {
        expect_pair("test_write", "test_read");
    } else {
        write_to(blocking, x, 2);
        expect_none();
    }
}
END_TEST

/* What a destroyed stream still did is done when the context is, not when another stream is. */
START_TEST(a_destroyed_stream_is_waited_for_with_its_context)
{
    start(_i, "");
    write_to(one, x, 1);
    ok(cuStreamDestroy(one));
    if (PLANTED) {
        ok(cuStreamSynchronize(two));
    } else {
        ok(cuCtxSynchronize());
    }
    read_from(two, x);
    if (PLANTED) {
        expect_pair("test_write", "test_read");
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(a_query_that_succeeds_is_an_edge)
{
    start(_i, "");
    write_to(one, x, 1);
    ok(cuEventRecord(event, one));
    while (cuEventQuery(event) != CUDA_SUCCESS) {
    }
    if (PLANTED) {
        write_to(one, x, 2);
    }
    read_from(two, x);
    if (PLANTED) {
        expect_pair("test_write", "test_read");
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(a_wait_for_a_value_is_an_edge)
{
    start(_i, "");
    write_to(one, x, 1);
    ok(cuStreamWriteValue32(one, result + (PLANTED ? 64 : 0), 1, 0));
    ok(cuStreamWriteValue32(two, result + 128, 0, 0));
    if (!PLANTED) {
        ok(cuStreamWaitValue32(two, result, 1, CU_STREAM_WAIT_VALUE_EQ));
    }
    read_from(two, x);
    if (PLANTED) {
        expect_pair("test_write", "test_read");
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(a_graph_orders_by_its_edges_only)
{
    CUgraph graph;
    CUgraphExec exec;

    start(_i, "");
    ok(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_RELAXED));
    ok(cuEventRecord(event, one));
    ok(cuStreamWaitEvent(two, event, 0));
    write_to(one, x, 1);
    if (!PLANTED) {
        order(one, two);
    }
    read_from(two, x);
    order(two, one);
    ok(cuStreamEndCapture(one, &graph));
    ok(cuGraphInstantiate(&exec, graph, 0));
    ok(cuGraphLaunch(exec, one));
    ok(cuGraphLaunch(exec, one));
    if (PLANTED) {
        expect_pair("test_write", "test_read");
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(a_free_that_does_not_wait)
{
    CUdeviceptr p;

    start(_i, "");
    ok(cuMemAllocAsync(&p, BYTES, one));
    write_to(one, p, 1);
    if (!PLANTED) {
        order(one, two);
    }
    ok(cuMemFreeAsync(p, two));
    /* Where the free ran first the write finds nothing mapped, and the context is broken, as on a device. */
    (void)cuCtxSynchronize();
    if (PLANTED) {
        ck_assert_uint_ge(simcuda_check_count(), 1);
    } else {
        expect_none();
    }
}
END_TEST

/* ---- aliases ---- */

static CUdeviceptr left_at, right_at;
static CUmemGenericAllocationHandle handle;

static CUdeviceptr map_handle(void)
{
    CUmemAccessDesc access;
    CUdeviceptr at;

    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ok(cuMemAddressReserve(&at, BYTES, 0, 0, 0));
    ok(cuMemMap(at, BYTES, 0, handle, 0));
    ok(cuMemSetAccess(at, BYTES, &access, 1));
    return at;
}

static void start_aliases(int index)
{
    CUmemAllocationProp prop;

    start(index, "");
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ok(cuMemCreate(&handle, BYTES, &prop, 0));
    left_at = map_handle();
    right_at = map_handle();
}

START_TEST(an_address_that_does_not_own_its_memory)
{
    start_aliases(_i);
    write_to(one, left_at, 1);
    ok(cuMemsetD32Async(right_at, 7, BYTES / 4, one));
    read_from(one, PLANTED ? left_at : right_at);
    ok(cuCtxSynchronize());
    if (PLANTED) {
        expect_kind(HB_OWNER_CHANGED, "cuMemset", "test_read");
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(an_address_used_before_it_is_filled)
{
    start_aliases(_i);
    write_to(one, left_at, 1);
    if (!PLANTED) {
        ok(cuMemsetD32Async(right_at, 7, BYTES / 4, one));
    }
    read_from(one, right_at);
    ok(cuCtxSynchronize());
    if (PLANTED) {
        expect_kind(HB_NEVER_OWNED, "test_write", "test_read");
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(one_launch_with_two_addresses_of_the_same_memory)
{
    uint64_t n = WORDS;
    CUdeviceptr to;

    start_aliases(_i);
    to = PLANTED ? right_at : x;
    write_to(one, left_at, 1);
    launch(one, "test_copy", (void *[]){&left_at, &to, &n});
    ok(cuCtxSynchronize());
    if (PLANTED) {
        const char *a, *b;
        bool found = false;

        for (uint64_t i = 0; i < simcuda_check_count(); i++) {
            found |= simcuda_check_kind(i, &a, &b) == HB_ALIASES && strcmp(b, "test_copy") == 0;
        }
        ck_assert(found);
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(unmapped_while_in_use)
{
    start_aliases(_i);
    ok(cuMemsetD32Async(left_at, 7, BYTES / 4, one));
    ok(cuEventRecord(event, one));
    if (PLANTED) {
        while (cuEventQuery(event) != CUDA_SUCCESS) {
        }
        read_from(one, left_at);
        /* Whether the kernel has run by now is the seed's choice; nobody asked. */
        ok(cuMemUnmap(left_at, BYTES));
        (void)cuCtxSynchronize();
        ck_assert_uint_ge(simcuda_check_count(), 1);
        const int kind = simcuda_check_kind(0, NULL, NULL);

        ck_assert_msg(kind == HB_IN_FLIGHT || kind == HB_FAULT, "%s", simcuda_check_text(0));
        return;
    }
    ok(cuEventSynchronize(event));
    ok(cuMemUnmap(left_at, BYTES));
    expect_none();
}
END_TEST

START_TEST(an_access_where_nothing_is_mapped_is_an_error)
{
    start_aliases(_i);
    write_to(one, PLANTED ? right_at + BYTES - 64 : left_at, 1);
    if (PLANTED) {
        ck_assert_int_eq((int)cuStreamSynchronize(one), (int)CUDA_ERROR_ILLEGAL_ADDRESS);
        bool found = false;

        for (uint64_t i = 0; i < simcuda_check_count(); i++) {
            found |= simcuda_check_kind(i, NULL, NULL) == HB_FAULT;
        }
        ck_assert(found);
    } else {
        expect_none();
    }
}
END_TEST

/* ---- the stash kernels ---- */

static struct ps_batch batch;
static CUdeviceptr list_at;

static void run_batch(CUstream stream, const char *name)
{
    CUfunction f;
    const unsigned grid = strcmp(name, "ps_drop") == 0 ? 1 : 3;

    ok(cuModuleGetFunction(&f, module, name));
    ok(cuLaunchKernel(f, grid, 1, 1, 1, 1, 1, 0, stream, (void *[]){&batch}, NULL));
}

static void start_stash(int index)
{
    const uint64_t n_entries = BYTES / PAGE;
    struct ps_free_list list = {.n_slots = N_SLOTS};
    CUdeviceptr slots, tables, pool;
    uint32_t first = 0, count = (uint32_t)N_PAGES;
    void *ledger;
    CUfunction f;

    start_aliases(index);
    ok(cuMemAlloc(&list_at, 4096));
    ok(cuMemAlloc(&slots, 2 * N_SLOTS * 4));
    ok(cuMemAlloc(&tables, 2 * n_entries * sizeof(struct ps_page_entry) + 64));
    ok(cuMemAlloc(&pool, N_PAGES * PAGE));
    ok(cuMemHostAlloc(&ledger, 64, 0));
    list.slots = (uint32_t *)(uintptr_t)slots;
    ok(cuMemcpyHtoD(list_at, &list, sizeof(list)));
    ok(cuMemsetD8(tables, 0, 2 * n_entries * sizeof(struct ps_page_entry) + 64));
    batch = (struct ps_batch){.pool = pool,
                              .free_list = list_at,
                              .page_bytes = (uint32_t)PAGE,
                              .n_items = 1,
                              .unit_shift = (uint8_t)__builtin_ctz((unsigned)PAGE) - 1,
                              .ring = {(uint8_t)__builtin_ctz((unsigned)PAGE) - 2, 4},
                              .n_pages = (uint32_t)n_entries};
    batch.items[0] =
        (struct ps_batch_item){.data = left_at,
                               .bytes = BYTES,
                               .table = tables,
                               .counts = tables + 2 * n_entries * sizeof(struct ps_page_entry),
                               .ledger = (uint64_t)(uintptr_t)ledger,
                               .seq = 1};
    ok(cuModuleGetFunction(&f, module, "ps_grow"));
    ok(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, two, (void *[]){&list_at, &first, &count}, NULL));
    ok(cuCtxSynchronize());
    ck_assert_msg(simcuda_check_count() == 0, "%s", simcuda_check_text(0));
}

/* Streams: one is the job's, two is the stash's. */
START_TEST(a_place_reused_before_the_stash_is_done)
{
    start_stash(_i);
    write_to(one, left_at, 1);
    order(one, two);
    run_batch(two, "ps_stash");
    if (!PLANTED) {
        order(two, one);
    }
    ok(cuMemsetD32Async(right_at, 0, BYTES / 4, one));
    if (PLANTED) {
        ok(cuCtxSynchronize());
        ck_assert_uint_ge(simcuda_check_count(), 1);
        const int kind = simcuda_check_kind(0, NULL, NULL);

        ck_assert_msg(kind == HB_READ_WRITE || kind == HB_WRITE_READ || kind == HB_OWNER_CHANGED,
                      "%s", simcuda_check_text(0));
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(a_stash_before_the_job_has_written)
{
    start_stash(_i);
    write_to(one, left_at, 1);
    if (!PLANTED) {
        order(one, two);
    }
    run_batch(two, "ps_stash");
    if (PLANTED) {
        expect_pair("test_write", "ps_stash");
    } else {
        expect_none();
    }
}
END_TEST

/* Out, and back at another address of the place. */
START_TEST(a_read_before_the_restore)
{
    start_stash(_i);
    write_to(one, left_at, 1);
    order(one, two);
    run_batch(two, "ps_stash");
    batch.items[0].data = right_at;
    run_batch(two, "ps_restore");
    if (!PLANTED) {
        order(two, one);
    }
    read_from(one, right_at);
    ok(cuCtxSynchronize());
    if (PLANTED) {
        ck_assert_uint_ge(simcuda_check_count(), 1);
        const int kind = simcuda_check_kind(0, NULL, NULL);

        ck_assert_msg(kind == HB_READ_WRITE || kind == HB_WRITE_READ || kind == HB_NEVER_OWNED,
                      "%s", simcuda_check_text(0));
    } else {
        expect_none();
    }
}
END_TEST

START_TEST(a_restore_brings_the_bytes_back)
{
    static uint64_t before[WORDS], after[WORDS];

    start_stash(_i);
    write_to(one, left_at, 1);
    ok(cuMemsetD8Async(left_at + PAGE, 5, 4 * PAGE, one));
    ok(cuMemcpyDtoHAsync(before, left_at, BYTES, one));
    order(one, two);
    run_batch(two, "ps_stash");
    ok(cuMemsetD32Async(right_at, 0, BYTES / 4, two));
    ok(cuMemsetD32Async(left_at, 1, BYTES / 4, two));
    run_batch(two, "ps_restore");
    run_batch(two, "ps_drop");
    ok(cuMemcpyDtoHAsync(after, left_at, BYTES, two));
    expect_none();
    ck_assert_mem_eq(before, after, sizeof(before));
}
END_TEST

/* A clean takes the place over, the unflagged pages with it: it must be ordered like a fill of them all. */
START_TEST(a_clean_before_the_stash_is_done)
{
    CUdeviceptr flags;

    start_stash(_i);
    ok(cuMemAlloc(&flags, BYTES / PAGE));
    ok(cuMemsetD8Async(flags, 0, BYTES / PAGE, one));
    ok(cuMemsetD32Async(left_at, 7, BYTES / 4, one));
    ok(cuMemsetD32Async(left_at, 8, 1, one));
    order(one, two);
    run_batch(two, "ps_stash");
    if (!PLANTED) {
        order(two, one);
    }
    batch.items[0].data = right_at;
    batch.items[0].flags = flags;
    run_batch(one, "ps_clean");
    if (PLANTED) {
        ok(cuCtxSynchronize());
        const int kind = simcuda_check_kind(0, NULL, NULL);

        ck_assert_uint_ge(simcuda_check_count(), 1);
        ck_assert_msg(kind == HB_READ_WRITE || kind == HB_WRITE_READ || kind == HB_OWNER_CHANGED,
                      "%s", simcuda_check_text(0));
    } else {
        read_from(one, right_at);
        expect_none();
    }
}
END_TEST

START_TEST(a_clean_makes_its_address_the_owner)
{
    uint32_t words[BYTES / 4];
    unsigned char flags_now[BYTES / PAGE];
    CUdeviceptr flags;

    start_stash(_i);
    ok(cuMemAlloc(&flags, BYTES / PAGE));
    ok(cuMemsetD8Async(flags, 0, BYTES / PAGE, one));
    ok(cuMemsetD8Async(flags + 3, 1, 1, one));
    batch.items[0].flags = flags;
    ok(cuMemsetD32Async(left_at, 7, BYTES / 4, one));
    batch.items[0].data = right_at;
    run_batch(one, "ps_clean");
    if (PLANTED) {
        read_from(one, left_at);
        ok(cuCtxSynchronize());
        expect_kind(HB_OWNER_CHANGED, "ps_clean", "test_read");
        return;
    }
    ok(cuMemcpyDtoHAsync(words, right_at, BYTES, one));
    ok(cuMemcpyDtoHAsync(flags_now, flags, sizeof(flags_now), one));
    expect_none();
    for (size_t i = 0; i < BYTES / 4; i++) {
        ck_assert_uint_eq(words[i], i / (PAGE / 4) == 3 ? 0 : 7);
    }
    for (size_t i = 0; i < BYTES / PAGE; i++) {
        ck_assert_uint_eq(flags_now[i], 0);
    }
}
END_TEST

START_TEST(a_drop_that_overtakes_the_restore)
{
    start_stash(_i);
    write_to(two, left_at, 1);
    run_batch(two, "ps_stash");
    run_batch(two, "ps_restore");
    if (!PLANTED) {
        order(two, one);
    }
    run_batch(one, "ps_drop");
    /* The pages go to the next stash, which must not write them while the restore reads. */
    if (!PLANTED) {
        ok(cuStreamSynchronize(one));
    }
    for (unsigned i = 0; i < N_PAGES / (BYTES / PAGE); i++) {
        batch.items[0].data = x;
        batch.items[0].table += BYTES / PAGE * sizeof(struct ps_page_entry) * (i == 0);
        write_to(two, x, i);
        run_batch(two, "ps_stash");
    }
    ok(cuCtxSynchronize());
    if (PLANTED) {
        ck_assert_uint_ge(simcuda_check_count(), 1);
    } else {
        expect_none();
    }
}
END_TEST

/* A stash moves the head while a drop moves the tail: legal, whatever order runs. */
START_TEST(stash_and_drop_may_move_the_list_at_once)
{
    struct ps_batch first;

    start_stash(_i);
    write_to(two, left_at, 1);
    run_batch(two, "ps_stash");
    order(two, one);
    first = batch;
    batch.items[0].data = x;
    batch.items[0].table += BYTES / PAGE * sizeof(struct ps_page_entry);
    write_to(two, x, 2);
    run_batch(two, "ps_stash");
    batch = first;
    run_batch(one, "ps_drop");
    expect_none();
}
END_TEST

START_TEST(unwritten_memory_is_told_on_request)
{
    start(_i, "");
    simcuda_check_unwritten(PLANTED);
    read_from(one, x);
    ok(cuCtxSynchronize());
    if (PLANTED) {
        expect_kind(HB_UNWRITTEN, "", "test_read");
    } else {
        expect_none();
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("check");
    TCase *t = tcase_create("check");

    tcase_set_timeout(t, 60);
#define EACH(_test) tcase_add_loop_test(t, _test, 0, 2 * N_SEEDS)
    EACH(a_missing_wait);
    EACH(a_missing_record);
    EACH(an_event_recorded_before_the_work);
    EACH(copies_are_accesses);
    EACH(halves_of_one_allocation_are_apart);
    EACH(the_legacy_stream_is_a_barrier_for_blocking_streams_only);
    EACH(a_destroyed_stream_is_waited_for_with_its_context);
    EACH(a_query_that_succeeds_is_an_edge);
    EACH(a_wait_for_a_value_is_an_edge);
    EACH(a_graph_orders_by_its_edges_only);
    EACH(a_free_that_does_not_wait);
    EACH(an_address_that_does_not_own_its_memory);
    EACH(an_address_used_before_it_is_filled);
    EACH(one_launch_with_two_addresses_of_the_same_memory);
    EACH(unmapped_while_in_use);
    EACH(an_access_where_nothing_is_mapped_is_an_error);
    EACH(a_place_reused_before_the_stash_is_done);
    EACH(a_stash_before_the_job_has_written);
    EACH(a_read_before_the_restore);
    EACH(a_restore_brings_the_bytes_back);
    EACH(a_clean_before_the_stash_is_done);
    EACH(a_clean_makes_its_address_the_owner);
    EACH(a_drop_that_overtakes_the_restore);
    EACH(stash_and_drop_may_move_the_list_at_once);
    EACH(unwritten_memory_is_told_on_request);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
