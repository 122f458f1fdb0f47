/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: stream-ordered memory pools. A pool is a list of unused blocks, each with the operation that freed it. An
 * allocation takes a block of its size whose free comes before it, address and all; failing that it gathers
 * pages of such blocks under a new address; failing that the pool grows. A block whose pages were taken while its
 * free is still queued keeps its address mapped until then (a zombie). Under the big lock.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/simcuda/pool.h"

static struct sim_pool *pools;
static struct sim_pool *defaults[16];
static struct sim_pool *currents[16]; /* what cuMemAllocAsync uses; NULL: the default */

struct sim_pool *sim_pool_new(int device, bool explicit_)
{
    struct sim_pool *p = sim_calloc(1, sizeof *p);
    p->device = device;
    p->explicit_ = explicit_;
    p->follow_events = p->opportunistic = p->internal_deps = 1;
    for (int d = 0; d < 16; d++) {
        p->access[d] =
            d == device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    }
    p->next = pools;
    pools = p;
    sim_handle_add(p, SIM_K_POOL);
    return p;
}

struct sim_pool *sim_pool_default(int device)
{
    if (defaults[device] == NULL) {
        defaults[device] = sim_pool_new(device, false);
    }
    return defaults[device];
}

struct sim_pool *sim_pool_current(int device)
{
    return currents[device] == NULL ? sim_pool_default(device) : currents[device];
}

void sim_pool_set_current(int device, struct sim_pool *p)
{
    currents[device] = p;
}

static void grew(struct sim_pool *p, uint64_t bytes)
{
    p->reserved += bytes;
    if (p->reserved > p->reserved_high) {
        p->reserved_high = p->reserved;
    }
}

/* ---- unused blocks ---- */

static void put_unused(struct sim_block *b)
{
    b->state = SIM_BLOCK_UNUSED;
    b->next = b->pool->unused;
    b->pool->unused = b;
}

static void take_unused(struct sim_block *b)
{
    for (struct sim_block **link = &b->pool->unused; *link != NULL; link = &(*link)->next) {
        if (*link == b) {
            *link = b->next;
            break;
        }
    }
    b->next = NULL;
}

static bool is_idle(const struct sim_block *b)
{
    return b->freed == NULL || b->freed->state == SIM_OP_DONE;
}

/* May what s does next use the memory of b? `force` adds a dependency where there is none. */
static bool may_reuse(const struct sim_block *b, const struct sim_stream *s, bool force)
{
    if (b->freed == NULL || b->freed->stream == s) {
        return true;
    }
    if (is_idle(b)) {
        return b->pool->opportunistic != 0 || force;
    }
    return (b->pool->follow_events != 0 && sim_op_precedes(b->freed, s)) ||
           (force && b->pool->internal_deps != 0);
}

static void drop_address(struct sim_block *b)
{
    if (b->base != 0) {
        sim_va_unmap(b->mapping);
        sim_va_release(b->base);
        b->base = 0;
        b->mapping = NULL;
    }
}

static void destroy_block(struct sim_block *b)
{
    drop_address(b);
    sim_op_unref(b->freed);
    free(b->pages.ext);
    free(b);
}

/* The block loses its address: at once if its free is done, else a zombie keeps it until then. */
static void strip_address(struct sim_block *b)
{
    if (b->base == 0 || is_idle(b)) {
        drop_address(b);
        return;
    }
    struct sim_block *zombie = sim_calloc(1, sizeof *zombie);
    zombie->pool = b->pool;
    zombie->state = SIM_BLOCK_ZOMBIE;
    zombie->base = b->base;
    zombie->bytes = b->bytes;
    zombie->mapping = b->mapping;
    zombie->mapping->object = zombie;
    zombie->freed = sim_op_ref(b->freed);
    zombie->freed->alloc.block = zombie;
    b->base = 0;
    b->mapping = NULL;
}

/* Gives an idle unused block's memory back to the device. */
static void release_block(struct sim_block *b)
{
    take_unused(b);
    drop_address(b);
    b->pool->reserved -= b->pages.n_pages * SIM_PAGE;
    sim_pages_free(&b->pages);
    destroy_block(b);
}

