/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's own structures, shared by engine*.c, memory.c, pagepool.c and observe.c. One engine a context.
 *
 * One lock, ps_lock, guards everything here, the window and the fences; one condition, ps_moved, tells that a tensor
 * left PS_MOVING. (Whether an address names any tensor is told without it: window.h.) The lock is held across our own
 * enqueues (record, wait, launch, fill), so that nobody sees a half-made transition, and never across the job's call
 * nor a call of ours that allocates, maps, loads or waits: a tensor that such a call is about is PS_MOVING meanwhile
 * and belongs to the thread that set that.
 */
#ifndef PS_SHIM_ENGINE_INT_H
#define PS_SHIM_ENGINE_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/kernels.h"
#include "policy/budget.h"
#include "policy/group.h"
#include "policy/ranges.h"
#include "policy/region.h"
#include "policy/sites.h"
#include "policy/sizes.h"
#include "shim/demand.h"
#include "shim/driver.h"
#include "shim/engine.h"
#include "shim/engine_plan.h"
#include "shim/fence.h"
#include "shim/observe.h"
#include "shim/places.h"
#include "shim/rows.h"
#include "shim/sinks.h"
#include "shim/window.h"

#define PS_FOREIGN_MAX 4    /* streams beside its own that a group may be named on and still move */
#define PS_PEERS_MAX   32   /* devices that may read our memory */
#define PS_COPIES_MAX  8192 /* stashed tensors at one time: ledger words */
#define PS_REGION_NAMES_MAX                                                                        \
    256 /* different matching names; more share the last number, which merges their sites */

/* A call that failed is tried once more. True when it worked. */
#define PS_TWICE(_call) ((_call) == CUDA_SUCCESS || (_call) == CUDA_SUCCESS)

/* A piece of physical memory: a power of two of granules. */
struct ps_chunk {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    struct ps_chunk *next;
    struct ps_fence *ready[2]; /* in a free list: what its last user's end is behind */
    unsigned size_class;
};

/* The stored content of a tensor: page table, ledger word, and the fences it is between. */
struct ps_copy {
    struct ps_copy *next;
    struct ps_site *site;
    struct ps_seg_id seg;       /* of the tensor */
    uint32_t traced;            /* the tensor's number in the trace */
    uint64_t bytes, home_bytes; /* of the tensor: what is behind home_bytes is stored */
    uint64_t table;             /* device address of its page table */
    uint64_t entry;             /* first entry in the table arena */
    uint32_t n_pages;
    uint32_t stored;  /* pages taken from the pool; valid once settled */
    uint32_t spilled; /* of those, in host memory */
    uint32_t uniform;
    uint16_t ledger; /* number of its ledger word and counters */
    uint16_t seq;
    struct ps_rows *rows; /* NULL: none are counted */
    struct ps_row_layout row_layout;
    bool trusted;             /* pages behind the rows are dead; */
    bool row_fill;            /* if not: which fill it was handed out with */
    struct ps_sink *sink;     /* whose stage its pages are of; NULL: the pool's */
    uint32_t reserved;        /* pages of the pool, until it is settled, */
    uint32_t held;            /* and then */
    bool settled;             /* the host has read the ledger */
    bool dropping;            /* its drop is enqueued */
    struct ps_fence *stash;   /* behind the stash */
    struct ps_fence *dropped; /* behind the drop */
};

