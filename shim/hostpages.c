/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page pool's part in pinned host memory. A thread of ours pins it, piece by piece, and unpins it again: both take
 * long, and unpinning waits for the whole device. It exists while there is something to do, holds no lock across a
 * driver call, and is never waited for but at the end of a context and of the process. A piece that is pinned enters
 * the free list at a poll, on the thread that polls, in the order of all changes of the list (pagepool.c).
 *
 * ps_lock guards everything here; `thread_ended` tells that `running` has become false.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "policy/base/assert.h"
#include "policy/base/hostmem.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"
#include "shim/numa.h"

#define PIECE_BYTES ((uint64_t)64 << 20)
#define ROOM_TIMES  4  /* what the list has slots for, as a multiple of what was wanted first */
#define DEVICES_MAX 2  /* sizes of the device: the list, four bytes a page, is device memory */
#define ENTERED_MAX 16 /* pieces at one poll: some microseconds each */
#define EXIT_WAIT_S 2  /* for the thread, at the end of the process */

static pthread_cond_t thread_ended = PTHREAD_COND_INITIALIZER;

static uint64_t pages_of_piece(const struct ps_page_pool *p)
{
    return p->host.piece_bytes / p->page_bytes;
}

void ps_host_init(struct ps_engine *e, uint64_t device_bytes)
{
    struct ps_page_pool *p = &e->pool;
    struct ps_host_pages *h = &p->host;

    h->ready_end = &h->ready;
    h->piece_bytes = PIECE_BYTES;
    /* As the pool's growth on a small device; a power of two. */
    while (h->piece_bytes > device_bytes / 64 && h->piece_bytes / 2 >= p->page_bytes) {
        h->piece_bytes /= 2;
    }
    if (h->piece_bytes < p->page_bytes) {
        h->piece_bytes = p->page_bytes;
    }
    const bool none = ps_options.factor_cpu == 0 &&
                      ps_option_given(&ps_options, "PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU");
    h->budget = none                                ? 0
                : ps_options.host_budget == PS_AUTO ? ps_hostmem_share("")
                                                    : ps_options.host_budget;
    h->budget -= h->budget % h->piece_bytes;
    /* Page numbers have 31 bits. */
    const uint64_t most = (uint64_t)(PS_PAGE_HOST - 1) / pages_of_piece(p) * h->piece_bytes;
    const uint64_t beside = device_bytes / h->piece_bytes * DEVICES_MAX * h->piece_bytes;
    if (h->budget > most) {
        h->budget = most;
    }
    if (h->budget > beside) {
        h->budget = beside;
    }
}

/* ---- the thread ---- */

struct ring {
    uint64_t slots, pieces, n_slots, bytes; /* slots and pieces: offsets */
};

static struct ring lay_out_ring(const struct ps_engine *e)
{
    const struct ps_page_pool *p = &e->pool;
    const uint64_t n_pages = p->host.room / p->page_bytes;
    struct ring r = {.slots = 64, .n_slots = 4};
    while (r.n_slots < n_pages) {
        r.n_slots *= 2;
    }
    r.pieces = (r.slots + 2 * r.n_slots * sizeof(uint32_t) + 63) / 64 * 64;
    r.bytes = r.pieces + p->host.room / p->host.piece_bytes * sizeof(uint64_t);
    r.bytes = (r.bytes + e->granularity - 1) / e->granularity * e->granularity;
    return r;
}

/* Device memory for the free list, its slots and the pieces' addresses. Lock not held. */
static struct ps_pool_piece *make_ring(struct ps_engine *e)
{
    const struct ring r = lay_out_ring(e);
    CUdeviceptr base = 0;
    if (ps_driver.cuMemAddressReserve(&base, r.bytes, e->granularity, 0, 0) != CUDA_SUCCESS) {
        return NULL;
    }
    struct ps_pool_piece *ring = ps_pool_map(e, base, r.bytes);
    if (ring == NULL) {
        ps_driver.cuMemAddressFree(base, r.bytes);
    }
    return ring;
}

