/* SPDX-License-Identifier: Apache-2.0 */
/* What the settings allow (policy/limits.h): every rule and sign, by numbers. */
#include "policy/limits.h"
#include "tests/support/check_main.h"

#define M(_n)     (INT64_C(1) * (_n) * (PS_FACTOR_ONE / 100)) /* hundredths */
#define MIB(_n)   ((uint64_t)(_n) << 20)
#define NONE      PS_NO_LIMIT
#define PAGE      UINT64_C(65536)
#define UNTOLD    PS_FACTOR_AUTO
#define SHARE     MIB(4096)
#define PAGES(_n) ((uint64_t)(_n)*PAGE)

/* Balanced 1,000 pages, largest 1,500, unless it is said otherwise. */
static const struct {
    const char *what;
    int64_t cuda;
    bool given, sized;
    bool unbalanced; /* the balanced bytes are not known */
    int64_t cpu;
    uint64_t cuda_budget;
    uint64_t device, host;
} rules[] = {
    {"the default is of the balanced bytes", M(110), false, false, false, UNTOLD, PS_AUTO,
     PAGES(1100), SHARE},
    {"the default bounds nothing where they are not known", M(110), false, false, true, UNTOLD,
     PS_AUTO, NONE, SHARE},
    {"above 0, given", M(150), true, false, false, UNTOLD, PS_AUTO, PAGES(1500), SHARE},
    {"above 0, given, not known: of the largest", M(110), true, false, true, UNTOLD, PS_AUTO,
     PAGES(1650), SHARE},
    {"below 0: of the largest", M(-100), true, false, false, UNTOLD, PS_AUTO, PAGES(1500), SHARE},
    {"below 0, less than one", M(-50), true, false, false, UNTOLD, PS_AUTO, PAGES(750), SHARE},
    {"below 0, not known", M(-120), true, false, true, UNTOLD, PS_AUTO, PAGES(1800), SHARE},
    {"0: none", 0, true, false, false, UNTOLD, PS_AUTO, 0, SHARE},
    {"rounded up to pages", 1234567, true, false, false, UNTOLD, PS_AUTO, PAGES(1235), SHARE},
    {"a budget goes before the default", M(110), false, false, false, UNTOLD, 12345, 12345, SHARE},
    {"a budget of none", M(110), false, false, false, UNTOLD, 0, 0, SHARE},
    {"host: 0 is none", M(110), false, true, false, 0, PS_AUTO, PAGES(1100), 0},
    {"host: above 0", M(110), false, true, false, M(150), PS_AUTO, PAGES(1100), PAGES(1500)},
    {"host: above 0, not known", M(110), false, true, true, M(80), PS_AUTO, NONE, PAGES(1200)},
    {"host: below 0", M(110), false, true, false, M(-20), PS_AUTO, PAGES(1100), PAGES(300)},
    {"host: rounded up to pages", M(110), false, true, false, 1, PS_AUTO, PAGES(1100), PAGES(1)},
    {"host: never beyond the budget", M(110), false, true, false, PS_FACTOR_MOST, PS_AUTO,
     PAGES(1100), SHARE},
    {"half on the device, one and a half on the host", M(50), true, true, false, M(150), PS_AUTO,
     PAGES(500), PAGES(1500)},
    {"1.0 and 0.8", M(100), true, true, false, M(80), PS_AUTO, PAGES(1000), PAGES(800)},
};

START_TEST(limits_follow_from_factors_and_budgets)
{
    const struct ps_limits_settings settings = {
        rules[_i].cuda, rules[_i].given, rules[_i].cpu, rules[_i].cuda_budget, SHARE,
    };
    const struct ps_limits_seen seen = {rules[_i].unbalanced ? 0 : PAGES(1000), PAGES(1500)};
    const struct ps_limits l = ps_limits_find(&settings, &seen, PAGE);

    ck_assert_msg(l.device_bytes == rules[_i].device, "%s: device %llu", rules[_i].what,
                  (unsigned long long)l.device_bytes);
    ck_assert_msg(l.host_bytes == rules[_i].host, "%s: host %llu", rules[_i].what,
                  (unsigned long long)l.host_bytes);
    ck_assert_msg(l.host_sized == rules[_i].sized, "%s", rules[_i].what);
}
END_TEST

