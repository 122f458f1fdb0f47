/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pagedstash probe`, started by `doctor` in a child: looks at the driver and at what is loaded, and prints lines
 * "key value" for it. In a process of its own, since a driver may hang or crash. One thread.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cuda.h>

#include "tools/cmd.h"
#include "tools/library.h"

static int see_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *slash = strrchr(info->dlpi_name, '/');

    (void)size;
    if (slash != NULL && strcmp(slash + 1, PS_LIBRARY_NAME) == 0) {
        *(bool *)arg = true;
    }
    return 0;
}

/* ISO C has no conversion from an object pointer to a function's. */
static bool find(void *lib, const char *name, void *function_p)
{
    void *const symbol = dlsym(lib, name);

    memcpy(function_p, &symbol, sizeof(symbol));
    return symbol != NULL;
}

static void probe_devices(void *lib)
{
    CUresult (*get_count)(int *);
    CUresult (*get_name)(char *, int, CUdevice);
    CUresult (*get_attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*get_bytes)(size_t *, CUdevice);
    int n_devices = 0;

    if (!find(lib, "cuDeviceGetCount", &get_count) || !find(lib, "cuDeviceGetName", &get_name) ||
        !find(lib, "cuDeviceGetAttribute", &get_attribute) ||
        !find(lib, "cuDeviceTotalMem_v2", &get_bytes) || get_count(&n_devices) != CUDA_SUCCESS) {
        return;
    }
    printf("devices %d\n", n_devices);
    for (int i = 0; i < n_devices; i++) {
        char name[128] = "?";
        size_t bytes = 0;
        int vmm = 0;
        int pools = 0;
        int major = 0;
        int minor = 0;

        get_name(name, (int)sizeof(name), i);
        get_bytes(&bytes, i);
        get_attribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, i);
        get_attribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, i);
        get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, i);
        get_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, i);
        printf("device %d %d %d %d %zu %s\n", i, vmm, pools, major * 10 + minor, bytes >> 20, name);
    }
}

int cmd_probe(int argc, char **argv)
{
    bool preloaded = false;
    struct link_map *map = NULL;
    int version = 0;

    (void)argc;
    (void)argv;
    dl_iterate_phdr(see_object, &preloaded);
    printf("preloaded %d\n", preloaded ? 1 : 0);
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (lib == NULL) {
        printf("error %s\n", dlerror());
        return 0;
    }
    if (dlinfo(lib, RTLD_DI_LINKMAP, &map) == 0) {
        printf("libcuda %s\n", map->l_name);
    }
    CUresult (*get_version)(int *);
    CUresult (*init)(unsigned);

    if (!find(lib, "cuDriverGetVersion", &get_version) || !find(lib, "cuInit", &init) ||
        get_version(&version) != CUDA_SUCCESS) {
        puts("error it is no CUDA driver");
        return 0;
    }
    printf("version %d\n", version);
    printf("params %d\n", dlsym(lib, "cuFuncGetParamInfo") != NULL ? 1 : 0);
    fflush(stdout);
    const CUresult result = init(0);

    printf("init %d\n", (int)result);
    if (result == CUDA_SUCCESS) {
        probe_devices(lib);
    }
    return 0;
}