/*
 * Memory of the process in large pages, there before the driver is asked to pin it: cuMemHostAlloc finds its pages one
 * by one under locks that the job's calls need too (36 ms for 64 MiB, H200, driver 580). Near
 * the device, if the host has nodes.
 */
static void *map_piece(const struct ps_engine *e, uint64_t bytes)
{
    const uint64_t align = (uint64_t)2 << 20;
    char *at =
        mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return NULL;
    }
    const uint64_t skip = (align - (uintptr_t)at % align) % align;
    if (skip > 0) {
        munmap(at, skip);
    }
    munmap(at + skip + bytes, align - skip);
    at += skip;
    madvise(at, bytes, MADV_HUGEPAGE);
    madvise(at, bytes, MADV_DONTFORK);
    (void)ps_numa_prefer(at, bytes, ps_numa_node(e->device));
    memset(at, 0, bytes);
    return at;
}

static struct ps_host_piece *pin_piece(const struct ps_engine *e, uint64_t bytes, CUresult *r_p)
{
    struct ps_host_piece *piece = calloc(1, sizeof(*piece));
    if (piece == NULL) {
        *r_p = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    piece->bytes = bytes;
    piece->base = map_piece(e, bytes);
    *r_p = piece->base == NULL ? CUDA_ERROR_OUT_OF_MEMORY
                               : ps_driver.cuMemHostRegister(piece->base, bytes,
                                                             CU_MEMHOSTREGISTER_PORTABLE |
                                                                 CU_MEMHOSTREGISTER_DEVICEMAP);
    if (*r_p != CUDA_SUCCESS) {
        if (piece->base != NULL) {
            munmap(piece->base, bytes);
        }
        free(piece);
        return NULL;
    }
    ps_count(host_pages_bytes, bytes);
    return piece;
}

static void unpin_pieces(struct ps_host_piece *piece, bool gone)
{
    while (piece != NULL) {
        struct ps_host_piece *next = piece->next;
        if (!gone && ps_driver.cuMemHostUnregister(piece->base) != CUDA_SUCCESS) {
            ps_count(errors, 1); /* the device may yet write there: the memory stays */
        } else {
            munmap(piece->base, piece->bytes);
        }
        atomic_fetch_sub_explicit(&ps_counters.host_pages_bytes, piece->bytes,
                                  memory_order_relaxed);
        free(piece);
        piece = next;
    }
}

/* Lock held. */
static void give_up(struct ps_engine *e, CUresult r)
{
    struct ps_host_pages *h = &e->pool.host;
    if (h->stop) {
        return;
    }
    h->failed = true;
    ps_count(errors, 1);
    ps_warn_once(
        "cannot have more than %llu of %llu MiB of host memory for pages: %s; what does not fit stays on the "
        "device; PAGEDSTASH_HOST_BUDGET asks for less",
        (unsigned long long)(h->pinned >> 20), (unsigned long long)(h->want >> 20),
        ps_driver_error_name(&ps_driver, r));
}

static bool wants_pages(const struct ps_host_pages *h)
{
    return !h->failed && h->pinned < h->want;
}

static bool wants_sinks(const struct ps_host_pages *h)
{
    return !h->failed && h->n_sinks < h->want_sinks;
}

static bool wants_more(const struct ps_host_pages *h)
{
    return wants_pages(h) || wants_sinks(h);
}

static bool may_run(const struct ps_host_pages *h)
{
    return !h->stop && h->n_pauses == 0;
}

/* One more for sinks. Lock held; let go and taken again. */
static void pin_sink(struct ps_engine *e)
{
    struct ps_host_pages *h = &e->pool.host;
    const uint64_t bytes = h->sink_bytes;
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&ps_lock);
    struct ps_host_piece *piece = pin_piece(e, bytes, &r);
    pthread_mutex_lock(&ps_lock);
    if (piece == NULL) {
        give_up(e, r);
        return;
    }
    const bool wanted = wants_sinks(h) && h->sink_bytes == bytes;
    struct ps_host_piece **list = wanted ? &h->sinks : &h->unwanted;
    piece->next = *list;
    *list = piece;
    h->n_sinks += wanted;
}

