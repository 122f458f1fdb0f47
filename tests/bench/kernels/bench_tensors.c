/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of tensors in device memory, all of a kind, with a pool that holds them all; and the launches that move one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/kernels/bench.h"

#define COUNTS_BYTES 16
#define PIECE_SHIFT  4
#define POISON_WORD  0xA5A5A5A5u
#define ALIGN        UINT64_C(512)

static void *host_alloc(uint64_t bytes)
{
    void *p = calloc(1, bytes > 0 ? bytes : 1);

    if (p == NULL) {
        die("no %llu bytes of host memory", (unsigned long long)bytes);
    }
    return p;
}

static uint64_t round_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

static uint64_t pages_of(const struct tensors *t, uint64_t bytes)
{
    return (bytes + t->what.page_bytes - 1) / t->what.page_bytes;
}

static struct content_params content_of(const struct tensors *t, uint32_t set, uint32_t i)
{
    const struct content_params c = {
        t->seeds[set * t->what.n_tensors + i],
        (uint32_t)__builtin_ctz(t->what.page_bytes / 16),
        t->what.uniform_permille,
    };

    return c;
}

/* Equal shares, or, ragged, shares between half and one and a half of that, at odd addresses. */
static void lay_out_set(struct tensors *t, struct bench *b, uint32_t set)
{
    const struct shape_case *w = &t->what;
    struct ps_batch *batch = &t->batches[set];
    uint64_t at = t->region + set * t->stride;
    uint64_t left = w->bytes;

    for (uint32_t i = 0; i < w->n_tensors; i++) {
        struct ps_batch_item *item = &batch->items[i];
        uint64_t share = round_up(left / (w->n_tensors - i), 16);

        if (w->ragged && i + 1 < w->n_tensors) {
            share = share / 2 + bench_random(b) % (share / 16 + 1) * 16;
            share = round_up(share, 16);
        }
        share = share < left ? share : left;
        item->data = at + (w->ragged ? 16 * (bench_random(b) % 32) : 0);
        item->bytes = share;
        left -= share;
        at = round_up(item->data + share, ALIGN);
        t->seeds[set * w->n_tensors + i] = bench_random(b);
    }
    batch->n_items = w->n_tensors;
    batch->page_bytes = w->page_bytes;
}

static void count_pages(struct tensors *t)
{
    for (uint32_t set = 0; set < t->n_sets; set++) {
        for (uint32_t i = 0; i < t->what.n_tensors; i++) {
            const uint64_t bytes = t->batches[set].items[i].bytes;
            const uint64_t n = pages_of(t, bytes);
            const struct content_params c = content_of(t, set, i);

            t->capacity += n;
            for (uint64_t p = 0; p < n; p++) {
                const uint64_t rest = bytes - p * t->what.page_bytes;
                const uint64_t in_page = rest < t->what.page_bytes ? rest : t->what.page_bytes;

                if (in_page > 16 && !content_is_uniform(c.seed, p, c.uniform_permille)) {
                    t->stored_of_set++;
                    t->stored_bytes_of_set += in_page;
                }
            }
        }
    }
    const uint64_t n_sets = t->n_sets > 0 ? t->n_sets : 1;

    t->pages_of_set = t->capacity / n_sets;
    t->stored_of_set /= n_sets;
    t->stored_bytes_of_set /= n_sets;
}

static CUdeviceptr create_list(const struct tensors *t, struct bench *b, CUdeviceptr *slots_p,
                               uint64_t n_free, uint32_t bit)
{
    struct ps_free_list list = {.n_slots = 4};

    while (list.n_slots < t->capacity) {
        list.n_slots *= 2;
    }
    uint32_t *slots = host_alloc(list.n_slots * sizeof(*slots));
    const CUdeviceptr at = device_alloc(sizeof(list));

    for (uint64_t i = 0; i < t->capacity; i++) {
        const uint64_t other = t->what.sorted ? i : bench_random(b) % (i + 1);

        slots[i] = slots[other];
        slots[other] = (uint32_t)i | bit;
    }
    *slots_p = device_alloc(2 * list.n_slots * sizeof(*slots));
    MUST(fns.cuMemcpyHtoD(*slots_p, slots, list.n_slots * sizeof(*slots)));
    memcpy(&list.slots, slots_p, sizeof(list.slots));
    list.tail = t->capacity;
    list.n_free = n_free;
    MUST(fns.cuMemcpyHtoD(at, &list, sizeof(list)));
    free(slots);
    return at;
}

static void create_host_pages(struct tensors *t, struct bench *b)
{
    const uint64_t piece = (uint64_t)t->what.page_bytes << PIECE_SHIFT;
    const uint64_t n = (t->capacity >> PIECE_SHIFT) + 1;
    uint64_t *at = host_alloc(n * sizeof(*at));

    MUST(drv.cuMemHostAlloc((void **)&t->host_pool, n * piece, CU_MEMHOSTALLOC_DEVICEMAP));
    t->pieces = device_alloc(n * sizeof(*at));
    for (uint64_t i = 0; i < n; i++) {
        at[i] = (uint64_t)(uintptr_t)(t->host_pool + (n - 1 - i) * piece);
    }
    MUST(fns.cuMemcpyHtoD(t->pieces, at, n * sizeof(*at)));
    free(at);
    t->host_list = create_list(t, b, &t->host_slots, t->capacity, PS_PAGE_HOST);
}