struct ps_tensor {
    struct ps_engine *engine;
    struct ps_group *group; /* NULL once dead */
    struct ps_site *site;
    struct ps_seg_id seg;
    struct ps_tensor *prev, *next;         /* in the group's list */
    struct ps_tensor *lru_prev, *lru_next; /* in the engine's dead or cached list, oldest first */
    struct ps_slot slot;
    struct ps_place *place; /* planned; NULL: memory of its own */
    uint64_t home_bytes;    /* of the front: never copied */
    uint64_t bytes;         /* as the job asked */
    uint64_t serial;        /* unique for the process */
    uint64_t stuck;         /* out, and so many bytes from its base could not be unmapped */
    uint32_t n_chunks[PS_N_CLASSES];
    struct ps_chunk *chunks; /* in address order; NULL when out */
    struct ps_copy *copy;    /* cached or out */
    struct ps_fence
        *arrived; /* behind the copy that brought it in: a use on another stream waits for it */
    struct ps_fence *ready[2]; /* dead: what the memory's last users' end is behind */
    struct ps_row_layout row_layout;
    enum ps_row_mode row_mode;
    enum ps_residency state;
    uint32_t pins;        /* calls of the job in flight that name it */
    uint32_t n_unplanned; /* times it was brought back on its own */
    bool pinned;          /* stays until freed */
    bool freed;           /* the job freed it while pins > 0 */
    bool was_out;         /* has been stashed */
    bool seen;            /* named after it had been stashed */
    bool foreign;         /* named on a stream other than the group's */
    bool read_on;         /* by a stash of which nobody knows when it ends */
    bool flags_known;     /* the slot's were right, for all of the tail, when it came in */
    bool late;            /* named between its instance's pop and the next boundary */
    bool runs_on; /* out, and a restore whose end nobody knows may yet write what is mapped there */
};

struct ps_group {
    struct ps_engine *engine;     /* NULL once its context is gone */
    struct ps_group *prev, *next; /* in the engine's list, oldest first */
    struct ps_tensor *tensors;
    uint64_t serial;
    uint64_t thread;
    uint32_t name;
    uint32_t n_foreign;
    CUstream stream; /* of its first allocation */
    uint64_t stream_key;
    struct ps_range_rows named; /* its range says where rows are counted; all zero: it does not */
    struct ps_rows *rows;       /* what was counted at its pop; NULL: nothing */
    enum ps_row_mode row_mode;
    bool rows_only;           /* behind the rows nothing of its region is looked at */
    bool rows_scanned;        /* something of it will be */
    bool row_fill;            /* which fill, if it is looked at */
    struct ps_place_set *set; /* planned */
    struct ps_seg_id seg;     /* its step and its position there */
    bool told;                /* its return was recorded */
    bool came;                /* backward has come to it */
    bool set_refused;         /* there was none for it */
    bool stays;               /* the plan keeps it in */
    bool prefetched;          /* brought in ahead of its first touch, and not touched since */
    bool open;
    bool returned;   /* backward is using it: stays until freed */
    bool kept;       /* could not leave when it was to, and has not since */
    bool full;       /* left, held no padding and was taken back: stays unless memory runs out */
    bool crowded;    /* named on more streams than we follow */
    bool record_due; /* named on its stream since home was recorded */
    bool followed;   /* named where records are made at once, since the last boundary */
    struct ps_fence *home; /* behind its last use on its own stream */
    struct ps_fence *foreign[PS_FOREIGN_MAX];
};

/* One group's stash on its way. */
struct ps_flight {
    struct ps_flight *next;
    struct ps_fence *fence;
    uint64_t stream_key;  /* of the group */
    struct ps_sink *sink; /* where it goes; NULL: pages of the pool */
    uint64_t overflow;    /* to a sink: pages of the pool reserved for all together */
    uint32_t n;
    struct ps_copy *copy[PS_BATCH_MAX];
};

/* A mapping that goes once its fences are done. */
struct ps_unmap {
    struct ps_unmap *next;
    struct ps_slot slot;
    struct ps_fence *ready[2];
    bool failed; /* the driver has refused */
};

struct ps_pool_piece {
    struct ps_pool_piece *next;
    CUmemGenericAllocationHandle handle;
    uint64_t base, bytes;
};

/* A piece of pinned host memory. */
struct ps_host_piece {
    struct ps_host_piece *next;
    void *base;
    uint64_t bytes;
};

