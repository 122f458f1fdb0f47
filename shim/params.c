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
#define BLOCK      256u  /* looked at in one go */
#define WIDE_FROM  512u

/* Parameters of one size, one after the other. */
struct run {
    uint16_t first;
    uint16_t n;
    uint16_t size;
};

struct layout {
    CUfunction function;
    struct layout *next;         /* older nodes; constant once published */
    _Atomic unsigned generation; /* of the query; pairs with `generation` below */
    unsigned n_runs;             /* of parameters that can hold an address */
    struct run runs[];
};

static _Atomic(struct layout *) buckets[N_BUCKETS]; /* release when set, acquire when read */
static _Atomic unsigned generation = 1;             /* incremented before each unload */

/* ---- the search ---- */

/* Read once a search: the two never change once they are set. */
struct window {
    uint64_t base, size;
};

static inline struct window window_now(void)
{
    return (struct window){atomic_load_explicit(&ps_window_base, memory_order_relaxed),
                           atomic_load_explicit(&ps_window_size, memory_order_relaxed)};
}

/*
 * Whether a word may be the high half of an address of the window: first <= word <= first + span,
 * as one signed comparison, which every machine has for vectors.
 */
struct halves {
    uint32_t bias;
    int32_t end;
};

static inline struct halves halves_of(const struct window *w)
{
    const uint32_t first = (uint32_t)(w->base >> 32);
    const uint32_t span = (uint32_t)((w->base + w->size - 1) >> 32) - first;

    return (struct halves){first + 0x80000000u, (int32_t)(span - 0x7fffffffu)};
}

/*
 * SEARCH(name, vector bytes, attributes): size_t name(p, from, end, h), the first block in
 * [from, end) that holds such a word, or else the end of the last whole block.
 */
