/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker and pinned host memory: copies of every form, fills and shifts from two streams are reported if one of
 * them writes what the other uses and nothing orders them, and only then.
 */
#include "kernels/layout.h"
#include "tests/sim/driver_test.h"
#include "tests/sim/sim_kernels.h"
#include "tools/simcuda/access.h"
#include "tools/simcuda/hb.h"

#define N_SEEDS 3
#define PAGE    ((size_t)4096)

static CUstream streams[2];
static CUevent event;
static CUdeviceptr memory[2]; /* of either stream, so that nothing but the host's is shared */
static CUdeviceptr one;       /* a number of pages */
static unsigned char *host, *elsewhere;

static void start(int seed)
{
    dt_start_seeded(seed, "check=1,check_exit=0");
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ok(cuMemHostAlloc((void **)&host, 2 * PAGE, CU_MEMHOSTALLOC_DEVICEMAP));
    ok(cuMemHostAlloc((void **)&elsewhere, 2 * PAGE, 0));
    memset(host, 1, 2 * PAGE);
    for (int i = 0; i < 2; i++) {
        streams[i] = dt_stream(CU_STREAM_NON_BLOCKING);
        memory[i] = dt_alloc(2 * PAGE);
    }
    one = dt_alloc(8);
    ok(cuMemsetD32(one, 1, 1));
    ok(cuCtxSynchronize());
}

static void order(void)
{
    ok(cuEventRecord(event, streams[0]));
    ok(cuStreamWaitEvent(streams[1], event, 0));
}

static void expect_silence(void)
{
    ok(cuCtxSynchronize());
    ck_assert_msg(simcuda_check_count() == 0, "%s", simcuda_check_text(0));
}

static void expect_found(void)
{
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(simcuda_check_count(), 1);
    const int kind = simcuda_check_kind(0, NULL, NULL);

    ck_assert_msg(kind == HB_WRITE_WRITE || kind == HB_WRITE_READ || kind == HB_READ_WRITE, "%s",
                  simcuda_check_text(0));
    ck_assert_ptr_nonnull(strstr(simcuda_check_text(0), "pinned host memory"));
}

static void expect(bool found)
{
    if (found) {
        expect_found();
    } else {
        expect_silence();
    }
}

/* ---- what uses the host's first page, through the memory of the stream ---- */

static void out(int i)
{
    ok(cuMemcpyDtoHAsync(host, memory[i], PAGE, streams[i]));
}

static void in(int i)
{
    ok(cuMemcpyHtoDAsync(memory[i], host, PAGE, streams[i]));
}

/* Addresses tell what is the host's. */
static void between(int i)
{
    ok(cuMemcpyAsync((CUdeviceptr)(uintptr_t)(elsewhere + (size_t)i * PAGE),
                     (CUdeviceptr)(uintptr_t)host, PAGE, streams[i]));
}

/* Rows of n bytes, one in 64, from `at` on. */
static void box(int i, bool to_host, size_t at, size_t n)
{
    CUDA_MEMCPY2D c = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = memory[i],
        .srcPitch = 64,
        .dstMemoryType = CU_MEMORYTYPE_HOST,
        .dstHost = host + at,
        .dstPitch = 64,
        .WidthInBytes = n,
        .Height = PAGE / 64,
    };

    if (!to_host) {
        c.srcMemoryType = CU_MEMORYTYPE_HOST;
        c.srcHost = c.dstHost;
        c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        c.dstDevice = c.srcDevice;
    }
    ok(cuMemcpy2DAsync(&c, streams[i]));
}

static void box_out(int i)
{
    box(i, true, 0, 64);
}

static void box_in(int i)
{
    box(i, false, 0, 64);
}

static void fill(int i)
{
    ok(cuMemsetD8Async((CUdeviceptr)(uintptr_t)host, 2, PAGE, streams[i]));
}

static void shift(int i, bool to_host)
{
    const uint64_t page = (uint64_t)(uintptr_t)host;
    struct ps_shift s = {.to = to_host ? page : memory[i],
                         .from = to_host ? memory[i] : page,
                         .count = one,
                         .n_pages = 1,
                         .page_bytes = (uint32_t)PAGE,
                         .to_host = to_host,
                         .ring = {.chunk_shift = 8, .n_slots = 2}};

    ok(cuLaunchKernel(dt_function("ps_shift"), 2, 1, 1, 32, 1, 1, 0, streams[i], (void *[]){&s},
                      NULL));
}

