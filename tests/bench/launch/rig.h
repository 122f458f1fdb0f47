/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver by two ways: as any program finds it, that is through the preloaded library, and past that. One thread.
 * Any failure is said on stderr and ends the program.
 */
#ifndef PS_BENCH_RIG_H
#define PS_BENCH_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cudaTypedefs.h>

#include "tests/bench/launch/shapes.h"

#define BENCH_PARAM_BYTES 32768

enum bench_shape_id {
#define X(_name, _n, _size) BENCH_##_name,
    BENCH_SHAPES(X)
#undef X
        BENCH_N_SHAPES
};

struct bench_shape {
    const char *name;
    size_t n_params;
    size_t size; /* of each, in bytes */
};
extern const struct bench_shape bench_shapes[BENCH_N_SHAPES];

struct bench_rig {
    PFN_cuLaunchKernel_v4000 launch, bare_launch;
    PFN_cuStreamSynchronize_v2000 bare_synchronize;
    PFN_cuStreamCreate_v2000 stream_create;
    PFN_cuStreamDestroy_v4000 stream_destroy;
    PFN_cuMemAllocAsync_v11020 alloc;
    PFN_cuMemFreeAsync_v11020 free;
    PFN_cuMemcpyDtoDAsync_v3020 copy;
    CUfunction kernel[BENCH_N_SHAPES];
    CUdeviceptr
        source;     /* memory that is not the library's, `bytes` long, no two words of it alike */
    uint64_t bytes; /* of a tensor */
    char device[128];
    int driver_version;
    bool simulated;
};

void bench_ok(CUresult r, const char *what);
#define OK(_call) bench_ok(_call, #_call)

void bench_rig_open(struct bench_rig *rig, uint64_t bytes);

#endif
