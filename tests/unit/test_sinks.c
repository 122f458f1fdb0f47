/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which groups go to the host by copies: all, some or none, as memory and times allow; by way of stages that are no
 * larger than need be. What the numbers come to is computed here once more, on steps of real jobs and on any steps.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/sinks.h"
#include "policy/spill.h"
#include "tests/support/check_main.h"
#include "tests/support/steps.h"

#define NONE      PS_PLAN_NONE
#define PAGE      (STEPS_MIB / 4)
#define PLENTY    (UINT64_C(1) << 50)
#define OVER      32 /* such a part of all pages may be more than a stage holds */
#define N_GROUPS  12
#define STEPS_MAX 2

/* A plan, and the tails that leave their lanes in each of its steps. */
struct scene {
    struct made_step made[STEPS_MAX];
    struct ps_plan_step steps[STEPS_MAX];
    struct ps_plan plan;
    struct ps_spill_item *items[STEPS_MAX];
    uint32_t n_items[STEPS_MAX];
    uint32_t n_steps;
};

/* Everything that is out moves: tails are whole tensors. */
static const struct ps_plan_settings no_homes = {
    .granularity = 2 * STEPS_MIB, .page_bytes = PAGE, .moved_percent = 100, .pool_percent = 10};
static const struct ps_plan_settings with_homes = {
    .granularity = 2 * STEPS_MIB, .page_bytes = PAGE, .moved_percent = 10, .pool_percent = 10};

/* The job's times: from one event to the next a part of a millisecond. */
static void give_times(struct made_step *made)
{
    for (uint32_t e = 0; e < made->step.n_events; e++) {
        made->events[e].time_ns = UINT64_C(100000) * (e + 1);
    }
}

static void plan_scene(struct scene *s, const struct ps_plan_settings *settings)
{
    for (uint32_t k = 0; k < s->n_steps; k++) {
        s->steps[k] = s->made[k].step;
    }
    ck_assert_int_eq(ps_plan_make(s->steps, s->n_steps, settings, &s->plan), PS_OK);
    for (uint32_t k = 0; k < s->n_steps; k++) {
        s->items[k] = calloc(s->steps[k].n_tensors + 1u, sizeof(*s->items[k]));
        ck_assert_ptr_nonnull(s->items[k]);
        ck_assert_int_eq(
            ps_spill_items(&s->plan, &s->steps[k], k, PAGE, s->items[k], &s->n_items[k]), PS_OK);
    }
}

static void make_layers(struct scene *s, uint64_t seed)
{
    const struct steps_shape shape = {.schedule = STEPS_SEQUENTIAL,
                                      .stages = 1,
                                      .virtual_stages = 1,
                                      .microbatches = 1,
                                      .layers = N_GROUPS,
                                      .capacity_percent = 200,
                                      .spread_percent = 15,
                                      .row_bytes = 256 * STEPS_MIB,
                                      .other_bytes = 1000 * STEPS_MIB,
                                      .temporaries = true,
                                      .seed = seed};

    *s = (struct scene){.n_steps = 1};
    steps_make(&shape, &s->made[0]);
    give_times(&s->made[0]);
}

static void free_scene(struct scene *s)
{
    for (uint32_t k = 0; k < s->n_steps; k++) {
        free(s->items[k]);
        steps_free(&s->made[k]);
    }
    ps_plan_fini(&s->plan);
}

static struct ps_sinks_settings settings_of(uint64_t device_bytes)
{
    return (struct ps_sinks_settings){.page_bytes = PAGE,
                                      .device_bytes = device_bytes,
                                      .host_bytes = PLENTY,
                                      .link_rate = PS_LINK_RATE};
}

/* ---- the same, computed here ---- */

/* Pages that the tails of a group take, with one to spare for each. */
static uint64_t pages_of(const struct scene *s, uint32_t k, uint32_t group)
{
    uint64_t pages = 0;

    for (uint32_t i = 0; i < s->n_items[k]; i++) {
        pages += s->items[k][i].group == group ? s->items[k][i].bytes / PAGE + 1 : 0;
    }
    return pages;
}

