/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor comes back on a stream that waits for what the job writes only later, so its pages are given back later
 * still; meanwhile a group leaves that is larger than the page pool, and the pool would have to grow beside that.
 */
#include "tests/sim/scenario.h"

#define N_SMALL 3
#define N_BIG   6
#define N_STEPS 3

static void forward_big(CUdeviceptr *big, uint64_t seed, CUstream s)
{
    nvtxRangePushA("experts at once");
    for (uint64_t i = 0; i < N_BIG; i++) {
        big[i] = sc_alloc(SC_BYTES, s);
        sc_produce(big[i], SC_WORDS / 2, SC_WORDS, seed + i, s);
    }
    nvtxRangePop();
}

int main(void)
{
    static CUdeviceptr fillers[SC_FILLERS];
    struct sc_layer small[N_SMALL];
    CUdeviceptr big[N_BIG], word;

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
        const unsigned n = sc_fill_device(fillers, 0);

        sc_free_fillers(fillers, n);
        sc_ok(cuStreamWaitValue32(side, word, (cuuint32_t)step + 1, CU_STREAM_WAIT_VALUE_GEQ));
        sc_digest_aside(small[0].x, SC_WORDS, side);
        forward_big(big, step * 100 + 50, s);
        nvtxRangePushA("experts boundary");
        nvtxRangePop();
        sc_ok(cuStreamWriteValue32(s, word, (cuuint32_t)step + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
        sc_order(side, s);
        for (int i = 0; i < N_BIG; i++) {
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
