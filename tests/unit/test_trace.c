/* SPDX-License-Identifier: Apache-2.0 */
/* Traces are read in both forms, refused by the line, and played as the engine would see them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/trace.h"
#include "tests/support/check_main.h"

#define HEAD "#pagedstash-trace\t1\n#min_bytes\t100\n#regions\tmoe*\n#step\t-\n"
#define OLD  "# recorded somewhere\n"

static bool read_text(struct ps_trace *t, const char *text)
{
    return ps_trace_read(t, text, strlen(text));
}

/* ---- refused ---- */

static const struct {
    const char *text, *error;
} bad[] = {
    {"", "line 0: no events"},
    {HEAD, "line 4: no events"},
    {"#pagedstash-trace\n", "line 1: no version"},
    {"#pagedstash-trace\tx\n", "line 1: no version"},
    {"#pagedstash-trace\t9\n", "line 1: this version is not known: '9'"},
    {"#pagedstash-trace\t1\n#min_bytes\tmany\n", "line 2: not a number of bytes: 'many'"},
    {HEAD "1\tpop\t0\t-\t-\t-\n", "line 5: not seven columns"},
    {HEAD "1\tpop\t0\t-\t-\t-\t-\t-\n", "line 5: not seven columns"},
    {OLD "1\tpop\t0\t-\t-\t-\t-\n", "line 2: not six columns"},
    {HEAD "-1\tpop\t0\t-\t-\t-\t-\n", "line 5: not a number: '-1'"},
    {HEAD "1\tpoop\t0\t-\t-\t-\t-\n", "line 5: unknown event 'poop'"},
    {HEAD "1\tpop\t4096\t-\t-\t-\t-\n", "line 5: not a thread's number: '4096'"},
    {HEAD "1\talloc\t0\t-\t0\t-\tasync\n", "line 5: not a number of bytes: '-'"},
    {HEAD "1\talloc\t0\t-\t-\t1\tasync\n", "line 5: not an allocation's number: '-'"},
    {HEAD "1\talloc\t0\t-\t1,2\t1\tasync\n", "line 5: not an allocation's number: '1,2'"},
    {HEAD "1\talloc\t0\t-\t4294967295\t1\tasync\n",
     "line 5: not an allocation's number: '4294967295'"},
    {HEAD "1\talloc\t0\t-\t0\t99999999999999999\tasync\n",
     "line 5: more bytes than there are: '99999999999999999'"},
    {HEAD "1\talloc\t0\t-\t0\t99999999999999999999999\tasync\n",
     "line 5: not a number of bytes: '99999999999999999999999'"},
    {HEAD "1\talloc\t0\t-\t7\t1\tasync\n2\talloc\t0\t-\t7\t1\tasync\n",
     "line 6: this number was allocated before"},
    {HEAD "1\tfree\t0\t-\t7\t1\t-\n", "line 5: never allocated: '7'"},
    {HEAD "1\talloc\t0\t-\t7\t1\tasync\n2\tfree\t0\t-\t7\t-\t-\n3\tfree\t0\t-\t7\t-\t-\n",
     "line 7: freed before: '7'"},
    {HEAD "1\tlaunch\t0\t-\t1,,2\t-\tk\n", "line 5: never allocated: '1'"},
    {HEAD "1\talloc\t0\t-\t1\t1\tasync\n1\tlaunch\t0\t-\t1,\t-\tk\n",
     "line 6: not a tensor's number:"},
};

START_TEST(a_malformed_line_is_told_by_its_number)
{
    struct ps_trace t;

    ck_assert_msg(!read_text(&t, bad[_i].text), "row %d", _i);
    ck_assert_str_eq(t.error, bad[_i].error);
    ps_trace_fini(&t);
}
END_TEST

