/* SPDX-License-Identifier: Apache-2.0 */
/* A trace becomes steps: what the engine would do with each event; see trace.h. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "policy/trace.h"

#define MILLION 1000000u

struct thread {
    struct ps_region_stack stack;
    struct ps_seg_id group; /* of the open instance; serial 0: none */
    uint32_t ordinal;
    uint32_t context, group_context;
};

/* An allocation while it plays. */
struct block {
    struct ps_seg_id id; /* serial 0: no tensor */
    uint32_t context;
};

struct playing {
    const struct ps_trace *t;
    const struct ps_trace_settings *settings;
    struct ps_trace_play *play;
    struct ps_patterns patterns;
    struct thread *threads;
    struct block *blocks;
    uint64_t small_bytes;
};

/* ---- contexts ---- */

/* Past the last they share it. */
static uint32_t find_context(struct playing *p, uint64_t number)
{
    struct ps_trace_play *play = p->play;

    for (uint32_t i = 0; i < play->n_contexts; i++) {
        if (play->contexts[i].number == number) {
            return i;
        }
    }
    if (play->n_contexts == PS_TRACE_CONTEXTS_MAX) {
        return PS_TRACE_CONTEXTS_MAX - 1;
    }
    struct ps_trace_context *c = &play->contexts[play->n_contexts];

    c->number = number;
    ps_segment_init(&c->segment, p->settings->step[0] != '\0');
    return play->n_contexts++;
}

static struct ps_trace_context *context_of(struct playing *p, uint32_t index)
{
    return &p->play->contexts[index];
}

static void account(struct playing *p, struct ps_trace_context *c)
{
    const uint64_t other = c->other_bytes + p->small_bytes;

    if (other + c->region_bytes > c->peak_bytes) {
        c->peak_bytes = other + c->region_bytes;
    }
    ps_segment_other(&c->segment, other);
}

static void count_cut(struct ps_trace_context *c, const struct ps_cut *cut)
{
    if (cut->cut) {
        c->n_steps++;
        c->n_incomplete += !cut->complete;
    }
}

/* The next step begins. */
static void time_cut(struct ps_trace_context *c, const struct ps_cut *cut, uint64_t time_ns)
{
    if (cut->cut && cut->kind != PS_KIND_NONE) {
        c->kind_ns[cut->kind] = time_ns - c->begin_ns;
    }
    if (cut->cut || c->n_steps == 0) {
        c->begin_ns = time_ns;
    }
}

/* ---- ranges ---- */

/* Number of a region's name, from 1; 0: it does not match. */
static uint32_t match(struct playing *p, const char *range)
{
    char name[PS_REGION_NAME_MAX];
    struct ps_trace_play *play = p->play;

    if (!ps_patterns_match(&p->patterns, range, name)) {
        return 0;
    }
    for (uint32_t i = 0; i < play->n_names; i++) {
        if (strcmp(play->names[i], name) == 0) {
            return i + 1;
        }
    }
    if (play->n_names == PS_TRACE_NAMES_MAX) {
        return PS_TRACE_NAMES_MAX;
    }
    memcpy(play->names[play->n_names], name, sizeof(name));
    return ++play->n_names;
}

static void close_group(struct playing *p, struct thread *th, uint64_t time)
{
    ps_segment_pop(&context_of(p, th->group_context)->segment, th->group, time);
    th->group = (struct ps_seg_id){0};
}

static void play_push(struct playing *p, const struct ps_trace_event *e, struct thread *th)
{
    const char *range = p->t->texts + e->text;
    struct ps_trace_context *c = context_of(p, th->context);
    const uint32_t name = match(p, range);
    struct ps_cut cut;

    if (p->settings->step[0] != '\0' && fnmatch(p->settings->step, range, 0) == 0) {
        ps_segment_step(&c->segment, e->time_ns, &cut);
        count_cut(c, &cut);
        time_cut(c, &cut, e->time_ns);
    }
    const enum ps_region_act act = ps_region_stack_push(&th->stack, name);

    if (act == PS_REGION_CLOSE_OPEN) {
        close_group(p, th, e->time_ns);
    }
    if (act == PS_REGION_OPEN || act == PS_REGION_CLOSE_OPEN) {
        th->ordinal = 0;
        th->group_context = th->context;
        th->group = ps_segment_push(&c->segment, name, e->time_ns, &cut);
        count_cut(c, &cut);
        time_cut(c, &cut, e->time_ns);
    }
}

/* ---- memory ---- */

static void assume_valid(struct playing *p, struct ps_trace_context *c, struct ps_seg_id id,
                         uint64_t bytes)
{
    const uint64_t parts = p->settings->valid_parts;

    if (parts != 0) {
        ps_segment_valid(&c->segment, id,
                         bytes / MILLION * parts + bytes % MILLION * parts / MILLION);
    }
}