static void destroy_pool_if_empty(struct sim_pool *p)
{
    if (!p->destroyed || p->n_live > 0 || p->unused != NULL) {
        return;
    }
    for (struct sim_pool **link = &pools; *link != NULL; link = &(*link)->next) {
        if (*link == p) {
            *link = p->next;
            break;
        }
    }
    free(p);
}

void sim_pool_trim(struct sim_pool *p, uint64_t keep)
{
    for (struct sim_block *b = p->unused, *next; b != NULL && p->reserved > keep; b = next) {
        next = b->next;
        if (!is_idle(b)) {
            continue;
        }
        const uint64_t surplus = (p->reserved - keep) / SIM_PAGE;
        if (b->pages.n_pages <= surplus) {
            release_block(b);
        } else if (surplus > 0) { /* a part of it is enough */
            struct sim_pages part = {.device = p->device};
            drop_address(b);
            sim_pages_move(&part, &b->pages, surplus);
            b->bytes = b->pages.n_pages * SIM_PAGE;
            p->reserved -= surplus * SIM_PAGE;
            sim_pages_free(&part);
        }
    }
}

void sim_pool_destroy(struct sim_pool *p)
{
    for (int d = 0; d < 16; d++) {
        currents[d] = currents[d] == p ? NULL : currents[d];
    }
    p->destroyed = true;
    sim_pool_trim(p, 0);
    destroy_pool_if_empty(p);
}

void sim_pools_after_sync(void)
{
    for (struct sim_pool *p = pools, *next; p != NULL; p = next) {
        next = p->next;
        sim_pool_trim(p, p->destroyed ? 0 : p->threshold);
        destroy_pool_if_empty(p);
    }
}

void sim_pools_reclaim(int device, uint64_t n_pages)
{
    for (struct sim_pool *p = pools; p != NULL; p = p->next) {
        if (p->device == device && (sim_options.mem - sim_phys_used(device)) / SIM_PAGE < n_pages) {
            const uint64_t missing = n_pages * SIM_PAGE - (sim_options.mem - sim_phys_used(device));
            sim_pool_trim(p, p->reserved > missing ? p->reserved - missing : 0);
        }
    }
}

/* ---- allocation ---- */

static struct sim_block *exact(struct sim_pool *p, uint64_t bytes, const struct sim_stream *s)
{
    struct sim_block *idle = NULL;
    for (struct sim_block *b = p->unused; b != NULL; b = b->next) {
        if (b->base != 0 && b->bytes == bytes && may_reuse(b, s, false)) {
            if (b->freed == NULL || b->freed->stream == s) {
                return b;
            }
            idle = b;
        }
    }
    return idle;
}

/* Moves pages of reusable blocks into `to`, noting the frees they depend on in `op`. */
static void gather(struct sim_pool *p, struct sim_pages *to, uint64_t n_pages, bool force,
                   struct sim_op *op)
{
    struct sim_block **link = &p->unused;
    while (*link != NULL && to->n_pages < n_pages) {
        struct sim_block *b = *link;
        if (!may_reuse(b, op->stream, force)) {
            link = &b->next;
            continue;
        }
        strip_address(b);
        sim_op_dep(op, b->freed);
        const uint64_t missing = n_pages - to->n_pages;
        sim_pages_move(to, &b->pages, b->pages.n_pages < missing ? b->pages.n_pages : missing);
        b->bytes = b->pages.n_pages * SIM_PAGE;
        if (b->pages.n_pages == 0) {
            *link = b->next;
            destroy_block(b);
        } else {
            link = &b->next;
        }
    }
}