START_TEST(a_line_that_is_not_whole_ends_a_trace)
{
    struct ps_trace t;

    ck_assert(read_text(&t, HEAD "1\tpop\t0\t-\t-\t-\t-\r\n2\tpo"));
    ck_assert(t.cut && !t.old);
    ck_assert_uint_eq(t.n_events, 1);
    ck_assert_uint_eq(t.min_bytes, 100);
    ck_assert_str_eq(t.regions, "moe*");
    ck_assert_str_eq(t.step, "");
    ps_trace_fini(&t);
    ck_assert(read_text(&t, HEAD "1\tpop\t0\t-\t-\t-\t-\n2\tcut\t0\t-\t-\t5\t-\n"));
    ck_assert(t.cut);
    ps_trace_fini(&t);
    ck_assert(read_text(&t, HEAD "1\tpop\t0\t-\t-\t-\t-\n2\tend\t0\t-\t-\t-\t-\n"));
    ck_assert(!t.cut);
    ps_trace_fini(&t);
}
END_TEST

START_TEST(many_allocations_and_names_are_found_again)
{
    const unsigned n = 5000;
    char *text = malloc(n * 160), *at = text;
    struct ps_trace t;

    at += sprintf(at, HEAD);
    for (unsigned i = 0; i < n; i++) {
        at += sprintf(at, "1\tpush\t0\t-\t-\t-\tname %u\n1\talloc\t0\t-\t%u\t%u\tasync\n", i % 1500,
                      i * 97, i);
    }
    for (unsigned i = 0; i < n; i++) {
        at += sprintf(at, "1\tfree\t0\t-\t%u\t-\t-\n", (n - 1 - i) * 97);
    }
    ck_assert_msg(read_text(&t, text), "%s", t.error);
    ck_assert_uint_eq(t.n_allocs, n);
    for (unsigned i = 0; i < n; i++) {
        ck_assert_uint_eq(t.ids[t.events[2 * n + i].first], n - 1 - i);
        ck_assert_int_eq(atoi(t.texts + t.events[2 * i].text + 5), (int)(i % 1500));
    }
    ps_trace_fini(&t);
    free(text);
}
END_TEST

/* ---- played ---- */

static struct ps_trace trace;
static struct ps_trace_play *play;

static void play_text(const char *text, const struct ps_trace_settings *settings)
{
    play = calloc(1, sizeof(*play));
    ck_assert_msg(read_text(&trace, text), "%s", trace.error);
    ck_assert_int_eq(ps_trace_play(&trace, settings, play), PS_OK);
}

static void end_play(void)
{
    ps_trace_play_fini(play);
    ps_trace_fini(&trace);
    free(play);
}

static const struct ps_trace_settings settings = {
    .regions = "moe*", .step = "", .min_bytes = 100, .valid_parts = 250000};

/* Two steps of two groups, and what else there is. */
static const char steps[] = HEAD "1\tcontext\t0\t-\t-\t77\tdevice 0\n"
                                 "1\tsmall\t0\t-\t-\t5\t-\n"
                                 "1\talloc\t0\t1\t0\t1000\tasync\n"
                                 "2\tpush\t0\t-\t-\t-\tstep\n"
                                 "3\tpush\t0\t-\t-\t-\tmoe;tokens=0x10\n"
                                 "4\talloc\t0\t1\t1\t400\ttensor 3\n"
                                 "5\talloc\t0\t1\t2\t50\tasync 4\n"
                                 "6\talloc\t0\t-\t3\t800\tsync\n"
                                 "7\tpop\t0\t-\t-\t-\t-\n"
                                 "8\tpush\t0\t-\t-\t-\tmoe\n"
                                 "9\talloc\t0\t1\t4\t300\ttensor 0\n"
                                 "10\tpop\t0\t-\t-\t-\t-\n"
                                 "11\tfree\t1\t1\t4\t300\t-\n"
                                 "12\tlaunch\t1\t1\t1\t-\tkernel\n"
                                 "13\tfree\t1\t1\t1\t400\t-\n"
                                 "14\tpop\t0\t-\t-\t-\t-\n"
                                 "15\tpush\t0\t-\t-\t-\tmoe\n"
                                 "15\tvalid\t0\t-\t1\t390\t-\n"
                                 "16\talloc\t0\t1\t5\t500\ttensor 3\n"
                                 "17\tpop\t0\t-\t-\t-\t-\n"
                                 "18\tpush\t0\t-\t-\t-\tmoe\n"
                                 "19\tpop\t0\t-\t-\t-\t-\n"
                                 "20\tcopy\t1\t1\t5\t8\td2d\n"
                                 "21\tfree\t1\t1\t5\t500\t-\n"
                                 "22\tend\t0\t-\t-\t-\t-\n";

