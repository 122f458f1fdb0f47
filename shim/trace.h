/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace (PAGEDSTASH_TRACE): ranges, allocations, frees and the calls that name tensors, as lines of text for
 * `pagedstash replay`; docs/trace.md has the format. Unlike a tape it changes nothing: the stash works as ever. The
 * recorder of tapes (tape.c) sees the calls, knows the allocations and writes here; all but start are called with its
 * lock held, by a thread that it has numbered.
 */
#ifndef PS_SHIM_TRACE_H
#define PS_SHIM_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "shim/cuda_api.h"

#include "policy/spans.h"
#include "shim/tape.h"
#include "shim/trace_valid.h"

/* Smaller allocations are told as one sum. */
#define PS_TRACE_SMALL_BYTES ((uint64_t)1 << 20)
#define PS_TRACE_OUTSIDE     UINT32_MAX

/* Stays false when there is no such setting; becomes false for good when writing ends. */
extern bool ps_trace_flag;

void ps_trace_start(void);
/* Writes what is buffered and ends. No driver call. */
void ps_trace_end(void);

/* ---- rows; nothing while ps_trace_flag is false ---- */
void ps_trace_mark(uint32_t thread, const char *event, const char *detail);
void ps_trace_context(uint32_t thread, CUcontext context, CUdevice device);
/* ordinal: in its region, or PS_TRACE_OUTSIDE. form: enum of tapes. */
void ps_trace_alloc(uint32_t thread, const struct ps_span *span, unsigned form, CUstream stream,
                    uint32_t ordinal);
void ps_trace_free(uint32_t thread, const struct ps_span *span, unsigned form, CUstream stream);
void ps_trace_launch(uint32_t thread, CUstream stream, const struct ps_named *named,
                     const char *name);
void ps_trace_copy(uint32_t thread, const struct ps_tape_copy *c, const struct ps_named *named);
void ps_trace_fill(uint32_t thread, const struct ps_tape_fill *f, const struct ps_named *named);
void ps_trace_tell_valid(uint32_t thread, uint32_t number, uint64_t bytes);
/* The sum of small allocations, if it has changed. */
void ps_trace_tell_small(uint32_t thread);

#endif
