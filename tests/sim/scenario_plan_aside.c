/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force, and a step goes otherwise than planned. Tensors are of several sizes, so that what is aside lies
 * in parts.
 *
 *   freed    a layer is freed just as it has left, and its memory is the next one's at once
 *   aside    layers are written whose turn has not come; they leave again, and some are freed then, not read
 *   turns    backward turns round: what was brought in ahead is not used, and a forward wants its memory
 *   spare    tails that were aside and have left again: one is freed and its place another's at once, others are
 *            mapped back, and named once more
 *   prepared a kernel is told of tensors in a region, before that has memory of its own, and the next one uses them
 */
#include "tests/sim/scenario_plan.h"

#ifndef PS_FAULTS
#    error "needs the watcher of failing calls"
#endif

#define N_EXTRA 4

struct layer {
    struct sc_layer l;
    CUdeviceptr z;
};

static struct layer layers[PL_LAYERS];
static CUdeviceptr list, scratch; /* of operands, and what is made of them */
static const char *kind;

static bool is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static void forward_region(struct layer *l, uint64_t seed, CUstream s)
{
    l->l.x = sc_alloc(SC_BYTES, s);
    l->l.y = sc_alloc(SC_BYTES, s);
    l->z = sc_alloc(SC_BYTES / 2, s);
    pl_fill(&l->l, seed, s);
    sc_produce(l->z, pl_valid(seed) / 2, SC_WORDS / 2, seed + 7, s);
}

static void forward(struct layer *l, uint64_t seed, CUstream s)
{
    nvtxRangePushA("moe_experts");
    forward_region(l, seed, s);
    nvtxRangePop();
}

static void give(struct layer *l, CUstream s)
{
    sc_free(l->l.y, s);
    sc_free(l->z, s);
    sc_free(l->l.x, s);
    l->z = 0;
}

static void backward(struct layer *l, CUstream s)
{
    if (l->z == 0) {
        return; /* it is gone */
    }
    sc_digest_again(l->l.y, SC_WORDS, sc_n_results++ % SC_RESULTS, s);
    sc_digest_again(l->z, SC_WORDS / 2, sc_n_results++ % SC_RESULTS, s);
    sc_digest_again(l->l.x, SC_WORDS, sc_n_results++ % SC_RESULTS, s);
    give(l, s);
}

/* The last one goes when it has just left: the next one's push, or its own pop, is behind it. */
static void freed(uint64_t step, CUstream s)
{
    for (uint64_t i = 0; i < PL_LAYERS; i++) {
        const bool odd = i % 3 == step % 3;

        forward(&layers[i], step * 100 + i, s);
        if (odd) {
            give(&layers[i], s);
        }
    }
    for (int i = PL_LAYERS - 1; i >= 0; i--) {
        backward(&layers[i], s);
    }
}

static void aside(uint64_t step, CUstream s)
{
    for (uint64_t i = 0; i < PL_LAYERS; i++) {
        forward(&layers[i], step * 100 + i, s);
    }
    for (int i = PL_LAYERS - 1; i >= 0; i--) {
        struct layer *early = i >= 3 ? &layers[i - 3] : NULL;

        if (early != NULL && early->z != 0 && layers[i].z != 0) {
            sc_mix(layers[i].l.y, early->l.x, early->l.x, SC_VALID + 640, s);
            sc_mix(layers[i].z, early->z, early->z, SC_WORDS / 2 - 8, s);
        }
        backward(&layers[i], s);
        if (early != NULL && i > 3 && early[1].z != 0 && i % 2 == 0) {
            give(&early[1], s); /* it was written at the layer before, and has left since */
        }
    }
}