START_TEST(a_trace_becomes_the_steps_of_the_engine)
{
    struct ps_plan_step step;
    bool same;

    play_text(steps, &settings);
    const struct ps_trace_context *c = ps_trace_busiest(play);

    ck_assert_ptr_nonnull(c);
    ck_assert_uint_eq(c->number, 77);
    ck_assert_uint_eq(c->n_steps, 2);
    ck_assert_uint_eq(c->n_incomplete, 0);
    ck_assert_uint_eq(c->n_tensors, 3);
    ck_assert_uint_eq(c->peak_bytes, 1000 + 5 + 50 + 800 + 400 + 300);
    ck_assert_str_eq(play->names[0], "moe");
    ck_assert_uint_eq(play->n_names, 1);
    ck_assert_uint_eq(play->n_told, 1);
    ck_assert_uint_eq(play->n_assumed, 2);
    ck_assert_uint_eq(c->segment.kinds[0].count, 2);
    ck_assert_int_eq(ps_kind_merge(&c->segment.kinds[0], &step, &same), PS_OK);
    ck_assert_uint_eq(step.n_groups, 2);
    ck_assert_uint_eq(step.n_tensors, 2);
    ck_assert_uint_eq(step.tensors[0].ordinal, 3);
    ck_assert_uint_eq(step.tensors[0].bytes, 500);
    ck_assert_uint_eq(step.tensors[0].valid,
                      (390 + 500 / 4 + 1) / 2); /* told of one, a quarter of the other */
    ck_assert_uint_eq(step.tensors[1].valid, 75);
    ck_assert_uint_eq(step.events[2].other_bytes, 1000 + 5 + 50 + 800);
    ck_assert_uint_eq(step.events[step.n_events - 2].kind, PS_PLAN_RETURN);
    ck_assert_uint_eq(step.events[step.n_events - 2].index, 0);
    ps_plan_step_free(&step);
    end_play();
}
END_TEST

START_TEST(other_settings_make_other_steps)
{
    struct ps_trace_settings other = settings;

    other.min_bytes = 350;
    play_text(steps, &other);
    ck_assert_uint_eq(ps_trace_busiest(play)->n_tensors, 2);
    end_play();
    other.regions = "moe*,st*";
    play_text(steps, &other); /* what is inside another region counts as that one's */
    ck_assert_str_eq(play->names[0], "step");
    ck_assert_uint_eq(ps_trace_busiest(play)->segment.kinds[0].record[0].n_groups, 1);
    end_play();
    other.regions = "x";
    play_text(steps, &other);
    ck_assert_ptr_null(ps_trace_busiest(play));
    end_play();
    other.regions = "moe*";
    other.step = "step";
    play_text(steps, &other);
    ck_assert_uint_eq(ps_trace_busiest(play)->n_steps, 2); /* before it, and behind */
    ck_assert_uint_eq(ps_trace_busiest(play)->segment.kinds[0].record[0].n_groups, 4);
    end_play();
}
END_TEST

