/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a call of the job runs out of device memory while no plan is in force: what lies in device pages goes to host
 * pages, so that the device's can be given back, and groups that stayed for want of pages leave. This waits for the
 * device and for host memory to be pinned: without us the call would have failed.
 *
 * Pages change places while nothing of ours is on its way, and nothing can be, since the lock is held: first all bytes
 * are copied; if that is refused, nothing has changed. Then what is taken leaves the list of host pages, then the page
 * tables name the new places. If that is refused, each entry names a page that holds its bytes, but the lists are not
 * as we think: nothing more enters or leaves the pool. Device pages go only when all of it was done.
 *
 * Any thread. Lock held in every function; let go where it says so.
 */
#include <stdlib.h>
#include <time.h>

#include "policy/base/log.h"
#include "shim/engine_int.h"

/* For host memory, which a thread of ours pins: a GB or two. What is not there by then is done without. */
#define HOST_WAIT_MS 1000

/*
 * Nothing of the pool is on its way, and no thread is about to bring a tensor in. What a stash or a drop has lost stays
 * taken for good, may yet be written or read, and is in no list: then nothing moves any more.
 */
static bool still(const struct ps_engine *e)
{
    bool is = e->flights == NULL && e->pool.drops == NULL && ps_pool_may_change(e);
    uint64_t stored = 0;

    for (const struct ps_group *g = e->groups; g != NULL && is; g = g->next) {
        for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            is = is && (t->state != PS_MOVING || t->copy == NULL);
            stored += t->copy != NULL ? t->copy->stored : 0;
        }
    }
    return is && ps_budget_holds(&e->pool.budget, stored);
}

/* Pages on the device, and what tensors take that might leave, in the worst case. */
static void count_pages(const struct ps_engine *e, uint64_t *held_p, uint64_t *may_leave_p)
{
    *held_p = 0;
    *may_leave_p = 0;
    for (const struct ps_group *g = e->groups; g != NULL; g = g->next) {
        for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            if (t->copy != NULL) {
                *held_p += t->copy->stored - t->copy->spilled;
            } else if (!g->open && !g->returned) {
                *may_leave_p += ps_pool_pages(&e->pool, ps_tensor_tail(t, t->bytes));
            }
        }
    }
}

/* That page tables speak of. */
static uint64_t table_pages(const struct ps_engine *e)
{
    return e->pool.tables_mapped / sizeof(struct ps_page_entry) - e->pool.entries.free_total;
}

static uint64_t free_host_pages(const struct ps_engine *e)
{
    uint64_t taken = 0;

    for (const struct ps_group *g = e->groups; g != NULL; g = g->next) {
        for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            taken += t->copy != NULL ? t->copy->spilled : 0;
        }
    }
    return e->pool.budget.capacity.host - taken;
}

/* What is on our own streams. Lock let go and taken again. */
static void await_ours(struct ps_engine *e)
{
    const CUstream stash = e->stash_stream;
    const CUstream drop = e->drop_stream;

    pthread_mutex_unlock(&ps_lock);
    (void)PS_TWICE(ps_driver.cuStreamSynchronize(stash));
    (void)PS_TWICE(ps_driver.cuStreamSynchronize(drop));
    pthread_mutex_lock(&ps_lock);
    ps_engine_poll(e);
}

/* What the host was asked for. Lock let go and taken again. */
static void await_host(struct ps_engine *e)
{
    const struct timespec pause = {0, 100000};

    for (unsigned i = 0; i < 10 * HOST_WAIT_MS && !ps_host_settled(e); i++) {
        pthread_mutex_unlock(&ps_lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&ps_lock);
        ps_engine_poll(e);
    }
    await_ours(e);
}

/* ---- from device pages to host pages ---- */

/* The list of host pages as it is on the device, and what is taken of it. */
struct mover {
    struct ps_engine *e;
    struct ps_free_list list;
    uint32_t *slots;
    uint64_t *pieces;
    struct ps_page_entry *entries; /* of all copies that move, one behind the other */
    uint32_t *fresh;               /* by entry: the host page that it gets; 0: it stays */
    uint64_t at;                   /* entries of the copies before */
    uint32_t n_taken;
};

static bool fetch(const struct ps_engine *e, void *to, uint64_t from, uint64_t bytes)
{
    return ps_driver.cuMemcpyDtoHAsync(to, from, bytes, e->stash_stream) == CUDA_SUCCESS &&
           PS_TWICE(ps_driver.cuStreamSynchronize(e->stash_stream));
}

