/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job for memory limits (memory_steps.py): layers forward and backward, memory of other kinds beside. The argument
 * says how many quarters of each saved tensor hold data; with 4 there is no padding and nothing to win. A second one
 * is the number of steps. With a third, "squeezed", memory becomes short late: the job takes some more before a step
 * and in one, as long as the rest needs, and gives it back. When a plan comes into force the job says so.
 */
#include <dlfcn.h>

#include "shim/pagedstash.h"
#include "tests/sim/scenario.h"

#define N_LAYERS  12
#define N_BEFORE  7 /* the step from which on the job holds more, between */
#define N_IN      9 /* and the one in which it takes as much again, behind its forward */
#define N_BALLAST 16

static CUdeviceptr save(uint64_t n_valid, uint64_t seed, CUstream s)
{
    nvtxRangePushA("moe_experts");
    const CUdeviceptr x = sc_alloc(SC_BYTES, s);

    sc_produce(x, n_valid, SC_WORDS, seed, s);
    nvtxRangePop();
    return x;
}

/* Work that needs memory for a moment: of the pool, and not. */
static void work(CUdeviceptr x, size_t bytes, bool plain, CUstream s)
{
    CUdeviceptr scratch;

    if (plain) {
        sc_ok(cuMemAlloc(&scratch, bytes));
    } else {
        scratch = sc_alloc(bytes, s);
    }
    sc_mix(x, x, scratch, SC_WORDS, s);
    sc_digest(scratch, SC_WORDS, s);
    if (plain) {
        sc_ok(cuMemFree(scratch));
    } else {
        sc_free(scratch, s);
    }
}

/* Once. What the process says of itself is asked, so that no settings are needed. */
static void say_planned(uint64_t step, bool squeezed)
{
    static bool said;
    pagedstash_status_fn *ask = NULL;
    struct pagedstash_status status = {.size = sizeof(status)};

    *(void **)&ask = dlsym(RTLD_DEFAULT, "pagedstash_status");
    if ((!said || squeezed) && ask != NULL && ask(&status) == PAGEDSTASH_OK &&
        (status.flags & PAGEDSTASH_PLANNED) != 0) {
        fprintf(stderr, "memory: a plan is in force %s step %" PRIu64 "\n",
                squeezed ? "when memory is taken in" : "behind", step);
        said = true;
    }
}

/* Tensors' sizes, so that what plain jobs have freed serves too. */
static void take_ballast(CUdeviceptr *ballast, uint64_t step)
{
    say_planned(step, true);
    for (unsigned i = 0; i < N_BALLAST; i++) {
        sc_ok(cuMemAlloc(&ballast[i], SC_BYTES));
    }
}

static void give_ballast(const CUdeviceptr *ballast)
{
    for (unsigned i = 0; i < N_BALLAST; i++) {
        sc_ok(cuMemFree(ballast[i]));
    }
}

int main(int argc, char **argv)
{
    const uint64_t quarters = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const uint64_t n_steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 4;
    const bool squeezed = argc > 3 && strcmp(argv[3], "squeezed") == 0;
    CUdeviceptr x[N_LAYERS];
    CUdeviceptr ballast[2][N_BALLAST];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < n_steps; step++) {
        if (squeezed && step == N_BEFORE) {
            take_ballast(ballast[0], step);
        }
        for (unsigned i = 0; i < N_LAYERS; i++) {
            x[i] = save(SC_WORDS / 4 * quarters, step * 100 + i, s);
            work(x[i], 2 * SC_BYTES, false, s);
        }
        work(x[N_LAYERS - 1], 3 * SC_BYTES, true, s);
        if (squeezed && step == N_IN) {
            take_ballast(ballast[1], step);
        }
        for (unsigned i = N_LAYERS; i > 0; i--) {
            work(x[i - 1], 2 * SC_BYTES, i % 4 == 0, s);
            sc_digest(x[i - 1], SC_WORDS, s);
            sc_free(x[i - 1], s);
        }
        if (squeezed && step == N_IN) {
            give_ballast(ballast[0]);
            give_ballast(ballast[1]);
        }
        sc_results_print("step");
        (void)fflush(stdout);
        say_planned(step, false);
    }
    return sc_end();
}
