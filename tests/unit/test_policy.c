/* SPDX-License-Identifier: Apache-2.0 */
/* Region names and nesting, address ranges, sizes, sites, rules of groups. */
#include <stdlib.h>
#include <string.h>

#include "policy/group.h"
#include "policy/ranges.h"
#include "policy/region.h"
#include "policy/sites.h"
#include "policy/sizes.h"
#include "tests/support/check_main.h"

static uint64_t rng_state = 1;

static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

/* ---- names ---- */

static const struct {
    const char *list, *range;
    bool matches;
    const char *name;
} matches[] = {
    {"*experts*", "moe_experts", true, "moe_experts"},
    {"*experts*", "experts", true, "experts"},
    {"*experts*", "moe_experts;tokens=0x7f00:i64;capacity=12", true, "moe_experts"},
    {"*experts*", "dense;experts", false, "dense"},
    {"*experts*", "", false, ""},
    {"a, b* ,c", "bcd", true, "bcd"},
    {"a, b* ,c", "cd", false, "cd"},
    {"a,,c", "", false, ""},
    {"", "anything", false, "anything"},
    {"layer[0-9]", "layer7", true, "layer7"},
    {"*", "x", true, "x"},
};

START_TEST(names_match_up_to_the_first_semicolon)
{
    struct ps_patterns p;
    char name[PS_REGION_NAME_MAX];
    ck_assert(ps_patterns_init(&p, matches[_i].list));
    ck_assert_msg(ps_patterns_match(&p, matches[_i].range, name) == matches[_i].matches, "row %d",
                  _i);
    ck_assert_str_eq(name, matches[_i].name);
}
END_TEST

START_TEST(a_long_name_is_cut_and_a_long_list_refused)
{
    struct ps_patterns p;
    char name[PS_REGION_NAME_MAX];
    char text[2000];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    ck_assert(!ps_patterns_init(&p, text));
    ck_assert(ps_patterns_init(&p, "x*"));
    ck_assert(ps_patterns_match(&p, text, name));
    ck_assert_uint_eq(strlen(name), PS_REGION_NAME_MAX - 1);
    for (int i = 0; i < 100; i += 2) {
        text[i] = 'y';
        text[i + 1] = ',';
    }
    text[100] = '\0';
    ck_assert(!ps_patterns_init(&p, text));
    ck_assert_uint_eq(p.n, PS_PATTERNS_MAX);
}
END_TEST

START_TEST(an_instance_is_one_push_and_pop)
{
    struct ps_region_stack s = {0};
    ck_assert_int_eq(ps_region_stack_push(&s, 0), PS_REGION_NONE);
    ck_assert_int_eq(ps_region_stack_push(&s, 3), PS_REGION_OPEN);
    ck_assert_int_eq(ps_region_stack_push(&s, 0), PS_REGION_NONE);
    ck_assert_int_eq(ps_region_stack_push(&s, 4), PS_REGION_NONE);
    ck_assert_int_eq(ps_region_stack_pop(&s), PS_REGION_NONE);
    ck_assert_int_eq(ps_region_stack_pop(&s), PS_REGION_NONE);
    ck_assert_int_eq(ps_region_stack_pop(&s), PS_REGION_CLOSE);
    ck_assert_int_eq(ps_region_stack_pop(&s), PS_REGION_NONE);
    ck_assert_int_eq(ps_region_stack_pop(&s), PS_REGION_NONE);
    ck_assert_int_eq(ps_region_stack_push(&s, 3), PS_REGION_OPEN);
}
END_TEST

START_TEST(a_deeper_push_of_the_same_name_closes_what_an_exception_left_open)
{
    struct ps_region_stack s = {0};
    ps_region_stack_push(&s, 0);
    ck_assert_int_eq(ps_region_stack_push(&s, 3), PS_REGION_OPEN);
    ck_assert_int_eq(ps_region_stack_push(&s, 3), PS_REGION_CLOSE_OPEN);
    ck_assert_int_eq(ps_region_stack_pop(&s), PS_REGION_CLOSE);
    ck_assert_int_eq(ps_region_stack_pop(&s), PS_REGION_NONE);
    ck_assert_int_eq(ps_region_stack_push(&s, 3), PS_REGION_OPEN);
}
END_TEST

