/* SPDX-License-Identifier: Apache-2.0 */
/* Makes steps; see steps.h. Ends the test when memory runs out. */
#include "tests/support/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_SITES 5
#define NONE    PS_PLAN_NONE

static const uint32_t shares[N_SITES] = {4, 4, 2, 2, 4}; /* of a layer's rows, sixteenths */

/* xorshift64*; the same everywhere. */
static uint64_t next_random(uint64_t *random)
{
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    return *random * UINT64_C(0x2545f4914f6cdd1d);
}

uint32_t steps_below(uint64_t *random, uint32_t n)
{
    return (uint32_t)((next_random(random) >> 32) * n >> 32);
}

static void *grow(void *list, uint32_t n, uint32_t *room, size_t size)
{
    if (n < *room) {
        return list;
    }
    *room = *room == 0 ? 256 : 2 * *room;
    list = realloc(list, *room * size);
    if (list == NULL) {
        abort();
    }
    return list;
}

static void event(struct made_step *m, enum ps_plan_kind kind, uint32_t index)
{
    m->events = grow(m->events, m->step.n_events, &m->events_room, sizeof(*m->events));
    m->events[m->step.n_events++] = (struct ps_plan_event){
        .kind = (uint8_t)kind, .index = index, .other_bytes = m->other_bytes};
}

static uint32_t push(struct made_step *m, uint32_t name)
{
    m->names = grow(m->names, m->step.n_groups, &m->groups_room, sizeof(*m->names));
    m->names[m->step.n_groups] = name;
    event(m, PS_PLAN_PUSH, m->step.n_groups);
    return m->step.n_groups++;
}

static uint32_t alloc(struct made_step *m, const struct ps_plan_tensor *t)
{
    m->tensors = grow(m->tensors, m->step.n_tensors, &m->tensors_room, sizeof(*m->tensors));
    m->tensors[m->step.n_tensors] = *t;
    event(m, PS_PLAN_ALLOC, m->step.n_tensors);
    return m->step.n_tensors++;
}

static void finish(struct made_step *m)
{
    m->step.events = m->events;
    m->step.tensors = m->tensors;
    m->step.names = m->names;
}

void steps_free(struct made_step *made)
{
    struct made_step *m = made;

    free(m->events);
    free(m->tensors);
    free(m->names);
    memset(m, 0, sizeof(*m));
}

static void start(struct made_step *m, uint64_t seed)
{
    *m = (struct made_step){.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 88172645463325252u};
}

/* Rows of a layer in 1/4096 of the balanced number: a sum of twelve uniforms is near enough to normal. */
static uint64_t rows_of(struct made_step *m, const struct steps_shape *shape)
{
    int64_t sum = 0;

    for (int i = 0; i < 12; i++) {
        sum += (int64_t)steps_below(&m->random, 4096) - 2048;
    }
    const int64_t rows = 4096 + sum * (int64_t)shape->spread_percent / 100;
    const int64_t most =
        shape->capacity_percent == 0 ? 8192 : 4096 * (int64_t)shape->capacity_percent / 100;

    return (uint64_t)(rows < 40 ? 40 : rows > most ? most : rows);
}

/* One layer's forward; the first tensor's number. Kept ones only are left, N_SITES of them. */
static uint32_t forward(struct made_step *m, const struct steps_shape *shape, uint32_t *group_p)
{
    const uint64_t rows = rows_of(m, shape);
    const uint32_t group = push(m, 0);
    uint32_t first = NONE, temporary = NONE;
    uint32_t ordinal = 0;

    if (shape->temporaries) {
        const struct ps_plan_tensor t = {
            .group = group,
            .ordinal = ordinal,
            .bytes = shape->row_bytes / 4 *
                     (shape->capacity_percent == 0 ? 100 : shape->capacity_percent) / 100,
            .valid = PS_PLAN_UNKNOWN};

        temporary = alloc(m, &t);
        ordinal++;
    }
    for (uint32_t i = 0; i < N_SITES; i++) {
        const uint64_t balanced = shape->row_bytes / 16 * shares[i];
        const uint64_t valid = balanced / 4096 * rows;
        const struct ps_plan_tensor t = {.group = group,
                                         .ordinal = ordinal,
                                         .bytes = shape->capacity_percent == 0
                                                      ? valid
                                                      : balanced / 100 * shape->capacity_percent,
                                         .valid = valid};
        const uint32_t tensor = alloc(m, &t);

        ordinal++;
        first = first == NONE ? tensor : first;
    }
    if (temporary != NONE) {
        event(m, PS_PLAN_FREE, temporary);
    }
    event(m, PS_PLAN_POP, group);
    *group_p = group;
    return first;
}