/* What its tensors that have tails were asked with. */
static uint64_t bytes_of(const struct scene *s, uint32_t k, uint32_t group)
{
    const struct ps_plan_step *step = &s->steps[k];
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < step->n_tensors; i++) {
        const struct ps_plan_tensor *t = &step->tensors[i];
        const struct ps_plan_site *site =
            t->group == group ? ps_plan_find(&s->plan, step->names[group], t->ordinal) : NULL;

        bytes += site != NULL && site->class == PS_PLAN_STASH ? t->bytes : 0;
    }
    return bytes;
}

static uint64_t pages_over(const struct scene *s, uint64_t stage)
{
    uint64_t over = 0;

    for (uint32_t k = 0; k < s->n_steps; k++) {
        for (uint32_t g = 0; g < s->plan.moves[k].n_groups; g++) {
            const uint64_t pages = pages_of(s, k, g);

            over += pages > stage ? pages - stage : 0;
        }
    }
    return over;
}

/* Of the sizes that there are, the smallest that leaves so little over: each is tried. */
static uint64_t least_stage(const struct scene *s)
{
    const uint64_t most = pages_over(s, 0) / OVER;
    uint64_t least = UINT64_MAX;

    for (uint32_t k = 0; k < s->n_steps; k++) {
        for (uint32_t g = 0; g < s->plan.moves[k].n_groups; g++) {
            const uint64_t pages = pages_of(s, k, g);

            if (pages != 0 && pages < least && pages_over(s, pages) <= most) {
                least = pages;
            }
        }
    }
    return least;
}

static uint64_t average_of(const struct scene *s, uint32_t k, uint32_t group)
{
    uint64_t sum = 0;
    uint64_t n = 0;

    for (uint32_t g = 0; g < s->plan.moves[k].n_groups; g++) {
        const uint64_t pages = pages_of(s, k, g);

        if (pages != 0 && bytes_of(s, k, g) == bytes_of(s, k, group)) {
            sum += pages;
            n++;
        }
    }
    return n > 0 && sum / n > 1 ? sum / n : 1;
}

/* Bytes of all that is out at once, at the most. */
static uint64_t most_out(const struct scene *s)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < s->n_items[0]; i++) {
        const uint32_t at = s->items[0][i].gone;
        uint64_t sum = 0;

        for (uint32_t j = 0; j < s->n_items[0]; j++) {
            const struct ps_spill_item *item = &s->items[0][j];

            sum += item->gone <= at && item->come >= at ? item->bytes : 0;
        }
        most = sum > most ? sum : most;
    }
    return most;
}

/* ---- what must hold of any ---- */

static uint32_t count_going(const struct ps_sinks *sinks)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < sinks->n_steps; k++) {
        for (uint32_t g = 0; g < sinks->n_groups[k]; g++) {
            n += sinks->usual[k][g] != 0;
        }
    }
    return n;
}

static uint32_t count_sets(const struct scene *s, const struct ps_sinks *sinks, uint32_t k)
{
    const struct ps_plan_moves *moves = &s->plan.moves[k];
    bool *seen = calloc(s->plan.n_sets + 1u, sizeof(*seen));
    uint32_t n = 0;

    ck_assert_ptr_nonnull(seen);
    for (uint32_t g = 0; g < moves->n_groups; g++) {
        if (sinks->usual[k][g] != 0) {
            ck_assert_uint_lt(moves->set[g], s->plan.n_sets);
            n += !seen[moves->set[g]];
            seen[moves->set[g]] = true;
        }
    }
    free(seen);
    return n;
}

