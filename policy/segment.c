/* SPDX-License-Identifier: Apache-2.0 */
/* Steps and kinds of steps; see segment.h. Called with the caller's lock held. */
#include "policy/segment.h"

#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"

/* Items: what the kind of a step is made of. The low bits are the name of a push, else the group. */
#define ITEM_PUSH  UINT32_C(0x00000000)
#define ITEM_POP   UINT32_C(0x40000000)
#define ITEM_DEATH UINT32_C(0x80000000)
#define ITEM_KIND  UINT32_C(0xc0000000)
#define ITEM_INDEX UINT32_C(0x3fffffff)

static const struct ps_seg_id no_id = {0, PS_PLAN_NONE, PS_PLAN_NONE};

/* ---- records ---- */

static void record_fini(struct ps_record *r)
{
    free(r->events);
    free(r->tensors);
    free(r->names);
    free(r->groups);
    free(r->items);
    free(r->touched);
    free(r->touches);
    *r = (struct ps_record){0};
}

/* Empties it, but keeps its memory. */
static void record_clear(struct ps_record *r)
{
    r->serial = 0;
    r->n_events = r->n_tensors = r->n_groups = r->n_items = r->n_touches = r->n_live = 0;
    r->signature = 0;
}

/* Room for one more in the array that array_p points to; false: host memory is exhausted, nothing changed. */
static bool grow(void *array_p, size_t item_bytes, uint32_t n, uint32_t *room)
{
    void *array;

    if (n < *room) {
        return true;
    }
    memcpy(&array, array_p, sizeof(array));
    const uint32_t more = *room == 0 ? 64 : *room * 2;

    array = more != 0 ? realloc(array, more * item_bytes) : NULL; /* 0: more than can be counted */
    if (array == NULL) {
        return false;
    }
    memcpy(array_p, &array, sizeof(array));
    *room = more;
    return true;
}

static bool grow_groups(struct ps_record *r)
{
    uint32_t names_room = r->groups_room;

    return grow(&r->names, sizeof(*r->names), r->n_groups, &names_room) &&
           grow(&r->groups, sizeof(*r->groups), r->n_groups, &r->groups_room);
}

static bool grow_tensors(struct ps_record *r)
{
    uint32_t touched_room = r->tensors_room;

    return grow(&r->touched, sizeof(*r->touched), r->n_tensors, &touched_room) &&
           grow(&r->tensors, sizeof(*r->tensors), r->n_tensors, &r->tensors_room);
}

/* ---- the kinds that the current step may be of ---- */

static bool holds(const struct ps_record *r, uint32_t group)
{
    return group < r->n_groups && r->groups[group].held;
}

/* Passes over deaths of groups that hold nothing this time. */
static void skip_empty(const struct ps_record *now, struct ps_kind *k)
{
    const struct ps_record *r = &k->record[0];

    while (k->cursor < r->n_items && (r->items[k->cursor] & ITEM_KIND) == ITEM_DEATH &&
           !holds(now, r->items[k->cursor] & ITEM_INDEX)) {
        k->cursor++;
    }
}

static bool follows(const struct ps_record *now, struct ps_kind *k, uint32_t item)
{
    const struct ps_record *r = &k->record[0];

    if ((item & ITEM_KIND) == ITEM_DEATH && !holds(r, item & ITEM_INDEX)) {
        return true; /* that group held nothing then */
    }
    if (k->cursor < r->n_items && r->items[k->cursor] != item) {
        skip_empty(now, k);
    }
    if (k->cursor == r->n_items || r->items[k->cursor] != item) {
        return false;
    }
    k->cursor++;
    return true;
}

static uint64_t mix(uint64_t hash, uint32_t item)
{
    hash ^= item + UINT64_C(0x9e3779b97f4a7c15) + (hash << 6) + (hash >> 2);
    hash ^= hash >> 30;
    return hash * UINT64_C(0xbf58476d1ce4e5b9);
}

static void give_up(struct ps_segment *s)
{
    s->broken = true;
    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        s->kinds[i].alive = false;
    }
}

static void add_item(struct ps_segment *s, uint32_t item)
{
    struct ps_record *r = &s->now;

    if (!grow(&r->items, sizeof(*r->items), r->n_items, &r->items_room)) {
        give_up(s);
        return;
    }
    r->items[r->n_items++] = item;
    r->signature = mix(r->signature, item);
    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        struct ps_kind *k = &s->kinds[i];

        k->alive = k->alive && follows(r, k, item);
    }
}

