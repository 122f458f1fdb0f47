/* SPDX-License-Identifier: Apache-2.0 */
/* Page accounting: what is certain of the device's part and of the host's, whatever the stashes turn out to store. */
#include <string.h>

#include "policy/budget.h"
#include "tests/support/check_main.h"

#define N_LAUNCHES 12
#define N_COPIES   4

static uint64_t rng_state = 1;

static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

static struct ps_pages pages(uint64_t device, uint64_t host)
{
    return (struct ps_pages){device, host};
}

static void expect_free(const struct ps_budget *b, uint64_t device, uint64_t host)
{
    ck_assert_uint_eq(ps_budget_free(b).device, device);
    ck_assert_uint_eq(ps_budget_free(b).host, host);
    ck_assert_uint_eq(ps_budget_available(b), device + host);
    ck_assert(ps_budget_check(b));
}

START_TEST(a_stash_counts_with_its_worst_case_until_it_is_seen)
{
    struct ps_budget b = {.capacity = {100, 0}};
    struct ps_pages first = pages(0, 0);
    struct ps_pages second = pages(0, 0);

    ck_assert(ps_budget_reserve(&b, 60, &first));
    ck_assert(!ps_budget_reserve(&b, 41, &second));
    ck_assert_uint_eq(second.device, 0);
    ck_assert(ps_budget_reserve(&b, 40, &second));
    ps_budget_settle(&b, first, pages(10, 0));
    expect_free(&b, 50, 0);
    ps_budget_drop(&b, pages(10, 0));
    expect_free(&b, 50, 0);
    ck_assert_uint_eq(ps_budget_returning(&b), 10);
    ps_budget_dropped(&b, pages(10, 0));
    expect_free(&b, 60, 0);
    ps_budget_cancel(&b, second);
    ck_assert(ps_budget_idle(&b));
    ps_budget_grow(&b, pages(5, 7));
    expect_free(&b, 105, 7);
}
END_TEST

START_TEST(the_host_covers_what_the_device_does_not)
{
    struct ps_budget b = {.capacity = {10, 20}};
    struct ps_pages all[3];
    struct ps_pages none;

    ck_assert(ps_budget_reserve(&b, 8, &all[0]));
    ck_assert(ps_budget_reserve(&b, 8, &all[1]));
    ck_assert(ps_budget_reserve(&b, 14, &all[2]));
    ck_assert(!ps_budget_reserve(&b, 1, &none));
    ck_assert_uint_eq(all[0].device, 8);
    ck_assert_uint_eq(all[0].host, 0);
    ck_assert_uint_eq(all[1].device, 2);
    ck_assert_uint_eq(all[1].host, 6);
    ck_assert_uint_eq(all[2].device, 0);
    ck_assert_uint_eq(all[2].host, 14);
    expect_free(&b, 0, 0);
    /* One launch of all three: the last one came first and took the device's. */
    ps_budget_settle(&b, all[0], pages(0, 8));
    ps_budget_settle(&b, all[1], pages(0, 3));
    ps_budget_settle(&b, all[2], pages(10, 2));
    expect_free(&b, 0, 7);
    ps_budget_drop(&b, pages(10, 2));
    ck_assert_uint_eq(ps_budget_returning(&b), 12);
    expect_free(&b, 0, 7);
    ps_budget_dropped(&b, pages(10, 2));
    expect_free(&b, 10, 9);
}
END_TEST

START_TEST(a_stash_that_failed_leaves_no_more_than_nothing)
{
    struct ps_budget b = {.capacity = {4, 4}};
    struct ps_pages first;
    struct ps_pages second;

    ck_assert(ps_budget_reserve(&b, 4, &first));
    ck_assert(ps_budget_reserve(&b, 4, &second));
    ps_budget_settle(&b, first, pages(0, 4));
    ps_budget_settle(&b, second, second); /* not known: its worst case */
    ck_assert_uint_eq(ps_budget_available(&b), 4);
    ck_assert(!ps_budget_reserve(&b, 5, &first));
}
END_TEST

/* A launch of some copies that share what was reserved. */
struct launch {
    int phase; /* 0 none, 1 in flight, 2 held, 3 returning */
    struct ps_pages reserved[N_COPIES], stored[N_COPIES];
};

static struct ps_pages sum(const struct ps_pages p[N_COPIES])
{
    struct ps_pages n = {0, 0};

    for (int i = 0; i < N_COPIES; i++) {
        n.device += p[i].device;
        n.host += p[i].host;
    }
    return n;
}

static void start(struct ps_budget *b, struct launch *l)
{
    memset(l, 0, sizeof(*l));
    for (int i = 0; i < N_COPIES; i++) {
        if (!ps_budget_reserve(b, rng() % 60, &l->reserved[i])) {
            l->reserved[i] = pages(0, 0);
        }
    }
    l->phase = 1;
}

/* Any part of each copy is stored, in any order of pages: the first take the device's. */
static void settle(struct ps_budget *b, struct launch *l)
{
    uint64_t device = sum(l->reserved).device;
    const int first = (int)(rng() % N_COPIES);

    for (int k = 0; k < N_COPIES; k++) {
        const int i = (first + k) % N_COPIES;
        const uint64_t most = l->reserved[i].device + l->reserved[i].host;
        const uint64_t stored = rng() % (most + 1);
        const uint64_t here = stored < device ? stored : device;

        device -= here;
        l->stored[i] = pages(here, stored - here);
    }
    for (int i = 0; i < N_COPIES; i++) {
        ps_budget_settle(b, l->reserved[i], l->stored[i]);
    }
    l->phase = 2;
}

static void advance(struct ps_budget *b, struct launch *l)
{
    switch (l->phase) {
    case 0:
        start(b, l);
        break;
    case 1:
        settle(b, l);
        break;
    default:
        for (int i = 0; i < N_COPIES; i++) {
            if (l->phase == 2) {
                ps_budget_drop(b, l->stored[i]);
            } else {
                ps_budget_dropped(b, l->stored[i]);
            }
        }
        l->phase = (l->phase + 1) % 4;
    }
}

START_TEST(pages_are_never_promised_twice)
{
    struct ps_budget b = {.capacity = {1000, 700}};
    struct launch launches[N_LAUNCHES] = {0};
    unsigned n_bad = 0;
    unsigned n_full = 0;

    for (int round = 0; round < 100000; round++) {
        advance(&b, &launches[rng() % N_LAUNCHES]);
        struct ps_pages taken = {0, 0};

        for (int j = 0; j < N_LAUNCHES; j++) {
            const struct launch *l = &launches[j];
            const struct ps_pages n = sum(l->phase == 1 ? l->reserved : l->stored);

            taken.device += l->phase == 0 ? 0 : n.device;
            taken.host += l->phase == 0 ? 0 : n.host;
        }
        n_full += taken.device == 1000;
        n_bad += taken.device > 1000 || taken.host > 700 || !ps_budget_check(&b) ||
                 ps_budget_free(&b).device != 1000 - taken.device ||
                 ps_budget_free(&b).host != 700 - taken.host;
    }
    ck_assert_uint_eq(n_bad, 0);
    ck_assert_uint_gt(n_full, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("budget");
    TCase *t = tcase_create("pages");

    tcase_add_test(t, a_stash_counts_with_its_worst_case_until_it_is_seen);
    tcase_add_test(t, the_host_covers_what_the_device_does_not);
    tcase_add_test(t, a_stash_that_failed_leaves_no_more_than_nothing);
    tcase_add_test(t, pages_are_never_promised_twice);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
