/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For stash.cu: the units that a block moves, and the feed of its ring. A block looks up as many units as it has lanes
 * at once; find_* are for one lane, feed_* for all together.
 */
#ifndef PS_KERNELS_UNITS_H
#define PS_KERNELS_UNITS_H

#include "kernels/dual.h"
#include "kernels/layout.h"
#include "kernels/pipe.h"

#define UNITS                                                                                      \
    64 /* that a block knows at a time: what a warp looks up, a ring holds, and waits to be settled */

PS_DEVICE struct ps_vec vec_of(uint32_t word)
{
    const uint64_t twice = (uint64_t)word << 32 | word;
    const struct ps_vec v = {twice, twice};
    return v;
}

PS_DEVICE bool differs(struct ps_vec v, struct ps_vec word)
{
    return ((v.x ^ word.x) | (v.y ^ word.y)) != 0;
}

enum unit_kind {
    UNIT_NONE, /* nothing is read or written: behind the item's end, dead, or known to be zero */
    UNIT_DEAD, /* stash: beyond the rows */
    UNIT_MOVE,
    UNIT_STORED,  /* stash: the same, once it has turned out to be more than one word */
    UNIT_FILL,    /* restore: of the entry's word */
    UNIT_COMPARE, /* restore: the same, where it is anything else */
};

struct unit {
    struct ps_vec word; /* stash: what it is made of, so far */
    uint64_t data;      /* in the tensor */
    uint64_t pool;      /* in the pool; 0: not known yet */
    uint32_t bytes;     /* to move or fill */
    uint32_t poison;    /* to overwrite behind them */
    uint32_t page;      /* of its item */
    uint8_t item, part, n_parts, kind;
};

/* What a block's lanes share. */
struct shared {
    struct unit units[UNITS];
    uint64_t head;    /* of the list, when the launch began */
    uint64_t all;     /* at the end: blocks that are << 32 | pages that they have stored */
    uint32_t end;     /* units of the block */
    uint32_t settled; /* of them, */
    uint32_t stored;  /* pages that they brought to the list's end */
    bool spared;      /* and some were not needed */
};

/* The units of this block, numbered from 0. */
struct feed {
    uint32_t block, n_blocks;
    uint32_t unit;
    uint32_t offset; /* within the unit: of the next chunk to load */
};

PS_DEVICE struct ps_free_list *list_of(const struct ps_batch *b)
{
    return (struct ps_free_list *)ps_address(b->free_list);
}

PS_DEVICE struct ps_page_entry *entry_of(const struct ps_batch *b, const struct unit *u)
{
    return (struct ps_page_entry *)ps_address(b->items[u->item].table) + u->page;
}

/* Of its page in the batch. */
PS_DEVICE uint32_t number_of(const struct ps_batch *b, const struct unit *u)
{
    return b->first_page[u->item] + u->page;
}

PS_DEVICE uint32_t part_offset(const struct ps_batch *b, const struct unit *u)
{
    return (uint32_t)u->part << b->unit_shift;
}

PS_DEVICE uint64_t page_address(const struct ps_batch *b, uint32_t page)
{
    const uint32_t shift = ps_log2(b->page_bytes);
    if ((page & PS_PAGE_HOST) != 0) {
        const uint32_t at = page & ~PS_PAGE_HOST;
        const uint64_t *pieces = (const uint64_t *)ps_address(b->host_pieces);
        const uint64_t offset = at & ((1u << b->host_shift) - 1);
        return ps_load_u64(&pieces[at >> b->host_shift]) + (offset << shift);
    }
    return b->pool + ((uint64_t)page << shift);
}

PS_DEVICE void flag_page(const struct ps_batch *b, const struct unit *u, bool on)
{
    const uint64_t flags = b->items[u->item].flags;
    if (flags != 0) {
        ((uint8_t *)ps_address(flags))[u->page] = on;
    }
}

PS_DEVICE uint32_t n_pages_of(const struct ps_batch *b, uint32_t item)
{
    return (uint32_t)((b->items[item].bytes + b->page_bytes - 1) >> ps_log2(b->page_bytes));
}

PS_DEVICE uint32_t n_units_all(const struct ps_batch *b)
{
    return b->n_pages << (ps_log2(b->page_bytes) - b->unit_shift);
}

