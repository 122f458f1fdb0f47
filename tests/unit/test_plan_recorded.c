/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan promises, on steps recorded on an H200 and on long ones: near the least memory and the least wait there
 * can be, never more than without, and memory of the planner itself linear in the events.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "policy/spill.h"
#include "policy/trace.h"
#include "tests/support/check_main.h"
#include "tests/support/plan_check.h"
#include "tests/support/steps.h"

static const struct ps_plan_settings usual = {.granularity = 2 * STEPS_MIB,
                                              .page_bytes = STEPS_MIB / 4,
                                              .moved_percent = 10,
                                              .pool_percent = 10};

static const struct ps_plan_settings small = {
    .granularity = 4096, .page_bytes = 4096, .moved_percent = 10, .pool_percent = 10};

/* ---- recorded on an H200 ---- */

static struct ps_trace trace;
static struct ps_trace_play *play;
static struct ps_plan_step step;

static void begin_recorded(void)
{
    const struct ps_trace_settings settings = {
        .regions = "*experts*", .step = "", .min_bytes = 32 * STEPS_MIB};
    FILE *f = fopen(PS_TEST_DATA "/trace_moe12_capacity2.tsv", "re");
    char *text = calloc(1, 1 << 20);
    bool same;

    ck_assert(f != NULL && text != NULL);
    const size_t size = fread(text, 1, (1 << 20) - 1, f);

    fclose(f);
    ck_assert_msg(ps_trace_read(&trace, text, size), "%s", trace.error);
    free(text);
    play = calloc(1, sizeof(*play));
    ck_assert_ptr_nonnull(play);
    ck_assert_int_eq(ps_trace_play(&trace, &settings, play), PS_OK);
    struct ps_trace_context *c = ps_trace_busiest(play);

    ck_assert_ptr_nonnull(c);
    ck_assert_uint_eq(c->segment.kinds[0].count, 3);
    ck_assert_int_eq(ps_kind_merge(&c->segment.kinds[0], &step, &same), PS_OK);
    ck_assert(same);
    ck_assert_uint_eq(step.n_groups, 12);
    ck_assert_uint_gt(c->kind_ns[0], 200000000);
}

static void end_recorded(void)
{
    ps_plan_step_free(&step);
    ps_trace_play_fini(play);
    ps_trace_fini(&trace);
    free(play);
}

START_TEST(a_recorded_step_is_near_the_least_memory)
{
    struct ps_plan plan;
    struct plan_checked c;

    ck_assert_int_eq(ps_plan_make(&step, 1, &usual, &plan), PS_OK);
    plan_check_sums(&plan, &usual);
    plan_check_step(&plan, &usual, &step, 0, &c);
    ck_assert(plan.adopt);
    ck_assert_uint_eq(plan.n_conflicts, 0);
    ck_assert_uint_le(c.peak_bytes, plan.peak_bytes);
    ck_assert_uint_le(c.pool_bytes, plan.pool_bytes);
    ck_assert_uint_ge(plan.peak_bytes, plan.bound_bytes);
    ck_assert_uint_le(plan.peak_bytes / 100, plan.bound_bytes / 100 * 110 / 100);
    ck_assert_uint_le(plan.peak_bytes, plan.plain_peak_bytes / 100 * 82);
    ck_assert_uint_le(plan.moved_bytes, 2 * plan.valid_bytes / 100 * 10);
    ps_plan_fini(&plan);
}
END_TEST

/* Homes of many sizes; device pages for a half, a quarter and an eighth of what is out. */
START_TEST(a_recorded_step_waits_as_little_as_the_link_allows)
{
    struct ps_spill_item *items = malloc((step.n_tensors + 1u) * sizeof(*items));
    uint64_t *times = calloc(step.n_events + 1u, sizeof(*times));
    uint64_t ours = 0, first_come = 0, bound = 0;

    ck_assert(items != NULL && times != NULL);
    for (uint32_t e = 1; e < step.n_events; e++) {
        times[e] = step.events[e].time_ns > times[e - 1] ? step.events[e].time_ns : times[e - 1];
    }
    for (uint32_t percent = 10; percent <= 100; percent += 30) {
        struct ps_plan_settings settings = usual;
        struct ps_plan plan;
        uint32_t n;

        settings.moved_percent = percent;
        ck_assert_int_eq(ps_plan_make(&step, 1, &settings, &plan), PS_OK);
        ck_assert_int_eq(ps_spill_items(&plan, &step, 0, usual.page_bytes, items, &n), PS_OK);
        for (uint32_t part = 2; part <= 8; part *= 2) {
            const struct ps_spill_step spilling = {times, items, step.n_events, n};
            const struct ps_spill_settings s = {plan.pool_bytes / part, UINT64_C(55000000000)};
            struct ps_spill a, b;
            uint64_t least;

            ck_assert_int_eq(ps_spill_plan(&spilling, &s, PS_SPILL_LAST_NEEDED, &a), PS_OK);
            ck_assert_int_eq(ps_spill_plan(&spilling, &s, PS_SPILL_FIRST_COME, &b), PS_OK);
            ck_assert_int_eq(ps_spill_bound(&spilling, &s, &least), PS_OK);
            ck_assert_uint_gt(a.out_bytes, 0);
            ck_assert_uint_ge(a.wait_ns, least);
            ck_assert_msg(a.wait_ns * 2 <= b.wait_ns || a.wait_ns <= least / 100 * 101,
                          "%u %%, a part of %u: %lu us, first come %lu us", percent, part,
                          (unsigned long)a.wait_ns / 1000, (unsigned long)b.wait_ns / 1000);
            ours += a.wait_ns;
            first_come += b.wait_ns;
            bound += least;
            ps_spill_fini(&a);
            ps_spill_fini(&b);
        }
        ps_plan_fini(&plan);
    }
    ck_assert_uint_gt(bound, 0);
    ck_assert_uint_le(ours / 100, bound / 100 * 110 / 100);
    ck_assert_uint_lt(ours, first_come);
    free(items);
    free(times);
}
END_TEST

