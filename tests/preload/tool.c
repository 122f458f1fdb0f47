/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another tool that stands in for dlsym and a driver function, written as such tools are: a C dlsym
 * that calls the next one, and a wrapper that finds its real function at the first call: TOOL_PLAIN
 * by the dlsym of the process on libcuda's handle, else by RTLD_NEXT.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/preload/tool.h"

#define VISIBLE __attribute__((visibility("default")))

typedef int (*memset_fn)(uint64_t, unsigned char, size_t, void *);
typedef void *(*dlsym_fn)(void *, const char *);

VISIBLE int cuMemsetD8Async(uint64_t dst, unsigned char value, size_t n, void *stream);
VISIBLE int tool_calls(void);

static int n_calls;
static bool resolving; /* its own dlsym must not answer itself */

VISIBLE int tool_calls(void)
{
    return n_calls;
}

static dlsym_fn next_dlsym(void)
{
    dlsym_fn f = (dlsym_fn)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");

    return f != NULL ? f : (dlsym_fn)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
}

VISIBLE int cuMemsetD8Async(uint64_t dst, unsigned char value, size_t n, void *stream)
{
    static memset_fn real;

    if (real == NULL) {
#ifdef TOOL_PLAIN
        resolving = true;
        real = (memset_fn)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemsetD8Async");
        resolving = false;
#else
        void *volatile p = next_dlsym()(RTLD_NEXT, "cuMemsetD8Async");

        real = (memset_fn)p;
#endif
    }
    n_calls++;
    return real(dst, value, n, stream);
}

VISIBLE void *dlsym(void *restrict handle, const char *restrict name)
{
    if (strcmp(name, "cuMemsetD8Async") == 0 && handle != RTLD_NEXT && !resolving) {
        return (void *)cuMemsetD8Async;
    }
    return next_dlsym()(handle, name);
}
