/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page pool of one context: device pages behind reserved addresses, the device-side free list, page tables, and
 * the ledger in pinned host memory through which the device tells how many pages each stash took.
 *
 * Who moves the free list: stashes take (all on stash_stream); drops and growths give, and are totally ordered: each
 * waits for `pushed`, the fence behind the one before. What policy/budget.h knows to be free is enough for a stash,
 * so the two ends need no order between them.
 *
 * Any thread; the lock as engine_int.h says. Growth and shrinking map memory with the lock let go and `growing` set.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"

#define PAGE_BYTES_DEFAULT                                                                         \
    ((uint64_t)256 << 10) /* design, section 12: 256 KiB until the capacity is known */

#define PAGE_BYTES_LEAST (64u << 10) /* that a capacity makes it, unless the user chose the rows */
#define SLOTS_MOST       ((uint64_t)4 << 20)
#define NEARLY_FULL      8 /* less than such a part is left, and so many groups */
#define NEARLY_GROUPS    4

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

CUresult ps_pool_poke(uint64_t address, uint64_t value, CUstream stream)
{
    const CUresult r = ps_driver.cuMemsetD32Async(address, (unsigned)value, 1, stream);
    return r != CUDA_SUCCESS
               ? r
               : ps_driver.cuMemsetD32Async(address + 4, (unsigned)(value >> 32), 1, stream);
}

/* Lays out the arena: free list, its slots, counters; zeroes it. Waits: only while an engine is made. */
static CUresult init_arena(struct ps_engine *e, uint64_t n_slots)
{
    struct ps_page_pool *p = &e->pool;
    CUdeviceptr base = 0;
    CUresult r = ps_driver.cuMemAddressReserve(&base, p->arena_bytes, e->granularity, 0, 0);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    p->arena = base;
    r = ps_memory_create(e, p->arena_bytes, &p->arena_handle);
    if (r == CUDA_SUCCESS) {
        r = ps_driver.cuMemMap(base, p->arena_bytes, 0, p->arena_handle, 0);
        if (r != CUDA_SUCCESS) {
            ps_driver.cuMemRelease(p->arena_handle);
        }
    }
    if (r != CUDA_SUCCESS) {
        ps_driver.cuMemAddressFree(base, p->arena_bytes);
        p->arena = 0;
        return r;
    }
    r = ps_memory_access(e, base, p->arena_bytes);
    if (r == CUDA_SUCCESS) {
        r = ps_driver.cuMemsetD32Async(base, 0, p->arena_bytes / 4, e->drop_stream);
    }
    const uint64_t slots = round_up(base + sizeof(struct ps_free_list), 64);
    if (r == CUDA_SUCCESS) {
        r = ps_pool_poke(base + offsetof(struct ps_free_list, n_slots), n_slots, e->drop_stream);
    }
    if (r == CUDA_SUCCESS) {
        r = ps_pool_poke(base + offsetof(struct ps_free_list, slots), slots, e->drop_stream);
    }
    p->list = base;
    p->counts = round_up(slots + 2 * n_slots * sizeof(uint32_t), 64);
    /* Its only slot is written over and over. */
    p->nowhere = p->counts + (uint64_t)PS_COPIES_MAX * 16;
    if (r == CUDA_SUCCESS) {
        r = ps_pool_poke(p->nowhere + offsetof(struct ps_free_list, n_slots), 1, e->drop_stream);
    }
    if (r == CUDA_SUCCESS) {
        r = ps_pool_poke(p->nowhere + offsetof(struct ps_free_list, slots),
                         p->nowhere + sizeof(struct ps_free_list), e->drop_stream);
    }
    return r != CUDA_SUCCESS ? r : ps_driver.cuStreamSynchronize(e->drop_stream);
}

