/* SPDX-License-Identifier: Apache-2.0 */
/* Where steps begin, which are of one kind, and two of one kind as one, on schedules of training jobs. */
#include <stdlib.h>
#include <string.h>

#include "policy/region.h"
#include "policy/segment.h"
#include "tests/support/check_main.h"

#define LAYERS   6
#define SITES    4
#define FLIGHT   64
#define CUTS_MAX 8192
#define MIB      (UINT64_C(1) << 20)

/* A job: what its microbatches hold. */
static struct {
    struct ps_segment s;
    struct ps_seg_id tensor[FLIGHT][LAYERS][SITES];
    struct ps_cut cut[CUTS_MAX];
    uint32_t n_cuts;
    uint64_t time;
    uint64_t bytes;   /* of each tensor */
    uint32_t dry;     /* layer without rows this time; LAYERS: none */
    uint32_t missing; /* site without rows in every layer; SITES: none */
} job;

static void begin_job(bool by_range)
{
    memset(&job, 0, sizeof(job));
    ps_segment_init(&job.s, by_range);
    job.bytes = 64 * MIB;
    job.dry = LAYERS;
    job.missing = SITES;
}

static struct ps_seg_id push(uint32_t name)
{
    struct ps_cut cut;
    const struct ps_seg_id id = ps_segment_push(&job.s, name, ++job.time, &cut);

    if (cut.cut) {
        ck_assert_uint_lt(job.n_cuts, CUTS_MAX);
        job.cut[job.n_cuts++] = cut;
    }
    return id;
}

static void forward_layer(uint32_t flight, uint32_t layer)
{
    const struct ps_seg_id g = push(1);

    for (uint32_t i = 0; i < SITES; i++) {
        job.tensor[flight][layer][i] = (struct ps_seg_id){0};
        if (layer != job.dry && i != job.missing) {
            job.tensor[flight][layer][i] =
                ps_segment_alloc(&job.s, g, i, job.bytes + i, ++job.time);
        }
    }
    ps_segment_pop(&job.s, g, ++job.time);
}

static void backward_layer(uint32_t flight, uint32_t layer)
{
    ps_segment_return(&job.s, job.tensor[flight][layer][0], ++job.time);
    for (uint32_t i = 0; i < SITES; i++) {
        ps_segment_free(&job.s, job.tensor[flight][layer][i], ++job.time);
    }
}

static void forward(uint32_t flight, uint32_t from, uint32_t to)
{
    for (uint32_t l = from; l < to; l++) {
        forward_layer(flight, l);
    }
}

static void backward(uint32_t flight, uint32_t from, uint32_t to)
{
    for (uint32_t l = to; l-- > from;) {
        backward_layer(flight, l);
    }
}

static void train(void)
{
    forward(0, 0, LAYERS);
    backward(0, 0, LAYERS);
}

static const struct ps_cut *last_cut(void)
{
    ck_assert_uint_gt(job.n_cuts, 0);
    return &job.cut[job.n_cuts - 1];
}

static struct ps_kind *kind_of(const struct ps_cut *cut)
{
    ck_assert_uint_lt(cut->kind, PS_KINDS_MAX);
    return &job.s.kinds[cut->kind];
}

static void end_job(void)
{
    ps_segment_fini(&job.s);
}

START_TEST(a_step_is_from_a_push_with_nothing_alive_to_the_next)
{
    begin_job(false);
    for (uint32_t i = 0; i < 5; i++) {
        train();
    }
    push(1);
    ck_assert_uint_eq(job.n_cuts, 5);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert(job.cut[i].complete);
        ck_assert(job.cut[i].known == (i > 0));
        ck_assert_uint_eq(job.cut[i].kind, 0);
    }
    const struct ps_record *r = &job.s.kinds[0].record[0];

    ck_assert_uint_eq(job.s.kinds[0].count, 5);
    ck_assert_uint_eq(r->n_groups, LAYERS);
    ck_assert_uint_eq(r->n_tensors, LAYERS * SITES);
    ck_assert_uint_eq(r->n_events, LAYERS * (3 + 2 * SITES));
    ck_assert_uint_eq(r->events[0].kind, PS_PLAN_PUSH);
    ck_assert_uint_eq(r->events[0].time_ns, 0);
    end_job();
}
END_TEST

