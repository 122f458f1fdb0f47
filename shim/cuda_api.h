/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h with every function under its own exported name (cuMemAlloc and cuMemAlloc_v2 apart, no
 * renaming by macros) and the function types of all versions. Included instead of cuda.h by the
 * files that define or look up hooks.
 */
#ifndef PS_SHIM_CUDA_API_H
#define PS_SHIM_CUDA_API_H

#ifdef __cuda_cuda_h__
#    error "include shim/cuda_api.h before cuda.h"
#endif
/* The header's own switch for it. */
#define __CUDA_API_VERSION_INTERNAL /* NOLINT(bugprone-reserved-identifier) */

#include <cuda.h>
#include <cudaTypedefs.h>

#endif
