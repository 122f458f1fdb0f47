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

/* All lanes. A page that is not trusted, in one unit, and reaches beyond the rows: has the job written there? */
PS_DEVICE void look_beyond(const struct ps_batch *b, const struct unit *u)
{
    const struct ps_batch_item *item = &b->items[u->item];
    if (item->rows == 0 || (item->rows_kind & PS_ROWS_TRUSTED) != 0 || u->kind != UNIT_MOVE) {
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

/* One lane. One more page of the item is what it is going to be; the last tells the host. */
PS_DEVICE void page_done(const struct ps_batch *b, const struct unit *u, bool on_device,
                         bool on_host)
{
    const struct ps_batch_item *item = &b->items[u->item];
    uint64_t *const counts = (uint64_t *)ps_address(item->counts);
    const bool two =
        b->host_list != 0 || (item->rows != 0 && (item->rows_kind & PS_ROWS_TRUSTED) == 0);
    if (on_host) {
        ps_atomic_add(&counts[1], 1);
        PS_FENCE();
    }
    const uint64_t done = ps_atomic_add(&counts[0], (UINT64_C(1) << 32) + on_device) +
                          (UINT64_C(1) << 32) + on_device;
    if (done >> 32 != n_pages_of(b, u->item)) {
        return;
    }
    uint64_t more = 0;
    if (two) {
        PS_FENCE();
        more = ps_load_u64(&counts[1]);
        counts[1] = 0;
    }
    counts[0] = 0;
    /* Nobody reads it before the launch has ended. */
    *(uint64_t *)ps_address(item->ledger) = PS_LEDGER(item->seq, done & UINT32_MAX, more % BEYOND) |
                                            (more >= BEYOND ? PS_LEDGER_BEYOND : 0);
}

/* One lane. The page at hand is not needed. */
PS_DEVICE void leave_free(const struct ps_batch *b, const struct shared *s, const struct unit *u)
{
    if (b->host_list == 0) {
        uint32_t *const slot = slot_of(b, s->head + u->number);
        *slot = ps_load_u32(slot) | PS_SLOT_UNUSED;
    }
    page_done(b, u, false, false);
}

/* One lane. Nothing of the page was looked at, so nothing is known of it. */
PS_DEVICE void set_dead(const struct ps_batch *b, const struct shared *s, const struct unit *u)
{
    entry_of(u)->page = PS_PAGE_DEAD;
    flag_page(b, u, true);
    leave_free(b, s, u);
}

PS_DEVICE void set_uniform(const struct ps_batch *b, const struct shared *s, const struct unit *u,
                           struct ps_vec word)
{
    struct ps_page_entry *const entry = entry_of(u);
    entry->page = PS_PAGE_UNIFORM;
    entry->word[0] = word.x;
    entry->word[1] = word.y;
    flag_page(b, u, (word.x | word.y) != 0);
    leave_free(b, s, u);
}

/* One lane. */
PS_DEVICE void set_stored(const struct ps_batch *b, struct shared *s, const struct unit *u,
                          uint32_t page)
{
    s->stored++;
    const bool on_host = (page & PS_PAGE_HOST) != 0;
    entry_of(u)->page = page;
    flag_page(b, u, true);
    page_done(b, u, !on_host, on_host);
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

/* All lanes: the units of the page that are not stored, one word each, follow the others. */
PS_DEVICE void fill_parts(const struct ps_batch *b, const struct unit *u, uint32_t parts,
                          struct ps_vec word)
{
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

/* All lanes. The unit has come to `what`; the last of its page sees what became of the others. */
PS_DEVICE void leave_page(const struct ps_batch *b, struct shared *s, const struct unit *u,
                          uint64_t what)
{
    struct ps_page_entry *const entry = entry_of(u);
    uint64_t state = what + LEFT;
    if (PS_THREAD == 0) {
        state += ps_atomic_add(&entry->state, state);
    }
    state = PS_FIRST(state);
    if (COUNT_OF(state, LEFT) != u->n_parts) {
        return;
    }
    const bool stored = COUNT_OF(state, STORED) != 0;
    if (PS_THREAD == 0) {
        entry->state = 0;
    }
    if (COUNT_OF(state, DEAD) == u->n_parts) {
        if (PS_THREAD == 0) {
            set_dead(b, s, u);
        }
        return;
    }
    const struct ps_vec word = page_word(b, u);
    if (stored) {
        fill_parts(b, u, (uint32_t)state, word);
    }
    if (PS_THREAD == 0 && stored) {
        set_stored(b, s, u, page_at_hand(b, u));
    } else if (PS_THREAD == 0) {
        set_uniform(b, s, u, word);
    }
}

/* All lanes: a unit at its end. */
PS_DEVICE void leave_unit(const struct ps_batch *b, struct shared *s, const struct unit *u,
                          bool found)
{
    if (u->n_parts > 1) {
        uint64_t what = u->kind == UNIT_DEAD ? DEAD : STORED;
        if (what == STORED && !found) {
            if (differs(s->word, page_word(b, u))) {
                fill(u->pool, u->bytes, s->word);
            } else {
                what = UINT64_C(1) << u->part;
            }
        }
        leave_page(b, s, u, what);
    } else if (PS_THREAD == 0) {
        if (u->kind == UNIT_DEAD) {
            set_dead(b, s, u);
        } else if (!found) {
            set_uniform(b, s, u, s->word);
        } else if (b->host_list == 0) {
            set_stored(b, s, u, page_at_hand(b, u));
        }
    }
}

/* ---- the list ---- */

#ifdef __CUDACC__
#    define TILE 1024u
/* Behind the last chunk the ring is free. */
#    define TILE_MEMORY(_name) uint32_t *const _name = (uint32_t *)pipe_memory
#else
#    define TILE               8u
#    define TILE_MEMORY(_name) uint32_t _name[2 * TILE]
#endif

/*
 * All lanes. Of the slots at hand from `from` on, at most a tile and below `end`: those that are (not) marked. Marks
 * are taken off where that is not what is sought. How many.
 */
PS_DEVICE uint32_t gather(const struct ps_batch *b, const struct shared *s, uint32_t from,
                          uint32_t end, bool marked, uint32_t *found)
{
    uint32_t n = 0;
    PS_NO_UNROLL
    for (uint32_t base = from; base < from + TILE; base += AHEAD * PS_LANES) {
        uint32_t v[AHEAD];
        PS_UNROLL
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint32_t at = base + k * PS_LANES + PS_THREAD;
            v[k] = at < end ? ps_load_u32(slot_of(b, s->head + at)) : 0;
        }
        PS_UNROLL
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint32_t at = base + k * PS_LANES + PS_THREAD;
            const bool is = at < end && ((v[k] & PS_SLOT_UNUSED) != 0) == marked;
            const uint32_t all = PS_BALLOT(is);
            if (is) {
                found[n + PS_RANK(all)] = at;
            } else if (at < end && !marked) {
                *slot_of(b, s->head + at) = v[k] & ~PS_SLOT_UNUSED;
            }
            n += PS_COUNT(all);
        }
    }
    PS_SYNC_WARP();
    return n;
}

/* A walk over the slots at hand [at, end), a tile at a time. */
struct walk {
    uint32_t at, end;
    uint32_t next, n; /* of the positions found */
};

PS_DEVICE bool walk_on(const struct ps_batch *b, const struct shared *s, struct walk *w,
                       bool marked, uint32_t *found)
{
    while (w->next == w->n && w->at < w->end) {
        w->n = gather(b, s, w->at, w->end, marked, found);
        w->next = 0;
        w->at = w->end - w->at < TILE ? w->end : w->at + TILE;
    }
    return w->next < w->n;
}

/*
 * All lanes of the last block. Of the slots at hand those below `used` shall be gone: free numbers there take the place
 * of taken ones behind. There are as many of either.
 */
PS_DEVICE void close_ranks(const struct ps_batch *b, const struct shared *s, uint32_t used,
                           uint32_t end)
{
    TILE_MEMORY(memory);
    struct walk gaps = {0, used, 0, 0};
    struct walk taken = {used, end, 0, 0};
    PS_NO_UNROLL
    while (walk_on(b, s, &gaps, true, memory) && walk_on(b, s, &taken, false, memory + TILE)) {
        const uint32_t n_gaps = gaps.n - gaps.next;
        const uint32_t n_taken = taken.n - taken.next;
        const uint32_t n = n_gaps < n_taken ? n_gaps : n_taken;
        PS_NO_UNROLL
        for (uint32_t i = PS_THREAD; i < n; i += PS_LANES) {
            const uint32_t number =
                ps_load_u32(slot_of(b, s->head + memory[gaps.next + i])) & ~PS_SLOT_UNUSED;
            *slot_of(b, s->head + memory[TILE + taken.next + i]) = number;
        }
        gaps.next += n;
        taken.next += n;
        PS_SYNC_WARP();
    }
    taken.next = taken.n;
    (void)walk_on(b, s, &taken, false, memory + TILE); /* the rest of the marks */
}

/* All lanes of the last block of a stash: so many pages of the list are gone. */
PS_DEVICE void end_list(const struct ps_batch *b, const struct shared *s, uint32_t stored)
{
    struct ps_free_list *const list = list_of(b);
    if (stored < n_pages_all(b)) {
        PS_FENCE();
        close_ranks(b, s, stored, n_pages_all(b));
        PS_SYNC_WARP();
    }
    if (PS_THREAD == 0) {
        list->done = 0;
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
