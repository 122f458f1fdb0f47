/* SPDX-License-Identifier: Apache-2.0 */
/* What is advised from which counts: each line has its numbers, and what is healthy gets none. */
#include <stdio.h>
#include <string.h>

#include "policy/advice.h"
#include "tests/support/check_main.h"

#define MIB(_n) ((uint64_t)(_n) << 20)

struct heard {
    unsigned n;
    enum ps_advice kind[8];
    uint64_t weight[8];
    char line[8][PS_ADVICE_LINE_MAX];
};

static void hear(void *arg, enum ps_advice kind, uint64_t weight, const char *line)
{
    struct heard *h = arg;

    ck_assert_uint_lt(h->n, 8);
    h->kind[h->n] = kind;
    h->weight[h->n] = weight;
    snprintf(h->line[h->n++], PS_ADVICE_LINE_MAX, "%s", line);
}

static struct heard advise(const struct ps_advice_facts *f)
{
    struct heard h = {0};

    ps_advise(f, hear, &h);
    return h;
}

static void says(const struct heard *h, enum ps_advice kind, const char *part)
{
    ck_assert_uint_eq(h->n, 1);
    ck_assert_int_eq(h->kind[0], kind);
    ck_assert_msg(strstr(h->line[0], part) != NULL, "'%s' does not say '%s'", h->line[0], part);
}

/* A step moves pages and all is well. */
static const struct ps_advice_facts healthy = {
    .steps = 100,
    .plans = 1,
    .pool_bytes = MIB(1000),
    .pages_used_peak = MIB(950),
    .limit_wanted_bytes = MIB(5000),
    .n_regions = 1,
    .regions = {{.name = "experts", .capacity = 1200, .balanced = 1000, .used_ppm = 910000}},
};

START_TEST(a_healthy_job_is_told_nothing)
{
    ck_assert_uint_eq(advise(&healthy).n, 0);
}
END_TEST

START_TEST(a_large_capacity_is_told_with_what_would_do)
{
    struct ps_advice_facts f = healthy;

    f.regions[0] = (struct ps_advice_region){
        .name = "experts", .capacity = 4000, .balanced = 1000, .needed = 1710};
    struct heard h = advise(&f);

    says(&h, PS_ADVICE_CAPACITY, "capacity is 4.00 and the peak seen is 1.71: 1.80 would do");
    /* The same from the pages. */
    f.regions[0].needed = 0;
    f.regions[0].used_ppm = 427500;
    h = advise(&f);
    says(&h, PS_ADVICE_CAPACITY, "capacity is 4.00 and the peak seen is 1.71: 1.80 would do");
    /* The counter goes before the pages, which round up. */
    f.regions[0].needed = 1500;
    h = advise(&f);
    says(&h, PS_ADVICE_CAPACITY, "the peak seen is 1.50: 1.58 would do");
}
END_TEST

START_TEST(without_balanced_rows_a_part_is_told)
{
    struct ps_advice_facts f = healthy;

    f.regions[0] = (struct ps_advice_region){.name = "experts", .used_ppm = 427500};
    const struct heard h = advise(&f);

    says(&h, PS_ADVICE_CAPACITY,
         "at most 43 % of its padded buffers held data; a capacity of 46 %");
    f.regions[0].used_ppm = 850000; /* what could be saved is not worth a line */
    ck_assert_uint_eq(advise(&f).n, 0);
}
END_TEST

START_TEST(dropped_rows_are_told_with_the_factor)
{
    struct ps_advice_facts f = healthy;

    f.regions[0] = (struct ps_advice_region){
        .name = "experts", .capacity = 3072, .balanced = 2048, .needed = 3502, .n_over = 7};
    struct heard h = advise(&f);

    says(&h, PS_ADVICE_OVER_CAPACITY, "more rows than there is room for 7 times");
    says(&h, PS_ADVICE_OVER_CAPACITY,
         "capacity is 1.50 and the peak needed is 1.71, which would do");
    ck_assert_uint_eq(h.weight[0], 7);
    f.regions[0].balanced = 0;
    h = advise(&f);
    says(&h, PS_ADVICE_OVER_CAPACITY,
         "up to 3502 where 3072 have room; a capacity of 3502 rows would do");
}
END_TEST