uint32_t ps_segment_matching(const struct ps_segment *s)
{
    uint32_t mask = 0;

    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        mask |= (uint32_t)s->kinds[i].alive << i;
    }
    return mask;
}

/* ---- the end of a step ---- */

static void begin(struct ps_segment *s)
{
    s->serial++;
    s->now.serial = s->serial;
    s->broken = false;
    s->begin_ns = 0;
    s->n_alive = 0;
    s->watch_alive = 0;
    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        s->kinds[i].alive = s->kinds[i].id != 0;
        s->kinds[i].cursor = 0;
    }
}

/* The kind that the step, now whole, is of. */
static uint32_t find_kind(struct ps_segment *s)
{
    uint32_t found = PS_KIND_NONE;

    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        struct ps_kind *k = &s->kinds[i];

        if (!k->alive) {
            continue;
        }
        skip_empty(&s->now, k);
        if (k->cursor != k->record[0].n_items) {
            continue;
        }
        if (k->record[0].signature == s->now.signature) {
            return i;
        }
        if (found == PS_KIND_NONE || k->last > s->kinds[found].last) {
            found = i;
        }
    }
    return found;
}

/* A slot for a new kind: a free one, else the one of a single group that was used longest ago, else of any. */
static uint32_t find_slot(const struct ps_segment *s)
{
    uint32_t oldest = PS_KIND_NONE, oldest_single = PS_KIND_NONE;

    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        const struct ps_kind *k = &s->kinds[i];
        const bool single = k->record[0].n_groups <= 1;

        if (k->id == 0) {
            return i;
        }
        if (single && (oldest_single == PS_KIND_NONE || k->last < s->kinds[oldest_single].last)) {
            oldest_single = i;
        }
        if (oldest == PS_KIND_NONE || k->last < s->kinds[oldest].last) {
            oldest = i;
        }
    }
    return oldest_single != PS_KIND_NONE || s->now.n_groups <= 1 ? oldest_single : oldest;
}

static void keep(struct ps_segment *s, struct ps_cut *cut)
{
    uint32_t i = find_kind(s);

    cut->known = i != PS_KIND_NONE;
    if (!cut->known) {
        i = find_slot(s);
        if (i == PS_KIND_NONE) {
            return;
        }
        s->kinds[i].id = ++s->n_kinds_made;
        s->kinds[i].count = 0;
        record_clear(&s->kinds[i].record[0]);
        record_clear(&s->kinds[i].record[1]);
    }
    struct ps_kind *k = &s->kinds[i];
    struct ps_record spare = k->record[1];

    k->record[1] = k->record[0];
    k->record[0] = s->now;
    s->now = spare;
    k->count++;
    k->last = s->serial;
    cut->kind = i;
}

static void end(struct ps_segment *s, struct ps_cut *cut)
{
    *cut = (struct ps_cut){.cut = true, .kind = PS_KIND_NONE, .serial = s->serial};
    cut->complete = !s->broken && s->now.n_live == 0;
    if (!s->broken && s->begun && s->now.n_groups > 0) {
        keep(s, cut);
    }
    record_clear(&s->now);
    begin(s);
}

void ps_segment_init(struct ps_segment *s, bool by_range)
{
    *s = (struct ps_segment){.by_range = by_range, .begun = !by_range};
    s->n_needed = PS_SEGMENT_OBSERVATIONS;
    begin(s);
}

void ps_segment_fini(struct ps_segment *s)
{
    record_fini(&s->now);
    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        record_fini(&s->kinds[i].record[0]);
        record_fini(&s->kinds[i].record[1]);
    }
    *s = (struct ps_segment){.by_range = true, .broken = true};
}

void ps_segment_by_range(struct ps_segment *s)
{
    s->by_range = true;
}

void ps_segment_forget(struct ps_segment *s)
{
    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        record_fini(&s->kinds[i].record[0]);
        record_fini(&s->kinds[i].record[1]);
        s->kinds[i] = (struct ps_kind){0};
    }
}

/* ---- events ---- */

static uint64_t since_begin(const struct ps_segment *s, uint64_t time)
{
    return time > s->begin_ns ? time - s->begin_ns : 0;
}

