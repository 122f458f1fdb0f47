/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force, and several threads name its tensors: one runs forward and another backward, on the same
 * stream, a batch behind; a third reads a layer, whether it is in, out or on its way, on a stream of its own.
 */
#include <pthread.h>

#include "tests/sim/scenario_plan.h"

#define N_BATCHES 14

static struct batch {
    struct sc_layer layers[PL_LAYERS];
    CUevent filled;
} batches[N_BATCHES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static unsigned n_filled, n_read, n_done;

static void wait_until(const unsigned *what, unsigned n)
{
    pthread_mutex_lock(&lock);
    while (*what < n) {
        pthread_cond_wait(&moved, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static void count(unsigned *what)
{
    pthread_mutex_lock(&lock);
    (*what)++;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

static void *read_layers(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    const CUstream s = sc_stream();

    for (unsigned n = 0; n < N_BATCHES; n++) {
        wait_until(&n_filled, n + 1);
        sc_ok(cuStreamWaitEvent(s, batches[n].filled, 0));
        sc_digest_at(batches[n].layers[n * 3 % PL_LAYERS].x, SC_WORDS, SC_RESULTS / 2 + n, s);
        sc_ok(cuStreamSynchronize(s));
        count(&n_read);
    }
    return NULL;
}

static void *backward(void *arg)
{
    const CUstream s = arg;

    sc_ok(cuCtxSetCurrent(sc_ctx));
    for (unsigned n = 0; n < N_BATCHES; n++) {
        wait_until(&n_filled, n + 1);
        sc_ok(cuStreamWaitEvent(s, batches[n].filled, 0));
        for (unsigned i = PL_LAYERS; i > 0; i--) {
            const struct sc_layer *l = &batches[n].layers[i - 1];

            sc_digest_at(l->y, SC_WORDS, n * 2 * PL_LAYERS + 2 * i, s);
            sc_free(l->y, s);
            if (i == PL_LAYERS / 2) {
                wait_until(&n_read, n + 1);
            }
            sc_digest_at(l->x, SC_WORDS, n * 2 * PL_LAYERS + 2 * i + 1, s);
            if (i <= PL_LAYERS / 2) {
                sc_free(l->x, s);
            }
        }
        for (unsigned i = PL_LAYERS; i > PL_LAYERS / 2; i--) {
            sc_free(batches[n].layers[i - 1].x, s);
        }
        count(&n_done);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    const unsigned ahead = argc > 1 && strcmp(argv[1], "ahead") == 0;

    sc_start();
    const CUstream s = sc_stream();

    if (pthread_create(&threads[0], NULL, backward, s) != 0 ||
        pthread_create(&threads[1], NULL, read_layers, NULL) != 0) {
        return 1;
    }
    for (unsigned n = 0; n < N_BATCHES; n++) {
        if (n > ahead) {
            wait_until(&n_done, n - ahead);
        }
        for (uint64_t i = 0; i < PL_LAYERS; i++) {
            pl_forward(&batches[n].layers[i], n * 100 + i, s);
        }
        sc_ok(cuEventCreate(&batches[n].filled, CU_EVENT_DISABLE_TIMING));
        sc_ok(cuEventRecord(batches[n].filled, s));
        count(&n_filled);
    }
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    sc_results_print("all");
    return sc_end();
}
