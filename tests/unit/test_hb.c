/* SPDX-License-Identifier: Apache-2.0 */
/* The happens-before checker alone: each kind it knows is reported, and the ordered twin is not. */
#include <stdio.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tools/simcuda/hb.h"

#define BYTES 0x10000u
#define AT    0x7000000u /* first address of the memory */
#define ALIAS 0x9000000u /* second one */

static struct hb *hb;
static struct hb_unit *unit;
static struct hb_map *map;
static unsigned a, b;
static unsigned n_told;

static void told(void *arg, const struct hb_report *r)
{
    ck_assert_ptr_eq(arg, &n_told);
    ck_assert(strlen(r->text) > 0);
    n_told++;
}

static void set_up(void)
{
    n_told = 0;
    hb = hb_create(8, told, &n_told);
    a = hb_actor_create(hb, "stream 1");
    b = hb_actor_create(hb, "stream 2");
    unit = hb_unit_create(hb, BYTES, "handle 1");
    map = hb_map(hb, unit, 0, BYTES, AT);
}

static void tear_down(void)
{
    if (map != NULL) {
        struct hb_op *all = hb_op_begin(hb, HB_HOST, "teardown", 0);

        hb_unmap(hb, map, "teardown", all);
        hb_op_unref(all);
    }
    hb_unit_destroy(hb, unit);
    hb_destroy(hb);
}

static void use(struct hb_op *op, struct hb_map *m, uint64_t offset, uint64_t bytes,
                enum hb_mode mode)
{
    hb_access(hb, op, m, offset, bytes, mode);
    hb_op_unref(op);
}

static void use_all(unsigned actor, const char *name, enum hb_mode mode)
{
    use(hb_op_begin(hb, actor, name, 0), map, 0, BYTES, mode);
}

static void claim(unsigned actor, const char *name, struct hb_map *m)
{
    struct hb_op *op = hb_op_begin(hb, actor, name, 0);

    hb_op_claims(op);
    use(op, m, 0, BYTES, HB_WRITE);
}

/* Orders `to` after all of `from` through an event. */
static void event(unsigned from, unsigned to)
{
    struct hb_op *record = hb_op_mark(hb, from, "record", 0);

    hb_join_op(hb, to, record);
    hb_op_unref(record);
}

static void expect_one(enum hb_kind kind, const char *first, const char *second)
{
    ck_assert_uint_eq(hb_n_reports(hb), 1);
    ck_assert_uint_eq(n_told, 1);
    const struct hb_report *r = hb_report_at(hb, 0);

    ck_assert_str_eq(hb_kind_name(r->kind), hb_kind_name(kind));
    ck_assert_str_eq(r->first, first);
    ck_assert_str_eq(r->second, second);
}

static const struct {
    enum hb_mode first, second;
    int kind; /* -1: no conflict */
} pairs[] = {
    {HB_READ, HB_READ, -1},
    {HB_ATOMIC, HB_ATOMIC, -1},
    {HB_WRITE, HB_WRITE, HB_WRITE_WRITE},
    {HB_READ, HB_WRITE, HB_READ_WRITE},
    {HB_WRITE, HB_READ, HB_WRITE_READ},
    {HB_ATOMIC, HB_READ, HB_WRITE_READ},
    {HB_READ, HB_ATOMIC, HB_READ_WRITE},
    {HB_ATOMIC, HB_WRITE, HB_WRITE_WRITE},
    {HB_WRITE, HB_ATOMIC, HB_WRITE_WRITE},
    {HB_READ, HB_DEATH, HB_READ_WRITE},
    {HB_WRITE, HB_DEATH, HB_WRITE_WRITE},
    {HB_DEATH, HB_READ, HB_WRITE_READ},
    {HB_WRITE, HB_BIRTH, -1},
    {HB_BIRTH, HB_READ, HB_WRITE_READ},
};
#define N_PAIRS ((int)(sizeof(pairs) / sizeof(pairs[0])))

