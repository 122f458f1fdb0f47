/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For stash.cu: what becomes of pages, tensors and the free list in a stash. Whoever is last settles: the unit that
 * leaves its page last, told by the state in the entry; the page of an item that is done last, told by its counts; the
 * block of the launch that ends last, told by the list.
 */
#ifndef PS_KERNELS_SETTLE_H
#define PS_KERNELS_SETTLE_H

#include "kernels/units.h"

#define AHEAD  4                   /* loads a lane has in flight where it looks at lists */
#define BEYOND (UINT64_C(1) << 32) /* added to counts[1] */

/* ---- what a page is made of ---- */

/* Not zero if any of this lane's words of the range at `base` is not `word`. */
PS_DEVICE uint64_t range_differs(const struct ps_vec *data, uint32_t n, uint32_t base,
                                 struct ps_vec word)
{
    uint64_t any = 0;
    PS_UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t at = base + k * PS_LANES + PS_THREAD;
        /* Beyond the end the last one is looked at again: no branch between the loads. */
        const struct ps_vec v = ps_load(&data[at < n ? at : n - 1]);
        any |= (v.x ^ word.x) | (v.y ^ word.y);
    }
    return any;
}

/* All lanes, of device memory. */
PS_DEVICE bool range_is_uniform(const struct ps_vec *data, uint32_t n, struct ps_vec word)
{
    for (uint32_t at = 0; at < n; at += 2 * PS_LANES) {
        if (PS_ANY(range_differs(data, n, at, word) != 0)) {
            return false;
        }
    }
    return true;
}

/* All lanes, of a chunk in shared memory. Data shows itself early. */
PS_DEVICE bool chunk_is_uniform(const struct ps_vec *chunk, uint32_t n, struct ps_vec word)
{
    const bool first = PS_THREAD < n && differs(chunk[PS_THREAD], word);
    if (PS_ANY(first)) {
        return false;
    }
    uint64_t any = 0;
    for (uint32_t at = PS_THREAD + PS_LANES; at < n; at += PS_LANES) {
        any |= (chunk[at].x ^ word.x) | (chunk[at].y ^ word.y);
    }
    return !PS_ANY(any != 0);
}

PS_DEVICE void fill(uint64_t to, uint32_t bytes, struct ps_vec word)
{
    struct ps_vec *const target = (struct ps_vec *)ps_address(to);
    PS_NO_UNROLL
    for (uint32_t at = PS_THREAD; at < bytes / 16; at += PS_LANES) {
        ps_store(&target[at], word);
    }
}

/* One thread. Was it the same after the other fill? Notes what it is after this one. */
PS_DEVICE bool is_written(struct ps_row_outcome *o, int fill, struct ps_vec word)
{
    const bool same = ps_load_u64(&o->seen[1 - fill]) != 0 &&
                      ps_load_u64(&o->word[1 - fill][0]) == word.x &&
                      ps_load_u64(&o->word[1 - fill][1]) == word.y;
    ps_publish_u64(&o->word[fill][0], word.x);
    ps_publish_u64(&o->word[fill][1], word.y);
    ps_publish_u64(&o->seen[fill], 1);
    return same;
}

/* Is what lies beyond its rows looked at? */
PS_DEVICE bool looks_beyond(const struct ps_batch_item *item)
{
    return item->rows != 0 && (item->rows_kind & PS_ROWS_TRUSTED) == 0;
}

/* All lanes. A page that is not trusted, in one unit, and reaches beyond the rows: has the job written there? */
PS_DEVICE void look_beyond(const struct ps_batch *b, const struct unit *u)
{
    const struct ps_batch_item *item = &b->items[u->item];
    if (!looks_beyond(item) || u->kind != UNIT_MOVE) {
        return;
    }
    /* All by lane 0's count, whatever becomes of it. */
    const uint32_t n_valid = PS_FIRST(valid_in_unit(u, begin_of(b, u), valid_bytes(item)));
    if (n_valid == u->bytes) {
        return;
    }
    const struct ps_vec *beyond = (const struct ps_vec *)ps_address(u->data + n_valid);
    const struct ps_vec word = ps_load(beyond);
    const bool uniform = range_is_uniform(beyond, (u->bytes - n_valid) / 16, word);
    struct ps_row_outcome *const all = (struct ps_row_outcome *)ps_address(b->outcomes);
    if (PS_THREAD == 0 && (!uniform || is_written(&all[item->outcome],
                                                  (item->rows_kind & PS_ROWS_SECOND) != 0, word))) {
        ps_atomic_add((uint64_t *)ps_address(item->counts) + 1, BEYOND);
        PS_FENCE();
    }
}

