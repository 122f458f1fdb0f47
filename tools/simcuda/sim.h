/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda, a software CUDA driver: what its files share.
 *
 * One big lock (sim_lock) guards every structure declared here. Each cu* entry point takes it in sim_enter and
 * gives it up in sim_leave; it is released only while a thread waits, and around host callbacks. So whatever
 * thread is inside a cu* call may execute queued device work, and device work never runs concurrently with
 * another piece of device work: concurrency is expressed by the order in which sched.c lets operations step.
 *
 * An operation is ready when its predecessor in its stream is done, all its dependencies are done and its
 * condition (a wait on a value) holds. Ready operations are executed a step at a time: one step of a kernel is a
 * number of its blocks, of anything else the whole operation.
 */
#ifndef SIMCUDA_SIM_H
#define SIMCUDA_SIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The driver's functions are what this object exports; everything else in it is hidden. */
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include "kernels/simkernel.h"

#define SIM_PAGE 4096u /* physical and virtual bookkeeping unit; granularity is a multiple of it */
#define SIM_API  __attribute__((visibility("default")))

/* ---- options.c: read once, before the first entry; read-only afterwards ---- */
struct sim_fail_rule; /* one fail=... item */
struct sim_options {
    uint64_t mem;         /* bytes of device memory of each device */
    uint64_t others;      /* of those, what another process holds */
    uint64_t granularity; /* of cuMemCreate/cuMemMap: a power of two >= SIM_PAGE */
    uint64_t va;          /* bytes of device addresses */
    uint64_t seed;
    int devices;
    int version;     /* what cuDriverGetVersion tells */
    bool vmm;        /* virtual memory management is supported */
    unsigned eager;  /* at most this many steps of device work at an ordinary entry; 0 = none */
    bool check;      /* happens-before checker */
    bool check_exit; /* _exit(87) at the end of the process when the checker reported something */
    int numa;        /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID */
    unsigned pin_ms; /* that cuMemHostRegister takes, at least; without the lock */
    unsigned hang_s; /* seconds without any progress after which a wait is called a deadlock */
    const char *log; /* file, or NULL: stderr */
    const char **
        after_all; /* names of operations that wait for all streams of their context; ends with NULL */
};
extern struct sim_options sim_options;

/* ---- threads (thread.c) ---- */
struct sim_ctx;
struct sim_hb_clock; /* access.c's own; NULL when the checker is off */

#define SIM_CTX_STACK 32
struct sim_thread {
    uint32_t id; /* from 1, in the order of first entry; not reused */
    struct sim_thread *next;
    struct sim_ctx *stack[SIM_CTX_STACK];
    unsigned n_stack;
    CUstreamCaptureMode capture_mode;
    bool ptds;        /* inside the per-thread-default-stream variant of an entry point */
    bool in_callback; /* running a host callback: no entry point may be called */
    const char
        *waiting; /* what the thread is blocked for in the simulator, or last asked for, or NULL */
    struct sim_hb_clock *clock; /* access.c */
    void *sched;                /* sched.c */
};
/* The calling thread; created on first use. Needs the lock. */
struct sim_thread *sim_thread_self(void);
/* All live threads, linked by next. */
extern struct sim_thread *sim_threads;

/* ---- streams and operations (stream.c, op.c) ---- */
enum sim_stream_kind { SIM_STREAM_LEGACY, SIM_STREAM_PER_THREAD, SIM_STREAM_CREATED };
struct sim_op;
struct sim_stream {
    uint32_t id; /* unique for the process, from 1; not reused */
    enum sim_stream_kind kind;
    bool blocking; /* takes part in the legacy stream's barriers */
    int priority;
    struct sim_ctx *ctx;
    struct sim_stream *next; /* of the context */
    struct sim_op *head;     /* oldest operation that is not done */
    struct sim_op
        *tail;      /* newest operation ever queued, done or not; holds a reference; may be NULL */
    bool destroyed; /* no handle any more; goes when the last operation is done */
    struct sim_capture *capture; /* capture this stream takes part in, or NULL */
    struct sim_gnode **cap_deps; /* nodes the next captured node depends on */
    size_t n_cap_deps;
    uint64_t magic;
    struct sim_hb_clock *clock; /* access.c */
    void *sched;                /* sched.c: the stream's priority and starvation */
};

