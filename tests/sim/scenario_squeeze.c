/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job takes all memory while groups are out: their pages go from the device to the host, and what is kept there
 * must be the same bytes. Before anything is planned.
 *
 *   moved   more groups leave behind that, into host pages, and again memory runs out
 *   cached  some are still in their places when it happens, or on their way out, and are taken back
 *   freed   some were freed just before: their pages are on their way back
 *   both    some have found no device pages, were in host pages already, and have come back
 *   beside  a second thread names what is out all the while
 *   writes  the same, and writes into it
 *   leaves  a second thread has layers of its own, which leave and come back all the while
 */
#include <pthread.h>
#include <time.h>

#include "tests/sim/scenario.h"

#define N_LAYERS 8
#define N_STEPS  3
#define SPARE    (8 * SC_BYTES)  /* for what comes back */
#define NEARLY   (20 * SC_BYTES) /* left of the device, and host memory is asked for */

static CUdeviceptr fillers[SC_FILLERS];
static struct sc_layer layers[2 * N_LAYERS];

/* Data to the end of some pages, a word in others, and nothing in the rest. */
static void forward(struct sc_layer *l, uint64_t seed, CUstream s)
{
    sc_forward(l, seed, s);
    sc_ok(cuMemsetD8Async(l->x + SC_BYTES - 4096 - 16 * (seed % 7), 1 + (int)(seed % 5), 16, s));
}

static void forward_all(unsigned first, uint64_t seed, CUstream s)
{
    for (unsigned i = first; i < first + N_LAYERS; i++) {
        forward(&layers[i], seed + i, s);
    }
}

static void backward_all(unsigned first, CUstream s)
{
    for (unsigned i = first + N_LAYERS; i > first; i--) {
        sc_backward(&layers[i - 1], s);
    }
}

/* Host memory is pinned by a thread that needs its time. */
static void pass_time(void)
{
    const struct timespec pause = {0, 20000000};

    (void)nanosleep(&pause, NULL);
}

/* Until the driver refuses; then `spare` bytes are given back. How many are to free. */
static unsigned take_all(size_t spare)
{
    unsigned n = 0;

    while (n < SC_FILLERS && cuMemAlloc(&fillers[n], SC_BYTES) == CUDA_SUCCESS) {
        n++;
    }
    for (size_t bytes = 0; n > 0 && bytes < spare; bytes += SC_BYTES) {
        sc_ok(cuMemFree(fillers[--n]));
    }
    return n;
}

/* Groups leave while there is little left: the list of host pages is device memory, and made in time. */
static void prepare(CUstream s)
{
    const unsigned n = take_all(NEARLY);

    for (unsigned i = 0; i < 3; i++) {
        forward(&layers[0], i, s);
        forward(&layers[1], i, s);
        pass_time();
        sc_backward(&layers[1], s);
        sc_backward(&layers[0], s);
    }
    sc_results_print("before");
    sc_free_fillers(fillers, n);
}

static void moved(CUstream s)
{
    for (uint64_t step = 0; step < N_STEPS; step++) {
        forward_all(0, step * 100, s);
        sc_free_fillers(fillers, take_all(0));
        pass_time();
        forward_all(N_LAYERS, step * 100, s);
        const unsigned n = take_all(SPARE);

        backward_all(N_LAYERS, s);
        sc_digest(layers[3].y, SC_WORDS, s);
        backward_all(0, s);
        sc_free_fillers(fillers, n);
        sc_results_print("step");
    }
}

static void cached(CUstream s)
{
    for (uint64_t step = 0; step < N_STEPS; step++) {
        forward_all(0, step * 100, s);
        sc_mix(layers[1].x, layers[2].x, layers[1].x, SC_VALID, s); /* taken back, and written */
        const unsigned n = take_all(SPARE);

        sc_digest(layers[1].x, SC_WORDS, s);
        sc_mix(layers[4].x, layers[1].x, layers[4].x, SC_VALID, s);
        backward_all(0, s);
        sc_free_fillers(fillers, n);
        sc_results_print("step");
    }
}

static void freed(CUstream s)
{
    for (uint64_t step = 0; step < N_STEPS; step++) {
        forward_all(0, step * 100, s);
        forward_all(N_LAYERS, step * 100, s);
        sc_ok(cuStreamSynchronize(s));
        backward_all(N_LAYERS, s);
        const unsigned n = take_all(2 * SPARE); /* what the next ones take without us */

        forward_all(N_LAYERS, step * 200, s);
        backward_all(N_LAYERS, s);
        backward_all(0, s);
        sc_free_fillers(fillers, n);
        sc_results_print("step");
    }
}

/* As far as the driver does not refuse. How many are to free. */
static unsigned take_most(size_t spare)
{
    size_t left = 0;
    size_t total = 0;
    unsigned n = 0;

    while (n < SC_FILLERS && cuMemGetInfo(&left, &total) == CUDA_SUCCESS &&
           left >= spare + SC_BYTES) {
        sc_ok(cuMemAlloc(&fillers[n++], SC_BYTES));
    }
    return n;
}