START_TEST(an_unordered_pair_is_reported)
{
    use_all(a, "one", pairs[_i].first);
    use_all(b, "two", pairs[_i].second);
    if (pairs[_i].kind < 0) {
        ck_assert_uint_eq(hb_n_reports(hb), 0);
    } else {
        expect_one((enum hb_kind)pairs[_i].kind, "one", "two");
    }
}
END_TEST

START_TEST(an_event_orders_the_pair)
{
    use_all(a, "one", pairs[_i].first);
    event(a, b);
    use_all(b, "two", pairs[_i].second);
    ck_assert_uint_eq(hb_n_reports(hb), 0);
}
END_TEST

START_TEST(one_stream_is_ordered)
{
    use_all(a, "one", pairs[_i].first);
    use_all(a, "two", pairs[_i].second);
    ck_assert_uint_eq(hb_n_reports(hb), 0);
}
END_TEST

START_TEST(an_event_recorded_too_early_orders_nothing)
{
    event(a, b);
    use_all(a, "one", HB_WRITE);
    use_all(b, "two", HB_READ);
    expect_one(HB_WRITE_READ, "one", "two");
}
END_TEST

START_TEST(order_goes_through_a_third_stream_and_through_the_host)
{
    const unsigned c = hb_actor_create(hb, "stream 3");

    use_all(a, "one", HB_WRITE);
    event(a, c);
    event(c, b);
    use_all(b, "two", HB_WRITE);
    hb_join(hb, HB_HOST, b);
    use_all(c, "three", HB_WRITE);
    ck_assert_uint_eq(hb_n_reports(hb), 0);
}
END_TEST

START_TEST(the_host_orders_only_what_is_queued_after_it_waited)
{
    struct hb_op *early = hb_op_begin(hb, b, "early", 0);

    use_all(a, "one", HB_WRITE);
    hb_join(hb, HB_HOST, a);
    use_all(b, "late", HB_READ);
    ck_assert_uint_eq(hb_n_reports(hb), 0);
    use(early, map, 0, 16, HB_READ);
    expect_one(HB_WRITE_READ, "one", "early");
}
END_TEST

START_TEST(ranges_are_exact_to_the_byte)
{
    use(hb_op_begin(hb, a, "left", 0), map, 100, 100, HB_WRITE);
    use(hb_op_begin(hb, b, "right", 0), map, 200, 100, HB_WRITE);
    use(hb_op_begin(hb, b, "far left", 0), map, 0, 100, HB_WRITE);
    ck_assert_uint_eq(hb_n_reports(hb), 0);
    use(hb_op_begin(hb, b, "overlap", 0), map, 199, 1, HB_READ);
    expect_one(HB_WRITE_READ, "left", "overlap");
}
END_TEST

/* A model of 64 bytes, each with its last writer and readers, against random ranges. */
START_TEST(random_ranges_agree_with_a_model_of_single_bytes)
{
    enum { N = 64 };
    struct hb_op *write[N] = {NULL}, *reads[N][2] = {{NULL}}, *ops[400];
    uint64_t x = 88172645463325252u + (uint64_t)_i, expected = 0, before = 0;

    for (unsigned n = 0; n < 400; n++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        const unsigned actor = x & 1 ? a : b, start = (unsigned)(x >> 8) % N;
        const unsigned end = start + 1 + (unsigned)(x >> 20) % (N - start);
        const bool writes = (x >> 40 & 3) == 0;

        if ((x >> 50 & 3) == 0) {
            event(actor == a ? b : a, actor);
        }
        ops[n] = hb_op_begin(hb, actor, "op", n);
        bool conflict = false;

        for (unsigned i = start; i < end; i++) {
            conflict |= write[i] != NULL && !hb_op_ordered(write[i], ops[n]);
            for (unsigned r = 0; r < 2 && writes; r++) {
                conflict |= reads[i][r] != NULL && !hb_op_ordered(reads[i][r], ops[n]);
            }
            if (writes) {
                write[i] = ops[n];
                reads[i][0] = reads[i][1] = NULL;
            } else {
                reads[i][actor == a ? 0 : 1] = ops[n];
            }
        }
        hb_access(hb, ops[n], map, start, end - start, writes ? HB_WRITE : HB_READ);
        const uint64_t now = hb_n_seen(hb, HB_WRITE_WRITE) + hb_n_seen(hb, HB_READ_WRITE) +
                             hb_n_seen(hb, HB_WRITE_READ);

        expected += conflict;
        ck_assert_msg((now > before) == conflict, "operation %u of seed %d", n, _i);
        before = now;
    }
    ck_assert_uint_gt(expected, 0);
    for (unsigned n = 0; n < 400; n++) {
        hb_op_unref(ops[n]);
    }
}
END_TEST

