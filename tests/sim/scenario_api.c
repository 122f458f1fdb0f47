/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job that uses pagedstash.h where it finds it: scenario_api steps|found|enable|reset|pages|wide|need|untold.
 * Whatever it asks for, it computes the same; what it is told is checked here.
 */
#include <dlfcn.h>

#include "shim/pagedstash.h"
#include "tests/sim/scenario_plan.h"

static pagedstash_status_fn *get_status;
static pagedstash_enable_fn *enable;
static pagedstash_step_fn *step;
static pagedstash_reset_fn *reset;
static bool preloaded;

#define want(_what) want_at((_what), #_what, __LINE__)
static void want_at(bool holds, const char *what, int line)
{
    if (!holds) {
        fprintf(stderr, "line %d: %s does not hold\n", line, what);
        exit(1);
    }
}

static void find(void *function_p, const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);

    want((found != NULL) == preloaded);
    memcpy(function_p, &found, sizeof(found));
}

/* Also before the first CUDA call. */
static void find_all(void)
{
    const char *preload = getenv("LD_PRELOAD");

    preloaded = preload != NULL && strstr(preload, "libpagedstash") != NULL;
    find(&get_status, "pagedstash_status");
    find(&enable, "pagedstash_enable");
    find(&step, "pagedstash_step");
    find(&reset, "pagedstash_reset");
    if (preloaded) {
        struct pagedstash_status small = {.size = 8, .step = 4711};

        want(get_status(NULL) == PAGEDSTASH_INVALID);
        small.size = 4;
        want(get_status(&small) == PAGEDSTASH_INVALID);
        small.size = 8;
        want(get_status(&small) == PAGEDSTASH_OK);
        want(small.size == 8 && small.step == 4711 && (small.flags & PAGEDSTASH_ENABLED) != 0);
        want((small.flags & PAGEDSTASH_PLANNED) == 0);
    }
}

static struct pagedstash_status status(void)
{
    struct pagedstash_status s = {.size = sizeof(s)};

    if (preloaded) {
        want(get_status(&s) == PAGEDSTASH_OK);
        want(s.size == sizeof(s));
    }
    return s;
}

static void begin_step(void)
{
    if (preloaded) {
        want(step() == PAGEDSTASH_OK);
    }
}

static void is_planned(bool planned)
{
    if (preloaded) {
        want(((status().flags & PAGEDSTASH_PLANNED) != 0) == planned);
    }
}

/* Two microbatches a step: found by itself, each would be one. */
static void steps_by_the_job(CUstream s)
{
    for (uint64_t i = 0; i < PL_STEPS; i++) {
        begin_step();
        pl_steps(2 * i, 2, s);
        sc_results_print("step");
        if (preloaded) {
            /* Before the first call there was a step of nothing. */
            want(status().step == i + 1);
            want((status().flags & PAGEDSTASH_COMPLETE) != 0);
            want(status().over_budget == 0 && status().rows_needed == 0);
        }
    }
    is_planned(true);
}

static void steps_found(CUstream s)
{
    for (uint64_t i = 0; i < PL_STEPS; i++) {
        pl_steps(i, 1, s);
        sc_results_print("step");
    }
    if (preloaded) {
        want(status().step >= PL_STEPS - 2 && status().step <= PL_STEPS);
    }
    is_planned(true);
}

/* Evaluation with the stash switched off, while a layer of training is out. */
static void switched_off(CUstream s)
{
    struct sc_layer layers[4], evaluated;

    pl_steps(0, PL_STEPS, s);
    is_planned(true);
    for (int i = 0; i < 4; i++) {
        pl_forward(&layers[i], (uint64_t)i, s);
    }
    want(!preloaded || enable(0) == PAGEDSTASH_OK);
    want(!preloaded || (status().flags & PAGEDSTASH_ENABLED) == 0);
    for (uint64_t i = 0; i < 20; i++) {
        pl_forward(&evaluated, 100 + i, s);
        sc_digest(evaluated.y, SC_WORDS, s);
        sc_free(evaluated.y, s);
        sc_free(evaluated.x, s);
    }
    for (int i = 3; i >= 0; i--) { /* what is out comes back */
        sc_backward(&layers[i], s);
    }
    want(!preloaded || enable(1) == PAGEDSTASH_OK);
    want(!preloaded || (status().flags & PAGEDSTASH_ENABLED) != 0);
    pl_steps(50, PL_STEPS, s);
    sc_results_print("all");
}

static void forgotten(CUstream s)
{
    pl_steps(0, PL_STEPS, s);
    is_planned(true);
    want(!preloaded || reset() == PAGEDSTASH_OK);
    want(!preloaded || status().step == 0);
    pl_steps(20, 1, s);
    sc_results_print("before");
    pl_steps(21, 1, s); /* its first push is the safe point */
    sc_results_print("between");
    is_planned(false);
    pl_steps(30, PL_STEPS, s);
    sc_results_print("after");
    is_planned(true);
}