static CUresult init_ledger(struct ps_page_pool *p)
{
    void *host = NULL;
    const CUresult r =
        ps_driver.cuMemHostAlloc(&host, PS_COPIES_MAX * sizeof(uint64_t),
                                 CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (r == CUDA_SUCCESS) {
        memset(host, 0, PS_COPIES_MAX * sizeof(uint64_t));
        p->ledger = host;
        /* Unified addressing: pinned memory has the same address on the device (every 64-bit system since CUDA 4). */
        p->ledger_device = (uint64_t)(uintptr_t)host;
    }
    return r;
}

/* Pages may become smaller when a capacity is known: room for so many more is held ready, in moderation. */
static uint32_t least_page(uint64_t total)
{
    const bool chosen = ps_option_given(&ps_options, "PAGEDSTASH_PAGE_SIZE");
    uint32_t least = chosen ? PS_PAGE_BYTES_MIN : PAGE_BYTES_LEAST;

    while (total / least > SLOTS_MOST) {
        least *= 2;
    }
    return least;
}

static void choose_page(struct ps_page_pool *p, uint64_t total)
{
    const uint64_t first = ps_learn_first_page();

    if (ps_options.page_bytes != PS_AUTO) {
        p->page_bytes = p->least_page = (uint32_t)ps_options.page_bytes;
        return;
    }
    p->least_page = least_page(total);
    p->page_bytes = (uint32_t)(first != 0 ? first : PAGE_BYTES_DEFAULT);
    p->page_bytes = p->page_bytes < p->least_page ? p->least_page : p->page_bytes;
}

void ps_pool_unlimit(struct ps_engine *e)
{
    e->pool.most_device = ps_option_given(&ps_options, "PAGEDSTASH_CUDA_BUDGET")
                              ? ps_options.cuda_budget
                              : PS_NO_LIMIT;
}

/* Sizes of everything, from the device's memory and the page. */
static void plan_sizes(struct ps_engine *e, uint64_t total, uint64_t *n_slots_p)
{
    struct ps_page_pool *p = &e->pool;
    choose_page(p, total);
    ps_pool_unlimit(e);
    const uint64_t n_pages = total / p->least_page;
    uint64_t n_slots = 4;
    while (n_slots < n_pages) {
        n_slots *= 2;
    }
    *n_slots_p = n_slots;
    p->room = round_up(n_pages * p->least_page, e->granularity);
    /* A 64th of the device at most grows at once, so that a small device is not filled by one step. */
    p->grow_unit = round_up((uint64_t)32 << 20, e->granularity);
    while (p->grow_unit > total / 64 && p->grow_unit / 2 >= e->granularity) {
        p->grow_unit /= 2;
    }
    p->grow_unit =
        round_up(p->grow_unit, e->granularity > p->page_bytes ? e->granularity : p->page_bytes);
    p->arena_bytes = round_up(512 + 2 * n_slots * sizeof(uint32_t) + (uint64_t)PS_COPIES_MAX * 16,
                              e->granularity);
    /* More may be out than the device holds, though not many times more: an entry a page of eight devices. */
    p->tables_room = round_up(8 * n_pages * sizeof(struct ps_page_entry), e->granularity);
}

static CUresult reserve(uint64_t bytes, uint64_t granularity, uint64_t *base_p)
{
    CUdeviceptr base = 0;
    const CUresult r = ps_driver.cuMemAddressReserve(&base, bytes, granularity, 0, 0);
    *base_p = r == CUDA_SUCCESS ? base : 0;
    return r;
}

enum ps_status ps_pool_init(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    size_t total = 0;
    uint64_t n_slots = 0;
    CUresult r = ps_driver.cuDeviceTotalMem(&total, e->device);

    p->drops_end = &p->drops;
    plan_sizes(e, total, &n_slots);
    atomic_store_explicit(&ps_counters.page_bytes, p->page_bytes, memory_order_relaxed);
    ps_host_init(e, total);
    if (ps_ranges_init(&p->entries, 0, 0) != PS_OK ||
        ps_ranges_init(&p->ledger_free, 0, PS_COPIES_MAX) != PS_OK) {
        ps_warn("no host memory for the page pool; nothing is paged");
        return PS_ERR_MEMORY;
    }
    p->entries.size = p->tables_room / sizeof(struct ps_page_entry);
    if (r == CUDA_SUCCESS) {
        r = reserve(p->room, e->granularity, &p->base);
    }
    if (r == CUDA_SUCCESS) {
        r = reserve(p->tables_room, e->granularity, &p->tables);
    }
    if (r == CUDA_SUCCESS) {
        r = init_arena(e, n_slots);
    }
    if (r == CUDA_SUCCESS) {
        r = init_ledger(p);
    }
    if (r != CUDA_SUCCESS) {
        ps_warn("cannot set up the page pool: %s; nothing is paged",
                ps_driver_error_name(&ps_driver, r));
        return PS_ERR_DEVICE;
    }
    return PS_OK;
}

void ps_pool_unmap(struct ps_pool_piece *piece)
{
    ps_memory_unmap(piece->base, piece->bytes);
    ps_driver.cuMemRelease(piece->handle);
    ps_count(map_calls, 1);
    free(piece);
}

static void release_pieces(struct ps_pool_piece *piece)
{
    while (piece != NULL) {
        struct ps_pool_piece *next = piece->next;
        ps_pool_unmap(piece);
        piece = next;
    }
}

void ps_pool_fini(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    /* No ledger: the context, and its pinned memory, is gone, or nothing was made yet. */
    ps_host_fini(e, p->ledger == NULL);
    atomic_fetch_sub_explicit(&ps_counters.pool_bytes, p->mapped, memory_order_relaxed);
    release_pieces(p->pieces);
    release_pieces(p->table_pieces);
    p->pieces = NULL;
    p->table_pieces = NULL;
    while (p->drops != NULL) {
        struct ps_copy *c = p->drops;
        p->drops = c->next;
        ps_copy_free(e, c);
    }
    p->drops_end = &p->drops;
    p->pushed = ps_fence_unref(&e->fences, p->pushed);
    if (p->arena != 0) {
        ps_driver.cuMemUnmap(p->arena, p->arena_bytes);
        ps_driver.cuMemRelease(p->arena_handle);
        ps_driver.cuMemAddressFree(p->arena, p->arena_bytes);
        p->arena = 0;
    }
    if (p->base != 0) {
        ps_driver.cuMemAddressFree(p->base, p->room);
        p->base = 0;
    }
    if (p->tables != 0) {
        ps_driver.cuMemAddressFree(p->tables, p->tables_room);
        p->tables = 0;
    }
    if (p->ledger != NULL) {
        ps_driver.cuMemFreeHost(p->ledger);
        p->ledger = NULL;
    }
    ps_ranges_fini(&p->entries);
    ps_ranges_fini(&p->ledger_free);
}

uint32_t ps_pool_pages(const struct ps_page_pool *p, uint64_t bytes)
{
    return (uint32_t)((bytes + p->page_bytes - 1) / p->page_bytes);
}

struct ps_pool_piece *ps_pool_map(struct ps_engine *e, uint64_t base, uint64_t bytes)
{
    struct ps_pool_piece *piece = calloc(1, sizeof(*piece));
    if (piece == NULL) {
        return NULL;
    }
    piece->base = base;
    piece->bytes = bytes;
    CUresult r = ps_memory_create(e, bytes, &piece->handle);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        ps_memory_trim_pool(e);
        r = ps_memory_create(e, bytes, &piece->handle);
    }
    if (r != CUDA_SUCCESS) {
        free(piece);
        return NULL;
    }
    r = ps_driver.cuMemMap(base, bytes, 0, piece->handle, 0);
    ps_count(map_calls, 1);
    if (r == CUDA_SUCCESS) {
        r = ps_memory_access(e, base, bytes);
        if (r != CUDA_SUCCESS) {
            ps_driver.cuMemUnmap(base, bytes);
        }
    }
    if (r != CUDA_SUCCESS) {
        ps_count(errors, 1);
        ps_driver.cuMemRelease(piece->handle);
        free(piece);
        return NULL;
    }
    return piece;
}