START_TEST(a_second_address_owns_nothing_until_it_is_filled)
{
    struct hb_map *alias = hb_map(hb, unit, 0, BYTES, ALIAS);

    use_all(a, "job writes", HB_WRITE);
    use(hb_op_begin(hb, a, "reads early", 0), alias, 0, 16, HB_READ);
    expect_one(HB_NEVER_OWNED, "job writes", "reads early");
    claim(a, "fill", alias);
    use(hb_op_begin(hb, a, "reads", 0), alias, 0, 16, HB_READ);
    ck_assert_uint_eq(hb_n_reports(hb), 1);
    hb_join(hb, HB_HOST, a);
    hb_unmap(hb, alias, "unmap", NULL);
}
END_TEST

START_TEST(a_claim_of_a_part_claims_the_granule)
{
    struct hb_map *alias = hb_map(hb, unit, 0, BYTES, ALIAS);

    hb_set_granule(hb, 4096);
    struct hb_op *fill = hb_op_begin(hb, a, "fill", 0);

    hb_op_claims(fill);
    use(fill, alias, 4096, 100, HB_WRITE);
    use(hb_op_begin(hb, a, "reads the page", 0), alias, 4096, 4096, HB_READ);
    ck_assert_uint_eq(hb_n_reports(hb), 0);
    use(hb_op_begin(hb, a, "reads on", 0), alias, 8192, 1, HB_READ);
    expect_one(HB_OWNER_CHANGED, "", "reads on");
    hb_join(hb, HB_HOST, a);
    hb_unmap(hb, alias, "unmap", NULL);
}
END_TEST

START_TEST(an_actor_knows_what_it_is_ordered_after)
{
    struct hb_op *op = hb_op_begin(hb, a, "one", 0);

    ck_assert(!hb_known(hb, HB_HOST, op));
    ck_assert(hb_known(hb, a, op));
    event(a, b);
    ck_assert(hb_known(hb, b, op));
    hb_join(hb, HB_HOST, b);
    ck_assert(hb_known(hb, HB_HOST, op));
    hb_op_unref(op);
}
END_TEST

START_TEST(the_old_address_loses_its_memory_when_another_is_filled)
{
    struct hb_map *alias = hb_map(hb, unit, 0, BYTES, ALIAS);

    use_all(a, "job writes", HB_WRITE);
    claim(a, "ps_restore", alias);
    use_all(a, "stale read", HB_READ);
    expect_one(HB_OWNER_CHANGED, "ps_restore", "stale read");
    hb_join(hb, HB_HOST, a);
    hb_unmap(hb, alias, "unmap", NULL);
}
END_TEST

START_TEST(memory_mapped_after_its_owner_went_belongs_to_the_new_address)
{
    use_all(a, "job writes", HB_WRITE);
    hb_join(hb, HB_HOST, a);
    hb_unmap(hb, map, "unmap", NULL);
    map = hb_map(hb, unit, 0, BYTES, ALIAS);
    use_all(a, "reads", HB_READ);
    ck_assert_uint_eq(hb_n_reports(hb), 0);
}
END_TEST

START_TEST(an_alias_left_over_does_not_inherit)
{
    struct hb_map *alias = hb_map(hb, unit, 0, BYTES, ALIAS);

    hb_unmap(hb, map, "unmap", NULL);
    map = alias;
    use_all(a, "reads", HB_READ);
    expect_one(HB_NEVER_OWNED, "", "reads");
}
END_TEST

