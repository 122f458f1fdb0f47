/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin, opened for itself only, that is linked with libcuda. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

int cuMemsetD32Async(uint64_t dst, unsigned value, size_t n, void *stream);
__attribute__((visibility("default"))) void *plugin_find(void);
__attribute__((visibility("default"))) int plugin_fill(uint64_t dst);

void *plugin_find(void)
{
    void *volatile p = dlsym(RTLD_DEFAULT, "cuMemcpyAsync");

    return p;
}

int plugin_fill(uint64_t dst)
{
    return cuMemsetD32Async(dst, 0, 1, (void *)(uintptr_t)9);
}