enum sim_op_kind {
    SIM_OP_KERNEL,
    SIM_OP_COPY,   /* every form of copy */
    SIM_OP_FILL,   /* every form of fill */
    SIM_OP_RECORD, /* event record */
    SIM_OP_WAIT,   /* event wait: deps hold the record */
    SIM_OP_HOST,   /* host callback; runs on the callback thread without the lock */
    SIM_OP_WRITE_VALUE,
    SIM_OP_WAIT_VALUE,
    SIM_OP_ALLOC, /* a stream-ordered allocation begins to live */
    SIM_OP_FREE,  /* it ends */
    SIM_OP_GRAPH, /* marks the end of a launched graph: deps hold its leaves */
    SIM_OP_NOP,   /* join */
};
enum sim_op_state { SIM_OP_QUEUED, SIM_OP_RUNNING, SIM_OP_DONE };

struct sim_blocks;
struct sim_late;
struct sim_hostmem;
struct sim_launch {
    const struct ps_sim_kernel *row;
    void **params; /* n_params pointers into one allocation that follows them */
    uint64_t n_blocks;
    uint64_t next_block; /* blocks already run */
    unsigned grid[3], block[3];
    void *func;                /* the CUfunction, for those who ask a graph's node */
    bool gives_way;            /* its blocks take turns; blocks.c */
    struct sim_blocks *blocks; /* that have begun and not ended */
    struct sim_late *late;     /* words of host memory that it writes; late.c */
};

/* A box of rows and slices; a plain copy has height = depth = 1. Exactly one of device/host is used. */
struct sim_place {
    bool is_host;
    uint8_t *host;
    CUdeviceptr device;
    size_t pitch;  /* bytes from row to row */
    size_t height; /* rows from slice to slice */
};
struct sim_copy {
    struct sim_place dst, src;
    size_t width, height, depth;
    void *staging; /* owned copy of pageable source bytes, or NULL */
};
struct sim_fill {
    CUdeviceptr dst;
    size_t pitch, width, height; /* width in elements */
    unsigned unit;               /* 1, 2, 4 bytes */
    uint32_t value;
};
struct sim_value {
    CUdeviceptr address; /* device, or host address of registered memory */
    uint64_t value;
    unsigned bytes; /* 4 or 8 */
    unsigned flags; /* CUstreamWaitValue_flags */
};
struct sim_host_call {
    void (*fn)(void *);
    CUstreamCallback callback; /* set instead of fn for cuStreamAddCallback */
    void *data;
    CUstream handle;
};
struct sim_alloc_op {
    CUdeviceptr base;
    size_t bytes;
    struct sim_block *block; /* pool.c */
};

struct sim_op {
    uint64_t serial; /* order of queueing over the process */
    uint32_t refs;
    enum sim_op_kind kind;
    enum sim_op_state state;
    struct sim_stream *stream;
    struct sim_ctx *ctx;
    uint32_t thread;     /* id of the thread that queued it */
    struct sim_op *next; /* in the stream */
    /* While sim_check_op_queued runs: everything it is ordered after, done or not; prev is the operation before
     * it in the stream (NULL if none ever). Dropped when it is done. */
    struct sim_op *prev;
    struct sim_op **deps;
    size_t n_deps;
    const char *name;        /* of the kernel, or of the entry point */
    struct sim_event *event; /* RECORD: holds a reference */
    uint64_t spun;           /* epoch of the last step that made no progress; op.c */
    uint64_t done_ns;        /* when it was done (CLOCK_MONOTONIC) */
    union {
        struct sim_launch launch;
        struct sim_copy copy;
        struct sim_fill fill;
        struct sim_value value;
        struct sim_host_call host;
        struct sim_alloc_op alloc;
    };
    struct sim_hb_clock
        *clock;  /* access.c: what is ordered before this operation, itself included */
    void *sched; /* sched.c */
};

