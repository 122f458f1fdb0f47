/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: the driver's own objects and helpers, beyond what the checker and the scheduler see (sim.h). Everything
 * here needs the big lock unless it says otherwise.
 */
#ifndef SIMCUDA_CORE_H
#define SIMCUDA_CORE_H

#include "tools/simcuda/sim.h"

/* ---- entry and exit (entry.c) ---- */
enum sim_enter_flags {
    SIM_ANYTIME = 1, /* legal before cuInit */
    SIM_CTX = 2,     /* a healthy current context is needed */
    SIM_UNSAFE = 4,  /* "potentially unsafe" during a capture */
};
/* One per entry point, static in it. */
struct sim_fn {
    const char *name; /* of the exported function, suffixes included */
    _Atomic(struct sim_count *) count;
};
struct sim_count {
    char name[64]; /* without _v2, _ptsz and the like */
    uint64_t calls;
    struct sim_count *next;
};
/* On success the lock is held and *thread_p set. On failure it is not held. caller: return address of the entry. */
CUresult sim_enter(struct sim_fn *fn, unsigned flags, const void *caller,
                   struct sim_thread **thread_p);
/* Gives the lock up and returns result. */
CUresult sim_leave(CUresult result);
#define SIM_ENTER(_flags, _thread)                                                                 \
    static struct sim_fn fn_ = {.name = __func__};                                                 \
    struct sim_thread *_thread;                                                                    \
    {                                                                                              \
        const CUresult entered_ =                                                                  \
            sim_enter(&fn_, _flags, __builtin_return_address(0), &(_thread));                      \
        if (entered_ != CUDA_SUCCESS) {                                                            \
            return entered_;                                                                       \
        }                                                                                          \
    }                                                                                              \
    (void)(_thread)

void sim_lock(void);
void sim_unlock(void);
/* Waits until woken by progress or for ms milliseconds; the lock is released meanwhile. */
void sim_cond_wait(unsigned ms);
void sim_cond_wake(void);
uint64_t sim_now_ns(void);
extern bool sim_initialised; /* cuInit has succeeded */
extern unsigned sim_n_threads;
extern __thread bool sim_in_ptds;
struct sim_count *sim_counts(void);

/* ---- options.c ---- */
void sim_options_read(void); /* exits with 2 on a bad SIMCUDA */
/* The result injected into this call of an entry, or CUDA_SUCCESS. */
CUresult sim_options_fail(const char *entry);

/* ---- handles (handle.c): which opaque pointers are alive ---- */
enum sim_kind {
    SIM_K_CTX = 1,
    SIM_K_STREAM,
    SIM_K_EVENT,
    SIM_K_MODULE,
    SIM_K_FUNCTION,
    SIM_K_LIBRARY,
    SIM_K_POOL,
    SIM_K_GRAPH,
    SIM_K_NODE,
    SIM_K_EXEC,
};
void sim_handle_add(const void *handle, enum sim_kind kind);
void sim_handle_remove(const void *handle, enum sim_kind kind);
bool sim_handle_is(const void *handle, enum sim_kind kind);

/* ---- physical memory (phys.c) ---- */
struct sim_extent {
    uint64_t page, n;
};
struct sim_pages {
    struct sim_extent *ext;
    size_t n_ext;
    uint64_t n_pages;
    int device;
};
void sim_phys_init(void);
int sim_phys_fd(void);
bool sim_pages_alloc(struct sim_pages *p, int device, uint64_t n_pages);
void sim_pages_free(struct sim_pages *p);
/* Moves the first n pages of `from` to the end of `to`; of one device. */
void sim_pages_move(struct sim_pages *to, struct sim_pages *from, uint64_t n);
uint64_t sim_phys_used(int device); /* bytes */
uint64_t sim_phys_used_all(void);
uint64_t sim_phys_peak(void);
void sim_phys_reset_peak(void);

