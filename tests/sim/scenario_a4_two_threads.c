/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward on the main thread while another thread runs backward of the microbatch before, each on its own stream or,
 * with an argument, both on one: between a scan and the launch it belongs to, the other thread moves things.
 */
#include <pthread.h>

#include "tests/sim/scenario.h"

#define N_LAYERS  4
#define N_BATCHES 8

struct batch {
    struct sc_layer layers[N_LAYERS];
    CUevent ready; /* behind its forward */
    bool filled;
};

static struct batch batches[N_BATCHES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static CUdeviceptr sums;

static void digest(CUdeviceptr p, unsigned slot, CUstream s)
{
    uint64_t n = SC_WORDS;
    CUdeviceptr to = sums + (CUdeviceptr)8 * slot;

    sc_launch(s, "test_hash", (void *[]){&p, &n, &to});
}

static void *backward(void *arg)
{
    sc_ok(cuCtxSetCurrent(sc_ctx));
    const CUstream s = arg != NULL ? arg : sc_stream();

    for (unsigned b = 0; b < N_BATCHES; b++) {
        pthread_mutex_lock(&lock);
        while (!batches[b].filled) {
            pthread_cond_wait(&filled, &lock);
        }
        pthread_mutex_unlock(&lock);
        sc_ok(cuStreamWaitEvent(s, batches[b].ready, 0));
        for (unsigned i = N_LAYERS; i > 0; i--) {
            struct sc_layer *l = &batches[b].layers[i - 1];

            digest(l->y, 2 * (b * N_LAYERS + i - 1), s);
            digest(l->x, 2 * (b * N_LAYERS + i - 1) + 1, s);
            sc_free(l->y, s);
            sc_free(l->x, s);
        }
    }
    sc_ok(cuStreamSynchronize(s));
    return NULL;
}

int main(int argc, char **argv)
{
    static uint64_t host[2 * N_BATCHES * N_LAYERS];
    pthread_t thread;

    (void)argv;
    sc_start();
    sc_ok(cuMemAlloc(&sums, sizeof(host)));
    const CUstream s = sc_stream();

    if (pthread_create(&thread, NULL, backward, argc > 1 ? s : NULL) != 0) {
        return 1;
    }
    for (unsigned b = 0; b < N_BATCHES; b++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            sc_forward(&batches[b].layers[i], b * 100 + i, s);
        }
        sc_ok(cuEventCreate(&batches[b].ready, CU_EVENT_DISABLE_TIMING));
        sc_ok(cuEventRecord(batches[b].ready, s));
        pthread_mutex_lock(&lock);
        batches[b].filled = true;
        pthread_cond_signal(&filled);
        pthread_mutex_unlock(&lock);
    }
    pthread_join(thread, NULL);
    sc_ok(cuMemcpyDtoH(host, sums, sizeof(host)));
    sc_print("sums", host, sizeof(host));
    return sc_end();
}
