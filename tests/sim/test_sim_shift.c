/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shifts on the software driver: pages in a row go to pinned host memory on one stream and come back on another, as
 * many as the device says, and what is not ordered against them is reported. Pages that they leave alone need no order.
 */
#include "kernels/layout.h"
#include "tests/sim/driver_test.h"
#include "tests/sim/sim_kernels.h"
#include "tools/simcuda/access.h"
#include "tools/simcuda/hb.h"

#define N_SEEDS  8
#define PAGE     ((size_t)4096)
#define N_PAGES  6u
#define BYTES    (N_PAGES * PAGE)
#define N_BLOCKS 3u

static CUstream out, in;
static CUevent event;
static CUdeviceptr stage[2]; /* one that goes, and one where it comes back to */
static CUdeviceptr count, note;
static unsigned char *host;

static void start(int seed)
{
    dt_start_seeded(seed, "check=1,check_exit=0");
    out = dt_stream(CU_STREAM_NON_BLOCKING);
    in = dt_stream(CU_STREAM_NON_BLOCKING);
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ok(cuMemHostAlloc((void **)&host, BYTES, CU_MEMHOSTALLOC_DEVICEMAP));
    for (int i = 0; i < 2; i++) {
        stage[i] = dt_alloc(BYTES);
    }
    count = dt_alloc(8);
    note = dt_alloc(8);
}

static void order(CUstream from, CUstream to)
{
    ok(cuEventRecord(event, from));
    ok(cuStreamWaitEvent(to, event, 0));
}

/* Pages first to n - 1 are to go; each has words of its own. */
static void fill(uint32_t n)
{
    for (uint32_t i = 0; i < N_PAGES; i++) {
        ok(cuMemsetD32Async(stage[0] + i * PAGE, 100 + i, PAGE / 4, out));
    }
    ok(cuMemsetD32Async(stage[1], 7, BYTES / 4, out));
    ok(cuMemsetD32Async(count, n, 1, out));
    ok(cuMemsetD32Async(count + 4, 0, 1, out));
}

static void shift_noting(CUstream stream, bool to_host, uint32_t first, bool notes)
{
    struct ps_shift s = {.to = (uint64_t)(uintptr_t)host,
                         .from = stage[0],
                         .count = count,
                         .note = notes ? note : 0,
                         .first = first,
                         .n_pages = N_PAGES,
                         .page_bytes = (uint32_t)PAGE,
                         .to_host = 1,
                         .ring = {.chunk_shift = 7, .n_slots = 3}};

    if (!to_host) {
        s.from = s.to;
        s.to = stage[1];
        s.count = note;
        s.note = 0;
        s.to_host = 0;
    }
    ok(cuLaunchKernel(dt_function("ps_shift"), N_BLOCKS, 1, 1, 32, 1, 1, 0, stream, (void *[]){&s},
                      NULL));
}

static void shift(CUstream stream, bool to_host, uint32_t first)
{
    shift_noting(stream, to_host, first, true);
}

static void expect_silence(void)
{
    ok(cuCtxSynchronize());
    ck_assert_msg(simcuda_check_count() == 0, "%s", simcuda_check_text(0));
}

/* A shift and something else, in either order, in memory that is called so. */
static void expect_found(const char *where)
{
    bool found = false;

    ok(cuCtxSynchronize());
    for (uint64_t i = 0; i < simcuda_check_count(); i++) {
        const int kind = simcuda_check_kind(i, NULL, NULL);

        found = found || ((kind == HB_READ_WRITE || kind == HB_WRITE_READ) &&
                          strstr(simcuda_check_text(i), "ps_shift") != NULL &&
                          strstr(simcuda_check_text(i), where) != NULL);
    }
    ck_assert_msg(found, "%lu reports", (unsigned long)simcuda_check_count());
}

/* Odd indices: an order is left out. */
#define PLANTED (_i % 2 == 1)

static void expect(bool planted, const char *where)
{
    if (planted) {
        expect_found(where);
    } else {
        expect_silence();
    }
}

