/* SPDX-License-Identifier: Apache-2.0 */
/* Impossible steps are refused, and nothing else happens; possible ones, however odd, are planned soundly. */
#include <string.h>

#include "policy/plan.h"
#include "tests/support/check_main.h"
#include "tests/support/plan_check.h"
#include "tests/support/steps.h"

static const struct ps_plan_settings usual = {
    .granularity = 4096, .page_bytes = 4096, .moved_percent = 10, .pool_percent = 10};

#define E(_kind, _index)                                                                           \
    {                                                                                              \
        .kind = PS_PLAN_##_kind, .index = (_index)                                                 \
    }

static const struct ps_plan_tensor tensors[] = {
    {.group = 0, .ordinal = 0, .bytes = 65536, .valid = 32768},
    {.group = 1, .ordinal = 0, .bytes = 65536, .valid = 32768},
    {.group = 2, .ordinal = 0, .bytes = 65536, .valid = 32768},
    {.group = 3, .ordinal = 0, .bytes = 65536, .valid = 32768},
};
static const uint32_t names[] = {7, 7, 7, 7};

/* So many of the events; n_groups 3, n_tensors 4 (the last of a group that there is not). */
static const struct {
    const char *what;
    uint32_t n;
    struct ps_plan_event events[6];
} impossible[] = {
    {"a kind that there is not", 1, {{.kind = 5, .index = 0}}},
    {"a free before the allocation", 2, {E(PUSH, 0), E(FREE, 0)}},
    {"a free too many", 4, {E(PUSH, 0), E(ALLOC, 0), E(FREE, 0), E(FREE, 0)}},
    {"an allocation twice", 3, {E(PUSH, 0), E(ALLOC, 0), E(ALLOC, 0)}},
    {"an allocation again", 4, {E(PUSH, 0), E(ALLOC, 0), E(FREE, 0), E(ALLOC, 0)}},
    {"an allocation before the push", 1, {E(ALLOC, 0)}},
    {"an allocation after the pop", 3, {E(PUSH, 0), E(POP, 0), E(ALLOC, 0)}},
    {"an allocation in a group that there is not", 2, {E(PUSH, 0), E(ALLOC, 3)}},
    {"a tensor out of range", 2, {E(PUSH, 0), E(ALLOC, 4)}},
    {"a tensor far out of range", 2, {E(PUSH, 0), E(FREE, UINT32_MAX)}},
    {"a group out of range", 4, {E(PUSH, 0), E(PUSH, 1), E(PUSH, 2), E(PUSH, 3)}},
    {"a group far out of range", 1, {E(PUSH, UINT32_MAX)}},
    {"a push twice", 2, {E(PUSH, 0), E(PUSH, 0)}},
    {"a push out of order", 1, {E(PUSH, 1)}},
    {"a pop before the push", 1, {E(POP, 0)}},
    {"a pop twice", 3, {E(PUSH, 0), E(POP, 0), E(POP, 0)}},
    {"a return before the push", 2, {E(PUSH, 0), E(RETURN, 1)}},
    {"a return twice", 4, {E(PUSH, 0), E(POP, 0), E(RETURN, 0), E(RETURN, 0)}},
    {"a return of a group out of range", 2, {E(PUSH, 0), E(RETURN, UINT32_MAX)}},
    {"more of other memory than there can be",
     1,
     {{.kind = PS_PLAN_PUSH, .other_bytes = UINT64_MAX}}},
};

static void refuse(const struct ps_plan_step *step, const struct ps_plan_settings *settings,
                   const char *what)
{
    struct ps_plan plan, before;

    memset(&plan, 0x5a, sizeof(plan));
    memcpy(&before, &plan, sizeof(plan));
    ck_assert_msg(ps_plan_make(step, 1, settings, &plan) == PS_ERR_INVALID, "%s", what);
    ck_assert_mem_eq(&plan, &before, sizeof(plan));
}

START_TEST(impossible_events_are_refused)
{
    const struct ps_plan_step step = {.events = impossible[_i].events,
                                      .n_events = impossible[_i].n,
                                      .tensors = tensors,
                                      .n_tensors = 4,
                                      .names = names,
                                      .n_groups = 3};

    refuse(&step, &usual, impossible[_i].what);
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
    static const struct ps_plan_event events[] = {E(PUSH, 0), E(ALLOC, 0), E(ALLOC, 1), E(POP, 0)};
    struct ps_plan_tensor huge[] = {{.bytes = UINT64_MAX}, {.bytes = 2}};
    const struct ps_plan_step step = {.events = events,
                                      .n_events = 4,
                                      .tensors = huge,
                                      .n_tensors = 2,
                                      .names = names,
                                      .n_groups = 1};

    refuse(&step, &usual, "one tensor");
    huge[0].bytes = huge[1].bytes = UINT64_C(1) << 63;
    refuse(&step, &usual, "two tensors");
    huge[0].bytes = huge[1].bytes = UINT64_C(1) << 58;
    refuse(&step, &usual, "the sum");
}
END_TEST