/*
 * The free list is being changed on the stash stream, but no event could be recorded behind that: waits. The work
 * before it is a stash at most.
 */
static void await_change(struct ps_engine *e)
{
    ps_count(errors, 1);
    ps_count(host_syncs, 1);
    if (ps_driver.cuStreamSynchronize(e->stash_stream) != CUDA_SUCCESS) {
        ps_error("cannot tell when the page pool has changed: nothing more goes out");
        e->pool.broken = true;
    }
}

bool ps_pool_may_change(const struct ps_engine *e)
{
    const struct ps_page_pool *p = &e->pool;
    /* A change runs on the stash stream; it may not wait there for a drop that waits for a stream of the job. */
    return !p->growing && !p->broken && !p->loose && ps_fence_done(p->pushed);
}

bool ps_pool_enter(struct ps_engine *e, uint64_t list, uint32_t first, uint32_t count)
{
    struct ps_page_pool *p = &e->pool;
    CUresult r = ps_kernels_grow(&ps_driver, &e->kernels, e->stash_stream, list, first, count);
    if (r != CUDA_SUCCESS) {
        ps_count(errors, 1);
        ps_error("cannot grow the page pool: %s", ps_driver_error_name(&ps_driver, r));
        return false;
    }
    struct ps_fence *f = ps_fence_record(&e->fences, e->ctx, e->stash_stream, &r);
    if (f == NULL) {
        await_change(e);
    }
    ps_fence_unref(&e->fences, p->pushed);
    p->pushed = f;
    return true;
}

