/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory of tensors. Chunks are in one of four hands: a live tensor's, a cached tensor's (its place is
 * intact, the copy complete or on its way), a dead tensor's (freed by the job, still mapped) or a free list. A chunk
 * that changes hands carries the fences behind its last use; only work that is ordered behind them gets it: on the
 * same stream, or because the host has seen them complete. So no wait is ever enqueued for memory.
 *
 * A cached tensor's place is taken only once its copy is complete, and is unmapped before another tensor gets the
 * memory: a touch nobody saw faults instead of reading another tensor's bytes. A dead tensor's chunks may be mapped
 * elsewhere while its own mapping still stands: nobody may use it any more, and it goes when its fences are done.
 *
 * Any thread; the lock as engine_int.h says for each function.
 */
#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"

void ps_list_append(struct ps_tensor **first, struct ps_tensor **last, struct ps_tensor *t)
{
    t->lru_prev = *last;
    t->lru_next = NULL;
    if (*last != NULL) {
        (*last)->lru_next = t;
    } else {
        *first = t;
    }
    *last = t;
}

void ps_list_remove(struct ps_tensor **first, struct ps_tensor **last, struct ps_tensor *t)
{
    if (t->lru_prev != NULL) {
        t->lru_prev->lru_next = t->lru_next;
    } else {
        *first = t->lru_next;
    }
    if (t->lru_next != NULL) {
        t->lru_next->lru_prev = t->lru_prev;
    } else {
        *last = t->lru_prev;
    }
    t->lru_prev = NULL;
    t->lru_next = NULL;
}

static __thread bool unplanned __attribute__((tls_model("initial-exec")));

bool ps_mapping_unplanned(bool is)
{
    const bool was = unplanned;
    unplanned = is;
    return was;
}

void ps_count_map(void)
{
    if (unplanned) {
        ps_count(remaps, 1);
    } else {
        ps_count(map_calls, 1);
    }
}

static bool ready_for(struct ps_fence *const ready[2], uint64_t stream_key)
{
    for (int i = 0; i < 2; i++) {
        struct ps_fence *f = ready[i];
        if (f != NULL && f->stream_key != stream_key && !ps_fence_done(f)) {
            return false;
        }
    }
    return true;
}

static bool ready_done(struct ps_fence *const ready[2])
{
    return ps_fence_done(ready[0]) && ps_fence_done(ready[1]);
}

static void put_free(struct ps_engine *e, struct ps_chunk *c, struct ps_fence *const ready[2])
{
    for (int i = 0; i < 2; i++) {
        c->ready[i] = ready != NULL ? ps_fence_ref(ready[i]) : NULL;
    }
    c->next = e->free_chunks[c->size_class];
    e->free_chunks[c->size_class] = c;
}

static void drop_ready(struct ps_engine *e, struct ps_fence *ready[2])
{
    ready[0] = ps_fence_unref(&e->fences, ready[0]);
    ready[1] = ps_fence_unref(&e->fences, ready[1]);
}

static struct ps_chunk *pop_free(struct ps_engine *e, unsigned k, uint64_t stream_key)
{
    for (struct ps_chunk **at = &e->free_chunks[k]; *at != NULL; at = &(*at)->next) {
        struct ps_chunk *c = *at;
        if (ready_for(c->ready, stream_key)) {
            /* Its fences stay with it until it is mapped: should that fail, it goes back as it was. */
            *at = c->next;
            c->next = NULL;
            return c;
        }
    }
    return NULL;
}

static void free_all_chunks(struct ps_engine *e, struct ps_tensor *t,
                            struct ps_fence *const ready[2])
{
    while (t->chunks != NULL) {
        struct ps_chunk *c = t->chunks;
        t->chunks = c->next;
        put_free(e, c, ready);
    }
}

void ps_memory_take_back(struct ps_engine *e, struct ps_tensor *t)
{
    free_all_chunks(e, t, NULL);
}

