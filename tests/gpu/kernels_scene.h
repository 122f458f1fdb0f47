/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For kernels_gpu.c: tensors in device memory with guards between them, a pool of device and host pages, and what the
 * host computes of them beside. One thread.
 */
#ifndef PS_TESTS_GPU_KERNELS_SCENE_H
#define PS_TESTS_GPU_KERNELS_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/kernels.h"

#define POISON_WORD 0xA5A5A5A5u

#define EXTRA_FNS(_fn)                                                                             \
    _fn(cuInit, 2000) _fn(cuDeviceGet, 2000) _fn(cuDeviceGetName, 2000)                            \
        _fn(cuDevicePrimaryCtxRetain, 7000) _fn(cuDevicePrimaryCtxRelease, 11000)                  \
            _fn(cuMemAlloc, 3020) _fn(cuMemFree, 3020) _fn(cuMemcpyHtoD, 3020)                     \
                _fn(cuMemcpyDtoH, 3020) _fn(cuMemcpyDtoDAsync, 3020) _fn(cuEventElapsedTime, 2000)

struct extra {
#define DECLARE(_name, _version) PFN_##_name##_v##_version _name;
    EXTRA_FNS(DECLARE)
#undef DECLARE
};

/* Filled before anything else is called. */
extern struct ps_driver drv;
extern struct extra extra;
extern uint64_t rng;

extern int n_failures;
extern int n_checks;

__attribute__((format(printf, 1, 2), noreturn)) void die(const char *format, ...);
void must(CUresult result, const char *what);
#define MUST(_call) must((_call), #_call)

struct tensor {
    uint64_t offset; /* in the region */
    uint64_t bytes;
    uint64_t n_pages;
    uint64_t n_uniform;
    uint64_t first_entry; /* in the table that all share */
};

struct content {
    unsigned uniform_percent;
    unsigned almost_percent; /* of all pages: uniform but for one bit */
};

/* Tensors in one region of device memory, guards between them, and a pool that holds them all in either part. */
struct scene {
    uint32_t page_bytes;
    uint32_t n;
    struct tensor tensors[PS_BATCH_MAX];
    uint64_t region_bytes, n_entries, n_stored, capacity, n_slots;
    unsigned char *want, *got; /* the region on the host */
    CUdeviceptr region, pool, table, counts, flags, pieces;
    CUdeviceptr list[2], slots[2]; /* of device pages, of host pages */
    unsigned char *host_pool;      /* pinned; in pieces that follow each other */
    uint64_t *ledgers;             /* pinned */
    uint64_t n_taken[2];           /* the free lists' heads as they must be */
    uint64_t share;                /* device pages that the next stash is told of */
    struct ps_batch batch;
};

uint64_t random_word(void);
void check(bool ok, const struct scene *s, const char *what);
void check_pages(bool ok, uint64_t n_pages, uint32_t page_bytes, const char *what);

void scene_init(struct scene *s, uint32_t n, uint32_t page_bytes, uint64_t bytes,
                const struct content *c);
/* Allocates, uploads, and has the grow kernel make each free list in two pieces. */
void scene_create(struct scene *s, const struct ps_kernels *k);
void scene_fini(struct scene *s);
/* All pages are free, and the device is idle: stashes are told of so many of the device's. */
void scene_share(struct scene *s, uint64_t device_pages);
/* Whether stashes may use the host's pages; without, they are told of all of the device's. */
void scene_host(struct scene *s, bool with);
/* The same kernels in a shape of any kind, or as they are. */
struct ps_kernels any_shape(const struct ps_kernels *k);
/* New sequence numbers; the ledgers say nothing. */
void next_seq(struct scene *s);
void poison(const struct scene *s, CUstream stream);
/* Pieces of any length, here and there. */
void poison_some(const struct scene *s, CUstream stream);
/* What must be everywhere after a clean of the flags that a stash or restore left. */
void expect_cleaned(struct scene *s);
void expect_poison(struct scene *s);
/* Pages of zeros are poison; or zero again. */
void expect_zeros(struct scene *s, bool poisoned);

/* The device must be idle. A stash has run since the last next_seq: */
void check_stashed(struct scene *s);
void check_all_free(const struct scene *s);
void check_flags(const struct scene *s);
void check_region(const struct scene *s, const char *what);
/* This batch of it was stashed, and stored so many pages, in whichever part. */
void scene_took(struct scene *s, const struct ps_batch *b, uint64_t n_stored);

#endif