static void free_all(struct made_step *m, uint32_t first)
{
    for (uint32_t i = N_SITES; i-- > 0;) {
        event(m, PS_PLAN_FREE, first + i);
    }
}

struct chunk {
    uint32_t *groups, *firsts; /* of its layers */
};

static void forward_chunk(struct made_step *m, const struct steps_shape *shape, struct chunk *c)
{
    for (uint32_t i = 0; i < shape->layers; i++) {
        c->firsts[i] = forward(m, shape, &c->groups[i]);
        if (shape->recompute) {
            free_all(m, c->firsts[i]);
        }
    }
}

static void backward_chunk(struct made_step *m, const struct steps_shape *shape, struct chunk *c)
{
    for (uint32_t i = shape->layers; i-- > 0;) {
        if (shape->recompute) {
            c->firsts[i] = forward(m, shape, &c->groups[i]);
        }
        event(m, PS_PLAN_RETURN, c->groups[i]);
        free_all(m, c->firsts[i]);
    }
}

static void evaluate(struct made_step *m, const struct steps_shape *shape)
{
    for (uint32_t i = 0; i < shape->evaluations; i++) {
        uint32_t group;

        free_all(m, forward(m, shape, &group));
    }
}

struct schedule {
    const struct steps_shape *shape;
    struct made_step *made;
    struct chunk *chunks; /* by virtual stage, then microbatch */
};

/* Number k of the forward passes; of a backward one, the virtual stages go the other way. */
static struct chunk *chunk_of(const struct schedule *s, uint32_t k, bool backward)
{
    const uint32_t p = s->shape->stages, v = s->shape->virtual_stages;
    uint32_t chunk = 0, microbatch = k;

    if (s->shape->schedule == STEPS_INTERLEAVED) {
        chunk = k % (p * v) / p;
        chunk = backward ? v - 1 - chunk : chunk;
        microbatch = k / (p * v) * p + k % p;
    }
    return &s->chunks[chunk * s->shape->microbatches + microbatch];
}

static uint32_t warm_up(const struct steps_shape *shape, uint32_t total)
{
    uint32_t n = 0;

    if (shape->schedule == STEPS_1F1B) {
        n = shape->stages - shape->stage - 1;
    } else if (shape->schedule == STEPS_INTERLEAVED) {
        n = (shape->stages - shape->stage - 1) * 2 + (shape->virtual_stages - 1) * shape->stages;
    }
    return n < total ? n : total;
}

void steps_make(const struct steps_shape *given, struct made_step *made)
{
    struct steps_shape shape = *given;
    struct schedule s = {.shape = &shape, .made = made};
    struct made_step *m = made;

    shape.virtual_stages = shape.schedule == STEPS_INTERLEAVED ? shape.virtual_stages : 1;
    const uint32_t total = shape.microbatches * shape.virtual_stages;
    const uint32_t ahead = warm_up(&shape, total);
    uint32_t *numbers = calloc(2 * (size_t)total * shape.layers + 1, sizeof(*numbers));

    s.chunks = calloc(total + (size_t)1, sizeof(*s.chunks));
    if (numbers == NULL || s.chunks == NULL) {
        abort();
    }
    for (uint32_t i = 0; i < total; i++) {
        s.chunks[i].groups = numbers + 2 * (size_t)i * shape.layers;
        s.chunks[i].firsts = s.chunks[i].groups + shape.layers;
    }
    start(m, shape.seed);
    m->other_bytes = shape.other_bytes;
    for (uint32_t i = 0; i < total + ahead; i++) {
        if (i < total) {
            forward_chunk(m, &shape, chunk_of(&s, i, false));
        }
        if (i >= ahead) {
            backward_chunk(m, &shape, chunk_of(&s, i - ahead, true));
            evaluate(m, &shape);
        }
    }
    free(s.chunks);
    free(numbers);
    finish(m);
}

struct random_group {
    uint32_t n_allocs, n_live;
    bool open, returned;
};

struct random_state {
    struct made_step *m;
    struct random_group *groups;
    uint32_t *live; /* tensors */
    uint32_t n_live, n_open, n_names;
    uint32_t site_units[8][6];
};