void ps_memory_break_dead(struct ps_engine *e, struct ps_tensor *t)
{
    struct ps_unmap *u = calloc(1, sizeof(*u));
    ps_assert(t->state == PS_DEAD);
    ps_list_remove(&e->dead, &e->dead_last, t);
    free_all_chunks(e, t, t->ready);
    if (u == NULL) {
        /* The mapping and its addresses stay for good: memory is not lost, only addresses. */
        ps_warn_once("no host memory: %llu bytes of addresses are lost",
                     (unsigned long long)t->slot.bytes);
        drop_ready(e, t->ready);
    } else {
        u->slot = t->slot;
        u->ready[0] = t->ready[0];
        u->ready[1] = t->ready[1];
        u->next = e->unmaps;
        e->unmaps = u;
    }
    free(t);
}

static bool break_one_dead(struct ps_engine *e, unsigned k, uint64_t stream_key)
{
    for (struct ps_tensor *t = e->dead; t != NULL; t = t->lru_next) {
        if (t->n_chunks[k] > 0 && ready_for(t->ready, stream_key)) {
            ps_memory_break_dead(e, t);
            return true;
        }
    }
    return false;
}

/* A cached tensor loses its place; its mapping goes before anything else is mapped. */
static void take_place(struct ps_engine *e, struct ps_tensor *t, struct ps_take *take)
{
    ps_list_remove(&e->cached, &e->cached_last, t);
    ps_assert(ps_residency_may(t->state, PS_MOVING));
    t->state = PS_MOVING;
    free_all_chunks(e, t, NULL);
    t->lru_next = take->victims;
    take->victims = t;
}

/* The oldest cached tensor with a chunk of the class. */
static bool break_one_cached(struct ps_engine *e, unsigned k, struct ps_take *take)
{
    for (struct ps_tensor *t = e->cached; t != NULL; t = t->lru_next) {
        if (t->n_chunks[k] > 0 && t->pins == 0 && t->copy->settled) {
            take_place(e, t, take);
            return true;
        }
    }
    return false;
}

static void count_chunks(const struct ps_tensor *t, uint32_t n[PS_N_CLASSES])
{
    for (unsigned k = 0; k < PS_N_CLASSES; k++) {
        n[k] += t->n_chunks[k];
    }
}

/* Chunks of each class that are nobody's own: free, dead or cached. */
static void count_idle(const struct ps_engine *e, uint32_t n[PS_N_CLASSES])
{
    memset(n, 0, PS_N_CLASSES * sizeof(*n));
    for (unsigned k = 0; k < PS_N_CLASSES; k++) {
        for (const struct ps_chunk *c = e->free_chunks[k]; c != NULL; c = c->next) {
            n[k]++;
        }
    }
    for (const struct ps_tensor *t = e->dead; t != NULL; t = t->lru_next) {
        count_chunks(t, n);
    }
    for (const struct ps_tensor *t = e->cached; t != NULL; t = t->lru_next) {
        count_chunks(t, n);
    }
}

/*
 * What restoring the largest group takes, by class: never given to a new tensor, so that no restore lacks memory.
 * Planned tensors have their places, and hold no chunks.
 */
static void count_reserve(const struct ps_engine *e, uint32_t n[PS_N_CLASSES])
{
    memset(n, 0, PS_N_CLASSES * sizeof(*n));
    for (const struct ps_group *g = e->groups; g != NULL; g = g->next) {
        uint32_t own[PS_N_CLASSES] = {0};
        for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            if (t->state != PS_RESIDENT && t->copy != NULL) {
                count_chunks(t, own);
            }
        }
        for (unsigned k = 0; k < PS_N_CLASSES; k++) {
            n[k] = own[k] > n[k] ? own[k] : n[k];
        }
    }
}

void ps_memory_count_spare(const struct ps_engine *e, uint32_t n_p[PS_N_CLASSES])
{
    uint32_t reserve[PS_N_CLASSES];
    count_idle(e, n_p);
    count_reserve(e, reserve);
    for (unsigned k = 0; k < PS_N_CLASSES; k++) {
        n_p[k] = n_p[k] > reserve[k] ? n_p[k] - reserve[k] : 0;
    }
}