START_TEST(contexts_are_kept_apart)
{
    play_text(HEAD "1\tcontext\t0\t-\t-\t7\tdevice 0\n1\tcontext\t1\t-\t-\t8\tdevice 1\n"
                   "2\tpush\t0\t-\t-\t-\tmoe\n2\tpush\t1\t-\t-\t-\tmoe\n"
                   "3\talloc\t0\t-\t0\t200\ttensor 0\n3\talloc\t1\t-\t1\t300\ttensor 0\n"
                   "3\talloc\t1\t-\t2\t300\ttensor 1\n"
                   /* the thread goes elsewhere in its region: no tensor there */
                   "4\tcontext\t0\t-\t-\t8\tdevice 1\n4\talloc\t0\t-\t3\t400\ttensor 1\n"
                   "5\tpop\t0\t-\t-\t-\t-\n5\tpop\t1\t-\t-\t-\t-\n"
                   "6\tfree\t1\t-\t0\t200\t-\n6\tfree\t0\t-\t1\t300\t-\n6\tfree\t0\t-\t2\t300\t-\n",
              &settings);
    const struct ps_trace_context *c = ps_trace_busiest(play);

    ck_assert_uint_eq(c->number, 8);
    ck_assert_uint_eq(c->n_tensors, 2);
    ck_assert_uint_eq(c->other_bytes, 400);
    ck_assert_uint_eq(c->region_bytes, 0);
    ck_assert_uint_eq(c->n_steps, 1);
    ck_assert_uint_eq(play->n_contexts, 3);
    ck_assert_uint_eq(play->contexts[1].n_steps, 1);
    end_play();
}
END_TEST

/* As recorded of PyTorch (tests/data): names, threads and stale words are real. */
START_TEST(recorded_steps_are_of_one_kind_and_return_backwards)
{
    static const char *const files[] = {"trace_padded.tsv", "trace_dropless.tsv"};
    const struct ps_trace_settings recorded = {
        .regions = "*experts*", .step = "", .min_bytes = UINT64_C(32) << 20};
    char path[512];
    struct ps_plan_step step;
    bool same;

    snprintf(path, sizeof(path), "%s/%s", PS_TEST_DATA, files[_i]);
    FILE *f = fopen(path, "re");

    ck_assert_ptr_nonnull(f);
    char *text = calloc(1, 1 << 20);

    ck_assert_uint_gt(fread(text, 1, (1 << 20) - 1, f), 100000);
    fclose(f);
    play_text(text, &recorded);
    free(text);
    ck_assert(trace.old);
    const struct ps_trace_context *c = ps_trace_busiest(play);

    ck_assert_uint_eq(c->segment.kinds[0].count, 5);
    ck_assert_uint_eq(c->segment.kinds[1].id, 0);
    ck_assert_int_eq(ps_kind_merge(&c->segment.kinds[0], &step, &same), PS_OK);
    ck_assert(same);
    ck_assert_uint_eq(step.n_groups, 12);
    uint32_t next = 11, dead = 12;

    for (uint32_t i = 0; i < step.n_events; i++) {
        const struct ps_plan_event *e = &step.events[i];

        if (e->kind == PS_PLAN_RETURN) {
            ck_assert_uint_eq(e->index, --next); /* the last never had a boundary */
            ck_assert_uint_eq(dead, next + 1);
        } else if (e->kind == PS_PLAN_FREE) {
            dead = step.tensors[e->index].group;
        }
    }
    ck_assert_uint_eq(next, 0);
    ps_plan_step_free(&step);
    end_play();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("trace");
    TCase *t = tcase_create("trace");

    tcase_add_loop_test(t, a_malformed_line_is_told_by_its_number, 0,
                        (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(t, a_line_that_is_not_whole_ends_a_trace);
    tcase_add_test(t, many_allocations_and_names_are_found_again);
    tcase_add_test(t, a_trace_becomes_the_steps_of_the_engine);
    tcase_add_test(t, other_settings_make_other_steps);
    tcase_add_test(t, contexts_are_kept_apart);
    tcase_add_loop_test(t, recorded_steps_are_of_one_kind_and_return_backwards, 0, 2);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