/* A group that goes has a set and tails, and usually takes what some group does, more or less. */
static void check_groups(const struct scene *s, const struct ps_sinks *sinks, uint32_t k)
{
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;

    ck_assert_uint_eq(sinks->n_groups[k], s->plan.moves[k].n_groups);
    for (uint32_t g = 0; g < sinks->n_groups[k]; g++) {
        const uint64_t pages = pages_of(s, k, g);

        least = pages != 0 && pages < least ? pages : least;
        most = pages > most ? pages : most;
    }
    for (uint32_t g = 0; g < sinks->n_groups[k]; g++) {
        if (sinks->usual[k][g] != 0) {
            ck_assert_uint_ne(s->plan.moves[k].set[g], NONE);
            ck_assert_uint_ne(pages_of(s, k, g), 0);
            ck_assert_uint_ge(sinks->usual[k][g], least);
            ck_assert_uint_le(sinks->usual[k][g], most);
        }
    }
}

static void check_none(const struct ps_sinks *sinks, const struct ps_sinks_settings *settings)
{
    ck_assert_uint_eq(count_going(sinks), 0);
    ck_assert_uint_eq(sinks->stage_pages, 0);
    ck_assert_uint_eq(sinks->n_stages, 0);
    ck_assert_uint_eq(sinks->n_sinks, 0);
    ck_assert_uint_eq(sinks->device_bytes, settings->device_bytes);
}

/* Something goes, or nothing, and the sums are right. */
static void check_sums(const struct scene *s, const struct ps_sinks_settings *settings,
                       const struct ps_sinks *sinks)
{
    const uint64_t bytes = sinks->stage_pages * settings->page_bytes;
    const uint64_t fit = bytes != 0 ? settings->device_bytes / bytes : 0;
    const uint32_t within = fit >= 3 ? 2 : fit >= 1 ? 1 : 0;
    uint32_t n_sets = 0;

    ck_assert_uint_eq(sinks->n_steps, s->n_steps);
    for (uint32_t k = 0; k < s->n_steps; k++) {
        const uint32_t its = count_sets(s, sinks, k);

        check_groups(s, sinks, k);
        n_sets = its > n_sets ? its : n_sets;
    }
    if (n_sets == 0) {
        check_none(sinks, settings);
        return;
    }
    ck_assert_uint_eq(sinks->stage_pages, least_stage(s));
    ck_assert_uint_eq(sinks->n_sinks, n_sets);
    ck_assert_uint_le(sinks->n_sinks, s->plan.n_sets);
    ck_assert_uint_le(sinks->n_sinks * bytes, settings->host_bytes);
    ck_assert_uint_ge(sinks->n_stages, 1);
    ck_assert_uint_eq(sinks->n_stages, within == 0 && settings->beside ? PS_STAGES_MAX : within);
    ck_assert_uint_eq(sinks->device_bytes + within * bytes, settings->device_bytes);
}

/* How many groups go. */
static uint32_t choose(const struct scene *s, const struct ps_sinks_settings *settings,
                       struct ps_sinks *sinks_p)
{
    memset(sinks_p, 0xa5, sizeof(*sinks_p));
    ck_assert_int_eq(ps_sinks_choose(&s->plan, s->steps, s->n_steps, settings, sinks_p), PS_OK);
    check_sums(s, settings, sinks_p);
    return count_going(sinks_p);
}

static uint32_t count_chosen(const struct scene *s, const struct ps_sinks_settings *settings)
{
    struct ps_sinks sinks;
    const uint32_t n = choose(s, settings, &sinks);

    ps_sinks_fini(&sinks);
    return n;
}

/* All that leave their lanes. */
static uint32_t count_out(const struct scene *s)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < s->plan.moves[0].n_groups; g++) {
        n += pages_of(s, 0, g) != 0;
    }
    return n;
}

/* ---- twelve layers ---- */