void ps_memory_take(struct ps_engine *e, const uint32_t n[PS_N_CLASSES], uint64_t stream_key,
                    bool keep_reserve, struct ps_take *take_p)
{
    uint32_t idle[PS_N_CLASSES];
    uint32_t reserve[PS_N_CLASSES] = {0};

    memset(take_p, 0, sizeof(*take_p));
    count_idle(e, idle);
    if (keep_reserve) {
        count_reserve(e, reserve);
    }
    for (unsigned k = 0; k < PS_N_CLASSES; k++) {
        uint32_t may = idle[k] > reserve[k] ? idle[k] - reserve[k] : 0;
        uint32_t lack = n[k];
        while (lack > 0 && may > 0) {
            struct ps_chunk *c = pop_free(e, k, stream_key);
            if (c != NULL) {
                c->next = take_p->got;
                take_p->got = c;
                lack--;
                may--;
            } else if (!break_one_dead(e, k, stream_key) && !break_one_cached(e, k, take_p)) {
                break;
            }
        }
        take_p->create[k] = lack;
    }
}

void ps_memory_describe(const struct ps_engine *e, CUmemAllocationProp *prop)
{
    memset(prop, 0, sizeof(*prop));
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop->location.id = e->device;
    prop->allocFlags.gpuDirectRDMACapable = e->rdma ? 1 : 0;
}

CUresult ps_memory_create(struct ps_engine *e, uint64_t bytes,
                          CUmemGenericAllocationHandle *handle_p)
{
    CUmemAllocationProp prop;
    ps_memory_describe(e, &prop);
    return ps_driver.cuMemCreate(handle_p, bytes, &prop, 0);
}

CUresult ps_memory_create_compressible(struct ps_engine *e, uint64_t bytes,
                                       CUmemGenericAllocationHandle *handle_p, bool *compressible_p)
{
    CUmemAllocationProp prop;
    *compressible_p = false;
    if (!e->compressible || atomic_load_explicit(&e->n_peers, memory_order_relaxed) > 0) {
        return ps_memory_create(e, bytes, handle_p);
    }
    ps_memory_describe(e, &prop);
    prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    if (ps_driver.cuMemCreate(handle_p, bytes, &prop, 0) != CUDA_SUCCESS) {
        return ps_memory_create(e, bytes, handle_p);
    }
    /* What was made may be less than what was asked for. */
    if (ps_driver.cuMemGetAllocationPropertiesFromHandle(&prop, *handle_p) == CUDA_SUCCESS &&
        (prop.allocFlags.gpuDirectRDMACapable != 0) == e->rdma) {
        *compressible_p = prop.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_GENERIC;
        return CUDA_SUCCESS;
    }
    ps_driver.cuMemRelease(*handle_p);
    return ps_memory_create(e, bytes, handle_p);
}