static void fill_batches(struct tensors *t)
{
    uint64_t entry = 0;

    for (uint32_t set = 0; set < t->n_sets; set++) {
        struct ps_batch *batch = &t->batches[set];

        batch->pool = t->pool;
        batch->free_list = t->list;
        batch->host_list = t->host_list;
        batch->host_pieces = t->pieces;
        batch->host_shift = PIECE_SHIFT;
        for (uint32_t i = 0; i < batch->n_items; i++) {
            const uint32_t n = set * t->what.n_tensors + i;

            batch->items[i].table = t->tables + entry * sizeof(struct ps_page_entry);
            batch->items[i].counts = t->counts + (uint64_t)n * COUNTS_BYTES;
            batch->items[i].ledger = (uint64_t)(uintptr_t)&t->ledgers[n];
            batch->items[i].seq = (uint16_t)n;
            entry += pages_of(t, batch->items[i].bytes);
        }
    }
}

void tensors_create(struct tensors *t, struct bench *b, const struct shape_case *what,
                    uint32_t n_sets)
{
    const uint64_t n = (uint64_t)n_sets * what->n_tensors;

    memset(t, 0, sizeof(*t));
    t->what = *what;
    t->n_sets = n_sets;
    t->set_bytes = what->bytes;
    t->stride = round_up(what->bytes + what->n_tensors * 2 * ALIGN, ALIGN);
    t->region_bytes = t->stride * n_sets;
    t->region = device_alloc(t->region_bytes);
    t->batches = host_alloc(n_sets * sizeof(*t->batches));
    t->seeds = host_alloc(n * sizeof(*t->seeds));
    for (uint32_t set = 0; set < n_sets; set++) {
        lay_out_set(t, b, set);
    }
    count_pages(t);
    t->pool = device_alloc(what->on_host ? 512 : t->capacity * what->page_bytes);
    t->tables = device_alloc(t->capacity * sizeof(struct ps_page_entry));
    t->counts = device_alloc(n * COUNTS_BYTES);
    MUST(drv.cuMemHostAlloc((void **)&t->ledgers, n * sizeof(uint64_t), 0));
    t->list = create_list(t, b, &t->slots, what->on_host ? 0 : t->capacity, 0);
    if (what->on_host) {
        create_host_pages(t, b);
    }
    MUST(fns.cuMemsetD8Async(t->tables, 0, t->capacity * sizeof(struct ps_page_entry), b->out));
    MUST(fns.cuMemsetD8Async(t->counts, 0, n * COUNTS_BYTES, b->out));
    if (!what->on_host) {
        MUST(
            drv.cuMemsetD32Async(t->pool, POISON_WORD, t->capacity * what->page_bytes / 4, b->out));
    }
    fill_batches(t);
    for (uint32_t set = 0; set < n_sets; set++) {
        for (uint32_t i = 0; i < what->n_tensors; i++) {
            const struct content_params c = content_of(t, set, i);

            fill_content(b, t->batches[set].items[i].data, t->batches[set].items[i].bytes, &c);
        }
    }
    MUST(drv.cuStreamSynchronize(b->out));
}

void tensors_destroy(struct tensors *t)
{
    const CUdeviceptr all[] = {t->region, t->pool,      t->tables,     t->counts, t->list,
                               t->slots,  t->host_list, t->host_slots, t->pieces};

    MUST(drv.cuCtxSynchronize());
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i] != 0) {
            MUST(fns.cuMemFree(all[i]));
        }
    }
    MUST(drv.cuMemFreeHost(t->ledgers));
    if (t->host_pool != NULL) {
        MUST(drv.cuMemFreeHost(t->host_pool));
    }
    free(t->batches);
    free(t->seeds);
}

void tensors_poison(const struct tensors *t, const struct bench *b)
{
    MUST(drv.cuMemsetD32Async(t->region, POISON_WORD, t->region_bytes / 4, b->out));
}

void tensors_check(const struct tensors *t, const struct bench *b)
{
    for (uint32_t set = 0; set < t->n_sets; set++) {
        for (uint32_t i = 0; i < t->what.n_tensors; i++) {
            const struct content_params c = content_of(t, set, i);

            check_content(b, t->batches[set].items[i].data, t->batches[set].items[i].bytes, &c);
        }
    }
}

bool ledgers_right(const struct tensors *t)
{
    uint64_t stored = 0;
    bool ok = true;

    for (uint32_t n = 0; n < t->n_sets * t->what.n_tensors; n++) {
        const uint64_t word = t->ledgers[n];

        ok = ok && PS_LEDGER_SEQ(word) == (uint16_t)n;
        stored += PS_LEDGER_DEVICE(word) + PS_LEDGER_HOST(word);
    }
    return ok && stored / t->n_sets == t->stored_of_set;
}

/* ---- launches ---- */

static struct ps_kernels shaped(const struct bench *b, const struct ps_shape *shape)
{
    struct ps_kernels k = b->kernels;

    if (shape != NULL) {
        k.out = k.in = (struct ps_shapes){*shape, *shape, *shape, *shape};
    }
    return k;
}

void launch_stash(const struct bench *b, const struct tensors *t, uint32_t set,
                  const struct ps_shape *shape, enum ps_pace pace)
{
    const struct ps_kernels k = shaped(b, shape);

    MUST(ps_kernels_stash(&drv, &k, b->out, &t->batches[set], pace));
}

void launch_restore(const struct bench *b, const struct tensors *t, uint32_t set,
                    const struct ps_shape *shape, enum ps_pace pace)
{
    const struct ps_kernels k = shaped(b, shape);

    MUST(ps_kernels_restore(&drv, &k, b->out, &t->batches[set], pace));
}

void launch_drop(const struct bench *b, const struct tensors *t, uint32_t set)
{
    MUST(ps_kernels_drop(&drv, &b->kernels, b->out, &t->batches[set]));
}
