/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver's functions as a table, so that kernels/ and shim/ never re-enter the hooks. Filled once
 * by shim/driver.c before any thread uses it, read-only afterwards.
 *
 * All entries are the legacy-default-stream variants; callers pass explicit stream handles
 * (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, or a created one), never NULL.
 */
#ifndef PS_KERNELS_DRIVER_H
#define PS_KERNELS_DRIVER_H

#include <cuda.h>
#include <cudaTypedefs.h>

struct ps_driver {
#define PS_DRIVER_FN(_name, _version, _needed) PFN_##_name##_v##_version _name;
#include "kernels/driver_fns.def"
#undef PS_DRIVER_FN
};

/* Name of a CUresult as the driver gives it, or "CUDA error"; never NULL. Any thread. */
const char *ps_driver_error_name(const struct ps_driver *drv, CUresult result);

#endif