CUresult ps_memory_access(const struct ps_engine *e, uint64_t base, uint64_t bytes)
{
    CUmemAccessDesc desc[1 + PS_PEERS_MAX];
    memset(desc, 0, sizeof(desc));
    /* Acquire: pairs with add_peer, which writes the peer first. */
    const uint32_t n = 1 + atomic_load_explicit(&e->n_peers, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        desc[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        desc[i].location.id = i == 0 ? e->device : e->peer[i - 1];
        desc[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return ps_driver.cuMemSetAccess(base, bytes, desc, n);
}

CUresult ps_memory_unmap(uint64_t base, uint64_t bytes)
{
    CUresult r = ps_driver.cuMemUnmap(base, bytes);
    ps_count_map();
    if (r != CUDA_SUCCESS) {
        ps_count(errors, 1);
        r = ps_driver.cuMemUnmap(base, bytes);
    }
    if (r != CUDA_SUCCESS) {
        ps_error("cannot unmap memory: %s", ps_driver_error_name(&ps_driver, r));
    }
    return r;
}

CUresult ps_memory_unmap_tensor(struct ps_tensor *t, uint64_t bytes)
{
    const CUresult r = bytes != 0 ? ps_memory_unmap(t->slot.base, bytes) : CUDA_SUCCESS;
    t->stuck = r != CUDA_SUCCESS ? bytes : 0;
    return r;
}

void ps_memory_trim_pool(const struct ps_engine *e)
{
    CUmemoryPool pool;
    if (ps_driver.cuDeviceGetDefaultMemPool(&pool, e->device) == CUDA_SUCCESS) {
        ps_driver.cuMemPoolTrimTo(pool, 0);
    }
}

/* New memory of one class; when the device has none, what the job's pool and we hold unused is given back first. */
static struct ps_chunk *create_chunk(struct ps_engine *e, unsigned k, CUresult *r_p)
{
    struct ps_chunk *c = calloc(1, sizeof(*c));
    if (c == NULL) {
        *r_p = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    c->size_class = k;
    c->bytes = e->granularity << k;
    *r_p = ps_memory_create(e, c->bytes, &c->handle);
    if (*r_p == CUDA_ERROR_OUT_OF_MEMORY) {
        ps_memory_trim_pool(e);
        *r_p = ps_memory_create(e, c->bytes, &c->handle);
    }
    if (*r_p == CUDA_ERROR_OUT_OF_MEMORY && ps_memory_release_idle(e) > 0) {
        *r_p = ps_memory_create(e, c->bytes, &c->handle);
    }
    if (*r_p != CUDA_SUCCESS) {
        free(c);
        return NULL;
    }
    pthread_mutex_lock(&ps_lock);
    e->chunk_bytes += c->bytes;
    ps_counter_peak(&ps_counters.place_bytes_peak, e->chunk_bytes);
    ps_trace("new chunk of %llu KiB: places have %llu KiB, pages %llu KiB",
             (unsigned long long)(c->bytes >> 10), (unsigned long long)(e->chunk_bytes >> 10),
             (unsigned long long)(e->pool.mapped >> 10));
    pthread_mutex_unlock(&ps_lock);
    return c;
}

static void unmap_victims(struct ps_engine *e, struct ps_take *take)
{
    for (struct ps_tensor *v = take->victims; v != NULL; v = v->lru_next) {
        (void)ps_memory_unmap_tensor(v, v->slot.bytes);
    }
    pthread_mutex_lock(&ps_lock);
    while (take->victims != NULL) {
        struct ps_tensor *v = take->victims;
        take->victims = v->lru_next;
        v->lru_next = NULL;
        v->state = PS_OUT;
        if (v->freed && v->pins == 0) {
            ps_tensor_die(v);
        }
    }
    pthread_cond_broadcast(&ps_moved);
    pthread_mutex_unlock(&ps_lock);
    (void)e;
}

/* Maps the chunks largest first, as n_chunks says. On failure everything mapped is unmapped again. */
static CUresult map_chunks(struct ps_engine *e, struct ps_tensor *t)
{
    uint64_t done = 0;
    CUresult r = ps_memory_unmap_tensor(t, t->stuck);
    for (const struct ps_chunk *c = t->chunks; c != NULL && r == CUDA_SUCCESS; c = c->next) {
        r = ps_driver.cuMemMap(t->slot.base + done, c->bytes, 0, c->handle, 0);
        ps_count_map();
        done += r == CUDA_SUCCESS ? c->bytes : 0;
    }
    if (r == CUDA_SUCCESS) {
        r = ps_memory_access(e, t->slot.base, t->slot.bytes);
    }
    if (r != CUDA_SUCCESS && t->stuck == 0) {
        (void)ps_memory_unmap_tensor(t, done);
    }
    return r;
}

/* Chunks in the order the place is laid out: largest class first. */
static void order_chunks(struct ps_tensor *t, struct ps_chunk *got)
{
    struct ps_chunk *by_class[PS_N_CLASSES] = {NULL};
    while (got != NULL) {
        struct ps_chunk *c = got;
        got = c->next;
        c->next = by_class[c->size_class];
        by_class[c->size_class] = c;
    }
    for (unsigned k = 0; k < PS_N_CLASSES; k++) {
        while (by_class[k] != NULL) {
            struct ps_chunk *c = by_class[k];
            by_class[k] = c->next;
            c->next = t->chunks;
            t->chunks = c;
        }
    }
}

CUresult ps_memory_build(struct ps_engine *e, struct ps_tensor *t, struct ps_take *take)
{
    CUresult r = CUDA_SUCCESS;
    unmap_victims(e, take);
    for (unsigned k = 0; k < PS_N_CLASSES && r == CUDA_SUCCESS; k++) {
        for (; take->create[k] > 0 && r == CUDA_SUCCESS; take->create[k]--) {
            struct ps_chunk *c = create_chunk(e, k, &r);
            if (c != NULL) {
                c->next = take->got;
                take->got = c;
            }
        }
    }
    struct ps_chunk *got = take->got;
    take->got = NULL;
    order_chunks(t, got);
    uint32_t n_peers = e->n_peers;
    if (r == CUDA_SUCCESS) {
        r = map_chunks(e, t);
    }
    pthread_mutex_lock(&ps_lock);
    while (r == CUDA_SUCCESS && n_peers != e->n_peers) {
        /* A peer came while this was being mapped. */
        n_peers = e->n_peers;
        pthread_mutex_unlock(&ps_lock);
        ps_count(errors, ps_memory_access(e, t->slot.base, t->slot.bytes) != CUDA_SUCCESS);
        pthread_mutex_lock(&ps_lock);
    }
    if (r == CUDA_SUCCESS) {
        for (struct ps_chunk *c = t->chunks; c != NULL; c = c->next) {
            drop_ready(e, c->ready);
        }
    } else {
        while (t->chunks != NULL) {
            struct ps_chunk *c = t->chunks;
            t->chunks = c->next;
            c->next = e->free_chunks[c->size_class];
            e->free_chunks[c->size_class] = c;
        }
    }
    pthread_mutex_unlock(&ps_lock);
    return r;
}

/* The plan counts on its memory: the next one of its site takes it over. */
static bool planned_temporary(const struct ps_engine *e, const struct ps_tensor *t)
{
    const struct ps_plan_site *site =
        e->places != NULL && t->site != NULL
            ? ps_plan_find(&e->places->plan, t->site->name, t->site->ordinal)
            : NULL;
    return site != NULL && site->class == PS_PLAN_TEMPORARY;
}

/* Takes chunks off the free lists that neither work nor the reserve needs. Lock held. */
static struct ps_chunk *collect_idle(struct ps_engine *e, bool temporaries)
{
    uint32_t idle[PS_N_CLASSES];
    uint32_t reserve[PS_N_CLASSES];
    struct ps_chunk *out = NULL;

    for (struct ps_tensor *t = e->dead, *next; t != NULL; t = next) {
        next = t->lru_next;
        if (ready_done(t->ready) && (temporaries || !planned_temporary(e, t))) {
            ps_memory_break_dead(e, t);
        }
    }
    count_idle(e, idle);
    count_reserve(e, reserve);
    for (unsigned k = 0; k < PS_N_CLASSES; k++) {
        struct ps_chunk **at = &e->free_chunks[k];
        while (*at != NULL && idle[k] > reserve[k]) {
            struct ps_chunk *c = *at;
            if (!ready_done(c->ready)) {
                at = &c->next;
                continue;
            }
            *at = c->next;
            drop_ready(e, c->ready);
            c->next = out;
            out = c;
            idle[k]--;
            e->chunk_bytes -= c->bytes;
        }
    }
    return out;
}

/* Cached tensors give up their places, oldest first, as far as the reserve allows. Lock held. */
static void collect_cached(struct ps_engine *e, struct ps_take *take)
{
    for (struct ps_tensor *t = e->cached, *next; t != NULL; t = next) {
        uint32_t spare[PS_N_CLASSES];
        bool fits = t->place == NULL && t->pins == 0 && t->copy->settled;
        next = t->lru_next;
        ps_memory_count_spare(e, spare);
        for (unsigned k = 0; k < PS_N_CLASSES; k++) {
            fits = fits && t->n_chunks[k] <= spare[k];
        }
        if (fits) {
            take_place(e, t, take);
        }
    }
}

static uint64_t release_idle(struct ps_engine *e, bool temporaries)
{
    struct ps_take take = {.got = NULL};
    uint64_t bytes = 0;
    pthread_mutex_lock(&ps_lock);
    collect_cached(e, &take);
    pthread_mutex_unlock(&ps_lock);
    unmap_victims(e, &take);
    pthread_mutex_lock(&ps_lock);
    struct ps_chunk *c = collect_idle(e, temporaries);
    pthread_mutex_unlock(&ps_lock);
    /* Memory returns to the device only when its last mapping is gone. */
    ps_engine_reap(e);
    while (c != NULL) {
        struct ps_chunk *next = c->next;
        ps_driver.cuMemRelease(c->handle);
        bytes += c->bytes;
        free(c);
        c = next;
    }
    return bytes;
}

uint64_t ps_memory_release_idle(struct ps_engine *e)
{
    return release_idle(e, true);
}

uint64_t ps_memory_sweep(struct ps_engine *e)
{
    return release_idle(e, false);
}