/* The pool's part in host memory (hostpages.c). */
struct ps_host_pages {
    uint64_t budget;            /* bytes that may be pinned: whole pieces */
    uint64_t room;              /* bytes that the list has slots for; 0: not known yet */
    uint64_t piece_bytes;       /* a power of two */
    uint64_t want;              /* bytes that shall be pinned */
    uint64_t pinned;            /* bytes of `ready` and `pieces` */
    uint64_t entered;           /* bytes of `pieces` */
    struct ps_pool_piece *ring; /* device memory of the free list and of the pieces' addresses */
    struct ps_host_piece *ready, **ready_end; /* not in the free list yet */
    struct ps_host_piece *pieces;             /* in the free list */
    struct ps_host_piece *unwanted;           /* to be unpinned */
    struct ps_host_piece *sinks;              /* for a plan, each of sink_bytes, */
    uint32_t n_sinks, want_sinks;             /* with those in use, and as many as shall be */
    uint64_t sink_bytes;
    bool running; /* the thread is there */
    uint32_t
        n_pauses; /* its context may be about to end: it shall end, and none shall begin meanwhile */
    bool stop;    /* the same for good */
    bool failed;  /* no more can be had: what there is serves */
    bool refused; /* the free list could not be changed: nothing enters any more */
};

/* The page pool, its free list, page tables, ledger (pagepool.c). */
struct ps_page_pool {
    uint32_t page_bytes;
    uint32_t least_page;  /* what the sizes below are for */
    uint64_t most_device; /* bytes of device pages; PS_NO_LIMIT */
    uint64_t base, room;  /* reserved addresses */
    uint64_t mapped;      /* bytes of it backed, from the front */
    uint64_t staged;      /* bytes at its end that stages have (sinks.c) */
    uint64_t grow_unit;
    struct ps_pool_piece *pieces;       /* of pages */
    struct ps_pool_piece *table_pieces; /* of page tables: never given back before the end */
    uint64_t arena, arena_bytes;        /* device memory of free list, slots and counters */
    CUmemGenericAllocationHandle arena_handle;
    uint64_t list, counts; /* device addresses in it */
    uint64_t nowhere;      /* a list of which nothing is taken: what is given to it is forgotten */
    uint64_t want_device;  /* bytes that shall be backed */
    struct ps_host_pages host;
    uint64_t host_list;   /* free list of host pages; 0: there are none */
    uint64_t host_pieces; /* device address of their pieces' addresses */
    uint32_t host_shift;  /* log2 of the pages of a piece */
    uint64_t
        tables; /* reserved addresses of page tables, backed from the front as they are needed */
    uint64_t tables_room, tables_mapped; /* bytes */
    struct ps_ranges entries;            /* of the backed part */
    uint64_t *ledger;                    /* pinned host memory */
    uint64_t ledger_device;              /* the same, as the device sees it */
    struct ps_ranges ledger_free;
    uint16_t seq;
    struct ps_budget budget;
    bool growing;
    bool
        spilling; /* so much of the last stash seen complete went to host memory that the link tells */
    bool loose;  /* a drop is on its way that `pushed` is not behind */
    bool broken; /* the free list is not as we think: nothing more is given or taken */
    struct ps_fence
        *pushed; /* behind the last drop or grow: the list's tail is moved in this order */
    struct ps_copy *drops, **drops_end; /* enqueued, not yet seen complete */
};