START_TEST(homes_come_first_and_pages_get_the_rest)
{
    const struct ps_limits l = {.device_bytes = MIB(100)};
    const struct ps_limits none = {.device_bytes = NONE};

    ck_assert_uint_eq(ps_limits_pages(&l, MIB(60), MIB(30)), MIB(30));
    ck_assert_uint_eq(ps_limits_pages(&l, MIB(60), MIB(50)), MIB(40));
    ck_assert_uint_eq(ps_limits_pages(&l, MIB(100), MIB(50)), 0);
    ck_assert_uint_eq(ps_limits_pages(&l, MIB(160), MIB(50)), 0);
    ck_assert_uint_eq(ps_limits_pages(&none, MIB(160), MIB(50)), MIB(50));
}
END_TEST

START_TEST(the_factor_that_would_do_is_rounded_up)
{
    const struct ps_limits_settings above = {.factor_cuda = M(110)};
    const struct ps_limits_settings below = {.factor_cuda = M(-90), .factor_given = true};
    const struct ps_limits_seen seen = {PAGES(1000), PAGES(1500)};
    const struct ps_limits_seen nothing = {0, 0};

    ck_assert_int_eq(ps_limits_factor(&above, &seen, PAGES(1250)), M(125));
    ck_assert_int_eq(ps_limits_factor(&above, &seen, PAGES(1250) + 1), M(126));
    ck_assert_int_eq(ps_limits_factor(&below, &seen, PAGES(1500)), M(-100));
    ck_assert_int_eq(ps_limits_factor(&below, &seen, PAGES(1501)), M(-101));
    ck_assert_int_eq(ps_limits_factor(&above, &nothing, PAGES(1)), 0);
    /* And it does: with it, so much is allowed. */
    for (uint64_t bytes = 1; bytes < PAGES(4000); bytes += PAGES(37) + 11) {
        const struct ps_limits_settings would = {ps_limits_factor(&above, &seen, bytes), true,
                                                 UNTOLD, PS_AUTO, SHARE};

        ck_assert_uint_ge(ps_limits_find(&would, &seen, PAGE).device_bytes, bytes);
    }
}
END_TEST

START_TEST(products_that_do_not_fit_are_the_largest)
{
    const struct ps_limits_settings settings = {PS_FACTOR_MOST, true, UNTOLD, PS_AUTO, SHARE};
    const struct ps_limits_seen seen = {UINT64_MAX / 2, 0};

    ck_assert_uint_eq(ps_limits_find(&settings, &seen, PAGE).device_bytes, UINT64_MAX);
    ck_assert_uint_eq(ps_capacity_rows(UINT64_MAX, PS_FACTOR_MOST, 256), UINT64_MAX);
    ck_assert_int_gt(ps_capacity_factor(1, UINT64_MAX), 0);
}
END_TEST

/* ---- pages ---- */

static const struct {
    uint64_t rows, row_bytes;
    bool chosen;
    uint64_t page;
} pages[] = {
    {64, 14336, false, MIB(1)},   {64, 7168, false, 512 << 10},
    {64, 4096, false, 256 << 10}, {64, 4, false, 64 << 10},
    {64, 1 << 20, false, MIB(2)}, {8, 64, true, 512},
    {64, 4, true, 512},           {1, 14336, true, 16384},
    {64, 1 << 20, true, MIB(64)}, {1 << 20, 1 << 20, true, MIB(256)},
};

START_TEST(rows_become_the_next_power_of_two)
{
    ck_assert_uint_eq(ps_limits_page_bytes(pages[_i].rows, pages[_i].row_bytes, pages[_i].chosen),
                      pages[_i].page);
}
END_TEST