START_TEST(unmapping_needs_the_host_to_know_that_users_are_done)
{
    use_all(a, "ps_stash", HB_READ);
    if (_i == 1) {
        hb_join(hb, HB_HOST, a);
    }
    hb_unmap(hb, map, "cuMemUnmap", NULL);
    map = NULL;
    if (_i == 1) {
        ck_assert_uint_eq(hb_n_reports(hb), 0);
    } else {
        expect_one(HB_IN_FLIGHT, "ps_stash", "cuMemUnmap");
    }
}
END_TEST

START_TEST(a_stream_ordered_free_needs_an_edge_from_each_user)
{
    use_all(a, "kernel", HB_READ);
    if (_i == 1) {
        event(a, b);
    }
    struct hb_op *free_op = hb_op_begin(hb, b, "cuMemFreeAsync", 0);

    hb_unmap(hb, map, "", free_op);
    hb_op_unref(free_op);
    map = NULL;
    if (_i == 1) {
        ck_assert_uint_eq(hb_n_reports(hb), 0);
    } else {
        expect_one(HB_IN_FLIGHT, "kernel", "cuMemFreeAsync");
    }
}
END_TEST

START_TEST(one_operation_must_not_use_two_addresses)
{
    struct hb_map *alias = hb_map(hb, unit, 0, BYTES, ALIAS);
    struct hb_op *op = hb_op_begin(hb, a, "ps_restore", 0);

    hb_op_claims(op);
    hb_access(hb, op, map, 0, 4096, HB_READ);
    use(op, alias, 0, 4096, HB_WRITE);
    expect_one(HB_ALIASES, "ps_restore", "ps_restore");
    hb_join(hb, HB_HOST, a);
    hb_unmap(hb, alias, "unmap", NULL);
}
END_TEST

/* It reads again what it has read, and knows by now that the other's read is over: that one is forgotten once. */
START_TEST(an_operation_may_come_after_another_while_it_runs)
{
    struct hb_op *first = hb_op_begin(hb, a, "first", 0);
    struct hb_op *second = hb_op_begin(hb, b, "second", 0);

    hb_access(hb, first, map, 0, BYTES, HB_READ);
    hb_access(hb, second, map, 0, BYTES, HB_READ);
    hb_op_after(second, first);
    hb_access(hb, second, map, 0, BYTES, HB_READ);
    hb_access(hb, second, map, 0, BYTES / 2, HB_READ);
    hb_access(hb, second, map, 0, BYTES, HB_WRITE);
    hb_op_unref(second);
    ck_assert_uint_eq(hb_n_reports(hb), 0);
    hb_access(hb, first, map, 0, BYTES, HB_READ);
    expect_one(HB_WRITE_READ, "second", "first");
    hb_op_unref(first);
}
END_TEST

START_TEST(repetitions_are_counted_and_reports_are_capped)
{
    for (unsigned i = 0; i < 3; i++) {
        use(hb_op_begin(hb, a, "one", i), map, 0, 16, HB_WRITE);
        use(hb_op_begin(hb, b, "two", i), map, 0, 16, HB_WRITE);
    }
    ck_assert_uint_eq(hb_n_reports(hb), 2); /* one/two and two/one */
    ck_assert_uint_eq(hb_report_at(hb, 0)->count, 3);
    ck_assert_uint_eq(hb_n_seen(hb, HB_WRITE_WRITE), 5);
    for (unsigned i = 0; i < 20; i++) {
        char name[16];

        snprintf(name, sizeof(name), "fault %u", i);
        struct hb_op *op = hb_op_begin(hb, a, name, i);

        hb_fault(hb, op, 0x1234, true);
        hb_op_unref(op);
    }
    ck_assert_uint_eq(hb_n_reports(hb), 8);
    ck_assert_uint_eq(hb_n_seen(hb, HB_FAULT), 20);
    ck_assert_ptr_null(hb_report_at(hb, 8));
}
END_TEST

