/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts are made and destroyed by several threads at once, each with tensors in it that are live, freed and cached,
 * beside a thread that allocates new sizes in the first context and one whose device's primary context comes and goes.
 */
#include <pthread.h>

#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx);

#define N_MAKERS  3
#define N_ROUNDS  12
#define N_TENSORS 6
#define N_SIZES   12

static pthread_barrier_t barrier;
static _Atomic unsigned n_done;

/* Tensors of the current context: half are freed, on two streams, the others left. */
static void fill_context(uint64_t seed)
{
    CUmodule module;
    CUfunction f;
    CUstream s, aside;

    sc_ok(cuModuleLoadData(&module, ""));
    sc_ok(cuModuleGetFunction(&f, module, "test_rows"));
    sc_ok(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    sc_ok(cuStreamCreate(&aside, CU_STREAM_NON_BLOCKING));
    for (uint64_t i = 0; i < N_TENSORS; i++) {
        uint64_t n_valid = SC_VALID, n = SC_WORDS;
        char range[32];

        snprintf(range, sizeof(range), "experts %u", (unsigned)(seed % 50));
        nvtxRangePushA(range);
        CUdeviceptr p = sc_alloc(SC_BYTES + (i % 3) * 4096, s);

        sc_ok(
            cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &n_valid, &n, &seed}, NULL));
        nvtxRangePop();
        if (i % 2 == 0) {
            sc_order(s, aside);
            sc_free(p, i % 4 == 0 ? s : aside);
        }
    }
    sc_ok(cuStreamDestroy(aside));
}

static void *make_contexts(void *arg)
{
    const uint64_t number = (uint64_t)(uintptr_t)arg;

    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        CUcontext ctx;

        sc_ok(cuCtxCreate_v2(&ctx, 0, 0));
        if (round == 0) {
            pthread_barrier_wait(&barrier);
        }
        fill_context(round * 10 + number);
        if (round % 2 == 0) {
            usleep(500);
        }
        sc_ok(cuCtxDestroy_v2(ctx));
    }
    atomic_fetch_add(&n_done, 1);
    return NULL;
}

/* A primary context that ends with its last release. */
static void *use_primary(void *arg)
{
    (void)arg;
    pthread_barrier_wait(&barrier);
    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        CUcontext ctx;

        sc_ok(cuDevicePrimaryCtxRetain(&ctx, 1));
        sc_ok(cuCtxSetCurrent(ctx));
        fill_context(1000 + round);
        sc_ok(cuCtxSynchronize());
        sc_ok(cuCtxSetCurrent(NULL));
        usleep(1000);
        sc_ok(round % 2 == 0 ? cuDevicePrimaryCtxRelease(1) : cuDevicePrimaryCtxReset(1));
    }
    atomic_fetch_add(&n_done, 1);
    return NULL;
}

/* New addresses all the time: sizes that no freed tensor has. */
static void allocate(CUstream s)
{
    for (uint64_t i = 0; atomic_load(&n_done) < N_MAKERS + 1 || i < N_SIZES; i++) {
        const size_t bytes = SC_BYTES + (i % N_SIZES) * 4096;

        nvtxRangePushA("experts beside");
        const CUdeviceptr p = sc_alloc(bytes, s);

        nvtxRangePop();
        sc_produce(p, SC_VALID, SC_WORDS, i, s);
        sc_free(p, s);
        if (i % N_SIZES == 0) {
            CUmemoryPool pool;

            sc_ok(cuStreamSynchronize(s));
            sc_ok(cuDeviceGetDefaultMemPool(&pool, 0));
            sc_ok(cuMemPoolTrimTo(pool, 0));
        }
    }
}

int main(void)
{
    pthread_t makers[N_MAKERS], primary;

    sc_start();
    const CUstream s = sc_stream();

    if (pthread_barrier_init(&barrier, NULL, N_MAKERS + 2) != 0) {
        return 1;
    }
    for (uintptr_t i = 0; i < N_MAKERS; i++) {
        if (pthread_create(&makers[i], NULL, make_contexts, (void *)i) != 0) {
            return 1;
        }
    }
    if (pthread_create(&primary, NULL, use_primary, NULL) != 0) {
        return 1;
    }
    pthread_barrier_wait(&barrier);
    allocate(s);
    for (unsigned i = 0; i < N_MAKERS; i++) {
        pthread_join(makers[i], NULL);
    }
    pthread_join(primary, NULL);
    return sc_end();
}
