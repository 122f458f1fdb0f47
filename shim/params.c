/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts by function handle, in a table of buckets whose chains only grow at the head: a reader
 * follows pointers that were published with release and never freed. A node whose generation is not
 * the current one is asked for again; if the answer is the same (nearly always: another module was
 * unloaded) the node is revived, else a new one goes in front of it. So memory grows only with
 * handles that really changed hands.
 *
 * Threads: any, without a lock. Two threads may query one function at once; both nodes say the
 * same.
 */
#include "shim/params.h"

#include <stdlib.h>
#include <string.h>

#include "policy/base/log.h"
#include "shim/driver.h"

#define N_BUCKETS  4096u /* a PyTorch job launches one to three thousand different kernels */
#define MAX_PARAMS 4096u /* 32,764 bytes of parameters, 8 bytes each */
#define BLOCK      64u

struct param {
    uint16_t index;
    uint16_t size;
};

struct layout {
    CUfunction function;
    struct layout *next;         /* older nodes; constant once published */
    _Atomic unsigned generation; /* of the query; pairs with `generation` below */
    unsigned n;                  /* parameters that can hold an address */
    struct param params[];
};

static _Atomic(struct layout *) buckets[N_BUCKETS]; /* release when set, acquire when read */
static _Atomic unsigned generation = 1;             /* incremented before each unload */

/* ---- the search ---- */

typedef uint32_t vec __attribute__((vector_size(16)));
typedef int32_t mask __attribute__((vector_size(16)));

/* Whether one of the 16 words at p may be the high half of an address of the window. */
static inline bool block_hits(const unsigned char *p, uint32_t first, uint32_t span)
{
    const vec lo = {first, first, first, first};
    const vec width = {span, span, span, span};
    vec w[4];

    memcpy(w, p, sizeof(w));
    const mask m = (mask)(w[0] - lo <= width) | (mask)(w[1] - lo <= width) |
                   (mask)(w[2] - lo <= width) | (mask)(w[3] - lo <= width);
    uint64_t halves[2];

    memcpy(halves, &m, sizeof(halves));
    return (halves[0] | halves[1]) != 0;
}

static inline void scan_words(struct ps_touches *t, const unsigned char *data, size_t from,
                              size_t end)
{
    for (size_t high = from < 4 ? 4 : from; high + 4 <= end; high += 4) {
        uint64_t address;

        memcpy(&address, data + high - 4, sizeof(address));
        if (ps_in_window(address)) {
            ps_touches_add(t, address);
        }
    }
}

void ps_params_scan(struct ps_touches *t, const void *data, size_t bytes)
{
    const uint64_t base = atomic_load_explicit(&ps_window_base, memory_order_relaxed);
    const uint64_t size = atomic_load_explicit(&ps_window_size, memory_order_relaxed);
    const unsigned char *p = data;
    size_t at = 0;

    if (size == 0) {
        return;
    }
    const uint32_t first = (uint32_t)(base >> 32);
    const uint32_t span = (uint32_t)((base + size - 1) >> 32) - first;

    for (; at + BLOCK <= bytes; at += BLOCK) {
        if (block_hits(p + at, first, span)) {
            scan_words(t, p, at, at + BLOCK);
        }
    }
    scan_words(t, p, at, bytes);
}

void ps_params_scan_extra(struct ps_touches *t, void *const *extra)
{
    const void *buffer = NULL;
    const size_t *bytes_p = NULL;

    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            buffer = extra[1];
        } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            bytes_p = extra[1];
        } else {
            return; /* the driver refuses it */
        }
    }
    if (buffer != NULL && bytes_p != NULL) {
        ps_params_scan(t, buffer, *bytes_p);
    }
}

/* ---- layouts ---- */

static inline unsigned bucket_of(CUfunction f)
{
    return (unsigned)(((uintptr_t)f * UINT64_C(0x9e3779b97f4a7c15)) >> 52) % N_BUCKETS;
}

static CUresult param_info(CUfunction f, bool is_kernel, size_t index, size_t *size_p)
{
    size_t offset;

    return is_kernel ? ps_driver.cuKernelGetParamInfo((CUkernel)(void *)f, index, &offset, size_p)
                     : ps_driver.cuFuncGetParamInfo(f, index, &offset, size_p);
}

/* The launch will be refused for the same reason, or the function has no parameters. */
static bool harmless(CUresult r)
{
    return r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_INVALID_HANDLE ||
           r == CUDA_ERROR_INVALID_CONTEXT || r == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
           r == CUDA_ERROR_NOT_INITIALIZED || r == CUDA_ERROR_DEINITIALIZED;
}