/* One step of what there is to do; false: nothing. Lock held; let go and taken again. */
static bool step(struct ps_engine *e)
{
    struct ps_host_pages *h = &e->pool.host;
    if (h->unwanted != NULL) {
        struct ps_host_piece *unwanted = h->unwanted;
        h->unwanted = NULL;
        pthread_mutex_unlock(&ps_lock);
        unpin_pieces(unwanted, false);
        pthread_mutex_lock(&ps_lock);
        return true;
    }
    if (!wants_pages(h)) {
        const bool more = wants_sinks(h);
        if (more) {
            pin_sink(e);
        }
        return more;
    }
    const bool first = h->ring == NULL;
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&ps_lock);
    struct ps_pool_piece *ring = first ? make_ring(e) : NULL;
    struct ps_host_piece *piece = first ? NULL : pin_piece(e, h->piece_bytes, &r);
    pthread_mutex_lock(&ps_lock);
    if (ring == NULL && piece == NULL) {
        give_up(e, r);
    }
    if (ring != NULL) {
        h->ring = ring;
    }
    if (piece != NULL && h->want < h->pinned + h->piece_bytes) {
        piece->next = h->unwanted; /* given back while it was being pinned */
        h->unwanted = piece;
    } else if (piece != NULL) {
        h->pinned += h->piece_bytes;
        *h->ready_end = piece;
        h->ready_end = &piece->next;
    }
    return true;
}

static void *work(void *arg)
{
    struct ps_engine *e = arg;
    struct ps_host_pages *h = &e->pool.host;
    struct ps_guard g;

    pthread_mutex_lock(&ps_lock);
    while (may_run(h) && (h->unwanted != NULL || wants_more(h))) {
        pthread_mutex_unlock(&ps_lock);
        ps_guard_enter(&g); /* any thread's call that allocates would end a capture of the job */
        ps_guard_context(&g, e);
        pthread_mutex_lock(&ps_lock);
        if (!g.relaxed || g.pushed != e->ctx) {
            give_up(e, g.relaxed ? CUDA_ERROR_INVALID_CONTEXT : g.refused);
            h->stop = true;
        }
        while (may_run(h) && step(e)) {
        }
        pthread_mutex_unlock(&ps_lock);
        ps_guard_leave(&g);
        pthread_mutex_lock(&ps_lock);
    }
    h->running = false;
    pthread_cond_broadcast(&thread_ended);
    pthread_mutex_unlock(&ps_lock);
    return NULL;
}

/* The driver's own exit handlers, which were registered before, run after this. */
static void at_exit(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += EXIT_WAIT_S;
    if (pthread_mutex_timedlock(&ps_lock, &until) != 0) {
        return;
    }
    for (struct ps_engine *e = ps_engines(); e != NULL; e = e->next) {
        e->pool.host.stop = true;
    }
    for (struct ps_engine *e = ps_engines(); e != NULL; e = e->next) {
        while (e->pool.host.running &&
               pthread_cond_timedwait(&thread_ended, &ps_lock, &until) == 0) {
        }
    }
    pthread_mutex_unlock(&ps_lock);
}

/* The job's signals are not for our thread; what it does wrong itself is. */
static int start_thread(struct ps_engine *e)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        sigdelset(&all, own[i]);
    }
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, &attr, work, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return error;
}

/* Lock held. */
static void wake(struct ps_engine *e)
{
    static bool registered;
    struct ps_host_pages *h = &e->pool.host;

    if (h->running || !may_run(h) || (h->unwanted == NULL && !wants_more(h))) {
        return;
    }
    registered = registered || atexit(at_exit) == 0;
    h->running = true;
    if (!registered || start_thread(e) != 0) {
        h->running = false;
        give_up(e, CUDA_ERROR_OUT_OF_MEMORY);
    }
}

/* ---- the rest of the engine ---- */

