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

#define BLOCKS_PER_SM   4 /* of N_THREADS; 64 registers a thread allow no more on sm_80 */
#define N_THREADS       256
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
        {"ps_grow", &k->grow},   {"ps_clean", &k->clean},
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
    loaded.n_blocks = n_multiprocessors * BLOCKS_PER_SM;
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

    return item->rows == 0 ? item->rows_kind == 0
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

static CUresult launch(const struct ps_driver *drv, CUfunction function, CUstream stream,
                       const unsigned grid_block[2], void **params)
{
    return drv->cuLaunchKernel(function, grid_block[0], 1, 1, grid_block[1], 1, 1, 0, stream,
                               params, NULL);
}

static CUresult launch_batch(const struct ps_driver *drv, CUfunction function, CUstream stream,
                             const unsigned grid_block[2], const struct ps_batch *b)
{
    void *params[] = {(void *)b};

    ps_assert(batch_check(b));
    return b->n_items == 0 ? CUDA_SUCCESS : launch(drv, function, stream, grid_block, params);
}

/* No more blocks than pages: at least one, which writes the ledgers of empty tensors. */
static unsigned blocks_for(const struct ps_kernels *k, const struct ps_batch *b)
{
    uint64_t n_pages = 0;

    for (uint32_t i = 0; i < b->n_items; i++) {
        n_pages += ps_batch_item_pages(b, &b->items[i]);
    }
    if (n_pages >= k->n_blocks) {
        return k->n_blocks;
    }
    return n_pages > 0 ? (unsigned)n_pages : 1;
}

CUresult ps_kernels_stash(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                          const struct ps_batch *b)
{
    const unsigned grid_block[2] = {blocks_for(k, b), N_THREADS};

    return launch_batch(drv, k->stash, stream, grid_block, b);
}

CUresult ps_kernels_restore(const struct ps_driver *drv, const struct ps_kernels *k,
                            CUstream stream, const struct ps_batch *b)
{
    const unsigned grid_block[2] = {blocks_for(k, b), N_THREADS};

    return launch_batch(drv, k->restore, stream, grid_block, b);
}

CUresult ps_kernels_drop(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                         const struct ps_batch *b)
{
    const unsigned grid_block[2] = {1, N_THREADS_ALONE};

    return launch_batch(drv, k->drop, stream, grid_block, b);
}

CUresult ps_kernels_clean(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                          const struct ps_batch *b)
{
    const unsigned n_most = k->n_blocks / BLOCKS_PER_SM;
    const unsigned n_wanted = blocks_for(k, b);
    const unsigned grid_block[2] = {n_wanted < n_most ? n_wanted : n_most, N_THREADS_CLEAN};

    return launch_batch(drv, k->clean, stream, grid_block, b);
}

CUresult ps_kernels_grow(const struct ps_driver *drv, const struct ps_kernels *k, CUstream stream,
                         uint64_t free_list, uint32_t first, uint32_t count)
{
    const unsigned grid_block[2] = {1, N_THREADS_ALONE};
    void *params[] = {&free_list, &first, &count};

    return launch(drv, k->grow, stream, grid_block, params);
}
