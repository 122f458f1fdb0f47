/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of sets and lanes, one by one; under plans and at random they run in test_plan.c. */
#include <string.h>

#include "policy/lanes.h"
#include "tests/support/check_main.h"

#define NONE PS_LANES_NONE

static struct ps_lanes lanes;
static struct ps_lanes_group groups[8];
static struct ps_lanes_taken taken;
static struct ps_lanes_group *leaving[PS_LANES_MAX];

/* Two lanes, sets 0 1 2 3 of name 5 in lanes 0 1 0 1, set 4 of name 9 without tails. */
static void make(void)
{
    static const uint32_t names[] = {5, 9};

    ck_assert_int_eq(ps_lanes_init(&lanes, 2, names, 2), PS_OK);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(ps_lanes_add(&lanes, 5, i % 2), PS_OK);
    }
    ck_assert_int_eq(ps_lanes_add(&lanes, 9, NONE), PS_OK);
    memset(groups, 0, sizeof(groups));
    for (int i = 0; i < 8; i++) {
        groups[i].stash = true;
    }
}

static void end(void)
{
    ck_assert(ps_lanes_check(&lanes));
    ps_lanes_fini(&lanes);
}

static bool acquire(int g, uint32_t wanted)
{
    return ps_lanes_acquire(&lanes, &groups[g], 5, wanted, &taken);
}

/* Push, first allocation, pop. */
static void forward(int g)
{
    ps_lanes_boundary(&lanes, NULL, leaving);
    ck_assert(acquire(g, NONE));
    ps_lanes_close(&lanes, &groups[g]);
    ck_assert(ps_lanes_check(&lanes));
}

START_TEST(free_lanes_are_taken_first_and_the_lowest_set)
{
    ck_assert(acquire(0, NONE));
    ck_assert_uint_eq(taken.set, 0);
    ck_assert_ptr_null(taken.before);
    ck_assert(acquire(1, NONE));
    ck_assert_uint_eq(taken.set, 1);
    ck_assert_uint_eq(taken.lane, 1);
    /* Both are open: there is no lane. */
    ck_assert(!acquire(2, NONE));
    ck_assert(!groups[2].owns);
    ps_lanes_free(&lanes, &groups[0]);
    ck_assert(acquire(2, NONE));
    ck_assert_uint_eq(taken.set, 0);
}
END_TEST

START_TEST(nobody_leaves_before_a_boundary)
{
    ck_assert(acquire(0, NONE));
    ck_assert(acquire(1, NONE));
    ps_lanes_close(&lanes, &groups[0]);
    ck_assert(!acquire(2, NONE));
    ck_assert_uint_eq(ps_lanes_boundary(&lanes, &groups[0], leaving), 0);
    ck_assert_uint_eq(ps_lanes_boundary(&lanes, NULL, leaving), 1);
    ck_assert_ptr_eq(leaving[0], &groups[0]);
    ck_assert_int_eq(groups[0].place, PS_LANES_LEAVING);
    ck_assert(acquire(2, NONE));
    ck_assert_ptr_eq(taken.before, &groups[0]);
    ck_assert(!taken.now);
    ck_assert_int_eq(groups[0].place, PS_LANES_OUT);
}
END_TEST

START_TEST(its_own_pop_is_a_boundary)
{
    ck_assert(acquire(0, NONE));
    ck_assert(acquire(1, NONE));
    ps_lanes_close(&lanes, &groups[0]);
    ck_assert(ps_lanes_leave(&lanes, &groups[0]));
    ck_assert(!ps_lanes_leave(&lanes, &groups[0]));
    ck_assert(acquire(2, NONE));
    ck_assert_ptr_eq(taken.before, &groups[0]);
    ck_assert(!taken.now);
    /* The unmarked stays until it is in the way. */
    groups[1].stash = false;
    ps_lanes_close(&lanes, &groups[1]);
    ck_assert(!ps_lanes_leave(&lanes, &groups[1]));
    ck_assert(acquire(3, NONE));
    ck_assert_ptr_eq(taken.before, &groups[1]);
    ck_assert(taken.now);
}
END_TEST

START_TEST(who_began_to_leave_first_makes_room_first)
{
    forward(0);
    forward(1);
    forward(2);
    ck_assert_ptr_eq(taken.before, &groups[0]);
    forward(3);
    ck_assert_ptr_eq(taken.before, &groups[1]);
    ps_lanes_boundary(&lanes, NULL, leaving);
    ck_assert(!acquire(4, NONE)); /* lanes there are, but no set */
    ps_lanes_free(&lanes, &groups[1]);
    ck_assert(acquire(4, NONE));
    ck_assert_uint_eq(taken.set, 1);
    ck_assert_ptr_eq(taken.before, &groups[3]);
}
END_TEST