/* Several microbatches one after the other are as many steps of one kind. */
START_TEST(gradient_accumulation_is_one_kind)
{
    begin_job(false);
    for (uint32_t step = 0; step < 3; step++) {
        for (uint32_t micro = 0; micro < 4; micro++) {
            train();
        }
    }
    push(1);
    ck_assert_uint_eq(job.n_cuts, 12);
    ck_assert_uint_eq(job.s.kinds[0].count, 12);
    ck_assert_uint_eq(job.s.kinds[1].id, 0);
    end_job();
}
END_TEST

/* The first of `stages` stages of a pipeline. */
static void one_f_one_b(uint32_t stages, uint32_t micros)
{
    for (uint32_t i = 0; i < micros + stages - 1; i++) {
        if (i < micros) {
            forward(i % FLIGHT, 0, LAYERS);
        }
        if (i >= stages - 1) {
            backward((i - (stages - 1)) % FLIGHT, 0, LAYERS);
        }
    }
}

START_TEST(a_1f1b_step_is_one_step)
{
    static const uint32_t micros[] = {4, 8, 32};
    const uint32_t m = micros[_i];

    begin_job(false);
    for (uint32_t i = 0; i < 4; i++) {
        one_f_one_b(4, m);
    }
    push(1);
    ck_assert_uint_eq(job.n_cuts, 4);
    ck_assert_uint_eq(job.s.kinds[0].count, 4);
    ck_assert_uint_eq(job.s.kinds[0].record[0].n_groups, m * LAYERS);
    end_job();
}
END_TEST

/* Two model chunks a stage: microbatches run in rounds of as many as there are stages. */
static void interleaved(uint32_t stages, uint32_t micros)
{
    const uint32_t total = 2 * micros, ahead = 3 * (stages - 1) + 1;

    for (uint32_t i = 0; i < total + ahead; i++) {
        if (i < total) {
            const uint32_t micro = i / (2 * stages) * stages + i % stages;
            const bool second = i / stages % 2 == 1;

            forward(micro % FLIGHT, second ? LAYERS / 2 : 0, second ? LAYERS : LAYERS / 2);
        }
        if (i >= ahead) {
            const uint32_t k = i - ahead;
            const uint32_t micro = k / (2 * stages) * stages + k % stages;
            const bool first = k / stages % 2 == 1;

            backward(micro % FLIGHT, first ? 0 : LAYERS / 2, first ? LAYERS / 2 : LAYERS);
        }
    }
}

START_TEST(an_interleaved_step_is_one_step)
{
    begin_job(false);
    for (uint32_t i = 0; i < 4; i++) {
        interleaved(4, 16);
    }
    push(1);
    ck_assert_uint_eq(job.n_cuts, 4);
    ck_assert_uint_eq(job.s.kinds[0].count, 4);
    ck_assert_uint_eq(job.s.kinds[0].record[0].n_groups, 16 * LAYERS);
    end_job();
}
END_TEST

/* Two schedules with the same pushes differ in the order of deaths. */
START_TEST(deaths_tell_schedules_apart)
{
    begin_job(false);
    for (uint32_t i = 0; i < 4; i++) {
        forward(0, 0, LAYERS);
        forward(1, 0, LAYERS);
        backward(i % 2, 0, LAYERS);
        backward(1 - i % 2, 0, LAYERS);
    }
    push(1);
    ck_assert_uint_eq(job.n_cuts, 4);
    ck_assert_uint_eq(job.s.kinds[0].count, 2);
    ck_assert_uint_eq(job.s.kinds[1].count, 2);
    end_job();
}
END_TEST

