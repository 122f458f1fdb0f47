/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's schedules are Megatron-LM's, written out by hand for small pipelines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tools/demo/schedule.h"

/* F or B, microbatch, and the chunk where there are several. */
static const struct {
    struct demo_schedule s;
    int64_t in_flight;
    const char *turns;
} known[] = {
    {{DEMO_SCHEDULE_DEFAULT, 1, 0, 1, 3}, 1, "F0 B0 F1 B1 F2 B2"},
    {{DEMO_SCHEDULE_1F1B, 2, 0, 1, 3}, 2, "F0 F1 B0 F2 B1 B2"},
    {{DEMO_SCHEDULE_1F1B, 2, 1, 1, 3}, 1, "F0 B0 F1 B1 F2 B2"},
    {{DEMO_SCHEDULE_1F1B, 4, 0, 1, 6}, 4, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"},
    {{DEMO_SCHEDULE_1F1B, 4, 1, 1, 4}, 3, "F0 F1 F2 B0 F3 B1 B2 B3"},
    {{DEMO_SCHEDULE_1F1B, 4, 0, 1, 2}, 2, "F0 F1 B0 B1"},
    {{DEMO_SCHEDULE_INTERLEAVED, 2, 0, 2, 4},
     5,
     "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"},
    {{DEMO_SCHEDULE_INTERLEAVED, 2, 1, 2, 4},
     3,
     "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"},
    {{DEMO_SCHEDULE_INTERLEAVED, 4, 0, 2, 4},
     8,
     "F0a F1a F2a F3a F0b F1b F2b F3b B0b B1b B2b B3b B0a B1a B2a B3a"},
};
#define N_KNOWN ((int)(sizeof(known) / sizeof(known[0])))

static void write_turns(const struct demo_schedule *s, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = '\0';
    for (int64_t i = 0; i < demo_schedule_turns(s); i++) {
        const struct demo_turn t = demo_schedule_turn(s, i);
        char chunk[2] = "";
        if (s->chunks > 1) {
            chunk[0] = (char)('a' + t.chunk);
        } else {
            ck_assert_int_eq(t.chunk, 0);
        }
        used += (size_t)snprintf(buf + used, size - used, "%s%c%d%s", i > 0 ? " " : "",
                                 t.backward ? 'B' : 'F', (int)t.microbatch, chunk);
        ck_assert_uint_lt(used, size);
    }
}

START_TEST(small_pipelines_run_as_written)
{
    char turns[512];

    write_turns(&known[_i].s, turns, sizeof(turns));
    ck_assert_str_eq(turns, known[_i].turns);
    ck_assert_int_eq(demo_schedule_in_flight(&known[_i].s), known[_i].in_flight);
}
END_TEST

/* Each pass comes once, backward after forward, and no more are open than is said. */
static void check_passes(const struct demo_schedule *s)
{
    const int64_t n = s->microbatches * s->chunks;
    char *state = calloc((size_t)n, 1);
    int64_t open = 0, most = 0;

    ck_assert_ptr_nonnull(state);
    ck_assert_int_eq(demo_schedule_turns(s), 2 * n);
    for (int64_t i = 0; i < 2 * n; i++) {
        const struct demo_turn t = demo_schedule_turn(s, i);
        ck_assert(t.microbatch >= 0 && t.microbatch < s->microbatches);
        ck_assert(t.chunk >= 0 && t.chunk < s->chunks);
        char *p = &state[t.microbatch * s->chunks + t.chunk];
        ck_assert_int_eq(*p, t.backward ? 1 : 0);
        (*p)++;
        open += t.backward ? -1 : 1;
        most = open > most ? open : most;
    }
    ck_assert_int_eq(open, 0);
    ck_assert_int_eq(most, demo_schedule_in_flight(s));
    free(state);
}

START_TEST(each_pass_comes_once)
{
    const int64_t stages = _i;

    for (int64_t stage = 0; stage < stages; stage++) {
        for (int64_t rounds = 1; rounds <= 8; rounds++) {
            struct demo_schedule s = {DEMO_SCHEDULE_1F1B, stages, stage, 1, stages * rounds};
            check_passes(&s);
            s.microbatches = rounds;
            check_passes(&s);
            s.kind = DEMO_SCHEDULE_INTERLEAVED;
            s.microbatches = stages * rounds;
            for (s.chunks = 2; s.chunks <= 4; s.chunks++) {
                check_passes(&s);
            }
        }
    }
}
END_TEST

START_TEST(only_the_end_of_a_pipeline_keeps_its_output)
{
    const struct demo_schedule one = {DEMO_SCHEDULE_DEFAULT, 1, 0, 1, 2};
    const struct demo_schedule first = {DEMO_SCHEDULE_INTERLEAVED, 4, 0, 2, 4};
    const struct demo_schedule last = {DEMO_SCHEDULE_INTERLEAVED, 4, 3, 2, 4};

    ck_assert(!demo_schedule_sends(&one, 0));
    ck_assert(demo_schedule_sends(&first, 0) && demo_schedule_sends(&first, 1));
    ck_assert(demo_schedule_sends(&last, 0) && !demo_schedule_sends(&last, 1));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("demo_schedule");
    TCase *t = tcase_create("schedules");

    tcase_add_loop_test(t, small_pipelines_run_as_written, 0, N_KNOWN);
    tcase_add_loop_test(t, each_pass_comes_once, 2, 9);
    tcase_add_test(t, only_the_end_of_a_pipeline_keeps_its_output);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