static void random_alloc(struct random_state *r, uint32_t group)
{
    uint64_t *random = &r->m->random;
    const uint32_t ordinal = r->groups[group].n_allocs++;
    const uint64_t bytes = r->site_units[r->m->names[group]][ordinal % 6] * STEPS_MIB / 2 +
                           steps_below(random, 3) * 512;
    const uint64_t valid = bytes / 100 * steps_below(random, 101);

    if (steps_below(random, 8) == 0) {
        return; /* zero rows */
    }
    const struct ps_plan_tensor t = {.group = group,
                                     .ordinal = ordinal,
                                     .bytes = bytes,
                                     .valid =
                                         steps_below(random, 10) == 0 ? PS_PLAN_UNKNOWN : valid};
    r->live[r->n_live++] = alloc(r->m, &t);
    r->groups[group].n_live++;
}

static void random_free(struct random_state *r, uint32_t which)
{
    const uint32_t tensor = r->live[which];

    r->live[which] = r->live[--r->n_live];
    r->groups[r->m->tensors[tensor].group].n_live--;
    event(r->m, PS_PLAN_FREE, tensor);
}

/* A return, mostly of the youngest, and its frees. */
static void random_backward(struct random_state *r)
{
    struct made_step *m = r->m;
    uint32_t group = NONE;

    for (uint32_t tries = 0; tries < 4 && r->n_live > 0; tries++) {
        const uint32_t which =
            steps_below(&m->random, 3) == 0 ? steps_below(&m->random, r->n_live) : r->n_live - 1;
        const uint32_t g = m->tensors[r->live[which]].group;

        if (!r->groups[g].open && !r->groups[g].returned) {
            group = g;
            break;
        }
    }
    if (group == NONE) {
        return;
    }
    r->groups[group].returned = true;
    event(m, PS_PLAN_RETURN, group);
    for (uint32_t i = r->n_live; i-- > 0;) {
        if (m->tensors[r->live[i]].group == group && steps_below(&m->random, 20) != 0) {
            random_free(r, i);
        }
    }
}

static void random_act(struct random_state *r, uint32_t n_groups)
{
    struct made_step *m = r->m;
    const uint32_t dice = steps_below(&m->random, 16);

    m->other_bytes = steps_below(&m->random, 64) * STEPS_MIB;
    if (dice < 4 && r->n_open < 3 && m->step.n_groups < n_groups) {
        const uint32_t group = push(m, steps_below(&m->random, r->n_names));

        r->groups[group] = (struct random_group){.open = true};
        r->n_open++;
        for (uint32_t n = steps_below(&m->random, 4); n > 0; n--) {
            random_alloc(r, group);
        }
    } else if (dice < 9 && r->n_open > 0) {
        uint32_t group = m->step.n_groups - 1;

        while (!r->groups[group].open) {
            group--;
        }
        if (steps_below(&m->random, 3) == 0) {
            random_alloc(r, group);
        } else {
            r->groups[group].open = false;
            r->n_open--;
            event(m, PS_PLAN_POP, group);
        }
    } else if (dice < 14) {
        random_backward(r);
    } else if (r->n_live > 0) {
        random_free(r, steps_below(&m->random, r->n_live));
    }
}

void steps_random(uint64_t seed, uint32_t n_groups, struct made_step *made)
{
    struct made_step *m = made;
    struct random_state r = {.m = m};

    start(m, seed);
    r.groups = calloc(n_groups + (size_t)1, sizeof(*r.groups));
    r.live = calloc((size_t)n_groups * 64 + 64, sizeof(*r.live));
    if (r.groups == NULL || r.live == NULL) {
        abort();
    }
    r.n_names = 1 + steps_below(&m->random, 4);
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 6; j++) {
            r.site_units[i][j] = 1 + steps_below(&m->random, 40);
        }
    }
    for (uint32_t i = 0; i < 24 * n_groups && r.n_live < 64 * n_groups; i++) {
        random_act(&r, n_groups);
    }
    free(r.groups);
    free(r.live);
    finish(m);
}

#define TRACE_STEPS   5
#define TRACE_TENSORS 256 /* of a step, and frees of its backward */

struct trace {
    struct made_step *m;
    uint64_t min_bytes;
    /* By frees so far in backward and tensor: bit k, a launch there named it in step k. */
    uint8_t named[TRACE_TENSORS][TRACE_TENSORS];
    uint32_t number[TRACE_TENSORS];   /* of the trace's tensors: in the step, or NONE */
    uint32_t returned[TRACE_TENSORS]; /* by group */
    uint32_t first_id, n_frees, step;
    uint32_t open, n_ordinals;
    bool backward, learning;
};