START_TEST(the_less_the_device_holds_the_more_goes)
{
    struct scene s;
    uint32_t before = 0;

    make_layers(&s, (uint64_t)_i + 1);
    plan_scene(&s, &no_homes);
    const uint64_t stages =
        (PS_STAGES_MAX + 1) * least_stage(&s) * PAGE; /* fewer, and one lies there */
    const uint64_t most = most_out(&s);

    ck_assert_uint_ge(count_out(&s), N_GROUPS - 2);
    for (uint32_t part = 11; part-- > 0;) {
        const struct ps_sinks_settings settings = settings_of(stages + most / 10 * part);
        struct ps_sinks sinks;
        const uint32_t n = choose(&s, &settings, &sinks);

        ck_assert(settings.device_bytes >= most || n > 0);
        ck_assert_uint_ge(n, before);
        ck_assert_uint_le(n * most / count_out(&s), (10 - part) * most / 10 + 2 * stages);
        before = n;
        ps_sinks_fini(&sinks);
    }
    const struct ps_sinks_settings none = settings_of(least_stage(&s) * PAGE);
    const struct ps_sinks_settings enough = settings_of(stages + most);

    ck_assert_uint_eq(count_chosen(&s, &none), count_out(&s));

    ck_assert_uint_eq(count_chosen(&s, &enough), 0);
    free_scene(&s);
}
END_TEST

/* What stages would take is no reason: without them there is room for all. */
START_TEST(nothing_goes_where_pages_reach)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct scene s;

        make_layers(&s, seed);
        plan_scene(&s, &no_homes);
        const struct ps_sinks_settings enough = settings_of(most_out(&s));
        const struct ps_sinks_settings too_little = settings_of(most_out(&s) - PAGE);

        ck_assert_uint_gt(count_chosen(&s, &too_little), 0);
        ck_assert_uint_eq(count_chosen(&s, &enough), 0);
        free_scene(&s);
    }
}
END_TEST

START_TEST(without_device_memory_all_go_if_stages_may_be_beside)
{
    struct ps_sinks_settings settings = settings_of(0);
    struct ps_sinks sinks;
    struct scene s;

    make_layers(&s, 3);
    plan_scene(&s, &with_homes);
    ck_assert_uint_eq(count_chosen(&s, &settings), 0);
    settings.beside = true;
    ck_assert_uint_eq(choose(&s, &settings, &sinks), count_out(&s));
    ck_assert_uint_gt(count_out(&s), 0);
    ck_assert_uint_eq(sinks.n_stages, PS_STAGES_MAX);
    ck_assert_uint_eq(sinks.device_bytes, 0);
    ps_sinks_fini(&sinks);
    free_scene(&s);
}
END_TEST

/* One byte less than a stage, one stage, two, one byte less than three, three. */
START_TEST(stages_come_out_of_the_device_memory)
{
    struct scene s;

    make_layers(&s, 4);
    plan_scene(&s, &no_homes);
    const uint64_t stage = least_stage(&s) * PAGE;
    const struct {
        uint64_t device_bytes;
        bool beside;
        uint32_t n_stages;
        uint64_t left;
    } cases[] = {{stage - 1, false, 0, stage - 1},
                 {stage - 1, true, 2, stage - 1},
                 {stage, false, 1, 0},
                 {stage, true, 1, 0},
                 {2 * stage, false, 1, stage},
                 {2 * stage, true, 1, stage},
                 {3 * stage - 1, false, 1, 2 * stage - 1},
                 {3 * stage, false, 2, stage},
                 {3 * stage, true, 2, stage}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ps_sinks_settings settings = settings_of(cases[i].device_bytes);
        struct ps_sinks sinks;

        settings.beside = cases[i].beside;
        ck_assert_int_eq(choose(&s, &settings, &sinks) > 0, cases[i].n_stages > 0);
        ck_assert_uint_eq(sinks.n_stages, cases[i].n_stages);
        ck_assert_uint_eq(sinks.device_bytes, cases[i].left);
        ps_sinks_fini(&sinks);
    }
    free_scene(&s);
}
END_TEST

