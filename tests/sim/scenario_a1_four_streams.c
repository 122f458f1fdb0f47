/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tensor on four streams, as a grouped product that gives each expert a stream: each writes and later reads a
 * quarter, named by addresses inside the tensor, and joins the region's own stream.
 */
#include "tests/sim/scenario.h"

#define N_LAYERS  6
#define N_STEPS   5
#define N_EXPERTS 4u
#define PART      (SC_BYTES / N_EXPERTS)

static CUstream own, experts[N_EXPERTS];
static size_t n_digests;

static void fork_streams(void)
{
    for (unsigned e = 0; e < N_EXPERTS; e++) {
        sc_order(own, experts[e]);
    }
}

static void join_streams(void)
{
    for (unsigned e = 0; e < N_EXPERTS; e++) {
        sc_order(experts[e], own);
    }
}

static void forward(struct sc_layer *l, uint64_t seed)
{
    nvtxRangePushA("moe_experts");
    l->x = sc_alloc(SC_BYTES, own);
    l->y = sc_alloc(SC_BYTES, own);
    sc_produce(l->x, SC_VALID, SC_WORDS, seed, own);
    fork_streams();
    for (unsigned e = 0; e < N_EXPERTS; e++) {
        const CUdeviceptr at = (CUdeviceptr)e * PART;

        sc_mix(l->x, l->x + at, l->y + at, PART / 8, experts[e]);
    }
    join_streams();
    nvtxRangePop();
}

/* Every other layer's quarters are read on their own streams; each of them has results in a page of its own. */
static void backward(struct sc_layer *l, bool split)
{
    if (split) {
        fork_streams();
        for (unsigned e = 0; e < N_EXPERTS; e++) {
            sc_digest_at(l->y + (CUdeviceptr)e * PART, PART / 8, 1024 + 512 * e + n_digests % 512,
                         experts[e]);
        }
        n_digests++;
        join_streams();
    }
    sc_digest(l->y, SC_WORDS, own);
    sc_digest(l->x, SC_WORDS, own);
    sc_free(l->y, own);
    sc_free(l->x, own);
}

int main(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    own = sc_stream();
    for (unsigned e = 0; e < N_EXPERTS; e++) {
        experts[e] = sc_stream();
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            forward(&layers[i], step * 100 + i);
        }
        for (unsigned i = N_LAYERS; i > 0; i--) {
            backward(&layers[i - 1], i % 2 == 0);
        }
        sc_results_print("step");
    }
    return sc_end();
}
