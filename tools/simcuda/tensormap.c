/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: tensor maps: opaque to kernels here, which have no hardware to give them to, but they hold the base
 * address in word 0 as the driver's do, for whoever looks for addresses in parameters. No state.
 */
#include <string.h>

#include "tools/simcuda/core.h"

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                       const cuuint64_t *dims)
{
    if (map == NULL || address == NULL || (uintptr_t)address % 16 != 0 || rank < 1 || rank > 5 ||
        dims == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(map, 0, sizeof *map);
    map->opaque[0] = (cuuint64_t)(uintptr_t)address;
    map->opaque[1] = (cuuint64_t)type << 32 | rank;
    for (cuuint32_t i = 0; i < rank; i++) {
        map->opaque[2 + i] = dims[i];
    }
    return CUDA_SUCCESS;
}

/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
    const cuuint32_t *boxDim, const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
    SIM_ENTER(SIM_ANYTIME, t);
    (void)globalStrides;
    (void)boxDim;
    (void)elementStrides;
    (void)interleave;
    (void)swizzle;
    (void)l2Promotion;
    (void)oobFill;
    return sim_leave(encode(tensorMap, tensorDataType, tensorRank, globalAddress, globalDim));
}

/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
CUresult CUDAAPI cuTensorMapEncodeIm2col(
    CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
    const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner, cuuint32_t channelsPerPixel,
    cuuint32_t pixelsPerColumn, const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
    SIM_ENTER(SIM_ANYTIME, t);
    (void)globalStrides;
    (void)pixelBoxLowerCorner;
    (void)pixelBoxUpperCorner;
    (void)channelsPerPixel;
    (void)pixelsPerColumn;
    (void)elementStrides;
    (void)interleave;
    (void)swizzle;
    (void)l2Promotion;
    (void)oobFill;
    return sim_leave(encode(tensorMap, tensorDataType, tensorRank, globalAddress, globalDim));
}

CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap *tensorMap, void *globalAddress)
{
    SIM_ENTER(SIM_ANYTIME, t);
    if (tensorMap == NULL || globalAddress == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    tensorMap->opaque[0] = (cuuint64_t)(uintptr_t)globalAddress;
    return sim_leave(CUDA_SUCCESS);
}
