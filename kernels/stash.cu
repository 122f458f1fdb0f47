/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that move tensors out to pages and back, and the page numbers of the free lists with
 * them (layout.h says what lies where, and how launches must be ordered against each other). One
 * source for nvcc and, through dual.h, for the host compiler: right for any grid and block size.
 *
 * Blocks of one stash share only the lists' counters and the counts, by atomic operations. Each page belongs
 * to one block: it scans in chunks and stops at the first that shows a difference, so that a page
 * of data costs one chunk more than its copy; only uniform pages are read to the end.
 */
#include "kernels/dual.h"
#include "kernels/layout.h"

#define FIRST_LOADS 4    /* loads a thread has in flight: in the first chunk of a scan */
#define LOADS       8    /* in later chunks and in copies */
#define CLEAN_MAX   1024 /* threads of a block of ps_clean, at most */
#define BEYOND      (UINT64_C(1) << 32) /* added to counts[1] */

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

PS_DEVICE struct ps_vec *pool_page(const struct ps_batch *b, const struct cursor *c, uint32_t page)
{
    if ((page & PS_PAGE_HOST) != 0) {
        const uint32_t at = page & ~PS_PAGE_HOST;
        const uint64_t *pieces = (const uint64_t *)ps_address(b->host_pieces);
        const uint64_t offset = at & ((1u << b->host_shift) - 1);
        return (struct ps_vec *)ps_address(ps_load_u64(&pieces[at >> b->host_shift]) +
                                           (offset << c->shift));
    }
    return (struct ps_vec *)ps_address(b->pool + ((uint64_t)page << c->shift));
}

/* One thread. Notes whether a page of the item may differ from a uniform one. */
PS_DEVICE void cursor_flag(const struct ps_batch *b, const struct cursor *c, uint64_t i, bool on)
{
    const struct ps_batch_item *item = &b->items[c->item];
    if (item->flags != 0) {
        ((uint8_t *)ps_address(item->flags))[i - c->first] = on;
    }
}

PS_DEVICE struct ps_vec vec_of(uint32_t word)
{
    const uint64_t twice = (uint64_t)word << 32 | word;
    const struct ps_vec v = {twice, twice};
    return v;
}

/* Bytes of the item that may hold data. One thread: all must decide alike, whatever becomes of the count. */
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

/* Vectors of a page that may hold data; the page begins at `offset` of the item. */
PS_DEVICE uint64_t valid_vectors(struct place p, uint64_t offset, uint64_t valid)
{
    if (valid <= offset) {
        return 0;
    }
    const uint64_t n =
        (valid - offset) / sizeof(struct ps_vec) + ((valid - offset) % sizeof(struct ps_vec) != 0);
    return n < p.n ? n : p.n;
}

/* Not zero if any of this thread's vectors of the chunk at `base` is not `word`. */
PS_DEVICE uint64_t chunk_differs(const struct ps_vec *data, uint64_t n, uint64_t base, int loads,
                                 struct ps_vec word)
{
    uint64_t differs = 0;
    PS_UNROLL
    for (int k = 0; k < loads; k++) {
        const uint64_t at = base + (uint64_t)k * PS_N_THREADS + PS_THREAD;
        /* Beyond the end the last one is looked at again: no branch between the loads. */
        const struct ps_vec v = ps_load(&data[at < n ? at : n - 1]);
        differs |= (v.x ^ word.x) | (v.y ^ word.y);
    }
    return differs;
}

/* The whole block; at least one barrier. */
PS_DEVICE bool page_is_uniform(const struct ps_vec *data, uint64_t n, struct ps_vec word)
{
    if (PS_BLOCK_ANY(chunk_differs(data, n, 0, FIRST_LOADS, word) != 0)) {
        return false;
    }
    for (uint64_t at = (uint64_t)FIRST_LOADS * PS_N_THREADS; at < n;
         at += (uint64_t)LOADS * PS_N_THREADS) {
        if (PS_BLOCK_ANY(chunk_differs(data, n, at, LOADS, word) != 0)) {
            return false;
        }
    }
    return true;
}

