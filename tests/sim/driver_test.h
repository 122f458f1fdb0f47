/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of simcuda itself share. Each test runs in a process of its own and sets SIMCUDA first. */
#ifndef PS_TESTS_SIM_DRIVER_TEST_H
#define PS_TESTS_SIM_DRIVER_TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#include "tests/support/check_main.h"

#define ok(_call)           ck_assert_int_eq((int)(_call), (int)CUDA_SUCCESS)
#define fails(_call, _code) ck_assert_int_eq((int)(_call), (int)(_code))

static CUcontext dt_ctx;
static CUmodule dt_module;

static inline void dt_start(const char *options)
{
    char text[400];

    snprintf(text, sizeof text, "mem=64M,va=1G,granularity=4K,log=/dev/null%s%s",
             options[0] == '\0' ? "" : ",", options);
    ck_assert_int_eq(setenv("SIMCUDA", text, 1), 0);
    ok(cuInit(0));
    ok(cuDevicePrimaryCtxRetain(&dt_ctx, 0));
    ok(cuCtxSetCurrent(dt_ctx));
    ok(cuModuleLoadData(&dt_module, "x"));
}

/* Options with a seed made of a test's loop index. */
static inline void dt_start_seeded(int index, const char *options)
{
    char text[300];

    snprintf(text, sizeof text, "seed=%d,eager=%d%s%s", index + 1, index % 3,
             options[0] == '\0' ? "" : ",", options);
    dt_start(text);
}

static inline CUfunction dt_function(const char *name)
{
    CUfunction f;

    ok(cuModuleGetFunction(&f, dt_module, name));
    return f;
}

static inline void dt_launch(CUstream stream, const char *name, void **params)
{
    ok(cuLaunchKernel(dt_function(name), 3, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static inline void dt_fill(CUstream stream, CUdeviceptr words, uint32_t value, uint64_t n)
{
    dt_launch(stream, "sim_fill", (void *[]){&words, &value, &n});
}

static inline void dt_add(CUstream stream, CUdeviceptr words, uint32_t value, uint64_t n)
{
    dt_launch(stream, "sim_add", (void *[]){&words, &value, &n});
}

static inline void dt_copy(CUstream stream, CUdeviceptr dst, CUdeviceptr src, uint64_t bytes)
{
    dt_launch(stream, "sim_copy", (void *[]){&dst, &src, &bytes});
}

/* Occupies the stream until dt_set_flag has given the flag the value. */
static inline void dt_spin(CUstream stream, CUdeviceptr flag, uint32_t value)
{
    dt_launch(stream, "sim_spin", (void *[]){&flag, &value});
}

static inline void dt_set_flag(CUstream stream, CUdeviceptr flag, uint32_t value)
{
    dt_launch(stream, "sim_set_flag", (void *[]){&flag, &value});
}

static inline CUdeviceptr dt_alloc(size_t bytes)
{
    CUdeviceptr p;

    ok(cuMemAlloc(&p, bytes));
    ok(cuMemsetD8(p, 0, bytes));
    ok(cuCtxSynchronize());
    return p;
}

static inline CUstream dt_stream(unsigned flags)
{
    CUstream s;

    ok(cuStreamCreate(&s, flags));
    return s;
}

/* The first word at an address, read behind everything queued in the stream. */
static inline uint32_t dt_word(CUstream stream, CUdeviceptr from)
{
    uint32_t word = 0;

    ok(cuMemcpyDtoHAsync(&word, from, sizeof word, stream));
    ok(cuStreamSynchronize(stream));
    return word;
}

#endif