START_TEST(what_does_not_fit_is_neither_adopted_nor_left_alone)
{
    const uint64_t device = 3200;
    struct ps_plan plan = {.adopt = true, .peak_bytes = 2000, .spare_bytes = 100};

    /* A part is spared: 100 of 3,200. */
    ck_assert(ps_limits_fits(&plan, UINT64_MAX, 1000, device));
    ck_assert(!ps_limits_fits(&plan, 0, 1001, device));
    /* The plain job is doubted only where it has held more than there is, not by what a plan would come to. */
    plan.adopt = false;
    plan.peak_bytes = plan.plain_peak_bytes = 9000;
    ck_assert(ps_limits_fits(&plan, 3100, 100, device));
    ck_assert(!ps_limits_fits(&plan, 3100, 101, device));
    ck_assert(ps_limits_fits(&plan, 3100, 101, 0));
    /* Sums do not wrap around. */
    plan.adopt = true;
    plan.peak_bytes = UINT64_MAX;
    ck_assert(!ps_limits_fits(&plan, 0, UINT64_MAX, device));
    ck_assert(!ps_limits_fits(&plan, 0, UINT64_MAX, UINT64_MAX));
}
END_TEST

/* Rows of Megatron-LM's own kernel tests, 64 a page, and the pages they take. */
START_TEST(pages_are_counted_up)
{
    static const struct {
        uint64_t rows, pages;
    } of[] = {{0, 0},          {1, 1}, {63, 1}, {64, 1}, {65, 2}, {2048, 32}, {2048 - 64 - 7, 31},
              {1400000, 21875}};

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        ck_assert_uint_eq(ps_pages_for(of[i].rows * 7168, UINT64_C(64) * 7168), of[i].pages);
    }
    ck_assert_uint_eq(ps_pages_for(UINT64_MAX, 2), UINT64_MAX / 2 + 1);
}
END_TEST

/* ---- capacities ---- */

START_TEST(megatrons_budgets_are_found)
{
    /* 1,024 tokens to 2 experts each, capacity 1.5, in units of 256 rows; the other dispatcher: 0.6 of 2,048. */
    ck_assert_uint_eq(ps_capacity_rows(UINT64_C(1024) * 2, M(150), 256), 3072);
    ck_assert_uint_eq(ps_capacity_rows(2048, M(60), 1), 1228);
    ck_assert_uint_eq(ps_capacity_rows(2048, M(60), 256), 1280);
    ck_assert_uint_eq(ps_capacity_rows(2048, M(150), 256), 3072);
}
END_TEST

START_TEST(the_capacity_that_suffices_does_and_no_smaller_one)
{
    ck_assert_int_eq(ps_capacity_factor(2048, 3502), M(171));
    ck_assert_int_eq(ps_capacity_factor(2048, 2048), M(100));
    ck_assert_int_eq(ps_capacity_factor(2048, 2049), M(101));
    ck_assert_int_eq(ps_capacity_factor(1000, 1710), M(171));
    ck_assert_int_eq(ps_capacity_factor(1000, 0), 0);
    for (uint64_t balanced = 100; balanced < 9000; balanced += 97) {
        for (uint64_t rows = 1; rows < 4 * balanced; rows += 131) {
            const int64_t f = ps_capacity_factor(balanced, rows);

            ck_assert_uint_ge(ps_capacity_rows(balanced, f, 1), rows);
            ck_assert_uint_lt(ps_capacity_rows(balanced, f - M(1), 1), rows);
        }
    }
}
END_TEST

/* ---- what a plan has seen ---- */

