/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that move tensors out to pages and back, and the page numbers of the free lists with
 * them (layout.h says what lies where, and how launches must be ordered against each other). One
 * source for nvcc and, through dual.h, for the host compiler: right for any number of blocks.
 *
 * Stash and restore are blocks of one warp, so small that they fit beside a kernel that fills the multiprocessor. A
 * block takes every n-th unit of the batch, a page or a part of one, through a ring of chunks (pipe.h). No block waits
 * for another. A unit is looked at as it passes: what comes before the first difference has not been stored, and is
 * one word.
 */
#include "kernels/dual.h"
#include "kernels/layout.h"
#include "kernels/settle.h"
#include "kernels/units.h"

#define CLEAN_MAX 1024 /* threads of a block of ps_clean, at most */

/* All lanes: the page of a unit that needs one and has none at hand, which is all of the page. */
PS_DEVICE void own_page(const struct ps_batch *b, struct unit *u)
{
    if (PS_THREAD == 0) {
        const uint32_t page = take_page(choose_list(b));
        const bool on_host = (page & PS_PAGE_HOST) != 0;
        const struct ps_vec none = {0, 0};
        u->pool = page_address(b, page);
        set_entry(b, u, page, none);
        tell_host(b, u, count_page(b, u, !on_host, on_host));
    }
    PS_SYNC_WARP();
}

/* All lanes, at the end: this block is done with the list of device pages. */
PS_DEVICE void leave_list(const struct ps_batch *b, struct shared *s)
{
    PS_SYNC_WARP();
    if (PS_THREAD == 0) {
        const uint64_t mine = UINT64_C(1) << 32 | s->stored;
        /* The numbers of pages that are not needed come before. */
        if (s->spared) {
            PS_FENCE();
        }
        s->all = ps_atomic_sum(&list_of(b)->done, mine);
    }
}

/* Scans, stores what is not uniform, fills the tables. */
PS_THIN_KERNEL1(ps_stash, struct ps_batch, batch)
{
    PS_SHARED struct shared s;
    const struct ps_batch *const b = &batch;
    struct pipe p;
    struct feed f = {(uint32_t)PS_BLOCK, (uint32_t)PS_N_BLOCKS, 0, 0};
    uint32_t offset = 0;

    if (PS_THREAD == 0) {
        s.head = ps_load_u64(&list_of(b)->head);
    }
    PS_SYNC_WARP();
    start_stash(b, &s, &p, &f);
    for (uint32_t i = 0; i < s.end;) {
        struct unit *const u = &s.units[i % UNITS];
        const uint32_t left = left_of(u, offset);
        const uint32_t n = left < pipe_chunk_bytes(&p) ? left : pipe_chunk_bytes(&p);
        const struct ps_vec *const chunk = pipe_chunk(&p);

        pipe_wait(&p);
        if (offset == 0) {
            PS_YIELD();
            look_beyond(b, u);
            if (PS_THREAD == 0 && n != 0) {
                u->word = chunk[0];
            }
            PS_SYNC_WARP();
        }
        if (u->kind == UNIT_MOVE && n != 0 && !chunk_is_uniform(chunk, n / 16, u->word)) {
            if (b->host_list != 0) {
                PS_YIELD();
                own_page(b, u);
            }
            fill(u->pool, offset, u->word);
            PS_SYNC_WARP();
            if (PS_THREAD == 0) {
                u->kind = UNIT_STORED;
            }
            PS_SYNC_WARP();
        }
        if (u->kind == UNIT_STORED && b->host_list != 0) {
            pipe_store_lanes(&p, u->pool + offset, n);
        } else if (u->kind == UNIT_STORED) {
            pipe_store(&p, u->pool + offset, n);
        }
        pipe_done(&p);
        feed_stash(b, &s, &p, &f, true);
        offset += n;
        if (n < left) {
            continue;
        }
        offset = 0;
        i++;
        if (i - s.settled == SETTLED || i == s.end) {
            PS_YIELD();
            const uint64_t done = settle(b, &s, i);
            PS_YIELD();
            if (i == s.end && b->host_list == 0) {
                leave_list(b, &s);
            }
            tell_host(b, &s.units[(s.settled + PS_THREAD) % UNITS], done);
            PS_SYNC_WARP();
            if (PS_THREAD == 0) {
                s.settled = i;
            }
            PS_SYNC_WARP();
        }
    }
    pipe_end();
    if (f.block == 0) {
        end_empty(b);
    }
    /* Blocks without units are not counted. */
    const uint32_t n_units = n_units_all(b);
    if (s.all != 0 && s.all >> 32 == (n_units < f.n_blocks ? n_units : f.n_blocks)) {
        PS_YIELD();
        end_list(b, &s, (uint32_t)s.all);
    }
}

