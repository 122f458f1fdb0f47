/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the embedded stash kernels into the current context and launches them through a driver
 * table. No state of its own beyond struct ps_kernels; callers serialise load and unload, launches
 * may come from any thread with the context current. All launches are asynchronous on the given
 * stream; the kernels read the batch by value, so it may be reused at once. A batch without items
 * launches nothing.
 */
#ifndef PS_KERNELS_KERNELS_H
#define PS_KERNELS_KERNELS_H

#include "kernels/driver.h"
#include "kernels/layout.h"

/* How a stash or restore is launched: blocks of one warp, each with a ring of chunks in shared memory. */
struct ps_shape {
    uint32_t n_blocks; /* at most; 0: as many as there are units */
    /* Powers of two. What a block moves at a time: a page at most, and a 32nd of one at least. */
    uint32_t unit_bytes;
    uint32_t chunk_bytes; /* loaded at once; a unit at most */
    /* Chunks of the ring, PS_RING_MAX bytes at most: 2 to PS_CHUNKS_MAX; one of them is being stored. */
    uint32_t n_slots;
};

struct ps_shapes {
    struct ps_shape fast;  /* the job waits for it */
    struct ps_shape small; /* the same, for what cannot fill the device in units of `fast` */
    struct ps_shape quiet; /* beside the job's own kernels */
    struct ps_shape host;  /* for pages in host memory: no more blocks than the link needs */
};

struct ps_kernels {
    CUmodule module;
    CUfunction stash, restore, drop, grow, clean, shift;
    unsigned n_multiprocessors;
    struct ps_shapes out, in;            /* of a stash, of a restore */
    struct ps_shape shift_out, shift_in; /* units are no matter */
};

/* PS_HOST: most of its pages lie in host memory, or will. */
enum ps_pace { PS_FAST, PS_QUIET, PS_HOST };

/*
 * Loads the module (fatbin of sm_80, sm_90, sm_100 and PTX), looks the functions up and has them
 * loaded now. May allocate and wait: not for a capture, nor under a lock. On failure nothing stays
 * loaded and *k is as it was.
 */
CUresult ps_kernels_load(const struct ps_driver *drv, struct ps_kernels *k);
void ps_kernels_unload(const struct ps_driver *drv, struct ps_kernels *k);

/*
 * Scans each page; stores non-uniform ones into pages taken from the free lists; fills the tables;
 * writes each item's ledger word. Sets each page's flag, if there are flags: 0 when it is all zero,
 * else 1. Where rows are counted (layout.h): a dead page is not touched, and its flag is 1; and
 * PS_LEDGER_BEYOND is told. Without host pages, so many pages as the batch has must be free.
 */
CUresult ps_kernels_stash(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                          const struct ps_batch *b, enum ps_pace pace);
/*
 * Writes every page back to `data`, but for dead ones, and those that are zero and, with
 * PS_ITEM_KNOWN, flagged 0. Flags what is not zero then; with PS_ITEM_KNOWN no flag is lowered. Does
 * not give pages back.
 */
CUresult ps_kernels_restore(const struct ps_driver *drv, const struct ps_kernels *k,
                            CUstream stream, const struct ps_batch *b, enum ps_pace pace);
/*
 * Gives the pages of the tables back to the free lists; the tables are left as they are. Must be
 * ordered after every stash and restore of these items and all earlier drop and grow.
 */
CUresult ps_kernels_drop(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                         const struct ps_batch *b);
/*
 * Fills the pages whose flag is not 0 with zeros, and clears the flag; neither reads nor writes other
 * pages. An item without flags is only handed over, as it is. Stands for a fill of the whole of each
 * item: must be ordered like one, and says to whoever watches that the memory is its address's now.
 */
CUresult ps_kernels_clean(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                          const struct ps_batch *b);
/* Ordered behind what gives the number and the pages; by few blocks. The ring need not be given. */
CUresult ps_kernels_shift(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                          const struct ps_shift *s);
/* Appends page numbers [first, first + count) to a free list, either one. Ordered like drop. */
CUresult ps_kernels_grow(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                         uint64_t free_list, uint32_t first, uint32_t count);

#endif