void ps_host_want(struct ps_engine *e, uint64_t bytes)
{
    struct ps_host_pages *h = &e->pool.host;
    const uint64_t whole = (bytes + h->piece_bytes - 1) / h->piece_bytes * h->piece_bytes;
    if (h->room == 0) {
        h->room = whole < h->budget / ROOM_TIMES ? whole * ROOM_TIMES : h->budget;
    }
    const uint32_t n = h->n_sinks > h->want_sinks ? h->n_sinks : h->want_sinks;
    const uint64_t sunk = n * h->sink_bytes;
    const uint64_t left =
        h->budget > sunk ? (h->budget - sunk) / h->piece_bytes * h->piece_bytes : 0;
    h->want = whole < h->room ? whole : h->room;
    h->want = h->want < left ? h->want : left;
    wake(e);
}

void ps_host_want_more(struct ps_engine *e, uint64_t bytes)
{
    struct ps_host_pages *h = &e->pool.host;
    if (ps_host_settled(e) && h->budget > 0) {
        h->room = h->room == 0 ? h->budget : h->room; /* nobody knows yet how much it will be */
        ps_host_want(e, h->want + bytes);
    }
}

bool ps_host_settled(const struct ps_engine *e)
{
    const struct ps_host_pages *h = &e->pool.host;
    const bool pages = h->entered >= (h->failed ? h->pinned : h->want) || h->refused;
    return (pages && !wants_sinks(h)) || h->stop;
}

static CUresult begin_list(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    const struct ring r = lay_out_ring(e);
    const uint64_t list = p->host.ring->base;
    CUresult result =
        ps_driver.cuMemsetD32Async(list, 0, sizeof(struct ps_free_list) / 4, e->stash_stream);
    if (result == CUDA_SUCCESS) {
        result =
            ps_pool_poke(list + offsetof(struct ps_free_list, n_slots), r.n_slots, e->stash_stream);
    }
    if (result == CUDA_SUCCESS) {
        result = ps_pool_poke(list + offsetof(struct ps_free_list, slots), list + r.slots,
                              e->stash_stream);
    }
    return result;
}

void ps_host_enter(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    struct ps_host_pages *h = &p->host;
    if (h->ready == NULL || h->refused || !ps_pool_may_change(e)) {
        return;
    }
    const struct ring r = lay_out_ring(e);
    const uint64_t list = h->ring->base;
    const uint64_t first = h->entered / h->piece_bytes;
    struct ps_host_piece *last = NULL;
    uint32_t n = 0;
    CUresult result = h->entered > 0 ? CUDA_SUCCESS : begin_list(e);
    for (struct ps_host_piece *at = h->ready; at != NULL && n < ENTERED_MAX; at = at->next) {
        if (result == CUDA_SUCCESS) {
            result = ps_pool_poke(list + r.pieces + (first + n) * sizeof(uint64_t),
                                  (uint64_t)(uintptr_t)at->base, e->stash_stream);
        }
        last = at;
        n++;
    }
    const uint64_t pages = pages_of_piece(p);
    if (result != CUDA_SUCCESS ||
        !ps_pool_enter(e, list, PS_PAGE_HOST | (uint32_t)(first * pages), (uint32_t)(n * pages))) {
        h->refused = true;
        give_up(e, result != CUDA_SUCCESS ? result : CUDA_ERROR_LAUNCH_FAILED);
        return;
    }
    struct ps_host_piece *entered = h->ready;
    h->ready = last->next;
    if (h->ready == NULL) {
        h->ready_end = &h->ready;
    }
    last->next = h->pieces;
    h->pieces = entered;
    h->entered += n * h->piece_bytes;
    p->host_list = list;
    p->host_pieces = list + r.pieces;
    p->host_shift = (uint32_t)__builtin_ctzll(pages);
    ps_budget_grow(&p->budget, (struct ps_pages){0, n * pages});
}

/* Puts a list of pieces among those that the thread unpins. */
static void discard(struct ps_host_pages *h, struct ps_host_piece *list)
{
    while (list != NULL) {
        struct ps_host_piece *next = list->next;
        list->next = h->unwanted;
        h->unwanted = list;
        list = next;
    }
}