START_TEST(the_unmarked_leave_only_when_in_the_way)
{
    groups[0].stash = groups[1].stash = false;
    forward(0);
    forward(1);
    ck_assert_uint_eq(ps_lanes_boundary(&lanes, NULL, leaving), 0);
    ck_assert(acquire(2, NONE));
    ck_assert_ptr_eq(taken.before, &groups[0]);
    ck_assert(taken.now);
    groups[1].pinned = true;
    ps_lanes_close(&lanes, &groups[2]);
    ps_lanes_boundary(&lanes, NULL, leaving);
    ck_assert(!acquire(3, 3));
    groups[1].pinned = false;
    ck_assert(acquire(3, 3));
    ck_assert_uint_eq(taken.set, 3);
}
END_TEST

START_TEST(what_is_wanted_is_given_if_it_can_be)
{
    ck_assert(acquire(0, 3));
    ck_assert_uint_eq(taken.set, 3);
    ck_assert(acquire(1, 3)); /* not free */
    ck_assert_uint_eq(taken.set, 0);
    ps_lanes_free(&lanes, &groups[0]);
    ck_assert(acquire(0, 4)); /* another name's */
    ck_assert_uint_eq(taken.set, 1);
    ps_lanes_free(&lanes, &groups[0]);
    ck_assert(acquire(0, 2)); /* its lane is taken */
    ck_assert_uint_eq(taken.set, 1);
    ck_assert(!ps_lanes_acquire(&lanes, &groups[3], 6, 0, &taken)); /* no such name */
}
END_TEST

START_TEST(returns_come_back_in_or_apart)
{
    forward(0);
    forward(1);
    forward(2);
    ck_assert_int_eq(groups[1].place, PS_LANES_LEAVING);
    /* Its lane is not taken. */
    ps_lanes_boundary(&lanes, &groups[1], leaving);
    ck_assert_int_eq(ps_lanes_return(&lanes, &groups[1], &taken), PS_LANES_CAME_BACK);
    ck_assert_int_eq(ps_lanes_return(&lanes, &groups[1], &taken), PS_LANES_WAS_IN);
    /* Group 2 began to leave at that return, so group 0 can have its lane. */
    ck_assert_int_eq(groups[2].place, PS_LANES_LEAVING);
    ps_lanes_boundary(&lanes, &groups[0], leaving);
    ck_assert_int_eq(ps_lanes_return(&lanes, &groups[0], &taken), PS_LANES_CAME_IN);
    ck_assert_ptr_eq(taken.before, &groups[2]);
    ck_assert_uint_eq(taken.lane, 0);
    /* And now it is taken, until group 0 is freed. */
    ck_assert_int_eq(ps_lanes_return(&lanes, &groups[2], &taken), PS_LANES_CAME_APART);
    ck_assert_int_eq(groups[2].place, PS_LANES_SPARE);
    ck_assert_ptr_null(ps_lanes_free(&lanes, &groups[2]));
    ck_assert_ptr_eq(lanes.holder[0], &groups[0]);
}
END_TEST

START_TEST(the_next_waits_for_its_lane)
{
    forward(0);
    forward(1);
    forward(2);
    ck_assert_int_eq(ps_lanes_return(&lanes, &groups[2], &taken), PS_LANES_WAS_IN);
    ck_assert(!ps_lanes_ahead(&lanes, &groups[1], &taken)); /* is in, leaving */
    ck_assert(!ps_lanes_ahead(&lanes, NULL, &taken));
    ck_assert(!ps_lanes_ahead(&lanes, &groups[0], &taken)); /* waits for group 2 */
    ck_assert(ps_lanes_check(&lanes));
    ck_assert_ptr_eq(ps_lanes_free(&lanes, &groups[2]), &groups[0]);
    ck_assert_int_eq(groups[0].place, PS_LANES_IN);
    ck_assert(groups[0].ahead);
    /* It came for its return: a push does not send it away again. */
    ck_assert_uint_eq(ps_lanes_boundary(&lanes, NULL, leaving), 0);
    ck_assert_int_eq(ps_lanes_return(&lanes, &groups[0], &taken), PS_LANES_WAS_IN);
}
END_TEST