static void add_event(struct ps_segment *s, enum ps_plan_kind kind, uint32_t index, uint64_t time)
{
    struct ps_record *r = &s->now;

    if (r->n_events == PS_SEGMENT_EVENTS_MAX ||
        !grow(&r->events, sizeof(*r->events), r->n_events, &r->events_room)) {
        give_up(s);
        return;
    }
    if (r->n_events == 0 && !s->by_range) {
        s->begin_ns = time;
    }
    r->events[r->n_events++] = (struct ps_plan_event){
        .kind = (uint8_t)kind,
        .index = index,
        .other_bytes = s->other_bytes,
        .time_ns = since_begin(s, time),
    };
}

static void remember_background(struct ps_segment *s, uint32_t group)
{
    if (s->n_background < PS_SEGMENT_BACKGROUND) {
        s->background[s->n_background++] =
            (struct ps_background){s->serial, group, s->now.groups[group].n_live};
    }
}

/* Groups are alive at a push. True: they always are, so they are no reason not to cut. */
static bool only_background(struct ps_segment *s)
{
    if (s->watch_alive != s->n_alive) {
        if (s->watch_alive == 0) {
            s->watch_before = s->now.n_groups;
            s->watch_alive = s->n_alive;
            s->n_seen = 1;
            s->born_and_dead = false;
        }
        return false;
    }
    if (!s->born_and_dead) {
        return false;
    }
    s->born_and_dead = false;
    if (++s->n_seen < s->n_needed) {
        return false;
    }
    for (uint32_t i = 0; i < s->now.n_groups; i++) {
        if (s->now.groups[i].n_live != 0) {
            remember_background(s, i);
        }
    }
    return true;
}

struct ps_seg_id ps_segment_push(struct ps_segment *s, uint32_t name, uint64_t time_ns,
                                 struct ps_cut *cut_p)
{
    struct ps_record *r = &s->now;

    *cut_p = (struct ps_cut){.kind = PS_KIND_NONE};
    if (!s->by_range && (r->n_groups > 0 || s->broken) &&
        (s->broken || s->n_alive == 0 || only_background(s))) {
        end(s, cut_p);
    }
    if (s->broken || !grow_groups(r)) {
        give_up(s);
        return no_id;
    }
    const struct ps_seg_id id = {s->serial, r->n_groups, PS_PLAN_NONE};

    r->names[id.group] = name;
    r->groups[id.group] = (struct ps_seg_group){0};
    r->n_groups++;
    add_event(s, PS_PLAN_PUSH, id.group, time_ns);
    add_item(s, ITEM_PUSH | (name & ITEM_INDEX));
    return s->broken ? no_id : id;
}

static bool is_current(const struct ps_segment *s, struct ps_seg_id id)
{
    return id.serial != 0 && id.serial == s->serial && !s->broken;
}

void ps_segment_pop(struct ps_segment *s, struct ps_seg_id group, uint64_t time_ns)
{
    if (!is_current(s, group) || s->now.groups[group.group].closed) {
        return;
    }
    struct ps_seg_group *g = &s->now.groups[group.group];

    g->closed = true;
    g->held = g->n_live != 0;
    g->pushes = s->now.n_groups;
    g->pop = s->now.n_events;
    add_event(s, PS_PLAN_POP, group.group, time_ns);
    add_item(s, ITEM_POP | group.group);
}

struct ps_seg_id ps_segment_alloc(struct ps_segment *s, struct ps_seg_id group, uint32_t ordinal,
                                  uint64_t bytes, uint64_t time_ns)
{
    struct ps_record *r = &s->now;

    if (!is_current(s, group) || r->groups[group.group].closed) {
        return no_id;
    }
    if (!grow_tensors(r)) {
        give_up(s);
        return no_id;
    }
    const struct ps_seg_id id = {s->serial, group.group, r->n_tensors};

    r->touched[id.tensor] = 0;
    r->tensors[r->n_tensors++] =
        (struct ps_plan_tensor){group.group, ordinal, bytes, PS_PLAN_UNKNOWN};
    r->n_live++;
    s->n_alive += r->groups[group.group].n_live++ == 0;
    add_event(s, PS_PLAN_ALLOC, id.tensor, time_ns);
    return s->broken ? no_id : id;
}

static void group_dies(struct ps_segment *s, uint32_t group)
{
    s->n_alive--;
    if (s->watch_alive != 0 && group < s->watch_before) {
        s->watch_alive = 0;
    } else {
        s->born_and_dead = true;
    }
    if (s->now.groups[group].closed) {
        add_item(s, ITEM_DEATH | group);
    }
}

