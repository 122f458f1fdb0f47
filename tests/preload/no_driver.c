/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program on a machine without the driver: probes find nothing, and our exports, called all the
 * same, say so.
 */
#include <dlfcn.h>
#include <stdio.h>

/* A weak reference is bound to our export: it then answers CUDA_ERROR_NOT_INITIALIZED. */
extern int cuMemAlloc_v2(void *, size_t) __attribute__((weak));

int main(void)
{
    static const char *const names[] = {
        "cuInit",   "cuLaunchKernel", "cuMemAllocAsync_ptsz", "cuGetProcAddress_v2",
        "ncclSend", "ncclGroupEnd"};
    void *program = dlopen(NULL, RTLD_NOW);

    if (dlopen("libcuda.so.1", RTLD_NOW) != NULL) {
        printf("there is a driver\n");
        return 77;
    }
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (dlsym(RTLD_DEFAULT, names[i]) != NULL || dlerror() == NULL ||
            dlsym(program, names[i]) != NULL || dlerror() == NULL) {
            printf("%s is found\n", names[i]);
            return 1;
        }
    }
    return cuMemAlloc_v2 == NULL || cuMemAlloc_v2(NULL, 0) == 3 ? 0 : 1;
}