START_TEST(a_report_says_what_where_and_which_edge)
{
    hb_note_empty_wait(hb, b, "event 7");
    use(hb_op_begin(hb, a, "ps_stash", 17), map, 0x2000, 0x1000, HB_READ);
    use(hb_op_begin(hb, b, "cuMemsetD32Async", 21), map, 0, BYTES, HB_WRITE);
    expect_one(HB_READ_WRITE, "ps_stash", "cuMemsetD32Async");
    ck_assert_str_eq(
        hb_report_at(hb, 0)->text,
        "write not ordered after a read\n"
        "  first: 'ps_stash' on stream 1 (its operation 1, number 17) read it at 0x7002000\n"
        "  then: 'cuMemsetD32Async' on stream 2 (its operation 1, number 21) writes it at"
        " 0x7002000\n"
        "  memory: handle 1, bytes 0x2000 to 0x3000\n"
        "  missing: an edge from stream 1, operation 1 or later, to stream 2 before its"
        " operation 1; it is ordered only after stream 1's first 0\n"
        "  note: stream 2 waited for event 7, which had never been recorded: no edge\n");
}
END_TEST

START_TEST(reading_unwritten_memory_is_told_only_on_request)
{
    use_all(a, "quiet", HB_READ);
    ck_assert_uint_eq(hb_n_reports(hb), 0);
    hb_warn_unwritten(hb, true);
    use_all(a, "loud", HB_READ);
    expect_one(HB_UNWRITTEN, "", "loud");
}
END_TEST

START_TEST(a_place_of_an_ended_stream_is_reused_only_when_the_host_knows_its_end)
{
    use_all(a, "one", HB_WRITE);
    hb_actor_end(hb, a);
    const unsigned c = hb_actor_create(hb, "stream 3");

    ck_assert_uint_ne(c, a);
    use_all(c, "two", HB_WRITE);
    expect_one(HB_WRITE_WRITE, "one", "two");
    hb_join(hb, HB_HOST, a);
    ck_assert_uint_eq(hb_actor_create(hb, "stream 4"), a);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hb");
    TCase *t = tcase_create("hb");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_loop_test(t, an_unordered_pair_is_reported, 0, N_PAIRS);
    tcase_add_loop_test(t, an_event_orders_the_pair, 0, N_PAIRS);
    tcase_add_loop_test(t, one_stream_is_ordered, 0, N_PAIRS);
    tcase_add_test(t, an_event_recorded_too_early_orders_nothing);
    tcase_add_test(t, order_goes_through_a_third_stream_and_through_the_host);
    tcase_add_test(t, the_host_orders_only_what_is_queued_after_it_waited);
    tcase_add_test(t, ranges_are_exact_to_the_byte);
    tcase_add_loop_test(t, random_ranges_agree_with_a_model_of_single_bytes, 0, 20);
    tcase_add_test(t, a_second_address_owns_nothing_until_it_is_filled);
    tcase_add_test(t, a_claim_of_a_part_claims_the_granule);
    tcase_add_test(t, an_actor_knows_what_it_is_ordered_after);
    tcase_add_test(t, the_old_address_loses_its_memory_when_another_is_filled);
    tcase_add_test(t, memory_mapped_after_its_owner_went_belongs_to_the_new_address);
    tcase_add_test(t, an_alias_left_over_does_not_inherit);
    tcase_add_loop_test(t, unmapping_needs_the_host_to_know_that_users_are_done, 0, 2);
    tcase_add_loop_test(t, a_stream_ordered_free_needs_an_edge_from_each_user, 0, 2);
    tcase_add_test(t, one_operation_must_not_use_two_addresses);
    tcase_add_test(t, an_operation_may_come_after_another_while_it_runs);
    tcase_add_test(t, repetitions_are_counted_and_reports_are_capped);
    tcase_add_test(t, a_report_says_what_where_and_which_edge);
    tcase_add_test(t, reading_unwritten_memory_is_told_only_on_request);
    tcase_add_test(t, a_place_of_an_ended_stream_is_reused_only_when_the_host_knows_its_end);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
