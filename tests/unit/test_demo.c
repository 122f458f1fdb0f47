/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison of `pagedstash demo` sees every difference and every missing counter. */
#include <stdio.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tools/cmd_demo.h"

static char plain_losses[3][PS_DEMO_LOSS_MAX] = {"0x1p+1", "0x1.8p+0", "0x1p+0"};
static char stash_losses[3][PS_DEMO_LOSS_MAX];

static struct ps_demo_result result(char (*losses)[PS_DEMO_LOSS_MAX], int64_t n_steps)
{
    struct ps_demo_result r = {.n_steps = n_steps, .losses = losses};

    memcpy(stash_losses, plain_losses, sizeof(stash_losses));
    snprintf(r.weights, sizeof(r.weights), "0123456789abcdef");
    return r;
}

START_TEST(equal_runs_are_identical)
{
    const struct ps_demo_result plain = result(plain_losses, 3);
    const struct ps_demo_result stash = result(stash_losses, 3);

    ck_assert(ps_demo_identical(&plain, &stash));
}
END_TEST

START_TEST(one_other_loss_is_seen)
{
    const struct ps_demo_result plain = result(plain_losses, 3);
    const struct ps_demo_result stash = result(stash_losses, 3);

    snprintf(stash_losses[_i], sizeof(stash_losses[_i]), "0x1.000001p+0");
    ck_assert_msg(!ps_demo_identical(&plain, &stash), "step %d", _i);
}
END_TEST

START_TEST(other_weights_are_seen)
{
    const struct ps_demo_result plain = result(plain_losses, 3);
    struct ps_demo_result stash = result(stash_losses, 3);

    stash.weights[15] = 'e';
    ck_assert(!ps_demo_identical(&plain, &stash));
}
END_TEST

START_TEST(a_missing_step_is_seen)
{
    const struct ps_demo_result plain = result(plain_losses, 3);
    const struct ps_demo_result stash = result(stash_losses, 2);
    const struct ps_demo_result none = result(stash_losses, 0);

    ck_assert(!ps_demo_identical(&plain, &stash));
    ck_assert(!ps_demo_identical(&none, &none));
}
END_TEST

START_TEST(a_missing_counter_is_no_zero)
{
    struct ps_demo_result stash = result(stash_losses, 3);
    uint64_t value = 7;

    ck_assert(!ps_demo_counter(&stash, "errors", &value));
    stash.counters = json_tokener_parse("{\"errors\": 2, \"remaps\": \"none\"}");
    ck_assert(ps_demo_counter(&stash, "errors", &value));
    ck_assert_uint_eq(value, 2);
    ck_assert(!ps_demo_counter(&stash, "remaps", &value));
    ck_assert(!ps_demo_counter(&stash, "bytes_stashed", &value));
    json_object_put(stash.counters);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("demo");
    TCase *t = tcase_create("compare");

    tcase_add_test(t, equal_runs_are_identical);
    tcase_add_loop_test(t, one_other_loss_is_seen, 0, 3);
    tcase_add_test(t, other_weights_are_seen);
    tcase_add_test(t, a_missing_step_is_seen);
    tcase_add_test(t, a_missing_counter_is_no_zero);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