#define SEARCH_LOOK(_name, _offset)                                                                \
    (memcpy(&w, p + from + (_offset), sizeof(w)), (_name##_mask)(w - bias) < last)
#define SEARCH(_name, _bytes, ...)                                                                 \
    typedef uint32_t _name##_vec __attribute__((vector_size(_bytes)));                             \
    typedef int32_t _name##_mask __attribute__((vector_size(_bytes)));                             \
                                                                                                   \
    static __VA_ARGS__ size_t _name(const unsigned char *p, size_t from, size_t end,               \
                                    const struct halves *h)                                        \
    {                                                                                              \
        const _name##_vec bias = (_name##_vec){0} + h->bias;                                       \
        const _name##_mask last = (_name##_mask){0} + h->end;                                      \
                                                                                                   \
        for (; from + BLOCK <= end; from += BLOCK) {                                               \
            _name##_mask a = {0}, b = {0};                                                         \
            _name##_vec w;                                                                         \
            uint64_t part[(_bytes) / 8];                                                           \
                                                                                                   \
            for (unsigned i = 0; i < BLOCK; i += 4 * (_bytes)) {                                   \
                a |= SEARCH_LOOK(_name, i);                                                        \
                b |= SEARCH_LOOK(_name, i + (_bytes));                                             \
                a |= SEARCH_LOOK(_name, i + 2 * (_bytes));                                         \
                b |= SEARCH_LOOK(_name, i + 3 * (_bytes));                                         \
            }                                                                                      \
            a |= b;                                                                                \
            memcpy(part, &a, sizeof(part));                                                        \
            for (unsigned i = 1; i < (_bytes) / 8; i++) {                                          \
                part[0] |= part[i];                                                                \
            }                                                                                      \
            if (__builtin_expect(part[0] != 0, 0)) {                                               \
                break;                                                                             \
            }                                                                                      \
        }                                                                                          \
        return from;                                                                               \
    }

SEARCH(search, 16)
#ifdef __x86_64__
SEARCH(search_avx2, 32, __attribute__((target("avx2"))))
#endif

/* Half the time is worth asking for from some size on. */
static inline size_t search_blocks(const unsigned char *p, size_t from, size_t end,
                                   const struct halves *h)
{
#ifdef __x86_64__
    if (end - from >= WIDE_FROM && __builtin_cpu_supports("avx2")) {
        return search_avx2(p, from, end, h);
    }
#endif
    return search(p, from, end, h);
}

static inline bool any(search_mask m)
{
    uint64_t half[2];

    memcpy(half, &m, sizeof(half));
    return (half[0] | half[1]) != 0;
}

/* Less than a block, at the end of at least one vector; the last vector overlaps what is before it. */
static inline bool rest_hits(const unsigned char *p, size_t from, size_t end,
                             const struct halves *h)
{
    const search_vec bias = (search_vec){0} + h->bias;
    const search_mask last = (search_mask){0} + h->end;
    search_vec w;

    memcpy(&w, p + end - 16, sizeof(w));
    search_mask m = (search_mask)(w - bias) < last;

    for (; from + 16 < end; from += 16) {
        memcpy(&w, p + from, sizeof(w));
        m |= (search_mask)(w - bias) < last;
    }
    return any(m);
}

/* The addresses whose high half lies in [from, end). */
static void scan_words(struct ps_touches *t, const unsigned char *data, size_t from, size_t end)
{
    for (size_t high = from < 4 ? 4 : from; high + 4 <= end; high += 4) {
        uint64_t address;

        memcpy(&address, data + high - 4, sizeof(address));
        if (ps_in_window(address)) {
            ps_touches_add(t, address);
        }
    }
}

/* The same of a stretch where some word may be such a half; few are. */
static void scan_stretch(struct ps_touches *t, const unsigned char *p, size_t from, size_t end,
                         const struct halves *h)
{
    const search_vec bias = (search_vec){0} + h->bias;
    const search_mask last = (search_mask){0} + h->end;

    for (; from + 16 <= end; from += 16) {
        search_vec w;

        memcpy(&w, p + from, sizeof(w));
        if (any((search_mask)(w - bias) < last)) {
            scan_words(t, p, from, from + 16);
        }
    }
    scan_words(t, p, from, end);
}

static void scan_bytes(struct ps_touches *t, const unsigned char *p, size_t bytes,
                       const struct window *w)
{
    const struct halves h = halves_of(w);
    const size_t end = bytes / 4 * 4;
    size_t at = 0;

    while ((at = search_blocks(p, at, end, &h)) + BLOCK <= end) {
        scan_stretch(t, p, at, at + BLOCK, &h);
        at += BLOCK;
    }
    if (at < end && (end < 16 || rest_hits(p, at, end, &h))) {
        scan_stretch(t, p, at, end, &h);
    }
}

void ps_params_scan(struct ps_touches *t, const void *data, size_t bytes)
{
    const struct window w = window_now();

    if (w.size != 0) {
        scan_bytes(t, data, bytes, &w);
    }
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

static void add_param(struct run *runs, unsigned *n_runs, uint16_t index, uint16_t size)
{
    struct run *const last = &runs[*n_runs - (*n_runs > 0)];

    if (*n_runs > 0 && last->size == size && last->first + last->n == index) {
        last->n++;
    } else {
        runs[(*n_runs)++] = (struct run){.first = index, .n = 1, .size = size};
    }
}

/*
 * Fills `runs` (MAX_PARAMS long). *lasting_p: the answer may be kept. A handle says not whether
 * it is a function or a kernel of a library, so both are asked.
 */
static bool query_params(CUfunction f, struct run *runs, unsigned *n_p, bool *lasting_p)
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
            add_param(runs, &n, (uint16_t)i, (uint16_t)size);
        }
        r = param_info(f, is_kernel, i + 1, &size);
    }
    *n_p = n;
    *lasting_p = true;
    return r == CUDA_ERROR_INVALID_VALUE || r == CUDA_SUCCESS;
}