/* ---- device addresses (va.c) ---- */
enum sim_owner {
    SIM_OWNER_NONE,
    SIM_OWNER_PLAIN,   /* cuMemAlloc and friends */
    SIM_OWNER_POOL,    /* stream-ordered */
    SIM_OWNER_VMM,     /* cuMemMap */
    SIM_OWNER_MANAGED, /* the host may touch it too: always accessible, never checked */
};
/* One mapped run of device addresses (one cuMemMap, one allocation). Stable address while mapped. */
struct sim_mapping {
    CUdeviceptr base;
    uint64_t bytes;
    enum sim_owner owner;
    int prot;   /* PROT_NONE, PROT_READ or PROT_READ | PROT_WRITE: the rights device work has */
    int device; /* whose memory backs it */
    uint64_t serial; /* unique for the process */
    void *object;    /* the owner's structure */
};
extern uint8_t *sim_va_base; /* of sim_options.va bytes */
/*
 * The mapping that holds an address and the physical page behind it (page number over all devices' memory,
 * SIM_PAGE each); false when nothing is mapped there. Safe inside a signal handler of a thread that holds
 * the lock. Either output may be NULL.
 */
bool sim_va_find(CUdeviceptr address, const struct sim_mapping **mapping_p, uint64_t *page_p);
/*
 * With the checker on, checked mappings (all but managed ones) are kept PROT_NONE in the process's page tables and
 * access.c opens pages one by one with mprotect; prot above is what is allowed. With it off, the page
 * tables hold prot. Copies and fills never go through device addresses but through sim_phys.
 */
uint8_t *sim_phys(uint64_t page); /* the simulator's own always writable view of a physical page */

/* ---- what op.c, va.c and others ask of access.c (all under the lock; no-ops unless sim_options.check) ---- */
struct sim_fault {
    CUdeviceptr address;
    bool write;
};
/*
 * Runs fn(arg), a step of op that touches device memory through device addresses. False: it touched an address that
 * it has no right to, was abandoned (siglongjmp), and *fault_p says which. Works with and without the checker.
 * Not re-entrant: steps do not nest.
 */
bool sim_access_run(struct sim_op *op, void (*fn)(void *), void *arg, struct sim_fault *fault_p);
/* op reads (or writes) device bytes by a copy, fill or value operation; every page is mapped. */
void sim_check_range(struct sim_op *op, CUdeviceptr address, uint64_t bytes, bool write);
/* Called when op has its prev and deps and is about to be queued by `thread`; sets op->clock. */
void sim_check_op_queued(struct sim_op *op, struct sim_thread *thread);
/* The stream was told to wait for an event that has never been recorded: no edge, but worth a note in reports. */
void sim_check_empty_wait(struct sim_stream *stream);
/* op->clock and friends are released; nothing refers to op any more. */
void sim_check_op_gone(struct sim_op *op);
void sim_check_stream_gone(struct sim_stream *stream);
void sim_check_thread_gone(struct sim_thread *thread);
/* thread has learned that op is done: a wait, or a successful query. */
void sim_check_host_saw(struct sim_thread *thread, struct sim_op *op);
/* The host has learned, by whatever way, that op is done. True as well when the checker is off. */
bool sim_check_host_knows(struct sim_op *op);
/* The host has learned that everything in the context is done, streams that are gone included. */
void sim_check_ctx_saw(struct sim_ctx *ctx);
/* The call uses a context that another thread destroys. */
void sim_check_ending(const char *call);
/* A value operation was executed: a wait that found its value is ordered after the write that made it so. */
void sim_check_value(struct sim_op *op, CUdeviceptr address);
/* A stream-ordered allocation begins (ends) to live: at the execution of op. op NULL: cuMemAlloc, cuMemFree. */
void sim_check_alloc(struct sim_op *op, CUdeviceptr base, uint64_t bytes);
void sim_check_free(struct sim_op *op, CUdeviceptr base, uint64_t bytes);
/* Physical pages were handed out anew by the device (not by a pool): nobody's history counts any more. */
void sim_check_pages_fresh(uint64_t first_page, uint64_t n_pages);
/* A mapping appeared or is about to go; m->serial tells successive ones at one address apart. */
void sim_check_mapped(const struct sim_mapping *m);
void sim_check_unmapping(const struct sim_mapping *m);
/* An operation reads or writes host memory; only what begins in a pinned area counts, as far as that goes. */
void sim_check_host_range(struct sim_op *op, const void *address, uint64_t bytes, bool write);
/* Pinned host memory is about to be unpinned. */
void sim_check_hostmem_gone(struct sim_hostmem *h);
/* At the end of the process: prints the reports on stderr and returns how many there were. */
uint64_t sim_check_finish(void);
uint64_t sim_check_reports(void); /* so far */