/* Recomputed layers save nothing in forward; in backward each is run again just before it is needed. */
static void recompute(uint32_t kept)
{
    forward(0, 0, kept);
    for (uint32_t l = kept; l < LAYERS; l++) {
        forward_layer(1, l);
        backward_layer(1, l);
    }
    for (uint32_t l = LAYERS; l-- > kept;) {
        forward_layer(1, l);
        backward_layer(1, l);
    }
    backward(0, 0, kept);
}

START_TEST(recomputation_of_all_layers_is_steps_of_one_group)
{
    begin_job(false);
    for (uint32_t i = 0; i < 4; i++) {
        recompute(0);
    }
    push(1);
    ck_assert_uint_eq(job.n_cuts, 4 * 2 * LAYERS);
    ck_assert_uint_eq(job.s.kinds[0].count, job.n_cuts);
    end_job();
}
END_TEST

START_TEST(recomputation_of_some_layers_settles_to_one_step)
{
    uint32_t n_before = 0;

    begin_job(false);
    for (uint32_t i = 0; i < 16; i++) {
        n_before = i == 12 ? job.n_cuts : n_before;
        recompute(2);
    }
    push(1);
    ck_assert_uint_eq(job.n_cuts - n_before, 5);
    ck_assert(last_cut()->known && last_cut()->complete);
    ck_assert_uint_eq(kind_of(last_cut())->record[0].n_groups, 2 + 2 * (LAYERS - 2));
    end_job();
}
END_TEST

START_TEST(a_thousand_evaluation_layers_keep_the_training_kind)
{
    uint32_t name = 100;

    begin_job(false);
    train();
    train();
    push(7); /* the cut behind training */
    const uint64_t id = kind_of(last_cut())->id;
    const uint32_t kind = last_cut()->kind;

    for (uint32_t i = 0; i < 1000; i++) {
        const struct ps_seg_id g = push(name++);
        const struct ps_seg_id t = ps_segment_alloc(&job.s, g, 0, job.bytes, ++job.time);

        ps_segment_pop(&job.s, g, ++job.time);
        ps_segment_free(&job.s, t, ++job.time);
    }
    train();
    push(1);
    ck_assert(last_cut()->known);
    ck_assert_uint_eq(last_cut()->kind, kind);
    ck_assert_uint_eq(job.s.kinds[kind].id, id);
    end_job();
}
END_TEST

START_TEST(a_tensor_that_never_dies_costs_one_step)
{
    begin_job(false);
    train();
    for (uint32_t i = 0; i < 6; i++) {
        forward(0, 0, LAYERS);
        if (i == 0) {
            job.tensor[0][2][1] = (struct ps_seg_id){0}; /* its free never comes */
        }
        backward(0, 0, LAYERS);
    }
    push(1);
    /* The steps: one before, two in one, then one by one. */
    ck_assert_uint_eq(job.n_cuts, 6);
    ck_assert(!job.cut[1].complete);
    for (uint32_t i = 2; i < 6; i++) {
        ck_assert(job.cut[i].known && job.cut[i].complete);
        ck_assert_uint_eq(job.cut[i].kind, job.cut[0].kind);
    }
    end_job();
}
END_TEST

START_TEST(background_that_dies_is_asked_for_twice_as_long)
{
    begin_job(false);
    for (uint32_t round = 0; round < 3; round++) {
        const uint32_t needed = job.s.n_needed;
        const uint32_t before = job.n_cuts;

        forward(1, 0, 1); /* lives until the end of the round */
        for (uint32_t i = 0; i < needed; i++) {
            ck_assert_uint_le(job.n_cuts - before, 1);
            train();
        }
        train();
        ck_assert_uint_gt(job.n_cuts - before, 0);
        backward(1, 0, 1);
        ck_assert_uint_eq(job.s.n_needed, needed * 2);
    }
    end_job();
}
END_TEST

