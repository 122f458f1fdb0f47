/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See intercept.h. The table is searched by halves; versions of one name follow one another, oldest
 * first.
 */
#include "shim/hooks.h"

#include "shim/intercept.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "policy/base/log.h"
#include "shim/dlsym.h"
#include "shim/entry.h"

#define PTDS_legacy false
#define PTDS_ptds   true
#define PTDS_ptsz   true
#define TOUCHES     true
#define SAFE        false
#define ORDERS      false

#define HOOK(_symbol, _name, _version, _variant, _danger, _stream, _params, ...)                   \
    extern CUresult ps_wrap_##_symbol _params;
#define HOOK_BODY HOOK
#include "shim/hooks.def"
#undef HOOK

#define HOOK(_symbol, _name, _version, _variant, _danger, ...)                                     \
    [PS_HOOK_##_symbol] = {.name = #_name,                                                         \
                           .symbol = #_symbol,                                                     \
                           .version = (_version),                                                  \
                           .ptds = PTDS_##_variant,                                                \
                           .touches = (_danger),                                                   \
                           .wrapper = (void *)ps_wrap_##_symbol},
const struct ps_hook_row ps_hook_table[PS_N_HOOKS] = {
#include "shim/hooks.def"
};
#undef HOOK
#undef HOOK_BODY

_Atomic(void *) ps_hook_next[PS_N_HOOKS];           /* any value but NULL is right for good */
static _Atomic(void *) driver_function[PS_N_HOOKS]; /* likewise */

/* ---- the table ---- */

/* Orders a table's name against the first n characters of another. */
static int compare(const char *name, const char *text, size_t n)
{
    const int c = strncmp(name, text, n);

    return c != 0 ? c : name[n] != '\0';
}

static const struct ps_hook_row *find(const char *text, size_t n, unsigned *n_p)
{
    unsigned low = 0, high = PS_N_HOOKS;

    while (low < high) {
        const unsigned middle = (low + high) / 2;

        if (compare(ps_hook_table[middle].name, text, n) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const unsigned first = low;

    while (low < PS_N_HOOKS && compare(ps_hook_table[low].name, text, n) == 0) {
        low++;
    }
    *n_p = low - first;
    return low == first ? NULL : &ps_hook_table[first];
}

const struct ps_hook_row *ps_hook_find_name(const char *name, unsigned *n_p)
{
    return find(name, strlen(name), n_p);
}

/* "cuMemcpyHtoD_v2_ptds" is name "cuMemcpyHtoD", form 2. Returns the name's length. */
static size_t split_symbol(const char *symbol, int *form_p)
{
    size_t n = strlen(symbol);

    *form_p = 1;
    if (n > 5 && (strcmp(symbol + n - 5, "_ptds") == 0 || strcmp(symbol + n - 5, "_ptsz") == 0)) {
        n -= 5;
    }
    size_t digits = 0;

    while (digits < 2 && digits < n && symbol[n - 1 - digits] >= '0' &&
           symbol[n - 1 - digits] <= '9') {
        digits++;
    }
    if (digits == 0 || n < digits + 2 || symbol[n - digits - 1] != 'v' ||
        symbol[n - digits - 2] != '_') {
        return n;
    }
    *form_p = 0;
    for (size_t i = n - digits; i < n; i++) {
        *form_p = *form_p * 10 + (symbol[i] - '0');
    }
    return n - digits - 2;
}

const struct ps_hook_row *ps_hook_find_symbol(const char *symbol)
{
    int form;
    unsigned n;
    const struct ps_hook_row *row = find(symbol, split_symbol(symbol, &form), &n);

    for (unsigned i = 0; row != NULL && i < n; i++) {
        if (strcmp(row[i].symbol, symbol) == 0) {
            return &row[i];
        }
    }
    return NULL;
}

/* ---- real pointers ---- */

void *ps_hook_driver_function(enum ps_hook_id id)
{
    void *p = atomic_load_explicit(&driver_function[id], memory_order_relaxed);

    if (p == NULL) {
        p = ps_driver_symbol(ps_hook_table[id].symbol);
        atomic_store_explicit(&driver_function[id], p, memory_order_relaxed);
    }
    return p;
}

static void *give(const struct ps_hook_row *row, void *real)
{
    void *expected = NULL;

    if (ps_in_us(
            real)) { /* a libcuda whose own references are bound to the program's first definition */
        real = ps_hook_driver_function((enum ps_hook_id)(row - ps_hook_table));
    }
    atomic_compare_exchange_strong(&ps_hook_next[row - ps_hook_table], &expected, real);
    return row->wrapper;
}

void *ps_hook_resolve(enum ps_hook_id id)
{
    void *expected = NULL;
    void *p = NULL;

    ps_driver_init(); /* usable or not: without paging every wrapper still goes on to the driver */
    if (ps_libcuda_handle() == NULL) {
        return NULL;
    }
    p = ps_libc_dlsym(RTLD_NEXT, ps_hook_table[id].symbol);
    if (p == NULL) {
        p = ps_hook_driver_function(id);
    }
    if (p != NULL && !atomic_compare_exchange_strong(&ps_hook_next[id], &expected, p)) {
        p = expected;
    }
    return p;
}

void *ps_hook_enter(enum ps_hook_id id, const void *caller, bool *straight_p)
{
    void *real = atomic_load_explicit(&ps_hook_next[id], memory_order_relaxed);

    if (real == NULL) {
        real = ps_hook_resolve(id);
        if (real == NULL) {
            return NULL;
        }
    }
    if (ps_hook_depth != 0) {
        void *own = ps_hook_driver_function(id);

        *straight_p = true;
        return own != NULL ? own : real;
    }
    *straight_p = ps_in_libcuda(caller) || !ps_entry_active();
    ps_hook_depth += !*straight_p;
    return real;
}

CUresult ps_hook_no_driver(void)
{
    return ps_libcuda_handle() == NULL ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- answers ---- */

/* Names that a driver newer than we know may have, and that would touch memory behind our back. */
static bool sounds_touching(const char *name)
{
    static const char *const starts[] = {"cuLaunch", "cuMemcpy", "cuMemset", "cuStreamWrite",
                                         "cuStreamBatch"};

    if (strcmp(name, "cuLaunchHostFunc") == 0) {
        return false;
    }
    for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        if (strncmp(name, starts[i], strlen(starts[i])) == 0) {
            return true;
        }
    }
    return false;
}

struct request {
    int version;
    cuuint64_t flags;
    const void *real;
};

/*
 * The row whose signature `real` has. The newest one not newer than asked for, as the driver itself
 * chooses; where there is more than one to choose from, or the version is beyond the toolkit that
 * we know, the pointers must agree.
 */
static const struct ps_hook_row *match_variant(const struct ps_proc_source *src,
                                               const struct ps_hook_row *row, unsigned n, bool ptds,
                                               const struct request *want)
{
    const struct ps_hook_row *newest = NULL;

    for (unsigned i = n; i-- > 0;) {
        if (row[i].ptds != ptds || row[i].version > want->version) {
            continue;
        }
        if (src->query(src, row[i].name, row[i].version, want->flags) == want->real) {
            return &row[i];
        }
        newest = newest == NULL ? &row[i] : newest;
    }
    return want->version <= CUDA_VERSION ? newest : NULL;
}

static const struct ps_hook_row *match(const struct ps_proc_source *src,
                                       const struct ps_hook_row *row, unsigned n,
                                       const struct request *want)
{
    const bool ptds = (want->flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const struct ps_hook_row *found = match_variant(src, row, n, ptds, want);

    /* Functions without a per-thread variant, and versions older than it. */
    return found == NULL && ptds ? match_variant(src, row, n, false, want) : found;
}

void *ps_answer_proc(const struct ps_proc_source *src, const char *name, int version,
                     cuuint64_t flags, void *real)
{
    unsigned n;
    const struct ps_hook_row *rows = ps_hook_find_name(name, &n);

    if (!ps_driver_init()) {
        return real;
    }
    if (rows == NULL) {
        const struct ps_hook_row *exact = ps_hook_find_symbol(name);

        if (exact != NULL) {
            return give(exact, real);
        }
        return version > CUDA_VERSION && sounds_touching(name) ? ps_stub_for(real, name, version)
                                                               : real;
    }
    const struct request want = {version, flags, real};
    const struct ps_hook_row *row = match(src, rows, n, &want);

    if (row != NULL) {
        return give(row, real);
    }
    if (version > CUDA_VERSION && rows[n - 1].touches) {
        return ps_stub_for(real, name, version);
    }
    if (version > CUDA_VERSION) {
        ps_debug("%s of version %d is not known and passes", name, version);
    }
    return real;
}

void *ps_answer_symbol(const char *symbol, void *real)
{
    const struct ps_hook_row *row = ps_hook_find_symbol(symbol);

    if (row != NULL) {
        return give(row, real);
    }
    int form, newest = 1;
    unsigned n;
    const struct ps_hook_row *rows = find(symbol, split_symbol(symbol, &form), &n);

    for (unsigned i = 0; i < n; i++) {
        int f;

        split_symbol(rows[i].symbol, &f);
        newest = f > newest ? f : newest;
    }
    return rows != NULL && rows[n - 1].touches && form > newest ? ps_stub_for(real, symbol, 0)
                                                                : real;
}

/* ---- cuGetProcAddress ---- */

static void *query_v1(const struct ps_proc_source *src, const char *name, int version,
                      cuuint64_t flags)
{
    const PFN_cuGetProcAddress_v11030 get = (PFN_cuGetProcAddress_v11030)src->get_proc_address;
    void *p = NULL;

    return get(name, &p, version, flags) == CUDA_SUCCESS ? p : NULL;
}

static void *query_v2(const struct ps_proc_source *src, const char *name, int version,
                      cuuint64_t flags)
{
    const PFN_cuGetProcAddress_v12000 get = (PFN_cuGetProcAddress_v12000)src->get_proc_address;
    void *p = NULL;

    return get(name, &p, version, flags, NULL) == CUDA_SUCCESS ? p : NULL;
}

CUresult ps_hook_get_proc_address_v1(PFN_cuGetProcAddress_v11030 real, bool ptds, const char *name,
                                     void **pfn, int version, cuuint64_t flags)
{
    const struct ps_proc_source src = {query_v1, (void *)real};
    const CUresult r = real(name, pfn, version, flags);

    (void)ptds;
    if (r == CUDA_SUCCESS && name != NULL && pfn != NULL && *pfn != NULL) {
        *pfn = ps_answer_proc(&src, name, version, flags, *pfn);
    }
    return r;
}

/* NOLINTNEXTLINE(readability-function-size): the driver's parameters */
CUresult ps_hook_get_proc_address(PFN_cuGetProcAddress_v12000 real, bool ptds, const char *name,
                                  void **pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status_p)
{
    const struct ps_proc_source src = {query_v2, (void *)real};
    const CUresult r = real(name, pfn, version, flags, status_p);

    (void)ptds;
    if (r == CUDA_SUCCESS && name != NULL && pfn != NULL && *pfn != NULL) {
        *pfn = ps_answer_proc(&src, name, version, flags, *pfn);
    }
    return r;
}

/* ---- stubs ---- */

#define STUB_BYTES 16

extern const char ps_stub_code[] __attribute__((visibility("hidden")));

static struct {
    _Atomic(void *) real; /* claims the stub; set once */
    _Atomic(const char *) name;
    _Atomic int version;
} stubs[PS_N_STUBS];
static _Atomic unsigned n_made, n_called;

void *ps_stub_for(void *real, const char *name, int version)
{
    for (unsigned i = 0; i < PS_N_STUBS; i++) {
        void *expected = NULL;

        if (atomic_compare_exchange_strong(&stubs[i].real, &expected, real)) {
            atomic_store_explicit(&stubs[i].version, version, memory_order_relaxed);
            atomic_store_explicit(&stubs[i].name, strdup(name), memory_order_relaxed);
            atomic_fetch_add_explicit(&n_made, 1, memory_order_relaxed);
            ps_info("%s of version %d is not known: paging ends if it is called", name, version);
            return (void *)(uintptr_t)&ps_stub_code[(size_t)i * STUB_BYTES];
        }
        if (expected == real) {
            return (void *)(uintptr_t)&ps_stub_code[(size_t)i * STUB_BYTES];
        }
    }
    ps_hook_unseen("more than 64 driver functions of unknown versions");
    return real;
}

void *ps_stub_called(unsigned index)
{
    const char *name = atomic_load_explicit(&stubs[index].name, memory_order_relaxed);

    if (ps_paging()) {
        char why[160];

        atomic_fetch_add_explicit(&n_called, 1, memory_order_relaxed);
        snprintf(why, sizeof(why), "the job calls %s in a form newer than CUDA %d.%d",
                 name == NULL ? "a function" : name, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
        ps_hook_unseen(why);
    }
    return atomic_load_explicit(&stubs[index].real, memory_order_relaxed);
}

unsigned ps_stubs_made(void)
{
    return atomic_load_explicit(&n_made, memory_order_relaxed);
}

unsigned ps_stubs_called(void)
{
    return atomic_load_explicit(&n_called, memory_order_relaxed);
}
