/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors freed by cuMemFree while their work is still queued, and the memory wanted at once on another stream. */
#include "tests/sim/scenario.h"

#define N_ROUNDS 12

int main(void)
{
    sc_start();
    const CUstream s = sc_stream(), other = sc_stream();

    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        const CUstream first = round % 2 == 0 ? s : other, second = round % 2 == 0 ? other : s;
        CUdeviceptr p[2];

        for (uint64_t i = 0; i < 2; i++) {
            const CUstream on = i == 0 ? first : second;

            nvtxRangePushA("moe_experts");
            p[i] = sc_alloc(SC_BYTES, on);
            sc_produce(p[i], SC_VALID, SC_WORDS, round * 2 + i, on);
            nvtxRangePop();
            (on == s ? sc_digest : sc_digest_aside)(p[i], SC_WORDS, on);
            if (i == 0) {
                sc_ok(cuMemFree(p[i]));
            }
        }
        sc_free(p[1], second);
        if (round % 4 == 3) {
            sc_results_print("rounds");
        }
    }
    return sc_end();
}
