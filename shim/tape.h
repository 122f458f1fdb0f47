/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recorder. For PAGEDSTASH_TAPE, what the job asks of the driver goes into a tape (policy/tape.h),
 * and nothing is taken over, so that addresses are the driver's own; for PAGEDSTASH_TRACE, into a
 * trace (trace.h). Any thread; one lock, which is held for one record and never across a driver
 * call. While nothing is recorded, everything here is one load.
 *
 * A call stands on the tape after it was made and before the job goes on, so that what another
 * thread does in answer comes later. What gives an address or a handle back stands there before it
 * is made: another thread may get the same one at once.
 */
#ifndef PS_SHIM_TAPE_H
#define PS_SHIM_TAPE_H

#include <stdatomic.h>

#include "shim/cuda_api.h"

#include "policy/tape.h"
#include "shim/intercept.h"

extern _Atomic bool ps_tape_flag; /* set in the constructor, cleared for good; relaxed */

static inline bool ps_tape_on(void)
{
    return __builtin_expect(atomic_load_explicit(&ps_tape_flag, memory_order_relaxed), 0);
}

/* From the constructor. No file is made before there is something to write. */
void ps_tape_start(void);
/* Writes the counts and what is buffered; nothing is recorded afterwards. No driver call. */
void ps_tape_exit(void);
/* In a child: the file is the parent's. */
void ps_tape_forked(void);

void ps_tape_push(const char *name);
void ps_tape_pop(void);

/* ---- calls: what follows are the arguments of the row (tape_calls.c) ---- */
void ps_tape_before(enum ps_hook_id id, CUstream stream, ...);
void ps_tape_after(enum ps_hook_id id, CUresult r, CUstream stream, ...);

/* ---- tape_calls.c to tape.c: each is one record; nothing when the tape has ended ---- */
void ps_tape_put(enum ps_tape_kind kind, const uint64_t *fields);
void ps_tape_put_call(const char *name, CUstream stream);
void ps_tape_put_alloc(unsigned form, CUstream stream, CUdeviceptr ptr, size_t bytes);
void ps_tape_put_free(unsigned form, CUstream stream, CUdeviceptr ptr);

struct ps_tape_launch {
    CUfunction f;
    CUstream stream;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    void *const *params;
    void *const *extra;
};
void ps_tape_put_launch(const struct ps_tape_launch *l);

/* Pitches are from row to row and from layer to layer. */
struct ps_tape_copy {
    unsigned form;
    CUstream stream;
    CUdeviceptr dst, src;
    size_t width, height, depth;
    size_t dst_pitch, dst_layer, src_pitch, src_layer;
};
void ps_tape_put_copy(const struct ps_tape_copy *c);

struct ps_tape_fill {
    unsigned form;
    CUstream stream;
    CUdeviceptr dst;
    unsigned element;
    uint64_t value;
    size_t width, height, pitch; /* width in elements */
};
void ps_tape_put_fill(const struct ps_tape_fill *f);

/* Modules go away: function handles may come back for other kernels. */
void ps_tape_purge(void);

#endif