/* Writes every page of the batch back, but for dead ones. The free lists are not touched. */
PS_THIN_KERNEL1(ps_restore, struct ps_batch, batch)
{
    PS_SHARED struct shared s;
    const struct ps_batch *const b = &batch;
    struct pipe p;
    struct feed f = {(uint32_t)PS_BLOCK, (uint32_t)PS_N_BLOCKS, 0, 0};
    uint32_t offset = 0;

    feed_init(b, &s, &f, &p);
    PS_NO_UNROLL
    for (uint32_t i = 0; i + 1 < b->ring.n_slots; i++) {
        feed_restore(b, &s, &p, &f);
    }
    for (uint32_t i = 0; i < s.end;) {
        const struct unit *const u = &s.units[i % UNITS];
        const uint32_t left = left_of(u, offset);
        const uint32_t n = left < pipe_chunk_bytes(&p) ? left : pipe_chunk_bytes(&p);

        if (offset == 0) {
            PS_YIELD();
        }
        pipe_wait(&p);
        if (u->kind == UNIT_FILL || (u->kind == UNIT_COMPARE && n != 0)) {
            const struct ps_page_entry *const entry = entry_of(b, u);
            const struct ps_vec word = {entry->word[0], entry->word[1]};
            if (u->kind == UNIT_FILL) {
                pipe_fill(&p, u->data, u->bytes, word);
            } else if (!chunk_is_uniform(pipe_chunk(&p), n / 16, word)) {
                pipe_fill(&p, u->data + offset, n, word);
            }
        } else if (n != 0) {
            pipe_store(&p, u->data + offset, n);
        }
        pipe_done(&p);
        feed_restore(b, &s, &p, &f);
        offset += n;
        if (n == left) {
            fill(u->data + u->bytes, u->poison, vec_of(PS_ROWS_POISON));
            offset = 0;
            i++;
        }
    }
    pipe_end();
}

/* ---- clean, drop, grow: whole pages ---- */

/* Where a block or thread is among all pages of a batch, which are numbered through. */
struct cursor {
    uint32_t shift; /* log2 of the page's bytes */
    uint32_t item;
    uint64_t first; /* number of the item's first page */
};

struct place {
    struct ps_vec *data;
    uint64_t n; /* vectors, at least 1 */
};

PS_DEVICE struct cursor cursor_start(const struct ps_batch *b)
{
    const struct cursor c = {ps_log2(b->page_bytes), 0, 0};
    return c;
}

/* Moves on to the item that holds page i; false beyond the last. i never goes down. */
PS_DEVICE bool cursor_seek(const struct ps_batch *b, struct cursor *c, uint64_t i)
{
    while (c->item < b->n_items) {
        const uint64_t n = (b->items[c->item].bytes + b->page_bytes - 1) >> c->shift;
        if (i - c->first < n) {
            return true;
        }
        c->first += n;
        c->item++;
    }
    return false;
}

PS_DEVICE struct ps_page_entry *cursor_entry(const struct ps_batch *b, const struct cursor *c,
                                             uint64_t i)
{
    return (struct ps_page_entry *)ps_address(b->items[c->item].table) + (i - c->first);
}

PS_DEVICE struct place cursor_place(const struct ps_batch *b, const struct cursor *c, uint64_t i)
{
    const struct ps_batch_item *item = &b->items[c->item];
    const uint64_t offset = (i - c->first) << c->shift;
    const uint64_t left = item->bytes - offset;
    const struct place p = {
        (struct ps_vec *)ps_address(item->data + offset),
        (left < b->page_bytes ? left : b->page_bytes) / sizeof(struct ps_vec),
    };
    return p;
}

