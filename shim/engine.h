/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the wrappers (hooks_*.c, nvtx.c) ask of the engine. Any thread; every function may be called inside a
 * hook and returns with the current context, errno and capture mode as they were. No function holds a lock when
 * it returns. Streams are *resolved* handles (ps_stream_resolve): CU_STREAM_LEGACY, CU_STREAM_PER_THREAD or a created
 * one.
 */
#ifndef PS_SHIM_ENGINE_H
#define PS_SHIM_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

/* The explicit handle of a stream argument. ptds: the entry point was a per-thread-default-stream variant. */
static inline CUstream ps_stream_resolve(CUstream stream, bool ptds)
{
    if (stream != NULL) {
        return stream;
    }
    return ptds ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

/* ---- the reserved window (window.c): a hit test without a lock ---- */
/* base 0 and size 0 until the first engine has reserved it; written once (release), read relaxed by ps_in_window. */
extern _Atomic uint64_t ps_window_base;
extern _Atomic uint64_t ps_window_size;
/* Paging has ended, but not everything is in its place yet: what calls name is still looked at. */
extern _Atomic bool ps_coming_home;

static inline bool ps_in_window(uint64_t address)
{
    return address - atomic_load_explicit(&ps_window_base, memory_order_relaxed) <
           atomic_load_explicit(&ps_window_size, memory_order_relaxed);
}

/* ---- touches: the addresses that one driver call names ---- */
#define PS_TOUCH_INLINE 32
struct ps_touches {
    uint64_t last;     /* address of the window that was looked at; 0: none was */
    unsigned n;        /* addresses listed: they named tensors when they were looked at */
    unsigned capacity; /* PS_TOUCH_INLINE while `more` is NULL */
    uint64_t inline_addr[PS_TOUCH_INLINE];
    uint64_t *more;                     /* malloc'ed list once the inline one is full */
    void *inline_held[PS_TOUCH_INLINE]; /* engine's: tensors pinned between enter and leave */
    void **held;
    unsigned n_held;
    unsigned n_stale; /* addresses of the window that named none, not counted yet */
    uint64_t key;     /* engine's: of the stream, or 0 */
};

/* Cheap; call on the stack. */
static inline void ps_touches_init(struct ps_touches *t)
{
    t->last = 0;
    t->n = 0;
    t->capacity = PS_TOUCH_INLINE;
    t->more = NULL;
    t->held = t->inline_held;
    t->n_held = 0;
    t->n_stale = 0;
    t->key = 0;
}
/*
 * Adds one address if it names a tensor. One in the window that names none is stale: it is only counted, by
 * ps_touch_enter or ps_touch_pin. Duplicates of the last one are dropped. No lock: what the job may use names a tensor
 * for every thread that was told of it (window.h).
 */
void ps_touches_add(struct ps_touches *t, uint64_t address);
/* Adds the first and the last byte of [address, address + bytes). */
void ps_touches_add_range(struct ps_touches *t, uint64_t address, uint64_t bytes);

/*
 * Before the job's call: every tensor named becomes resident, in order before what `stream` does next, and is
 * pinned until ps_touch_leave. Returns CUDA_SUCCESS, or the driver's own error if data could not be brought back:
 * the wrapper then returns it without making the call (and must not call leave).
 * With t->n == 0 both do nothing, but that stale addresses are counted, and take no lock. Never waits on the host
 * unless memory is exhausted.
 */
CUresult ps_touch_enter(struct ps_touches *t, CUstream stream);
/* After the job's call. Records foreign and per-thread streams at once; frees the list. */
void ps_touch_leave(struct ps_touches *t, CUstream stream);
/*
 * After a call of the job that names none of our addresses, while ps_following: it may use what a kernel before it in
 * the stream was given addresses of.
 */
extern _Atomic bool ps_following;
void ps_touch_follow(CUstream stream);
/* The tensors named become resident now and stay so until the job frees them (exports, captures, payload addresses,
 * graph node parameters, registrations). Same return rule as ps_touch_enter; frees the list. */
CUresult ps_touch_pin(struct ps_touches *t, CUstream stream);

/* ---- allocations ---- */
/* Called for cuMemAllocAsync (and FromPool on the device's default pool) before the real one. True: *ptr_p is ours,
 * done. False: not in a region, too small, capturing, or no memory: call the real function. */
bool ps_engine_alloc(CUdeviceptr *ptr_p, size_t bytes, CUstream stream);
/* False: ps_engine_alloc would be; it counts as seen and need not be called. Makes no driver call, takes no lock. */
bool ps_engine_alloc_concerns(void);
/*
 * The next ps_engine_alloc on this thread is the last one once more: the driver could not serve it either. False: that
 * would not do, there is none.
 */
bool ps_engine_alloc_again(void);
/*
 * The driver served an allocation that ps_engine_alloc has just left to it, on the same thread: a temporary is made
 * uniform where its content flows into what is stashed.
 */
void ps_engine_alloc_left(CUdeviceptr ptr, size_t bytes, CUstream stream);
/* True: the pointer was a live tensor's base and is freed in the order of `stream`. False: call the real function. */
bool ps_engine_free_async(CUdeviceptr ptr, CUstream stream);
/* cuMemFree of one of ours: returns when the memory is idle, as the driver's does. */
bool ps_engine_free_sync(CUdeviceptr ptr);
/* An allocation seen but left alone (cuMemAlloc and friends): counted when made inside a region. */
void ps_engine_note_alloc(size_t bytes);
/*
 * A call of the job has failed with out-of-memory: synchronises, gives back what we hold unused, trims the default
 * pool. True if something was given back, so that one more try is worth it. Not while capturing (then false).
 */
bool ps_engine_give_back(void);
/* cuMemPoolTrimTo of the default pool: release what we hold unused. */
void ps_engine_trim(CUmemoryPool pool);

/* ---- regions: from NVTX, per thread. name need not be zero-terminated copies; it is copied if it must live. ---- */
void ps_region_push(const char *name);
void ps_region_pop(void);

/* ---- life cycle of things we hold on to ---- */
struct ps_engine;
void ps_engine_stream_created(CUstream stream, unsigned flags); /* after success */
/* Before the real call, and after its success with what that returned. */
bool ps_engine_stream_destroying(CUstream stream);
void ps_engine_stream_destroyed(bool blocking);
void ps_engine_capture_beginning(CUstream stream); /* before the real call */
/*
 * Before a call that may end a context, or the device's primary one: its engine or NULL. After it, with that: gone when
 * nothing of the context is left; else it goes on.
 */
struct ps_engine *ps_engine_context_ending(CUcontext ctx);
struct ps_engine *ps_engine_primary_ending(CUdevice device);
void ps_engine_ended(struct ps_engine *e, bool gone);
void ps_engine_peer_enabled(
    CUcontext peer); /* after success: current context may access peer's memory */
void ps_engine_pool_access(CUmemoryPool pool, const CUmemAccessDesc *map,
                           size_t count); /* after success */
/* Ends paging for the process: restores everything, passes everything through from now on. One line. */
void ps_engine_end_paging(const char *why);
/* In a forked child; no driver call. True: the parent had tensors of ours or could have, so the child, in which CUDA
 * does not work, is to be left alone. A child of a process that had not come to CUDA is like any other process. */
bool ps_engine_forked(void);
/* At exit: counters to PAGEDSTASH_METRICS, summary at info. No driver call. */
void ps_engine_exit(void);

/* ---- queries. True: it is a live tensor of ours. ---- */
struct ps_tensor_info {
    CUdeviceptr base;
    size_t bytes;    /* as the job asked */
    uint64_t serial; /* unique for the process: stands in for BUFFER_ID */
    CUcontext context;
    CUdevice device;
};
bool ps_engine_query(CUdeviceptr ptr, struct ps_tensor_info *info_p);
/* Bytes of ours that count as the default pool's: live (used) and held (reserved). */
void ps_engine_pool_bytes(CUmemoryPool pool, uint64_t *used_p, uint64_t *reserved_p);

#endif