/* The first that is seen counts alone, and of many each for an eighth; never is nothing usual. */
START_TEST(what_is_usual_follows_what_is_seen)
{
    struct ps_sinks_settings settings = settings_of(0);
    struct ps_sinks sinks;
    struct scene s;
    uint32_t g = 0;

    make_layers(&s, 6);
    plan_scene(&s, &with_homes);
    settings.beside = true;
    ck_assert_uint_gt(choose(&s, &settings, &sinks), 0);
    while (sinks.usual[0][g] == 0) {
        g++;
    }
    ps_sinks_see(&sinks, 0, g, 1000);
    ck_assert_uint_eq(sinks.usual[0][g], 1000);
    ps_sinks_see(&sinks, 0, g, 2000);
    ck_assert_uint_eq(sinks.usual[0][g], 1500);
    for (int i = 0; i < 200; i++) {
        ps_sinks_see(&sinks, 0, g, 1500);
    }
    ck_assert_uint_eq(sinks.usual[0][g], 1500);
    ps_sinks_see(&sinks, 0, g, 2300);
    ck_assert_uint_eq(sinks.usual[0][g], 1600);
    for (int i = 0; i < 200; i++) {
        ps_sinks_see(&sinks, 0, g, 0);
    }
    ck_assert_uint_ge(sinks.usual[0][g], 1);
    ck_assert_uint_le(sinks.usual[0][g], PS_SINKS_SEEN);
    ps_sinks_see(&sinks, 0, g, UINT64_MAX);
    ck_assert_uint_gt(sinks.usual[0][g], UINT32_MAX / 9);
    ps_sinks_fini(&sinks);
    free_scene(&s);
}
END_TEST

START_TEST(sinks_fit_into_the_host_memory_or_nothing_goes)
{
    struct ps_sinks_settings settings = settings_of(0);
    struct ps_sinks sinks;
    struct scene s;

    make_layers(&s, 5);
    plan_scene(&s, &with_homes);
    settings.beside = true;
    ck_assert_uint_gt(choose(&s, &settings, &sinks), 0);
    settings.host_bytes = (uint64_t)sinks.n_sinks * sinks.stage_pages * PAGE;
    ps_sinks_fini(&sinks);
    ck_assert_uint_eq(count_chosen(&s, &settings), count_out(&s));
    settings.host_bytes--;
    ck_assert_uint_eq(count_chosen(&s, &settings), 0);
    settings.host_bytes = 0;
    ck_assert_uint_eq(count_chosen(&s, &settings), 0);
    free_scene(&s);
}
END_TEST

START_TEST(nothing_goes_of_a_step_without_times)
{
    struct ps_sinks_settings settings = settings_of(0);
    struct scene s;

    settings.beside = true;
    make_layers(&s, 6);
    plan_scene(&s, &with_homes);
    ck_assert_uint_gt(count_chosen(&s, &settings), 0);
    for (uint32_t e = 0; e < s.made[0].step.n_events; e++) {
        s.made[0].events[e].time_ns = 0;
    }
    ck_assert_uint_eq(count_chosen(&s, &settings), 0);
    free_scene(&s);
}
END_TEST

/* ---- sizes ---- */

/* Of each group another part of every tensor is valid: the most of it, a random one, or, of a few, very little. */
static void fill_groups(struct made_step *made, uint32_t least, uint32_t few, uint64_t *random)
{
    uint32_t percent[N_GROUPS];

    for (uint32_t g = 0; g < N_GROUPS; g++) {
        percent[g] =
            g < few ? 1 + steps_below(random, 5) : least + steps_below(random, 101 - least);
    }
    for (uint32_t i = 0; i < made->step.n_tensors; i++) {
        struct ps_plan_tensor *t = &made->tensors[i];

        if (t->valid != PS_PLAN_UNKNOWN) { /* a temporary's is not */
            t->valid = t->bytes / 100 * percent[t->group];
        }
    }
}

