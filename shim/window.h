/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one reserved window of addresses that every region tensor lives in, whatever its device or context. A slot is
 * a range of it with a gap on either side, so that `base - k` and one-past-end pointers still name the tensor: an
 * address in a gap belongs to the slot. ps_in_window (engine.h) and ps_window_names need no lock; everything else here
 * needs the engine's.
 */
#ifndef PS_SHIM_WINDOW_H
#define PS_SHIM_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/base/status.h"

struct ps_tensor;

struct ps_slot {
    uint64_t base;  /* first usable address, aligned to the granularity */
    uint64_t bytes; /* usable bytes, a multiple of the granularity */
};

/* Reserves the window once; later calls only check that the granularity is the same. Makes driver calls. */
enum ps_status PS_MUST_CHECK ps_window_reserve(uint64_t bytes, uint64_t granularity);
/* False when the window has no such room left. */
bool PS_MUST_CHECK ps_slot_take(uint64_t bytes, struct ps_slot *slot_p);
void ps_slot_give(const struct ps_slot *slot);
/* Makes addresses of the slot and its gaps name the tensor (or nothing: NULL). */
void ps_window_name(const struct ps_slot *slot, struct ps_tensor *tensor);
/* The tensor that the address names, or NULL. */
struct ps_tensor *ps_window_find(uint64_t address);
/*
 * Whether ps_window_find would find one now. No lock. Never false of what the job may use: a thread that was told an
 * address of a tensor, with the order that threads need to tell each other anything, sees that it is named, until it is
 * freed. True may be over by the time the lock is taken.
 */
bool ps_window_names(uint64_t address);

#endif
