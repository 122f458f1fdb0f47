/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force, and memory is given back, lacks, or is held for ever.
 *
 *   trim     empty_cache between steps, in a step, and again
 *   lack     an allocation of the job fails at first, between steps and in a step
 *   immortal a tensor of a region never dies; another lives for several steps
 *   open     a range is never popped
 */
#include "tests/sim/scenario_plan.h"

static struct sc_layer layers[PL_LAYERS];
static const char *kind;

static bool is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static void empty_cache(void)
{
    CUmemoryPool pool;

    sc_ok(cuDeviceGetDefaultMemPool(&pool, 0));
    sc_ok(cuMemPoolTrimTo(pool, 0));
}

static void run_out(void)
{
    CUdeviceptr p;

    if (cuMemAlloc(&p, (size_t)1 << 40) == CUDA_SUCCESS) {
        printf("there is no such memory\n");
    }
}

static void between(uint64_t step, bool in_step)
{
    if (is("trim") && (in_step ? step % 3 == 2 : step % 2 == 1)) {
        empty_cache();
    }
    if (is("lack") && (in_step ? step % 3 == 2 : step % 4 == 3)) {
        run_out();
    }
}

static CUdeviceptr keep(uint64_t step, CUstream s)
{
    nvtxRangePushA("moe_experts");
    const CUdeviceptr p = sc_alloc(SC_BYTES, s);

    sc_produce(p, pl_valid(step), SC_WORDS, step, s);
    nvtxRangePop();
    return p;
}

int main(int argc, char **argv)
{
    CUdeviceptr kept = 0, old = 0;

    kind = argc > 1 ? argv[1] : "trim";
    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < 2 * PL_STEPS; step++) {
        if (is("immortal") && step == 1) {
            kept = keep(step, s);
        }
        if (is("immortal") && step % 6 == 5) {
            old = keep(step, s);
        }
        if (is("open") && step == 4) {
            nvtxRangePushA("moe_experts");
        }
        for (uint64_t i = 0; i < PL_LAYERS; i++) {
            pl_forward(&layers[i], step * 100 + i, s);
        }
        between(step, true);
        for (int i = PL_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        if (is("immortal") && step % 6 == 2 && old != 0) {
            sc_digest(old, SC_WORDS, s);
            sc_free(old, s);
            old = 0;
        }
        between(step, false);
    }
    if (is("trim")) { /* what the plan counts on stays all the same, though nothing is in use */
        sc_ok(cuCtxSynchronize());
        empty_cache();
    }
    if (kept != 0) {
        sc_digest(kept, SC_WORDS, s);
    }
    sc_results_print("all");
    return sc_end();
}
