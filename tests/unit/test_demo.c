/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The comparison of `pagedstash demo` sees every difference and every missing counter; its steady
 * steps are the ones meant.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tools/cmd_demo.h"

static struct ps_demo_step plain_steps[5] = {
    {"0x1p+1", 50}, {"0x1.8p+0", 70}, {"0x1p+0", 60}, {"0x1p-1", 80}, {"0x1p-2", 75}};
static struct ps_demo_step stash_steps[5];

static struct ps_demo_result result(struct ps_demo_step *steps, int64_t n_steps)
{
    struct ps_demo_result r = {.n_steps = n_steps, .steps = steps};

    memcpy(stash_steps, plain_steps, sizeof(stash_steps));
    snprintf(r.weights, sizeof(r.weights), "0123456789abcdef");
    return r;
}

START_TEST(equal_runs_are_identical)
{
    const struct ps_demo_result plain = result(plain_steps, 3);
    const struct ps_demo_result stash = result(stash_steps, 3);

    ck_assert(ps_demo_identical(&plain, &stash));
}
END_TEST

START_TEST(one_other_loss_is_seen)
{
    const struct ps_demo_result plain = result(plain_steps, 3);
    const struct ps_demo_result stash = result(stash_steps, 3);

    snprintf(stash_steps[_i].loss, sizeof(stash_steps[_i].loss), "0x1.000001p+0");
    ck_assert_msg(!ps_demo_identical(&plain, &stash), "step %d", _i);
}
END_TEST

START_TEST(other_weights_are_seen)
{
    const struct ps_demo_result plain = result(plain_steps, 3);
    struct ps_demo_result stash = result(stash_steps, 3);

    stash.weights[15] = 'e';
    ck_assert(!ps_demo_identical(&plain, &stash));
}
END_TEST

START_TEST(a_missing_step_is_seen)
{
    const struct ps_demo_result plain = result(plain_steps, 3);
    const struct ps_demo_result stash = result(stash_steps, 2);
    const struct ps_demo_result none = result(stash_steps, 0);

    ck_assert(!ps_demo_identical(&plain, &stash));
    ck_assert(!ps_demo_identical(&none, &none));
}
END_TEST

START_TEST(a_missing_counter_is_no_zero)
{
    struct ps_demo_result stash = result(stash_steps, 3);
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

/* The stash's line at the begin of a step: all counters are n, but for valid_bytes_stashed. */
static void add_mark(struct ps_demo_result *r, const char *phase, unsigned n)
{
    static const char *const names[] = {"map_calls",       "remaps",         "host_syncs",
                                        "bytes_moved",     "plan_misses",    "unplanned_touches",
                                        "unplanned_waits", "throttle_waits", "idle_waits"};
    struct json_object *mark = json_object_new_object();
    struct json_object *counters = json_object_new_object();

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        json_object_object_add(counters, names[i], json_object_new_int64(n));
    }
    json_object_object_add(counters, "valid_bytes_stashed", json_object_new_int64(10 * n));
    json_object_object_add(mark, "phase", json_object_new_string(phase));
    json_object_object_add(mark, "counters", counters);
    if (r->marks == NULL) {
        r->marks = json_object_new_array();
    }
    json_object_array_add(r->marks, mark);
}

static int64_t number(struct json_object *o, const char *key)
{
    struct json_object *value = NULL;

    ck_assert_msg(json_object_object_get_ex(o, key, &value) != 0, "no %s", key);
    return json_object_get_int64(value);
}