static void turns(uint64_t step, CUstream s)
{
    struct layer more[N_EXTRA];
    const int turn = PL_LAYERS / 2 - (int)(step % 4);

    for (uint64_t i = 0; i < PL_LAYERS; i++) {
        forward(&layers[i], step * 100 + i, s);
    }
    for (int i = PL_LAYERS - 1; i >= 0; i--) {
        backward(&layers[i], s);
        if (i == turn) {
            for (uint64_t k = 0; k < N_EXTRA; k++) {
                forward(&more[k], step * 100 + 50 + k, s);
            }
            for (int k = N_EXTRA - 1; k >= 0; k--) {
                backward(&more[k], s);
            }
            if (step % 2 == 1) {
                give(&layers[turn - 1], s); /* in or out, it is not read */
            }
        }
    }
}

static void write_all(const struct layer *l, CUstream s)
{
    sc_mix(l->l.x, l->l.y, l->l.x, SC_VALID + 640, s);
    sc_mix(l->l.y, l->l.x, l->l.y, SC_VALID + 640, s);
    sc_mix(l->z, l->z, l->z, SC_WORDS / 2 - 8, s);
}

/* Regions that no plan foresaw: the second and third are boundaries behind which what was written leaves. */
static void spare(uint64_t step, CUstream s)
{
    struct layer more[N_EXTRA];

    for (uint64_t i = 0; i < PL_LAYERS; i++) {
        forward(&layers[i], step * 100 + i, s);
    }
    for (uint64_t k = 0; k < N_EXTRA; k++) {
        nvtxRangePushA("moe_experts");
        if (k == 1) {
            give(&layers[2], s);
        }
        forward_region(&more[k], step * 100 + 50 + k, s);
        if (k == 0) {
            for (unsigned i = 2; i < 5; i++) {
                write_all(&layers[i], s);
            }
        }
        nvtxRangePop();
    }
    for (int k = N_EXTRA - 1; k >= 0; k--) {
        backward(&more[k], s);
    }
    for (int i = PL_LAYERS - 1; i >= 0; i--) {
        backward(&layers[i], s);
    }
}

/* The kernel that prepares is told of x and y of one layer; what follows names no tensor of it. */
static void prepared(uint64_t step, CUstream s)
{
    for (uint64_t i = 0; i < PL_LAYERS; i++) {
        /* The last one: no other lane has a place for it. */
        const uint64_t back = i == PL_LAYERS - 1 ? 1 + step % 3 : PL_LAYERS;
        uint64_t n = 1;

        nvtxRangePushA("moe_experts");
        if (i >= back) {
            const struct sc_layer *l = &layers[i - back].l;
            struct test_operands o = {.n_used = 1, .product = {{l->x, l->y, scratch, SC_WORDS}}};

            sc_launch(s, "test_prepare", (void *[]){&o, &list});
        }
        forward_region(&layers[i], step * 100 + i, s);
        if (i >= back) {
            sc_launch(s, "test_grouped", (void *[]){&list, &n});
            sc_digest(scratch, SC_WORDS, s);
        }
        nvtxRangePop();
    }
    for (int i = PL_LAYERS - 1; i >= 0; i--) {
        backward(&layers[i], s);
    }
}

static void as_planned(uint64_t step, CUstream s)
{
    for (uint64_t i = 0; i < PL_LAYERS; i++) {
        forward(&layers[i], step * 100 + i, s);
    }
    for (int i = PL_LAYERS - 1; i >= 0; i--) {
        backward(&layers[i], s);
    }
}

int main(int argc, char **argv)
{
    kind = argc > 1 ? argv[1] : "aside";
    sc_start();
    const CUstream s = sc_stream();

    sc_ok(cuMemAlloc(&list, sizeof(struct test_operands)));
    sc_ok(cuMemAlloc(&scratch, SC_BYTES));
    for (uint64_t step = 0; step < 2 * PL_STEPS; step++) {
        const bool other = step >= PL_STEPS - 2 && step % 4 != 3;

        if (step == PL_STEPS - 2) {
            pl_count_failures();
        }
        (!other           ? as_planned
         : is("freed")    ? freed
         : is("turns")    ? turns
         : is("spare")    ? spare
         : is("prepared") ? prepared
                          : aside)(step, s);
    }
    sc_results_print("all");
    return sc_end();
}
