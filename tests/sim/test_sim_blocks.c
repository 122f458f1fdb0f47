/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels whose blocks take turns: what goes wrong between blocks, or between two launches at once, is seen to go
 * wrong; a block that faults ends its launch. Words that kernels write to host memory are seen late, never too late.
 * Sends and receives match, and a circle of them is a deadlock.
 */
#include "kernels/layout.h"
#include "tests/sim/driver_test.h"
#include "tests/sim/sim_kernels.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);

#define N_SEEDS  6
#define N_BLOCKS 6u
#define ROUNDS   4u

/* Counts without atomics: right for blocks that run one after another only. */
PS_KERNEL2(ps_test_count_badly, uint64_t, counter, uint32_t, n)
{
    uint64_t *p = ps_address(counter);

    for (uint32_t i = 0; i < n; i++) {
        const uint64_t seen = *p;

        PS_YIELD();
        *p = seen + 1;
    }
}

PS_KERNEL2(ps_test_count, uint64_t, counter, uint32_t, n)
{
    for (uint32_t i = 0; i < n; i++) {
        PS_YIELD();
        ps_atomic_add(ps_address(counter), 1);
    }
}

/* Writes who it is behind what was written before: log[0] counts. */
PS_KERNEL3(ps_test_log, uint64_t, log, uint32_t, who, uint32_t, n)
{
    uint64_t *p = ps_address(log);

    for (uint32_t i = 0; i < n; i++) {
        p[1 + ps_atomic_add(p, 1)] = who;
        PS_YIELD();
    }
}

/* Block 2 goes astray at its second turn. */
PS_KERNEL2(ps_test_astray, uint64_t, counter, uint64_t, nowhere)
{
    ps_atomic_add(ps_address(counter), 1);
    PS_YIELD();
    if (PS_BLOCK == 2) {
        *(uint64_t *)ps_address(nowhere) = 1;
    }
    PS_YIELD();
}