START_TEST(pages_go_to_the_host_and_come_back)
{
    static uint32_t words[BYTES / 4];

    start(_i);
    for (uint32_t n = 0; n <= N_PAGES + 1; n++) {
        const uint32_t first = n / 3;

        fill(n);
        memset(host, 0xee, BYTES);
        shift(out, true, first);
        order(out, in);
        shift(in, false, first);
        ok(cuMemcpyDtoHAsync(words, stage[1], BYTES, in));
        ok(cuStreamSynchronize(in));
        order(in, out);
        for (uint32_t i = 0; i < N_PAGES; i++) {
            const uint32_t wanted = i >= first && i < n ? 100 + i : 7;

            ck_assert_uint_eq(words[i * PAGE / 4], wanted);
            ck_assert_uint_eq(words[(i + 1) * PAGE / 4 - 1], wanted);
            ck_assert_int_eq(host[i * PAGE] == 0xee, wanted == 7);
        }
    }
    expect_silence();
}
END_TEST

START_TEST(a_shift_back_before_the_shift_out_is_done)
{
    start(_i / 2);
    fill(4);
    ok(cuMemsetD32Async(note, 4, 1, out)); /* it is known before */
    ok(cuMemsetD32Async(note + 4, 0, 1, out));
    order(out, in);
    shift_noting(out, true, 0, false);
    if (!PLANTED) {
        order(out, in);
    }
    shift(in, false, 0);
    expect(PLANTED, "pinned host memory");
}
END_TEST

START_TEST(a_page_that_is_written_while_it_goes)
{
    start(_i / 2);
    fill(4);
    order(out, in);
    shift(out, true, 1);
    if (!PLANTED) {
        order(out, in);
    }
    ok(cuMemsetD32Async(stage[0] + 3 * PAGE, 1, PAGE / 4, in));
    expect(PLANTED, "");
}
END_TEST

START_TEST(a_page_that_is_read_while_it_comes)
{
    start(_i / 2);
    fill(4);
    shift(out, true, 0);
    order(out, in);
    shift(in, false, 2);
    if (!PLANTED) {
        order(in, out);
    }
    ok(cuMemcpyDtoDAsync(stage[0], stage[1] + 3 * PAGE, PAGE, out));
    expect(PLANTED, "");
}
END_TEST

START_TEST(pages_that_do_not_go_need_no_order)
{
    start(_i);
    fill(4);
    order(out, in);
    shift(out, true, 1);
    ok(cuMemsetD32Async(stage[0], 1, PAGE / 4, in));
    ok(cuMemsetD32Async(stage[0] + 4 * PAGE, 1, PAGE / 2, in));
    expect_silence();
}
END_TEST

START_TEST(a_note_that_is_read_before_it_is_there)
{
    start(_i / 2);
    fill(4);
    shift(out, true, 4);
    if (!PLANTED) {
        order(out, in);
    }
    shift(in, false, 4);
    expect(PLANTED, "");
}
END_TEST

START_TEST(a_number_that_is_not_there_yet)
{
    start(_i / 2);
    fill(4);
    if (!PLANTED) {
        order(out, in);
    }
    shift(in, true, 4);
    expect(PLANTED, "");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("shifts");
    TCase *t = tcase_create("on the software driver");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, pages_go_to_the_host_and_come_back, 0, N_SEEDS);
    tcase_add_loop_test(t, a_shift_back_before_the_shift_out_is_done, 0, 2 * N_SEEDS);
    tcase_add_loop_test(t, a_page_that_is_written_while_it_goes, 0, 2 * N_SEEDS);
    tcase_add_loop_test(t, a_page_that_is_read_while_it_comes, 0, 2 * N_SEEDS);
    tcase_add_loop_test(t, pages_that_do_not_go_need_no_order, 0, N_SEEDS);
    tcase_add_loop_test(t, a_note_that_is_read_before_it_is_there, 0, 2 * N_SEEDS);
    tcase_add_loop_test(t, a_number_that_is_not_there_yet, 0, 2 * N_SEEDS);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