struct ps_engine {
    struct ps_engine *next;
    CUcontext ctx;
    CUdevice device;
    enum { PS_ENGINE_MAKING, PS_ENGINE_READY, PS_ENGINE_BROKEN } state;
    uint64_t granularity;
    bool primary;            /* the device's primary context */
    bool rdma;               /* memory is made fit for GPUDirect RDMA */
    bool compressible;       /* the device can keep memory compressed, and lanes shall be */
    CUstream stash_stream;   /* low priority */
    CUstream drop_stream;    /* low priority; no job stream ever waits for it */
    CUstream restore_stream; /* high priority; restores that no stream of the job can carry */
    CUstream ahead_stream;   /* high priority; restores ahead of the first touch */
    struct ps_carrier stashes, ahead; /* stash_stream, ahead_stream */
    struct ps_kernels kernels;
    struct ps_fences fences;
    struct ps_page_pool pool;
    struct ps_chunk *free_chunks[PS_N_CLASSES];
    uint64_t chunk_bytes;                   /* all chunks that exist */
    uint64_t live_bytes;                    /* of tensors the job holds */
    struct ps_tensor *dead, *dead_last;     /* freed, still mapped */
    struct ps_tensor *cached, *cached_last; /* stashed, place intact */
    struct ps_group *groups, *groups_last;
    struct ps_flight *flights, **flights_end;
    struct ps_unmap *unmaps;
    struct ps_sites sites;
    struct ps_places *places;      /* NULL: no plan is in force */
    struct ps_sinks_memory *sinks; /* NULL: none, or one that sends nothing to the host by copies */
    struct ps_demand_memory *demand; /* NULL: no range has told of its needs yet */
    bool demand_tried;               /* to make it */
    struct ps_rows_memory *rows;     /* NULL: no range has counted its rows yet */
    bool rows_tried;                 /* to make it */
    struct ps_learner learner;
    CUdevice peer[PS_PEERS_MAX];
    _Atomic uint32_t n_peers; /* grows under the lock; read without it while mapping */
    uint32_t n_trims;         /* times memory was given back after learning */
    bool learned;             /* something was learned of a site since the last of them */
    bool ended;               /* paging has ended: everything was brought back */
    uint32_t n_ending;        /* calls of the job in flight that may end the context */
    uint32_t n_guests;        /* calls of the job in other contexts that are in this one */
    bool stalled;             /* the last throttle ran into its limit */
    struct ps_gain gain;      /* none: later groups stay until an allocation fails */
    bool
        short_of_memory; /* an allocation has failed, or a plan was too large: plans keep to what the device has */
};

struct ps_thread {
    uint64_t number;
    struct ps_region_stack stack;
    struct ps_group
        *group; /* of the open instance, once it has a tensor; holds no count: see ps_group.open */
    uint32_t name;             /* of the instance's region */
    CUstream stream;           /* of the instance's last allocation, of any size */
    uint64_t streams_ended;    /* by then; 0: there was none */
    uint64_t asked;            /* bytes of the allocation that makes the context's engine */
    struct ps_range_rows rows; /* what the instance's range says of its rows */
    uint32_t ordinal;          /* of the next allocation of the instance */
    uint32_t
        left_parts; /* the last allocation was left to the driver, which is to be filled from there; 0: not */
    struct ps_seg_id seg;         /* of the instance, for the segmenter of seg_engine */
    struct ps_engine *seg_engine; /* never freed */
};

extern pthread_mutex_t ps_lock;
extern pthread_cond_t ps_moved;

/* ---- engine.c ---- */
/* What every entry does first and last: errno, capture mode, current context. */
struct ps_guard {
    int saved_errno;
    CUstreamCaptureMode mode;
    CUcontext current; /* as the job has it; NULL when none */
    CUcontext pushed;  /* current in its place; NULL: none */
    bool relaxed;      /* mode holds the job's */
    CUresult refused;  /* why it is not; then a move may be refused for the capture alone */
};
void ps_guard_enter(struct ps_guard *g);
void ps_guard_leave(struct ps_guard *g);
/* Makes the engine's context current until ps_guard_leave, or until another engine's is made so. */
void ps_guard_context(struct ps_guard *g, const struct ps_engine *e);
/* The job's context is current again. */
void ps_guard_home(struct ps_guard *g);

/*
 * Around calls of ours into another context than the job's thread is in: none may use one that is being destroyed.
 * Waits until that is over. False: the context is gone or goes, with whatever is in it; then nobody is to leave.
 * Lock held; let go in a wait.
 */
bool ps_engine_visit(struct ps_engine *e);
void ps_engine_left(struct ps_engine *e);