static void play_alloc(struct playing *p, const struct ps_trace_event *e, struct thread *th)
{
    const uint32_t index = p->t->ids[e->first];
    const struct ps_trace_alloc *a = &p->t->allocs[index];
    struct ps_trace_context *c = context_of(p, th->context);
    struct block *b = &p->blocks[index];
    const bool region = th->stack.open_depth != 0 && a->ordered;
    const uint32_t counted = th->ordinal;

    b->context = th->context;
    if (region) {
        th->ordinal = (a->ordinal != PS_TRACE_NONE ? a->ordinal : counted) + 1;
    }
    if (region && a->bytes >= p->settings->min_bytes && th->group_context == th->context) {
        b->id = ps_segment_alloc(&c->segment, th->group, th->ordinal - 1, a->bytes, e->time_ns);
    }
    if (b->id.serial != 0) {
        c->region_bytes += a->bytes;
        c->n_tensors++;
        p->play->n_told += a->told;
        p->play->n_assumed += !a->told && p->settings->valid_parts != 0;
        if (!a->told) {
            assume_valid(p, c, b->id, a->bytes);
        }
    } else {
        c->other_bytes += a->bytes;
    }
    account(p, c);
}

static void play_free(struct playing *p, const struct ps_trace_event *e)
{
    const uint32_t index = p->t->ids[e->first];
    const uint64_t bytes = p->t->allocs[index].bytes;
    struct block *b = &p->blocks[index];
    struct ps_trace_context *c = context_of(p, b->context);

    if (b->id.serial != 0) {
        ps_segment_free(&c->segment, b->id, e->time_ns);
        c->region_bytes -= bytes;
    } else {
        c->other_bytes -= bytes;
    }
    account(p, c);
}

static void play_use(struct playing *p, const struct ps_trace_event *e)
{
    for (uint32_t i = 0; i < e->n_ids; i++) {
        const struct block *b = &p->blocks[p->t->ids[e->first + i]];

        if (b->id.serial != 0) {
            ps_segment_touch(&context_of(p, b->context)->segment, b->id, e->time_ns);
        }
    }
}

static void play_valid(struct playing *p, const struct ps_trace_event *e)
{
    const struct block *b = &p->blocks[p->t->ids[e->first]];

    if (b->id.serial != 0) {
        ps_segment_valid(&context_of(p, b->context)->segment, b->id, e->bytes);
    }
}

/* ---- all of it ---- */

static void play_event(struct playing *p, const struct ps_trace_event *e)
{
    struct thread *th = &p->threads[e->thread];

    switch ((enum ps_trace_kind)e->kind) {
    case PS_TRACE_CONTEXT:
        th->context = find_context(p, e->bytes);
        break;
    case PS_TRACE_PUSH:
        play_push(p, e, th);
        break;
    case PS_TRACE_POP:
        if (ps_region_stack_pop(&th->stack) == PS_REGION_CLOSE) {
            close_group(p, th, e->time_ns);
        }
        break;
    case PS_TRACE_ALLOC:
        play_alloc(p, e, th);
        break;
    case PS_TRACE_FREE:
        play_free(p, e);
        break;
    case PS_TRACE_LAUNCH:
    case PS_TRACE_COPY:
    case PS_TRACE_FILL:
        play_use(p, e);
        break;
    case PS_TRACE_VALID:
        play_valid(p, e);
        break;
    case PS_TRACE_SMALL:
        p->small_bytes = e->bytes;
        account(p, context_of(p, th->context));
        break;
    case PS_TRACE_CUT:
    case PS_TRACE_END:
    default:
        break;
    }
}

/* The last step has no push behind it. */
static void finish(struct ps_trace_context *c)
{
    struct ps_cut cut;

    if (c->segment.n_alive == 0 && c->segment.now.n_groups != 0) {
        ps_segment_end(&c->segment, &cut);
        count_cut(c, &cut);
    }
}

enum ps_status ps_trace_play(const struct ps_trace *t, const struct ps_trace_settings *settings,
                             struct ps_trace_play *play)
{
    struct playing p = {.t = t, .settings = settings, .play = play};
    enum ps_status s = PS_OK;

    memset(play, 0, sizeof(*play));
    if (!ps_patterns_init(&p.patterns, settings->regions)) {
        return PS_ERR_INVALID;
    }
    p.threads = calloc(t->n_threads + 1u, sizeof(*p.threads));
    p.blocks = calloc(t->n_allocs + 1u, sizeof(*p.blocks));
    if (p.threads == NULL || p.blocks == NULL) {
        s = PS_ERR_MEMORY;
    } else {
        find_context(&p, 0);
        for (uint32_t i = 0; i < t->n_events; i++) {
            play_event(&p, &t->events[i]);
        }
        for (uint32_t i = 0; i < play->n_contexts; i++) {
            finish(&play->contexts[i]);
        }
    }
    free(p.threads);
    free(p.blocks);
    return s;
}

void ps_trace_play_fini(struct ps_trace_play *play)
{
    for (uint32_t i = 0; i < play->n_contexts; i++) {
        ps_segment_fini(&play->contexts[i].segment);
    }
}

struct ps_trace_context *ps_trace_busiest(struct ps_trace_play *play)
{
    struct ps_trace_context *best = NULL;

    for (uint32_t i = 0; i < play->n_contexts; i++) {
        struct ps_trace_context *c = &play->contexts[i];

        if (c->n_tensors != 0 && (best == NULL || c->n_tensors > best->n_tensors)) {
            best = c;
        }
    }
    return best;
}