static void launch(CUstream stream, const char *name, void **params)
{
    ok(cuLaunchKernel(dt_function(name), N_BLOCKS, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static uint64_t word_at(CUdeviceptr from)
{
    uint64_t word = 0;

    ok(cuCtxSynchronize());
    ok(cuMemcpyDtoH(&word, from, sizeof word));
    return word;
}

static unsigned count_losses(CUstream s, const char *kernel)
{
    unsigned n_lost = 0;

    for (unsigned i = 0; i < 20; i++) {
        CUdeviceptr counter = dt_alloc(8);
        uint32_t n = ROUNDS;

        launch(s, kernel, (void *[]){&counter, &n});
        const uint64_t got = word_at(counter);

        ck_assert_uint_le(got, N_BLOCKS * ROUNDS);
        n_lost += got < N_BLOCKS * ROUNDS;
        ok(cuMemFree(counter));
    }
    return n_lost;
}

START_TEST(blocks_take_turns)
{
    dt_start_seeded(_i, _i % 2 == 0 ? "check=1,check_exit=0" : "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);

    ck_assert_uint_gt(count_losses(s, "ps_test_count_badly"), 0);
    ck_assert_uint_eq(count_losses(s, "ps_test_count"), 0);
}
END_TEST

START_TEST(in_order_they_run_whole)
{
    dt_start("seed=0");
    ck_assert_uint_eq(count_losses(dt_stream(CU_STREAM_NON_BLOCKING), "ps_test_count_badly"), 0);
}
END_TEST

/* How often the log goes from one writer to the other. */
static unsigned changes(CUdeviceptr log)
{
    uint64_t words[1 + 2 * N_BLOCKS * ROUNDS];
    unsigned n = 0;

    ok(cuCtxSynchronize());
    ok(cuMemcpyDtoH(words, log, sizeof words));
    ck_assert_uint_eq(words[0], 2 * N_BLOCKS * ROUNDS);
    for (unsigned i = 2; i <= words[0]; i++) {
        n += words[i] != words[i - 1];
    }
    return n;
}

START_TEST(two_launches_run_at_once_unless_ordered)
{
    unsigned most[2] = {0, 0};

    dt_start_seeded(_i, "");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    CUevent e;

    ok(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < 40; i++) {
        const bool ordered = i % 2 == 1;
        uint32_t one = 1, two = 2, n = ROUNDS;
        CUdeviceptr log = dt_alloc(8 * (1 + 2 * N_BLOCKS * ROUNDS));

        launch(a, "ps_test_log", (void *[]){&log, &one, &n});
        if (ordered) {
            ok(cuEventRecord(e, a));
            ok(cuStreamWaitEvent(b, e, 0));
        }
        launch(b, "ps_test_log", (void *[]){&log, &two, &n});
        const unsigned now = changes(log);

        most[ordered] = now > most[ordered] ? now : most[ordered];
        ok(cuMemFree(log));
    }
    ck_assert_uint_gt(most[0], 2);
    ck_assert_uint_eq(most[1], 1);
}
END_TEST

START_TEST(a_block_that_faults_ends_its_launch)
{
    dt_start_seeded(_i, _i % 2 == 0 ? "check=1,check_exit=0" : "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr counter = dt_alloc(8), nowhere = dt_alloc(8);
    CUcontext other;
    uint32_t n = ROUNDS;

    ok(cuMemFree(nowhere));
    launch(s, "ps_test_astray", (void *[]){&counter, &nowhere});
    fails(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);

    /* The stacks of the blocks that were left are whole. */
    ok(cuCtxCreate_v2(&other, 0, 0));
    ok(cuModuleLoadData(&dt_module, "x"));
    counter = dt_alloc(8);
    launch(NULL, "ps_test_count", (void *[]){&counter, &n});
    ck_assert_uint_eq(word_at(counter), N_BLOCKS * ROUNDS);
}
END_TEST

/* ---- words in host memory ---- */

#define PAGE    ((size_t)1024)
#define N_PAGES 64u

#define N_STASHES 1500 /* longer than any era of the scheduler */

static struct ps_batch batch;
static uint64_t *ledger;

static void start_stash(CUstream s)
{
    struct ps_free_list list = {.n_slots = N_PAGES};
    uint32_t first = 0, count = N_PAGES;
    const CUdeviceptr list_at = dt_alloc(4096);
    void *host;

    list.slots = ps_address(dt_alloc(2 * 4 * N_PAGES));
    ok(cuMemcpyHtoD(list_at, &list, sizeof list));
    ok(cuMemHostAlloc(&host, 64, 0));
    ledger = host;
    *ledger = 0;
    batch = (struct ps_batch){.pool = dt_alloc(N_PAGES * PAGE),
                              .free_list = list_at,
                              .page_bytes = (uint32_t)PAGE,
                              .n_items = 1,
                              .unit_shift = (uint8_t)__builtin_ctz((unsigned)PAGE),
                              .ring = {(uint8_t)__builtin_ctz((unsigned)PAGE) - 1, 3},
                              .n_pages = 4};
    batch.items[0] = (struct ps_batch_item){.data = dt_alloc(4 * PAGE),
                                            .bytes = 4 * PAGE,
                                            .table = dt_alloc(4 * sizeof(struct ps_page_entry)),
                                            .counts = dt_alloc(16),
                                            .ledger = (uint64_t)(uintptr_t)ledger};
    ok(cuLaunchKernel(dt_function("ps_grow"), 1, 1, 1, 1, 1, 1, 0, s,
                      (void *[]){&batch.free_list, &first, &count}, NULL));
    ok(cuStreamSynchronize(s));
}

/* One stash; true if it had run while the host saw the old word. */
static bool stash_is_seen_late(CUstream s, CUdeviceptr source, uint64_t *host_flag, uint16_t seq)
{
    bool late;

    batch.items[0].seq = seq;
    *(volatile uint64_t *)host_flag = 0;
    launch(s, "ps_stash", (void *[]){&batch});
    ok(cuMemcpyDtoHAsync(host_flag, source, 8, s));
    while (*(volatile uint64_t *)host_flag == 0) {
        CUdevice device;

        ok(cuCtxGetDevice(&device)); /* the device works on meanwhile */
    }
    const uint64_t seen = __atomic_load_n(ledger, __ATOMIC_ACQUIRE);

    late = PS_LEDGER_SEQ(seen) != seq;
    ck_assert(!late || PS_LEDGER_SEQ(seen) == (uint16_t)(seq - 1));
    ok(cuStreamSynchronize(s));
    ck_assert_uint_eq(*ledger, PS_LEDGER(seq, 0, 0));
    return late;
}

START_TEST(host_words_are_seen_late)
{
    unsigned n_late = 0;
    void *flag;

    dt_start_seeded(_i, _i % 2 == 0 ? "check=1,eager=4" : "eager=4");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr source = dt_alloc(8);

    ok(cuMemsetD32(source, 1, 2));
    ok(cuMemHostAlloc(&flag, 8, 0));
    start_stash(s);
    for (uint16_t seq = 1; seq <= N_STASHES; seq++) {
        n_late += stash_is_seen_late(s, source, flag, seq);
    }
    ck_assert_uint_gt(n_late, 0);
    ck_assert_uint_lt(n_late, N_STASHES);
}
END_TEST

/* With the checker, only what is known to be done is seen: another stream's end tells nothing. */
START_TEST(host_words_wait_for_the_right_stream)
{
    unsigned n_late = 0;

    dt_start_seeded(_i, "check=1");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING), aside = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr word = dt_alloc(8);
    CUevent e;

    start_stash(s);
    ok(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    for (uint16_t seq = 1; seq <= 100; seq++) {
        batch.items[0].seq = seq;
        launch(s, "ps_stash", (void *[]){&batch});
        ok(cuEventRecord(e, s));
        ok(cuMemsetD32Async(word, 1, 1, aside));
        ok(cuStreamSynchronize(aside));
        n_late += PS_LEDGER_SEQ(__atomic_load_n(ledger, __ATOMIC_ACQUIRE)) != seq;
        while (cuEventQuery(e) != CUDA_SUCCESS) {
        }
        ck_assert_uint_eq(__atomic_load_n(ledger, __ATOMIC_ACQUIRE), PS_LEDGER(seq, 0, 0));
    }
    ck_assert_uint_gt(n_late, 0);
}
END_TEST

/* ---- ranks ---- */

static void transfer(CUstream s, const char *kernel, uint64_t channel, CUdeviceptr p)
{
    uint64_t bytes = 8;

    ok(cuLaunchKernel(dt_function(kernel), 1, 1, 1, 32, 1, 1, 0, s,
                      (void *[]){&channel, &p, &bytes}, NULL));
}

/* The n-th receive of a channel gets the n-th message, whichever was queued first. */
START_TEST(receives_match_sends)
{
    dt_start_seeded(_i, "check=1");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr from = dt_alloc(8), to = dt_alloc(8);

    transfer(a, "sim_recv", 7, to);
    for (uint32_t i = 1; i <= 5; i++) {
        ok(cuMemsetD32Async(from, i, 2, b));
        transfer(b, "sim_send", 8, from);
        transfer(b, "sim_send", 7, from);
        ck_assert_uint_eq(dt_word(a, to), i);
        transfer(a, "sim_recv", 7, to);
    }
    transfer(b, "sim_send", 7, from);
    ok(cuCtxSynchronize());
}
END_TEST

/* Ends with the driver's own code. */
START_TEST(receives_in_a_circle_are_a_deadlock)
{
    dt_start_seeded(_i, "check=1");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr p = dt_alloc(8), q = dt_alloc(8);

    transfer(a, "sim_recv", 1, p);
    transfer(a, "sim_send", 2, p);
    transfer(b, "sim_recv", 2, q);
    transfer(b, "sim_send", 1, q);
    (void)cuCtxSynchronize();
}
END_TEST

START_TEST(a_planted_wait_is_waited)
{
    dt_start_seeded(_i, "check=1,after_all=sim_fill");
    const CUstream a = dt_stream(CU_STREAM_NON_BLOCKING), b = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr p = dt_alloc(8), q = dt_alloc(8);

    transfer(a, "sim_recv", 1, p);
    dt_fill(b, q, 1, 2);
    transfer(b, "sim_send", 1, q);
    (void)cuCtxSynchronize();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("blocks");
    TCase *t = tcase_create("blocks");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, blocks_take_turns, 0, N_SEEDS);
    tcase_add_test(t, in_order_they_run_whole);
    tcase_add_loop_test(t, two_launches_run_at_once_unless_ordered, 0, N_SEEDS);
    tcase_add_loop_test(t, a_block_that_faults_ends_its_launch, 0, N_SEEDS);
    tcase_add_loop_test(t, host_words_are_seen_late, 0, N_SEEDS);
    tcase_add_loop_test(t, host_words_wait_for_the_right_stream, 0, N_SEEDS);
    tcase_add_loop_test(t, receives_match_sends, 0, N_SEEDS);
    tcase_add_loop_exit_test(t, receives_in_a_circle_are_a_deadlock, 86, 0, 2);
    tcase_add_loop_exit_test(t, a_planted_wait_is_waited, 86, 0, 2);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
