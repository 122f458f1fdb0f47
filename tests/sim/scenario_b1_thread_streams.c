/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Per-thread default streams: the same handle is another stream in another thread. Each of two threads trains on its
 * own, the second of them handing its saved tensors to the first, which ends them.
 */
#include <pthread.h>

#include "tests/sim/scenario.h"

#define N_LAYERS 4
#define N_STEPS  3

static CUdeviceptr sums;
static struct sc_layer given[N_STEPS][N_LAYERS];

static void digest(CUdeviceptr p, unsigned slot)
{
    uint64_t n = SC_WORDS;
    CUdeviceptr to = sums + (CUdeviceptr)8 * slot;

    sc_launch(CU_STREAM_PER_THREAD, "test_hash", (void *[]){&p, &n, &to});
}

static void backward(struct sc_layer *l, unsigned slot)
{
    digest(l->y, 2 * slot);
    digest(l->x, 2 * slot + 1);
    sc_free(l->y, CU_STREAM_PER_THREAD);
    sc_free(l->x, CU_STREAM_PER_THREAD);
}

static void *second(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    for (unsigned step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            sc_forward(&given[step][i], 1000 + step * 100 + i, CU_STREAM_PER_THREAD);
        }
    }
    sc_ok(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    return NULL;
}

int main(void)
{
    static uint64_t host[4 * N_STEPS * N_LAYERS];
    struct sc_layer own[N_LAYERS];
    pthread_t thread;
    unsigned slot = 0;

    sc_start();
    sc_ok(cuMemAlloc(&sums, sizeof(host)));
    if (pthread_create(&thread, NULL, second, NULL) != 0) {
        return 1;
    }
    for (unsigned step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            sc_forward(&own[i], step * 100 + i, CU_STREAM_PER_THREAD);
        }
        for (unsigned i = N_LAYERS; i > 0; i--) {
            backward(&own[i - 1], slot++);
        }
    }
    pthread_join(thread, NULL);
    for (unsigned step = 0; step < N_STEPS; step++) {
        for (unsigned i = N_LAYERS; i > 0; i--) {
            backward(&given[step][i - 1], slot++);
        }
    }
    sc_ok(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    sc_ok(cuMemcpyDtoH(host, sums, sizeof(host)));
    sc_print("sums", host, sizeof(host));
    return sc_end();
}
