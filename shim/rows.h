/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that ranges count (policy/range_name.h). At a region's pop the counter is copied into a word of ours, in the
 * order of the group's stream; from then on the stash kernel knows how much of a front-packed tensor holds data.
 *
 * The job's word is not taken. Instances are looked at first: all of their memory is handed out with one of two fills,
 * and all of it is scanned. A site that several times held nothing of its own behind the rows after either fill is
 * trusted from then on, under a plan; one in 64 instances is looked at again. What the job writes there itself, zeros
 * too, is the same after both fills; then the site is scanned whole for good. `rows=all` in the range's name vouches
 * instead.
 *
 * A word belongs to one group, and to its copies until the device is done with them. Any thread; the engine's lock is
 * held, but where it says otherwise. Nothing here waits.
 */
#ifndef PS_SHIM_ROWS_H
#define PS_SHIM_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#include "policy/range_name.h"

struct ps_batch_item;
struct ps_copy;
struct ps_engine;
struct ps_group;
struct ps_rows; /* the words of one group; counted */
struct ps_rows_memory;
struct ps_site;
struct ps_tensor;
struct ps_thread;

/* What becomes of what lies behind the rows of a tensor, or of an instance's tensors. */
enum ps_row_mode {
    PS_ROW_MODE_NONE,    /* it is like the rest */
    PS_ROW_MODE_CHECK,   /* it is handed out with a fill, and looked at */
    PS_ROW_MODE_TRUSTED, /* neither */
};

/* A region's push: what the range says of its instance's rows. Lock not held. */
void ps_rows_named(struct ps_thread *th, uint32_t name, const char *range);
/* Memory for the words, when an instance counts its rows for the first time. Lock not held. */
void ps_rows_prepare(struct ps_engine *e, const struct ps_thread *th);
/* A group begins: its rows are counted if the counter lies in device memory now. */
void ps_rows_begin(struct ps_engine *e, struct ps_group *g, const struct ps_thread *th);
/* Sets the mode and layout of a tensor that is being made. */
void ps_rows_choose(struct ps_group *g, struct ps_site *site, uint64_t bytes, struct ps_tensor *t);
/* The word that the memory of its tensors is filled with when it is handed out. */
uint32_t ps_rows_fill(const struct ps_group *g);
/*
 * Of a tensor of the open group that the job's allocator serves, whose content may flow into others: from which byte on
 * it is filled, and with what. False: it need not be.
 */
bool ps_rows_left(const struct ps_group *g, size_t *from, uint32_t *word);
/* The group's instance is popped: the counter is copied, if the group's context is the current one. */
void ps_rows_pop(struct ps_group *g, CUcontext current);
/* The counter lies in memory of the engine's device that the driver knows, and that does not move. */
bool ps_rows_counter_lives(const struct ps_engine *e, const struct ps_row_counter *c);
struct ps_rows *ps_rows_ref(struct ps_rows *rows);
/* NULL is fine. */
void ps_rows_unref(struct ps_engine *e, struct ps_rows *rows);

/* A stash of the tensor is to be enqueued: the copy notes what is counted. */
void ps_rows_copy(const struct ps_tensor *t, struct ps_copy *c);
/* What of it the kernels need. */
void ps_rows_item(const struct ps_copy *c, struct ps_batch_item *item);
/* Where the stash kernel notes what lies behind rows; 0: no rows are counted. */
uint64_t ps_rows_outcomes(const struct ps_engine *e);
/* Before the stash of a group, on its stream: the host wants to know the count too. */
void ps_rows_tell(struct ps_engine *e, const struct ps_group *g);
/* The stash was seen complete, and left this ledger word: pages that were dead. Judges the site. */
uint32_t ps_rows_settle(const struct ps_engine *e, const struct ps_copy *c, uint64_t ledger);

/* Lock not held; nobody uses them any more. gone: the context no longer exists. */
void ps_rows_fini(struct ps_engine *e, bool gone);

#endif