struct ps_thread *ps_thread_self(void); /* NULL when host memory is exhausted */
uint64_t ps_thread_number(void);
/* The context's engine, if it is ready. Lock held. */
struct ps_engine *ps_engine_find(CUcontext ctx);
struct ps_engine *ps_engines(void);
/* The current context's engine, made when it is new; NULL when it cannot be. Lock not held. */
struct ps_engine *ps_engine_make(CUcontext ctx);
/* Reads what the device has told: settles stashes, ends drops. Lock held. */
void ps_engine_poll(struct ps_engine *e);
/* Undoes mappings whose fences are done. Lock not held. */
void ps_engine_reap(struct ps_engine *e);
enum ps_capture { PS_CAPTURE_NO, PS_CAPTURE_YES, PS_CAPTURE_UNKNOWN };
enum ps_capture ps_stream_capture(CUstream stream);
/* True also when the driver does not say. */
static inline bool ps_stream_capturing(CUstream stream)
{
    return ps_stream_capture(stream) != PS_CAPTURE_NO;
}
/* How many streams the job has destroyed, plus one: while it is the same, a stream that was one is one. */
uint64_t ps_streams_ended(void);
/* The job has blocking streams: then a record in the legacy stream is a barrier for them. */
bool ps_streams_blocking(void);
/* A stash of the group was seen complete. Lock held. Frees the flight. */
void ps_flight_end(struct ps_engine *e, struct ps_flight *fl);

/* ---- memory.c: chunks and places ---- */
struct ps_take {
    struct ps_chunk *got; /* any order */
    uint32_t create[PS_N_CLASSES];
    struct ps_tensor *victims; /* PS_MOVING by this thread, to be unmapped; linked by lru_next */
};
/* Chooses memory for n[] chunks that `stream_key` may use at once. keep_reserve leaves what the largest group needs.
 * Lock held. */
void ps_memory_take(struct ps_engine *e, const uint32_t n[PS_N_CLASSES], uint64_t stream_key,
                    bool keep_reserve, struct ps_take *take_p);
/* Idle chunks of each class beyond what restoring the largest group takes. Lock held. */
void ps_memory_count_spare(const struct ps_engine *e, uint32_t n_p[PS_N_CLASSES]);
/* Unmaps victims, makes what lacks, maps all at the tensor's addresses. On failure the take is undone.
 * Lock not held. */
CUresult ps_memory_build(struct ps_engine *e, struct ps_tensor *t, struct ps_take *take);
/* A live tensor's place becomes free memory once `ready` is done; the tensor's addresses are unmapped then.
 * Lock held. */
void ps_memory_break_dead(struct ps_engine *e, struct ps_tensor *t);
/* Releases memory nobody needs, less the reserve. Returns the bytes. Lock not held. */
uint64_t ps_memory_release_idle(struct ps_engine *e);
/* The same, but for what the plan in force counts on. */
uint64_t ps_memory_sweep(struct ps_engine *e);
/* Gives the job's own pool's unused memory back to the device. Lock not held. */
void ps_memory_trim_pool(const struct ps_engine *e);
/* The chunks of a tensor whose addresses have just been unmapped become free. Lock held. */
void ps_memory_take_back(struct ps_engine *e, struct ps_tensor *t);
/* What all our device memory is. */
void ps_memory_describe(const struct ps_engine *e, CUmemAllocationProp *prop);
CUresult ps_memory_create(struct ps_engine *e, uint64_t bytes,
                          CUmemGenericAllocationHandle *handle_p);
/* The same, compressible if the device can, no peer reads it, and it stays as fit for RDMA as all else. */
CUresult ps_memory_create_compressible(struct ps_engine *e, uint64_t bytes,
                                       CUmemGenericAllocationHandle *handle_p,
                                       bool *compressible_p);
/* Once more if it fails; counts and says so. */
CUresult ps_memory_unmap(uint64_t base, uint64_t bytes);
/* The same for the first bytes of a tensor's place; notes what is stuck. */
CUresult ps_memory_unmap_tensor(struct ps_tensor *t, uint64_t bytes);
CUresult ps_memory_access(const struct ps_engine *e, uint64_t base, uint64_t bytes);