START_TEST(a_stage_is_the_smallest_that_leaves_little_over)
{
    struct ps_sinks_settings settings = settings_of(0);
    uint64_t random = (uint64_t)_i * 77 + 1;
    uint32_t n_smaller = 0;

    settings.beside = true;
    for (uint32_t round = 0; round < 60; round++) {
        struct ps_sinks sinks;
        struct scene s;

        make_layers(&s, round + 1);
        fill_groups(&s.made[0], round % 10 * 11, round % 3, &random);
        plan_scene(&s, _i == 0 ? &no_homes : &with_homes);
        if (choose(&s, &settings, &sinks) > 0) {
            ck_assert_uint_le(pages_over(&s, sinks.stage_pages), pages_over(&s, 0) / OVER);
            n_smaller += pages_over(&s, sinks.stage_pages) > 0;
        }
        ps_sinks_fini(&sinks);
        free_scene(&s);
    }
    ck_assert_uint_gt(n_smaller, 20);
}
END_TEST

static void check_averages(const struct scene *s, const struct ps_sinks *sinks)
{
    for (uint32_t g = 0; g < N_GROUPS; g++) {
        const uint32_t usual = sinks->usual[0][g];

        ck_assert_msg(usual == 0 || usual == average_of(s, 0, g),
                      "group %u: usually %u pages, %lu on the average of those as large", g, usual,
                      (unsigned long)average_of(s, 0, g));
    }
}

/* Each third layer is of half the size. */
START_TEST(groups_as_large_are_usually_as_full)
{
    struct ps_sinks_settings settings = settings_of(0);
    uint64_t random = 9;
    struct ps_sinks sinks;
    struct scene s;

    settings.beside = true;
    make_layers(&s, 7);
    fill_groups(&s.made[0], 30, 0, &random);
    for (uint32_t i = 0; i < s.made[0].step.n_tensors; i++) {
        struct ps_plan_tensor *t = &s.made[0].tensors[i];

        if (t->group % 3 == 0 && t->valid != PS_PLAN_UNKNOWN) {
            t->bytes /= 2;
            t->valid /= 2;
        }
    }
    plan_scene(&s, &no_homes);
    ck_assert_uint_eq(choose(&s, &settings, &sinks), count_out(&s));
    check_averages(&s, &sinks);
    for (uint32_t g = 1; g < N_GROUPS && sinks.usual[0][g] != 0; g++) {
        ck_assert_int_eq(sinks.usual[0][g] > sinks.usual[0][0], g % 3 != 0);
    }
    ps_sinks_fini(&sinks);
    free_scene(&s);
}
END_TEST

/* What some tensors of a group held had room in their homes, that time: it is as large as the others all the same. */
START_TEST(groups_that_held_little_are_usually_as_full)
{
    struct ps_sinks_settings settings = settings_of(0);

    settings.beside = true;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct ps_sinks sinks;
        struct scene s;

        make_layers(&s, seed);
        plan_scene(&s, &with_homes);
        ck_assert_uint_eq(choose(&s, &settings, &sinks), count_out(&s));
        check_averages(&s, &sinks);
        ps_sinks_fini(&sinks);
        free_scene(&s);
    }
}
END_TEST

START_TEST(what_holds_a_word_takes_a_page_and_one_to_spare)
{
    struct ps_sinks_settings settings = settings_of(0);
    struct ps_sinks sinks;
    struct scene s;

    settings.beside = true;
    make_layers(&s, 8);
    for (uint32_t i = 0; i < s.made[0].step.n_tensors; i++) {
        struct ps_plan_tensor *t = &s.made[0].tensors[i];

        t->valid = t->valid == PS_PLAN_UNKNOWN ? t->valid : t->ordinal == 1 ? 16 : 0;
    }
    plan_scene(&s, &no_homes);
    ck_assert_uint_gt(choose(&s, &settings, &sinks), 0);
    ck_assert_uint_eq(sinks.stage_pages, 2);
    ck_assert_uint_eq(sinks.usual[0][0], 2);
    ps_sinks_fini(&sinks);
    free_scene(&s);
}
END_TEST

