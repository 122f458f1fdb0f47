/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random driver calls against a model that never pages. A world is one valid job: tensors with the bytes they must
 * hold, lanes (streams) with vector clocks, so that a tensor is used on another stream only behind an event. It is
 * driven by one thread at a time; several worlds may run at once, and share nothing but the device.
 *
 * calls_table.c  the wrappers, found as a job finds them, and which of them were entered
 * calls_order.c  lanes, events, what the host knows
 * calls_world.c  beginning, end, tensors, the comparison with the model
 * calls_kernel.c, calls_copy.c, calls_graph.c, calls_misc.c, calls_refused.c: operations, one function each, fed by
 * input bytes
 */
#ifndef PS_TESTS_FUZZ_CALLS_H
#define PS_TESTS_FUZZ_CALLS_H

#include "shim/cuda_api.h"

#include "shim/intercept.h"
#include "tests/fuzz/fuzz.h"

#define FZ_TENSORS    40
#define FZ_LANES      20 /* streams of one input; a number is not used again */
#define FZ_WORKERS    3
#define FZ_EVENTS     4
#define FZ_READS      256
#define FZ_PENDING    24
#define FZ_ARENA      ((size_t)2 << 20)
#define FZ_LIVE_BYTES ((size_t)2 << 20)
#define FZ_LEGACY     0u
#define FZ_OWN(_w)    (1 + (_w)->worker) /* the per-thread stream of the thread at work */
#define FZ_CREATED    (1u + FZ_WORKERS)

/* ---- calls_table.c ---- */
#define HOOK(_symbol, _name, _version, _variant, _danger, _stream, _params, ...)                   \
    typedef CUresult fz_fn_##_symbol _params;
#define HOOK_BODY HOOK
#include "shim/hooks.def"
#undef HOOK
#undef HOOK_BODY

extern void *fz_real[PS_N_HOOKS];
void fz_count(unsigned row); /* called with arguments that mean something */
/*
 * What the operation names, NULL: no more; calls made while one of them is out (nothing is mapped at its address) are
 * counted apart.
 */
struct fz_tensor;
void fz_name(const struct fz_tensor *t);
extern bool fz_watch; /* one thread at a time is at work, so it can be seen what is out */
extern bool fz_stash; /* preloaded */