/* Enters a mapped piece's pages into the free list. */
static bool publish_piece(struct ps_engine *e, struct ps_pool_piece *piece)
{
    struct ps_page_pool *p = &e->pool;
    const uint64_t first = (piece->base - p->base) / p->page_bytes;
    const uint64_t count = piece->bytes / p->page_bytes;

    if (!ps_pool_enter(e, p->list, (uint32_t)first, (uint32_t)count)) {
        return false;
    }
    p->mapped += piece->bytes;
    piece->next = p->pieces;
    p->pieces = piece;
    ps_budget_grow(&p->budget, (struct ps_pages){count, 0});
    ps_count(pool_bytes, piece->bytes);
    ps_counter_peak(&ps_counters.pool_bytes_peak, p->mapped);
    return true;
}

/* Backs more of the page tables, so that a tensor of `pages` finds its table. Lock held; let go and taken again. */
static void grow_tables(struct ps_engine *e, uint64_t pages)
{
    struct ps_page_pool *p = &e->pool;
    const uint64_t unit =
        round_up(p->grow_unit / 32, e->granularity); /* tables are small beside pages */
    const uint64_t bytes = round_up(pages * sizeof(struct ps_page_entry), unit);
    if (p->growing || p->tables_mapped + bytes > p->tables_room) {
        return;
    }
    p->growing = true;
    pthread_mutex_unlock(&ps_lock);
    struct ps_pool_piece *piece = ps_pool_map(e, p->tables + p->tables_mapped, bytes);
    /* In front of the first stash: entries begin as zeros. */
    if (piece != NULL &&
        ps_driver.cuMemsetD32Async(piece->base, 0, bytes / 4, e->stash_stream) != CUDA_SUCCESS) {
        ps_count(errors, 1);
        ps_pool_unmap(piece);
        piece = NULL;
    }
    pthread_mutex_lock(&ps_lock);
    p->growing = false;
    if (piece == NULL) {
        return;
    }
    piece->next = p->table_pieces;
    p->table_pieces = piece;
    ps_ranges_give(&p->entries, p->tables_mapped / sizeof(struct ps_page_entry),
                   bytes / sizeof(struct ps_page_entry));
    p->tables_mapped += bytes;
}

/* What the pool is backed in: whole pages, whole granules. */
static uint64_t least_unit(const struct ps_engine *e)
{
    return e->granularity > e->pool.page_bytes ? e->granularity : e->pool.page_bytes;
}

/* Backs so many bytes more, whole units. False: the device has no room. Lock held; let go and taken again. */
static bool grow(struct ps_engine *e, uint64_t bytes)
{
    struct ps_page_pool *p = &e->pool;
    const uint64_t base = p->base + p->mapped;
    if (p->mapped + bytes > p->room - p->staged || p->mapped + bytes > p->most_device) {
        return false;
    }
    p->growing = true;
    pthread_mutex_unlock(&ps_lock);
    struct ps_pool_piece *piece = ps_pool_map(e, base, bytes);
    pthread_mutex_lock(&ps_lock);
    p->growing = false;
    if (piece != NULL && (!ps_pool_may_change(e) || !publish_piece(e, piece))) {
        pthread_mutex_unlock(&ps_lock);
        ps_pool_unmap(piece);
        pthread_mutex_lock(&ps_lock);
    }
    return piece != NULL;
}

/* The device pages that a plan wants: once more after they had to be given back. Lock held; let go and taken again. */
static void back_wanted(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    if (p->mapped < p->want_device && ps_pool_may_change(e) &&
        !grow(e, p->want_device - p->mapped)) {
        ps_info("the device has no room for all the pages that a plan wants");
        p->want_device = p->mapped;
    }
}

/* Might the job soon run out of memory? bytes: of one of its groups. */
static bool nearly_full(uint64_t bytes)
{
    size_t left = 0;
    size_t total = 0;
    return ps_driver.cuMemGetInfo(&left, &total) == CUDA_SUCCESS &&
           left < total / NEARLY_FULL + NEARLY_GROUPS * bytes;
}

