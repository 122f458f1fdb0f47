/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frame of the scenarios that run long enough for a plan to be taken up: layers whose valid parts differ from step to
 * step, so that homes are too small now and then and tails hold data.
 */
#ifndef PS_TESTS_SCENARIO_PLAN_H
#define PS_TESTS_SCENARIO_PLAN_H

#include <time.h>

#include "shim/pagedstash.h"
#include "tests/sim/scenario.h"

#define PL_LAYERS 8
#define PL_STEPS  8

/* Words of data: a quarter to half of the tensor. */
SC_UNUSED static uint64_t pl_valid(uint64_t seed)
{
    return SC_VALID + 64 * (test_mix(seed) % 32);
}

SC_UNUSED static void pl_fill(const struct sc_layer *l, uint64_t seed, CUstream s)
{
    const uint64_t valid = pl_valid(seed);

    sc_produce(l->x, valid, SC_WORDS, seed, s);
    sc_mix(l->x, l->x, l->y, valid, s);
    sc_ok(cuMemsetD8Async(l->y + 8 * valid, 0, SC_BYTES - 8 * valid, s));
}

SC_UNUSED static void pl_forward(struct sc_layer *l, uint64_t seed, CUstream s)
{
    nvtxRangePushA("moe_experts");
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(SC_BYTES, s);
    pl_fill(l, seed, s);
    nvtxRangePop();
}

#ifdef PS_FAULTS
/* If a plan is in force, calls that are to fail (without '!', fault_watch.h) are counted from here on. */
SC_UNUSED static void pl_count_failures(void)
{
    pagedstash_status_fn *ask = NULL;
    struct pagedstash_status status = {.size = sizeof(status)};

    *(void **)&ask = dlsym(RTLD_DEFAULT, "pagedstash_status");
    if (getenv("FAULT") != NULL && ask != NULL && ask(&status) == PAGEDSTASH_OK &&
        (status.flags & PAGEDSTASH_PLANNED) != 0) {
        fw_plan_in_force();
    }
}
#endif

/* Steps of the usual shape. A plan comes into force once its host pages are pinned, by a thread that needs its time. */
SC_UNUSED static void pl_steps(uint64_t first, unsigned n, CUstream s)
{
    const struct timespec pause = {0, 5000000};
    struct sc_layer layers[PL_LAYERS];

    for (uint64_t step = first; step < first + n; step++) {
        for (uint64_t i = 0; i < PL_LAYERS; i++) {
            pl_forward(&layers[i], step * 100 + i, s);
        }
        for (int i = PL_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        (void)nanosleep(&pause, NULL);
    }
}

#endif