/*
 * Fills `params` (MAX_PARAMS long). *lasting_p: the answer may be kept. A handle says not whether
 * it is a function or a kernel of a library, so both are asked.
 */
static bool query_params(CUfunction f, struct param *params, unsigned *n_p, bool *lasting_p)
{
    bool is_kernel = false;
    size_t size = 0;
    unsigned n = 0;
    CUresult r = param_info(f, false, 0, &size);

    if (r != CUDA_SUCCESS) {
        const CUresult first = r;

        is_kernel = true;
        r = param_info(f, true, 0, &size);
        if (r != CUDA_SUCCESS) {
            *n_p = 0;
            *lasting_p = first == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_INVALID_VALUE;
            return harmless(first) && harmless(r);
        }
    }
    for (size_t i = 0; r == CUDA_SUCCESS && i < MAX_PARAMS; i++) {
        if (size >= sizeof(uint64_t)) {
            params[n++] = (struct param){.index = (uint16_t)i, .size = (uint16_t)size};
        }
        r = param_info(f, is_kernel, i + 1, &size);
    }
    *n_p = n;
    *lasting_p = true;
    return r == CUDA_ERROR_INVALID_VALUE || r == CUDA_SUCCESS;
}

/* The first query may load the function: not to be done under another thread's capture. */
static bool query_relaxed(CUfunction f, struct param *params, unsigned *n_p, bool *lasting_p)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool swapped = ps_driver.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    const bool known = query_params(f, params, n_p, lasting_p);

    if (swapped) {
        ps_driver.cuThreadExchangeStreamCaptureMode(&mode);
    }
    return known;
}

static void publish(CUfunction f, unsigned seen, const struct param *params, unsigned n,
                    struct layout *stale)
{
    if (stale != NULL && stale->n == n && memcmp(stale->params, params, n * sizeof(*params)) == 0) {
        atomic_store_explicit(&stale->generation, seen, memory_order_release);
        return;
    }
    struct layout *node = malloc(sizeof(*node) + n * sizeof(*params));

    if (node == NULL) {
        return; /* asked again at the next launch */
    }
    node->function = f;
    node->n = n;
    atomic_init(&node->generation, seen);
    memcpy(node->params, params, n * sizeof(*params));
    _Atomic(struct layout *) *head = &buckets[bucket_of(f)];

    node->next = atomic_load_explicit(head, memory_order_acquire);
    while (!atomic_compare_exchange_weak_explicit(head, &node->next, node, memory_order_release,
                                                  memory_order_acquire)) {
    }
}

static inline void scan_one(struct ps_touches *t, const void *value, size_t size)
{
    uint64_t word;

    if (value == NULL) {
        return;
    }
    if (size != sizeof(word)) {
        ps_params_scan(t, value, size);
        return;
    }
    memcpy(&word, value, sizeof(word));
    if (ps_in_window(word)) {
        ps_touches_add(t, word);
    }
}

static void scan_params(struct ps_touches *t, const struct param *params, unsigned n,
                        void *const *kernel_params)
{
    for (unsigned i = 0; i < n; i++) {
        scan_one(t, kernel_params[params[i].index], params[i].size);
    }
}

static __attribute__((noinline)) bool scan_unknown(struct ps_touches *t, CUfunction f,
                                                   void *const *kernel_params, struct layout *stale)
{
    const unsigned seen = atomic_load_explicit(&generation, memory_order_acquire);
    struct param *params = calloc(MAX_PARAMS, sizeof(*params));
    bool lasting = false;
    unsigned n = 0;

    if (params == NULL) {
        return false;
    }
    const bool known = query_relaxed(f, params, &n, &lasting);

    if (known) {
        scan_params(t, params, n, kernel_params);
        if (lasting) {
            publish(f, seen, params, n, stale);
        }
    }
    free(params);
    return known;
}

bool ps_params_scan_kernel(struct ps_touches *t, CUfunction f, void *const *kernel_params)
{
    const unsigned now = atomic_load_explicit(&generation, memory_order_acquire);
    struct layout *node = atomic_load_explicit(&buckets[bucket_of(f)], memory_order_acquire);

    while (node != NULL && node->function != f) {
        node = node->next;
    }
    if (node == NULL || atomic_load_explicit(&node->generation, memory_order_acquire) != now) {
        return scan_unknown(t, f, kernel_params, node);
    }
    scan_params(t, node->params, node->n, kernel_params);
    return true;
}

void ps_params_purge(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_acq_rel);
}