/* ---- pages ---- */

/* One thread. Is one of the free pages ours now? They may be given at the same time. */
PS_DEVICE bool claim_page(struct ps_free_list *list)
{
    /* Only a look: fewer find less than there is while others add again. */
    if ((int64_t)ps_load_u64(&list->n_free) <= 0) {
        return false;
    }
    if ((int64_t)ps_atomic_add_ordered(&list->n_free, UINT64_MAX) > 0) {
        return true;
    }
    ps_atomic_add(&list->n_free, 1);
    return false;
}

/* One thread. The list that has a page for it. */
PS_DEVICE struct ps_free_list *choose_list(const struct ps_batch *b)
{
    struct ps_free_list *list = (struct ps_free_list *)ps_address(b->free_list);
    if (b->host_list != 0) {
        if (claim_page(list)) {
            return list;
        }
        list = (struct ps_free_list *)ps_address(b->host_list);
    }
    ps_atomic_add(&list->n_free, UINT64_MAX);
    return list;
}

/*
 * One thread. The slot was written by a launch whose end the host saw before it launched this one, or that this one
 * follows in its stream, or whose end this thread saw in n_free, or one that took before (so this too is in order). A
 * drop that runs at the same time writes other slots.
 */
PS_DEVICE uint32_t take_page(struct ps_free_list *list)
{
    const uint64_t at = ps_atomic_add_ordered(&list->head, 1);
    return ps_load_u32(&list->slots[at & (list->n_slots - 1)]);
}

/* What a page's units have come to, in its entry: counts of them, and which are not stored though they are not dead. */
#define LEFT                 (UINT64_C(1) << 32)
#define STORED               (UINT64_C(1) << 40)
#define DEAD                 (UINT64_C(1) << 48)
#define COUNT_OF(_s, _count) ((uint32_t)((_s) / (_count)) & 0xff)

/* One lane. One more page of the item is what it is going to be. What its count has come to. */
PS_DEVICE uint64_t count_page(const struct ps_batch *b, const struct unit *u, bool on_device,
                              bool on_host)
{
    uint64_t *const counts = (uint64_t *)ps_address(b->items[u->item].counts);
    const uint64_t one = (UINT64_C(1) << 32) + on_device;
    if (on_host) {
        ps_atomic_add(&counts[1], 1);
    }
    /* What was added to the second, by whichever lane, comes before. */
    if (on_host || looks_beyond(&b->items[u->item])) {
        PS_FENCE();
    }
    return ps_atomic_sum(&counts[0], one);
}

/* One lane: a tensor's count has come to `done`, 0 if it has not moved. The last page's tells the host. */
PS_DEVICE void tell_host(const struct ps_batch *b, const struct unit *u, uint64_t done)
{
    const struct ps_batch_item *item = &b->items[u->item];
    uint64_t *const counts = (uint64_t *)ps_address(item->counts);
    if (done == 0 || done >> 32 != n_pages_of(b, u->item)) {
        return;
    }
    uint64_t more = 0;
    if (b->host_list != 0 || looks_beyond(item)) {
        PS_FENCE();
        more = ps_load_u64(&counts[1]);
        counts[1] = 0;
    }
    counts[0] = 0;
    /* Nobody reads it before the launch has ended. */
    *(uint64_t *)ps_address(item->ledger) = PS_LEDGER(item->seq, done & UINT32_MAX, more % BEYOND) |
                                            (more >= BEYOND ? PS_LEDGER_BEYOND : 0);
}

