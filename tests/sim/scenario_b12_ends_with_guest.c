/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call of the job in one context has an address of a tensor of another context in it, and waits there until that
 * tensor's bytes are in place; meanwhile a third thread destroys that other context. It must not begin to end before
 * the guest has left.
 */
#include <pthread.h>

#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx);

#define N_LAYERS 2
#define N_ROUNDS 2
#define PAUSE_US 50000 /* in which a thread gets into the call it is about to make */

static struct sc_layer layers[N_LAYERS]; /* of the context that goes */
static CUcontext other;
static CUdeviceptr word, table;
static pthread_barrier_t inside;

/* The address is handed to the device, so its tensor must be in place for good: the host waits for that. */
static void *be_guest(void *arg)
{
    const uint64_t address = layers[0].x;

    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    pthread_barrier_wait(&inside);
    sc_ok(cuMemcpyHtoD(table, &address, sizeof(address)));
    for (int i = 0; i < 4; i++) {
        CUevent event;

        sc_ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        sc_ok(cuEventDestroy(event));
    }
    return NULL;
}

static void *destroy(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    pthread_barrier_wait(&inside);
    usleep(PAUSE_US);
    sc_ok(cuCtxDestroy_v2(other));
    return NULL;
}

/* A context in which the stash of the first layer is behind work that waits for the word. */
static void make_other(uint64_t round)
{
    const CUmodule first = sc_module;

    sc_ok(cuCtxCreate_v2(&other, 0, 0));
    sc_ok(cuModuleLoadData(&sc_module, ""));
    const CUstream s = sc_stream();

    for (uint64_t i = 0; i < N_LAYERS; i++) {
        if (i + 1 == N_LAYERS) {
            sc_ok(cuStreamWaitValue32(s, word, (cuuint32_t)round + 1, CU_STREAM_WAIT_VALUE_GEQ));
        }
        sc_forward(&layers[i], round * 100 + i, s);
    }
    sc_module = first;
    sc_ok(cuCtxSetCurrent(sc_ctx));
}

int main(void)
{
    pthread_t guest, end;

    sc_start();
    const CUstream s = sc_stream();

    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemAlloc(&table, 8));
    sc_ok(cuMemsetD32(word, 0, 1));
    sc_ok(cuCtxSynchronize());
    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        make_other(round);
        if (pthread_barrier_init(&inside, NULL, 2) != 0 ||
            pthread_create(&guest, NULL, be_guest, NULL) != 0 ||
            pthread_create(&end, NULL, destroy, NULL) != 0) {
            return 1;
        }
        usleep(3 * PAUSE_US);
        sc_ok(cuStreamWriteValue32(s, word, (cuuint32_t)round + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
        pthread_join(guest, NULL);
        pthread_join(end, NULL);
        pthread_barrier_destroy(&inside);
    }
    printf("done\n");
    return sc_end();
}
