/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force, and the schedule changes.
 *
 *   layers  a layer is skipped, one is added
 *   sizes   tensors grow and shrink, more than their places hold
 *   rows    layers without a tensor, or without data
 *   names   a region is named otherwise
 *   batches one, two or three batches a step, one ahead
 *   parts   tensors of a layer are freed while others of it stay; a temporary with padding
 *   unread  backward frees most layers unread, three batches a step
 */
#include "tests/sim/scenario_plan.h"

#define N_STEPS   24
#define N_UNREAD  40 /* steps of that kind: few copies are on their way in when their layer goes */
#define N_BATCHES 3

struct layer {
    CUdeviceptr x, y, z;
    size_t words; /* 0: none */
    bool unread;
};

static struct layer layers[N_BATCHES][PL_LAYERS + 1];
static const char *kind;

static bool is(const char *name)
{
    return strcmp(kind, name) == 0;
}

/* Three steps of each shape, in turns. */
static unsigned phase(uint64_t step)
{
    return step < 5 ? 0 : (unsigned)(step - 2) / 3;
}

static unsigned n_layers(uint64_t step)
{
    return is("layers") ? PL_LAYERS - 1 + phase(step) % 3 : PL_LAYERS;
}

static unsigned n_batches_of(uint64_t step)
{
    if (is("batches")) {
        return 1 + phase(step) % N_BATCHES;
    }
    return is("unread") ? N_BATCHES : 1;
}

static size_t words_of(uint64_t step, unsigned i)
{
    static const size_t of_phase[] = {SC_WORDS, SC_WORDS * 3 / 2, SC_WORDS / 2, SC_WORDS - 8};

    if (is("rows") && (step + i) % 5 == phase(step) % 5) {
        return 0;
    }
    return is("sizes") ? of_phase[(phase(step) + (step > 12 ? i : 0)) % 4] : SC_WORDS;
}

static void forward(struct layer *l, uint64_t step, unsigned i, uint64_t seed, CUstream s)
{
    const char *name =
        is("names") && phase(step) % 2 == 1 && i % 3 == 0 ? "other_moe_experts" : "moe_experts";

    l->words = words_of(step, i);
    l->unread = is("unread") && test_mix(seed) % 8 > 0;
    nvtxRangePushA(name);
    if (l->words > 0) {
        const uint64_t valid = is("rows") && i % 4 == step % 4 ? 0 : pl_valid(seed) % l->words;

        l->x = sc_alloc(8 * l->words, s);
        l->y = sc_alloc(8 * l->words, s);
        sc_produce(l->x, valid, l->words, seed, s);
        sc_produce(l->y, 0, l->words, 0, s);
        sc_mix(l->x, l->x, l->y, valid, s);
        if (is("parts")) {
            const CUdeviceptr temporary = sc_alloc(SC_BYTES, s);

            l->z = sc_alloc(SC_BYTES, s);
            sc_produce(temporary, valid / 2, SC_WORDS, seed + 3, s);
            sc_mix(temporary, l->x, l->z, SC_WORDS, s);
            sc_free(temporary, s);
        }
    }
    nvtxRangePop();
}

static void backward(struct layer *l, unsigned i, CUstream s)
{
    if (l->words == 0) {
        return;
    }
    if (!l->unread) {
        sc_digest(l->y, l->words, s);
    }
    sc_free(l->y, s);
    if (!l->unread) {
        sc_digest(l->x, l->words, s);
    }
    sc_free(l->x, s);
    if (is("parts") && i % 2 == 0) {
        sc_digest(l->z, SC_WORDS, s);
        sc_free(l->z, s);
    }
}

/* What `parts` keeps beyond its layer's backward. */
static void finish(const struct layer *l, unsigned n, CUstream s)
{
    for (unsigned i = 1; is("parts") && i < n; i += 2) {
        sc_digest(l[i].z, SC_WORDS, s);
        sc_free(l[i].z, s);
    }
}

static void backward_batch(struct layer *l, unsigned n, CUstream s)
{
    for (unsigned i = n; i > 0; i--) {
        backward(&l[i - 1], i - 1, s);
    }
    finish(l, n, s);
}

int main(int argc, char **argv)
{
    kind = argc > 1 ? argv[1] : "layers";
    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < (is("unread") ? N_UNREAD : N_STEPS); step++) {
        const unsigned n = n_layers(step);
        const unsigned n_batches = n_batches_of(step);

        for (unsigned b = 0; b < n_batches; b++) {
            for (unsigned i = 0; i < n; i++) {
                forward(&layers[b][i], step, i, step * 1000 + b * 100 + i, s);
            }
            if (b > 0) {
                backward_batch(layers[b - 1], n, s);
            }
        }
        backward_batch(layers[n_batches - 1], n, s);
    }
    sc_results_print("all");
    return sc_end();
}