/* A range left open by an exception: the stack closes it at the next push. */
START_TEST(a_range_never_popped_costs_at_most_one_step)
{
    struct ps_region_stack stack = {0};
    struct ps_seg_id open = {0};

    begin_job(false);
    for (uint32_t step = 0; step < 5; step++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            const enum ps_region_act act = ps_region_stack_push(&stack, 1);

            ck_assert(act == PS_REGION_OPEN || act == PS_REGION_CLOSE_OPEN);
            if (act == PS_REGION_CLOSE_OPEN) {
                ps_segment_pop(&job.s, open, ++job.time);
            }
            open = push(1);
            job.tensor[0][l][0] = ps_segment_alloc(&job.s, open, 0, job.bytes, ++job.time);
            if ((step != 1 || l != 3) && ps_region_stack_pop(&stack) == PS_REGION_CLOSE) {
                ps_segment_pop(&job.s, open, ++job.time);
            }
        }
        backward(0, 0, LAYERS);
    }
    push(1);
    ck_assert_uint_eq(job.n_cuts, 5);
    for (uint32_t i = 1; i < 5; i++) {
        ck_assert(job.cut[i].known); /* closed at the next push, before it: the same order */
    }
    end_job();
}
END_TEST

START_TEST(an_open_group_without_tensors_does_not_keep_a_step_open)
{
    begin_job(false);
    train();
    const struct ps_seg_id open = push(2); /* never popped, holds nothing */

    ck_assert_uint_eq(job.n_cuts, 1);
    train();
    train();
    push(1);
    ck_assert_uint_eq(job.n_cuts, 4);
    /* What comes of it later belongs to nothing. */
    ck_assert_uint_eq(ps_segment_alloc(&job.s, open, 0, job.bytes, ++job.time).serial, 0);
    ps_segment_pop(&job.s, open, ++job.time);
    end_job();
}
END_TEST

START_TEST(zero_rows_do_not_make_another_kind)
{
    begin_job(false);
    for (uint32_t i = 0; i < 8; i++) {
        job.dry = i % 2 == 1 ? i % LAYERS : LAYERS;
        job.missing = i % 3 == 2 ? i % SITES : SITES;
        forward(0, 0, LAYERS);
        ck_assert_uint_eq(ps_segment_matching(&job.s), i > 0);
        backward(0, 0, LAYERS);
        ck_assert_uint_eq(ps_segment_matching(&job.s), i > 0);
    }
    push(1);
    ck_assert_uint_eq(job.n_cuts, 8);
    ck_assert_uint_eq(job.s.kinds[0].count, 8);
    end_job();
}
END_TEST

START_TEST(what_still_matches_is_known_at_each_push)
{
    begin_job(false);
    train();
    forward(0, 0, 3);
    backward(0, 0, 3);
    push(1);
    ck_assert_uint_eq(ps_segment_matching(&job.s), 3);
    ck_assert_uint_eq(job.n_cuts, 2);
    end_job();

    begin_job(false);
    train();
    forward(0, 0, 3);
    ck_assert_uint_eq(ps_segment_matching(&job.s), 1);
    backward_layer(0, 2);
    ck_assert_uint_eq(ps_segment_matching(&job.s), 0);
    backward(0, 0, 2);
    push(9);
    ck_assert_uint_eq(ps_segment_matching(&job.s), 0);
    end_job();
}
END_TEST

START_TEST(many_kinds_keep_those_used_last)
{
    begin_job(false);
    for (uint32_t n = 2; n < 2 + 3 * PS_KINDS_MAX; n++) {
        for (uint32_t i = 0; i < n; i++) {
            forward_layer(i, 0);
        }
        for (uint32_t i = n; i-- > 0;) {
            backward_layer(i, 0);
        }
        train();
    }
    push(1);
    ck_assert(last_cut()->known);
    /* and once when n was LAYERS */
    ck_assert_uint_eq(kind_of(last_cut())->count, 3 * PS_KINDS_MAX + 1);
    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        ck_assert_uint_ne(job.s.kinds[i].id, 0);
    }
    end_job();
}
END_TEST