/* The item of that page of the batch: the last that does not begin behind it. */
PS_DEVICE uint32_t find_item(const struct ps_batch *b, uint32_t page)
{
    uint32_t low = 0;
    uint32_t high = b->n_items;
    while (high - low > 1) {
        const uint32_t mid = (low + high) / 2;
        if (b->first_page[mid] <= page) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return low;
}

/* One lane. Each page has as many units as a whole one: those of a short one may have no bytes. */
PS_DEVICE void find_unit(const struct ps_batch *b, uint32_t i, struct unit *u)
{
    const uint32_t page_shift = ps_log2(b->page_bytes);
    const uint32_t parts_shift = page_shift - b->unit_shift;
    const uint32_t number = i >> parts_shift;
    const uint32_t low = find_item(b, number);
    const struct ps_batch_item *item = &b->items[low];
    const uint32_t page = number - b->first_page[low];
    const uint64_t begin = (uint64_t)page << page_shift;
    const uint64_t left = item->bytes - begin;
    const uint32_t in_page = left < b->page_bytes ? (uint32_t)left : b->page_bytes;
    const uint32_t unit_bytes = 1u << b->unit_shift;

    u->part = (uint8_t)(i & ((1u << parts_shift) - 1));
    u->n_parts = (uint8_t)((in_page + unit_bytes - 1) >> b->unit_shift);
    u->kind = u->part < u->n_parts ? UNIT_MOVE : UNIT_NONE;
    u->item = (uint8_t)low;
    u->page = page;
    const uint32_t offset = part_offset(b, u);
    u->data = item->data + begin + offset;
    u->pool = 0;
    u->bytes = u->kind == UNIT_NONE            ? 0
               : in_page - offset < unit_bytes ? in_page - offset
                                               : unit_bytes;
    u->poison = 0;
}

/* Bytes of the item that may hold data. All of a block must decide alike, whatever becomes of the count. */
PS_DEVICE uint64_t valid_bytes(const struct ps_batch_item *item)
{
    if (item->rows == 0) {
        return UINT64_MAX;
    }
    const int64_t n = (item->rows_kind & PS_ROWS_I32) != 0
                          ? (int32_t)ps_load_u32((const uint32_t *)ps_address(item->rows))
                          : (int64_t)ps_load_u64((const uint64_t *)ps_address(item->rows));
    return ps_batch_item_valid(item, n);
}

/* Bytes of the unit that may hold data, whole words; `begin`: where it begins in its item. */
PS_DEVICE uint32_t valid_in_unit(const struct unit *u, uint64_t begin, uint64_t valid)
{
    if (valid <= begin) {
        return 0;
    }
    const uint64_t n = valid - begin;
    return n < u->bytes ? ((uint32_t)n + 15) / 16 * 16 : u->bytes;
}

PS_DEVICE uint64_t begin_of(const struct ps_batch *b, const struct unit *u)
{
    return ((uint64_t)u->page << ps_log2(b->page_bytes)) + part_offset(b, u);
}

/* One lane. Trusted, a page wholly beyond the rows is dead. */
PS_DEVICE void find_stash_unit(const struct ps_batch *b, uint32_t i, struct unit *u)
{
    find_unit(b, i, u);
    const struct ps_batch_item *item = &b->items[u->item];
    if ((item->rows_kind & PS_ROWS_TRUSTED) != 0 && u->kind == UNIT_MOVE &&
        valid_bytes(item) <= (uint64_t)u->page << ps_log2(b->page_bytes)) {
        u->kind = UNIT_DEAD;
    }
}

PS_DEVICE uint32_t *slot_of(const struct ps_batch *b, uint64_t at)
{
    struct ps_free_list *const list = list_of(b);
    return &list->slots[at & (list->n_slots - 1)];
}

/* One lane. The free page at hand. */
PS_DEVICE void find_target(const struct ps_batch *b, uint64_t head, struct unit *u)
{
    if (u->kind != UNIT_NONE && b->host_list == 0) {
        const uint32_t page = ps_load_u32(slot_of(b, head + number_of(b, u)));
        u->pool = page_address(b, page) + part_offset(b, u);
    }
}

/* One lane. The flag of a page; other units of it may be looking: lowered only where nobody trusts it. */
PS_DEVICE void flag_restored(const struct ps_batch *b, const struct unit *u, bool zero, bool known)
{
    const struct ps_batch_item *item = &b->items[u->item];
    if ((item->rows_kind & PS_ROWS_OVERWRITE) != 0) {
        const uint64_t end = (uint64_t)(u->page + 1) << ps_log2(b->page_bytes);
        zero = zero && valid_bytes(item) >= (end < item->bytes ? end : item->bytes);
    }
    if (!zero || !known) {
        flag_page(b, u, !zero);
    }
}

/* One lane. */
PS_DEVICE void find_restore_unit(const struct ps_batch *b, uint32_t i, struct unit *u)
{
    find_unit(b, i, u);
    const struct ps_batch_item *item = &b->items[u->item];
    if (u->kind == UNIT_NONE) {
        return;
    }
    const struct ps_page_entry *entry = entry_of(b, u);
    const uint32_t page = entry->page;
    const bool known = item->flags != 0 && (item->rows_kind & PS_ITEM_KNOWN) != 0;
    bool zero = false;
    if ((item->rows_kind & PS_ROWS_OVERWRITE) != 0) {
        const uint32_t n = valid_in_unit(u, begin_of(b, u), valid_bytes(item));
        u->poison = u->bytes - n;
        u->bytes = n;
    }
    if (page == PS_PAGE_UNIFORM) {
        zero = entry->word[0] == 0 && entry->word[1] == 0;
        u->kind = !known && (item->rows_kind & PS_ITEM_COMPARE) != 0 ? UNIT_COMPARE : UNIT_FILL;
        if (zero && known && ((const uint8_t *)ps_address(item->flags))[u->page] == 0) {
            u->kind = UNIT_NONE;
        }
    } else if (page == PS_PAGE_DEAD) {
        u->kind = UNIT_NONE;
    } else {
        u->pool = page_address(b, page) + part_offset(b, u);
    }
    if (u->part == 0) {
        flag_restored(b, u, zero, known);
    }
}

/* ---- chunks ---- */

/* What of the unit has yet to come through the ring, once `offset` of it has. */
PS_DEVICE uint32_t left_of(const struct unit *u, uint32_t offset)
{
    const bool loads = u->kind == UNIT_MOVE || u->kind == UNIT_STORED || u->kind == UNIT_COMPARE;
    return loads ? u->bytes - offset : 0;
}

/* The next chunk of this block's units is on its way, if there is one: a unit has at least one. */
PS_DEVICE void load_chunk(const struct unit *u, struct pipe *p, struct feed *f, uint64_t from)
{
    const uint32_t left = left_of(u, f->offset);
    const uint32_t n = left < pipe_chunk_bytes(p) ? left : pipe_chunk_bytes(p);

    pipe_load(p, n != 0 ? from + f->offset : 0, n);
    f->offset += n;
    if (n == left) {
        f->unit++;
        f->offset = 0;
    }
}

PS_DEVICE void feed_init(const struct ps_batch *b, struct shared *s, struct feed *f, struct pipe *p)
{
    const uint32_t n_units = n_units_all(b);
    if (PS_THREAD == 0) {
        s->all = 0;
        s->settled = s->stored = 0;
        s->spared = false;
        s->end = n_units > f->block ? (n_units - f->block - 1) / f->n_blocks + 1 : 0;
    }
    f->unit = 0;
    f->offset = 0;
    pipe_start(p, &b->ring);
}

/* The feed has come to units that were not looked up yet. */
PS_DEVICE bool feed_due(const struct feed *f)
{
    return f->offset == 0 && f->unit % PS_LANES == 0;
}

/* The one that this lane is to look up. */
PS_DEVICE struct unit *feed_mine(const struct feed *f, struct shared *s, uint32_t *i_p)
{
    const uint32_t mine = f->unit + PS_THREAD;
    *i_p = f->block + mine * f->n_blocks;
    return mine < s->end ? &s->units[mine % UNITS] : NULL;
}

PS_DEVICE void feed_stash(const struct ps_batch *b, struct shared *s, struct pipe *p,
                          struct feed *f, bool targets)
{
    if (f->unit == s->end) {
        pipe_load_none(p);
        return;
    }
    if (feed_due(f)) {
        uint32_t i;
        struct unit *const u = feed_mine(f, s, &i);
        if (u != NULL) {
            find_stash_unit(b, i, u);
            if (targets) {
                find_target(b, s->head, u);
            }
        }
        PS_SYNC_WARP();
    }
    const struct unit *u = &s->units[f->unit % UNITS];
    load_chunk(u, p, f, u->data);
}

PS_DEVICE void feed_restore(const struct ps_batch *b, struct shared *s, struct pipe *p,
                            struct feed *f)
{
    if (f->unit == s->end) {
        pipe_load_none(p);
        return;
    }
    if (feed_due(f)) {
        uint32_t i;
        struct unit *const u = feed_mine(f, s, &i);
        if (u != NULL) {
            find_restore_unit(b, i, u);
        }
        PS_SYNC_WARP();
    }
    const struct unit *u = &s->units[f->unit % UNITS];
    load_chunk(u, p, f, u->kind == UNIT_COMPARE ? u->data : u->pool);
}

/* Fills the ring. The pages' numbers are asked for while the data is on its way. */
PS_DEVICE void start_stash(const struct ps_batch *b, struct shared *s, struct pipe *p,
                           struct feed *f)
{
    feed_init(b, s, f, p);
    PS_NO_UNROLL
    for (uint32_t i = 0; i + 1 < b->ring.n_slots; i++) {
        feed_stash(b, s, p, f, PS_LANES == 1);
    }
    if (PS_LANES > 1 && PS_THREAD < s->end) {
        find_target(b, s->head, &s->units[PS_THREAD]);
    }
    PS_SYNC_WARP();
}

#endif