/* Counts a mapping call: one that a touch nobody foresaw makes necessary is a remap. Lock not needed. */
void ps_count_map(void);
/* What this thread maps from here on is, or is not, for such a touch. */
bool ps_mapping_unplanned(bool is); /* returns what it was */
/*
 * Bytes that move of a tensor of `bytes`: what its home does not hold. A planned tail moves with all of its slot, so
 * that what lies behind its end stays uniform and its own.
 */
static inline uint64_t ps_tensor_tail(const struct ps_tensor *t, uint64_t bytes)
{
    const uint64_t whole = (bytes + 15) / 16 * 16;
    if (whole <= t->home_bytes) {
        return 0;
    }
    return t->place != NULL && t->place->tail != NULL ? t->place->tail->bytes
                                                      : whole - t->home_bytes;
}

void ps_list_append(struct ps_tensor **first, struct ps_tensor **last, struct ps_tensor *t);
void ps_list_remove(struct ps_tensor **first, struct ps_tensor **last, struct ps_tensor *t);

/* ---- engine_region.c ---- */
/* A region's name, by its number. Lock held. */
const char *ps_region_name(uint32_t number);

/* ---- engine_release.c ---- */
/* Waits until what was freed is idle. Lock held; let go and taken again. */
bool ps_engine_await_idle(struct ps_engine *e);
/* Gives unused memory back to the device; the bytes. Lock not held. */
uint64_t ps_engine_release_unused(struct ps_engine *e);

/* ---- engine_squeeze.c ---- */
/*
 * No plan is in force and a call of the job has run out of memory: device pages go to the host, and so do groups that
 * stayed for want of pages, as far as the host has room. Waits. Lock held; let go and taken again.
 */
void ps_engine_squeeze(struct ps_engine *e);

/* ---- pagepool.c ---- */
/*
 * Does the link take longer for what is on the host than the few blocks of the host's shape do for looking at all
 * pages? They scan and fill about 0.1 TB/s, and the link takes 0.05 (H200: docs/benchmarks/README.md).
 */
static inline bool ps_mostly_host(uint64_t spilled, uint64_t pages)
{
    return 2 * spilled > pages;
}
enum ps_status PS_MUST_CHECK ps_pool_init(struct ps_engine *e);
void ps_pool_fini(struct ps_engine *e);
/* Grows so that `pages` are certain, if the device has room and no push is on its way elsewhere.
 * Lock held; let go and taken again. */
void ps_pool_ensure(struct ps_engine *e, uint64_t pages);
/* Gives all device pages' memory back when nothing is out, and the host pages' too if nobody wants them any more.
 * Lock held; let go and taken again. */
void ps_pool_shrink(struct ps_engine *e);
/*
 * Host pages are asked for once the device is nearly full: while there is room for their list, which is device memory.
 * Lock held.
 */
void ps_pool_stand_by(struct ps_engine *e, uint64_t pages);
/* No device page is in use: all their memory goes. Lock held; let go and taken again. */
void ps_pool_release_device(struct ps_engine *e);
/* Is this device memory of the pool itself? Lock held. */
bool ps_pool_holds(const struct ps_engine *e, uint64_t address);
/* Room in page tables for so many pages in all, if it can be had. Lock held; let go and taken again. */
void ps_pool_tables(struct ps_engine *e, uint64_t pages);
/*
 * The pool shall have so many bytes of device pages and of host pages, of the latter no more than the budget allows.
 * Only asks: a thread of ours begins to pin the host's part; ps_pool_ready and ps_pool_ensure back the device's.
 * Lock held.
 */
void ps_pool_want(struct ps_engine *e, uint64_t device_bytes, uint64_t host_bytes);
/*
 * Pages are so large from here on, or as large as the pool allows. True: they are. False: something is out yet, or
 * memory is held. Lock held; let go and taken again.
 */