/* One thread. Notes whether a page of the item may differ from a uniform one. */
PS_DEVICE void cursor_flag(const struct ps_batch *b, const struct cursor *c, uint64_t i, bool on)
{
    const struct ps_batch_item *item = &b->items[c->item];
    if (item->flags != 0) {
        ((uint8_t *)ps_address(item->flags))[i - c->first] = on;
    }
}

PS_DEVICE void fill_page(struct ps_vec *to, uint64_t n, struct ps_vec word)
{
    for (uint64_t at = PS_THREAD; at < n; at += PS_N_THREADS) {
        ps_store(&to[at], word);
    }
}

/* Any page of the batch; false when it is not flagged, or beyond the last. */
PS_DEVICE bool is_flagged(const struct ps_batch *b, uint64_t i)
{
    struct cursor c = cursor_start(b);
    return cursor_seek(b, &c, i) && b->items[c.item].flags != 0 &&
           ((const uint8_t *)ps_address(b->items[c.item].flags))[i - c.first] != 0;
}

/* The whole block: page i is flagged. */
PS_DEVICE void clean_page(const struct ps_batch *b, uint64_t i)
{
    const struct ps_vec zero = {0, 0};
    struct cursor c = cursor_start(b);
    (void)cursor_seek(b, &c, i);
    const struct place p = cursor_place(b, &c, i);
    fill_page(p.data, p.n, zero);
    if (PS_THREAD == 0) {
        cursor_flag(b, &c, i, false);
    }
}

/* Each thread looks at one flag; then the block fills what its threads found, page by page. */
PS_KERNEL1(ps_clean, struct ps_batch, batch)
{
    PS_SHARED uint32_t found[CLEAN_MAX]; /* threads */
    PS_SHARED uint64_t n_found;
    struct cursor end = cursor_start(&batch);

    for (uint64_t base = PS_BLOCK; cursor_seek(&batch, &end, base);
         base += PS_N_BLOCKS * PS_N_THREADS) {
        if (PS_THREAD == 0) {
            n_found = 0;
        }
        PS_SYNC();
        if (is_flagged(&batch, base + PS_THREAD * PS_N_BLOCKS)) {
            found[ps_atomic_add(&n_found, 1)] = PS_THREAD;
        }
        PS_SYNC();
        PS_YIELD();
        for (uint64_t k = 0; k < n_found; k++) {
            clean_page(&batch, base + found[k] * PS_N_BLOCKS);
        }
        PS_SYNC();
    }
}

/* One block. All threads: what they wrote to the slots from `tail` on becomes free at once. */
PS_DEVICE void publish(struct ps_free_list *list, uint64_t tail, uint64_t n)
{
    PS_FENCE();
    PS_SYNC();
    if (PS_THREAD == 0) {
        ps_publish_u64(&list->tail, tail + n);
        ps_atomic_add_ordered(&list->n_free, n);
    }
}

/* All lanes: their pages, if they have any, become the next numbers of the list behind its tail. */
PS_DEVICE uint64_t give(struct ps_free_list *list, uint64_t at, bool has, uint32_t page)
{
    const uint32_t all = PS_BALLOT(has);
    if (has) {
        list->slots[(at + PS_RANK(all)) & (list->n_slots - 1)] = page;
    }
    return at + PS_COUNT(all);
}