static void mover_fini(struct mover *m)
{
    free(m->slots);
    free(m->pieces);
    free(m->entries);
    free(m->fresh);
}

/* It has pages on the device. */
static bool moves(const struct ps_tensor *t)
{
    return t->copy != NULL && t->copy->stored != t->copy->spilled;
}

static bool mover_init(struct ps_engine *e, struct mover *m)
{
    const struct ps_page_pool *p = &e->pool;
    const uint64_t n_pieces = p->host.entered / p->host.piece_bytes;
    uint64_t n_entries = 1;

    *m = (struct mover){.e = e};
    for (const struct ps_group *g = e->groups; g != NULL; g = g->next) {
        for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            n_entries += moves(t) ? t->copy->n_pages : 0;
        }
    }
    if (!fetch(e, &m->list, p->host_list, sizeof(m->list))) {
        return false;
    }
    m->slots = malloc(m->list.n_slots * sizeof(*m->slots));
    m->pieces = malloc(n_pieces * sizeof(*m->pieces));
    m->entries = malloc(n_entries * sizeof(*m->entries));
    m->fresh = malloc(n_entries * sizeof(*m->fresh));
    return m->slots != NULL && m->pieces != NULL && m->entries != NULL && m->fresh != NULL &&
           fetch(e, m->slots, (uint64_t)(uintptr_t)m->list.slots,
                 m->list.n_slots * sizeof(*m->slots)) &&
           fetch(e, m->pieces, p->host_pieces, n_pieces * sizeof(*m->pieces));
}

static void *host_address(const struct mover *m, uint32_t page)
{
    const struct ps_page_pool *p = &m->e->pool;
    const uint32_t number = page & ~PS_PAGE_HOST;
    const uint32_t within = number & ((1u << p->host_shift) - 1);

    return (void *)(uintptr_t)(m->pieces[number >> p->host_shift] +
                               (uint64_t)within * p->page_bytes);
}

/* Enqueues copies of what the tensor has on the device. */
static bool copy_pages(struct mover *m, const struct ps_copy *c)
{
    const struct ps_page_pool *p = &m->e->pool;
    struct ps_page_entry *entries = m->entries + m->at;
    uint32_t *fresh = m->fresh + m->at;

    m->at += c->n_pages;
    if (!fetch(m->e, entries, c->table, c->n_pages * sizeof(*entries))) {
        return false;
    }
    for (uint32_t i = 0; i < c->n_pages; i++) {
        const uint32_t page = entries[i].page;

        fresh[i] = 0;
        if ((page & PS_PAGE_HOST) != 0) {
            continue; /* there already, uniform or dead */
        }
        if (m->n_taken >= m->list.n_free) {
            return false; /* fewer are free than was counted */
        }
        fresh[i] = m->slots[(m->list.head + m->n_taken) & (m->list.n_slots - 1)];
        m->n_taken++;
        if (ps_driver.cuMemcpyDtoHAsync(host_address(m, fresh[i]),
                                        p->base + (uint64_t)page * p->page_bytes, p->page_bytes,
                                        m->e->stash_stream) != CUDA_SUCCESS) {
            return false;
        }
    }
    return true;
}

static CUresult take_from_list(struct mover *m)
{
    const uint64_t list = m->e->pool.host_list;
    const CUstream stream = m->e->stash_stream;
    const CUresult r =
        ps_pool_poke(list + offsetof(struct ps_free_list, head), m->list.head + m->n_taken, stream);

    return r != CUDA_SUCCESS ? r
                             : ps_pool_poke(list + offsetof(struct ps_free_list, n_free),
                                            m->list.n_free - m->n_taken, stream);
}

static CUresult name_pages(struct mover *m, struct ps_copy *c)
{
    const uint32_t *fresh = m->fresh + m->at;
    CUresult r = CUDA_SUCCESS;
    uint32_t n = 0;

    m->at += c->n_pages;
    for (uint32_t i = 0; i < c->n_pages && r == CUDA_SUCCESS; i++) {
        const uint64_t at = c->table + i * sizeof(struct ps_page_entry);

        if (fresh[i] != 0) {
            r = ps_driver.cuMemsetD32Async(at + offsetof(struct ps_page_entry, page), fresh[i], 1,
                                           m->e->stash_stream);
            n += r == CUDA_SUCCESS;
        }
    }
    c->spilled += n;
    ps_count(bytes_spilled, (uint64_t)n * m->e->pool.page_bytes);
    return r;
}

