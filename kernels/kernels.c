/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the embedded image of stash.cu and launches its kernels. No state beyond the caller's
 * struct ps_kernels, which is read-only between load and unload; no lock.
 */
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/base/assert.h"

#define N_LANES         32   /* of stash, restore and drop */
#define RING_LEAST      8192 /* a stash's end used it until lately; all was measured so */
#define N_THREADS_ALONE 1024 /* of the kernels that run as one block */
#define N_THREADS_CLEAN 512  /* one block a multiprocessor: most launches find nothing to do */

/* The fatbin, made from stash.cu at build time by embed.py. */
extern const unsigned char ps_stash_image[];

static CUresult find_function(const struct ps_driver *drv, CUmodule module, const char *name,
                              CUfunction *function_p)
{
    CUfunction function = NULL;
    CUresult result = drv->cuModuleGetFunction(&function, module, name);

    /* A lazy load later could fall into a capture, or come when memory is short. */
    if (result == CUDA_SUCCESS && drv->cuFuncLoad != NULL) {
        result = drv->cuFuncLoad(function);
    }
    if (result == CUDA_SUCCESS) {
        *function_p = function;
    }
    return result;
}

static CUresult find_functions(const struct ps_driver *drv, struct ps_kernels *k)
{
    const struct {
        const char *name;
        CUfunction *function_p;
    } wanted[] = {
        {"ps_stash", &k->stash}, {"ps_restore", &k->restore}, {"ps_drop", &k->drop},
        {"ps_grow", &k->grow},   {"ps_clean", &k->clean},     {"ps_shift", &k->shift},
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        const CUresult result = find_function(drv, k->module, wanted[i].name, wanted[i].function_p);

        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult count_multiprocessors(const struct ps_driver *drv, unsigned *n_p)
{
    CUdevice device = 0;
    int n = 0;
    CUresult result = drv->cuCtxGetDevice(&device);

    if (result == CUDA_SUCCESS) {
        result = drv->cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    }
    if (result == CUDA_SUCCESS) {
        *n_p = n > 0 ? (unsigned)n : 1;
    }
    return result;
}

CUresult ps_kernels_load(const struct ps_driver *drv, struct ps_kernels *k)
{
    struct ps_kernels loaded = {.module = NULL};
    unsigned n_multiprocessors = 0;
    CUresult result = count_multiprocessors(drv, &n_multiprocessors);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = drv->cuModuleLoadData(&loaded.module, ps_stash_image);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = find_functions(drv, &loaded);
    if (result != CUDA_SUCCESS) {
        (void)drv->cuModuleUnload(loaded.module);
        return result;
    }
    loaded.n_multiprocessors = n_multiprocessors;
    /* docs/benchmarks/kernels.md */
    loaded.out.fast = (struct ps_shape){11 * n_multiprocessors, 32 << 10, 4 << 10, 4};
    loaded.in.fast = (struct ps_shape){0, 16 << 10, 4 << 10, 4};
    loaded.out.small = loaded.in.small = (struct ps_shape){0, 16 << 10, 16 << 10, 2};
    loaded.out.quiet = loaded.in.quiet = (struct ps_shape){n_multiprocessors, 32 << 10, 4 << 10, 8};
    loaded.out.host = (struct ps_shape){8, 2 << 20, 4 << 10, 4};
    loaded.in.host = (struct ps_shape){8, 2 << 20, 4 << 10, 4};
    /* Each multiprocessor that stores to the host, or loads from there, slows what runs beside it there. */
    loaded.shift_out = (struct ps_shape){4, 0, 8 << 10, 4};
    loaded.shift_in = (struct ps_shape){4, 0, 4 << 10, 8};
    *k = loaded;
    return CUDA_SUCCESS;
}

void ps_kernels_unload(const struct ps_driver *drv, struct ps_kernels *k)
{
    if (k->module != NULL) {
        /* Fails only once the context is gone, and the module with it. */
        (void)drv->cuModuleUnload(k->module);
    }
    *k = (struct ps_kernels){.module = NULL};
}

static bool rows_check(const struct ps_batch *b, const struct ps_batch_item *item)
{
    const bool narrow = (item->rows_kind & PS_ROWS_I32) != 0;

    return item->rows == 0 ? (item->rows_kind & ~(PS_ITEM_KNOWN | PS_ITEM_COMPARE)) == 0
                           : item->rows % (narrow ? sizeof(int32_t) : sizeof(int64_t)) == 0 &&
                                 item->unit_bytes > 0 && item->unit_shift < 32 &&
                                 ((item->rows_kind & PS_ROWS_TRUSTED) != 0 || b->outcomes != 0);
}

static bool batch_check(const struct ps_batch *b)
{
    bool ok = b->n_items <= PS_BATCH_MAX && b->page_bytes >= PS_PAGE_BYTES_MIN &&
              (b->page_bytes & (b->page_bytes - 1)) == 0 && b->host_shift < 31 &&
              (b->host_list == 0 || b->host_pieces != 0);

    for (uint32_t i = 0; ok && i < b->n_items; i++) {
        const struct ps_batch_item *item = &b->items[i];

        ok = item->data % 16 == 0 && item->bytes % 16 == 0 && item->table % 8 == 0 &&
             ps_batch_item_pages(b, item) <= PS_PAGES_MAX && rows_check(b, item);
    }
    return ok;
}

struct geometry {
    unsigned n_blocks, n_threads, shared_bytes;
};

static CUresult launch(const struct ps_driver *drv, CUfunction function, CUstream stream,
                       const struct geometry *g, void **params)
{
    return drv->cuLaunchKernel(function, g->n_blocks, 1, 1, g->n_threads, 1, 1, g->shared_bytes,
                               stream, params, NULL);
}

static CUresult launch_batch(const struct ps_driver *drv, CUfunction function, CUstream stream,
                             const struct geometry *g, const struct ps_batch *b)
{
    void *params[] = {(void *)b};

    ps_assert(batch_check(b));
    return b->n_items == 0 ? CUDA_SUCCESS : launch(drv, function, stream, g, params);
}

static uint64_t count_pages(const struct ps_batch *b)
{
    uint64_t n_pages = 0;

    for (uint32_t i = 0; i < b->n_items; i++) {
        n_pages += ps_batch_item_pages(b, &b->items[i]);
    }
    return n_pages;
}

static uint8_t log2_of(uint32_t v)
{
    ps_assert(v != 0 && (v & (v - 1)) == 0);
    return (uint8_t)__builtin_ctz(v);
}

static uint32_t between(uint32_t v, uint32_t low, uint32_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* A stash that claims pages one by one, or looks beyond rows, does so by the page. */
static bool by_the_page(const struct ps_batch *b)
{
    bool is = b->host_list != 0;

    for (uint32_t i = 0; i < b->n_items && !is; i++) {
        is = b->items[i].rows != 0 && (b->items[i].rows_kind & PS_ROWS_TRUSTED) == 0;
    }
    return is;
}

/* Fills in what is of the launch. */
static struct geometry shape_batch(struct ps_batch *b, const struct ps_shape *shape, bool whole)
{
    const uint32_t page = b->page_bytes;
    const uint32_t least = page / PS_PARTS_MAX > 16 ? page / PS_PARTS_MAX : 16;
    const uint64_t n_pages = count_pages(b);
    const bool many = n_pages * PS_PARTS_MAX > INT32_MAX; /* kernels count units in 32 bits */
    const uint32_t unit = whole || many ? page : between(shape->unit_bytes, least, page);
    const uint32_t chunk = between(shape->chunk_bytes, 16, unit);
    uint32_t first = 0;

    ps_assert(shape->n_slots >= 2 && shape->n_slots <= PS_CHUNKS_MAX);
    b->unit_shift = log2_of(unit);
    b->ring.chunk_shift = log2_of(chunk);
    b->ring.n_slots = (uint8_t)shape->n_slots;
    for (uint32_t i = 0; i < b->n_items; i++) {
        b->first_page[i] = first;
        first += (uint32_t)ps_batch_item_pages(b, &b->items[i]);
    }
    b->n_pages = first;
    const uint64_t n_units = n_pages << (log2_of(page) - b->unit_shift);
    const uint64_t most = shape->n_blocks != 0 ? shape->n_blocks : INT32_MAX;
    const uint32_t ring = chunk * shape->n_slots;

    ps_assert(ring <= PS_RING_MAX);

    /* At least one block, which writes the ledgers of empty tensors. */
    return (struct geometry){(unsigned)(n_units > most ? most
                                        : n_units > 0  ? n_units
                                                       : 1),
                             N_LANES, ring > RING_LEAST ? ring : RING_LEAST};
}

/* Units of the fast shape, a multiprocessor, below which smaller ones are faster. */
#define SMALL_UNITS 8

static const struct ps_shape *choose_shape(const struct ps_kernels *k, const struct ps_shapes *s,
                                           const struct ps_batch *b, enum ps_pace pace)
{
    const uint64_t least = (uint64_t)SMALL_UNITS * k->n_multiprocessors * s->fast.unit_bytes;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < b->n_items; i++) {
        bytes += b->items[i].bytes;
    }
    if (pace != PS_FAST) {
        return pace == PS_QUIET ? &s->quiet : &s->host;
    }
    return bytes < least ? &s->small : &s->fast;
}

CUresult ps_kernels_stash(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                          const struct ps_batch *b, enum ps_pace pace)
{
    struct ps_batch launched = *b;
    const struct geometry g =
        shape_batch(&launched, choose_shape(k, &k->out, b, pace), by_the_page(b));

    return launch_batch(drv, k->stash, stream, &g, &launched);
}

CUresult ps_kernels_restore(const struct ps_driver *drv, const struct ps_kernels *k,
                            CUstream stream, const struct ps_batch *b, enum ps_pace pace)
{
    struct ps_batch launched = *b;
    const struct geometry g = shape_batch(&launched, choose_shape(k, &k->in, b, pace), false);

    return launch_batch(drv, k->restore, stream, &g, &launched);
}

CUresult ps_kernels_drop(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                         const struct ps_batch *b)
{
    static const struct geometry g = {1, N_LANES, 0};

    return launch_batch(drv, k->drop, stream, &g, b);
}

CUresult ps_kernels_clean(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                          const struct ps_batch *b)
{
    const uint64_t n = count_pages(b);
    const struct geometry g = {n < k->n_multiprocessors ? (n > 0 ? (unsigned)n : 1)
                                                        : k->n_multiprocessors,
                               N_THREADS_CLEAN, 0};

    return launch_batch(drv, k->clean, stream, &g, b);
}

CUresult ps_kernels_grow(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                         uint64_t free_list, uint32_t first, uint32_t count)
{
    static const struct geometry g = {1, N_THREADS_ALONE, 0};
    void *params[] = {&free_list, &first, &count};

    return launch(drv, k->grow, stream, &g, params);
}

CUresult ps_kernels_shift(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                          const struct ps_shift *s)
{
    const struct ps_shape *shape = s->to_host != 0 ? &k->shift_out : &k->shift_in;
    const struct geometry g = {shape->n_blocks, N_LANES, shape->chunk_bytes * shape->n_slots};
    struct ps_shift launched = *s;
    void *params[] = {&launched};

    ps_assert(s->to % 16 == 0 && s->from % 16 == 0 && s->count % 8 == 0 && s->page_bytes % 16 == 0);
    launched.ring.chunk_shift = log2_of(shape->chunk_bytes);
    launched.ring.n_slots = (uint8_t)shape->n_slots;
    return launch(drv, k->shift, stream, &g, params);
}
