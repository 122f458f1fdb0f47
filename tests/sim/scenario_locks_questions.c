/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What asks about and changes what all tensors share, again and again beside a thread that makes, moves and frees them:
 * questions about addresses, peers and pool accesses, one device after the other, and calls that run out of memory.
 */
#include <pthread.h>

#include "tests/sim/scenario.h"

#define N_LAYERS   4
#define N_PER_PEER 12

static _Atomic bool over;
static _Atomic unsigned n_steps;
static _Atomic CUdeviceptr asked; /* lives, or did just now */

/* Waits until the other thread has done some more, with no call of the driver meanwhile. */
static void pause_steps(unsigned n)
{
    const unsigned until = atomic_load_explicit(&n_steps, memory_order_relaxed) + n;

    while (atomic_load_explicit(&n_steps, memory_order_relaxed) < until) {
        usleep(50);
    }
}

static void *ask(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    while (!atomic_load(&over)) {
        CUdeviceptr base;
        size_t bytes;

        usleep(200);
        const CUdeviceptr p = atomic_load_explicit(&asked, memory_order_relaxed);

        /* Freed, its addresses may be another's by now. */
        if (p != 0 && cuMemGetAddressRange(&base, &bytes, p + 64) == CUDA_SUCCESS &&
            (p + 64 < base || p + 64 - base >= bytes)) {
            printf("not that tensor\n");
        }
    }
    return NULL;
}

static void *run_out(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    while (!atomic_load(&over)) {
        CUdeviceptr p;

        usleep(300);
        if (cuMemAlloc(&p, (size_t)1 << 40) == CUDA_SUCCESS) {
            printf("there is no such memory\n");
        }
    }
    return NULL;
}

static void *make_peers(void *arg)
{
    int n_devices;

    (void)arg;
    sc_ok(cuDeviceGetCount(&n_devices));
    for (int device = 1; device < n_devices; device++) {
        CUcontext peer;

        sc_ok(cuDevicePrimaryCtxRetain(&peer, device));
        sc_ok(cuCtxSetCurrent(peer));
        pause_steps(1);
        if (device % 2 == 0) {
            sc_ok(cuCtxEnablePeerAccess(sc_ctx, 0));
        } else {
            const CUmemAccessDesc access = {
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
            CUmemoryPool pool;

            sc_ok(cuDeviceGetDefaultMemPool(&pool, 0));
            pause_steps(1);
            sc_ok(cuMemPoolSetAccess(pool, &access, 1));
        }
    }
    pause_steps(N_PER_PEER);
    atomic_store(&over, true);
    return NULL;
}

int main(void)
{
    pthread_t threads[3];
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    if (pthread_create(&threads[0], NULL, ask, NULL) != 0 ||
        pthread_create(&threads[1], NULL, run_out, NULL) != 0 ||
        pthread_create(&threads[2], NULL, make_peers, NULL) != 0) {
        return 1;
    }
    for (uint64_t step = 0; !atomic_load(&over); step++) {
        for (uint64_t i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + i, s);
            atomic_store_explicit(&asked, layers[i].x, memory_order_relaxed);
            atomic_fetch_add_explicit(&n_steps, 1, memory_order_relaxed);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
            atomic_fetch_add_explicit(&n_steps, 1, memory_order_relaxed);
        }
        sc_n_results = 0;
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    return sc_end();
}