/* The first query may load the function: not to be done under another thread's capture. */
static bool query_relaxed(CUfunction f, struct run *runs, unsigned *n_p, bool *lasting_p)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool swapped = ps_driver.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    const bool known = query_params(f, runs, n_p, lasting_p);

    if (swapped) {
        ps_driver.cuThreadExchangeStreamCaptureMode(&mode);
    }
    return known;
}

static void publish(CUfunction f, unsigned seen, const struct run *runs, unsigned n,
                    struct layout *stale)
{
    if (stale != NULL && stale->n_runs == n && memcmp(stale->runs, runs, n * sizeof(*runs)) == 0) {
        atomic_store_explicit(&stale->generation, seen, memory_order_release);
        return;
    }
    struct layout *node = malloc(sizeof(*node) + n * sizeof(*runs));

    if (node == NULL) {
        return; /* asked again at the next launch */
    }
    node->function = f;
    node->n_runs = n;
    atomic_init(&node->generation, seen);
    memcpy(node->runs, runs, n * sizeof(*runs));
    _Atomic(struct layout *) *head = &buckets[bucket_of(f)];

    node->next = atomic_load_explicit(head, memory_order_acquire);
    while (!atomic_compare_exchange_weak_explicit(head, &node->next, node, memory_order_release,
                                                  memory_order_acquire)) {
    }
}

static inline bool names(const void *value, const struct window *w)
{
    uint64_t word;

    if (value == NULL) {
        return false;
    }
    memcpy(&word, value, sizeof(word));
    return __builtin_expect(word - w->base < w->size, 0);
}

static __attribute__((noinline)) void add_singles(struct ps_touches *t, void *const *values,
                                                  void *const *end)
{
    for (; values < end; values++) {
        uint64_t word;

        if (*values != NULL) {
            memcpy(&word, *values, sizeof(word));
            if (ps_in_window(word)) {
                ps_touches_add(t, word);
            }
        }
    }
}

/* Parameters that are one word each: most of those that name anything. */
static void scan_singles(struct ps_touches *t, void *const *values, size_t n, struct window w)
{
    void *const *const end = values + n;
    void *const *v = values;

    for (; v + 8 <= end; v += 8) {
        if (names(v[0], &w) || names(v[1], &w) || names(v[2], &w) || names(v[3], &w) ||
            names(v[4], &w) || names(v[5], &w) || names(v[6], &w) || names(v[7], &w)) {
            add_singles(t, v, v + 8);
        }
    }
    for (; v < end; v++) {
        if (names(*v, &w)) {
            add_singles(t, v, v + 1);
        }
    }
}

static void scan_runs(struct ps_touches *t, const struct run *runs, unsigned n_runs,
                      void *const *kernel_params)
{
    const struct window w = window_now();

    for (const struct run *run = runs; run < runs + n_runs; run++) {
        void *const *values = kernel_params + run->first;

        if (run->size == sizeof(uint64_t)) {
            scan_singles(t, values, run->n, w);
            continue;
        }
        for (unsigned i = 0; i < run->n; i++) {
            if (values[i] != NULL) {
                scan_bytes(t, values[i], run->size, &w);
            }
        }
    }
}

static __attribute__((noinline)) bool scan_unknown(struct ps_touches *t, CUfunction f,
                                                   void *const *kernel_params, struct layout *stale)
{
    const unsigned seen = atomic_load_explicit(&generation, memory_order_acquire);
    struct run *runs = calloc(MAX_PARAMS, sizeof(*runs));
    bool lasting = false;
    unsigned n = 0;

    if (runs == NULL) {
        return false;
    }
    const bool known = query_relaxed(f, runs, &n, &lasting);

    if (known) {
        scan_runs(t, runs, n, kernel_params);
        if (lasting) {
            publish(f, seen, runs, n, stale);
        }
    }
    free(runs);
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
    scan_runs(t, node->runs, node->n_runs, kernel_params);
    return true;
}

void ps_params_purge(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_acq_rel);
}
