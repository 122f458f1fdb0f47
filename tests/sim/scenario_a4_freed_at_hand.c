/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor in its place, named by a stale word of a launch, is freed by another thread while that launch is in the
 * driver: it must be gone when the launch returns. More are freed so than there is memory for.
 */
#include <pthread.h>
#include <semaphore.h>

#include "tests/sim/scenario.h"
#include "tools/simcuda/access.h"

#define N_TENSORS 100 /* the device has memory for 48 */

static __thread bool in_time; /* this thread's next launch meets the other thread's free */
static sem_t launched, freed;
static CUdeviceptr tensor;
static CUstream s;

/* Under the driver's lock: the other thread comes as far as the stash's, and waits. */
static CUresult watch(const char *name, const void *caller)
{
    (void)caller;
    if (in_time && strcmp(name, "cuLaunchKernel") == 0) {
        in_time = false;
        sem_post(&launched);
        usleep(2000);
    }
    return CUDA_SUCCESS;
}

static void *frees(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    for (int i = 0; i < N_TENSORS; i++) {
        sem_wait(&launched);
        sc_free(tensor, s);
        sem_post(&freed);
    }
    return NULL;
}

static void name_stale(bool meets)
{
    struct test_operands o = {.n_used = 0, .spare = {tensor}};
    void *params[] = {&o};
    CUfunction f;

    sc_ok(cuModuleGetFunction(&f, sc_module, "test_by_value"));
    in_time = meets;
    sc_ok(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
}

int main(void)
{
    pthread_t thread;

    sc_start();
    s = sc_stream();
    sem_init(&launched, 0, 0);
    sem_init(&freed, 0, 0);
    if (pthread_create(&thread, NULL, frees, NULL) != 0) {
        sc_fail();
    }
    simcuda_watch(watch);
    for (uint64_t i = 0; i < N_TENSORS; i++) {
        nvtxRangePushA("moe_experts");
        tensor = sc_alloc(SC_BYTES, s);
        sc_produce(tensor, SC_VALID, SC_WORDS, i, s);
        sc_digest(tensor, SC_WORDS, s);
        name_stale(false);
        name_stale(true);
        sem_wait(&freed);
        nvtxRangePop();
    }
    simcuda_watch(NULL);
    pthread_join(thread, NULL);
    sc_results_print("all");
    return sc_end();
}
