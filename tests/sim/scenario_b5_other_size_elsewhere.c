/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory freed on one stream, whose work is still queued, is wanted on another in other sizes: whole places, and what
 * is left of one that was taken apart.
 */
#include "tests/sim/scenario.h"

#define N_ROUNDS 12
#define SMALL    (SC_BYTES / 2)
#define BIG      (SC_BYTES + SMALL) /* two chunks */

/* A tensor of a region's, written and hashed. */
static CUdeviceptr use(size_t bytes, uint64_t seed, bool aside, CUstream s)
{
    nvtxRangePushA("moe_experts");
    const CUdeviceptr p = sc_alloc(bytes, s);

    sc_produce(p, bytes / 32, bytes / 8, seed, s);
    nvtxRangePop();
    (aside ? sc_digest_aside : sc_digest)(p, bytes / 8, s);
    return p;
}

int main(void)
{
    sc_start();
    const CUstream s = sc_stream(), other = sc_stream();

    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        const CUdeviceptr big = use(BIG, round * 10, false, s);
        CUdeviceptr p[2];

        sc_free(big, s);
        if (round % 2 == 0) {
            /* Takes the place apart: the smaller chunk is left over. */
            p[0] = use(SC_BYTES, round * 10 + 1, false, s);
            p[1] = use(SMALL, round * 10 + 2, true, other);
        } else {
            p[0] = use(SMALL, round * 10 + 1, true, other);
            p[1] = use(SC_BYTES, round * 10 + 2, true, other);
        }
        sc_free(p[0], round % 2 == 0 ? s : other);
        sc_free(p[1], other);
        if (round % 4 == 3) {
            sc_results_print("rounds");
        }
    }
    return sc_end();
}
