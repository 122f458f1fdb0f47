/* SPDX-License-Identifier: Apache-2.0 */
/* Page accounting: what was reserved finds its pages, whatever the stashes store, and whatever of it is seen when. */
#include <string.h>

#include "policy/budget.h"
#include "tests/support/check_main.h"

static uint64_t rng_state = 1;

static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

static void expect_available(const struct ps_budget *b, uint64_t n)
{
    ck_assert_uint_eq(ps_budget_available(b), n);
    ck_assert(ps_budget_check(b));
}

START_TEST(a_stash_counts_with_its_worst_case_until_it_is_seen)
{
    struct ps_budget b = {.capacity = {100, 0}};

    ck_assert(ps_budget_reserve(&b, 60));
    ck_assert(!ps_budget_reserve(&b, 41));
    expect_available(&b, 40);
    ck_assert(ps_budget_reserve(&b, 40));
    ps_budget_settle(&b, 60, 10);
    expect_available(&b, 50);
    ps_budget_drop(&b, 10);
    expect_available(&b, 50);
    ck_assert(!ps_budget_holds(&b, 0));
    ck_assert(!ps_budget_holds(&b, 10));
    ck_assert_uint_eq(ps_budget_returning(&b), 10);
    ck_assert(!ps_budget_idle(&b));
    ps_budget_dropped(&b, 10);
    expect_available(&b, 60);
    ck_assert(!ps_budget_holds(&b, 0));
    ps_budget_cancel(&b, 40);
    ck_assert(ps_budget_idle(&b));
    ck_assert(ps_budget_holds(&b, 0));
    ps_budget_grow(&b, (struct ps_pages){5, 7});
    expect_available(&b, 112);
}
END_TEST

START_TEST(the_host_covers_what_the_device_does_not)
{
    struct ps_budget b = {.capacity = {10, 20}};

    ck_assert(ps_budget_reserve(&b, 8));
    ck_assert(ps_budget_reserve(&b, 22));
    ck_assert(!ps_budget_reserve(&b, 1));
    ck_assert(ps_budget_reserve(&b, 0));
    expect_available(&b, 0);
    ps_budget_settle(&b, 8, 8);
    ps_budget_settle(&b, 22, 15);
    expect_available(&b, 7);
    ps_budget_drop(&b, 8);
    ck_assert_uint_eq(ps_budget_returning(&b), 8);
    expect_available(&b, 7);
    ps_budget_dropped(&b, 8);
    expect_available(&b, 15);
}
END_TEST

/* ---- the device beside: stashes run one after another, page by page; drops run when they like ---- */

#define N_COPIES 24
#define DEVICE   40u
#define HOST     60u

struct copy {
    enum { NONE, WAITING, STORED, SEEN } stash; /* WAITING: not run, or in part */
    enum { KEPT, ASKED, RAN, BACK } drop;
    uint64_t serial;        /* of the launch */
    uint64_t worst, wanted; /* what it will store at last */
    struct ps_pages has;    /* pages */
    uint64_t back_at;       /* the next launch's serial when the drop was seen */
};

struct world {
    struct ps_budget b;
    struct copy copies[N_COPIES];
    uint64_t next; /* launch */
    uint64_t n_short, n_gifts, n_spilled, n_refused;
};

/* The oldest launch that has not ended, or the next one. */
static uint64_t oldest(const struct world *w)
{
    uint64_t serial = w->next;

    for (int i = 0; i < N_COPIES; i++) {
        const struct copy *c = &w->copies[i];

        serial = c->stash == WAITING && c->serial < serial ? c->serial : serial;
    }
    return serial;
}

struct parts {
    int64_t device, host;
};

/*
 * Free pages: those that the host knew of at the launch, or (all) whatever there is now. The first may be below 0: what
 * came back and was taken again is taken twice in its eyes.
 */