/* The number of the page at hand. */
PS_DEVICE uint32_t page_at_hand(const struct ps_batch *b, const struct unit *u)
{
    return (uint32_t)((u->pool - b->pool) >> ps_log2(b->page_bytes));
}

PS_DEVICE struct ps_vec page_word(const struct ps_batch *b, const struct unit *u)
{
    return ps_load((const struct ps_vec *)ps_address(u->data - part_offset(b, u)));
}

/* ---- units at their end ---- */

/*
 * Units wait until so many are at their end, and are settled together, a lane each: what one asks of memory takes as
 * long as what all ask. UNITS holds them: what is looked up at once, the ring's, and these.
 */
#define SETTLED ((PS_LANES + 1) / 2)
static_assert(32 + PS_CHUNKS_MAX + (32 + 1) / 2 <= UNITS, "no unit is overwritten that waits");

/* One lane: what a page has become; `word`: if it is uniform. */
PS_DEVICE void set_entry(const struct ps_batch *b, const struct unit *u, uint32_t page,
                         struct ps_vec word)
{
    struct ps_page_entry *const entry = entry_of(b, u);
    bool flag = true;
    entry->page = page;
    if (page == PS_PAGE_UNIFORM) {
        entry->word[0] = word.x;
        entry->word[1] = word.y;
        flag = (word.x | word.y) != 0;
    }
    flag_page(b, u, flag);
}

/* All lanes: the pages at hand that some do not need. */
PS_DEVICE void spare(const struct ps_batch *b, struct shared *s, const struct unit *u, bool is)
{
    struct ps_free_list *const list = list_of(b);
    const uint32_t all = PS_BALLOT(is);
    uint64_t at = 0;
    if (all == 0) {
        return;
    }
    if (PS_THREAD == 0) {
        at = ps_atomic_add(&list->n_spare, PS_COUNT(all));
        s->spared = true;
    }
    at = PS_FIRST(at);
    if (is) {
        list->slots[list->n_slots + at + PS_RANK(all)] = page_at_hand(b, u);
    }
}

PS_DEVICE void note_stored(struct shared *s, bool is)
{
    const uint32_t all = PS_BALLOT(is);
    if (PS_THREAD == 0) {
        s->stored += PS_COUNT(all);
    }
}

/* All lanes: the units of the page that are not stored, one word each, follow the others. */
PS_DEVICE void fill_parts(const struct ps_batch *b, const struct unit *u, uint32_t parts)
{
    const struct ps_vec word = page_word(b, u);
    const uint64_t page = u->pool - part_offset(b, u);
    const uint64_t left = b->items[u->item].bytes - ((uint64_t)u->page << ps_log2(b->page_bytes));
    PS_NO_UNROLL
    for (uint32_t part = 0; part < u->n_parts; part++) {
        const uint32_t offset = part << b->unit_shift;
        const uint32_t bytes = 1u << b->unit_shift;
        if ((parts >> part & 1) != 0) {
            fill(page + offset, left - offset < bytes ? (uint32_t)(left - offset) : bytes, word);
        }
    }
}

/* One lane. What the unit adds to the state of its page; *word_p: of the page, if that is uniform. */
PS_DEVICE uint64_t come_to(const struct ps_batch *b, const struct unit *u, struct ps_vec *word_p)
{
    if (u->kind != UNIT_MOVE) {
        return LEFT + (u->kind == UNIT_DEAD ? DEAD : STORED);
    }
    *word_p = u->n_parts > 1 ? page_word(b, u) : u->word;
    return LEFT + (differs(u->word, *word_p) ? STORED : UINT64_C(1) << u->part);
}

/*
 * All lanes: a batch of units that are at their end, of those before `end`. Returns what this lane's tensor's count has
 * come to, if its page is done now; else 0.
 */