START_TEST(a_limit_that_is_too_small_is_told_with_by_how_much)
{
    struct ps_advice_facts f = healthy;

    f.bytes_spilled = 100 * MIB(2384); /* 2,384 MiB are 50 ms */
    f.limit_bytes = MIB(4000);
    f.limit_short_bytes = MIB(1000);
    f.limit_factor_percent = 134;
    struct heard h = advise(&f);

    says(&h, PS_ADVICE_BUDGET,
         "are allowed 4000 MiB of device memory and want 5000: 1000 MiB of pages");
    says(&h, PS_ADVICE_BUDGET, "2384 MiB a step, about 49 ms");
    says(&h, PS_ADVICE_BUDGET,
         "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA=1.34 or PAGEDSTASH_CUDA_BUDGET=5001M would do");
    f.limit_is_largest = 1;
    h = advise(&f);
    says(&h, PS_ADVICE_BUDGET, "FACTOR_CUDA=-1.34 or");
    f.limit_factor_percent = 0;
    h = advise(&f);
    says(&h, PS_ADVICE_BUDGET, "each way; PAGEDSTASH_CUDA_BUDGET=5001M");
}
END_TEST

START_TEST(spill_without_a_limit_is_told_with_its_cost)
{
    struct ps_advice_facts f = healthy;

    f.bytes_spilled = 100 * MIB(2384);
    struct heard h = advise(&f);

    says(&h, PS_ADVICE_SPILL, "2384 MiB a step, about 49 ms of the link each way");
    f.steps = 0;
    h = advise(&f);
    says(&h, PS_ADVICE_SPILL, "238400 MiB a step");
}
END_TEST

START_TEST(pages_never_used_are_told)
{
    struct ps_advice_facts f = healthy;

    f.pages_used_peak = MIB(400);
    struct heard h = advise(&f);

    says(&h, PS_ADVICE_PAGES,
         "600 of 1000 MiB of device pages were never used; PAGEDSTASH_CUDA_BUDGET=4400M");
    f.plans = 0; /* still learning: the pool is not what a plan made it */
    ck_assert_uint_eq(advise(&f).n, 0);
    f.plans = 1;
    f.pages_used_peak = f.pool_bytes + MIB(500); /* the rest was on the host */
    ck_assert_uint_eq(advise(&f).n, 0);
}
END_TEST

START_TEST(groups_that_stayed_and_plans_that_missed_are_told)
{
    struct ps_advice_facts f = healthy;

    f.kept_resident = 12;
    f.plan_misses = 34;
    const struct heard h = advise(&f);

    ck_assert_uint_eq(h.n, 2);
    ck_assert_int_eq(h.kind[0], PS_ADVICE_RESIDENT);
    ck_assert_ptr_nonnull(strstr(h.line[0], "12 groups"));
    ck_assert_int_eq(h.kind[1], PS_ADVICE_PLAN);
    ck_assert_ptr_nonnull(strstr(h.line[1], "34 events in 100 steps"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("advice");
    TCase *t = tcase_create("advice");

    tcase_add_test(t, a_healthy_job_is_told_nothing);
    tcase_add_test(t, a_large_capacity_is_told_with_what_would_do);
    tcase_add_test(t, without_balanced_rows_a_part_is_told);
    tcase_add_test(t, dropped_rows_are_told_with_the_factor);
    tcase_add_test(t, a_limit_that_is_too_small_is_told_with_by_how_much);
    tcase_add_test(t, spill_without_a_limit_is_told_with_its_cost);
    tcase_add_test(t, pages_never_used_are_told);
    tcase_add_test(t, groups_that_stayed_and_plans_that_missed_are_told);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