static struct parts free_for(const struct world *w, uint64_t serial, bool all)
{
    struct parts n = {(int64_t)w->b.capacity.device, (int64_t)w->b.capacity.host};

    for (int i = 0; i < N_COPIES; i++) {
        const struct copy *c = &w->copies[i];
        const bool gone = all ? c->drop >= RAN : c->drop == BACK && c->back_at <= serial;

        if (c->stash != NONE && !gone) {
            n.device -= (int64_t)c->has.device;
            n.host -= (int64_t)c->has.host;
        }
    }
    return n;
}

/* The next page of the stash that runs. What came back behind the host's back may be seen, or not. */
static void store_page(struct world *w, struct copy *c)
{
    const struct parts sure = free_for(w, c->serial, false);
    const struct parts now = free_for(w, c->serial, true);

    if (c->has.device + c->has.host == c->wanted) {
        c->stash = STORED;
    } else if (sure.device > 0 || (now.device > 0 && rng() % 2 == 0)) {
        w->n_gifts += sure.device <= 0;
        c->has.device++;
    } else {
        w->n_short += sure.host <= 0;
        w->n_spilled++;
        c->has.host++;
    }
}

static void launch(struct world *w, struct copy *c)
{
    const uint64_t worst = rng() % 50;

    if (c->stash != NONE || !ps_budget_reserve(&w->b, worst)) {
        w->n_refused += c->stash == NONE;
        return;
    }
    *c = (struct copy){.stash = WAITING,
                       .serial = w->next++,
                       .worst = worst,
                       .wanted = rng() % 3 == 0 ? worst : rng() % (worst + 1)};
}

static void advance(struct world *w, struct copy *c)
{
    const uint64_t stored = c->has.device + c->has.host;

    if (c->stash == STORED && rng() % 2 == 0) {
        ps_budget_settle(&w->b, c->worst, stored);
        c->stash = SEEN;
        if (c->drop != KEPT) { /* asked for before the host saw the stash */
            ps_budget_drop(&w->b, stored);
        }
    } else if (c->drop == KEPT && c->stash != NONE) {
        c->drop = ASKED;
        if (c->stash == SEEN) {
            ps_budget_drop(&w->b, stored);
        }
    } else if (c->drop == ASKED && c->stash >= STORED) {
        c->drop = RAN;
    } else if (c->drop == RAN && c->stash == SEEN && rng() % 4 == 0) {
        c->drop = BACK;
        c->back_at = w->next;
        ps_budget_dropped(&w->b, stored);
    } else if (c->drop == BACK && c->back_at <= oldest(w)) {
        c->stash = NONE;
    }
}

START_TEST(whatever_is_seen_there_is_a_page)
{
    struct world w = {.b = {.capacity = {DEVICE, HOST}}};
    unsigned n_bad = 0;

    for (int round = 0; round < 200000; round++) {
        struct copy *c = &w.copies[rng() % N_COPIES];
        const uint64_t running = oldest(&w);

        if (rng() % 4 == 0) {
            launch(&w, c);
        } else if (rng() % 4 == 0) {
            advance(&w, c);
        }
        for (int i = 0; i < N_COPIES; i++) {
            if (w.copies[i].stash == WAITING && w.copies[i].serial == running) {
                store_page(&w, &w.copies[i]);
            }
        }
        n_bad += !ps_budget_check(&w.b);
    }
    ck_assert_uint_eq(n_bad, 0);
    ck_assert_uint_eq(w.n_short, 0);
    ck_assert_uint_gt(w.n_gifts, 1000);
    ck_assert_uint_gt(w.n_spilled, 1000);
    ck_assert_uint_gt(w.n_refused, 1000);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("budget");
    TCase *t = tcase_create("pages");

    tcase_add_test(t, a_stash_counts_with_its_worst_case_until_it_is_seen);
    tcase_add_test(t, the_host_covers_what_the_device_does_not);
    tcase_add_test(t, whatever_is_seen_there_is_a_page);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