static void shift_out(int i)
{
    shift(i, true);
}

static void shift_in(int i)
{
    shift(i, false);
}

static const struct {
    void (*run)(int i);
    bool writes;
} uses[] = {{out, true},     {in, false},  {between, false},  {box_out, true},
            {box_in, false}, {fill, true}, {shift_out, true}, {shift_in, false}};

#define N_USES ((int)(sizeof(uses) / sizeof(uses[0])))

/* All pairs; in every other one the second waits for the first. */
START_TEST(two_uses_of_one_page)
{
    const int first = _i / 2 % N_USES;
    const int second = _i / 2 / N_USES % N_USES;
    const bool ordered = _i % 2 == 1;

    start(_i / 2 / N_USES / N_USES);
    uses[first].run(0);
    if (ordered) {
        order();
    }
    uses[second].run(1);
    expect(!ordered && (uses[first].writes || uses[second].writes));
}
END_TEST

/* Odd indices: they share a byte. */
START_TEST(uses_side_by_side)
{
    const bool planted = _i % 2 == 1;

    start(_i / 2);
    ok(cuMemcpyDtoHAsync(host, memory[0], PAGE, streams[0]));
    ok(cuMemcpyHtoDAsync(memory[1], host + PAGE - planted, PAGE, streams[1]));
    expect(planted);
}
END_TEST

START_TEST(columns_side_by_side)
{
    const bool planted = _i % 2 == 1;

    start(_i / 2);
    box(0, true, 0, 24);
    box(1, true, 24 - planted, 24);
    expect(planted);
}
END_TEST

START_TEST(a_host_that_waits_is_an_order)
{
    start(_i);
    out(0);
    ok(cuStreamSynchronize(streams[0]));
    in(1);
    expect_silence();
}
END_TEST

/* Odd indices: the node that reads does not depend on the one that writes. */
START_TEST(copies_in_a_graph)
{
    const bool planted = _i % 2 == 1;
    CUgraph graph;
    CUgraphExec exec;

    start(_i / 2);
    ok(cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (planted) {
        order();
        out(0);
    } else {
        out(0);
        order();
    }
    in(1);
    ok(cuEventRecord(event, streams[1]));
    ok(cuStreamWaitEvent(streams[0], event, 0));
    ok(cuStreamEndCapture(streams[0], &graph));
    ok(cuGraphInstantiate(&exec, graph, 0));
    ok(cuGraphLaunch(exec, streams[0]));
    expect(planted);
}
END_TEST

/* What is pinned anew, where it was before, has no past. */
START_TEST(memory_of_the_jobs_own)
{
    static _Alignas(4096) unsigned char own[PAGE];

    start(_i);
    for (int i = 0; i < 2; i++) {
        ok(cuMemHostRegister(own, PAGE, 0));
        ok(cuMemcpyDtoHAsync(own, memory[i], PAGE, streams[i]));
        ok(cuMemHostUnregister(own));
    }
    expect_silence();
    ok(cuMemHostRegister(own, PAGE, 0));
    for (int i = 0; i < 2; i++) {
        ok(cuMemcpyDtoHAsync(own, memory[i], PAGE, streams[i]));
    }
    expect_found();
}
END_TEST

/* What the host writes is not seen. */
START_TEST(host_memory_counts_as_written)
{
    start(_i);
    simcuda_check_unwritten(1);
    in(0);
    expect_silence();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("checker");
    TCase *t = tcase_create("pinned host memory");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, two_uses_of_one_page, 0, 2 * N_USES * N_USES * N_SEEDS);
    tcase_add_loop_test(t, uses_side_by_side, 0, 2 * N_SEEDS);
    tcase_add_loop_test(t, columns_side_by_side, 0, 2 * N_SEEDS);
    tcase_add_loop_test(t, a_host_that_waits_is_an_order, 0, N_SEEDS);
    tcase_add_loop_test(t, copies_in_a_graph, 0, 2 * N_SEEDS);
    tcase_add_loop_test(t, memory_of_the_jobs_own, 0, N_SEEDS);
    tcase_add_loop_test(t, host_memory_counts_as_written, 0, N_SEEDS);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
