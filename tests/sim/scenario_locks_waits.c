/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each place where the stash waits for the device in a call of the job: the work it waits for is held back until
 * another thread has taken and given memory, which it can only do while the first holds no lock. Which wait: the
 * argument. Some are made only where the driver refuses something first; it refuses one function to the stash here.
 */
#include <pthread.h>

#include "tests/sim/future.h"

#ifndef PS_FAULTS
#    error "needs the watcher of failing calls"
#endif

#define N_LAYERS 3
#define N_GROUP  3

static const char *_Atomic refused; /* this function, to the stash */
static _Atomic bool going;          /* the first thread is about to wait */
static struct sc_layer layers[N_LAYERS];
static CUstream s, held, third;
static CUdeviceptr word, spare;

static CUresult watch(const char *name, const void *caller)
{
    const char *which = atomic_load(&refused);

    return which != NULL && strcmp(name, which) == 0 && fw_by_stash(name, caller)
               ? CUDA_ERROR_UNKNOWN
               : CUDA_SUCCESS;
}

static void hold(CUstream stream)
{
    sc_ok(cuStreamWaitValue32(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

/* The other thread: takes memory and gives some back, then lets the held stream go on. */
static void *let_go(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    const CUstream own = sc_stream();

    while (!atomic_load(&going)) {
        usleep(100);
    }
    usleep(20000);
    sc_free(spare, s);
    nvtxRangePushA("experts aside");
    sc_free(sc_alloc(SC_BYTES, own), own);
    nvtxRangePop();
    sc_ok(cuStreamWriteValue32(own, word, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    sc_ok(cuStreamSynchronize(own));
    return NULL;
}

/* All layers, which are out, come back on the held stream. */
static void bring_back_held(void)
{
    hold(held);
    for (int i = 0; i < N_LAYERS; i++) {
        sc_digest_aside(layers[i].x, SC_WORDS, held);
        sc_digest_aside(layers[i].y, SC_WORDS, held);
    }
}

/* A launch by the table is told nothing of, but for a function of an unknown version: paging ends. */
static void end(void)
{
    uint64_t n = SC_WORDS;
    CUdeviceptr to = sc_results + (CUdeviceptr)8 * sc_n_results++;
    CUfunction f;

    bring_back_held();
    atomic_store(&going, true);
    sc_ok(cuModuleGetFunction(&f, sc_module, "test_hash"));
    sc_ok(future_launch(f, 4, 1, 1, 32, 1, 1, 0, third, (void *[]){&layers[0].x, &n, &to}, NULL));
}

/* An upload that names a tensor: the host waits for its arrival. */
static void pin(void)
{
    const struct test_product p = {layers[0].x, layers[1].x, layers[0].y, SC_WORDS};
    CUdeviceptr list;
    uint64_t n = 1;

    sc_ok(cuMemAlloc(&list, sizeof(p)));
    bring_back_held();
    atomic_store(&going, true);
    sc_ok(cuMemcpyHtoDAsync(list, &p, sizeof(p), third));
    sc_order(held, third);
    sc_launch(third, "test_grouped", (void *[]){&list, &n});
}

/* A use on another stream, which the driver does not let wait for the arrival. */
static void use(void)
{
    bring_back_held();
    atomic_store(&going, true);
    atomic_store(&refused, "cuStreamWaitEvent");
    sc_digest(layers[0].x, SC_WORDS, third);
    atomic_store(&refused, NULL);
}

/* The same with a tensor that is being stashed. */
static void back(void)
{
    hold(s);
    sc_digest(layers[0].x, SC_WORDS, s);
    nvtxRangePushA("experts boundary");
    nvtxRangePop();
    atomic_store(&going, true);
    atomic_store(&refused, "cuStreamWaitEvent");
    sc_digest_aside(layers[0].x, SC_WORDS, third);
    atomic_store(&refused, NULL);
}

/* A restore behind which no event can be recorded. */
static void restore(void)
{
    hold(held);
    atomic_store(&going, true);
    atomic_store(&refused, "cuEventRecord");
    sc_digest_aside(layers[0].x, SC_WORDS, held);
    atomic_store(&refused, NULL);
}

/* A restore that cannot be launched: its memory goes again once the device is idle. */
static void undo(void)
{
    uint64_t n = SC_WORDS;
    CUdeviceptr to = sc_results + (CUdeviceptr)8 * sc_n_results++;
    CUfunction f;
    CUresult r;

    sc_ok(cuModuleGetFunction(&f, sc_module, "test_hash"));
    hold(held);
    atomic_store(&going, true);
    atomic_store(&refused, "cuLaunchKernel");
    do {
        r = cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, third, (void *[]){&layers[0].x, &n, &to}, NULL);
    } while (r != CUDA_SUCCESS && atomic_exchange(&refused, NULL) != NULL);
    sc_ok(r);
    atomic_store(&refused, NULL);
}

/* A group that leaves into pages which are on their way back. */
static void pages(void)
{
    CUdeviceptr group[N_GROUP];

    bring_back_held();
    nvtxRangePushA("experts at once");
    for (uint64_t i = 0; i < N_GROUP; i++) {
        group[i] = sc_alloc(SC_BYTES, s);
        sc_produce(group[i], SC_VALID, SC_WORDS, 50 + i, s);
    }
    nvtxRangePop();
    atomic_store(&going, true);
    nvtxRangePushA("experts boundary");
    nvtxRangePop();
    for (uint64_t i = 0; i < N_GROUP; i++) {
        sc_digest(group[i], SC_WORDS, s);
        sc_free(group[i], s);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
    bool resident; /* the layers stay where they are */
} waits[] = {
    {"end", end, false},     {"pin", pin, false},         {"use", use, false},
    {"back", back, true},    {"restore", restore, false}, {"undo", undo, false},
    {"pages", pages, false},
};

static void run(unsigned which)
{
    static CUdeviceptr fillers[SC_FILLERS];
    pthread_t thread;
    unsigned n = 0;

    nvtxRangePushA("experts spare");
    spare = sc_alloc(SC_BYTES, s);
    nvtxRangePop();
    for (uint64_t i = 0; i < N_LAYERS; i++) {
        sc_forward(&layers[i], i, s);
    }
    sc_order(s, held);
    sc_order(s, third);
    if (!waits[which].resident) {
        n = sc_fill_device(fillers, 0);
        sc_free_fillers(fillers, n);
    }
    if (pthread_create(&thread, NULL, let_go, NULL) != 0) {
        sc_fail();
    }
    waits[which].run();
    pthread_join(thread, NULL);
    sc_ok(cuCtxSynchronize());
    for (int i = N_LAYERS - 1; i >= 0; i--) {
        sc_backward(&layers[i], s);
    }
}

int main(int argc, char **argv)
{
    sc_start();
    look_up();
    s = sc_stream(), held = sc_stream(), third = sc_stream();
    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemsetD32(word, 0, 1));
    sc_ok(cuCtxSynchronize());
    simcuda_watch(watch);
    for (unsigned i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        if (argc > 1 && strcmp(waits[i].name, argv[1]) == 0) {
            run(i);
        }
    }
    simcuda_watch(NULL);
    sc_results_print("all");
    return sc_end();
}
