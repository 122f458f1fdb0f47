/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is stored of tensors: a copy's page table and ledger word, what the budget counts for it, its drop. Any thread;
 * lock held.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"

struct ps_copy *ps_copy_make(struct ps_engine *e, uint32_t n_pages, uint32_t reserved)
{
    struct ps_page_pool *p = &e->pool;
    struct ps_copy *c = calloc(1, sizeof(*c));
    uint64_t word;
    if (c == NULL || n_pages > PS_PAGES_MAX || !ps_budget_reserve(&p->budget, reserved)) {
        free(c);
        return NULL;
    }
    if (!ps_ranges_take(&p->ledger_free, 1, &word)) {
        ps_budget_cancel(&p->budget, reserved);
        free(c);
        return NULL;
    }
    if (!ps_ranges_take(&p->entries, n_pages, &c->entry)) {
        ps_ranges_give(&p->ledger_free, word, 1);
        ps_budget_cancel(&p->budget, reserved);
        free(c);
        return NULL;
    }
    c->n_pages = n_pages;
    c->reserved = reserved;
    c->ledger = (uint16_t)word;
    c->seq = ++p->seq & PS_SEQ_MAX;
    c->table = p->tables + c->entry * sizeof(struct ps_page_entry);
    return c;
}

void ps_copy_free(struct ps_engine *e, struct ps_copy *c)
{
    if (!c->settled) {
        ps_budget_cancel(&e->pool.budget, c->reserved);
    }
    ps_fence_unref(&e->fences, c->stash);
    ps_fence_unref(&e->fences, c->dropped);
    ps_rows_unref(e, c->rows);
    ps_ranges_give(&e->pool.entries, c->entry, c->n_pages);
    ps_ranges_give(&e->pool.ledger_free, c->ledger, 1);
    free(c);
}

void ps_copy_item(const struct ps_engine *e, const struct ps_copy *c, uint64_t base, uint64_t bytes,
                  struct ps_batch_item *item_p)
{
    const struct ps_page_pool *p = &e->pool;
    memset(item_p, 0, sizeof(*item_p));
    ps_assert(ps_pool_pages(p, bytes) == c->n_pages);
    item_p->data = base;
    item_p->bytes = (bytes + 15) / 16 * 16;
    item_p->table = c->table;
    item_p->counts = p->counts + (uint64_t)c->ledger * 16;
    item_p->ledger = p->ledger_device + (uint64_t)c->ledger * sizeof(uint64_t);
    item_p->seq = c->seq;
}

/* Written by the stash kernel with system scope; its fence is done, so the word is final. */
static uint64_t word_of(const struct ps_engine *e, const struct ps_copy *c)
{
    return __atomic_load_n(&e->pool.ledger[c->ledger], __ATOMIC_ACQUIRE);
}

/* Else the context died before the kernel ran to its end. */
static bool is_sound(const struct ps_copy *c, uint64_t word)
{
    return PS_LEDGER_SEQ(word) == c->seq &&
           PS_LEDGER_DEVICE(word) + PS_LEDGER_HOST(word) <= c->n_pages;
}

void ps_flight_settle(struct ps_engine *e, const struct ps_flight *fl)
{
    uint64_t on_host = 0;
    uint64_t staged = 0;
    bool there = e->sinks != NULL; /* its plan may be gone, and with it the sink */
    for (uint32_t i = 0; i < fl->n; i++) {
        const uint64_t word = word_of(e, fl->copy[i]);
        const bool sound = is_sound(fl->copy[i], word);
        on_host += sound ? PS_LEDGER_HOST(word) : 0;
        staged += sound ? PS_LEDGER_DEVICE(word) : 0;
        there = there && !fl->copy[i]->dropping;
    }
    if (there) {
        ps_sink_used(e, fl->sink, staged);
    }
    ps_budget_settle(&e->pool.budget, fl->overflow, on_host);
}