/*
 * A launch that names tensors, listed as 1,2,2. A third of the names are left over from earlier launches: what counts
 * is named at the same place in all steps.
 */
static void trace_touch(struct trace *t, const char *ids)
{
    while (t->backward && t->n_frees < TRACE_TENSORS) {
        char *end;
        const uint32_t id = (uint32_t)strtoul(ids, &end, 10) - t->first_id;
        uint8_t *named = &t->named[t->n_frees][id % TRACE_TENSORS];

        if (end == ids) {
            return;
        }
        if (t->learning && id < TRACE_TENSORS) {
            *named |= (uint8_t)(1u << t->step);
        } else if (id < TRACE_TENSORS && *named == (1u << TRACE_STEPS) - 1 &&
                   t->number[id] != NONE) {
            const uint32_t group = t->m->tensors[t->number[id]].group;

            if (t->returned[group]++ == 0) {
                event(t->m, PS_PLAN_RETURN, group);
            }
        }
        if (*end != ',') {
            return;
        }
        ids = end + 1;
    }
}

static void trace_alloc(struct trace *t, uint32_t id, uint64_t bytes)
{
    const struct ps_plan_tensor tensor = {
        .group = t->open, .ordinal = t->n_ordinals++, .bytes = bytes, .valid = PS_PLAN_UNKNOWN};

    t->first_id = t->first_id == NONE ? id : t->first_id;
    if (!t->learning && t->open != NONE && bytes >= t->min_bytes &&
        id - t->first_id < TRACE_TENSORS) {
        t->number[id - t->first_id] = alloc(t->m, &tensor);
    }
}

static void trace_free(struct trace *t, uint32_t id)
{
    t->n_frees += t->backward;
    if (!t->learning && id - t->first_id < TRACE_TENSORS && t->number[id - t->first_id] != NONE) {
        event(t->m, PS_PLAN_FREE, t->number[id - t->first_id]);
    }
}

static void trace_event(struct trace *t, const char *kind, const char *ids, uint64_t bytes,
                        const char *detail)
{
    const uint32_t id = (uint32_t)strtoul(ids, NULL, 10);

    if (strcmp(kind, "push") == 0 && strncmp(detail, "step", 4) == 0) {
        t->step = (uint32_t)strtoul(detail + 4, NULL, 10);
        t->first_id = t->open = NONE;
        t->n_frees = 0;
        t->backward = false;
    } else if (strcmp(kind, "push") == 0 && strcmp(detail, "moe_experts") == 0) {
        t->open = t->learning ? NONE : push(t->m, 0);
        t->n_ordinals = 0;
    } else if (strcmp(kind, "push") == 0) {
        t->backward = true;
    } else if (strcmp(kind, "pop") == 0 && t->open != NONE) {
        event(t->m, PS_PLAN_POP, t->open);
        t->open = NONE;
    } else if (strcmp(kind, "alloc") == 0) {
        trace_alloc(t, id, bytes);
    } else if (strcmp(kind, "launch") == 0) {
        trace_touch(t, ids);
    } else if (strcmp(kind, "free") == 0) {
        trace_free(t, id);
    }
}

static void trace_read(struct trace *t, FILE *f, uint32_t step)
{
    char line[1024], kind[16], ids[512], bytes[32], detail[256];

    rewind(f);
    t->step = NONE;
    while (fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "%*u %15s %*u %511s %31s %255s", kind, ids, bytes, detail) != 4) {
            continue;
        }
        const bool begins = strcmp(kind, "push") == 0 && strncmp(detail, "step", 4) == 0;
        const uint32_t now = begins ? (uint32_t)strtoul(detail + 4, NULL, 10) : t->step;

        if (t->learning || now == step) {
            trace_event(t, kind, ids, strtoull(bytes, NULL, 10), detail);
        }
        t->step = now;
    }
}

bool steps_read(const char *path, uint32_t step, uint64_t min_bytes, struct made_step *made)
{
    struct made_step *m = made;
    struct trace *t = calloc(1, sizeof(*t));
    FILE *f = fopen(path, "r");

    start(m, 1);
    if (f == NULL || t == NULL) {
        abort();
    }
    *t = (struct trace){.m = m, .min_bytes = min_bytes, .open = NONE, .learning = true};
    memset(t->number, 0xff, sizeof(t->number));
    trace_read(t, f, step);
    t->learning = false;
    trace_read(t, f, step);
    fclose(f);
    free(t);
    finish(m);
    return m->step.n_groups != 0;
}
