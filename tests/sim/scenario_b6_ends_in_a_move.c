/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paging ends, by a launch of a version that nobody knows yet, just while another thread brings the only group back
 * that is out: the launch reads its last tensor, which has no memory yet.
 */
#include <pthread.h>

#include "tests/sim/future.h"

#define N_TENSORS 24

bool simcuda_mapped_now(CUdeviceptr address); /* the software driver's */

static CUdeviceptr tensors[N_TENSORS], later[N_TENSORS];

static void *bring_back(void *arg)
{
    sc_ok(cuCtxSetCurrent(sc_ctx));
    sc_digest_at(tensors[0], SC_WORDS, 0, arg);
    return NULL;
}

static unsigned count_mapped(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < N_TENSORS; i++) {
        n += simcuda_mapped_now(tensors[i]);
    }
    return n;
}

static void read_all(CUstream s)
{
    for (unsigned i = N_TENSORS; i-- > 0;) {
        uint64_t n = SC_WORDS;
        CUdeviceptr to = sc_results + 8 * (CUdeviceptr)(SC_RESULTS / 2 + i);
        CUfunction f;

        sc_ok(cuModuleGetFunction(&f, sc_module, "test_hash"));
        sc_ok(future_launch(f, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&tensors[i], &n, &to}, NULL));
    }
}

static void make(CUdeviceptr *group, uint64_t seed, CUstream s)
{
    nvtxRangePushA("experts");
    for (uint64_t i = 0; i < N_TENSORS; i++) {
        group[i] = sc_alloc(SC_BYTES, s);
        sc_produce(group[i], SC_VALID, SC_WORDS, seed + i, s);
    }
    nvtxRangePop();
}

int main(void)
{
    static CUdeviceptr fillers[SC_FILLERS];
    pthread_t thread;

    sc_start();
    look_up();
    const CUstream s = sc_stream(), other = sc_stream(), third = sc_stream();

    make(tensors, 0, s);
    make(later, 100, s); /* its memory is the first's when that comes back */
    nvtxRangePushA("experts boundary");
    nvtxRangePop();
    const unsigned n = sc_fill_device(fillers, 0);
    const unsigned before = count_mapped();

    for (unsigned i = 0; i < N_TENSORS; i++) {
        sc_free(later[i], s);
    }
    sc_order(s, other);

    if (pthread_create(&thread, NULL, bring_back, other) != 0) {
        return 1;
    }
    while (before < N_TENSORS && count_mapped() == before) {
        usleep(1);
    }
    read_all(third);
    pthread_join(thread, NULL);
    sc_ok(cuCtxSynchronize());
    sc_free_fillers(fillers, n);
    for (int i = N_TENSORS - 1; i >= 0; i--) {
        sc_free(tensors[i], s);
    }
    sc_results_print("all");
    return sc_end();
}