START_TEST(impossible_settings_are_refused)
{
    const struct ps_plan_step step = {.n_events = 0};
    struct ps_plan_settings s = usual;

    s.granularity = 0;
    refuse(&step, &s, "no granularity");
    s.granularity = 4097;
    refuse(&step, &s, "granularity");
    s = usual;
    s.page_bytes = 0;
    refuse(&step, &s, "no pages");
    s = usual;
    s.moved_percent = 101;
    refuse(&step, &s, "more than all moves");
}
END_TEST

START_TEST(nothing_gives_an_empty_plan)
{
    const struct ps_plan_step step = {.n_events = 0};
    struct ps_plan plan;

    for (uint32_t n = 0; n < 2; n++) {
        ck_assert_int_eq(ps_plan_make(&step, n, &usual, &plan), PS_OK);
        plan_check_sums(&plan, &usual);
        ck_assert(!plan.adopt);
        ck_assert_uint_eq(plan.n_moves, n);
        ck_assert_ptr_null(ps_plan_find(&plan, 0, 0));
        ps_plan_fini(&plan);
    }
}
END_TEST

/* Changes some of the events or tensors. */
static void mutate(struct made_step *made, uint64_t *random)
{
    for (uint32_t n = 1 + steps_below(random, 3); n > 0; n--) {
        struct ps_plan_event *e = &made->events[steps_below(random, made->step.n_events)];
        struct ps_plan_tensor *t = &made->tensors[steps_below(random, made->step.n_tensors)];
        struct ps_plan_event *other = &made->events[steps_below(random, made->step.n_events)];
        const struct ps_plan_event copy = *e;

        switch (steps_below(random, 8)) {
        case 0:
            e->kind = (uint8_t)steps_below(random, 7);
            break;
        case 1:
            e->index = steps_below(random, 4) == 0 ? UINT32_MAX : steps_below(random, 100);
            break;
        case 2:
            t->group = steps_below(random, made->step.n_groups + 1);
            break;
        case 3:
            t->bytes = steps_below(random, 2) == 0 ? 0 : (uint64_t)1 << steps_below(random, 64);
            break;
        case 4:
            t->valid = (uint64_t)1 << steps_below(random, 64);
            break;
        case 5:
            t->ordinal = UINT32_MAX - steps_below(random, 3);
            break;
        case 6:
            made->step.n_events -= steps_below(random, made->step.n_events);
            break;
        default:
            *e = *other;
            *other = copy;
            break;
        }
    }
}

START_TEST(mangled_steps_are_refused_or_planned_soundly)
{
    uint64_t random = 77 + (uint64_t)_i;
    uint32_t n_planned = 0, n_refused = 0;

    for (uint32_t i = 0; i < 400; i++) {
        struct made_step made;
        struct ps_plan plan;

        steps_random(1000 * (uint64_t)_i + i + 1, 3 + i % 12, &made);
        if (made.step.n_events != 0 && made.step.n_tensors != 0) {
            mutate(&made, &random);
        }
        const enum ps_status status = ps_plan_make(&made.step, 1, &usual, &plan);

        if (status == PS_OK) {
            struct plan_checked c;

            plan_check_sums(&plan, &usual);
            plan_check_step(&plan, &usual, &made.step, 0, &c);
            ck_assert_uint_le(c.peak_bytes, plan.peak_bytes);
            ck_assert_uint_le(c.pool_bytes, plan.pool_bytes);
            ck_assert_uint_eq(c.n_conflicts, plan.n_conflicts);
            ps_plan_fini(&plan);
            n_planned++;
        } else {
            ck_assert_int_eq(status, PS_ERR_INVALID);
            n_refused++;
        }
        steps_free(&made);
    }
    ck_assert_uint_gt(n_planned, 40);
    ck_assert_uint_gt(n_refused, 40);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *s = suite_create("plan, bad input");
    TCase *t = tcase_create("bad");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, impossible_events_are_refused, 0,
                        (int)(sizeof(impossible) / sizeof(impossible[0])));
    tcase_add_test(t, impossible_sizes_are_refused);
    tcase_add_test(t, impossible_settings_are_refused);
    tcase_add_test(t, nothing_gives_an_empty_plan);
    tcase_add_loop_test(t, mangled_steps_are_refused_or_planned_soundly, 0, 5);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return ps_check_main(make_suite());
}
