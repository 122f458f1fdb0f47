/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: stream capture and its rules, graphs by hand, launches, updates. */
#include <pthread.h>

#include "tests/sim/driver_test.h"

#define N_SEEDS 8
#define N       ((size_t)64)

static CUgraph end_capture(CUstream s)
{
    CUgraph g;

    ok(cuStreamEndCapture(s, &g));
    return g;
}

static CUgraphExec instantiate(CUgraph g)
{
    CUgraphExec exec;

    ok(cuGraphInstantiateWithFlags(&exec, g, 0));
    return exec;
}

static void CUDA_CB count(void *arg)
{
    ++*(int *)arg;
}

START_TEST(a_captured_fork_runs_as_it_would_have)
{
    dt_start_seeded(_i, "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING), side = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096), y = dt_alloc(4096);
    CUevent fork, join;
    int calls = 0;

    ok(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    ok(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok(cuMemsetD32Async(y, 1, N, s));
    dt_add(s, x, 1, N);
    ok(cuEventRecord(fork, s));
    ok(cuStreamWaitEvent(side, fork, 0));
    dt_copy(side, y, x, 4 * N);
    dt_add(side, y, 10, N);
    ok(cuEventRecord(join, side));
    ok(cuLaunchHostFunc(s, count, &calls));
    ok(cuStreamWaitEvent(s, join, 0));
    ok(cuMemcpyDtoDAsync(y + 1024, y, 4 * N, s));
    const CUgraph g = end_capture(s);
    const CUgraphExec exec = instantiate(g);
    ck_assert_uint_eq(dt_word(s, x), 0); /* nothing ran */

    for (uint32_t i = 1; i <= 5; i++) {
        ok(cuGraphLaunch(exec, i % 2 == 0 ? s : side));
        ck_assert_uint_eq(dt_word(i % 2 == 0 ? s : side, y + 1024), i + 10);
    }
    ok(cuGraphLaunch(exec, s));
    dt_add(s, x, 100, N); /* after the graph */
    ck_assert_uint_eq(dt_word(s, x), 106);
    ck_assert_uint_eq(dt_word(s, y), 16);
    ck_assert_int_eq(calls, 6);
    ok(cuGraphDestroy(g));
    ok(cuGraphLaunch(exec, s));
    ok(cuGraphExecDestroy(exec)); /* while it runs */
    ck_assert_uint_eq(dt_word(s, y), 117);
    fails(cuGraphLaunch(exec, s), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* The capture that went on in s is over and gives nothing. */
static void expect_invalid(CUstream s)
{
    CUgraph g = (CUgraph)1;
    CUstreamCaptureStatus status;

    ok(cuStreamIsCapturing(s, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    fails(cuMemsetD8Async(0, 0, 0, s), CUDA_SUCCESS); /* nothing to do is no operation */
    fails(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ck_assert_ptr_null(g);
    ok(cuStreamIsCapturing(s, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    ok(cuStreamSynchronize(s));
}

START_TEST(what_a_capture_forbids_invalidates_it)
{
    dt_start("");
    const CUstream s = dt_stream(CU_STREAM_DEFAULT), other = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);
    CUdeviceptr p;
    CUevent outside;
    uint32_t word;

    ok(cuEventCreate(&outside, 0));
    ok(cuEventRecord(outside, other));
    ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    switch (_i) {
    case 0:
        fails(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        break;
    case 1:
        fails(cuMemAlloc(&p, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        break;
    case 2:
        fails(cuMemcpyDtoH(&word, x, 4), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        break;
    case 3:
        fails(cuStreamWaitEvent(s, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        break;
    case 4:
        fails(cuStreamQuery(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        break;
    case 5:
        fails(cuEventQuery(outside), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        break;
    default:
        fails(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        break;
    }
    expect_invalid(s);
}
END_TEST

static void *allocate(void *arg)
{
    CUdeviceptr p;
    CUstreamCaptureMode mode = *(CUstreamCaptureMode *)arg;

    ok(cuCtxSetCurrent(dt_ctx));
    ok(cuThreadExchangeStreamCaptureMode(&mode));
    ck_assert_int_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    return (void *)(uintptr_t)cuMemAlloc(&p, 64);
}

START_TEST(modes_say_which_threads_are_bound)
{
    static const struct {
        CUstreamCaptureMode capture, other;
        CUresult result;
    } rows[] = {
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL,
         CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_SUCCESS},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_SUCCESS},
        {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_SUCCESS},
        {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_SUCCESS},
    };
    pthread_t thread;
    void *result;
    CUgraph g;

    dt_start("");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);

    ok(cuStreamBeginCapture(s, rows[_i].capture));
    ck_assert_int_eq(pthread_create(&thread, NULL, allocate, (void *)(uintptr_t)&rows[_i].other),
                     0);
    pthread_join(thread, &result);
    ck_assert_int_eq((int)(intptr_t)result, (int)rows[_i].result);
    fails(cuStreamEndCapture(s, &g),
          rows[_i].result == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}
END_TEST

START_TEST(captures_have_edges)
{
    dt_start("");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING), side = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);
    CUevent e;
    CUgraph g;
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph inside;
    const CUgraphNode *deps;
    size_t n;

    ok(cuEventCreate(&e, 0));
    fails(cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL),
          CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fails(cuStreamEndCapture(s, &g), CUDA_ERROR_ILLEGAL_STATE);
    ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    fails(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_ILLEGAL_STATE);
    ok(cuEventRecord(e, s));
    ok(cuStreamWaitEvent(side, e, 0));
    fails(cuEventSynchronize(e), CUDA_ERROR_CAPTURED_EVENT);
    dt_add(side, x, 1, 1);
    ok(cuStreamGetCaptureInfo(side, &status, &id, &inside, &deps, NULL, &n));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ck_assert_uint_eq(n, 1);
    fails(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    ok(cuStreamIsCapturing(side, &status));
    ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    fails(cuStreamWaitEvent(s, e, 0), CUDA_ERROR_CAPTURED_EVENT);
    ok(cuEventRecord(e, s)); /* an ordinary event again */
    ok(cuEventSynchronize(e));
}
END_TEST

START_TEST(memory_can_be_allocated_in_a_graph)
{
    dt_start_seeded(_i, "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);
    CUdeviceptr p;
    size_t before, during, after, total;

    ok(cuMemGetInfo(&before, &total));
    ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    ok(cuMemAllocAsync(&p, 4 * N, s));
    dt_fill(s, p, 3, N);
    dt_copy(s, x, p, 4 * N);
    ok(cuMemFreeAsync(p, s));
    const CUgraph g = end_capture(s);
    const CUgraphExec exec = instantiate(g);
    ok(cuGraphDestroy(g));
    for (int i = 0; i < 3; i++) {
        ok(cuGraphLaunch(exec, s));
    }
    ck_assert_uint_eq(dt_word(s, x), 3);
    ok(cuMemGetInfo(&during, &total));
    ck_assert_uint_lt(during, before);
    ok(cuGraphExecDestroy(exec));
    ok(cuMemGetInfo(&after, &total));
    ck_assert_uint_eq(after, before);
}
END_TEST

static CUgraphNode add_kernel(CUgraph g, const CUgraphNode *deps, size_t n_deps, void **params)
{
    const CUDA_KERNEL_NODE_PARAMS p = {.func = dt_function("sim_add"),
                                       .gridDimX = 2,
                                       .gridDimY = 1,
                                       .gridDimZ = 1,
                                       .blockDimX = 1,
                                       .blockDimY = 1,
                                       .blockDimZ = 1,
                                       .kernelParams = params};
    CUgraphNode node;

    ok(cuGraphAddKernelNode(&node, g, deps, n_deps, &p));
    return node;
}

START_TEST(graphs_are_built_node_by_node)
{
    dt_start_seeded(_i, "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096), y = dt_alloc(4096);
    uint32_t one = 1, ten = 10;
    uint64_t n = N;
    CUgraph g, child;
    CUgraphNode set, first, nested, copy, found[8];
    size_t n_found = 8;
    int calls = 0;

    ok(cuGraphCreate(&g, 0));
    ok(cuGraphCreate(&child, 0));
    (void)add_kernel(child, NULL, 0, (void *[]){(void *)&x, &ten, &n});
    const CUDA_MEMSET_NODE_PARAMS zero = {
        .dst = x, .elementSize = 4, .value = 5, .width = N, .height = 1};
    ok(cuGraphAddMemsetNode(&set, g, NULL, 0, &zero, dt_ctx));
    first = add_kernel(g, NULL, 0, (void *[]){(void *)&x, &one, &n});
    ok(cuGraphAddDependencies(g, &set, &first, NULL, 1));
    ok(cuGraphAddChildGraphNode(&nested, g, &first, 1, child));
    const CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                               .srcDevice = x,
                               .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                               .dstDevice = y,
                               .WidthInBytes = 4 * N,
                               .Height = 1,
                               .Depth = 1};
    ok(cuGraphAddMemcpyNode(&copy, g, &nested, 1, &box, dt_ctx));
    const CUDA_HOST_NODE_PARAMS host = {count, &calls};
    ok(cuGraphAddHostNode(&found[0], g, &copy, 1, &host));
    ok(cuGraphGetNodes(g, found, &n_found));
    ck_assert_uint_eq(n_found, 5);
    n_found = 8;
    ok(cuGraphGetRootNodes(g, found, &n_found));
    ck_assert_uint_eq(n_found, 1);
    ck_assert_ptr_eq(found[0], set);

    const CUgraphExec exec = instantiate(g);
    ok(cuGraphLaunch(exec, s));
    ck_assert_uint_eq(dt_word(s, y + 4 * (N - 1)), 16);
    ck_assert_int_eq(calls, 1);

    CUDA_KERNEL_NODE_PARAMS p;
    ok(cuGraphKernelNodeGetParams(first, &p));
    ck_assert_uint_eq(*(uint32_t *)p.kernelParams[1], 1);
    uint32_t seven = 7;
    p.kernelParams = (void *[]){(void *)&x, &seven, &n};
    ok(cuGraphExecKernelNodeSetParams(exec, first, &p));
    ok(cuGraphLaunch(exec, s));
    ck_assert_uint_eq(dt_word(s, y), 22);
    ok(cuGraphExecUpdate(exec, g, &(CUgraphExecUpdateResultInfo){0})); /* as it was */
    ok(cuGraphLaunch(exec, s));
    ck_assert_uint_eq(dt_word(s, y), 16);
    ok(cuGraphDestroyNode(copy));
    fails(cuGraphExecUpdate(exec, g, &(CUgraphExecUpdateResultInfo){0}),
          CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    ok(cuGraphAddDependencies(g, &nested, &set, NULL, 1));
    CUgraphExec cyclic;
    fails(cuGraphInstantiateWithFlags(&cyclic, g, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(launching_while_capturing_nests)
{
    dt_start_seeded(_i, "");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);

    ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    dt_add(s, x, 1, N);
    const CUgraphExec inner = instantiate(end_capture(s));
    ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    dt_fill(s, x, 40, N);
    ok(cuGraphLaunch(inner, s));
    dt_add(s, x, 1, N);
    const CUgraphExec outer = instantiate(end_capture(s));
    ok(cuGraphLaunch(outer, s));
    ok(cuGraphLaunch(inner, s));
    ck_assert_uint_eq(dt_word(s, x), 43);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("graphs");
    TCase *tc = tcase_create("graphs");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, a_captured_fork_runs_as_it_would_have, 0, N_SEEDS);
    tcase_add_loop_test(tc, what_a_capture_forbids_invalidates_it, 0, 7);
    tcase_add_loop_test(tc, modes_say_which_threads_are_bound, 0, 5);
    tcase_add_test(tc, captures_have_edges);
    tcase_add_loop_test(tc, memory_can_be_allocated_in_a_graph, 0, 3);
    tcase_add_loop_test(tc, graphs_are_built_node_by_node, 0, N_SEEDS);
    tcase_add_loop_test(tc, launching_while_capturing_nests, 0, 3);
    suite_add_tcase(s, tc);
    return ps_check_main(s);
}