/* ---- device addresses (va.c) ---- */
void sim_va_init(void);
/* A free range with an unmapped page behind it; at `hint` if that is free; 0 when there is none. */
CUdeviceptr sim_va_reserve(uint64_t bytes, uint64_t align, CUdeviceptr hint);
void sim_va_release(CUdeviceptr base);
/* Bytes of the reserved range that starts at base, or 0. */
uint64_t sim_va_reserved(CUdeviceptr base);
/* The reserved range that holds [address, address + bytes). */
bool sim_va_range(CUdeviceptr address, uint64_t bytes, CUdeviceptr *base_p, uint64_t *bytes_p);
struct sim_mapping *sim_va_map(CUdeviceptr base, const struct sim_pages *pages,
                               enum sim_owner owner, int prot, void *object);
void sim_va_unmap(struct sim_mapping *m);
void sim_va_protect(struct sim_mapping *m, int prot);
bool sim_va_is_device(
    CUdeviceptr address); /* lies in the simulator's range, mapped or not; no lock needed */
/* Every page of the range is mapped with at least these rights. */
bool sim_va_usable(CUdeviceptr address, uint64_t bytes, int prot, CUdeviceptr *bad_p);
bool sim_va_mapped(CUdeviceptr address, uint64_t bytes);

/* ---- contexts (context.c) ---- */
struct sim_ctx {
    struct sim_ctx *next;
    int device;
    bool primary;
    unsigned refs; /* retains of a primary context */
    unsigned flags;
    unsigned long long id;
    CUresult error;                 /* sticky */
    const struct sim_thread *ender; /* is inside the call that destroys it */
    struct sim_stream *streams;
    struct sim_stream *legacy;
    size_t limits[16];
    struct sim_ctx **peers; /* whose memory may be used from here */
    size_t n_peers;
};
extern struct sim_ctx *sim_contexts;
struct sim_ctx *sim_ctx_current(struct sim_thread *t);
CUresult sim_ctx_check(CUcontext handle, struct sim_ctx **ctx_p);
/* A call uses the context: none may while another thread destroys it. */
void sim_ctx_used(const struct sim_thread *t, const struct sim_ctx *ctx, const char *call);
/* Waits for everything in the context. */
CUresult sim_ctx_wait(struct sim_thread *t, struct sim_ctx *ctx, const char *what);
void sim_ctx_fail(struct sim_ctx *ctx, CUresult error);

/* ---- streams (stream.c) ---- */
CUresult sim_stream_get(struct sim_thread *t, CUstream handle, struct sim_stream **stream_p);
struct sim_stream *sim_stream_new(struct sim_ctx *ctx, enum sim_stream_kind kind, bool blocking,
                                  int priority);
struct sim_stream *sim_stream_hidden(struct sim_ctx *ctx); /* a lane of a graph */
/* No handle any more; freed once empty. */
void sim_stream_drop(struct sim_stream *s);
/* Frees s if it is dropped and empty. */
void sim_stream_reap(struct sim_stream *s);
struct sim_stream *sim_stream_of_thread(struct sim_thread *t, struct sim_ctx *ctx);
void sim_stream_thread_gone(struct sim_thread *t);
/* Drops all streams of a context that is idle. */
void sim_stream_ctx_gone(struct sim_ctx *ctx);

