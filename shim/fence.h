/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fence is a recorded event and the stream it was recorded on. Shared by count; its event goes back to a pool when
 * nobody holds it. One pool a context. Guarded by the engine's lock; callers have the fence's context current and
 * the capture mode relaxed.
 */
#ifndef PS_SHIM_FENCE_H
#define PS_SHIM_FENCE_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>

struct ps_fence {
    CUevent event;
    uint64_t stream_key; /* ps_stream_key of where it was recorded */
    uint32_t refs;
    bool done; /* seen complete */
    struct ps_fence *next;
    struct ps_fence *all_next; /* of its pool */
};

struct ps_fences {
    struct ps_fence *idle;
    struct ps_fence *all;
};

/* Identifies a stream for the process: the per-thread default stream differs by thread, the legacy one by context. */
uint64_t ps_stream_key(CUcontext ctx, CUstream stream);

/* A fence behind everything enqueued on the stream so far; one reference.
 * NULL when the driver refuses (result in *r_p). */
struct ps_fence *ps_fence_record(struct ps_fences *pool, CUcontext ctx, CUstream stream,
                                 CUresult *r_p);
struct ps_fence *ps_fence_ref(struct ps_fence *f);
/* Drops a reference; NULL is fine. Returns NULL. */
struct ps_fence *ps_fence_unref(struct ps_fences *pool, struct ps_fence *f);
/* Seen complete? NULL counts as done. Asks the driver when not known yet. */
bool ps_fence_done(struct ps_fence *f);
/* Stands for work of which nobody will ever know that it is done: what it guards is not used again. */
struct ps_fence *ps_fence_never(void);
/* Makes `stream` wait; nothing when f is NULL, done, or recorded on the same stream. */
CUresult ps_fence_wait(struct ps_fence *f, uint64_t stream_key, CUstream stream);
/* The stream goes: its fences get a key no stream has, for another may get its handle. */
void ps_fences_retire(struct ps_fences *pool, uint64_t key, uint64_t new_key);
void ps_fences_fini(struct ps_fences *pool);

#endif
