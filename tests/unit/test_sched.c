/* SPDX-License-Identifier: Apache-2.0 */
/* The software driver's scheduler: repeatable, and able to leave a stream behind at any distance. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tools/simcuda/sched.h"
#include "tools/simcuda/sim.h"

struct sim_options sim_options = {.eager = 4};

#define N_STREAMS 3

static struct sim_stream streams[N_STREAMS];

static void forget_streams(void)
{
    for (unsigned i = 0; i < N_STREAMS; i++) {
        sim_sched_stream_gone(&streams[i]);
    }
    memset(streams, 0, sizeof(streams));
}

/* Picks n times among one operation of each stream; says which. */
static void picks(uint64_t seed, unsigned char *out, unsigned n)
{
    struct sim_op ops[N_STREAMS] = {0};
    struct sim_op *ready[N_STREAMS];

    sim_sched_init(seed);
    for (unsigned i = 0; i < N_STREAMS; i++) {
        ops[i].stream = &streams[i];
        ops[i].serial = i;
        ready[i] = &ops[i];
    }
    for (unsigned i = 0; i < n; i++) {
        const size_t k = sim_sched_pick(ready, N_STREAMS);

        ck_assert_uint_lt(k, N_STREAMS);
        out[i] = (unsigned char)k;
        ops[k].serial += N_STREAMS;
    }
    forget_streams();
}

START_TEST(a_seed_gives_the_same_order_each_time)
{
    unsigned char one[500], two[500];

    picks((uint64_t)_i, one, 500);
    picks((uint64_t)_i, two, 500);
    ck_assert_mem_eq(one, two, sizeof(one));
}
END_TEST

START_TEST(seeds_differ)
{
    unsigned char one[500], two[500];

    picks(1, one, 500);
    picks(2, two, 500);
    ck_assert_mem_ne(one, two, sizeof(one));
}
END_TEST

START_TEST(seed_0_keeps_the_order_of_queueing)
{
    unsigned char order[30];

    picks(0, order, 30);
    for (unsigned i = 0; i < 30; i++) {
        ck_assert_uint_eq(order[i], i % N_STREAMS);
    }
}
END_TEST

/* One operation of stream 0 against `distance` operations of stream 1: how many of 200 seeds leave it behind? */
static unsigned left_behind(unsigned distance)
{
    unsigned n = 0;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct sim_op a = {.stream = &streams[0], .serial = 1};
        struct sim_op b = {.stream = &streams[1], .serial = 2};
        struct sim_op *const ready[2] = {&a, &b};
        unsigned done = 0;

        sim_sched_init(seed);
        while (done < distance && sim_sched_pick(ready, 2) == 1) {
            done++;
            b.serial++;
        }
        n += done == distance;
        forget_streams();
    }
    return n;
}

START_TEST(a_stream_can_be_left_behind_at_any_distance)
{
    static const unsigned distances[] = {4, 24, 200, 1000};
    static const unsigned least[] = {50, 35, 20, 8};

    const unsigned n = left_behind(distances[_i]);

    ck_assert_msg(n >= least[_i], "%u of 200 seeds at distance %u", n, distances[_i]);
    ck_assert_uint_le(n, 150);
}
END_TEST

START_TEST(blocks_come_in_few_steps_and_none_is_lost)
{
    sim_sched_init((uint64_t)_i + 1);
    for (uint64_t n = 1; n < 2000; n = n * 3 + 1) {
        uint64_t left = n;
        unsigned steps = 0;

        while (left > 0) {
            const uint64_t k = sim_sched_blocks(NULL, left);

            ck_assert_uint_ge(k, 1);
            ck_assert_uint_le(k, left);
            left -= k;
            steps++;
        }
        ck_assert_uint_le(steps, 64);
    }
}
END_TEST

START_TEST(some_seeds_let_the_device_work_at_once_and_some_never)
{
    unsigned n_never = 0, n_often = 0;

    for (uint64_t seed = 1; seed <= 100; seed++) {
        unsigned worked = 0;

        sim_sched_init(seed);
        for (unsigned i = 0; i < 20; i++) {
            const unsigned n = sim_sched_eager(NULL, "cuLaunchKernel");

            ck_assert_uint_le(n, sim_options.eager);
            worked += n > 0;
        }
        n_never += worked == 0;
        n_often += worked > 15;
    }
    ck_assert_uint_ge(n_never, 3);
    ck_assert_uint_ge(n_often, 3);
}
END_TEST

#define N_CALLS 300

static void *caller(void *arg)
{
    for (unsigned i = 0; i < N_CALLS; i++) {
        sim_sched_yield("cuLaunchKernel");
        (*(unsigned *)arg)++;
    }
    return NULL;
}

START_TEST(threads_all_get_through_while_one_is_away)
{
    pthread_t threads[3];
    unsigned counts[3] = {0};

    sim_sched_init(7);
    sim_sched_yield("cuInit"); /* this thread then waits outside of the driver */
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, caller, &counts[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_uint_eq(counts[i], N_CALLS);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sched");
    TCase *t = tcase_create("sched");

    tcase_add_loop_test(t, a_seed_gives_the_same_order_each_time, 0, 10);
    tcase_add_test(t, seeds_differ);
    tcase_add_test(t, seed_0_keeps_the_order_of_queueing);
    tcase_add_loop_test(t, a_stream_can_be_left_behind_at_any_distance, 0, 4);
    tcase_add_loop_test(t, blocks_come_in_few_steps_and_none_is_lost, 0, 20);
    tcase_add_test(t, some_seeds_let_the_device_work_at_once_and_some_never);
    tcase_add_test(t, threads_all_get_through_while_one_is_away);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
