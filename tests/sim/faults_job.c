/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small job that makes the stash make every driver call it knows, most of them while tensors are out (fault_watch.h):
 * one stream, others ordered by events, the legacy stream, a graph, copies, frees of every kind, a second context that
 * comes and goes meanwhile, two threads. With the argument "planned": steps that a plan is taken up for, then touches
 * it did not foresee, a layer more, and a plan for that; half of the layers count their rows. faults.py runs it.
 */
#include <pthread.h>

#include "shim/pagedstash.h"
#include "tests/sim/scenario.h"

#include "tests/sim/fault_watch.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx);

#define N_LAYERS  8
#define N_STEPS   3
#define N_BATCHES 4
#define N_ASIDE   3

static uint64_t host[SC_RESULTS];

static CUdeviceptr take(CUstream s)
{
    const CUdeviceptr p = sc_alloc(SC_BYTES, s);

    fw_live(p);
    return p;
}

static void give(CUdeviceptr p, CUstream s)
{
    fw_dead(p);
    sc_free(p, s);
}

static void give_at_once(CUdeviceptr p)
{
    fw_dead(p);
    sc_ok(cuMemFree(p));
}

/* Each phase and layer has a range of its own, so that what one does with its tensors decides for it alone. */
static void forward(struct sc_layer *l, const char *phase, uint64_t seed, CUstream s)
{
    char range[64];

    snprintf(range, sizeof(range), "experts %s %u", phase, (unsigned)(seed % 100));
    nvtxRangePushA(range);
    l->x = take(s);
    l->y = take(s);
    sc_produce(l->x, SC_VALID, SC_WORDS, seed, s);
    sc_mix(l->x, l->x, l->y, SC_VALID, s);
    sc_ok(cuMemsetD8Async(l->y + 8 * SC_VALID, 0, SC_BYTES - 8 * SC_VALID, s));
    nvtxRangePop();
}

static void backward(struct sc_layer *l, CUstream s)
{
    sc_digest(l->y, SC_WORDS, s);
    sc_digest(l->x, SC_WORDS, s);
    give(l->y, s);
    give(l->x, s);
}

/* A kernel of a library loaded just now: nobody has asked for its parameters yet. */
static void launch_new_kernel(CUdeviceptr p, CUstream s)
{
    CUlibrary library;
    CUkernel kernel;
    uint64_t n = SC_WORDS;
    CUdeviceptr to = sc_results + (CUdeviceptr)8 * sc_n_results++;

    sc_ok(cuLibraryLoadData(&library, "", NULL, NULL, 0, NULL, NULL, 0));
    sc_ok(cuLibraryGetKernel(&kernel, library, "test_hash"));
    sc_ok(
        cuLaunchKernel((CUfunction)kernel, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &n, &to}, NULL));
}

static void launch_new_function(CUdeviceptr p, CUstream s)
{
    const CUmodule old = sc_module;

    sc_ok(cuModuleLoadData(&sc_module, ""));
    sc_digest(p, SC_WORDS, s);
    sc_module = old;
}

/* A graph that reads the tensor; launched twice. */
static void capture(CUdeviceptr p, CUdeviceptr to, CUstream s)
{
    CUgraph graph;
    CUgraphExec exec;

    sc_ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    sc_mix(p, p, to, SC_WORDS, s);
    sc_ok(cuStreamEndCapture(s, &graph));
    sc_ok(cuGraphInstantiate(&exec, graph, 0));
    sc_ok(cuGraphDestroy(graph));
    sc_ok(cuGraphLaunch(exec, s));
    sc_digest(to, SC_WORDS, s);
    sc_ok(cuGraphLaunch(exec, s));
    sc_digest(to, SC_WORDS, s);
    sc_ok(cuStreamSynchronize(s));
    sc_ok(cuGraphExecDestroy(exec));
}

/* Another context lives and dies while tensors of the first are out; it reads one of them too. */
static void visit(CUdeviceptr of_first, CUstream first)
{
    const CUcontext ctx = sc_ctx;
    const CUmodule module = sc_module;
    const CUdeviceptr results = sc_results;
    const unsigned n_results = sc_n_results;
    struct sc_layer layers[N_ASIDE];
    CUcontext other;
    CUstream s;

    sc_ok(cuStreamSynchronize(first)); /* events of one context are not recorded in another */
    sc_ok(cuCtxCreate_v2(&other, 0, 0));
    sc_ctx = other;
    sc_ok(cuModuleLoadData(&sc_module, ""));
    sc_ok(cuMemAlloc(&sc_results, SC_RESULTS * 8));
    sc_ok(cuMemsetD8(sc_results, 0, SC_RESULTS * 8));
    sc_ok(cuCtxSynchronize());
    sc_n_results = 0;
    s = sc_stream();
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < N_ASIDE; i++) {
            forward(&layers[i], "aside", 1000 + i, s);
        }
        sc_digest(of_first, SC_WORDS, s);
        for (int i = N_ASIDE - 1; i >= 0; i--) {
            backward(&layers[i], s);
        }
    }
    sc_results_print("aside");
    sc_ok(cuMemFree(sc_results));
    sc_ok(cuCtxDestroy_v2(other));
    sc_ctx = ctx;
    sc_module = module;
    sc_results = results;
    sc_n_results = n_results;
    sc_ok(cuCtxSetCurrent(ctx));
}

