/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every program that runs under the preloaded test object needs. Include before any CUDA
 * header.
 */
#ifndef PS_TESTS_PRELOADED_H
#define PS_TESTS_PRELOADED_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/preload/fake_cuda.h"
#include "tests/support/engine_double.h"

static inline void *need(void *p, const char *what)
{
    if (p == NULL) {
        fprintf(stderr, "no %s: %s\n", what, dlerror());
        exit(2);
    }
    return p;
}

static inline void *load_cuda(void)
{
    return need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
}

static inline struct fake_control *load_fake(void *cuda)
{
    struct fake_control *(*get)(void) = need(dlsym(cuda, "fake_control"), "fake_control");

    return get();
}

static inline struct engine_double *load_double(void)
{
    struct engine_double *(*get)(void) =
        need(dlsym(RTLD_DEFAULT, "engine_double"), "engine_double");

    return get();
}

static inline void set_window(uint64_t base, uint64_t size)
{
    void (*set)(uint64_t, uint64_t) = need(dlsym(RTLD_DEFAULT, "engine_double_window"), "window");

    set(base, size);
}

#endif
