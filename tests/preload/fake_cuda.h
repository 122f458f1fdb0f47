/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 that does nothing but count: one function a symbol of the driver, so that it shows
 * which of them a call ends in. Tests drive it through fake_control(), found by dlsym. Not for more
 * than one thread at a time, look-ups excepted.
 */
#ifndef PS_TESTS_FAKE_CUDA_H
#define PS_TESTS_FAKE_CUDA_H

#include <stdint.h>

struct fake_function {
    const char *name;
    int version;
    int ptds;
    unsigned symbol; /* index */
};

struct fake_control {
    /* Calls of a symbol so far; a symbol that does not exist gives -1. */
    int (*calls)(const char *symbol);
    void (*reset)(void);
    /* The next `count` calls of the symbol give `result`. */
    void (*fail_next)(const char *symbol, int result, int count);
    /* The function itself. */
    void *(*pointer)(const char *symbol);
    /* The symbol that a real driver would answer for a look-up, or NULL. */
    const char *(*right)(const char *name, int version, uint64_t flags);
    /* Arguments of the last call of any symbol that has not been answered by hand. */
    uintptr_t args[6];
    int driver_version;
    /*
     * Kernels: cuFuncGetParamInfo and cuKernelGetParamInfo answer these sizes, up to the first 0.
     */
    const uint64_t *param_sizes;
    int is_kernel;      /* only cuKernelGetParamInfo knows the handle */
    int capture_status; /* of every stream */
    int memory_type;    /* cuPointerGetAttribute; 0: not known to the driver */
    uintptr_t pools[2]; /* default and current */
    int primary_active;
    /*
     * Names beyond the headers answer to cuGetProcAddress too: at version 13010 these names give
     * these symbols.
     */
    const char *future_name, *future_symbol;
};

struct fake_control *fake_control(void);

/* ---- inside the fake, which sees no CUDA header ---- */
#ifdef PS_FAKE_CUDA
extern const char *const fake_symbols[];
extern const unsigned fake_n_symbols;
extern unsigned fake_counts[];
extern const struct fake_function fake_functions[];
extern const unsigned fake_n_functions;
extern void *const fake_pointers[];

int fake_called(unsigned symbol, const uintptr_t args[6]);

/* Whatever it is called with: six registers are looked at. */
#    define FAKE(_index, _symbol)                                                                  \
        int _symbol(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f); \
        int _symbol(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f)  \
        {                                                                                          \
            return fake_called(_index, (const uintptr_t[6]){a, b, c, d, e, f});                    \
        }

int cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *status);
int cuDriverGetVersion(int *version);

#endif

#endif