/* Writes past the caches' favour when the page is not read again soon. */
PS_DEVICE void copy_page(struct ps_vec *to, const struct ps_vec *from, uint64_t n, bool to_pool)
{
    const uint64_t step = PS_N_THREADS;
    uint64_t at = PS_THREAD;
    for (; at + (LOADS - 1) * step < n; at += LOADS * step) {
        struct ps_vec v[LOADS];
        PS_UNROLL
        for (int k = 0; k < LOADS; k++) {
            v[k] = ps_load_stream(&from[at + (uint64_t)k * step]);
        }
        PS_UNROLL
        for (int k = 0; k < LOADS; k++) {
            struct ps_vec *const p = &to[at + (uint64_t)k * step];
            if (to_pool) {
                ps_store_stream(p, v[k]);
            } else {
                ps_store(p, v[k]);
            }
        }
    }
    for (; at < n; at += step) {
        ps_store(&to[at], ps_load_stream(&from[at]));
    }
}

PS_DEVICE void fill_page(struct ps_vec *to, uint64_t n, struct ps_vec word)
{
    for (uint64_t at = PS_THREAD; at < n; at += PS_N_THREADS) {
        ps_store(&to[at], word);
    }
}

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

/* All threads of the last block: every other block's counts are complete and visible. */
PS_DEVICE void publish_ledgers(const struct ps_batch *b)
{
    for (uint32_t i = PS_THREAD; i < b->n_items; i += PS_N_THREADS) {
        const struct ps_batch_item *item = &b->items[i];
        uint64_t *counts = (uint64_t *)ps_address(item->counts);
        const uint64_t device = ps_load_u64(&counts[0]);
        const uint64_t host = ps_load_u64(&counts[1]);
        const uint64_t beyond = host >= BEYOND ? PS_LEDGER_BEYOND : 0;
        counts[0] = 0;
        counts[1] = 0;
        ps_publish_u64((uint64_t *)ps_address(item->ledger),
                       PS_LEDGER(item->seq, device, host % BEYOND) | beyond);
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

/* The whole block. A page that is not trusted and reaches beyond the rows: has the job written there? */
PS_DEVICE void look_beyond(const struct ps_batch *b, const struct ps_batch_item *item,
                           struct place p, uint64_t n_valid)
{
    if (n_valid == p.n) {
        return;
    }
    const struct ps_vec word = ps_load(&p.data[n_valid]);
    const bool uniform = page_is_uniform(&p.data[n_valid], p.n - n_valid, word);
    struct ps_row_outcome *const all = (struct ps_row_outcome *)ps_address(b->outcomes);
    if (PS_THREAD == 0 && (!uniform || is_written(&all[item->outcome],
                                                  (item->rows_kind & PS_ROWS_SECOND) != 0, word))) {
        ps_atomic_add((uint64_t *)ps_address(item->counts) + 1, BEYOND);
    }
}

/* One thread. Nothing of the page was looked at, so nothing is known of it. */
PS_DEVICE void pass_page(const struct ps_batch *b, const struct cursor *c, uint64_t i)
{
    cursor_entry(b, c, i)->page = PS_PAGE_DEAD;
    cursor_flag(b, c, i, true);
}

/* Scans, stores what is not uniform, fills the tables; the last block to end writes the ledgers. */
PS_KERNEL1(ps_stash, struct ps_batch, batch)
{
    struct ps_free_list *const list = (struct ps_free_list *)ps_address(batch.free_list);
    PS_SHARED uint32_t page;
    PS_SHARED uint64_t valid; /* bytes of item `counted` */
    PS_SHARED bool last;
    uint32_t counted = UINT32_MAX;
    struct cursor c = cursor_start(&batch);

    if (PS_THREAD == 0) {
        valid = 0;
    }
    for (uint64_t i = PS_BLOCK; cursor_seek(&batch, &c, i); i += PS_N_BLOCKS) {
        const struct ps_batch_item *const item = &batch.items[c.item];
        const struct place p = cursor_place(&batch, &c, i);
        struct ps_page_entry *const entry = cursor_entry(&batch, &c, i);
        uint64_t *const counts = (uint64_t *)ps_address(item->counts);

        if (counted != c.item) {
            counted = c.item;
            PS_SYNC();
            if (PS_THREAD == 0) {
                valid = valid_bytes(item);
            }
            PS_SYNC();
        }
        const uint64_t n_valid = valid_vectors(p, (i - c.first) << c.shift, valid);
        if ((item->rows_kind & PS_ROWS_TRUSTED) == 0) {
            look_beyond(&batch, item, p, n_valid);
        } else if (n_valid == 0) {
            if (PS_THREAD == 0) {
                pass_page(&batch, &c, i);
            }
            continue;
        }
        const struct ps_vec word = ps_load(p.data);
        PS_YIELD();
        if (page_is_uniform(p.data, p.n, word)) {
            if (PS_THREAD == 0) {
                entry->page = PS_PAGE_UNIFORM;
                entry->word[0] = word.x;
                entry->word[1] = word.y;
                cursor_flag(&batch, &c, i, false);
            }
            continue;
        }
        /* The scan's barrier lies between the last page's readers of `page` and this writer. */
        if (PS_THREAD == 0) {
            struct ps_free_list *const from = choose_list(&batch);
            PS_YIELD();
            page = take_page(from);
            entry->page = page;
            ps_atomic_add(&counts[(page & PS_PAGE_HOST) != 0], 1);
            cursor_flag(&batch, &c, i, true);
        }
        PS_SYNC();
        PS_YIELD();
        copy_page(pool_page(&batch, &c, page), p.data, p.n, true);
    }

    /* A ledger word also says that all pages are written: by every thread of every block. */
    PS_SYNC();
    PS_YIELD();
    if (PS_THREAD == 0) {
        PS_FENCE();
        last = ps_atomic_add(&list->done, 1) + 1 == PS_N_BLOCKS;
    }
    PS_SYNC();
    if (last) {
        PS_FENCE();
        if (PS_THREAD == 0) {
            list->done = 0;
        }
        publish_ledgers(&batch);
    }
}

/* Writes every page of the batch back, but for dead ones. The free lists are not touched. */
PS_KERNEL1(ps_restore, struct ps_batch, batch)
{
    struct cursor c = cursor_start(&batch);
    for (uint64_t i = PS_BLOCK; cursor_seek(&batch, &c, i); i += PS_N_BLOCKS) {
        const struct ps_batch_item *const item = &batch.items[c.item];
        const struct ps_page_entry *const entry = cursor_entry(&batch, &c, i);
        const struct place p = cursor_place(&batch, &c, i);
        const uint32_t page = entry->page;
        uint64_t n = p.n;
        PS_YIELD();
        if ((item->rows_kind & PS_ROWS_OVERWRITE) != 0) {
            n = valid_vectors(p, (i - c.first) << c.shift, valid_bytes(item));
            fill_page(&p.data[n], p.n - n, vec_of(PS_ROWS_POISON));
        }
        if (PS_THREAD == 0) {
            cursor_flag(&batch, &c, i, page != PS_PAGE_UNIFORM || n < p.n);
        }
        if (page == PS_PAGE_UNIFORM) {
            const struct ps_vec word = {entry->word[0], entry->word[1]};
            fill_page(p.data, n, word);
        } else if (page != PS_PAGE_DEAD) {
            copy_page(p.data, pool_page(&batch, &c, page), n, false);
        }
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

/* One block. Gives back the pages that the tables of the batch name. */
PS_KERNEL1(ps_drop, struct ps_batch, batch)
{
    const bool has_host = batch.host_list != 0;
    struct ps_free_list *const device = (struct ps_free_list *)ps_address(batch.free_list);
    struct ps_free_list *const host =
        has_host ? (struct ps_free_list *)ps_address(batch.host_list) : device;
    const uint64_t device_tail = ps_load_u64(&device->tail);
    const uint64_t host_tail = ps_load_u64(&host->tail);
    PS_SHARED uint64_t n_given[2]; /* device, host */
    struct cursor c = cursor_start(&batch);

    if (PS_THREAD == 0) {
        n_given[0] = 0;
        n_given[1] = 0;
    }
    PS_SYNC();
    for (uint64_t i = PS_THREAD; cursor_seek(&batch, &c, i); i += PS_N_THREADS) {
        const uint32_t page = cursor_entry(&batch, &c, i)->page;
        PS_YIELD();
        if (page != PS_PAGE_UNIFORM && page != PS_PAGE_DEAD) {
            const bool on_host = (page & PS_PAGE_HOST) != 0;
            struct ps_free_list *const list = on_host ? host : device;
            const uint64_t at =
                (on_host ? host_tail : device_tail) + ps_atomic_add(&n_given[on_host], 1);
            list->slots[at & (list->n_slots - 1)] = page;
        }
    }
    PS_SYNC();
    PS_YIELD();
    publish(device, device_tail, n_given[0]);
    if (has_host) {
        publish(host, host_tail, n_given[1]);
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
