/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine tells the trace: how much of its tensors is valid. Defined in tape.c, called with the engine's lock
 * held; one load while no trace is written. Any thread.
 */
#ifndef PS_SHIM_TRACE_VALID_H
#define PS_SHIM_TRACE_VALID_H

#include <stdint.h>

#define PS_TRACE_NOBODY UINT32_MAX

/* The number of the tensor that lives at this base, or PS_TRACE_NOBODY. */
uint32_t ps_trace_number(uint64_t base);
/* So much of the tensor with that number is not uniform. May come late, when another lives there. */
void ps_trace_valid(uint32_t number, uint64_t bytes);

#endif