/* Two groups of region 7, alive together: a stash site of 4 MiB, 1 MiB valid; one that is resident; a temporary. */
static struct ps_plan_event events[] = {
    {.kind = PS_PLAN_PUSH, .index = 0},  {.kind = PS_PLAN_ALLOC, .index = 0},
    {.kind = PS_PLAN_ALLOC, .index = 1}, {.kind = PS_PLAN_ALLOC, .index = 2},
    {.kind = PS_PLAN_FREE, .index = 2},  {.kind = PS_PLAN_POP, .index = 0},
    {.kind = PS_PLAN_PUSH, .index = 1},  {.kind = PS_PLAN_ALLOC, .index = 3},
    {.kind = PS_PLAN_POP, .index = 1},   {.kind = PS_PLAN_RETURN, .index = 1},
    {.kind = PS_PLAN_FREE, .index = 3},  {.kind = PS_PLAN_FREE, .index = 0},
    {.kind = PS_PLAN_FREE, .index = 1},
};
static struct ps_plan_tensor tensors[] = {
    {0, 0, MIB(4), MIB(1)},
    {0, 1, MIB(3), PS_PLAN_UNKNOWN},
    {0, 2, MIB(9), MIB(9)},
    {1, 0, MIB(8), MIB(3)},
};
static const uint32_t names[] = {7, 7};
static const struct ps_plan_step step = {events, tensors, names, sizeof(events) / sizeof(events[0]),
                                         4,      2};
static struct ps_plan_site sites[] = {
    {.name = 7, .ordinal = 0, .class = PS_PLAN_STASH},
    {.name = 7, .ordinal = 1, .class = PS_PLAN_RESIDENT},
    {.name = 7, .ordinal = 2, .class = PS_PLAN_TEMPORARY},
};
static const struct ps_plan plan = {.sites = sites, .n_sites = 3};

START_TEST(the_most_alive_at_one_time_is_looked_for)
{
    const struct ps_capacity told[] = {{3, 10, 1}, {7, 4096, 2048}};
    const struct ps_capacity no_balance[] = {{7, 4096, 0}};
    struct ps_limits_seen s = ps_limits_look(&plan, &step, 1, told, 2, UNTOLD);

    ck_assert_uint_eq(s.balanced_bytes, MIB(2 + 3 + 4));
    ck_assert_uint_eq(s.largest_bytes, MIB(1 + 3 + 3));
    s = ps_limits_look(&plan, &step, 1, told, 1, M(400)); /* of region 3 only */
    ck_assert_uint_eq(s.balanced_bytes, MIB(1 + 3 + 2));
    s = ps_limits_look(&plan, &step, 1, no_balance, 1, M(400));
    ck_assert_uint_eq(s.balanced_bytes, MIB(1 + 3 + 2));
    s = ps_limits_look(&plan, &step, 1, no_balance, 1, UNTOLD);
    ck_assert_uint_eq(s.balanced_bytes, 0);
    ck_assert_uint_eq(s.largest_bytes, MIB(1 + 3 + 3));
}
END_TEST

START_TEST(the_widest_row_is_of_the_regions_that_tell)
{
    const struct ps_capacity told[] = {{3, 1, 1}, {7, 4096, 0}};

    ck_assert_uint_eq(ps_limits_row_bytes(&step, 1, told, 2), MIB(9) / 4096);
    ck_assert_uint_eq(ps_limits_row_bytes(&step, 1, told, 1), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("limits");
    TCase *t = tcase_create("limits");

    tcase_add_loop_test(t, limits_follow_from_factors_and_budgets, 0,
                        (int)(sizeof(rules) / sizeof(rules[0])));
    tcase_add_test(t, homes_come_first_and_pages_get_the_rest);
    tcase_add_test(t, the_factor_that_would_do_is_rounded_up);
    tcase_add_test(t, products_that_do_not_fit_are_the_largest);
    tcase_add_loop_test(t, rows_become_the_next_power_of_two, 0,
                        (int)(sizeof(pages) / sizeof(pages[0])));
    tcase_add_test(t, what_does_not_fit_is_neither_adopted_nor_left_alone);
    tcase_add_test(t, pages_are_counted_up);
    tcase_add_test(t, megatrons_budgets_are_found);
    tcase_add_test(t, the_capacity_that_suffices_does_and_no_smaller_one);
    tcase_add_test(t, the_most_alive_at_one_time_is_looked_for);
    tcase_add_test(t, the_widest_row_is_of_the_regions_that_tell);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
