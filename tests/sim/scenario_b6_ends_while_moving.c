/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paging ends, by a launch of a version that nobody knows yet, with everything out, while another thread brings tensors
 * back: right after it that launch reads them on a stream that knows of none of this.
 */
#include <pthread.h>

#include "tests/sim/future.h"

#define N_LAYERS 8

static struct sc_layer layers[N_LAYERS];
static pthread_barrier_t barrier;

static void digest_by_future(CUdeviceptr p, size_t at, CUstream s)
{
    uint64_t n = SC_WORDS;
    CUdeviceptr to = sc_results + 8 * at;
    CUfunction f;

    sc_ok(cuModuleGetFunction(&f, sc_module, "test_hash"));
    sc_ok(future_launch(f, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &n, &to}, NULL));
}

static void *bring_back(void *arg)
{
    sc_ok(cuCtxSetCurrent(sc_ctx));
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < N_LAYERS; i++) {
        sc_digest_at(layers[i].x, SC_WORDS, 2 * i, arg);
        sc_digest_at(layers[i].y, SC_WORDS, 2 * i + 1, arg);
    }
    return NULL;
}

int main(void)
{
    static CUdeviceptr fillers[SC_FILLERS];
    pthread_t thread;

    sc_start();
    look_up();
    const CUstream s = sc_stream(), other = sc_stream(), third = sc_stream();

    for (uint64_t i = 0; i < N_LAYERS; i++) {
        sc_forward(&layers[i], i, s);
    }
    const unsigned n = sc_fill_device(fillers, 3 * N_LAYERS * SC_BYTES);

    if (pthread_barrier_init(&barrier, NULL, 2) != 0 ||
        pthread_create(&thread, NULL, bring_back, other) != 0) {
        return 1;
    }
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < N_LAYERS; i++) {
        digest_by_future(layers[i].x, SC_RESULTS / 2 + 2 * i, third);
        digest_by_future(layers[i].y, SC_RESULTS / 2 + 2 * i + 1, third);
    }
    pthread_join(thread, NULL);
    sc_ok(cuCtxSynchronize());
    sc_free_fillers(fillers, n);
    for (int i = N_LAYERS - 1; i >= 0; i--) {
        sc_free(layers[i].y, s);
        sc_free(layers[i].x, s);
    }
    sc_results_print("all");
    return sc_end();
}