START_TEST(steady_steps_are_those_under_a_plan)
{
    static const char *const phases[] = {"begin",    "capture",  "capture",
                                         "captured", "captured", "begin"};
    const struct ps_demo_result plain = result(plain_steps, 5);
    struct ps_demo_result r = result(stash_steps, 5);

    for (unsigned i = 0; i < 6; i++) {
        add_mark(&r, phases[i], i * i);
    }
    struct json_object *steady = ps_demo_steady(&r);
    struct json_object *n_steps = ps_demo_phases(&r);
    struct json_object *by_step = ps_demo_by_step(&plain, &r);

    ck_assert_int_eq(ps_demo_first_steady(&r), 3);
    ck_assert_int_eq(number(steady, "first_step"), 3);
    ck_assert_int_eq(number(steady, "steps"), 2);
    ck_assert_int_eq(number(steady, "remaps"), 25 - 9);
    ck_assert_int_eq(number(steady, "valid_bytes"), 250 - 90);
    ck_assert_int_eq(number(n_steps, "begin"), 1);
    ck_assert_int_eq(number(n_steps, "capture"), 2);
    ck_assert_int_eq(number(n_steps, "captured"), 2);
    ck_assert_uint_eq(json_object_array_length(by_step), 5);
    ck_assert_int_eq(number(json_object_array_get_idx(by_step, 4), "idle_waits"), 25 - 16);
    ck_assert_int_eq(number(json_object_array_get_idx(by_step, 4), "peak_bytes"), 75);
    ck_assert_int_eq(number(json_object_array_get_idx(by_step, 3), "plain_peak_bytes"), 80);
    json_object_put(steady);
    json_object_put(n_steps);
    json_object_put(by_step);
    json_object_put(r.marks);
}
END_TEST

START_TEST(a_peak_is_that_of_the_steps_asked_for)
{
    const struct ps_demo_result r = result(plain_steps, 5);

    ck_assert_uint_eq(ps_demo_peak(&r, 0, 3), 70);
    ck_assert_uint_eq(ps_demo_peak(&r, 2, 3), 60);
    ck_assert_uint_eq(ps_demo_peak(&r, 0, 5), 80);
    ck_assert_uint_eq(ps_demo_peak(&r, 4, 9), 75);
    ck_assert_uint_eq(ps_demo_peak(&r, 3, 3), 0);
}
END_TEST

START_TEST(without_a_plan_two_steps_are_left_out)
{
    struct ps_demo_result r = result(stash_steps, _i);

    for (unsigned i = 0; i <= (unsigned)_i; i++) {
        add_mark(&r, "begin", i);
    }
    struct json_object *steady = ps_demo_steady(&r);

    ck_assert_int_eq(number(steady, "steps"), _i > 2 ? _i - 2 : 0);
    ck_assert_int_eq(number(steady, "map_calls"), _i > 2 ? _i - 2 : 0);
    json_object_put(steady);
    json_object_put(r.marks);
}
END_TEST

START_TEST(missing_lines_and_counters_make_no_zeros)
{
    struct ps_demo_result r = result(stash_steps, 3);

    ck_assert_ptr_null(ps_demo_steady(&r));
    ck_assert_int_eq(ps_demo_first_steady(&r), 3);
    for (unsigned i = 0; i < 3; i++) {
        add_mark(&r, "begin", i);
    }
    ck_assert_ptr_null(ps_demo_steady(&r));
    ck_assert_ptr_null(ps_demo_phases(&r));
    add_mark(&r, "begin", 3);
    struct json_object *last = json_object_array_get_idx(r.marks, 3);
    struct json_object *counters = NULL;

    ck_assert(json_object_object_get_ex(last, "counters", &counters) != 0);
    json_object_object_del(counters, "host_syncs");
    ck_assert_ptr_null(ps_demo_steady(&r));
    ck_assert_ptr_null(ps_demo_by_step(&r, &r));
    json_object_put(r.marks);
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
    tcase_add_test(t, steady_steps_are_those_under_a_plan);
    tcase_add_test(t, a_peak_is_that_of_the_steps_asked_for);
    tcase_add_loop_test(t, without_a_plan_two_steps_are_left_out, 1, 5);
    tcase_add_test(t, missing_lines_and_counters_make_no_zeros);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