/* ---- any steps ---- */

/* Times may stand still, go back (a clock that was read late), or not be known. */
static void give_random_times(struct made_step *made, uint64_t *random)
{
    const bool known = steps_below(random, 6) != 0;

    for (uint32_t e = 0; e < made->step.n_events; e++) {
        made->events[e].time_ns = known ? UINT64_C(50000) * e + steps_below(random, 1000000) : 0;
    }
}

static void make_random(struct scene *s, uint64_t seed, uint64_t *random)
{
    *s = (struct scene){.n_steps = 1 + steps_below(random, STEPS_MAX)};
    for (uint32_t k = 0; k < s->n_steps; k++) {
        steps_random(2 * seed + k, 5 + (uint32_t)seed % 40, &s->made[k]);
        give_random_times(&s->made[k], random);
    }
    plan_scene(s, steps_below(random, 2) == 0 ? &no_homes : &with_homes);
}

START_TEST(any_steps_get_what_there_is)
{
    uint64_t random = (uint64_t)_i + 1;
    uint32_t n_going = 0;
    uint32_t n_all = 0;

    for (uint64_t seed = (uint64_t)_i * 50 + 1; seed <= (uint64_t)_i * 50 + 50; seed++) {
        struct scene s;

        make_random(&s, seed, &random);
        for (int round = 0; round < 4; round++) {
            struct ps_sinks_settings settings =
                settings_of(round == 0 ? 0 : steps_below(&random, 1000) * s.plan.pool_bytes / 800);

            settings.beside = steps_below(&random, 2) == 0;
            settings.host_bytes =
                steps_below(&random, 3) == 0 ? steps_below(&random, 1000) * STEPS_MIB : PLENTY;
            settings.link_rate = 1 + steps_below(&random, 1u << 31);
            n_going += count_chosen(&s, &settings) > 0;
            n_all++;
        }
        free_scene(&s);
    }
    ck_assert_uint_gt(n_going, n_all / 20);
    ck_assert_uint_lt(n_going, n_all / 10 * 9);
}
END_TEST

START_TEST(a_plan_of_no_steps_sends_nothing)
{
    const struct ps_sinks_settings settings = settings_of(STEPS_MIB);
    const struct ps_plan plan = {0};
    struct ps_sinks sinks;

    ck_assert_int_eq(ps_sinks_choose(&plan, NULL, 0, &settings, &sinks), PS_OK);
    check_none(&sinks, &settings);
    ps_sinks_fini(&sinks);
    ps_sinks_fini(&sinks); /* what is gone may go again */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sinks");
    TCase *t = tcase_create("choice");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, the_less_the_device_holds_the_more_goes, 0, 5);
    tcase_add_test(t, nothing_goes_where_pages_reach);
    tcase_add_test(t, without_device_memory_all_go_if_stages_may_be_beside);
    tcase_add_test(t, stages_come_out_of_the_device_memory);
    tcase_add_test(t, what_is_usual_follows_what_is_seen);
    tcase_add_test(t, sinks_fit_into_the_host_memory_or_nothing_goes);
    tcase_add_test(t, nothing_goes_of_a_step_without_times);
    tcase_add_loop_test(t, a_stage_is_the_smallest_that_leaves_little_over, 0, 2);
    tcase_add_test(t, groups_as_large_are_usually_as_full);
    tcase_add_test(t, groups_that_held_little_are_usually_as_full);
    tcase_add_test(t, what_holds_a_word_takes_a_page_and_one_to_spare);
    tcase_add_loop_test(t, any_steps_get_what_there_is, 0, 4);
    tcase_add_test(t, a_plan_of_no_steps_sends_nothing);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