START_TEST(a_named_range_begins_steps)
{
    struct ps_cut cut;

    begin_job(true);
    for (uint32_t i = 0; i < 5; i++) {
        train(); /* two of these are one step */
        if (i % 2 == 0) {
            ps_segment_step(&job.s, ++job.time, &cut);
            ck_assert(cut.cut);
            ck_assert(cut.known == (i == 4));
            ck_assert((cut.kind == PS_KIND_NONE) == (i == 0)); /* it began nowhere */
        }
    }
    ck_assert_uint_eq(job.n_cuts, 0);
    ck_assert_uint_eq(job.s.kinds[0].record[0].n_groups, 2 * LAYERS);
    end_job();
}
END_TEST

START_TEST(a_step_without_end_is_given_up)
{
    begin_job(false);
    const struct ps_seg_id g = push(1);
    struct ps_seg_id keep = ps_segment_alloc(&job.s, g, 0, job.bytes, ++job.time);

    for (uint32_t i = 0; i < PS_SEGMENT_EVENTS_MAX; i++) {
        const struct ps_seg_id t = ps_segment_alloc(&job.s, g, i, job.bytes, ++job.time);

        ps_segment_free(&job.s, t, ++job.time);
    }
    ck_assert(job.s.broken);
    ps_segment_pop(&job.s, g, ++job.time);
    train();
    ck_assert_uint_eq(job.n_cuts, 1);
    ck_assert(!job.cut[0].complete);
    ck_assert_uint_eq(job.cut[0].kind, PS_KIND_NONE);
    ps_segment_free(&job.s, keep, ++job.time);
    train();
    train();
    ck_assert(last_cut()->known);
    end_job();
}
END_TEST

/* ---- two as one ---- */

static void check_step(const struct ps_plan_step *step)
{
    uint8_t *state = calloc(step->n_tensors + 1u, 1);
    uint8_t *group = calloc(step->n_groups + 1u, 1);

    for (uint32_t i = 0; i < step->n_events; i++) {
        const struct ps_plan_event *e = &step->events[i];

        switch (e->kind) {
        case PS_PLAN_PUSH:
            ck_assert_uint_eq(group[e->index]++, 0);
            break;
        case PS_PLAN_POP:
            ck_assert_uint_eq(group[e->index]++, 1);
            break;
        case PS_PLAN_RETURN:
            ck_assert_uint_eq(group[e->index]++, 2);
            break;
        case PS_PLAN_ALLOC:
            ck_assert_uint_eq(state[e->index]++, 0);
            ck_assert_uint_eq(group[step->tensors[e->index].group], 1);
            break;
        default:
            ck_assert_uint_eq(state[e->index]++, 1);
        }
    }
    for (uint32_t i = 0; i < step->n_tensors; i++) {
        ck_assert_uint_eq(state[i], 2);
    }
    free(state);
    free(group);
}

START_TEST(two_steps_are_merged_with_all_tensors_of_either)
{
    struct ps_plan_step step;
    bool same;

    begin_job(false);
    for (uint32_t i = 0; i < 2; i++) {
        const bool swapped = _i == 1;

        job.bytes = i == 0 ? 64 * MIB : 48 * MIB;
        job.dry = (i == 0) == swapped ? 2 : LAYERS;
        job.missing = (i == 1) == swapped ? 1 : SITES;
        ps_segment_other(&job.s, (10 - i) * MIB);
        forward(0, 0, LAYERS);
        for (uint32_t l = 0; l < LAYERS; l++) {
            ps_segment_valid(&job.s, job.tensor[0][l][0], (i + 1) * MIB);
        }
        backward(0, 0, LAYERS);
        ps_segment_valid(&job.s, job.tensor[0][1][2], 5 * MIB); /* late */
    }
    push(1);
    ps_segment_valid(&job.s, job.tensor[0][1][3], 6 * MIB); /* after the cut */
    ck_assert_int_eq(ps_kind_merge(&job.s.kinds[0], &step, &same), PS_OK);
    ck_assert(same);
    ck_assert_uint_eq(step.n_groups, LAYERS);
    ck_assert_uint_eq(step.n_tensors, LAYERS * SITES - 1); /* one has no rows in either */
    ck_assert_uint_eq(step.n_events, LAYERS * (3 + 2 * SITES) - 2);
    check_step(&step);
    for (uint32_t i = 0; i < step.n_tensors; i++) {
        const struct ps_plan_tensor *t = &step.tensors[i];
        const bool once = t->group == 2 || t->ordinal == 1;

        ck_assert_uint_ge(t->bytes, (once ? 48 : 64) * MIB);
        if (t->ordinal == 0) {
            ck_assert_uint_eq(t->valid, t->group == 2 ? (_i == 0 ? 1u : 2u) * MIB : 3 * MIB / 2);
        } else if (t->group == 1 && t->ordinal >= 2) {
            ck_assert_uint_eq(t->valid, (t->ordinal == 2 ? 5 : 6) * MIB);
        } else {
            ck_assert_uint_eq(t->valid, PS_PLAN_UNKNOWN);
        }
    }
    ck_assert_uint_eq(step.events[3].other_bytes, 10 * MIB);
    ps_plan_step_free(&step);
    end_job();
}
END_TEST

