/* SPDX-License-Identifier: Apache-2.0 */
/* Fences; see fence.h. Any thread, with the engine's lock held. */
#include "shim/fence.h"

#include <stdlib.h>

#include "policy/base/assert.h"
#include "shim/driver.h"
#include "shim/engine_int.h"

uint64_t ps_stream_key(CUcontext ctx, CUstream stream)
{
    if (stream == CU_STREAM_LEGACY) {
        return (uint64_t)(uintptr_t)ctx ^ 1;
    }
    if (stream == CU_STREAM_PER_THREAD) {
        /* Context handles are pointers, so bits 62 and 63 are free to tell the kinds apart. */
        return ((uint64_t)(uintptr_t)ctx ^ ps_thread_number() << 40) | (uint64_t)1 << 63;
    }
    return (uint64_t)(uintptr_t)stream;
}

static struct ps_fence *make(struct ps_fences *pool, CUresult *r_p)
{
    struct ps_fence *f = calloc(1, sizeof(*f));
    if (f == NULL) {
        *r_p = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    *r_p = ps_driver.cuEventCreate(&f->event, CU_EVENT_DISABLE_TIMING);
    if (*r_p != CUDA_SUCCESS) {
        free(f);
        return NULL;
    }
    f->all_next = pool->all;
    pool->all = f;
    return f;
}

static void discard(struct ps_fences *pool, struct ps_fence *f)
{
    struct ps_fence **at = &pool->all;
    while (*at != f) {
        at = &(*at)->all_next;
    }
    *at = f->all_next;
    ps_driver.cuEventDestroy(f->event);
    free(f);
}

struct ps_fence *ps_fence_record(struct ps_fences *pool, CUcontext ctx, CUstream stream,
                                 CUresult *r_p)
{
    struct ps_fence *f = pool->idle;
    if (f != NULL) {
        pool->idle = f->next;
    } else {
        f = make(pool, r_p);
        if (f == NULL) {
            return NULL;
        }
    }
    f->stream_key = f->behind_key = ps_stream_key(ctx, stream);
    f->refs = 1;
    f->done = false;
    *r_p = ps_driver.cuEventRecord(f->event, stream);
    if (*r_p != CUDA_SUCCESS) {
        /* Perhaps the event is of another context: it would fail the next record too. */
        discard(pool, f);
        return NULL;
    }
    return f;
}

struct ps_fence *ps_fence_ref(struct ps_fence *f)
{
    if (f != NULL) {
        ps_assert(f->refs > 0);
        f->refs++;
    }
    return f;
}

struct ps_fence *ps_fence_unref(struct ps_fences *pool, struct ps_fence *f)
{
    if (f == NULL) {
        return NULL;
    }
    ps_assert(f->refs > 0);
    if (--f->refs == 0) {
        f->next = pool->idle;
        pool->idle = f;
    }
    return NULL;
}

bool ps_fence_done(struct ps_fence *f)
{
    if (f == NULL || f->done) {
        return true;
    }
    /* An error tells nothing about the work: only success does. */
    f->done = f->event != NULL && ps_driver.cuEventQuery(f->event) == CUDA_SUCCESS;
    return f->done;
}

struct ps_fence *ps_fence_never(void)
{
    static struct ps_fence never = {.refs = 1};
    return ps_fence_ref(&never);
}

CUresult ps_fence_wait(struct ps_fence *f, uint64_t stream_key, CUstream stream)
{
    if (f == NULL || f->done || f->stream_key == stream_key) {
        return CUDA_SUCCESS;
    }
    return ps_driver.cuStreamWaitEvent(stream, f->event, CU_EVENT_WAIT_DEFAULT);
}

void ps_fences_retire(struct ps_fences *pool, uint64_t key, uint64_t new_key)
{
    for (struct ps_fence *f = pool->all; f != NULL; f = f->all_next) {
        f->stream_key = f->stream_key == key ? new_key : f->stream_key;
        f->behind_key = f->behind_key == key ? new_key : f->behind_key;
    }
}

void ps_fences_fini(struct ps_fences *pool)
{
    pool->all = NULL;
    while (pool->idle != NULL) {
        struct ps_fence *f = pool->idle;
        pool->idle = f->next;
        ps_driver.cuEventDestroy(f->event);
        free(f);
    }
}

bool ps_carrier_takes(const struct ps_carrier *c, uint64_t key)
{
    return c->key == key || (c->n_open == 0 && ps_fence_done(c->last));
}

void ps_carrier_open(struct ps_carrier *c, uint64_t key)
{
    ps_assert(ps_carrier_takes(c, key));
    c->key = key;
    c->n_open++;
}

void ps_carrier_close(struct ps_carrier *c, struct ps_fences *pool, CUcontext ctx, CUstream stream)
{
    CUresult r;
    struct ps_fence *f = ps_fence_record(pool, ctx, stream, &r);

    ps_assert(c->n_open > 0);
    c->n_open--;
    ps_fence_unref(pool, c->last);
    c->last = f != NULL ? f : ps_fence_never();
}
