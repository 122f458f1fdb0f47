/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happens-before checker: physical memory. A unit's bytes are cut into segments that share one history; accesses
 * split them at their ends and equal neighbours are joined again, so declared ranges are exact to the byte.
 * Guarded by the simulator's lock.
 */
#include "tools/simcuda/hb.h"

#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/hb_int.h"

/* ---- segments ---- */

static size_t reads_of(const struct segment *s)
{
    return s->reads == NULL ? 0 : s->n_reads;
}

static void segment_clear(struct segment *s)
{
    for (size_t i = 0; i < reads_of(s); i++) {
        hb_op_unref(s->reads[i].op);
    }
    s->n_reads = 0;
}

static void segment_fini(struct segment *s)
{
    segment_clear(s);
    free(s->reads);
    hb_op_unref(s->write.op);
}

static uint64_t segment_end(const struct hb_unit *u, size_t i)
{
    return i + 1 < u->n_segments ? u->segments[i + 1].start : u->bytes;
}

/* Index of the segment that holds the offset. */
static size_t segment_find(const struct hb_unit *u, uint64_t offset)
{
    size_t low = 0;
    size_t high = u->n_segments;

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (u->segments[middle].start <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Makes a segment start at the offset; returns its index. offset < bytes. */
static size_t segment_split(struct hb_unit *u, uint64_t offset)
{
    const size_t i = segment_find(u, offset);

    if (u->segments[i].start == offset) {
        return i;
    }
    u->segments = hb_grow(u->segments, u->n_segments, &u->max_segments, sizeof(*u->segments));
    memmove(&u->segments[i + 2], &u->segments[i + 1],
            (u->n_segments - i - 1) * sizeof(*u->segments));
    u->n_segments++;
    const struct segment *old = &u->segments[i];
    struct segment *s = &u->segments[i + 1];

    *s = *old;
    s->start = offset;
    if (s->write.op != NULL) {
        (void)hb_op_ref(s->write.op);
    }
    s->reads = NULL;
    s->max_reads = s->n_reads;
    if (s->n_reads > 0) {
        s->reads = hb_zalloc(s->n_reads, sizeof(*s->reads));
        memcpy(s->reads, old->reads, s->n_reads * sizeof(*s->reads));
    }
    for (size_t r = 0; r < reads_of(s); r++) {
        (void)hb_op_ref(s->reads[r].op);
    }
    return i + 1;
}

static bool seen_equal(const struct seen *a, const struct seen *b)
{
    return a->op == b->op && a->map == b->map && a->delta == b->delta && a->atomic == b->atomic;
}

static bool segment_equal(const struct segment *a, const struct segment *b)
{
    if (a->owner != b->owner || a->written != b->written || a->n_reads != b->n_reads ||
        !seen_equal(&a->write, &b->write)) {
        return false;
    }
    for (size_t i = 0; i < a->n_reads; i++) {
        if (!seen_equal(&a->reads[i], &b->reads[i])) {
            return false;
        }
    }
    return true;
}

/* Joins equal neighbours among the segments first - 1 … last + 1. */
static void segment_merge(struct hb_unit *u, size_t first, size_t last)
{
    size_t to = first > 0 ? first - 1 : 0;
    size_t from = to + 1;
    const size_t end = last + 2 < u->n_segments ? last + 2 : u->n_segments;

    for (; from < end; from++) {
        if (segment_equal(&u->segments[to], &u->segments[from])) {
            segment_fini(&u->segments[from]);
        } else {
            u->segments[++to] = u->segments[from];
        }
    }
    to++;
    if (to < end) {
        memmove(&u->segments[to], &u->segments[end], (u->n_segments - end) * sizeof(*u->segments));
        u->n_segments -= end - to;
    }
}

/* ---- units and mappings ---- */

struct hb_unit *hb_unit_create(struct hb *hb, uint64_t bytes, const char *label)
{
    (void)hb;
    struct hb_unit *u = hb_zalloc(1, sizeof(*u));

    u->bytes = bytes;
    u->n_segments = 1;
    u->max_segments = 4;
    u->segments = hb_zalloc(u->max_segments, sizeof(*u->segments));
    hb_copy_text(u->label, sizeof(u->label), label);
    return u;
}

void hb_unit_written(struct hb_unit *unit)
{
    unit->segments[0].written = true;
}

void hb_unit_destroy(struct hb *hb, struct hb_unit *unit)
{
    (void)hb;
    if (unit == NULL) {
        return;
    }
    for (size_t i = 0; i < unit->n_segments; i++) {
        segment_fini(&unit->segments[i]);
    }
    free(unit->segments);
    free(unit);
}

struct hb_map *hb_map(struct hb *hb, struct hb_unit *unit, uint64_t offset, uint64_t bytes,
                      uint64_t address)
{
    struct hb_map *map = hb_zalloc(1, sizeof(*map));

    map->unit = unit;
    map->serial = hb->next_map++;
    map->offset = offset;
    map->bytes = bytes;
    map->address = address;
    const size_t first = segment_split(unit, offset);
    const size_t end =
        offset + bytes < unit->bytes ? segment_split(unit, offset + bytes) : unit->n_segments;

    for (size_t i = first; i < end; i++) {
        if (unit->segments[i].owner == NULL) {
            unit->segments[i].owner = map;
            map->owned = true;
        }
    }
    segment_merge(unit, first, end - 1);
    return map;
}

void hb_unmap(struct hb *hb, struct hb_map *map, const char *name, const struct hb_op *by)
{
    struct hb_unit *unit = map->unit;
    struct hb_op *host = by == NULL ? hb_op_mark(hb, HB_HOST, name, 0) : NULL;
    const struct hb_op *now = by == NULL ? host : by;

    for (size_t i = 0; i < map->n_users; i++) {
        if (map->users[i] != now && !hb_op_ordered(map->users[i], now)) {
            hb_report_in_flight(hb, map, map->users[i], now);
        }
        hb_op_unref(map->users[i]);
    }
    hb_op_unref(host);
    const size_t first = segment_find(unit, map->offset);
    size_t last = first;

    for (size_t i = first;
         i < unit->n_segments && unit->segments[i].start < map->offset + map->bytes; i++) {
        if (unit->segments[i].owner == map) {
            unit->segments[i].owner = NULL;
        }
        last = i;
    }
    segment_merge(unit, first, last);
    free(map->users);
    free(map);
}

/* ---- accesses ---- */

static void map_used(struct hb_map *map, struct hb_op *op)
{
    for (size_t i = 0; i < map->n_users; i++) {
        if (map->users[i]->actor == op->actor) {
            if (map->users[i] != op && map->users[i]->epoch <= op->epoch) {
                hb_op_unref(map->users[i]);
                map->users[i] = hb_op_ref(op);
            }
            return;
        }
    }
    map->users = hb_grow(map->users, map->n_users, &map->max_users, sizeof(struct hb_op *));
    map->users[map->n_users++] = hb_op_ref(op);
}

/* Compares with one remembered access; wrote: it was a write or an atomic move. */
static void check_seen(const struct doing *d, const struct seen *prev, bool wrote,
                       const uint64_t range[2])
{
    const bool writes = d->mode != HB_READ;

    if (prev->op == NULL || (!wrote && !writes) || (prev->atomic && d->mode == HB_ATOMIC)) {
        return;
    }
    if (prev->op == d->op) {
        if (prev->map != d->map->serial) {
            hb_report_pair(d, HB_ALIASES, prev, wrote, range);
        }
        return;
    }
    if (hb_op_ordered(prev->op, d->op)) {
        return;
    }
    const enum hb_kind kind = !wrote ? HB_READ_WRITE : writes ? HB_WRITE_WRITE : HB_WRITE_READ;

    hb_report_pair(d, kind, prev, wrote, range);
}

static struct seen seen_now(const struct doing *d)
{
    return (struct seen){.op = hb_op_ref(d->op),
                         .map = d->map->serial,
                         .delta = hb_map_delta(d->map),
                         .atomic = d->mode == HB_ATOMIC,
                         .freed = d->mode == HB_DEATH};
}

/* Remembers a read or an atomic move, in place of those that it is (perhaps only now) ordered after. */
static void remember_read(const struct doing *d, struct segment *s)
{
    bool known = false;
    size_t n = 0;

    for (size_t i = 0; i < reads_of(s); i++) {
        struct seen *r = &s->reads[i];
        const bool same_kind = r->atomic == (d->mode == HB_ATOMIC);

        known |= same_kind && r->op == d->op && r->map == d->map->serial;
        if (same_kind && r->op != d->op && hb_op_ordered(r->op, d->op)) {
            hb_op_unref(r->op);
        } else {
            s->reads[n++] = *r;
        }
    }
    s->n_reads = n;
    if (known) {
        return;
    }
    s->reads = hb_grow(s->reads, s->n_reads, &s->max_reads, sizeof(*s->reads));
    s->reads[s->n_reads++] = seen_now(d);
}

static void remember_write(const struct doing *d, struct segment *s)
{
    segment_clear(s);
    hb_op_unref(s->write.op);
    s->write = seen_now(d);
    s->written = d->mode == HB_WRITE;
}

static void check_owner(const struct doing *d, const struct segment *s, const uint64_t range[2])
{
    if (s->owner != d->map) {
        hb_report_owner(d, s, range);
    }
}

/* The granules around [start, end) of the unit belong to the mapping from now on, as far as it reaches. */
static void claim(struct hb *hb, struct hb_map *map, uint64_t start, uint64_t end)
{
    struct hb_unit *u = map->unit;
    const uint64_t map_end = map->offset + map->bytes;

    start &= ~(hb->granule - 1);
    start = start < map->offset ? map->offset : start;
    end = (end + hb->granule - 1) & ~(hb->granule - 1);
    end = end > map_end ? map_end : end;
    const size_t first = segment_split(u, start);
    const size_t stop = end < u->bytes ? segment_split(u, end) : u->n_segments;

    for (size_t i = first; i < stop; i++) {
        u->segments[i].owner = map;
    }
    map->owned = true;
    segment_merge(u, first, stop - 1);
}

static void access_segment(const struct doing *d, struct segment *s, const uint64_t range[2])
{
    check_owner(d, s, range);
    if (d->mode == HB_BIRTH) {
        remember_write(d, s);
        return;
    }
    if (s->write.op == d->op && s->write.map == d->map->serial &&
        (d->mode == HB_READ || d->mode == HB_WRITE)) {
        return;
    }
    check_seen(d, &s->write, true, range);
    for (size_t i = 0; i < reads_of(s); i++) {
        check_seen(d, &s->reads[i], s->reads[i].atomic, range);
    }
    if (d->mode == HB_WRITE || d->mode == HB_DEATH) {
        remember_write(d, s);
        return;
    }
    if (d->mode == HB_READ && !s->written && d->hb->warn_unwritten) {
        hb_report_unwritten(d, range);
    }
    s->written = s->written || d->mode == HB_ATOMIC;
    remember_read(d, s);
}

void hb_access(struct hb *hb, struct hb_op *op, struct hb_map *map, uint64_t offset, uint64_t bytes,
               enum hb_mode mode)
{
    struct hb_unit *u = map->unit;
    const struct doing d = {hb, op, map, mode};
    const uint64_t start = map->offset + offset;

    if (bytes == 0) {
        return;
    }
    map_used(map, op);
    if (mode == HB_BIRTH || (mode == HB_WRITE && op->claims)) {
        claim(hb, map, start, start + bytes);
    }
    const size_t first = segment_split(u, start);
    const size_t end = start + bytes < u->bytes ? segment_split(u, start + bytes) : u->n_segments;

    for (size_t i = first; i < end; i++) {
        const uint64_t range[2] = {u->segments[i].start, segment_end(u, i)};

        access_segment(&d, &u->segments[i], range);
    }
    segment_merge(u, first, end - 1);
}

struct hb_op *hb_last_write(struct hb_map *map, uint64_t offset)
{
    const struct hb_unit *u = map->unit;

    return u->segments[segment_find(u, map->offset + offset)].write.op;
}