START_TEST(returns_in_another_order_are_those_of_the_latest)
{
    struct ps_plan_step step;
    uint32_t order[LAYERS], n = 0;
    bool same;

    begin_job(false);
    for (uint32_t i = 0; i < 2; i++) {
        forward(0, 0, LAYERS);
        if (i == 1) {
            ps_segment_return(&job.s, job.tensor[0][0][0], ++job.time);
        }
        backward(0, 0, LAYERS);
    }
    push(1);
    ck_assert_uint_eq(job.s.kinds[0].count, 2);
    ck_assert_int_eq(ps_kind_merge(&job.s.kinds[0], &step, &same), PS_OK);
    ck_assert(!same);
    check_step(&step);
    for (uint32_t i = 0; i < step.n_events; i++) {
        if (step.events[i].kind == PS_PLAN_RETURN) {
            order[n++] = step.events[i].index;
        }
    }
    ck_assert_uint_eq(n, LAYERS);
    ck_assert_uint_eq(order[0], 0);
    ck_assert_uint_eq(order[1], LAYERS - 1);
    ps_plan_step_free(&step);
    end_job();
}
END_TEST

/* As recorded of PyTorch: a stale word names one tensor of a group from its push on, in both steps. */
START_TEST(stale_words_are_no_returns)
{
    struct ps_plan_step step;
    uint32_t after = PS_PLAN_NONE, n = 0;
    bool same;

    begin_job(false);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            forward_layer(0, l);
            for (uint32_t k = 0; k < 3 && l > 0; k++) {
                ps_segment_touch(&job.s, job.tensor[0][l - 1][k % 2], job.time);
            }
        }
        for (uint32_t l = LAYERS; l-- > 0;) {
            for (uint32_t k = 0; k < SITES; k++) {
                ps_segment_touch(&job.s, job.tensor[0][l / 2][1], job.time);
                ps_segment_touch(&job.s, job.tensor[0][l][k], job.time);
            }
            for (uint32_t k = 0; k < SITES; k++) {
                ps_segment_free(&job.s, job.tensor[0][l][k], ++job.time);
            }
        }
    }
    push(1);
    ck_assert_int_eq(ps_kind_merge(&job.s.kinds[0], &step, &same), PS_OK);
    ck_assert(same);
    check_step(&step);
    for (uint32_t i = 0; i < step.n_events; i++) {
        const struct ps_plan_event *e = &step.events[i];

        if (e->kind == PS_PLAN_FREE) {
            after = step.tensors[e->index].group;
        } else if (e->kind == PS_PLAN_RETURN) {
            ck_assert_uint_eq(after, e->index + 1); /* the group before has just died */
            n++;
        }
    }
    ck_assert_uint_eq(n, LAYERS - 1); /* the last one could not leave */
    ps_plan_step_free(&step);
    end_job();
}
END_TEST

