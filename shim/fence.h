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
    uint64_t
        behind_key; /* the same; of a stream of ours, the job's stream that it waited for, if its recorder says so */
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

/*
 * A stream of ours that waits for streams of the job, and for which those wait. While it is behind one of them it takes
 * nothing that is for another: that one would wait for the first, and what the first waits for may be this thread's, or
 * another rank's, to do. Zeroed: free.
 */
struct ps_carrier {
    struct ps_fence *last; /* behind what it was given last, */
    uint64_t key;          /* for this stream of the job */
    uint32_t n_open;       /* calls that are giving it something */
};

bool ps_carrier_takes(const struct ps_carrier *c, uint64_t key);
/* Around whatever may make it wait; it takes that key. The lock may be let go in between. */
void ps_carrier_open(struct ps_carrier *c, uint64_t key);
void ps_carrier_close(struct ps_carrier *c, struct ps_fences *pool, CUcontext ctx, CUstream stream);

#endif
