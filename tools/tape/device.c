/* SPDX-License-Identifier: Apache-2.0 */
/* See device.h. One thread opens and closes; tape_device_ok may be called by any. */
#include "tools/tape/device.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

extern const unsigned char tape_image[]; /* the kernel's fat binary, made at build time */

bool tape_device_ok(const struct tape_device *dev, CUresult r, const char *what)
{
    const char *name = NULL;

    if (r == CUDA_SUCCESS) {
        return true;
    }
    if (dev->cu.cuGetErrorName == NULL || dev->cu.cuGetErrorName(r, &name) != CUDA_SUCCESS) {
        name = "unknown error";
    }
    fprintf(stderr, "pagedstash-tape: %s failed: %s\n", what, name);
    return false;
}

static bool look_up(struct tape_device *dev)
{
    static const struct {
        const char *name;
        int version;
        size_t offset;
    } wanted[] = {
#define TAPE_FN(_name, _version) {#_name, _version, offsetof(struct tape_driver, _name)},
#include "tools/tape/device_fns.def"
#undef TAPE_FN
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    PFN_cuGetProcAddress_v12000 get = NULL;

    if (library == NULL) {
        fprintf(stderr, "pagedstash-tape: cannot load libcuda.so.1: %s\n", dlerror());
        return false;
    }
    *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
    if (get == NULL) {
        fprintf(stderr, "pagedstash-tape: libcuda.so.1 is older than CUDA 12\n");
        return false;
    }
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *fn = NULL;
        CUdriverProcAddressQueryResult found;

        if (get(wanted[i].name, &fn, wanted[i].version, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                &found) != CUDA_SUCCESS ||
            fn == NULL) {
            fprintf(stderr, "pagedstash-tape: the driver has no %s\n", wanted[i].name);
            return false;
        }
        memcpy((char *)&dev->cu + wanted[i].offset, &fn, sizeof(fn));
    }
    return true;
}

static bool open_one(struct tape_device *dev, uint32_t i)
{
    CUdevice device;

    return tape_device_ok(dev, dev->cu.cuDeviceGet(&device, (int)i), "cuDeviceGet") &&
           tape_device_ok(dev, dev->cu.cuDevicePrimaryCtxRetain(&dev->contexts[i], device),
                          "cuDevicePrimaryCtxRetain") &&
           tape_device_ok(dev, dev->cu.cuCtxSetCurrent(dev->contexts[i]), "cuCtxSetCurrent") &&
           tape_device_ok(dev, dev->cu.cuModuleLoadData(&dev->modules[i], tape_image),
                          "cuModuleLoadData") &&
           tape_device_ok(
               dev, dev->cu.cuModuleGetFunction(&dev->touch[i], dev->modules[i], "tape_touch"),
               "cuModuleGetFunction");
}

bool tape_device_open(struct tape_device *dev, uint32_t n)
{
    int n_there = 0;

    memset(dev, 0, sizeof(*dev));
    if (!look_up(dev) || !tape_device_ok(dev, dev->cu.cuInit(0), "cuInit") ||
        !tape_device_ok(dev, dev->cu.cuDeviceGetCount(&n_there), "cuDeviceGetCount") ||
        n_there < 1) {
        return false;
    }
    dev->n_devices = n < (uint32_t)n_there ? n : (uint32_t)n_there;
    dev->n_devices = dev->n_devices < TAPE_DEVICES_MAX ? dev->n_devices : TAPE_DEVICES_MAX;
    for (uint32_t i = 0; i < dev->n_devices; i++) {
        if (!open_one(dev, i)) {
            return false;
        }
    }
    return true;
}

void tape_device_close(struct tape_device *dev)
{
    for (uint32_t i = 0; i < dev->n_devices; i++) {
        CUdevice device;

        if (dev->modules[i] != NULL && dev->cu.cuCtxSetCurrent(dev->contexts[i]) == CUDA_SUCCESS) {
            (void)dev->cu.cuModuleUnload(dev->modules[i]);
        }
        if (dev->contexts[i] != NULL && dev->cu.cuDeviceGet(&device, (int)i) == CUDA_SUCCESS) {
            (void)dev->cu.cuDevicePrimaryCtxRelease(device);
        }
    }
}