/* ---- at random ---- */

static bool check_adoption(const struct ps_plan_step *given)
{
    struct plan_checked c;
    struct ps_plan plan;

    ck_assert_int_eq(ps_plan_make(given, 1, &small, &plan), PS_OK);
    plan_check_step(&plan, &small, given, 0, &c);
    const bool adopted = plan.adopt;

    ck_assert_uint_le(plan.bound_bytes, plan.peak_bytes);
    ck_assert_uint_le(plan.bound_bytes, plan.plain_peak_bytes);
    ck_assert(!adopted || c.peak_bytes < plan.plain_peak_bytes);
    ck_assert(adopted || plan.n_slots == 0 || plan.peak_bytes >= plan.plain_peak_bytes);
    ps_plan_fini(&plan);
    return adopted;
}

START_TEST(no_plan_is_adopted_that_is_above_leaving_all_resident)
{
    uint32_t n_adopted = 0, n_left = 0;

    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        const struct steps_shape shape = {.schedule = (enum steps_schedule)steps_below(&random, 3),
                                          .stages = 2,
                                          .virtual_stages = 2,
                                          .microbatches = 2 + 2 * steps_below(&random, 4),
                                          .layers = 1 + steps_below(&random, 6),
                                          .capacity_percent = 100 + steps_below(&random, 200),
                                          .spread_percent = steps_below(&random, 40),
                                          .row_bytes = 8 * STEPS_MIB,
                                          .other_bytes = STEPS_MIB,
                                          .seed = seed};
        struct made_step made;

        steps_random(seed, 5 + (uint32_t)seed % 60, &made);
        check_adoption(&made.step);
        steps_free(&made);
        steps_make(&shape, &made);
        /* The optimizer, after the last free. */
        made.events[made.step.n_events - 1].other_bytes = steps_below(&random, 96) * STEPS_MIB;
        const bool adopted = check_adoption(&made.step);

        n_adopted += adopted;
        n_left += !adopted;
        steps_free(&made);
    }
    ck_assert_msg(n_adopted > 30 && n_left > 30, "%u adopted, %u not", n_adopted, n_left);
}
END_TEST

/* ---- the planner's own memory ---- */

static uint64_t status_kib(const char *name)
{
    FILE *f = fopen("/proc/self/status", "re");
    unsigned long long kib = 0;
    char line[256];

    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            kib = strtoull(line + strlen(name) + 1, NULL, 10);
        }
    }
    fclose(f);
    return kib;
}

/* In a process of its own: the most that planning such a step adds to what is resident. */
static uint64_t planning_kib(uint32_t layers, uint32_t *n_events_p)
{
    uint64_t told[2] = {0};
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();

    if (child == 0) {
        const struct steps_shape shape = {.schedule = STEPS_SEQUENTIAL,
                                          .stages = 1,
                                          .virtual_stages = 1,
                                          .microbatches = 1,
                                          .layers = layers,
                                          .capacity_percent = 200,
                                          .spread_percent = 15,
                                          .row_bytes = 64 * STEPS_MIB,
                                          .temporaries = true,
                                          .seed = 1};
        struct made_step made;
        struct ps_plan plan;

        steps_make(&shape, &made);
        FILE *f = fopen("/proc/self/clear_refs", "we"); /* 5: the peak begins anew */
        bool ok = f != NULL && fputs("5", f) >= 0;

        ok = f != NULL && fclose(f) == 0 && ok;
        const uint64_t before = status_kib("VmRSS");

        ok = ok && ps_plan_make(&made.step, 1, &usual, &plan) == PS_OK;
        told[0] = ok ? status_kib("VmHWM") - before : 0;
        told[1] = made.step.n_events;
        _exit(write(ends[1], told, sizeof(told)) == sizeof(told) ? 0 : 1);
    }
    ck_assert_int_gt(child, 0);
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], told, sizeof(told)), sizeof(told));
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    *n_events_p = (uint32_t)told[1];
    return told[0];
}

START_TEST(memory_is_linear_in_the_events)
{
    uint32_t n_small, n_large;
    const uint64_t few = planning_kib(16000, &n_small), many = planning_kib(64000, &n_large);

    ck_assert_uint_gt(n_large, 900000);
    ck_assert_uint_gt(few, 0);
    ck_assert_msg(many * n_small <= few * n_large / 100 * 130,
                  "%lu KiB for %u events, %lu KiB for %u", (unsigned long)few, n_small,
                  (unsigned long)many, n_large);
    ck_assert_uint_le(many * 1024 / n_large, 256); /* bytes for an event */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("plan, recorded");
    TCase *recorded = tcase_create("recorded"), *other = tcase_create("other");

    tcase_add_checked_fixture(recorded, begin_recorded, end_recorded);
    tcase_set_timeout(recorded, 60);
    tcase_add_test(recorded, a_recorded_step_is_near_the_least_memory);
    tcase_add_test(recorded, a_recorded_step_waits_as_little_as_the_link_allows);
    tcase_set_timeout(other, 120);
    tcase_add_test(other, no_plan_is_adopted_that_is_above_leaving_all_resident);
#ifndef PS_SANITIZED
    if (getenv("PS_VALGRIND") == NULL) {
        tcase_add_test(other, memory_is_linear_in_the_events);
    }
#endif
    suite_add_tcase(s, recorded);
    suite_add_tcase(s, other);
    return ps_check_main(s);
}
