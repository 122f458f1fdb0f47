/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread names a tensor, so that its whole group comes back, while another frees the other tensor of the group:
 * it may be on its way just then.
 */
#include <pthread.h>

#include "tests/sim/scenario.h"

#define N_LAYERS 10
#define N_STEPS  30

static struct sc_layer layers[N_LAYERS];
static pthread_barrier_t turn;

static void *names(void *arg)
{
    const CUstream s = arg;

    sc_ok(cuCtxSetCurrent(sc_ctx));
    for (int n = 0; n < N_STEPS * N_LAYERS; n++) {
        pthread_barrier_wait(&turn);
        sc_digest_at(layers[N_LAYERS - 1 - n % N_LAYERS].x, SC_WORDS, (size_t)n, s);
        pthread_barrier_wait(&turn);
    }
    return NULL;
}

int main(void)
{
    pthread_t thread;

    sc_start();
    const CUstream s = sc_stream();

    if (pthread_barrier_init(&turn, NULL, 2) != 0 || pthread_create(&thread, NULL, names, s) != 0) {
        sc_fail();
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            pthread_barrier_wait(&turn);
            sc_free(layers[i].y, s);
            pthread_barrier_wait(&turn);
            sc_free(layers[i].x, s);
        }
    }
    pthread_join(thread, NULL);
    sc_results_print("all");
    return sc_end();
}
