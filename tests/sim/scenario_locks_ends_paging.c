/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paging has ended, but the driver refuses the memory for what is out: each launch of a version that nobody knows yet
 * tries once more, in all contexts, while another thread destroys those.
 */
#include <pthread.h>

#include "tests/sim/future.h"

#ifndef PS_FAULTS
#    error "needs the watcher of failing calls"
#endif

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx);

#define N_LAYERS   3
#define N_CONTEXTS 12

static CUcontext contexts[N_CONTEXTS];
static _Atomic bool refusing, gone;

static CUresult watch(const char *name, const void *caller)
{
    return atomic_load(&refusing) && strcmp(name, "cuMemMap") == 0 && fw_by_stash(name, caller)
               ? CUDA_ERROR_UNKNOWN
               : CUDA_SUCCESS;
}

static void *destroy(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < N_CONTEXTS; i++) {
        usleep(300);
        sc_ok(cuCtxDestroy_v2(contexts[i]));
    }
    atomic_store(&gone, true);
    return NULL;
}

int main(void)
{
    static CUdeviceptr fillers[SC_FILLERS];
    struct sc_layer layers[N_LAYERS];
    pthread_t thread;
    CUfunction f;
    CUdeviceptr from = 0, to = 0;
    uint64_t n_words = 4;

    sc_start();
    look_up();
    const CUstream s = sc_stream();

    for (unsigned i = 0; i < N_CONTEXTS; i++) {
        sc_ok(cuCtxCreate_v2(&contexts[i], 0, 0));
        nvtxRangePushA("experts elsewhere");
        (void)sc_alloc(SC_BYTES, sc_stream());
        nvtxRangePop();
    }
    sc_ok(cuCtxSetCurrent(sc_ctx));
    for (uint64_t i = 0; i < N_LAYERS; i++) {
        sc_forward(&layers[i], i, s);
    }
    const unsigned n = sc_fill_device(fillers, 3 * N_LAYERS * SC_BYTES);

    from = sc_results;
    to = sc_results + 8 * (SC_RESULTS - 1);
    sc_ok(cuModuleGetFunction(&f, sc_module, "test_hash"));
    simcuda_watch(watch);
    atomic_store(&refusing, true);
    if (pthread_create(&thread, NULL, destroy, NULL) != 0) {
        return 1;
    }
    while (!atomic_load(&gone)) {
        sc_ok(future_launch(f, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&from, &n_words, &to}, NULL));
    }
    pthread_join(thread, NULL);
    atomic_store(&refusing, false);
    sc_ok(future_launch(f, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&from, &n_words, &to}, NULL));
    simcuda_watch(NULL);
    for (int i = N_LAYERS - 1; i >= 0; i--) {
        sc_backward(&layers[i], s);
    }
    sc_free_fillers(fillers, n);
    sc_ok(cuMemsetD8Async(to, 0, 8, s));
    sc_results_print("all");
    return sc_end();
}