/*
 * By whole units, as far as the limit and the device go; what is beyond is asked of the host. Lock held; let go and
 * taken again.
 */
static void grow_within(struct ps_engine *e, uint64_t more)
{
    struct ps_page_pool *p = &e->pool;
    const uint64_t unit = least_unit(e);
    const uint64_t left =
        p->most_device > p->mapped ? (p->most_device - p->mapped) / unit * unit : 0;
    const uint64_t bytes = round_up(more, p->grow_unit);
    if (more > left) {
        ps_host_want_more(e, more - left);
    }
    if (left > 0 && !grow(e, bytes < left ? bytes : left) && more <= left) {
        ps_host_want_more(e, more);
    }
}

void ps_pool_ensure(struct ps_engine *e, uint64_t pages)
{
    struct ps_page_pool *p = &e->pool;
    if (p->growing || p->broken) {
        return;
    }
    if (p->entries.free_total < pages) {
        grow_tables(e, pages);
    }
    back_wanted(e);
    const uint64_t available = ps_pool_available(e);
    if (available < pages && ps_pool_may_change(e)) {
        grow_within(e, (pages - available) * p->page_bytes);
    }
    ps_pool_stand_by(e, pages);
}

void ps_pool_stand_by(struct ps_engine *e, uint64_t pages)
{
    if (e->pool.host.ring == NULL && !e->pool.broken && nearly_full(pages * e->pool.page_bytes)) {
        ps_host_want_more(e, pages * e->pool.page_bytes);
    }
}

void ps_pool_want(struct ps_engine *e, uint64_t device_bytes, uint64_t host_bytes)
{
    struct ps_page_pool *p = &e->pool;
    const uint64_t want = round_up(device_bytes, least_unit(e));
    p->want_device = want < p->most_device ? want : p->most_device / least_unit(e) * least_unit(e);
    ps_host_want(e, host_bytes);
}

void ps_pool_tables(struct ps_engine *e, uint64_t pages)
{
    const uint64_t there = e->pool.tables_mapped / sizeof(struct ps_page_entry);
    if (there < pages) {
        grow_tables(e, pages - there);
    }
}

static bool within(uint64_t address, uint64_t base, uint64_t bytes)
{
    return base != 0 && address - base < bytes;
}

bool ps_pool_holds(const struct ps_engine *e, uint64_t address)
{
    const struct ps_page_pool *p = &e->pool;
    bool ours = within(address, p->base, p->room) || within(address, p->tables, p->tables_room) ||
                within(address, p->arena, p->arena_bytes);
    for (const struct ps_pool_piece *ring = p->host.ring; ring != NULL; ring = ring->next) {
        ours = ours || within(address, ring->base, ring->bytes);
    }
    return ours;
}

uint64_t ps_pool_host_most(const struct ps_engine *e)
{
    return e->pool.host.budget;
}

bool ps_pool_ready(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    ps_host_enter(e);
    back_wanted(e);
    return p->mapped >= p->want_device && ps_host_settled(e);
}

void ps_pool_unwant(struct ps_engine *e)
{
    e->pool.want_device = 0;
    ps_pool_unlimit(e);
    ps_host_want_sinks(e, 0, 0);
    ps_host_want(e, 0);
    ps_pool_shrink(e);
}

void ps_pool_release_device(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    /* All in one fill: it cannot fail by halves. */
    static_assert(offsetof(struct ps_free_list, tail) == 8 + offsetof(struct ps_free_list, head) &&
                      offsetof(struct ps_free_list, n_free) ==
                          16 + offsetof(struct ps_free_list, head),
                  "head, tail and n_free lie together");
    CUresult r = ps_driver.cuMemsetD32Async(p->list + offsetof(struct ps_free_list, head), 0, 6,
                                            e->stash_stream);
    if (r != CUDA_SUCCESS) {
        ps_count(errors, 1);
        return;
    }
    struct ps_fence *f = ps_fence_record(&e->fences, e->ctx, e->stash_stream, &r);
    if (f == NULL) {
        await_change(e);
        if (p->broken) {
            return;
        }
    }
    ps_fence_unref(&e->fences, p->pushed);
    p->pushed = f;
    struct ps_pool_piece *pieces = p->pieces;
    p->pieces = NULL;
    atomic_fetch_sub_explicit(&ps_counters.pool_bytes, p->mapped, memory_order_relaxed);
    p->mapped = 0;
    p->budget.capacity.device = 0;
    p->growing = true;
    pthread_mutex_unlock(&ps_lock);
    release_pieces(pieces);
    pthread_mutex_lock(&ps_lock);
    p->growing = false;
}