#define CALL(_symbol, ...)                                                                         \
    (fz_count(PS_HOOK_##_symbol), ((fz_fn_##_symbol *)fz_real[PS_HOOK_##_symbol])(__VA_ARGS__))
#define OK(_symbol, ...) fz_ok(CALL(_symbol, ##__VA_ARGS__), #_symbol)
/* A call in a stream, which is its last argument; the form is the lane's. */
#define ON_LANE(_symbol, _l, ...)                                                                  \
    fz_ok((_l).ptds ? CALL(_symbol##_ptsz, __VA_ARGS__, (_l).handle)                               \
                    : CALL(_symbol, __VA_ARGS__, (_l).handle),                                     \
          #_symbol)
/* A call in the default stream of its form. */
#define DEFAULT_LANE(_symbol, _l, ...)                                                             \
    fz_ok((_l).ptds ? CALL(_symbol##_ptds, __VA_ARGS__) : CALL(_symbol, __VA_ARGS__), #_symbol)
/* A call outside hooks.def. */
#define PLAIN(_call) fz_ok((_call), #_call)

void fz_ok(CUresult result, const char *call);
/* Before we are preloaded: what every function answers to zeros goes into the environment. */
void fz_table_ask_plain(void);
void fz_table_init(void);
/* Calls one function with zeros: the answer must be the plain driver's. */
void fz_table_zeros(unsigned row);
void fz_table_report(void);
/* A function that ends paging for the process, by name. */
unsigned fz_table_row(const char *symbol);
bool fz_is_out(const struct fz_tensor *t);

/* ---- the world ---- */
enum fz_kind { FZ_POOL, FZ_OTHER_POOL, FZ_PLAIN, FZ_MANAGED };

struct fz_tensor {
    CUdeviceptr at;
    size_t bytes;
    uint8_t *model;
    enum fz_kind kind;
    bool live, defined, busy; /* busy: a graph that exists names it */
    unsigned writer;
    uint32_t written;
    uint32_t read[FZ_LANES];
};

struct fz_lane {
    CUstream handle;
    bool live, gone, blocking;
    uint32_t clock[FZ_LANES];
    CUevent tail; /* of a per-thread or destroyed stream: behind its last work */
    uint32_t tail_clock[FZ_LANES];
};

struct fz_event {
    CUevent event;
    bool recorded;
    uint32_t clock[FZ_LANES];
};

/* A way to name a lane. */
struct fz_use {
    unsigned lane;
    CUstream handle;
    bool ptds;
};

struct fz_read {
    const uint8_t *host;
    uint8_t *want;
    size_t bytes;
};

struct fz_world {
    struct fz_input in;
    unsigned worker;
    bool alone; /* no other world runs */
    CUcontext ctx;
    CUmodule module;
    CUlibrary library;
    CUmemoryPool pool; /* beside the default pool */
    struct fz_tensor tensor[FZ_TENSORS];
    size_t live_bytes;
    struct fz_lane lane[FZ_LANES];
    unsigned n_lanes;
    uint32_t host[FZ_LANES];
    struct fz_event event[FZ_EVENTS];
    unsigned depth[FZ_WORKERS]; /* open ranges */
    uint8_t *arena[2];          /* pageable and pinned */
    size_t used[2];
    struct fz_read reads[FZ_READS];
    unsigned n_reads;
    struct {
        struct fz_tensor *t;
        bool write;
    } pending[FZ_PENDING]; /* of the operation about to be issued */
    unsigned n_pending;
    unsigned last; /* the tensor allocated last */
};

#define FZ_SAY(...)                                                                                \
    do {                                                                                           \
        if (fz_talk) {                                                                             \
            fprintf(stderr, __VA_ARGS__);                                                          \
        }                                                                                          \
    } while (0)
extern bool fz_talk;

void fz_world_begin(struct fz_world *w, const uint8_t *data, size_t size);
void fz_world_end(struct fz_world *w);

/* ---- calls_order.c ---- */
void fz_lanes_begin(struct fz_world *w);
void fz_lanes_end(struct fz_world *w);
/* A stream and a form of naming it, as the input says. */
struct fz_use fz_lane_choose(struct fz_world *w);
/* One of created streams, or false. */
bool fz_lane_created(struct fz_world *w, struct fz_use *u_p);
struct fz_use fz_lane_default(struct fz_world *w);
void fz_lane_create(struct fz_world *w);
void fz_lane_destroy(struct fz_world *w);
/* The next operation reads or writes the tensor: makes the lane wait for whom it must. */
void fz_use(struct fz_world *w, struct fz_tensor *t, unsigned lane, bool write);
/* The operation is about to be queued. */
void fz_issue(struct fz_world *w, unsigned lane);
/* It has been. */
void fz_issued(struct fz_world *w, unsigned lane);
/* The host has waited for all of the lane. */
void fz_host_saw(struct fz_world *w, unsigned lane);
void fz_sync_all(struct fz_world *w);
void fz_op_event(struct fz_world *w);
void fz_op_sync(struct fz_world *w);

/* ---- calls_world.c ---- */
/* A live tensor, defined, with at least that many bytes; NULL if there is none. lane: that defines it if it is not. */
struct fz_tensor *fz_tensor_choose(struct fz_world *w, const struct fz_use *u);
struct fz_tensor *fz_tensor_alloc(struct fz_world *w, size_t bytes, const struct fz_use *u);
void fz_tensor_free(struct fz_world *w, struct fz_tensor *t);
bool fz_some_out(const struct fz_world *w);
/* Calls a function that ends paging: then all are back. */
void fz_last_act(struct fz_world *w, unsigned row);
/* Host memory that is not used again before the device is idle. */
uint8_t *fz_host(struct fz_world *w, size_t bytes);
/* Those bytes will have been read when the device is idle. */
void fz_expect(struct fz_world *w, const uint8_t *host, const uint8_t *want, size_t bytes);
void fz_compare(const uint8_t *found, const uint8_t *want, size_t bytes, const char *what);
void fz_reads_check(struct fz_world *w);
void fz_push(struct fz_world *w, unsigned name);
void fz_pop(struct fz_world *w);
/* An address such as old parameters hold: of tensors, live or not, or beside one. */
uint64_t fz_stale(struct fz_world *w);

/* ---- operations ---- */
void fz_define(struct fz_world *w, struct fz_tensor *t, const struct fz_use *u);
void fz_launch(struct fz_world *w, const struct fz_use *u, const char *name, void **params,
               unsigned n, size_t first_bytes);
void fz_op_kernel(struct fz_world *w);
void fz_op_layer(struct fz_world *w);
void fz_op_backward(struct fz_world *w);
void fz_op_copy(struct fz_world *w);
void fz_op_box(struct fz_world *w);
void fz_op_batch(struct fz_world *w);
void fz_op_fill(struct fz_world *w);
void fz_op_value(struct fz_world *w);
void fz_op_capture(struct fz_world *w);
void fz_op_graph(struct fz_world *w);
void fz_op_query(struct fz_world *w);
void fz_op_module(struct fz_world *w);
void fz_op_pool(struct fz_world *w);
void fz_op_context(struct fz_world *w);
void fz_op_mapping(struct fz_world *w);
void fz_op_pin(struct fz_world *w);
void fz_op_refused(struct fz_world *w);

/* ---- what kernels do, on the host (calls_kernel.c) ---- */
void fz_model_rows(uint8_t *to, uint64_t n_valid, uint64_t n, uint64_t seed);
void fz_model_mix(uint8_t *to, const uint8_t *a, const uint8_t *b, uint64_t n);

#endif