bool ps_pool_set_page(struct ps_engine *e, uint64_t page_bytes);
/* How many bytes of host pages can be had at most. */
uint64_t ps_pool_host_most(const struct ps_engine *e);
/* True when all that was wanted is there, or as much as can be had. Lock held; let go and taken again. */
bool ps_pool_ready(struct ps_engine *e);
/* Nothing is wanted any more: shrinks, now or when ps_pool_shrink is called next with nothing out. Lock held; let go
 * and taken again. */
void ps_pool_unwant(struct ps_engine *e);
/* Device pages are limited by the settings only, no more by a plan. */
void ps_pool_unlimit(struct ps_engine *e);
uint32_t ps_pool_pages(const struct ps_page_pool *p, uint64_t bytes);
/* Pages that a stash may need and be certain to find, in device or host memory. Lock held. */
uint64_t ps_pool_available(const struct ps_engine *e);
/* A batch without items. */
void ps_pool_batch(const struct ps_engine *e, struct ps_batch *b);
/* Of them, pages of host memory, in the worst case. Lock held. */
uint64_t ps_pool_available_host(const struct ps_engine *e);
void ps_pool_poll(struct ps_engine *e);
/* Behind all that the drop stream was given; from here on the next change of the list's tail waits for it. */
struct ps_fence *ps_pool_push(struct ps_engine *e, CUresult *r_p);

/* ---- copies.c ---- */
/*
 * Reserves a place in the pool for so many of its pages, device pages first. NULL: they are not certain, or no table
 * room, no ledger word or no host memory. Lock held.
 */
struct ps_copy *ps_copy_make(struct ps_engine *e, uint32_t n_pages, uint32_t reserved);
/* Also of a copy that was never stashed: what it reserved is free again. Lock held. */
void ps_copy_free(struct ps_engine *e, struct ps_copy *c);
/* The copy holds, or is to hold, [base, base + bytes); its flags, if any, are the caller's to set. */
void ps_copy_item(const struct ps_engine *e, const struct ps_copy *c, uint64_t base, uint64_t bytes,
                  struct ps_batch_item *item_p);
/* Reads the ledger of a copy whose stash fence is done. Lock held. */
void ps_copy_settle(struct ps_engine *e, struct ps_copy *c);
/* The same for copies to a sink; before each of them is settled. */
void ps_flight_settle(struct ps_engine *e, const struct ps_flight *fl);
/* Enqueues the return of the pages of tensors' copies, behind `after` (may be NULL); the tensors lose them.
 * Lock held. */
CUresult ps_copies_drop(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n,
                        struct ps_fence *after);

/* For hostpages.c. */
/* Backs reserved addresses. Lock not held. */
struct ps_pool_piece *ps_pool_map(struct ps_engine *e, uint64_t base, uint64_t bytes);
void ps_pool_unmap(struct ps_pool_piece *piece);
CUresult ps_pool_poke(uint64_t address, uint64_t value, CUstream stream);
/* The lists may be changed on the stash stream now. Lock held. */
bool ps_pool_may_change(const struct ps_engine *e);
/* Enters pages into a free list, before any later stash. Lock held. */
bool ps_pool_enter(struct ps_engine *e, uint64_t list, uint32_t first, uint32_t count);

/* ---- hostpages.c ---- */
/* After the page size is known. */
void ps_host_init(struct ps_engine *e, uint64_t device_bytes);
void ps_host_want(struct ps_engine *e, uint64_t bytes);
/* The device has reached its limit: so many bytes more, if no others are on their way. Lock held. */
void ps_host_want_more(struct ps_engine *e, uint64_t bytes);
/* So many pieces of this size shall be there for sinks, those in use counted; 0: those that are not go. Lock held. */
void ps_host_want_sinks(struct ps_engine *e, uint32_t n, uint64_t bytes);
/* One of them; NULL: there is none, or of another size. Lock held. */
struct ps_host_piece *ps_host_take_sink(struct ps_engine *e, uint64_t bytes);
/* NULL: it is lost, and stays pinned. */
void ps_host_give_sink(struct ps_engine *e, struct ps_host_piece *piece);
/* All that is wanted is there, what pages are in the free list, or no more will come. Lock held. */
bool ps_host_settled(const struct ps_engine *e);
/* What was pinned since goes into the free list, if it may change now. Lock held. */
void ps_host_enter(struct ps_engine *e);
/* Nothing is out: what nobody wants any more is given back. Lock held. */
void ps_host_give_back(struct ps_engine *e);
/* Nothing is held, nor wanted. Lock held. */
bool ps_host_unused(const struct ps_engine *e);
/* Waits until the thread is gone; there will be none until ps_host_resume. Lock not held. */
void ps_host_pause(struct ps_engine *e);
/* Lock held. */
void ps_host_resume(struct ps_engine *e);
/* gone: the context no longer exists. Lock not held. */
void ps_host_fini(struct ps_engine *e, bool gone);

