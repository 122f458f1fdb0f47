/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force, and a place's last user and its next are on streams that are not ordered. One layer of a step is
 * other than the rest: where many tensors are named on several streams, their sites are left alone.
 *
 *   pair       that layer allocates on two streams; backward frees all on the first
 *   frees      all are freed on a stream that is behind all users and that nobody waits for
 *   alternate  each step on another stream
 *   backward   that layer's backward is on a stream of its own; the next forward waits for nothing
 *   mixed      that layer is written and read on another stream in both directions
 */
#include "tests/sim/scenario_plan.h"

static struct layer {
    struct sc_layer l;
    CUdeviceptr z; /* smaller in later steps: all of it is home then */
    uint64_t z_words;
} layers[PL_LAYERS];
static unsigned odd_one; /* backward's last and forward's first: no host wait is between them */
static bool pair, frees, alternate, back, mixed;

static void forward(unsigned i, uint64_t seed, CUstream s, CUstream t)
{
    struct layer *l = &layers[i];
    const uint64_t valid = pl_valid(seed);
    const bool odd = i == odd_one;
    const CUstream writes_z = pair && odd ? t : s;

    nvtxRangePushA("moe_experts");
    l->l.x = sc_alloc(SC_BYTES, s);
    l->l.y = sc_alloc(SC_BYTES, writes_z);
    l->z_words = seed < 500 ? SC_WORDS / 2 : SC_WORDS / 4;
    l->z = sc_alloc(8 * l->z_words, writes_z);
    sc_produce(l->l.x, valid, SC_WORDS, seed, s);
    sc_produce(l->l.y, valid, SC_WORDS, seed + 7, writes_z);
    sc_produce(l->z, l->z_words * 3 / 4, l->z_words, seed + 8, writes_z);
    if (mixed && odd) {
        sc_order(s, t);
        sc_mix(l->l.x, l->l.y, l->l.y, valid, t);
        sc_order(t, s);
    }
    nvtxRangePop();
}

/* s: where all others run */
static void backward(unsigned i, CUstream s, CUstream t)
{
    const struct layer *l = &layers[i];
    const bool odd = i == odd_one;
    const CUstream reads = back && odd ? t : s;
    const CUstream ends = frees || (mixed && odd) ? t : reads;

    if (pair && odd) {
        sc_order(t, s);
    }
    if (reads != s) {
        sc_order(s, reads);
    }
    (reads == s ? sc_digest : sc_digest_aside)(l->l.x, SC_WORDS, reads);
    (reads == s ? sc_digest : sc_digest_aside)(l->l.y, SC_WORDS, reads);
    (reads == s ? sc_digest : sc_digest_aside)(l->z, l->z_words, reads);
    if (mixed && odd) {
        sc_order(s, t);
        sc_digest_aside(l->l.y, SC_WORDS, t);
    }
    if (ends != reads) {
        sc_order(reads, ends);
    }
    sc_free(l->l.y, ends);
    sc_free(l->z, ends);
    sc_free(l->l.x, ends);
}

static void backward_alone(unsigned i, CUstream s)
{
    const struct layer *l = &layers[i];

    sc_digest_aside(l->l.y, SC_WORDS, s);
    sc_digest_aside(l->l.x, SC_WORDS, s);
    sc_digest_aside(l->z, l->z_words, s);
    sc_free(l->l.y, s);
    sc_free(l->l.x, s);
    sc_free(l->z, s);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    CUstream streams[2];

    pair = strcmp(kind, "pair") == 0;
    frees = strcmp(kind, "frees") == 0;
    alternate = strcmp(kind, "alternate") == 0;
    back = strcmp(kind, "backward") == 0;
    mixed = strcmp(kind, "mixed") == 0;
    odd_one = back ? 3 : 0;
    sc_start();
    streams[0] = sc_stream();
    streams[1] = sc_stream();
    for (uint64_t step = 0; step < PL_STEPS; step++) {
        const CUstream s = streams[alternate ? step % 2 : 0];

        for (unsigned i = 0; i < PL_LAYERS; i++) {
            forward(i, step * 100 + i, s, streams[1]);
        }
        for (unsigned i = PL_LAYERS; i > 0; i--) {
            if (s == streams[1]) {
                backward_alone(i - 1, s);
            } else {
                backward(i - 1, s, streams[1]);
            }
        }
    }
    sc_results_print("all");
    return sc_end();
}
