/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors come back on a stream that waits for what the job writes only later, so their pages are given back later
 * still; meanwhile a group leaves that is larger than the page pool, and the pool would have to grow beside that. In
 * every other step the job writes it a little before, so that pages are being given back just then.
 */
#include "tests/sim/scenario.h"

#define N_SMALL 3
#define N_BIG   18 /* at most: each step's group is larger than the one before */
#define N_STEPS 8

static CUdeviceptr word;

static void forward_big(CUdeviceptr *big, uint64_t n, uint64_t seed, CUstream s)
{
    nvtxRangePushA("experts at once");
    for (uint64_t i = 0; i < n; i++) {
        big[i] = sc_alloc(SC_BYTES, s);
        sc_produce(big[i], SC_WORDS / 2, SC_WORDS, seed + i, s);
    }
    nvtxRangePop();
}

static void go_on(uint64_t step, CUstream s)
{
    sc_ok(cuStreamWriteValue32(s, word, (cuuint32_t)step + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
}

int main(void)
{
    static CUdeviceptr fillers[SC_FILLERS];
    struct sc_layer small[N_SMALL];
    CUdeviceptr big[N_BIG];

    sc_start();
    const CUstream s = sc_stream(), side = sc_stream();

    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemsetD32(word, 0, 1));
    sc_ok(cuCtxSynchronize());
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < N_SMALL; i++) {
            sc_forward(&small[i], step * 100 + i, s);
        }
        sc_order(s, side);
        const uint64_t n_big = N_BIG - 2 * (N_STEPS - 1 - step);
        const unsigned n = sc_fill_device(fillers, 0);

        sc_free_fillers(fillers, n);
        sc_ok(cuStreamWaitValue32(side, word, (cuuint32_t)step + 1, CU_STREAM_WAIT_VALUE_GEQ));
        for (int i = 0; i < N_SMALL; i++) {
            sc_digest_aside(small[i].x, SC_WORDS, side);
            sc_digest_aside(small[i].y, SC_WORDS, side);
        }
        if (step % 2 == 1) {
            go_on(step, s);
        }
        forward_big(big, n_big, step * 100 + 50, s);
        nvtxRangePushA("experts boundary");
        nvtxRangePop();
        if (step % 2 == 0) {
            go_on(step, s);
        }
        sc_order(side, s);
        for (uint64_t i = 0; i < n_big; i++) {
            sc_digest(big[i], SC_WORDS, s);
            sc_free(big[i], s);
        }
        for (int i = N_SMALL - 1; i >= 0; i--) {
            sc_backward(&small[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}