START_TEST(who_waits_may_die_or_return_first)
{
    forward(0);
    forward(1);
    forward(2);
    forward(3);
    ps_lanes_return(&lanes, &groups[2], &taken);
    ck_assert(!ps_lanes_ahead(&lanes, &groups[0], &taken));
    ck_assert_ptr_null(ps_lanes_free(&lanes, &groups[0]));
    ck_assert_ptr_null(ps_lanes_free(&lanes, &groups[2]));
    ps_lanes_return(&lanes, &groups[3], &taken);
    ck_assert(!ps_lanes_ahead(&lanes, &groups[1], &taken));
    ck_assert_int_eq(ps_lanes_return(&lanes, &groups[1], &taken), PS_LANES_CAME_APART);
    ck_assert_ptr_null(ps_lanes_free(&lanes, &groups[3]));
}
END_TEST

START_TEST(a_stash_that_cannot_begin_stays)
{
    forward(0);
    ck_assert_uint_eq(ps_lanes_boundary(&lanes, NULL, leaving), 1);
    ps_lanes_stay(&lanes, &groups[0]);
    ck_assert_int_eq(groups[0].place, PS_LANES_IN);
    ck_assert_uint_eq(ps_lanes_boundary(&lanes, NULL, leaving), 1);
}
END_TEST

START_TEST(sets_without_tails_are_in_nobodys_way)
{
    ck_assert(ps_lanes_acquire(&lanes, &groups[0], 9, NONE, &taken));
    ck_assert_uint_eq(taken.set, 4);
    ck_assert_uint_eq(taken.lane, NONE);
    ck_assert(!ps_lanes_acquire(&lanes, &groups[1], 9, NONE, &taken));
    ps_lanes_close(&lanes, &groups[0]);
    ck_assert_uint_eq(ps_lanes_boundary(&lanes, NULL, leaving), 0);
    ck_assert_int_eq(ps_lanes_return(&lanes, &groups[0], &taken), PS_LANES_CAME_NOT);
    ck_assert_int_eq(ps_lanes_return(&lanes, &groups[7], &taken), PS_LANES_CAME_NOT);
    ps_lanes_free(&lanes, &groups[0]);
    ck_assert(ps_lanes_acquire(&lanes, &groups[1], 9, 4, &taken));
}
END_TEST

/* However they were taken, wanted or not, the free ones come lowest first. */
START_TEST(free_sets_come_lowest_first)
{
    static struct ps_lanes_group many[200];
    uint32_t random = 1;

    for (uint32_t i = 5; i < 200; i++) {
        ck_assert_int_eq(ps_lanes_add(&lanes, 9, NONE), PS_OK);
    }
    memset(many, 0, sizeof(many));
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t lowest = 4;

        random = random * 1664525 + 1013904223;
        struct ps_lanes_group *g = &many[random >> 8 & 127];

        if (g->owns) {
            ps_lanes_free(&lanes, g);
            continue;
        }
        while (lanes.sets[lowest].owner != NULL) {
            lowest++;
        }
        const uint32_t wanted = (random & 64) != 0 ? NONE : 4 + (random >> 16) % 190;
        const bool given = wanted != NONE && lanes.sets[wanted].owner == NULL;

        ck_assert(ps_lanes_acquire(&lanes, g, 9, wanted, &taken));
        ck_assert_uint_eq(taken.set, given ? wanted : lowest);
    }
}
END_TEST

static Suite *make_suite(void)
{
    Suite *s = suite_create("lanes");
    TCase *t = tcase_create("rules");

    tcase_add_checked_fixture(t, make, end);
    tcase_add_test(t, free_lanes_are_taken_first_and_the_lowest_set);
    tcase_add_test(t, nobody_leaves_before_a_boundary);
    tcase_add_test(t, its_own_pop_is_a_boundary);
    tcase_add_test(t, who_began_to_leave_first_makes_room_first);
    tcase_add_test(t, the_unmarked_leave_only_when_in_the_way);
    tcase_add_test(t, what_is_wanted_is_given_if_it_can_be);
    tcase_add_test(t, returns_come_back_in_or_apart);
    tcase_add_test(t, the_next_waits_for_its_lane);
    tcase_add_test(t, who_waits_may_die_or_return_first);
    tcase_add_test(t, a_stash_that_cannot_begin_stays);
    tcase_add_test(t, sets_without_tails_are_in_nobodys_way);
    tcase_add_test(t, free_sets_come_lowest_first);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return ps_check_main(make_suite());
}
