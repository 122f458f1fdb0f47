/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces as `pagedstash replay` reads them: whatever the bytes are, reading ends and says where it failed; what was
 * read plays; what the segmenter makes of it is in order; and the planner takes it or says no. Input that begins with
 * a zero is events for the segmenter itself, in any order in which a job can cause them. One thread.
 */
#include "policy/trace.h"
#include "tests/fuzz/fuzz.h"

#define GRANULARITY 4096

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    return 0;
}

/* Each thing once and in its turn. */
static void check_step(const struct ps_plan_step *s)
{
    uint8_t *tensors = calloc(s->n_tensors + 1u, 1);
    uint8_t *groups = calloc(s->n_groups + 1u, 1);

    fz_require(tensors != NULL && groups != NULL, "no memory");
    for (uint32_t i = 0; i < s->n_events; i++) {
        const struct ps_plan_event *e = &s->events[i];
        const bool tensor = e->kind == PS_PLAN_ALLOC || e->kind == PS_PLAN_FREE;

        fz_require(e->index < (tensor ? s->n_tensors : s->n_groups), "event %u of %u", i,
                   s->n_events);
        const uint32_t group = tensor ? s->tensors[e->index].group : e->index;

        fz_require(group < s->n_groups, "group %u of %u", group, s->n_groups);
        switch ((enum ps_plan_kind)e->kind) {
        case PS_PLAN_PUSH:
            fz_require(groups[group]++ == 0, "push of %u", group);
            break;
        case PS_PLAN_POP:
            fz_require(groups[group]++ == 1, "pop of %u", group);
            break;
        case PS_PLAN_RETURN:
            fz_require(groups[group]++ == 2, "return of %u", group);
            break;
        case PS_PLAN_ALLOC:
            fz_require(tensors[e->index]++ == 0 && groups[group] == 1, "tensor %u", e->index);
            break;
        case PS_PLAN_FREE:
            fz_require(tensors[e->index]++ == 1, "free of %u", e->index);
            break;
        default:
            fz_require(false, "kind %u", e->kind);
        }
    }
    free(tensors);
    free(groups);
}

static void check_segment(const struct ps_segment *segment)
{
    static const struct ps_plan_settings settings = {GRANULARITY, 512, 10, 10};
    struct ps_plan_step steps[PS_KINDS_MAX];
    uint32_t n = 0;
    struct ps_plan plan;
    bool same;

    for (uint32_t k = 0; k < PS_KINDS_MAX; k++) {
        if (segment->kinds[k].id != 0) {
            fz_require(ps_kind_merge(&segment->kinds[k], &steps[n], &same) == PS_OK, "kind %u", k);
            check_step(&steps[n++]);
        }
    }
    if (n > 0 && ps_plan_make(steps, n, &settings, &plan) == PS_OK) {
        fz_require(!plan.adopt || plan.peak_bytes < plan.plain_peak_bytes, "no gain");
        ps_plan_fini(&plan);
    }
    while (n > 0) {
        ps_plan_step_free(&steps[--n]);
    }
}

/* ---- the segmenter itself ---- */

#define LIVE_MAX 24

struct job {
    struct ps_segment s;
    struct ps_seg_id group[2]; /* open on each thread; serial 0: none */
    uint32_t ordinal[2];
    struct ps_seg_id live[LIVE_MAX], last; /* tensors; the last one freed */
    uint32_t n_live;
    uint64_t time;
};

static void push(struct job *j, unsigned thread, uint32_t name)
{
    struct ps_cut cut;

    ps_segment_pop(&j->s, j->group[thread], j->time);
    j->group[thread] = ps_segment_push(&j->s, name, j->time, &cut);
    j->ordinal[thread] = 0;
    fz_require(!cut.cut || cut.kind == PS_KIND_NONE || cut.kind < PS_KINDS_MAX, "%u", cut.kind);
}