static void both(CUstream s)
{
    for (uint64_t step = 0; step < N_STEPS; step++) {
        forward_all(0, step * 100, s);
        sc_ok(cuStreamSynchronize(s));
        unsigned n = take_most(2 * SPARE);

        for (unsigned turn = 0; turn < 4; turn++) {
            forward_all(N_LAYERS, step * 200 + turn, s);
            pass_time();
            backward_all(N_LAYERS, s);
        }
        sc_free_fillers(fillers, n);
        n = take_all(2 * SPARE);
        forward_all(N_LAYERS, step * 300, s);
        backward_all(N_LAYERS, s);
        backward_all(0, s);
        sc_free_fillers(fillers, n);
        sc_results_print("step");
    }
}

/* ---- two threads ---- */

static bool writing, leaving;
static _Atomic bool over;

/* What is named while another takes all memory is refused, and tried again. */
static void digest(CUdeviceptr p, uint64_t n, size_t at, CUstream s)
{
    CUdeviceptr to = sc_results + (CUdeviceptr)8 * (SC_RESULTS / 2 + at);
    CUresult r;
    CUfunction f;

    sc_ok(cuModuleGetFunction(&f, sc_module, "test_hash"));
    while ((r = cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &n, &to}, NULL)) ==
           CUDA_ERROR_OUT_OF_MEMORY) {
        usleep(500);
    }
    sc_ok(r);
}

static void *name_them(void *arg)
{
    CUstream const s = arg;

    sc_ok(cuCtxSetCurrent(sc_ctx));
    for (unsigned turn = 0; !atomic_load(&over); turn++) {
        const struct sc_layer *l = &layers[turn % N_LAYERS];

        digest(l->x, SC_WORDS, turn % N_LAYERS, s);
        if (writing) {
            (void)cuMemsetD32Async(l->y + 8 * SC_VALID + 64 * (turn % 64), turn, 16, s);
        }
        digest(l->y, SC_VALID, N_LAYERS + turn % N_LAYERS, s);
        usleep(1000);
    }
    return NULL;
}

static CUdeviceptr alloc_again(CUstream s)
{
    CUdeviceptr p = 0;
    CUresult r;

    while ((r = cuMemAllocAsync(&p, SC_BYTES, s)) == CUDA_ERROR_OUT_OF_MEMORY) {
        usleep(500);
    }
    sc_ok(r);
    return p;
}

/* Each turn gives the same. */
static void *come_and_go(void *arg)
{
    CUstream const s = arg;

    sc_ok(cuCtxSetCurrent(sc_ctx));
    while (!atomic_load(&over)) {
        CUdeviceptr x[N_LAYERS / 2];

        for (unsigned i = 0; i < N_LAYERS / 2; i++) {
            nvtxRangePushA("moe_experts");
            x[i] = alloc_again(s);
            sc_produce(x[i], SC_VALID, SC_WORDS, i, s);
            nvtxRangePop();
        }
        for (unsigned i = N_LAYERS / 2; i > 0; i--) {
            digest(x[i - 1], SC_WORDS, i, s);
            sc_free(x[i - 1], s);
        }
    }
    return NULL;
}

static void beside(CUstream s, CUstream side)
{
    for (uint64_t step = 0; step < N_STEPS; step++) {
        pthread_t thread;

        forward_all(0, step * 100, s);
        sc_order(s, side);
        atomic_store(&over, false);
        if (pthread_create(&thread, NULL, leaving ? come_and_go : name_them, side) != 0) {
            sc_fail();
        }
        for (unsigned i = 0; i < 4; i++) {
            sc_free_fillers(fillers, take_all(0));
            pass_time();
        }
        atomic_store(&over, true);
        (void)pthread_join(thread, NULL);
        sc_order(side, s);
        for (unsigned i = 0; i < N_LAYERS; i++) { /* how much of it was written is chance */
            sc_ok(cuMemsetD8Async(layers[i].y + 8 * SC_VALID, 0, SC_BYTES - 8 * SC_VALID, s));
        }
        backward_all(0, s);
        sc_results_print("step");
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "moved";

    sc_start();
    const CUstream s = sc_stream();

    writing = strcmp(kind, "writes") == 0;
    leaving = strcmp(kind, "leaves") == 0;
    prepare(s);
    if (strcmp(kind, "cached") == 0) {
        cached(s);
    } else if (strcmp(kind, "freed") == 0) {
        freed(s);
    } else if (strcmp(kind, "both") == 0) {
        both(s);
    } else if (writing || leaving || strcmp(kind, "beside") == 0) {
        beside(s, sc_stream());
    } else {
        moved(s);
    }
    return sc_end();
}
