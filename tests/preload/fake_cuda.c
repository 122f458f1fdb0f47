/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the fake driver that answers: look-ups, and the few queries whose answers the shim
 * acts on.
 */
#include "tests/preload/fake_cuda.h"

#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, NOT_FOUND = 500 };

static struct {
    unsigned symbol;
    int result, count;
} failing;

static int find(const char *symbol)
{
    for (unsigned i = 0; i < fake_n_symbols; i++) {
        if (strcmp(fake_symbols[i], symbol) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static int calls(const char *symbol)
{
    const int i = find(symbol);

    return i < 0 ? -1 : (int)fake_counts[i];
}

static void fail(const char *symbol, int result, int count)
{
    const int i = find(symbol);

    if (i < 0) {
        abort();
    }
    failing.symbol = (unsigned)i;
    failing.result = result;
    failing.count = count;
}

static void *pointer(const char *symbol)
{
    const int i = find(symbol);

    return i < 0 ? NULL : fake_pointers[i];
}

static const struct fake_function *choose(const char *name, int version, int ptds)
{
    const struct fake_function *best = NULL;

    for (unsigned i = 0; i < fake_n_functions; i++) {
        const struct fake_function *f = &fake_functions[i];

        if (strcmp(f->name, name) == 0 && f->ptds == ptds && f->version <= version &&
            (best == NULL || f->version > best->version)) {
            best = f;
        }
    }
    return best;
}

static const char *right(const char *name, int version, uint64_t flags);

static struct fake_control control = {
    .calls = calls,
    .fail_next = fail,
    .pointer = pointer,
    .right = right,
    .driver_version = 13000,
    .pools = {0x1000, 0x1000},
};

static const char *right(const char *name, int version, uint64_t flags)
{
    const struct fake_function *f = (flags & 2) != 0 ? choose(name, version, 1) : NULL;

    if (control.future_name != NULL && strcmp(name, control.future_name) == 0 && version >= 13010) {
        return control.future_symbol;
    }
    f = f != NULL ? f : choose(name, version, 0);
    return f == NULL ? NULL : fake_symbols[f->symbol];
}

static void reset(void)
{
    memset(fake_counts, 0, fake_n_symbols * sizeof(fake_counts[0]));
    failing.count = 0;
    control.param_sizes = NULL;
    control.is_kernel = 0;
    control.capture_status = 0;
    control.memory_type = 0;
    control.pools[0] = 0x1000;
    control.pools[1] = 0x1000;
    control.primary_active = 1;
}

struct fake_control *fake_control(void)
{
    control.reset = reset;
    return &control;
}

/* The answers of a context-free driver that is asked only what the shim asks. */
static int param_info(const uintptr_t args[6], int is_kernel)
{
    if (is_kernel != control.is_kernel || control.param_sizes == NULL) {
        return INVALID_VALUE;
    }
    for (uintptr_t i = 0; i < args[1]; i++) {
        if (control.param_sizes[i] == 0) {
            return INVALID_VALUE;
        }
    }
    if (control.param_sizes[args[1]] == 0) {
        return INVALID_VALUE;
    }
    *(size_t *)args[3] = control.param_sizes[args[1]];
    return OK;
}

static int write_pointer(uintptr_t out, uintptr_t value)
{
    if (out == 0) {
        return INVALID_VALUE;
    }
    *(uintptr_t *)out = value;
    return OK;
}

static int answer(const char *s, const uintptr_t args[6])
{
    if (strcmp(s, "cuFuncGetParamInfo") == 0) {
        return param_info(args, 0);
    }
    if (strcmp(s, "cuKernelGetParamInfo") == 0) {
        return param_info(args, 1);
    }
    if (strcmp(s, "cuStreamIsCapturing") == 0 && args[1] != 0) {
        *(int *)args[1] = control.capture_status;
    }
    if (strcmp(s, "cuCtxGetDevice") == 0 && args[0] != 0) {
        *(int *)args[0] = 0;
    }
    if (strcmp(s, "cuDeviceGetDefaultMemPool") == 0) {
        return write_pointer(args[0], control.pools[0]);
    }
    if (strcmp(s, "cuDeviceGetMemPool") == 0) {
        return write_pointer(args[0], control.pools[1]);
    }
    if (strcmp(s, "cuDevicePrimaryCtxGetState") == 0 && args[2] != 0) {
        *(int *)args[2] = control.primary_active;
    }
    if (strcmp(s, "cuPointerGetAttribute") == 0 && args[0] != 0) {
        if (control.memory_type == 0) {
            return INVALID_VALUE;
        }
        *(int *)args[0] = control.memory_type;
    }
    return OK;
}

int fake_called(unsigned symbol, const uintptr_t args[6])
{
    fake_counts[symbol]++;
    memcpy(control.args, args, sizeof(control.args));
    if (failing.count > 0 && failing.symbol == symbol) {
        failing.count--;
        return failing.result;
    }
    return answer(fake_symbols[symbol], args);
}

int cuDriverGetVersion(int *version)
{
    const char *set = getenv("FAKE_DRIVER_VERSION");

    *version = set != NULL ? atoi(set) : control.driver_version;
    return OK;
}

int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *status)
{
    const char *symbol = name == NULL ? NULL : right(name, version, flags);

    if (name == NULL || name[0] == '\0' || pfn == NULL) {
        return name != NULL && name[0] == '\0' ? OK : INVALID_VALUE;
    }
    *pfn = symbol == NULL ? NULL : pointer(symbol);
    if (status != NULL) {
        *status = symbol == NULL ? 1 : 0;
    }
    return symbol == NULL ? NOT_FOUND : OK;
}

int cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, pfn, version, flags, NULL);
}
