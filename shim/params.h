/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameter layouts of kernels, from the driver (12.4 and later), and the search for addresses in
 * parameter bytes. Any thread. Layouts are cached for good by function handle; readers take no
 * lock. A layout made before the last unload of a module or library is asked for again, since the
 * handle may belong to another kernel by now.
 */
#ifndef PS_SHIM_PARAMS_H
#define PS_SHIM_PARAMS_H

#include "shim/cuda_api.h"

#include "shim/engine.h"

/* Adds every address of the window in `bytes` bytes, at any 4-byte step from their start. */
void ps_params_scan(struct ps_touches *t, const void *data, size_t bytes);
/*
 * Adds the addresses in one launch's parameters. False: the layout is not to be had, so they are
 * not known; the caller must not rely on `t`. A function that the driver does not know has none (it
 * will refuse the launch).
 */
bool ps_params_scan_kernel(struct ps_touches *t, CUfunction f, void *const *kernel_params);
/* CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE. */
void ps_params_scan_extra(struct ps_touches *t, void *const *extra);
/* Before a module, library or context goes away. */
void ps_params_purge(void);

#endif