/* ---- ranges ---- */

START_TEST(ranges_do_not_overlap_and_merge_again)
{
    enum { N = 64, SIZE = 4096 };
    struct ps_ranges r;
    struct ps_range held[N] = {{0, 0}};
    static unsigned char owner[SIZE];
    unsigned n_bad = 0;

    memset(owner, 0, sizeof(owner));
    ck_assert_int_eq(ps_ranges_init(&r, 1000, SIZE), PS_OK);
    for (int i = 0; i < 200000; i++) {
        struct ps_range *h = &held[rng() % N];
        if (h->size == 0) {
            const uint64_t want = rng() % 200;
            if (ps_ranges_take(&r, want, &h->base)) {
                h->size = want;
                for (uint64_t k = 0; k < want; k++) {
                    n_bad += owner[h->base - 1000 + k]++ != 0;
                }
            }
        } else {
            for (uint64_t k = 0; k < h->size; k++) {
                n_bad += owner[h->base - 1000 + k]-- != 1;
            }
            ps_ranges_give(&r, h->base, h->size);
            h->size = 0;
        }
        n_bad += !ps_ranges_check(&r);
    }
    ck_assert_uint_eq(n_bad, 0);
    for (int i = 0; i < N; i++) {
        ps_ranges_give(&r, held[i].base, held[i].size);
    }
    ck_assert_uint_eq(r.n_free, 1);
    ck_assert_uint_eq(r.free[0].size, SIZE);
    ps_ranges_fini(&r);
}
END_TEST

START_TEST(nothing_is_handed_out_of_nothing)
{
    struct ps_ranges r;
    uint64_t base;
    ck_assert_int_eq(ps_ranges_init(&r, 0, 10), PS_OK);
    ck_assert(!ps_ranges_take(&r, 0, &base));
    ck_assert(!ps_ranges_take(&r, 11, &base));
    ck_assert(ps_ranges_take(&r, 10, &base));
    ck_assert(!ps_ranges_take(&r, 1, &base));
    ps_ranges_fini(&r);
}
END_TEST

/* ---- sizes ---- */

START_TEST(chunks_add_up_and_waste_little)
{
    const uint64_t granularity = _i == 0 ? 4096 : 2 << 20;
    for (int i = 0; i < 100000; i++) {
        const uint64_t bytes = 1 + rng() % (granularity * 3000);
        const uint64_t rounded = ps_size_round(bytes, granularity);
        uint32_t n[PS_N_CLASSES];
        uint64_t sum = 0;
        uint64_t small = 0;
        ps_size_split(rounded, granularity, n);
        for (unsigned k = 0; k < PS_N_CLASSES; k++) {
            sum += n[k] * (granularity << k);
            small += k + 1 < PS_N_CLASSES ? n[k] : 0;
        }
        if (sum != rounded || rounded < bytes || rounded - bytes >= granularity + bytes / 16 ||
            small >= PS_N_CLASSES) {
            ck_abort_msg("%llu bytes became %llu", (unsigned long long)bytes,
                         (unsigned long long)rounded);
        }
    }
}
END_TEST

/* ---- sites, groups ---- */

START_TEST(a_site_without_a_visible_use_is_left_alone)
{
    struct ps_sites s = {NULL};
    struct ps_site *a = ps_sites_get(&s, 1, 2);
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_eq(ps_sites_get(&s, 1, 2), a);
    ck_assert_ptr_ne(ps_sites_get(&s, 2, 1), a);
    ck_assert(ps_site_eligible(a));
    a->unseen = true;
    ck_assert(!ps_site_eligible(a));
    a->proven = true;
    ck_assert(ps_site_eligible(a));
    a->n_stashed = 4;
    ck_assert(!ps_site_eligible(a));
    ps_sites_forget_gain(&s);
    ck_assert(ps_site_eligible(a));
    a->n_stashed = 9;
    a->n_uniform = 1;
    ck_assert(ps_site_eligible(a));
    a->n_made = 100;
    a->n_foreign = 3;
    ck_assert(ps_site_eligible(a));
    a->n_foreign = 25;
    ck_assert(!ps_site_eligible(a));
    ps_sites_fini(&s);
}
END_TEST