/* The pool's own calls, and a stream that blocks comes and goes. */
static void ask_pool(CUdeviceptr p)
{
    CUmemoryPool pool;
    CUmemoryPool of_tensor;
    CUstream blocking;

    sc_ok(cuDeviceGetDefaultMemPool(&pool, 0));
    sc_ok(cuPointerGetAttribute(&of_tensor, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    printf("the tensor is the default pool's: %s\n", of_tensor == pool ? "yes" : "no");
    sc_ok(cuMemPoolTrimTo(pool, 0));
    sc_ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    sc_digest(sc_results, 4, blocking);
    sc_ok(cuStreamSynchronize(blocking));
    sc_ok(cuStreamDestroy(blocking));
}

static void touch_between(struct sc_layer *layers, int i, CUstream s, CUstream side)
{
    if (i == 4) {
        sc_digest(layers[1].x, SC_WORDS, s);
    } else if (i == 5) {
        sc_order(s, side);
        sc_digest_aside(layers[2].y, SC_WORDS, side);
        sc_order(side, s);
    } else if (i == 6) {
        sc_ok(cuMemcpyDtoHAsync(host, layers[0].x, sizeof(host), s));
        sc_ok(cuStreamSynchronize(s));
        sc_print("copy", host, sizeof(host));
    }
}

/* Memory that passes from stream to stream while its work is queued. */
static void pass_on(uint64_t seed, CUstream s, CUstream side)
{
    for (uint64_t i = 0; i < 6; i++) {
        struct sc_layer l;
        const CUstream on = i % 3 == 2 ? side : s;

        forward(&l, "passing", seed + i, on);
        (on == side ? sc_digest_aside : sc_digest)(l.x, SC_WORDS, on);
        give(l.y, on);
        give(l.x, on);
    }
}

/* Layers on the legacy stream, while a stream is there that it is a barrier for. */
static void on_legacy(uint64_t seed, CUstream s)
{
    struct sc_layer layers[4];
    CUstream blocking;

    sc_ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    sc_order(s, NULL);
    for (uint64_t i = 0; i < 4; i++) {
        forward(&layers[i], "legacy", seed + i, NULL);
    }
    for (int i = 3; i >= 0; i--) {
        backward(&layers[i], NULL);
    }
    sc_order(NULL, s);
    sc_ok(cuStreamSynchronize(s));
    sc_ok(cuStreamDestroy(blocking));
}

static void step(uint64_t number, CUdeviceptr kept, CUstream s, CUstream side)
{
    struct sc_layer layers[N_LAYERS];

    for (int i = 0; i < N_LAYERS; i++) {
        forward(&layers[i], "step", number * 100 + (uint64_t)i, s);
        touch_between(layers, i, s, side);
    }
    if (number == 1) {
        visit(layers[1].x, s);
        ask_pool(layers[1].y);
    }
    pass_on(number * 100 + 50, s, side);
    on_legacy(number * 100 + 60, s);
    launch_new_kernel(layers[0].x, s);
    launch_new_function(layers[2].x, s);
    if (number > 0) {
        capture(layers[3].y, kept, s);
    }
    backward(&layers[7], s);
    sc_digest(layers[6].x, SC_WORDS, s);
    give_at_once(layers[6].y);
    give_at_once(layers[6].x);
    sc_digest(layers[5].x, SC_WORDS, s);
    sc_order(s, side);
    give(layers[5].y, side);
    give(layers[5].x, side);
    sc_order(side, s);
    sc_order(s, NULL);
    backward(&layers[4], NULL);
    sc_order(NULL, s);
    for (int i = 3; i >= 0; i--) {
        backward(&layers[i], s);
    }
    sc_results_print("step");
}

/* ---- two threads: backward of a batch while the next goes forward ---- */

static struct batch {
    struct sc_layer layers[N_LAYERS];
    CUevent ready; /* behind its forward */
    _Atomic bool filled;
} batches[N_BATCHES];

static void *backward_thread(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    const CUstream s = sc_stream();

    for (unsigned b = 0; b < N_BATCHES; b++) {
        while (!atomic_load(&batches[b].filled)) {
            usleep(100);
        }
        sc_ok(cuStreamWaitEvent(s, batches[b].ready, 0));
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            backward(&batches[b].layers[i], s);
        }
    }
    sc_ok(cuStreamSynchronize(s));
    return NULL;
}

static void two_threads(CUstream s)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, backward_thread, NULL) != 0) {
        sc_fail();
    }
    for (unsigned b = 0; b < N_BATCHES; b++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            forward(&batches[b].layers[i], "thread", 10000 + b * 100 + i, s);
        }
        sc_ok(cuEventCreate(&batches[b].ready, CU_EVENT_DISABLE_TIMING));
        sc_ok(cuEventRecord(batches[b].ready, s));
        atomic_store(&batches[b].filled, true);
    }
    pthread_join(thread, NULL);
    sc_results_print("threads");
}

