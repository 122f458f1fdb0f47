/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For kernel_bench: the device, sets of tensors that are stashed and restored in turn, timings by events. One thread.
 * Times are in nanoseconds, rates in MB/s (1e6 bytes a second), bytes counted read and written.
 */
#ifndef PS_TESTS_BENCH_BENCH_H
#define PS_TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/kernels.h"
#include "policy/base/json.h"
#include "tests/bench/kernels/content.h"

#define BENCH_FNS(_fn)                                                                             \
    _fn(cuInit, 2000) _fn(cuDeviceGet, 2000) _fn(cuDeviceGetName, 2000) _fn(cuMemAlloc, 3020)      \
        _fn(cuMemFree, 3020) _fn(cuMemcpyHtoD, 3020) _fn(cuMemcpyDtoH, 3020)                       \
            _fn(cuMemcpyDtoDAsync, 3020) _fn(cuMemcpyDtoHAsync, 3020) _fn(cuMemcpyHtoDAsync, 3020) \
                _fn(cuMemsetD8Async, 3020) _fn(cuEventElapsedTime, 2000)                           \
                    _fn(cuFuncSetAttribute, 9000) _fn(cuFuncGetAttribute, 2020)                    \
                        _fn(cuStreamBeginCapture, 10010) _fn(cuStreamEndCapture, 10000)            \
                            _fn(cuGraphGetNodes, 10000) _fn(cuGraphNodeGetType, 10000)             \
                                _fn(cuGraphKernelNodeGetParams, 12000) _fn(cuGraphDestroy, 10000)

struct bench_fns {
#define DECLARE(_name, _version) PFN_##_name##_v##_version _name;
    BENCH_FNS(DECLARE)
#undef DECLARE
};

extern struct ps_driver drv;
extern struct bench_fns fns;

__attribute__((format(printf, 1, 2), noreturn)) void die(const char *format, ...);
void must(CUresult result, const char *what);
#define MUST(_call) must((_call), #_call)

#define SETS_MAX   64
#define EVENTS_MAX (2 * SETS_MAX)

struct bench {
    char device[100];
    unsigned n_multiprocessors;
    CUstream out, beside;
    CUevent events[EVENTS_MAX];
    struct ps_kernels kernels;
    CUfunction fill, check, numbers, same, read, empty, large;
    CUdeviceptr errors; /* uint64_t: words found wrong so far */
    CUdeviceptr scratch;
    uint64_t scratch_bytes;
    uint64_t seed;
};

void bench_init(struct bench *b);
CUdeviceptr device_alloc(uint64_t bytes);
void launch_1d(CUfunction f, unsigned blocks, unsigned threads, CUstream stream, void **params);
void fill_content(const struct bench *b, CUdeviceptr at, uint64_t bytes,
                  const struct content_params *c);
void check_content(const struct bench *b, CUdeviceptr at, uint64_t bytes,
                   const struct content_params *c);
/* The stream is busy for a while, and the caches hold nothing of what is measured. */
void gate(const struct bench *b, CUstream stream);
uint64_t n_errors(const struct bench *b);
uint64_t bench_random(struct bench *b);

/* ---- sets ---- */

struct shape_case {
    uint64_t bytes; /* of a launch */
    uint32_t n_tensors;
    uint32_t page_bytes;
    uint32_t uniform_permille;
    bool ragged;
    bool on_host;
    bool sorted; /* the free list: not in random order */
};

struct tensors {
    struct shape_case what;
    uint32_t n_sets;
    uint64_t stride, region_bytes, capacity;                   /* pages */
    uint64_t pages_of_set, stored_of_set, stored_bytes_of_set; /* means */
    uint64_t set_bytes;
    CUdeviceptr region, pool, tables, counts, list, slots, host_list, host_slots, pieces;
    unsigned char *host_pool;
    uint64_t *ledgers;
    uint64_t *seeds;
    struct ps_batch *batches;
};

void tensors_create(struct tensors *t, struct bench *b, const struct shape_case *what,
                    uint32_t n_sets);
void tensors_destroy(struct tensors *t);
void tensors_poison(const struct tensors *t, const struct bench *b);
/* Every byte of every set is as it was filled: counted in errors. */
void tensors_check(const struct tensors *t, const struct bench *b);
/* Of the last stash. */
bool ledgers_right(const struct tensors *t);

/* ---- what is measured ---- */

/* shape: NULL: as the library launches it. */
void launch_stash(const struct bench *b, const struct tensors *t, uint32_t set,
                  const struct ps_shape *shape, enum ps_pace pace);
void launch_restore(const struct bench *b, const struct tensors *t, uint32_t set,
                    const struct ps_shape *shape, enum ps_pace pace);
void launch_drop(const struct bench *b, const struct tensors *t, uint32_t set);

struct stats {
    uint64_t median, p10, p90;
    uint32_t n;
};

struct stats stats_of(uint64_t *ns, uint32_t n);

struct times {
    struct stats stash, restore;
    uint64_t stash_train, restore_train; /* mean of launches without events between them */
    uint64_t wrong;                      /* words */
};

void time_kernels(struct bench *b, struct tensors *t, const struct ps_shape *shape,
                  uint32_t repeats, struct times *out);

struct driver_times {
    struct stats copy, fill, to_host, from_host, empty, large;
    uint64_t copy_train;
};

void time_driver(struct bench *b, struct tensors *t, uint32_t repeats, bool host,
                 struct driver_times *out);

uint64_t mb_s(uint64_t bytes, uint64_t ns);
void json_stats(struct ps_json *j, const char *key, const struct stats *s);

/* ---- beside a product ---- */

struct product;
struct product *product_create(struct bench *b, const char *cublas);
void product_describe(struct product *p, struct ps_json *j);
void product_destroy(struct product *p);

struct beside {
    uint64_t alone_ns, beside_ns; /* of one product, medians */
    uint64_t slow_permille; /* (beside - alone) / alone, median of pairs; may be "negative": 0 */
    uint64_t payload_mb_s;  /* bytes of tensors (one way) while the products ran */
    uint64_t quiet_mb_s;    /* the same when nothing else runs */
    bool ended_early;
    uint64_t wrong;
};

enum traffic {
    T_STASH_DROP,
    T_RESTORE,
    T_COPY,
    T_SHIFT_OUT,
    T_SHIFT_IN,
    T_TO_HOST_CE,
    T_FROM_HOST_CE
};

void time_beside(struct bench *b, struct product *p, struct tensors *t,
                 const struct ps_shape *shape, enum traffic kind, struct beside *out);

/* ---- what is told ---- */

struct report {
    struct ps_json json;
    uint32_t repeats;
    uint64_t wrong;
};

struct outcome {
    struct times times;
    double stash_percent, restore_percent; /* of the driver's copy */
};

/* None: as the library does it. */
struct shapes {
    const struct ps_shape *shape;
    size_t n;
};

/* *o is of the last shape. */
void report_case(struct report *r, struct bench *b, const struct shape_case *c,
                 const struct shapes *shapes, struct outcome *o);
/* last: of the last shape, stash and restore. */
void report_beside(struct report *r, struct bench *b, struct product *p, const struct shape_case *c,
                   const struct shapes *shapes, struct beside last[2]);

/* Pages in a row, by a kernel in each shape and by the copy engine. last: of the last shape out, in; the engine's. */
void report_link(struct report *r, struct bench *b, struct product *p, const struct shape_case *c,
                 const struct shapes shapes[2], struct beside last[4]);

#endif