/* ---- engine_move.c ---- */
/* At its pop: what of the group is not usually named behind it leaves, if there is room. */
void ps_move_out_early(struct ps_engine *e, struct ps_group *g);
/* Stashes what may leave at a boundary of this thread. Lock held; let go and taken again. */
void ps_move_out(struct ps_engine *e, uint64_t thread);
/* What moves of a tensor: all but its home. */
void ps_tail_item(const struct ps_engine *e, const struct ps_tensor *t, const struct ps_copy *c,
                  struct ps_batch_item *item_p);
/* A group that is in the way of another leaves at once, if it may. Lock held. */
void ps_move_group_out(struct ps_engine *e, struct ps_group *g);
/* Backward has come to another group: those that the plan does not keep leave, as far as they may. Lock held; let go
 * and taken again. */
void ps_move_out_marked(struct ps_engine *e);

/* ---- engine_return.c ---- */
/* Brings tensors (PS_OUT, at most PS_BATCH_MAX) back in the order of `stream`. Lock held; let go and taken again. */
CUresult ps_move_in(struct ps_engine *e, struct ps_tensor *const *t, uint32_t n, CUstream stream);
/* Takes a cached tensor's place back, unless the driver refuses to order that: then it stays cached. Lock held. */
CUresult ps_move_back(struct ps_engine *e, struct ps_tensor *t, CUstream stream);

/* A stream of ours, which waits for nothing but what the job's had before. */
static inline bool ps_stream_ours(const struct ps_engine *e, uint64_t key)
{
    return key == ps_stream_key(e->ctx, e->stash_stream) ||
           key == ps_stream_key(e->ctx, e->restore_stream) ||
           key == ps_stream_key(e->ctx, e->ahead_stream);
}
/* Brings all of a group that is out in ahead of its first touch, if its places are vacant. Lock held; let go and taken
 * again. */
void ps_prefetch(struct ps_engine *e, struct ps_group *g);

/* Polls, so that a GPU that itself waits for this thread cannot hang the job. Lock not held. */
CUresult ps_wait_bounded(CUevent event);

/* ---- engine_touch.c ---- */
/* Work that uses the tensor has been enqueued on the stream, which belongs to ctx. Lock held. */
void ps_group_touched(struct ps_tensor *t, CUcontext ctx, CUstream stream);
/* Is anything to be recorded on this stream at the next boundary? stays: it cannot be, so it stays. Lock held. */
bool ps_group_due(struct ps_engine *e, CUstream stream, bool stays);
/* Records now what was to be recorded at the next boundary on this stream. Lock held. */
void ps_group_flush(struct ps_engine *e, CUstream stream);
/* At a boundary of the thread: what its groups were named for has been launched. Lock held. */
void ps_follow_end(uint64_t thread);

/* ---- engine_release.c ---- */
/*
 * Between steps, while sites are still being learned: what the steps before held too much of goes back to the device.
 * Waits for freed memory to be idle; only then. Lock not held.
 */
void ps_engine_settle_down(struct ps_engine *e);

/* ---- engine_alloc.c ---- */
/* The last step of a free, when nothing names the tensor any more. Lock held. */
void ps_tensor_die(struct ps_tensor *t);
void ps_group_close(struct ps_group *g);

#endif