void ps_copy_settle(struct ps_engine *e, struct ps_copy *c)
{
    struct ps_page_pool *p = &e->pool;
    const uint64_t word = word_of(e, c);

    ps_assert(!c->settled);
    c->settled = true;
    c->stored = PS_LEDGER_DEVICE(word) + PS_LEDGER_HOST(word);
    c->spilled = PS_LEDGER_HOST(word);
    if (!is_sound(c, word)) {
        /* Every later call of the job says so. Keep the worst case. */
        ps_count(errors, 1);
        ps_error_once("a stash did not complete: the CUDA context has failed");
        c->stored = c->n_pages;
        c->spilled = 0;
    }
    p->spilling = c->stored > 0 ? ps_mostly_host(c->spilled, c->n_pages) : p->spilling;
    c->uniform = c->n_pages - c->stored;
    const uint32_t dead = ps_rows_settle(e, c, word);
    if (c->site != NULL) {
        const bool eligible = ps_site_eligible(c->site);
        c->site->n_stashed++;
        c->site->n_uniform += c->uniform;
        e->learned = e->learned || eligible != ps_site_eligible(c->site);
    }
    ps_learn_stashed(e, c, (uint64_t)c->stored * p->page_bytes);
    c->held = c->sink != NULL ? c->spilled : c->stored;
    if (c->sink == NULL) {
        ps_budget_settle(&p->budget, c->reserved, c->held);
    }
    const uint64_t bytes = (uint64_t)c->stored * p->page_bytes;
    ps_count(bytes_stashed, bytes);
    ps_count(bytes_spilled, c->sink != NULL ? bytes : (uint64_t)c->spilled * p->page_bytes);
    ps_count(uniform_pages, c->uniform - dead);
    ps_count(dead_pages, dead);
    ps_count(bytes_scanned, (uint64_t)(c->n_pages - dead) * p->page_bytes);
    ps_count(valid_bytes, bytes);
    ps_counter_peak(&ps_counters.valid_bytes_peak, ps_counter(valid_bytes));
    ps_counter_peak(&ps_counters.pages_used_peak, ps_counter(valid_bytes));
    if (c->dropping) {
        ps_budget_drop(&p->budget, c->held);
    }
}

/* Of those that have a sink, or of the others: pages of a stage go nowhere. */
static CUresult drop_batch(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n, bool staged)
{
    struct ps_page_pool *p = &e->pool;
    struct ps_batch b;

    ps_pool_batch(e, &b);
    b.free_list = staged ? p->nowhere : p->list;
    for (uint32_t i = 0; i < n; i++) {
        const struct ps_copy *c = t[i]->copy;
        if ((c->sink != NULL) == staged) {
            /* A drop looks at the table only. */
            ps_copy_item(e, c, 0, (uint64_t)c->n_pages * p->page_bytes, &b.items[b.n_items++]);
        }
    }
    return ps_kernels_drop(&ps_driver, &e->kernels, e->drop_stream, &b);
}

CUresult ps_copies_drop(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n,
                        struct ps_fence *after)
{
    struct ps_page_pool *p = &e->pool;
    const uint64_t key = ps_stream_key(e->ctx, e->drop_stream);
    CUresult r = p->broken ? CUDA_ERROR_UNKNOWN : ps_fence_wait(after, key, e->drop_stream);

    for (uint32_t i = 0; i < n && r == CUDA_SUCCESS; i++) {
        r = ps_fence_wait(t[i]->copy->stash, key, e->drop_stream);
    }
    if (r == CUDA_SUCCESS) {
        r = ps_fence_wait(p->pushed, key, e->drop_stream);
    }
    for (int staged = 0; staged < 2 && r == CUDA_SUCCESS; staged++) {
        r = drop_batch(e, t, n, staged != 0);
    }
    struct ps_fence *f = r == CUDA_SUCCESS ? ps_pool_push(e, &r) : NULL;
    if (f == NULL) {
        ps_count(errors, 1);
        ps_error("cannot give pages back: %s; they are lost to the pool",
                 ps_driver_error_name(&ps_driver, r));
    }
    for (uint32_t i = 0; i < n; i++) {
        struct ps_copy *c = t[i]->copy;
        t[i]->copy = NULL;
        c->dropping = true;
        c->dropped = ps_fence_ref(f);
        if (c->settled) {
            ps_budget_drop(&p->budget, c->held);
        }
        if (c->sink != NULL) { /* a drop itself touches neither stage nor sink */
            ps_sink_left(e, c->sink, after != NULL ? after : c->stash);
        }
        if (f == NULL) {
            continue; /* its pages and table stay taken for good */
        }
        c->next = NULL;
        *p->drops_end = c;
        p->drops_end = &c->next;
    }
    ps_fence_unref(&e->fences, f);
    return r;
}