/* A tensor of a step that has ended. */
static void free_old(struct ps_segment *s, struct ps_seg_id tensor)
{
    for (uint32_t i = 0; i < s->n_background; i++) {
        struct ps_background *b = &s->background[i];

        if (b->serial != tensor.serial || b->group != tensor.group) {
            continue;
        }
        if (--b->n_live == 0) {
            *b = s->background[--s->n_background];
            s->n_needed = s->n_needed < UINT32_MAX / 2 ? s->n_needed * 2 : s->n_needed;
        }
        return;
    }
}

void ps_segment_free(struct ps_segment *s, struct ps_seg_id tensor, uint64_t time_ns)
{
    if (tensor.serial != s->serial) {
        free_old(s, tensor);
        return;
    }
    if (!is_current(s, tensor)) {
        return;
    }
    ps_assert(s->now.groups[tensor.group].n_live > 0);
    add_event(s, PS_PLAN_FREE, tensor.tensor, time_ns);
    s->now.n_live--;
    if (--s->now.groups[tensor.group].n_live == 0) {
        group_dies(s, tensor.group);
    }
}

/* Between which items we are; names of pushes are no matter, their number is. */
static uint64_t place_now(const struct ps_record *r)
{
    const uint32_t last = r->n_items == 0 ? 0 : r->items[r->n_items - 1];

    return (uint64_t)r->n_groups << 32 | ((last & ITEM_KIND) == ITEM_PUSH ? 0 : last);
}

void ps_segment_touch(struct ps_segment *s, struct ps_seg_id tensor, uint64_t time_ns)
{
    struct ps_record *r = &s->now;

    if (!is_current(s, tensor)) {
        return;
    }
    struct ps_seg_group *g = &r->groups[tensor.group];
    const uint64_t place = place_now(r);

    if (!g->closed) {
        return;
    }
    if (g->touch == 0 || r->touches[g->touch - 1].place != place) {
        if (!grow(&r->touches, sizeof(*r->touches), r->n_touches, &r->touches_room)) {
            give_up(s);
            return;
        }
        r->touches[r->n_touches++] = (struct ps_seg_touch){
            .place = place,
            .group = tensor.group,
            .event = r->n_events,
            .time_ns = since_begin(s, time_ns),
        };
        g->touch = r->n_touches;
    }
    struct ps_seg_touch *t = &r->touches[g->touch - 1];

    t->n_touches++;
    if (r->touched[tensor.tensor] != g->touch) {
        r->touched[tensor.tensor] = g->touch;
        t->n_tensors++;
    }
}

void ps_segment_return(struct ps_segment *s, struct ps_seg_id group, uint64_t time_ns)
{
    if (!is_current(s, group)) {
        return;
    }
    struct ps_seg_group *g = &s->now.groups[group.group];

    if (g->closed && !g->returned) {
        g->returned = true;
        add_event(s, PS_PLAN_RETURN, group.group, time_ns);
    }
}

void ps_segment_other(struct ps_segment *s, uint64_t bytes)
{
    struct ps_record *r = &s->now;

    s->other_bytes = bytes;
    if (r->n_events > 0 && r->events[r->n_events - 1].other_bytes < bytes) {
        r->events[r->n_events - 1].other_bytes = bytes;
    }
}

static struct ps_record *find_record(struct ps_segment *s, uint64_t serial)
{
    if (serial == s->serial) {
        return &s->now;
    }
    for (uint32_t i = 0; i < PS_KINDS_MAX; i++) {
        for (uint32_t j = 0; j < 2; j++) {
            if (s->kinds[i].record[j].serial == serial) {
                return &s->kinds[i].record[j];
            }
        }
    }
    return NULL;
}

void ps_segment_valid(struct ps_segment *s, struct ps_seg_id tensor, uint64_t bytes)
{
    struct ps_record *r = tensor.serial != 0 ? find_record(s, tensor.serial) : NULL;

    if (r != NULL && tensor.tensor < r->n_tensors) {
        uint64_t *valid = &r->tensors[tensor.tensor].valid;

        *valid = *valid == PS_PLAN_UNKNOWN || *valid < bytes ? bytes : *valid;
    }
}

void ps_segment_step(struct ps_segment *s, uint64_t time_ns, struct ps_cut *cut_p)
{
    *cut_p = (struct ps_cut){.kind = PS_KIND_NONE};
    if (s->by_range) {
        end(s, cut_p);
        s->begun = true;
        s->begin_ns = time_ns;
    }
}

void ps_segment_end(struct ps_segment *s, struct ps_cut *cut_p)
{
    end(s, cut_p);
}