/* ---- under a plan ---- */

#define N_LEARNED 6  /* steps until a plan is in force */
#define N_MORE    8  /* from here on there is a layer more */
#define N_PLANNED 12 /* by then that is planned, too */

static CUdeviceptr row_counters; /* int64_t, one for each layer */

static bool plan_in_force(void)
{
    pagedstash_status_fn *ask = NULL;
    struct pagedstash_status status = {.size = sizeof(status)};

    *(void **)&ask = dlsym(RTLD_DEFAULT, "pagedstash_status");
    return ask != NULL && ask(&status) == PAGEDSTASH_OK && (status.flags & PAGEDSTASH_PLANNED) != 0;
}

#define ROW_WORDS 64

/* Rows vary, so that tails hold data now and then. Those of every other layer are counted. */
static void planned_forward(struct sc_layer *l, uint64_t seed, CUstream s)
{
    const uint64_t rows = SC_VALID / ROW_WORDS + test_mix(seed) % 32;
    const uint64_t valid = rows * ROW_WORDS;
    char range[160] = "experts";

    if (seed % 2 == 1) {
        const CUdeviceptr counter = row_counters + 8 * (seed % 100);

        sc_ok(cuMemsetD32Async(counter, (unsigned)rows, 1, s));
        snprintf(range, sizeof(range),
                 "experts counted;tokens=0x%llx:i64;need=0x%llx:i64;capacity=%u",
                 (unsigned long long)counter, (unsigned long long)counter,
                 (unsigned)(SC_WORDS / ROW_WORDS));
    }
    nvtxRangePushA(range);
    l->x = take(s);
    l->y = take(s);
    sc_produce(l->x, valid, SC_WORDS, seed, s);
    sc_mix(l->x, l->x, l->y, valid, s);
    sc_ok(cuMemsetD8Async(l->y + 8 * valid, 0, SC_BYTES - 8 * valid, s));
    nvtxRangePop();
}

/* Of the sixth step what no plan foresaw; of the seventh what keeps tensors, and frees of other kinds. */
static void planned_step(uint64_t number, CUdeviceptr kept, CUstream s, CUstream side)
{
    const int n = number < N_MORE ? N_LAYERS : N_LAYERS + 1;
    struct sc_layer layers[N_LAYERS + 1];

    for (int i = 0; i < n; i++) {
        planned_forward(&layers[i], number * 100 + (uint64_t)i, s);
        if (number == 6) {
            touch_between(layers, i, s, side);
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        if (number == 6 && i > 2) {
            sc_digest(layers[i - 3].x, SC_WORDS, s);
            sc_mix(layers[i].y, layers[0].y, layers[0].y, SC_WORDS - 8, s);
        }
        if (number == 7 && i == 3) {
            capture(layers[3].y, kept, s);
        }
        if (number == 7 && i == 5) {
            sc_digest(layers[5].x, SC_WORDS, s);
            give_at_once(layers[5].y);
            give_at_once(layers[5].x);
        } else if (number == 7 && i == 4) {
            sc_digest(layers[4].x, SC_WORDS, s);
            sc_order(s, side);
            give(layers[4].y, side);
            give(layers[4].x, side);
            sc_order(side, s);
        } else {
            backward(&layers[i], s);
        }
    }
    sc_results_print("planned step");
}

static int planned(CUdeviceptr kept, CUstream s, CUstream side)
{
    sc_ok(cuMemAlloc(&row_counters, 8 * (N_LAYERS + 1)));
    sc_ok(cuMemsetD8(row_counters, 0, 8 * (N_LAYERS + 1)));
    sc_ok(cuCtxSynchronize());
    for (uint64_t number = 0; number < N_PLANNED; number++) {
        if (number == N_LEARNED && plan_in_force()) {
            fw_plan_in_force();
        }
        if (number < N_LEARNED) {
            usleep(10000); /* for the thread that pins the pages a plan wants */
        }
        planned_step(number, kept, s, side);
    }
    return sc_end();
}

int main(int argc, char **argv)
{
    CUdeviceptr kept;

    fw_start();
    sc_start();
    sc_ok(cuMemAlloc(&kept, SC_BYTES));
    const CUstream s = sc_stream(), side = sc_stream();

    if (argc > 1 && strcmp(argv[1], "planned") == 0) {
        return planned(kept, s, side);
    }
    for (uint64_t number = 0; number < N_STEPS; number++) {
        step(number, kept, s, side);
    }
    two_threads(s);
    return sc_end();
}