static void alloc(struct job *j, unsigned thread, struct fz_input *in)
{
    const uint32_t skipped = fz_below(in, 4);

    if (j->n_live < LIVE_MAX) {
        j->ordinal[thread] += skipped == 3; /* no rows */
        const struct ps_seg_id id =
            ps_segment_alloc(&j->s, j->group[thread], j->ordinal[thread]++,
                             (1 + (uint64_t)fz_u8(in)) * GRANULARITY, j->time);

        if (id.serial != 0) {
            j->live[j->n_live++] = id;
        }
    }
}

static void release(struct job *j, uint32_t i)
{
    ps_segment_free(&j->s, j->live[i], j->time);
    j->last = j->live[i];
    j->live[i] = j->live[--j->n_live];
}

static void one_event(struct job *j, struct fz_input *in)
{
    const unsigned op = fz_u8(in), thread = op >> 7;
    struct ps_cut cut;

    j->time += 1 + (op >> 4 & 1);
    switch (op & 15) {
    case 0:
    case 1:
        push(j, thread, 1 + (op >> 4 & 1));
        break;
    case 2:
        ps_segment_pop(&j->s, j->group[thread], j->time);
        j->group[thread] = (struct ps_seg_id){0};
        break;
    case 3:
    case 4:
    case 5:
        alloc(j, thread, in);
        break;
    case 6:
    case 7:
        if (j->n_live > 0) {
            release(j, fz_below(in, j->n_live));
        }
        break;
    case 8: /* backward: the last one's group, whole */
        for (uint32_t i = j->n_live; i-- > 0;) {
            if (j->live[i].group == j->live[j->n_live - 1].group) {
                ps_segment_touch(&j->s, j->live[i], j->time);
            }
        }
        break;
    case 9:
        if (j->n_live > 0) {
            release(j, j->n_live - 1);
        }
        break;
    case 10:
        if (j->n_live > 0) {
            ps_segment_touch(&j->s, j->live[fz_below(in, j->n_live)], j->time);
        }
        break;
    case 11:
        if (j->n_live > 0) {
            ps_segment_return(&j->s, j->live[fz_below(in, j->n_live)], j->time);
        }
        break;
    case 12:
        ps_segment_valid(&j->s, j->last, fz_u8(in) * (uint64_t)GRANULARITY);
        break;
    case 13:
        ps_segment_other(&j->s, fz_u8(in) * (uint64_t)GRANULARITY);
        break;
    case 14:
        ps_segment_step(&j->s, j->time, &cut);
        break;
    default: /* all die */
        while (j->n_live > 0) {
            release(j, j->n_live - 1);
        }
        break;
    }
}

static void drive(const uint8_t *data, size_t size)
{
    struct job *j = calloc(1, sizeof(*j));
    struct fz_input in = {data, size};

    fz_require(j != NULL, "no memory");
    ps_segment_init(&j->s, fz_below(&in, 4) == 1);
    /* The same over and over is what kinds are made of. */
    for (unsigned round = 1 + fz_below(&in, 4); round > 0; round--) {
        struct fz_input again = in;

        while (again.left > 0) {
            one_event(j, &again);
        }
    }
    check_segment(&j->s);
    ps_segment_fini(&j->s);
    while (j->n_live > 0) {
        release(j, j->n_live - 1);
    }
    free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct ps_trace_settings settings[] = {
        {.regions = "m*,x", .step = "", .min_bytes = 100, .valid_parts = 300000},
        {.regions = "m*,x", .step = "s*", .min_bytes = 1, .valid_parts = 0},
    };
    struct ps_trace t;

    if (size > 0 && data[0] == 0) {
        drive(data + 1, size - 1);
        return 0;
    }
    if (ps_trace_read(&t, (const char *)data, size)) {
        for (unsigned i = 0; i < 2; i++) {
            struct ps_trace_play *play = calloc(1, sizeof(*play));

            fz_require(play != NULL && ps_trace_play(&t, &settings[i], play) == PS_OK, "no memory");
            for (uint32_t k = 0; k < play->n_contexts; k++) {
                check_segment(&play->contexts[k].segment);
            }
            ps_trace_play_fini(play);
            free(play);
        }
    } else {
        fz_require(strncmp(t.error, "line ", 5) == 0, "nothing is said of %zu bytes", size);
    }
    ps_trace_fini(&t);
    return 0;
}