/* ---- what op.c asks of sched.c ---- */
void sim_sched_init(uint64_t seed);
/* Begins anew with another seed. Needs the lock. */
void sim_sched_seed(uint64_t seed);
/* Which of n >= 1 ready operations takes the next step. Needs the lock. */
size_t sim_sched_pick(struct sim_op *const *ready, size_t n);
/* How many blocks of the kernel op run in this step, 1 <= result <= left. Needs the lock. */
uint64_t sim_sched_blocks(struct sim_op *op, uint64_t left);
/* How many turns of its blocks a kernel whose blocks take turns makes in this step; 0: they run whole.
 * Needs the lock. */
uint64_t sim_sched_turns(void);
/* A random number. Needs the lock. */
uint64_t sim_sched_draw(void);
/* Whether host memory that a kernel wrote becomes visible without need at this entry. Needs the lock. */
bool sim_sched_visible(void);
/* How many steps of device work are tried at this entry: 0 <= result <= sim_options.eager. Needs the lock. */
unsigned sim_sched_eager(struct sim_thread *thread, const char *entry);
/* Called at each entry without the lock, before it is taken: a place to let other host threads go first. */
void sim_sched_yield(const char *entry);
/* A thread begins (ends) to wait in the simulator: it does not count as runnable. Needs the lock. */
void sim_sched_blocked(struct sim_thread *thread, bool blocked);
void sim_sched_stream_gone(struct sim_stream *stream);
void sim_sched_op_gone(struct sim_op *op);
void sim_sched_thread_gone(struct sim_thread *thread);

/* Deterministic random numbers of the simulator (xorshift; its own state, not sched.c's). Needs the lock. */
uint64_t sim_random(void);
void sim_random_seed(uint64_t seed);

/* One line to the log: "simcuda: ...". Any thread. */
void sim_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A loud multi-line report's line; counted nowhere. */
void sim_report(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A kind, a name and a stream for reports: "kernel ps_stash on stream 3 (#118, thread 1)". Returns buf. */
const char *sim_op_describe(const struct sim_op *op, char *buf, size_t size);

/* For test programs that run many jobs: what follows is decided as in a process with this seed. No job may run. */
SIM_API void simcuda_reseed(uint64_t seed);

/* For kernels (host functions): "this block is not done, run it again later". Exported for test programs. */
SIM_API void simcuda_again(void);

/*
 * For test programs that make calls fail: asked at every call of a driver function, named without suffix, with the
 * return address of the call. What it returns, unless CUDA_SUCCESS, is what the call returns; nothing else is done
 * then. It may call simcuda_mapped and no other function of the driver.
 */
typedef CUresult simcuda_watcher(const char *name, const void *caller);
SIM_API void simcuda_watch(simcuda_watcher *fn);
/*
 * For test programs that make calls take long: called before every call of a driver function, named without suffix,
 * while the calling thread holds nothing of the driver's, so that others get in front of it. It calls no function of
 * the driver.
 */
typedef void simcuda_pauser(const char *name, const void *caller);
SIM_API void simcuda_pause(simcuda_pauser *fn);
/* Whether something is mapped at a device address. Only inside of a watcher. */
SIM_API bool simcuda_mapped(CUdeviceptr address);
/* The same, for a job's own thread: other threads may be in the driver. */
SIM_API bool simcuda_mapped_now(CUdeviceptr address);

#endif
