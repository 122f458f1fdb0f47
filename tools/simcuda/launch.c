/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: kernel launches. Parameters are copied at the call. Under the big lock. */
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/blocks.h"
#include "tools/simcuda/core.h"

/* The packed buffer of the `extra` form, or NULL. */
static CUresult find_buffer(void **extra, const uint8_t **buffer_p, size_t *size_p)
{
    *buffer_p = NULL;
    *size_p = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            *buffer_p = extra[1];
        } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            memcpy(size_p, extra[1], sizeof *size_p);
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

void **sim_launch_copy_params(const struct ps_sim_kernel *row, void **params, const uint8_t *buffer)
{
    const size_t head = SIM_ROUND(row->n_params * sizeof(void *), 64);
    size_t bytes = head + 64;
    for (size_t i = 0; i < row->n_params; i++) {
        bytes += SIM_ROUND(row->sizes[i], 64);
    }
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes) != 0) {
        sim_no_memory();
    }
    void **copy = memory;
    uint8_t *at = (uint8_t *)memory + head;
    for (size_t i = 0; i < row->n_params; i++) {
        memcpy(at, params != NULL ? params[i] : buffer + sim_param_offset(row, i), row->sizes[i]);
        copy[i] = at;
        at += SIM_ROUND(row->sizes[i], 64);
    }
    return copy;
}

CUresult sim_launch_make(struct sim_stream *s, const struct sim_func *f, const unsigned dims[6],
                         void **params, void **extra, struct sim_op **op_p)
{
    const struct ps_sim_kernel *row = f->row;
    const uint64_t threads = (uint64_t)dims[3] * dims[4] * dims[5];
    for (size_t i = 0; i < 6; i++) {
        if (dims[i] == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (threads > 1024 || dims[1] > 65535 || dims[2] > 65535 || (params != NULL && extra != NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const uint8_t *buffer = NULL;
    size_t size = 0;
    if (extra != NULL) {
        const CUresult result = find_buffer(extra, &buffer, &size);
        const size_t last = row->n_params - 1;
        if (result != CUDA_SUCCESS ||
            (row->n_params > 0 &&
             (buffer == NULL || size < sim_param_offset(row, last) + row->sizes[last]))) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (row->n_params > 0 && params == NULL && buffer == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_op *op = sim_op_new(SIM_OP_KERNEL, s, row->name);
    op->launch.row = row;
    op->launch.gives_way = sim_blocks_give_way(row);
    op->launch.func = (void *)(uintptr_t)f;
    op->launch.n_blocks = (uint64_t)dims[0] * dims[1] * dims[2];
    memcpy(op->launch.grid, dims, sizeof op->launch.grid);
    memcpy(op->launch.block, dims + 3, sizeof op->launch.block);
    op->launch.params = sim_launch_copy_params(row, params, buffer);
    *op_p = op;
    return CUDA_SUCCESS;
}

/* Without opting in, which no function of simcuda does. */
#define SHARED_BYTES_MAX 49152

/* dims[6]: bytes of dynamic shared memory, which simcuda's kernels do not look at. */
static CUresult launch(struct sim_thread *t, CUfunction handle, const unsigned dims[7],
                       CUstream hStream, void **params, void **extra)
{
    struct sim_func *f;
    struct sim_stream *s;
    struct sim_op *op;
    CUresult result = sim_func_check(handle, &f);
    if (result == CUDA_SUCCESS && dims[6] > SHARED_BYTES_MAX) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        result = sim_stream_get(t, hStream, &s);
    }
    if (result == CUDA_SUCCESS) {
        result = sim_launch_make(s, f, dims, params, extra, &op);
    }
    return result == CUDA_SUCCESS ? sim_submit(t, op) : result;
}

/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                unsigned int gridDimZ, unsigned int blockDimX,
                                unsigned int blockDimY, unsigned int blockDimZ,
                                unsigned int sharedMemBytes, CUstream hStream, void **kernelParams,
                                void **extra)
{
    SIM_ENTER(0, t);
    const unsigned dims[7] = {gridDimX,  gridDimY,  gridDimZ,      blockDimX,
                              blockDimY, blockDimZ, sharedMemBytes};
    return sim_leave(launch(t, f, dims, hStream, kernelParams, extra));
}

/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX,
                                           unsigned int gridDimY, unsigned int gridDimZ,
                                           unsigned int blockDimX, unsigned int blockDimY,
                                           unsigned int blockDimZ, unsigned int sharedMemBytes,
                                           CUstream hStream, void **kernelParams)
{
    SIM_ENTER(0, t);
    const unsigned dims[7] = {gridDimX,  gridDimY,  gridDimZ,      blockDimX,
                              blockDimY, blockDimZ, sharedMemBytes};
    return sim_leave(launch(t, f, dims, hStream, kernelParams, NULL));
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                  void **extra)
{
    SIM_ENTER(0, t);
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const unsigned dims[7] = {config->gridDimX,      config->gridDimY,  config->gridDimZ,
                              config->blockDimX,     config->blockDimY, config->blockDimZ,
                              config->sharedMemBytes};
    return sim_leave(launch(t, f, dims, config->hStream, kernelParams, extra));
}
