/* SPDX-License-Identifier: Apache-2.0 */
/* Plans under a limit of device memory, on schedules of real jobs: they keep to it, and to what a plan promises. */
#include "policy/limits.h"
#include "tests/support/check_main.h"
#include "tests/support/plan_check.h"
#include "tests/support/steps.h"

#define MIB      STEPS_MIB
#define PERCENTS (PS_FACTOR_ONE / 100)

static const struct ps_plan_settings usual = {
    .granularity = 2 * MIB, .page_bytes = MIB / 4, .moved_percent = 10, .pool_percent = 10};

/* Layers of 256 MiB at balanced routing, padded to twice that. */
static const struct steps_shape shapes[] = {
    {.schedule = STEPS_SEQUENTIAL,
     .stages = 1,
     .virtual_stages = 1,
     .microbatches = 1,
     .layers = 12,
     .capacity_percent = 200,
     .spread_percent = 15,
     .row_bytes = 256 * MIB,
     .other_bytes = 1000 * MIB,
     .temporaries = true,
     .seed = 1},
    {.schedule = STEPS_1F1B,
     .stages = 4,
     .virtual_stages = 1,
     .microbatches = 8,
     .layers = 3,
     .capacity_percent = 200,
     .spread_percent = 30,
     .row_bytes = 256 * MIB,
     .other_bytes = 500 * MIB,
     .seed = 2},
};

static struct ps_limits_ask ask_of(uint64_t cuda_budget, uint64_t host_budget)
{
    return (struct ps_limits_ask){.settings = {.factor_cuda = 110 * PERCENTS,
                                               .factor_cpu = PS_FACTOR_AUTO,
                                               .cuda_budget = cuda_budget,
                                               .host_budget = host_budget},
                                  .capacity_factor = PS_FACTOR_AUTO};
}

/* The plan keeps every byte, with the pages that the limit has sent to the host. */
static void check_plan(struct ps_plan *plan, const struct ps_plan_step *step, uint64_t short_bytes)
{
    struct plan_checked c;

    plan->pool_bytes += short_bytes;
    plan->peak_bytes += short_bytes;
    plan_check_sums(plan, &usual);
    plan_check_step(plan, &usual, step, 0, &c);
    ck_assert_uint_le(c.pool_bytes, plan->pool_bytes);
    ck_assert_uint_le(c.peak_bytes, plan->peak_bytes);
}

START_TEST(a_budget_is_kept_to_at_any_size)
{
    struct made_step made;
    struct ps_plan plain;
    uint64_t least_peak = UINT64_MAX;
    unsigned n_tighter = 0;
    unsigned n_short = 0;

    steps_make(&shapes[_i], &made);
    ck_assert_int_eq(ps_plan_make(&made.step, 1, &usual, &plain), PS_OK);
    const uint64_t wanted = plain.home_bytes + plain.pool_bytes;

    for (uint64_t twentieths = 22; twentieths <= 22; twentieths--) {
        const uint64_t budget = wanted / 20 * twentieths;
        const struct ps_limits_ask ask = ask_of(budget, wanted);
        struct ps_limits_found found;
        struct ps_plan plan;

        ck_assert_int_eq(ps_limits_plan(&made.step, 1, &usual, &ask, &plan, &found), PS_OK);
        ck_assert_uint_eq(found.wanted_bytes, wanted);
        ck_assert_uint_eq(found.limits.device_bytes, budget);
        /* All homes are needed by what is resident, whatever the limit. */
        if (plan.home_bytes <= budget) {
            ck_assert_uint_le(plan.home_bytes + plan.pool_bytes, budget);
        } else {
            ck_assert_uint_eq(plan.pool_bytes, 0);
        }
        if (budget >= wanted) {
            ck_assert_uint_eq(found.short_bytes, 0);
            ck_assert_uint_eq(found.moved_percent, usual.moved_percent);
        }
        /* Less memory, or about as much where everything moves so that nothing need leave the device. */
        ck_assert_uint_le(plan.peak_bytes, least_peak / 100 * 105);
        least_peak = plan.peak_bytes < least_peak ? plan.peak_bytes : least_peak;
        n_tighter += found.moved_percent > usual.moved_percent;
        n_short += found.short_bytes > 0;
        check_plan(&plan, &made.step, found.short_bytes);
        ps_plan_fini(&plan);
    }
    ck_assert_uint_gt(n_tighter, 5);
    ck_assert_uint_gt(n_short, 5);
    ps_plan_fini(&plain);
    steps_free(&made);
}
END_TEST

START_TEST(the_default_bounds_what_is_balanced_and_only_as_far_as_the_host_goes)
{
    struct made_step made;
    struct ps_limits_found found;
    struct ps_plan plan;

    steps_make(&shapes[_i], &made);
    for (int i = 0; i < 3; i++) {
        struct ps_limits_ask ask = ask_of(PS_AUTO, i == 2 ? 0 : UINT64_C(1) << 40);

        ask.settings.factor_cuda = 30 * PERCENTS;
        ask.capacity_factor = i == 0 ? PS_FACTOR_AUTO : 200 * PERCENTS;
        ck_assert_int_eq(ps_limits_plan(&made.step, 1, &usual, &ask, &plan, &found), PS_OK);
        ck_assert_int_eq(found.seen.balanced_bytes == 0, i == 0);
        ck_assert_int_eq(found.limits.device_bytes == PS_NO_LIMIT, i != 1);
        ck_assert_int_eq(found.short_bytes > 0, i == 1);
        check_plan(&plan, &made.step, found.short_bytes);
        ps_plan_fini(&plan);
    }
    steps_free(&made);
}
END_TEST

int main(void)
{
    const int n = (int)(sizeof(shapes) / sizeof(shapes[0]));
    Suite *s = suite_create("limits");
    TCase *t = tcase_create("plans");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, a_budget_is_kept_to_at_any_size, 0, n);
    tcase_add_loop_test(t, the_default_bounds_what_is_balanced_and_only_as_far_as_the_host_goes, 0,
                        n);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
