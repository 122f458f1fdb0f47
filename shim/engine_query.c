/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about our tensors, and peers that may read them. Any thread; takes the lock. */
#include <string.h>

#include "policy/base/log.h"
#include "shim/engine_int.h"

bool ps_engine_query(CUdeviceptr ptr, struct ps_tensor_info *info_p)
{
    if (!ps_in_window(ptr)) {
        return false;
    }
    pthread_mutex_lock(&ps_lock);
    const struct ps_tensor *t = ps_window_find(ptr);
    const bool inside =
        t != NULL && !t->freed && ptr >= t->slot.base && ptr < t->slot.base + t->bytes;
    if (inside) {
        info_p->base = t->slot.base;
        info_p->bytes = t->bytes;
        info_p->serial = t->serial;
        info_p->context = t->engine->ctx;
        info_p->device = t->engine->device;
    }
    pthread_mutex_unlock(&ps_lock);
    return inside;
}

static bool is_default_pool(const struct ps_engine *e, CUmemoryPool pool)
{
    CUmemoryPool own;
    return ps_driver.cuDeviceGetDefaultMemPool(&own, e->device) == CUDA_SUCCESS && own == pool;
}

void ps_engine_pool_bytes(CUmemoryPool pool, uint64_t *used_p, uint64_t *reserved_p)
{
    uint64_t used = 0;
    uint64_t reserved = 0;
    pthread_mutex_lock(&ps_lock);
    for (struct ps_engine *e = ps_engines(); e != NULL; e = e->next) {
        if (e->state == PS_ENGINE_READY && is_default_pool(e, pool)) {
            used += e->live_bytes;
            reserved += e->chunk_bytes + e->pool.mapped;
        }
    }
    pthread_mutex_unlock(&ps_lock);
    *used_p = used;
    *reserved_p = reserved;
}

/* ---- peers ---- */

static void grant(const struct ps_engine *e, const struct ps_tensor *t)
{
    if (t->chunks != NULL && ps_memory_access(e, t->slot.base, t->slot.bytes) != CUDA_SUCCESS) {
        ps_count(errors, 1);
        ps_error_once(
            "cannot grant a peer access to region tensors: its accesses to them will fail");
    }
}

/*
 * Everything mapped now. With the lock held, so that nothing is unmapped meanwhile: once a peer, when the job sets up.
 * What another thread is mapping gets the peer there (ps_memory_build looks again).
 */
static void grant_all(struct ps_engine *e)
{
    for (const struct ps_group *g = e->groups; g != NULL; g = g->next) {
        for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
            if (t->state == PS_RESIDENT || t->state == PS_CACHED) {
                grant(e, t);
            }
        }
    }
    for (const struct ps_tensor *t = e->dead; t != NULL; t = t->lru_next) {
        grant(e, t);
    }
    if (e->places != NULL) {
        ps_places_grant(e, e->places);
    }
}

static void add_peer(struct ps_engine *e, CUdevice device)
{
    if (device == e->device) {
        return;
    }
    for (uint32_t i = 0; i < e->n_peers; i++) {
        if (e->peer[i] == device) {
            return;
        }
    }
    if (e->n_peers == PS_PEERS_MAX) {
        ps_warn_once("more than %d peers: later ones get no access to region tensors",
                     PS_PEERS_MAX);
        return;
    }
    e->peer[e->n_peers] = device;
    atomic_fetch_add_explicit(&e->n_peers, 1, memory_order_release);
    grant_all(e);
    /* Lanes are made anew, of plain memory, at the next cut. */
    e->learner.forget = e->learner.forget || (e->compressible && e->places != NULL);
}

void ps_engine_peer_enabled(CUcontext peer)
{
    struct ps_guard guard;
    CUdevice device;
    if (!ps_paging() || ps_engines() == NULL) {
        return;
    }
    ps_guard_enter(&guard);
    if (ps_driver.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
        pthread_mutex_lock(&ps_lock);
        struct ps_engine *e = ps_engine_find(peer);
        if (e != NULL) {
            add_peer(e, device);
        }
        pthread_mutex_unlock(&ps_lock);
    }
    ps_guard_leave(&guard);
}

void ps_engine_pool_access(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    struct ps_guard guard;
    if (!ps_paging() || ps_engines() == NULL) {
        return;
    }
    ps_guard_enter(&guard);
    pthread_mutex_lock(&ps_lock);
    for (struct ps_engine *e = ps_engines(); e != NULL; e = e->next) {
        for (size_t i = 0; i < count && e->state == PS_ENGINE_READY && is_default_pool(e, pool);
             i++) {
            if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
                add_peer(e, map[i].location.id);
            }
        }
    }
    pthread_mutex_unlock(&ps_lock);
    ps_guard_leave(&guard);
}
