/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread's launches carry stale words that name another thread's tensors, which come, go out and are freed
 * meanwhile: also between the moment a launch was found to name one and the launch itself.
 */
#include <pthread.h>

#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  12

static _Atomic CUdeviceptr stale;
static _Atomic bool over;

static void *launches(void *arg)
{
    const CUstream s = arg;
    struct test_operands o = {.n_used = 0};

    sc_ok(cuCtxSetCurrent(sc_ctx));
    while (!atomic_load(&over)) {
        o.spare[1] = atomic_load(&stale);
        o.scratch[3] = o.spare[1] + SC_BYTES / 2;
        sc_launch(s, "test_by_value", (void *[]){&o});
        usleep(20); /* the other thread wants the driver's lock too */
    }
    return NULL;
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];
    pthread_t thread;

    sc_start();
    const CUstream s = sc_stream(), other = sc_stream();

    if (pthread_create(&thread, NULL, launches, other) != 0) {
        sc_fail();
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
            atomic_store(&stale, layers[i].y);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            atomic_store(&stale, layers[i].x);
            sc_digest(layers[i].y, SC_WORDS, s);
            sc_free(layers[i].y, s);
            sc_digest(layers[i].x, SC_WORDS, s);
            sc_free(layers[i].x, s);
        }
    }
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    sc_results_print("all");
    return sc_end();
}