START_TEST(one_full_group_does_not_make_a_job_without_padding)
{
    struct ps_gain full = {0};
    struct ps_gain chance = {0};
    for (int i = 0; i < 3; i++) {
        ps_gain_seen(&full, false);
        ps_gain_seen(&chance, false);
        ck_assert(!ps_gain_none(&full));
    }
    ps_gain_seen(&full, false);
    ck_assert(ps_gain_none(&full));
    ps_gain_seen(&chance, true);
    for (int i = 0; i < 100; i++) {
        ps_gain_seen(&chance, false);
        ck_assert(!ps_gain_none(&chance));
    }
    /* What leaves after all may show better. */
    ps_gain_seen(&full, true);
    ck_assert(!ps_gain_none(&full));
}
END_TEST

START_TEST(only_a_quiet_group_of_this_thread_leaves)
{
    const struct ps_group_view quiet = {.same_thread = true, .n_movable = 1};
    ck_assert(ps_group_may_leave(&quiet));
    for (int i = 0; i < 8; i++) {
        struct ps_group_view v = quiet;
        v.open = i == 0;
        v.returned = i == 1;
        v.crowded = i == 2;
        v.same_thread = i != 3;
        v.foreign_pending = i == 4;
        v.lane_busy = i == 5;
        v.n_pinned = i == 6;
        v.n_movable = i != 7;
        ck_assert_msg(!ps_group_may_leave(&v), "case %d", i);
    }
}
END_TEST

START_TEST(backward_is_known_by_the_last_group_alive)
{
    ck_assert_int_eq(ps_group_scope(true, true), PS_SCOPE_RETURN);
    ck_assert_int_eq(ps_group_scope(true, false), PS_SCOPE_RETURN);
    ck_assert_int_eq(ps_group_scope(false, true), PS_SCOPE_TENSOR);
    ck_assert_int_eq(ps_group_scope(false, false), PS_SCOPE_GROUP);
}
END_TEST

START_TEST(a_tensor_is_mapped_by_one_thread_at_a_time)
{
    ck_assert(ps_residency_may(PS_RESIDENT, PS_CACHED));
    ck_assert(!ps_residency_may(PS_RESIDENT, PS_OUT));
    ck_assert(!ps_residency_may(PS_RESIDENT, PS_MOVING));
    ck_assert(!ps_residency_may(PS_MOVING, PS_MOVING));
    ck_assert(!ps_residency_may(PS_MOVING, PS_DEAD));
    ck_assert(!ps_residency_may(PS_OUT, PS_RESIDENT));
    ck_assert(!ps_residency_may(PS_OUT, PS_CACHED));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("policy");
    TCase *t = tcase_create("policy");
    tcase_add_loop_test(t, names_match_up_to_the_first_semicolon, 0,
                        (int)(sizeof(matches) / sizeof(matches[0])));
    tcase_add_test(t, a_long_name_is_cut_and_a_long_list_refused);
    tcase_add_test(t, an_instance_is_one_push_and_pop);
    tcase_add_test(t, a_deeper_push_of_the_same_name_closes_what_an_exception_left_open);
    tcase_add_test(t, ranges_do_not_overlap_and_merge_again);
    tcase_add_test(t, nothing_is_handed_out_of_nothing);
    tcase_add_loop_test(t, chunks_add_up_and_waste_little, 0, 2);
    tcase_add_test(t, a_site_without_a_visible_use_is_left_alone);
    tcase_add_test(t, one_full_group_does_not_make_a_job_without_padding);
    tcase_add_test(t, only_a_quiet_group_of_this_thread_leaves);
    tcase_add_test(t, backward_is_known_by_the_last_group_alive);
    tcase_add_test(t, a_tensor_is_mapped_by_one_thread_at_a_time);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