void ps_host_give_back(struct ps_engine *e)
{
    struct ps_page_pool *p = &e->pool;
    struct ps_host_pages *h = &p->host;
    if (h->want > 0 || h->pinned == 0) {
        return;
    }
    /* No copy names a host page: the list, which is made anew before it is used again, is forgotten. */
    ps_assert(ps_budget_idle(&p->budget));
    discard(h, h->pieces);
    discard(h, h->ready);
    h->pieces = NULL;
    h->ready = NULL;
    h->ready_end = &h->ready;
    h->pinned = 0;
    h->entered = 0;
    h->failed = false;
    h->refused = false;
    p->host_list = 0;
    p->budget.capacity.host = 0;
    wake(e);
}

bool ps_host_unused(const struct ps_engine *e)
{
    const struct ps_host_pages *h = &e->pool.host;
    return h->want == 0 && h->pinned == 0 && h->ring == NULL && h->unwanted == NULL &&
           h->n_sinks == 0 && !h->running;
}

/* ---- sinks ---- */

/* Those that no plan in force has. */
static void discard_sinks(struct ps_host_pages *h)
{
    while (h->sinks != NULL) {
        struct ps_host_piece *piece = h->sinks;
        h->sinks = piece->next;
        piece->next = h->unwanted;
        h->unwanted = piece;
        h->n_sinks--;
    }
}

void ps_host_want_sinks(struct ps_engine *e, uint32_t n, uint64_t bytes)
{
    struct ps_host_pages *h = &e->pool.host;
    if (n == 0 || bytes != h->sink_bytes) {
        discard_sinks(h);
    }
    /* What a plan in force has of another size comes back when that goes: the budget is kept until then. */
    const uint64_t others = bytes != h->sink_bytes ? h->n_sinks * h->sink_bytes : 0;
    const uint64_t pages = h->want > h->pinned ? h->want : h->pinned;
    h->want_sinks = others == 0 && pages + n * bytes <= h->budget ? n : 0;
    h->failed = h->failed && (n > 0 || h->pinned > 0);
    h->sink_bytes = others == 0 ? bytes : h->sink_bytes;
    wake(e);
}

struct ps_host_piece *ps_host_take_sink(struct ps_engine *e, uint64_t bytes)
{
    struct ps_host_pages *h = &e->pool.host;
    struct ps_host_piece *piece = bytes == h->sink_bytes ? h->sinks : NULL;
    h->sinks = piece != NULL ? piece->next : h->sinks;
    return piece;
}

void ps_host_give_sink(struct ps_engine *e, struct ps_host_piece *piece)
{
    struct ps_host_pages *h = &e->pool.host;
    if (piece == NULL) {
        h->n_sinks--;
        return;
    }
    piece->next = h->sinks;
    h->sinks = piece;
    if (h->want_sinks == 0) {
        discard_sinks(h);
        wake(e);
    }
}

void ps_host_pause(struct ps_engine *e)
{
    struct ps_host_pages *h = &e->pool.host;
    pthread_mutex_lock(&ps_lock);
    h->n_pauses++;
    while (h->running) {
        pthread_cond_wait(&thread_ended, &ps_lock);
    }
    pthread_mutex_unlock(&ps_lock);
}

void ps_host_resume(struct ps_engine *e)
{
    e->pool.host.n_pauses--;
    wake(e);
}

void ps_host_fini(struct ps_engine *e, bool gone)
{
    struct ps_host_pages *h = &e->pool.host;
    ps_host_pause(e);
    h->stop = true;
    discard_sinks(h);
    unpin_pieces(h->pieces, gone);
    unpin_pieces(h->ready, gone);
    unpin_pieces(h->unwanted, gone);
    h->pieces = NULL;
    h->ready = NULL;
    h->unwanted = NULL;
    if (h->ring != NULL) {
        const uint64_t base = h->ring->base;
        const uint64_t bytes = h->ring->bytes;
        ps_pool_unmap(h->ring);
        ps_driver.cuMemAddressFree(base, bytes);
        h->ring = NULL;
    }
}