/* The surplus of a pool's growth is an unused block without address. */
static bool grow(struct sim_pool *p, struct sim_pages *to, uint64_t n_pages)
{
    struct sim_pages fresh;
    const uint64_t missing = n_pages - to->n_pages;
    const uint64_t rounded = SIM_ROUND(missing * SIM_PAGE, sim_options.granularity) / SIM_PAGE;
    uint64_t got = rounded;
    if (!sim_pages_get(&fresh, p->device, rounded)) {
        got = missing;
        if (!sim_pages_get(&fresh, p->device, missing)) {
            return false;
        }
    }
    grew(p, got * SIM_PAGE);
    sim_pages_move(to, &fresh, missing);
    if (fresh.n_pages > 0) {
        struct sim_block *rest = sim_calloc(1, sizeof *rest);
        rest->pool = p;
        rest->bytes = fresh.n_pages * SIM_PAGE;
        rest->pages = fresh;
        put_unused(rest);
    }
    return true;
}

static void give_back(struct sim_pool *p, struct sim_pages *pages, const struct sim_op *op)
{
    struct sim_block *b = sim_calloc(1, sizeof *b);
    b->pool = p;
    b->bytes = pages->n_pages * SIM_PAGE;
    b->pages = *pages;
    /* ordered after the last free that any of the pages depended on */
    for (size_t i = 0; op != NULL && i < op->n_deps; i++) {
        if (b->freed == NULL || op->deps[i]->serial > b->freed->serial) {
            sim_op_unref(b->freed);
            b->freed = sim_op_ref(op->deps[i]);
        }
    }
    put_unused(b);
}

/* A new address over gathered and grown pages. */
static struct sim_block *assemble(struct sim_pool *p, uint64_t bytes, struct sim_op *op)
{
    struct sim_pages pages = {.device = p->device};
    const uint64_t n_pages = bytes / SIM_PAGE;
    gather(p, &pages, n_pages, false, op);
    bool enough = pages.n_pages == n_pages || grow(p, &pages, n_pages);
    if (!enough) {
        gather(p, &pages, n_pages, true, op);
        enough = pages.n_pages == n_pages || grow(p, &pages, n_pages);
    }
    const CUdeviceptr base = enough ? sim_va_reserve(bytes, SIM_PAGE, 0) : 0;
    if (base == 0) {
        if (pages.n_pages > 0) {
            give_back(p, &pages, op);
        }
        return NULL;
    }
    struct sim_block *b = sim_calloc(1, sizeof *b);
    b->pool = p;
    b->base = base;
    b->bytes = bytes;
    b->pages = pages;
    return b;
}

static void begin_life(struct sim_block *b, struct sim_ctx *ctx, uint64_t asked)
{
    struct sim_pool *p = b->pool;
    b->state = SIM_BLOCK_LIVE;
    b->asked = asked;
    b->ctx = ctx;
    if (b->freed != NULL) {
        b->freed->alloc.block =
            NULL; /* its turn may still come: then this life is none of its business */
        sim_op_unref(b->freed);
        b->freed = NULL;
    }
    const int prot = PROT_READ | PROT_WRITE;
    if (b->mapping == NULL) {
        b->mapping = sim_va_map(b->base, &b->pages, SIM_OWNER_POOL, prot, b);
    } else {
        sim_va_protect(b->mapping, prot);
    }
    p->n_live++;
    p->used += b->bytes;
    if (p->used > p->used_high) {
        p->used_high = p->used;
    }
}