PS_DEVICE uint64_t settle(const struct ps_batch *b, struct shared *s, uint32_t end)
{
    const struct unit *const u = &s->units[(s->settled + PS_THREAD) % UNITS];
    struct ps_vec word = {0, 0};
    uint64_t state = 0;
    /* Where pages are claimed one by one, it was settled when it was. */
    const bool waits = s->settled + PS_THREAD < end && u->kind != UNIT_NONE &&
                       (u->kind != UNIT_STORED || b->host_list == 0);
    if (waits) {
        state = come_to(b, u, &word);
    }
    PS_EACH_LANE(lane, waits && u->kind == UNIT_MOVE && COUNT_OF(state, STORED) != 0)
    {
        const struct unit *const v = &s->units[(s->settled + lane) % UNITS];
        fill(v->pool, v->bytes, v->word);
    }
    if (waits && u->n_parts > 1) {
        state = ps_atomic_sum(&entry_of(b, u)->state, state);
    }
    const bool is_last = waits && COUNT_OF(state, LEFT) == u->n_parts;
    const bool stored = is_last && COUNT_OF(state, STORED) != 0;
    PS_EACH_LANE(lane, stored && (uint32_t)state != 0)
    {
        fill_parts(b, &s->units[(s->settled + lane) % UNITS], PS_OF_LANE((uint32_t)state, lane));
    }
    uint64_t done = 0;
    if (is_last) {
        if (u->n_parts > 1) {
            entry_of(b, u)->state = 0;
        }
        set_entry(b, u,
                  stored                                ? page_at_hand(b, u)
                  : COUNT_OF(state, DEAD) == u->n_parts ? PS_PAGE_DEAD
                                                        : PS_PAGE_UNIFORM,
                  word);
        done = count_page(b, u, stored, false);
    }
    if (b->host_list == 0) {
        spare(b, s, u, is_last && !stored);
        note_stored(s, stored);
    }
    return done;
}

/* ---- the list ---- */

#define GATHERED 2 /* loads of four numbers that a lane has in flight */

/* One lane: four numbers, of which so many count, from that place on; a ring has less than 2^32. */
PS_DEVICE void put_slots(struct ps_free_list *list, uint32_t at, uint32_t n, struct ps_vec four)
{
    const uint64_t half[2] = {four.x, four.y};
    const uint32_t mask = (uint32_t)list->n_slots - 1;
    PS_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        if (i < n) {
            list->slots[(at + i) & mask] = (uint32_t)(half[i / 2] >> 32 * (i % 2));
        }
    }
}

/*
 * All lanes of the last block of a stash: so many of the pages at hand are gone. The others' numbers take the places
 * behind.
 */
PS_DEVICE void end_list(const struct ps_batch *b, const struct shared *s, uint32_t stored)
{
    struct ps_free_list *const list = list_of(b);
    const uint32_t n = b->n_pages - stored;
    const struct ps_vec *const spare =
        (const struct ps_vec *)(const void *)(list->slots + list->n_slots);
    PS_FENCE(); /* behind what other blocks did before they were done */
    PS_NO_UNROLL
    for (uint32_t base = 0; base < n; base += GATHERED * 4 * PS_LANES) {
        struct ps_vec v[GATHERED];
        PS_UNROLL
        for (uint32_t k = 0; k < GATHERED; k++) {
            const uint32_t at = base + (k * PS_LANES + PS_THREAD) * 4;
            v[k] = ps_load_fresh(&spare[at < n ? at / 4 : 0]);
        }
        PS_UNROLL
        for (uint32_t k = 0; k < GATHERED; k++) {
            const uint32_t at = base + (k * PS_LANES + PS_THREAD) * 4;
            put_slots(list, (uint32_t)s->head + stored + at, at < n ? n - at : 0, v[k]);
        }
    }
    if (PS_THREAD == 0) {
        list->done = 0;
        list->n_spare = 0;
        list->head = s->head + stored;
        ps_atomic_add(&list->n_free, 0 - (uint64_t)stored);
    }
}

/* All lanes. Tensors without a page are done. */
PS_DEVICE void end_empty(const struct ps_batch *b)
{
    PS_NO_UNROLL
    for (uint32_t i = PS_THREAD; i < b->n_items; i += PS_LANES) {
        if (b->items[i].bytes == 0) {
            *(uint64_t *)ps_address(b->items[i].ledger) = PS_LEDGER(b->items[i].seq, 0, 0);
        }
    }
}

#endif