/* ---- operations (op.c, exec.c, hostfn.c) ---- */
struct sim_op *sim_op_new(enum sim_op_kind kind, struct sim_stream *s, const char *name);
/* A fresh copy of a template: payload only. */
struct sim_op *sim_op_clone(const struct sim_op *op, struct sim_stream *s);
struct sim_op *sim_op_ref(struct sim_op *op);
void sim_op_unref(struct sim_op *op); /* NULL is fine */
void sim_op_dep(struct sim_op *op, struct sim_op *dep);
/* Queues op (consumes the caller's reference). */
void sim_op_queue(struct sim_thread *t, struct sim_op *op);
/* Queues op in its stream, or makes it a node of the graph being captured. Consumes the reference. */
CUresult sim_submit(struct sim_thread *t, struct sim_op *op);
/* Up to n steps of device work. */
void sim_progress(unsigned n);
/* Executes device work until op is done; the thread has then seen it. Returns the context's sticky error. */
CUresult sim_wait_op(struct sim_thread *t, struct sim_op *op, const char *what);
/* True when op comes before what is queued in s next, by order of streams and events alone. */
bool sim_op_precedes(const struct sim_op *op, const struct sim_stream *s);
void sim_op_done(struct sim_op *op);
bool sim_value_holds(const struct sim_op *op);
enum sim_step { SIM_STEP_DONE, SIM_STEP_MORE, SIM_STEP_AGAIN, SIM_STEP_AWAY };
enum sim_step sim_exec_step(struct sim_op *op);
void sim_exec_free_payload(struct sim_op *op);
/* Whoever waits or asks in vain: nothing may have gone on for too long (op.c). */
void sim_check_deadlock(void);
/* Says what waits for what, and ends the process with 86 (deadlock.c). */
void sim_deadlock(void) __attribute__((noreturn));
/* Something queued polls memory that a host thread unknown to us may write. */
bool sim_deadlock_polls(void);
void sim_hostfn_post(struct sim_op *op);
unsigned sim_hostfn_running(void);

/* ---- events (event.c) ---- */
struct sim_event {
    unsigned refs;
    unsigned flags;
    struct sim_ctx *ctx;
    struct sim_op *rec; /* the last record, or NULL */
    struct sim_capture
        *capture; /* set when the last record was a captured one; perhaps ended since */
    unsigned long long cap_id;
    struct sim_gnode **cap_nodes;
    size_t n_cap_nodes;
};
void sim_event_unref(struct sim_event *e);

/* ---- host memory (hostmem.c) ---- */
struct sim_hostmem {
    uint8_t *base;
    size_t bytes;
    unsigned flags;
    bool registered; /* the job's own memory */
    struct sim_ctx *ctx;
    uint64_t serial;
    struct sim_check_area *check; /* the checker's; NULL until a stash kernel has used it */
};
struct sim_hostmem *sim_hostmem_find(const void *p);
bool sim_hostmem_pinned(const void *p, size_t bytes);
void sim_hostmem_ctx_gone(struct sim_ctx *ctx);

/* ---- memory (memory.c, vmm.c, pool.c) ---- */
CUresult sim_plain_alloc(struct sim_ctx *ctx, uint64_t bytes, enum sim_owner owner,
                         CUdeviceptr *ptr_p);
void sim_plain_ctx_gone(struct sim_ctx *ctx);
/* Bytes asked for and context of an allocation that starts at m->base. */
void sim_plain_info(const struct sim_mapping *m, uint64_t *bytes_p, struct sim_ctx **ctx_p);
/* Physical pages, after taking back what pools hold unused if need be. */
bool sim_pages_get(struct sim_pages *p, int device, uint64_t n_pages);

struct sim_pool {
    struct sim_pool *next;
    int device;
    bool explicit_; /* made by cuMemPoolCreate */
    bool graph;     /* serves nodes of graphs */
    bool destroyed;
    CUmemPoolProps props;
    struct sim_block *unused; /* blocks that are free */
    uint64_t n_live;
    uint64_t used, used_high, reserved, reserved_high;
    uint64_t threshold;
    int follow_events, opportunistic, internal_deps;
    CUmemAccess_flags access[16];
};
enum sim_block_state { SIM_BLOCK_LIVE, SIM_BLOCK_UNUSED, SIM_BLOCK_ZOMBIE };
struct sim_block {
    struct sim_block *next;
    struct sim_pool *pool;
    enum sim_block_state state;
    CUdeviceptr base; /* 0: pages without an address */
    uint64_t bytes, asked;
    struct sim_pages pages;
    struct sim_mapping *mapping;
    struct sim_op *freed; /* the operation that freed it, or NULL */
    struct sim_ctx *ctx;
};
struct sim_pool *sim_pool_default(int device);
/* After a synchronisation: every pool keeps at most its threshold of unused memory. */
void sim_pools_after_sync(void);
/* Gives unused pool memory back until n_pages are free on the device or nothing is left to give. */
void sim_pools_reclaim(int device, uint64_t n_pages);
void sim_pool_exec_free(struct sim_op *op);
bool sim_pool_free_sync(struct sim_thread *t, CUdeviceptr ptr, CUresult *result_p);
/* An allocation for a graph's memory node: lives until sim_pool_graph_free. */
CUresult sim_pool_graph_alloc(struct sim_ctx *ctx, uint64_t asked, struct sim_block **block_p);
void sim_pool_graph_free(struct sim_block *block);