static CUresult alloc(struct sim_thread *t, CUdeviceptr *dptr, uint64_t asked, struct sim_pool *p,
                      struct sim_stream *s)
{
    if (dptr == NULL || asked == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (asked > sim_options.mem) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const uint64_t bytes = SIM_ROUND(asked, SIM_PAGE);
    struct sim_op *op = sim_op_new(SIM_OP_ALLOC, s, "cuMemAllocAsync");
    struct sim_block *b = NULL;
    if (s->capture != NULL) {
        const CUresult result = sim_pool_graph_alloc(s->ctx, asked, &b);
        if (result != CUDA_SUCCESS) {
            sim_op_unref(op);
            return result;
        }
    } else {
        b = exact(p, bytes, s);
        if (b != NULL) {
            take_unused(b);
            sim_op_dep(op, b->freed);
        } else {
            b = assemble(p, bytes, op);
        }
        if (b == NULL) {
            sim_op_unref(op);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        begin_life(b, s->ctx, asked);
    }
    op->alloc = (struct sim_alloc_op){b->base, b->bytes, b};
    *dptr = b->base;
    return sim_submit(t, op);
}

/* ---- free ---- */

static struct sim_block *live_block(CUdeviceptr ptr)
{
    const struct sim_mapping *m;
    if (!sim_va_find(ptr, &m, NULL) || m->owner != SIM_OWNER_POOL || m->base != ptr) {
        return NULL;
    }
    struct sim_block *b = m->object;
    return b->state == SIM_BLOCK_LIVE ? b : NULL;
}

static void end_life(struct sim_block *b, struct sim_op *op)
{
    b->pool->n_live--;
    b->pool->used -= b->bytes;
    b->freed = op == NULL ? NULL : sim_op_ref(op);
    put_unused(b);
}

void sim_pool_exec_free(struct sim_op *op)
{
    struct sim_block *b = op->alloc.block;
    if (b == NULL) {
        return; /* of a graph: its memory stays until the graph goes */
    }
    if (b->freed == op && b->state == SIM_BLOCK_ZOMBIE) {
        destroy_block(b); /* drops its reference to op; the queue holds another */
    } else if (b->freed == op && b->state == SIM_BLOCK_UNUSED) {
        sim_va_protect(b->mapping, PROT_NONE);
        if (b->pool->destroyed) {
            struct sim_pool *p = b->pool;
            release_block(b);
            destroy_pool_if_empty(p);
        }
    }
}

bool sim_pool_free_sync(struct sim_thread *t, CUdeviceptr ptr, CUresult *result_p)
{
    struct sim_block *b = live_block(ptr);
    if (b == NULL || b->pool->graph) {
        return false;
    }
    *result_p = sim_ctx_wait(t, b->ctx, "cuMemFree");
    if (live_block(ptr) == b) {
        sim_check_free(NULL, b->base, b->bytes);
        end_life(b, NULL);
        sim_va_protect(b->mapping, PROT_NONE);
    }
    sim_pools_after_sync();
    return true;
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS) {
        result = alloc(t, dptr, bytesize, sim_pool_current(s->ctx->device), s);
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                         CUstream hStream)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS && !sim_handle_is(pool, SIM_K_POOL)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        result = alloc(t, dptr, bytesize, (struct sim_pool *)pool, s);
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS || dptr == 0) {
        return sim_leave(result);
    }
    struct sim_block *b = live_block(dptr);
    if (b == NULL || (s->capture != NULL && !b->pool->graph)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct sim_op *op = sim_op_new(SIM_OP_FREE, s, "cuMemFreeAsync");
    op->alloc = (struct sim_alloc_op){b->base, b->bytes, b->pool->graph ? NULL : b};
    (void)sim_op_ref(op);
    result = sim_submit(t, op);
    if (result == CUDA_SUCCESS && !b->pool->graph) {
        end_life(b, op);
    }
    sim_op_unref(op);
    return sim_leave(result);
}

/* ---- memory of graphs ---- */

CUresult sim_pool_graph_alloc(struct sim_ctx *ctx, uint64_t asked, struct sim_block **block_p)
{
    static struct sim_pool *graph_pools[16];
    struct sim_pool *p = graph_pools[ctx->device];
    if (p == NULL) {
        p = graph_pools[ctx->device] = sim_pool_new(ctx->device, false);
        p->graph = true;
        sim_handle_remove(p, SIM_K_POOL);
    }
    struct sim_pages pages;
    const uint64_t bytes = SIM_ROUND(asked, SIM_PAGE);
    if (!sim_pages_get(&pages, ctx->device, bytes / SIM_PAGE)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUdeviceptr base = sim_va_reserve(bytes, SIM_PAGE, 0);
    if (base == 0) {
        sim_pages_free(&pages);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_block *b = sim_calloc(1, sizeof *b);
    b->pool = p;
    b->base = base;
    b->bytes = bytes;
    b->pages = pages;
    grew(p, bytes);
    begin_life(b, ctx, asked);
    *block_p = b;
    return CUDA_SUCCESS;
}

void sim_pool_graph_free(struct sim_block *b)
{
    end_life(b, NULL);
    release_block(b);
}
