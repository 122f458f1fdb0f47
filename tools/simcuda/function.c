/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: asking functions and kernels for names, attributes, parameters and occupancy. Under the big lock. */
#include "tools/simcuda/core.h"

static CUresult param_info(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    struct sim_func *f;
    const CUresult result = sim_func_check(handle, &f);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (offset == NULL || index >= f->row->n_params) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *offset = sim_param_offset(f->row, index);
    if (size != NULL) {
        *size = f->row->sizes[index];
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
                                    size_t *paramSize)
{
    SIM_ENTER(0, t);
    return sim_leave(param_info(func, paramIndex, paramOffset, paramSize));
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                      size_t *paramSize)
{
    SIM_ENTER(0, t);
    return sim_leave(param_info((CUfunction)kernel, paramIndex, paramOffset, paramSize));
}

static CUresult get_name(const char **name, CUfunction handle)
{
    struct sim_func *f;
    const CUresult result = sim_func_check(handle, &f);
    if (result == CUDA_SUCCESS && name != NULL) {
        *name = f->row->name;
    }
    return name == NULL ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction hfunc)
{
    SIM_ENTER(0, t);
    return sim_leave(get_name(name, hfunc));
}

CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel hfunc)
{
    SIM_ENTER(0, t);
    return sim_leave(get_name(name, (CUfunction)hfunc));
}

CUresult CUDAAPI cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    SIM_ENTER(0, t);
    struct sim_func *f;
    const CUresult result = sim_func_check(hfunc, &f);
    if (result == CUDA_SUCCESS && hmod != NULL) {
        *hmod = (CUmodule)f->module;
    }
    return sim_leave(hmod == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

static CUresult attribute(int *get, const int *set, CUfunction_attribute attrib, CUfunction handle)
{
    struct sim_func *f;
    const CUresult result = sim_func_check(handle, &f);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((int)attrib < 0 || (size_t)attrib >= sizeof f->attributes / sizeof f->attributes[0]) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (get != NULL) {
        *get = f->attributes[attrib];
    } else {
        f->attributes[attrib] = *set;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    SIM_ENTER(0, t);
    return sim_leave(pi == NULL ? CUDA_ERROR_INVALID_VALUE : attribute(pi, NULL, attrib, hfunc));
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    SIM_ENTER(0, t);
    return sim_leave(attribute(NULL, &value, attrib, hfunc));
}

CUresult CUDAAPI cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel,
                                      CUdevice dev)
{
    SIM_ENTER(0, t);
    (void)dev;
    return sim_leave(pi == NULL ? CUDA_ERROR_INVALID_VALUE
                                : attribute(pi, NULL, attrib, (CUfunction)kernel));
}

CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                      CUdevice dev)
{
    SIM_ENTER(0, t);
    (void)dev;
    return sim_leave(attribute(NULL, &val, attrib, (CUfunction)kernel));
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    SIM_ENTER(0, t);
    (void)config;
    struct sim_func *f;
    return sim_leave(sim_func_check(hfunc, &f));
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    SIM_ENTER(0, t);
    struct sim_func *f;
    const CUresult result = sim_func_check(function, &f);
    if (result == CUDA_SUCCESS && state != NULL) {
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    }
    return sim_leave(state == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUresult CUDAAPI cuFuncLoad(CUfunction function)
{
    SIM_ENTER(0, t);
    struct sim_func *f;
    return sim_leave(sim_func_check(function, &f));
}

/* Threads alone limit a multiprocessor here. */
static CUresult occupancy(int *numBlocks, CUfunction func, int blockSize)
{
    struct sim_func *f;
    const CUresult result = sim_func_check(func, &f);
    if (result != CUDA_SUCCESS || numBlocks == NULL || blockSize < 1 || blockSize > 1024) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    *numBlocks = 2048 / blockSize > 32 ? 32 : 2048 / blockSize;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func,
                                                             int blockSize, size_t dynamicSMemSize)
{
    SIM_ENTER(0, t);
    (void)dynamicSMemSize;
    return sim_leave(occupancy(numBlocks, func, blockSize));
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize, unsigned int flags)
{
    SIM_ENTER(0, t);
    (void)dynamicSMemSize;
    (void)flags;
    return sim_leave(occupancy(numBlocks, func, blockSize));
}

static CUresult best_size(int *minGridSize, int *blockSize, CUfunction func, int limit)
{
    struct sim_func *f;
    const CUresult result = sim_func_check(func, &f);
    if (result != CUDA_SUCCESS || minGridSize == NULL || blockSize == NULL) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    *blockSize = limit > 0 && limit < 1024 ? limit : 1024;
    *minGridSize = 132 * (2048 / *blockSize);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                                  CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                  size_t dynamicSMemSize, int blockSizeLimit)
{
    SIM_ENTER(0, t);
    (void)blockSizeToDynamicSMemSize;
    (void)dynamicSMemSize;
    return sim_leave(best_size(minGridSize, blockSize, func, blockSizeLimit));
}

/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(
    int *minGridSize, int *blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
    unsigned int flags)
{
    SIM_ENTER(0, t);
    (void)blockSizeToDynamicSMemSize;
    (void)dynamicSMemSize;
    (void)flags;
    return sim_leave(best_size(minGridSize, blockSize, func, blockSizeLimit));
}
