/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of PyTorch's allocator setting, whatever the user wrote. */
#include "tests/support/check_main.h"

#include <string.h>

#include "shim/alloc_conf.h"

static const struct {
    const char *user, *merged;
    enum ps_alloc_conf_result result;
} rows[] = {
    {"", "backend:cudaMallocAsync", PS_ALLOC_CONF_MERGED},
    {"max_split_size_mb:512", "backend:cudaMallocAsync,max_split_size_mb:512",
     PS_ALLOC_CONF_MERGED},
    {"backend:cudaMallocAsync", "backend:cudaMallocAsync", PS_ALLOC_CONF_MERGED},
    {" backend : cudaMallocAsync , a:b ", "backend:cudaMallocAsync,a:b", PS_ALLOC_CONF_MERGED},
    {"backend:native", "backend:cudaMallocAsync", PS_ALLOC_CONF_OVERRIDDEN},
    {"a:b,backend:native,c:d", "backend:cudaMallocAsync,a:b,c:d", PS_ALLOC_CONF_OVERRIDDEN},
    {"expandable_segments:True", "backend:cudaMallocAsync,expandable_segments:True",
     PS_ALLOC_CONF_OVERRIDDEN},
    {"expandable_segments:False", "backend:cudaMallocAsync,expandable_segments:False",
     PS_ALLOC_CONF_MERGED},
    {"roundup_power2_divisions:[256:1,backend:4],b:c",
     "backend:cudaMallocAsync,roundup_power2_divisions:[256:1,backend:4],b:c",
     PS_ALLOC_CONF_MERGED},
    {",,nonsense,,", "backend:cudaMallocAsync,nonsense", PS_ALLOC_CONF_MERGED},
    {"open:[1,2", "backend:cudaMallocAsync,open:[1,2", PS_ALLOC_CONF_MERGED},
};

START_TEST(our_backend_is_put_in_and_the_rest_is_kept)
{
    char merged[PS_ALLOC_CONF_MAX];

    ck_assert_int_eq(ps_alloc_conf_merge(rows[_i].user, merged), rows[_i].result);
    ck_assert_msg(strcmp(merged, rows[_i].merged) == 0, "row %d: '%s' gives '%s'", _i,
                  rows[_i].user, merged);
    /* What a child process inherits stays as it is. */
    char again[PS_ALLOC_CONF_MAX];

    ps_alloc_conf_merge(merged, again);
    ck_assert_str_eq(again, merged);
}
END_TEST

START_TEST(a_setting_that_does_not_fit_is_left_alone)
{
    char user[2 * PS_ALLOC_CONF_MAX], merged[PS_ALLOC_CONF_MAX];

    memset(user, 'a', sizeof(user) - 1);
    user[sizeof(user) - 1] = '\0';
    ck_assert_int_eq(ps_alloc_conf_merge(user, merged), PS_ALLOC_CONF_TOO_LONG);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("alloc_conf");
    TCase *t = tcase_create("all");

    tcase_add_loop_test(t, our_backend_is_put_in_and_the_rest_is_kept, 0,
                        sizeof(rows) / sizeof(rows[0]));
    tcase_add_test(t, a_setting_that_does_not_fit_is_left_alone);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