/* ---- modules and functions (module.c) ---- */
struct sim_module {
    bool is_library;
    struct sim_ctx *ctx;
    struct sim_func *funcs;
};
struct sim_func {
    struct sim_func *next;
    struct sim_module *module;
    const struct ps_sim_kernel *row;
    int attributes[16];
    bool is_kernel;
};
CUresult sim_func_check(CUfunction handle, struct sim_func **func_p);
size_t sim_param_offset(const struct ps_sim_kernel *row, size_t index);

/* ---- launches (launch.c) ---- */
CUresult sim_launch_make(struct sim_stream *s, const struct sim_func *f, const unsigned dims[6],
                         void **params, void **extra, struct sim_op **op_p);

/* A copy of a launch's parameters, from pointers or (params NULL) from a packed buffer: one allocation, the pointers
 * first, then each parameter on 64 bytes of its own. */
void **sim_launch_copy_params(const struct ps_sim_kernel *row, void **params,
                              const uint8_t *buffer);

/* ---- copies and fills (copy.c, fill.c) ---- */
/* An operation for a box copy; host memory that is not pinned is staged now when `stage`. */
struct sim_op *sim_copy_make(struct sim_stream *s, const struct sim_copy *c, const char *name,
                             bool stage);
CUresult sim_copy_from_3d(const CUDA_MEMCPY3D *d, struct sim_copy *c);
struct sim_place sim_place_linear(CUdeviceptr address);

/* ---- capture and graphs (capture.c, graph*.c) ---- */
struct sim_gnode {
    struct sim_graph *graph;
    CUgraphNodeType type;
    struct sim_op *tmpl;     /* payload; NULL for an empty node; never queued itself */
    struct sim_graph *child; /* a graph of its own; holds a reference */
    struct sim_event *event; /* record and wait nodes; holds a reference */
    struct sim_gnode **deps;
    size_t n_deps;
    size_t index; /* in the graph */
    const struct sim_gnode
        *orig; /* in an executable graph: the node it was made from; may be gone */
};
struct sim_graph_memory { /* of memory nodes; shared by a graph and what is made from it */
    unsigned refs;
    struct sim_block **blocks;
    size_t n_blocks;
};
struct sim_graph {
    unsigned refs;
    struct sim_gnode **nodes;
    size_t n_nodes;
    struct sim_graph_memory *memory;
};
struct sim_capture {
    struct sim_graph *graph;
    struct sim_stream *origin;
    uint32_t thread;
    bool into; /* the graph is the job's; the capture holds a reference of its own */
    CUstreamCaptureMode mode;
    CUstreamCaptureStatus status;
    unsigned long long id;
    struct sim_capture *next;
};
CUresult sim_capture_op(struct sim_thread *t, struct sim_op *op);
/* What an unsafe call meets; invalidates captures it is forbidden in. */
CUresult sim_capture_unsafe(struct sim_thread *t);
/* The result of using the legacy stream while a blocking stream of the context captures. */
CUresult sim_capture_implicit(struct sim_ctx *ctx);
CUresult sim_capture_record(struct sim_stream *s, struct sim_event *e);
/* A node that records or waits for the event when the graph runs. */
CUresult sim_capture_event_node(struct sim_stream *s, struct sim_event *e, CUgraphNodeType type);
CUresult sim_capture_wait(struct sim_thread *t, struct sim_stream *s, struct sim_event *e);
void sim_capture_invalidate(struct sim_capture *c);
void sim_capture_stream_gone(struct sim_stream *s);
void sim_capture_forget_event(struct sim_event *e);
struct sim_gnode *sim_capture_node(struct sim_stream *s, CUgraphNodeType type);
/* The node's payload becomes op (takes the reference over). */
void sim_gnode_set(struct sim_gnode *n, struct sim_op *op);
/* n is one of `from` or one that they depend on. */
bool sim_gnode_reached(const struct sim_gnode *n, struct sim_gnode *const *from, size_t n_from);
/* The block lives as long as the graph and what was made from it. */
void sim_graph_own(struct sim_graph *g, struct sim_block *block);
struct sim_gnode *sim_graph_add(struct sim_graph *g, CUgraphNodeType type,
                                struct sim_gnode *const *deps, size_t n_deps);
