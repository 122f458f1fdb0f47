/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver as the replay calls it, found at run time as libcudart finds it. Written by
 * tape_device_open, read-only afterwards.
 */
#ifndef TAPE_DEVICE_H
#define TAPE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>
#include <cudaTypedefs.h>

#define TAPE_DEVICES_MAX 8
#define TAPE_EXIT_NONE   77 /* exit status: there is no driver or no device */

struct tape_driver {
#define TAPE_FN(_name, _version) PFN_##_name##_v##_version _name;
#include "tools/tape/device_fns.def"
#undef TAPE_FN
};

struct tape_device {
    struct tape_driver cu;
    uint32_t n_devices;
    CUcontext contexts[TAPE_DEVICES_MAX]; /* the primary ones */
    CUmodule modules[TAPE_DEVICES_MAX];
    CUfunction touch[TAPE_DEVICES_MAX];
};

/* The first n devices, or as many as there are. False, and a line, when there is none. */
bool tape_device_open(struct tape_device *dev, uint32_t n);
void tape_device_close(struct tape_device *dev);
/* True on success; else a line on stderr. */
bool tape_device_ok(const struct tape_device *dev, CUresult r, const char *what);

#endif