/* One block of one warp. Gives back the pages that the tables of the batch name. */
PS_THIN_KERNEL1(ps_drop, struct ps_batch, batch)
{
    struct ps_free_list *const device = (struct ps_free_list *)ps_address(batch.free_list);
    struct ps_free_list *const host = (struct ps_free_list *)ps_address(batch.host_list);
    const uint64_t device_tail = ps_load_u64(&device->tail);
    const uint64_t host_tail = host != NULL ? ps_load_u64(&host->tail) : 0;
    uint64_t device_end = device_tail;
    uint64_t host_end = host_tail;
    struct cursor c = cursor_start(&batch);
    struct cursor all = c;

    for (uint64_t base = 0; cursor_seek(&batch, &all, base); base += (uint64_t)AHEAD * PS_LANES) {
        uint32_t page[AHEAD];
        PS_UNROLL
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint64_t i = base + (uint64_t)k * PS_LANES + PS_THREAD;
            page[k] = cursor_seek(&batch, &c, i) ? cursor_entry(&batch, &c, i)->page : PS_PAGE_DEAD;
        }
        PS_YIELD();
        PS_UNROLL
        for (uint32_t k = 0; k < AHEAD; k++) {
            const bool has = page[k] != PS_PAGE_UNIFORM && page[k] != PS_PAGE_DEAD;
            const bool on_host = (page[k] & PS_PAGE_HOST) != 0;
            device_end = give(device, device_end, has && !on_host, page[k]);
            if (host != NULL) {
                host_end = give(host, host_end, has && on_host, page[k]);
            }
        }
    }
    PS_YIELD();
    publish(device, device_tail, device_end - device_tail);
    if (host != NULL) {
        publish(host, host_tail, host_end - host_tail);
    }
}

/* One block. Pages [first, first + count) are new and free. */
PS_KERNEL3(ps_grow, uint64_t, free_list, uint32_t, first, uint32_t, count)
{
    struct ps_free_list *const list = (struct ps_free_list *)ps_address(free_list);
    const uint64_t tail = ps_load_u64(&list->tail);
    for (uint32_t i = PS_THREAD; i < count; i += PS_N_THREADS) {
        list->slots[(tail + i) & (list->n_slots - 1)] = first + i;
    }
    PS_YIELD();
    publish(list, tail, count);
}

/* ---- shift: pages in a row ---- */

/* One thread: the block has seen how many there are. All are free again once each has. */
PS_DEVICE void refill(const struct ps_shift *s, uint64_t n_blocks)
{
    struct ps_free_list *const list = (struct ps_free_list *)ps_address(s->list);
    if (ps_atomic_sum(&list->done, 1) == n_blocks) {
        list->done = 0;
        list->head = 0;
        list->n_free = s->n_pages;
    }
}

PS_DEVICE void shift_load(const struct ps_shift *s, struct pipe *p, uint64_t at, uint64_t end)
{
    const uint32_t chunk = pipe_chunk_bytes(p);
    if (at < end) {
        pipe_load(p, s->from + at, end - at < chunk ? (uint32_t)(end - at) : chunk);
    } else {
        pipe_load_none(p);
    }
}

/* Few blocks of one warp, so small that they fit beside a kernel that fills the multiprocessor. */
PS_THIN_KERNEL1(ps_shift, struct ps_shift, s)
{
    const uint64_t n = ps_load_u64((const uint64_t *)ps_address(s.count));
    const uint64_t end = (n < s.n_pages ? n : s.n_pages) * s.page_bytes;
    const uint64_t chunk = UINT64_C(1) << s.ring.chunk_shift;
    const uint64_t step = PS_N_BLOCKS * chunk;
    uint64_t at = (uint64_t)s.first * s.page_bytes + PS_BLOCK * chunk;
    uint64_t ahead = at; /* what is loaded next */
    struct pipe p;

    if (s.note != 0 && PS_BLOCK == 0 && PS_THREAD == 0) {
        *(uint64_t *)ps_address(s.note) = n;
    }
    if (s.list != 0 && PS_THREAD == 0) {
        refill(&s, PS_N_BLOCKS);
    }
    PS_YIELD();
    pipe_start(&p, &s.ring);
    PS_NO_UNROLL
    for (uint32_t i = 0; i + 1 < s.ring.n_slots; i++, ahead += step) {
        shift_load(&s, &p, ahead, end);
    }
    PS_NO_UNROLL
    for (; at < end; at += step, ahead += step) {
        const uint32_t bytes = (uint32_t)(end - at < chunk ? end - at : chunk);

        pipe_wait(&p);
        if (s.to_host != 0) {
            pipe_store_lanes(&p, s.to + at, bytes);
        } else {
            pipe_store(&p, s.to + at, bytes);
        }
        pipe_done(&p);
        shift_load(&s, &p, ahead, end);
    }
    pipe_end();
}