struct sim_graph *sim_graph_new(void);
/* A copy of nodes, dependencies and payloads; its nodes name their originals. */
struct sim_graph *sim_graph_clone(const struct sim_graph *g);
void sim_graph_remove(struct sim_gnode *n);
/* n depends on dep no more. */
void sim_gnode_part(struct sim_gnode *n, const struct sim_gnode *dep);
/* CUDA_ERROR_INVALID_VALUE unless each is a node of g. */
CUresult sim_gnodes_check(const struct sim_graph *g, const CUgraphNode *nodes, size_t n);
/* Takes a node's payload, and what goes with it, over from another of its type. */
void sim_gnode_take(struct sim_gnode *to, const struct sim_gnode *from);
/* Payloads from the driver's structures; graphnode.c. */
CUresult sim_gnode_kernel(struct sim_ctx *ctx, const CUDA_KERNEL_NODE_PARAMS *p,
                          struct sim_gnode *n);
CUresult sim_gnode_copy(struct sim_ctx *ctx, const CUDA_MEMCPY3D *p, struct sim_gnode *n);
CUresult sim_gnode_fill(struct sim_ctx *ctx, const CUDA_MEMSET_NODE_PARAMS *p, struct sim_gnode *n);
CUresult sim_gnode_host(struct sim_ctx *ctx, const CUDA_HOST_NODE_PARAMS *p, struct sim_gnode *n);
/* The event's next record is op, as by cuEventRecord; event.c */
void sim_event_recorded(struct sim_event *e, struct sim_op *op);
/* The executable's copy of a node, or NULL. */
struct sim_gnode *sim_exec_node(CUgraphExec exec, CUgraphNode node);
/* The nodes in an order that respects dependencies: an array for the caller to free; NULL if there is a cycle. */
struct sim_gnode **sim_graph_order(const struct sim_graph *g);
void sim_graph_unref(struct sim_graph *g);

/* ---- tables made by gen_api.py ---- */
struct sim_api_row {
    const char *name; /* as cuGetProcAddress knows it */
    int version;      /* of the driver it appeared in */
    bool ptds;
    void (*fn)(void);
};
extern const struct sim_api_row sim_api_rows[];
extern const size_t sim_api_n_rows;
struct sim_error_row {
    int value;
    const char *name;
};
extern const struct sim_error_row sim_error_rows[];
extern const size_t sim_error_n_rows;
bool sim_api_known(const char *name);

/* ---- small things ---- */
#define SIM_ROUND(_x, _a) (((uint64_t)(_x) + (_a)-1) / (_a) * (_a))
void sim_no_memory(void) __attribute__((noreturn));
/* calloc and realloc that end the process when there is no memory: the simulator cannot go on. */
void *sim_calloc(size_t n, size_t size);
void *sim_realloc(void *p, size_t bytes);
/* Appends one element to a pointer array. */
void sim_push(void *array_p, size_t *n, void *element);

#endif