/* 1F1B: the last group of a microbatch is touched in backward after another one's was: that was its boundary. */
START_TEST(a_return_is_a_boundary_for_others)
{
    struct ps_plan_step step;
    uint32_t order[4] = {0}, n = 0;
    bool same;

    begin_job(false);
    for (uint32_t i = 0; i < 2; i++) {
        forward(0, 0, 2);
        forward(1, 0, 2);
        for (uint32_t f = 0; f < 2; f++) {
            for (uint32_t l = 2; l-- > 0;) {
                for (uint32_t k = 0; k < SITES; k++) {
                    ps_segment_touch(&job.s, job.tensor[f][l][k], job.time);
                }
                for (uint32_t k = 0; k < SITES; k++) {
                    ps_segment_free(&job.s, job.tensor[f][l][k], ++job.time);
                }
            }
        }
    }
    push(1);
    ck_assert_int_eq(ps_kind_merge(&job.s.kinds[0], &step, &same), PS_OK);
    ck_assert(same);
    check_step(&step);
    for (uint32_t i = 0; i < step.n_events; i++) {
        if (step.events[i].kind == PS_PLAN_RETURN) {
            ck_assert_uint_lt(n, 4);
            order[n++] = step.events[i].index;
        }
    }
    ck_assert_uint_eq(n, 4);
    ck_assert(order[0] == 1 && order[1] == 0 && order[2] == 3 && order[3] == 2);
    ps_plan_step_free(&step);
    end_job();
}
END_TEST

START_TEST(events_behind_the_end_do_nothing)
{
    struct ps_cut cut;

    begin_job(false);
    forward(0, 0, 2);
    const struct ps_seg_id g = push(1);

    end_job();
    backward(0, 0, 2);
    ps_segment_pop(&job.s, g, ++job.time);
    ck_assert_uint_eq(ps_segment_push(&job.s, 1, 1, &cut).serial, 0);
    ck_assert(!cut.cut);
    ck_assert_uint_eq(ps_segment_alloc(&job.s, g, 0, job.bytes, 1).serial, 0);
    ps_segment_free(&job.s, (struct ps_seg_id){0}, 1);
    ps_segment_other(&job.s, 1);
    ck_assert_uint_eq(ps_segment_matching(&job.s), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("segment");
    TCase *t = tcase_create("segment");

    tcase_add_test(t, a_step_is_from_a_push_with_nothing_alive_to_the_next);
    tcase_add_test(t, gradient_accumulation_is_one_kind);
    tcase_add_loop_test(t, a_1f1b_step_is_one_step, 0, 3);
    tcase_add_test(t, an_interleaved_step_is_one_step);
    tcase_add_test(t, deaths_tell_schedules_apart);
    tcase_add_test(t, recomputation_of_all_layers_is_steps_of_one_group);
    tcase_add_test(t, recomputation_of_some_layers_settles_to_one_step);
    tcase_add_test(t, a_thousand_evaluation_layers_keep_the_training_kind);
    tcase_add_test(t, a_tensor_that_never_dies_costs_one_step);
    tcase_add_test(t, background_that_dies_is_asked_for_twice_as_long);
    tcase_add_test(t, a_range_never_popped_costs_at_most_one_step);
    tcase_add_test(t, an_open_group_without_tensors_does_not_keep_a_step_open);
    tcase_add_test(t, zero_rows_do_not_make_another_kind);
    tcase_add_test(t, what_still_matches_is_known_at_each_push);
    tcase_add_test(t, many_kinds_keep_those_used_last);
    tcase_add_test(t, a_named_range_begins_steps);
    tcase_add_test(t, a_step_without_end_is_given_up);
    tcase_add_loop_test(t, two_steps_are_merged_with_all_tensors_of_either, 0, 2);
    tcase_add_test(t, returns_in_another_order_are_those_of_the_latest);
    tcase_add_test(t, stale_words_are_no_returns);
    tcase_add_test(t, a_return_is_a_boundary_for_others);
    tcase_add_test(t, events_behind_the_end_do_nothing);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
