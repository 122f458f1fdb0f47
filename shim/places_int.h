/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of places.h share. */
#ifndef PS_SHIM_PLACES_INT_H
#define PS_SHIM_PLACES_INT_H

#include "shim/places.h"

/* Maps a handle of `bytes` at base for this device and the peers. Lock not held. */
CUresult ps_place_map(const struct ps_engine *e, uint64_t base, uint64_t bytes,
                      CUmemGenericAllocationHandle handle);
/* Memory for a tail that is aside; the last resort is what was freed and is not over yet. Lock not held. */
struct ps_spare *ps_spare_make(struct ps_engine *e, const struct ps_places *p, uint64_t bytes,
                               CUresult *r_p);
/* Maps as much of it as a slot has. Lock not held. */
CUresult ps_spare_map(const struct ps_engine *e, const struct ps_places *p,
                      const struct ps_spare *spare, uint64_t base, uint64_t bytes);
/* Nothing is mapped to it. Lock not held. */
void ps_spare_free(const struct ps_places *p, struct ps_spare *spare);
/* The first of an end's fences that is not known to be over; NULL: it is over. Lock held. */
struct ps_fence *ps_first_pending(struct ps_fence *const ready[2]);
/* Peers may read the tail as it is mapped now. */
void ps_place_grant(const struct ps_engine *e, const struct ps_place *place);

#endif