static void forward_named(const char *name, struct sc_layer *l, uint64_t seed, CUstream s)
{
    nvtxRangePushA(name);
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(SC_BYTES, s);
    pl_fill(l, seed, s);
    nvtxRangePop();
}

/* The dispatcher's counters: 64-bit, and 32-bit with something else in the other half. */
static void needs(CUstream s, bool told)
{
    static const uint64_t rows[] = {60, 128, 109, 128, 129, 40, 300, 64};
    struct sc_layer layers[2];
    CUdeviceptr counter;
    char wide[128], narrow[128];

    sc_ok(cuMemAlloc(&counter, 16));
    snprintf(wide, sizeof(wide), "moe_experts;need=0x%llx;capacity=128%s",
             (unsigned long long)counter, told ? ";balanced=64" : "");
    snprintf(narrow, sizeof(narrow), "moe_experts;capacity=128;need=0x%llx:i32%s",
             (unsigned long long)counter + 8, told ? ";balanced=64" : "");
    for (uint64_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        begin_step();
        sc_ok(cuMemsetD32Async(counter, (unsigned)rows[i], 1, s));
        sc_ok(cuMemsetD32Async(counter + 4, 0, 1, s));
        sc_ok(cuMemsetD32Async(counter + 8, (unsigned)rows[i] / 2, 1, s));
        sc_ok(cuMemsetD32Async(counter + 12, 77, 1, s));
        forward_named(wide, &layers[0], i, s);
        forward_named(narrow, &layers[1], i + 100, s);
        sc_ok(
            cuMemsetD8Async(counter, 0xff, 16, s)); /* what was counted is in our memory by then */
        sc_backward(&layers[1], s);
        sc_backward(&layers[0], s);
        begin_step();
        sc_results_print("step");
        if (preloaded) {
            const struct pagedstash_status st = status();
            const uint64_t factor = (rows[i] * 100 + 63) / 64;

            want((st.flags & PAGEDSTASH_COMPLETE) != 0);
            want(st.rows_needed == rows[i] && st.rows_capacity == 128);
            want(st.over_budget == (uint64_t)(rows[i] > 128) + (rows[i] / 2 > 128));
            want(st.factor_needed == (told ? factor : 0));
        }
    }
    /* A region that has nothing of ours: its allocations tell the stream. */
    sc_ok(cuMemsetD32Async(counter, 150, 1, s));
    sc_ok(cuMemsetD32Async(counter + 4, 0, 1, s));
    nvtxRangePushA(wide);
    const CUdeviceptr small = sc_alloc(4096, s);
    nvtxRangePop();
    sc_free(small, s);
    begin_step();
    sc_results_print("small");
    want(!preloaded || (status().rows_needed == 150 && status().over_budget == 1));
    sc_ok(cuMemFree(counter));
    /* A counter that is gone is not looked at. */
    forward_named(wide, &layers[0], 77, s);
    sc_backward(&layers[0], s);
    sc_results_print("gone");
}

/* The second tensor's rows are twice as wide as the first's: nobody knows that when the first is made. */
static void forward_wide(struct sc_layer *l, uint64_t seed, CUstream s)
{
    nvtxRangePushA("moe_experts;capacity=128");
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(2 * SC_BYTES, s);
    pl_fill(l, seed, s);
    sc_ok(cuMemsetD8Async(l->y + SC_BYTES, 0, SC_BYTES, s));
    nvtxRangePop();
}

/* Ranges that tell their capacity: rows of 512 bytes, or of those and of 1,024. */
static void rows_told(CUstream s, bool wide)
{
    struct sc_layer layers[PL_LAYERS];

    for (uint64_t i = 0; i < PL_STEPS; i++) {
        for (uint64_t k = 0; k < PL_LAYERS; k++) {
            if (wide) {
                forward_wide(&layers[k], i * 100 + k, s);
            } else {
                forward_named("moe_experts;capacity=128;balanced=64", &layers[k], i * 100 + k, s);
            }
        }
        for (int k = PL_LAYERS - 1; k >= 0; k--) {
            sc_backward(&layers[k], s);
        }
        sc_results_print("step");
    }
    is_planned(true);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "steps";

    find_all();
    sc_start();
    const CUstream s = sc_stream();

    if (strcmp(kind, "steps") == 0) {
        steps_by_the_job(s);
    } else if (strcmp(kind, "found") == 0) {
        steps_found(s);
    } else if (strcmp(kind, "enable") == 0) {
        switched_off(s);
    } else if (strcmp(kind, "reset") == 0) {
        forgotten(s);
    } else if (strcmp(kind, "pages") == 0 || strcmp(kind, "wide") == 0) {
        rows_told(s, kind[0] == 'w');
    } else {
        needs(s, strcmp(kind, "need") == 0);
    }
    return sc_end();
}