static bool copy_all(struct mover *m)
{
    bool ok = true;

    for (const struct ps_group *g = m->e->groups; g != NULL && ok; g = g->next) {
        for (const struct ps_tensor *t = g->tensors; t != NULL && ok; t = t->next) {
            ok = !moves(t) || copy_pages(m, t->copy);
        }
    }
    return PS_TWICE(ps_driver.cuStreamSynchronize(m->e->stash_stream)) && ok;
}

/* Whoever reads the pages from now on does so behind the fence. */
static bool move_all(struct mover *m)
{
    struct ps_engine *e = m->e;

    if (!copy_all(m)) {
        return false;
    }
    CUresult r = take_from_list(m);
    m->at = 0;
    for (const struct ps_group *g = e->groups; g != NULL && r == CUDA_SUCCESS; g = g->next) {
        for (const struct ps_tensor *t = g->tensors; t != NULL && r == CUDA_SUCCESS; t = t->next) {
            r = moves(t) ? name_pages(m, t->copy) : CUDA_SUCCESS;
        }
    }
    CUresult ignored;
    struct ps_fence *f = ps_fence_record(&e->fences, e->ctx, e->stash_stream, &ignored);
    const bool done = PS_TWICE(ps_driver.cuStreamSynchronize(e->stash_stream));
    e->pool.broken = r != CUDA_SUCCESS || (f == NULL && !done);
    /* What they lay in is in no list: should the device's pages stay, those are gone. */
    e->pool.budget.capacity.device -= m->n_taken;
    for (const struct ps_group *g = e->groups; g != NULL && f != NULL; g = g->next) {
        for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            if (t->copy != NULL) {
                ps_fence_unref(&e->fences, t->copy->stash);
                t->copy->stash = ps_fence_ref(f);
            }
        }
    }
    ps_fence_unref(&e->fences, f);
    return r == CUDA_SUCCESS && done;
}

/* Lock let go and taken again. */
static void empty_device_pages(struct ps_engine *e)
{
    struct mover m;
    const bool moved = mover_init(e, &m) && move_all(&m);

    mover_fini(&m);
    if (!moved) {
        ps_count(errors, 1);
        ps_warn_once("pages could not be moved to host memory: they stay on the device");
        return;
    }
    /* Until a plan knows better, later ones go to the host as well. */
    e->pool.most_device = 0;
    e->pool.want_device = 0;
    ps_pool_release_device(e);
}

/* ---- groups that stayed ---- */

/*
 * What no call has named since the last boundary, if the host has room for it: in device pages it would gain little,
 * and what the job takes meanwhile would be missing when it comes back.
 */
static void leave(struct ps_engine *e)
{
    uint64_t room = free_host_pages(e);

    for (struct ps_group *g = e->groups; g != NULL; g = g->next) {
        uint64_t pages = 0;

        for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            pages += t->copy == NULL ? ps_pool_pages(&e->pool, ps_tensor_tail(t, t->bytes)) : 0;
        }
        if (!g->returned && !g->open && pages > 0 && pages <= room) {
            ps_move_group_out(e, g);
            room -= pages;
        }
    }
}

void ps_engine_squeeze(struct ps_engine *e)
{
    uint64_t held;
    uint64_t more;

    ps_engine_poll(e);
    /* A job without padding gains nothing from us as a rule, and may live by what it is refused. */
    if (!e->gain.padded) {
        return;
    }
    e->short_of_memory = true;
    if (e->places != NULL || e->pool.broken || e->ended || ps_pool_host_most(e) == 0 ||
        ps_driver.cuMemcpyDtoHAsync == NULL) {
        return;
    }
    await_host(e);
    count_pages(e, &held, &more);
    if (held + more > free_host_pages(e)) {
        ps_host_want_more(e, (held + more - free_host_pages(e)) * e->pool.page_bytes);
        await_host(e);
        count_pages(e, &held, &more);
    }
    if (more > 0) {
        ps_pool_tables(e, table_pages(e) + more);
        count_pages(e, &held, &more); /* the lock was let go */
    }
    if (held > 0 && e->places == NULL && still(e) && held <= free_host_pages(e)) {
        empty_device_pages(e);
    }
    leave(e);
    await_ours(e);
}