void ps_pool_shrink(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    if (p->growing || p->loose || p->broken || !ps_budget_idle(&p->budget) ||
        !ps_fence_done(p->pushed)) {
        return;
    }
    ps_host_give_back(e);
    if (p->pieces != NULL) {
        ps_pool_release_device(e);
    }
}

bool ps_pool_set_page(struct ps_engine *e, uint64_t page_bytes)
{
    struct ps_page_pool *p = &e->pool;
    const uint64_t bytes = page_bytes > p->least_page ? page_bytes : p->least_page;
    size_t total = 0;
    if (bytes == p->page_bytes) {
        return true;
    }
    const bool idle = ps_fence_done(p->pushed);
    ps_pool_shrink(e);
    struct ps_fence *f = idle && !ps_fence_done(p->pushed) ? ps_fence_ref(p->pushed) : NULL;
    if (f != NULL) { /* behind one fill, in a stream of ours that is idle otherwise */
        pthread_mutex_unlock(&ps_lock);
        (void)ps_wait_bounded(f->event);
        pthread_mutex_lock(&ps_lock);
        ps_fence_unref(&e->fences, f);
    }
    if (p->pieces != NULL || p->drops != NULL || e->flights != NULL || e->places != NULL ||
        !ps_pool_may_change(e) || !ps_budget_idle(&p->budget) || !ps_host_unused(e) ||
        p->entries.free_total * sizeof(struct ps_page_entry) != p->tables_mapped ||
        ps_driver.cuDeviceTotalMem(&total, e->device) != CUDA_SUCCESS) {
        return false;
    }
    p->page_bytes = (uint32_t)bytes;
    atomic_store_explicit(&ps_counters.page_bytes, bytes, memory_order_relaxed);
    p->grow_unit = round_up(p->grow_unit, least_unit(e));
    ps_host_init(e, total);
    return true;
}

uint64_t ps_pool_available(const struct ps_engine *e)
{
    return ps_budget_available(&e->pool.budget);
}

uint64_t ps_pool_available_host(const struct ps_engine *e)
{
    const uint64_t all = ps_pool_available(e);
    const uint64_t device = e->pool.budget.capacity.device;
    return all > device ? all - device : 0;
}

void ps_pool_batch(const struct ps_engine *e, struct ps_batch *b)
{
    const struct ps_page_pool *p = &e->pool;
    memset(b, 0, offsetof(struct ps_batch, items));
    b->pool = p->base;
    b->host_pieces = p->host_pieces;
    b->free_list = p->list;
    b->host_list = p->host_list;
    b->outcomes = ps_rows_outcomes(e);
    b->page_bytes = p->page_bytes;
    b->host_shift = p->host_shift;
}

struct ps_fence *ps_pool_push(struct ps_engine *e, CUresult *r_p)
{
    struct ps_page_pool *p = &e->pool;
    struct ps_fence *f = ps_fence_record(&e->fences, e->ctx, e->drop_stream, r_p);
    p->loose = f == NULL;
    if (f != NULL) {
        ps_fence_unref(&e->fences, p->pushed);
        p->pushed = ps_fence_ref(f);
    }
    return f;
}

void ps_pool_poll(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    if (p->loose) {
        CUresult r;
        ps_fence_unref(&e->fences, ps_pool_push(e, &r));
    }
    /* In the order of the drop stream; a drop's stash is settled first, since flights are polled before. */
    while (p->drops != NULL && p->drops->settled && ps_fence_done(p->drops->dropped)) {
        struct ps_copy *c = p->drops;
        p->drops = c->next;
        if (p->drops == NULL) {
            p->drops_end = &p->drops;
        }
        ps_budget_dropped(&p->budget, c->held);
        atomic_fetch_sub_explicit(&ps_counters.valid_bytes, (uint64_t)c->stored * p->page_bytes,
                                  memory_order_relaxed);
        ps_copy_free(e, c);
    }
    ps_host_enter(e);
}
