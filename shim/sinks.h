/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stages and sinks of the plan in force (policy/sinks.h): what the plan sends to the host is stashed into a stage and
 * copied on to a sink by the copy engine; it is copied back into a stage ahead of its restore.
 *
 *   stash_stream   stage's last users ─► list made anew ─► stash
 *   sinks' out     stash, sink's last users ─► copy to the sink
 *   sinks' in      copy to the sink, stage's last users ─► copy to a stage
 *   restore        copy to the stage, or (none is at hand) to the sink, from where it reads itself
 *
 * Page tables go on naming the pages of the stage that was stashed into, from its first_page on: a restore adds what
 * lies between those and the bytes as they lie then. A stage's pages are in no list but its own, which each stash
 * begins with; what a drop returns of them goes nowhere. Pages beyond those planned are host pages of the pool, which
 * are reserved before.
 *
 * Whoever holds a stage for a group whose bytes have a copy on the host, or whose copy there is enqueued, loses it to
 * the next stash, so none ever lacks one for long; and a restore that has none at hand does without. Stages and sinks
 * are free behind what used them, not behind the drops of their copies: the drop stream waits for all streams of the
 * job. What a stream of the job has yet to do is followed only in the name of a group of that stream.
 *
 * Any thread; the engine's lock is held, but where it says otherwise.
 */
#ifndef PS_SHIM_SINKS_H
#define PS_SHIM_SINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/sinks.h"
#include "shim/driver.h"

struct ps_copy;
struct ps_engine;
struct ps_fence;
struct ps_group;
struct ps_sink;         /* a group's bytes out of its place */
struct ps_sinks_memory; /* of the plan in force */

/*
 * Stages and streams for the plan, and the host memory that is there for it (hostpages.c). Takes `chosen` over. NULL:
 * nothing of it is sent, or no memory: pages of the pool serve. Lock not held.
 */
struct ps_sinks_memory *ps_sinks_make(struct ps_engine *e, struct ps_sinks *chosen);
/* It is idle, and nothing of it is pending. gone: the context no longer exists. Lock not held. */
void ps_sinks_free(struct ps_engine *e, struct ps_sinks_memory *m, bool gone);
/* What it was made from; without sinks where m is NULL. */
const struct ps_sinks *ps_sinks_chosen(const struct ps_sinks_memory *m);
/* Device memory of its stages. */
uint64_t ps_sinks_bytes(const struct ps_sinks_memory *m);
/* No copy lies there. */
bool ps_sinks_idle(const struct ps_sinks_memory *m);
/* The stream goes; another may get its handle. */
void ps_sinks_retire(struct ps_sinks_memory *m, uint64_t key, uint64_t new_key);
/* What its end is behind, if that is not known to be over; NULL: idle. */
struct ps_fence *ps_sinks_pending(const struct ps_sinks_memory *m);

/* Pages that the plan has a sink for, of a group that is now to be stashed; 0: it goes to pages of the pool. */
uint32_t ps_sink_pages(const struct ps_engine *e, const struct ps_group *g);
/* A sink and a stage, which stash_stream waits for. NULL: none can be had; pages of the pool, then. */
struct ps_sink *ps_sink_open(struct ps_engine *e, const struct ps_group *g, uint32_t pages);
/* The free list that the stash takes from. */
uint64_t ps_sink_list(const struct ps_sink *s);
/* So many copies lie there, behind the fence (NULL: at once); 0: nothing was stashed. Enqueues the copy to the host. */
void ps_sink_stashed(struct ps_engine *e, struct ps_sink *s, uint32_t n_copies,
                     struct ps_fence *stash);
/* Where a restore finds page 0 of the pool, as tables name it, and what it is to wait for (NULL: nothing). */
struct ps_fence *ps_sink_source(const struct ps_engine *e, const struct ps_sink *s,
                                uint64_t *pool_p, bool *on_host_p);
/* One copy less; its bytes were last used before the fence. NULL: that is over. */
void ps_sink_left(struct ps_engine *e, struct ps_sink *s, struct ps_fence *use);
/* Its stash was seen complete, and has stored so many pages in the stage. */
void ps_sink_used(struct ps_engine *e, struct ps_sink *s, uint64_t pages);
/* Nobody will know when its stash ends. */
void ps_sink_lost(struct ps_sink *s);
/* So many groups, PS_STAGES_MAX at most, return next, in this order: what is out of them is copied to stages. */
void ps_sinks_ahead(struct ps_engine *e, struct ps_group *const *g, uint32_t n);

#endif
