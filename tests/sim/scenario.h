/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frame of the scenarios: small driver-API jobs that print hashes of everything they computed. scenario.py runs each
 * plain and under the stash, on the software driver with its checker, and compares what they print. A job writes
 * every byte it reads, ends with 0, and needs no knowledge of the stash.
 *
 * Include in the one file of a program. Results are gathered in the order of the job's own calls.
 */
#ifndef PS_TESTS_SCENARIO_H
#define PS_TESTS_SCENARIO_H

#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cuda.h>
#include <nvtx3/nvToolsExt.h>

#include "tests/sim/sim_kernels.h"

#define SC_BYTES   ((size_t)0x10000) /* of a usual tensor */
#define SC_WORDS   (SC_BYTES / 8)
#define SC_VALID   (SC_WORDS / 4) /* the rest is padding */
#define SC_RESULTS ((size_t)4096)
#define SC_UNUSED  __attribute__((unused))

static CUcontext sc_ctx;
static CUmodule sc_module;
static CUdeviceptr sc_results; /* SC_RESULTS words of hashes */
static unsigned sc_n_results;

/* The first thread that fails ends the process. */
SC_UNUSED static _Noreturn void sc_fail(void)
{
    static atomic_flag failed = ATOMIC_FLAG_INIT;

    while (atomic_flag_test_and_set(&failed)) {
        pause();
    }
    exit(1);
}

static __thread const char *sc_call = ""; /* what this thread called last */

#define sc_ok(_call) (sc_call = #_call, sc_ok_at((_call), #_call, __LINE__))
SC_UNUSED static void sc_ok_at(CUresult result, const char *call, int line)
{
    if (result != CUDA_SUCCESS) {
        const char *name = NULL;

        (void)cuGetErrorName(result, &name);
        fprintf(stderr, "line %d: %s: %s\n", line, call, name != NULL ? name : "?");
        sc_fail();
    }
}

#ifdef PS_FAULTS
#    include "tests/sim/fault_watch.h"
#endif

SC_UNUSED static void sc_start(void)
{
#ifdef PS_FAULTS
    if (getenv("FAULT") != NULL) {
        fw_start();
    }
#endif
    nvtxMarkA("start"); /* NVTX sets itself up at the first call, without a lock */
    sc_ok(cuInit(0));
    sc_ok(cuDevicePrimaryCtxRetain(&sc_ctx, 0));
    sc_ok(cuCtxSetCurrent(sc_ctx));
    sc_ok(cuModuleLoadData(&sc_module, ""));
    sc_ok(cuMemAlloc(&sc_results, SC_RESULTS * 8));
    sc_ok(cuMemsetD8(sc_results, 0, SC_RESULTS * 8));
    sc_ok(
        cuCtxSynchronize()); /* a fill of device memory does not wait, and our streams are not ordered with it */
}

SC_UNUSED static CUstream sc_stream(void)
{
    CUstream stream;

    sc_ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* With SC_SLOW the job takes its time, so that a thread of ours finds some: it pins host memory meanwhile. */
SC_UNUSED static void sc_take_time(void)
{
    const struct timespec pause = {0, 500000};

    if (getenv("SC_SLOW") != NULL) {
        (void)nanosleep(&pause, NULL);
    }
}

SC_UNUSED static CUdeviceptr sc_alloc(size_t bytes, CUstream stream)
{
    CUdeviceptr p;

    sc_take_time();
    sc_ok(cuMemAllocAsync(&p, bytes, stream));
    return p;
}

SC_UNUSED static void sc_free(CUdeviceptr p, CUstream stream)
{
    sc_ok(cuMemFreeAsync(p, stream));
}

SC_UNUSED static void sc_launch(CUstream stream, const char *name, void **params)
{
    CUfunction f;

    sc_ok(cuModuleGetFunction(&f, sc_module, name));
    sc_ok(cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

/* n_valid words of data, then zeros. */
SC_UNUSED static void sc_produce(CUdeviceptr to, uint64_t n_valid, uint64_t n, uint64_t seed,
                                 CUstream s)
{
    sc_launch(s, "test_rows", (void *[]){&to, &n_valid, &n, &seed});
}

/* to = mix(a + b), word by word. */
SC_UNUSED static void sc_mix(CUdeviceptr a, CUdeviceptr b, CUdeviceptr to, uint64_t n, CUstream s)
{
    sc_launch(s, "test_mix2", (void *[]){&a, &b, &to, &n});
}

SC_UNUSED static void sc_digest_at(CUdeviceptr p, uint64_t n, size_t at, CUstream s)
{
    CUdeviceptr to = sc_results + 8 * at;

    sc_launch(s, "test_hash", (void *[]){&p, &n, &to});
}

/* Tried again where the driver refuses, as a job might. */
SC_UNUSED static void sc_digest_again(CUdeviceptr p, uint64_t n, size_t at, CUstream s)
{
    CUdeviceptr to = sc_results + (CUdeviceptr)8 * at;
    CUfunction f;
    CUresult r = CUDA_ERROR_UNKNOWN;

    sc_ok(cuModuleGetFunction(&f, sc_module, "test_hash"));
    for (int i = 0; i < 500 && r != CUDA_SUCCESS; i++) {
        r = cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &n, &to}, NULL);
    }
    sc_ok(r);
}

/* The hash of the tensor becomes the next result. */
SC_UNUSED static void sc_digest(CUdeviceptr p, uint64_t n, CUstream s)
{
    sc_digest_at(p, n, sc_n_results++ % (SC_RESULTS / 2), s);
}

/* The same for another stream that is not ordered with the first: in pages of its own. */
SC_UNUSED static void sc_digest_aside(CUdeviceptr p, uint64_t n, CUstream s)
{
    sc_digest_at(p, n, SC_RESULTS / 2 + sc_n_results++ % (SC_RESULTS / 2), s);
}

/* `to` waits for all that `from` was given so far. */
SC_UNUSED static void sc_order(CUstream from, CUstream to)
{
    CUevent e;

    sc_ok(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    sc_ok(cuEventRecord(e, from));
    sc_ok(cuStreamWaitEvent(to, e, 0));
    sc_ok(cuEventDestroy(e));
}

SC_UNUSED static void sc_print(const char *what, const void *data, size_t bytes)
{
    uint64_t hash = bytes;

    for (size_t i = 0; i < bytes; i++) {
        hash = test_mix(hash ^ ((const uint8_t *)data)[i]);
    }
    printf("%s %016" PRIx64 "\n", what, hash);
}

/* Prints all results so far and forgets them; waits for the device. */
SC_UNUSED static void sc_results_print(const char *what)
{
    static uint64_t host[SC_RESULTS];

    sc_ok(cuCtxSynchronize());
    sc_ok(cuMemcpyDtoH(host, sc_results, sizeof(host)));
    sc_print(what, host, sizeof(host));
    printf("%s: %u results\n", what, sc_n_results);
    sc_n_results = 0;
}

/* A usual layer's tensors: an input with padding, and what was made of it. */
struct sc_layer {
    CUdeviceptr x, y;
};

SC_UNUSED static void sc_forward(struct sc_layer *l, uint64_t seed, CUstream s)
{
    nvtxRangePushA("moe_experts");
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(SC_BYTES, s);
    sc_produce(l->x, SC_VALID, SC_WORDS, seed, s);
    sc_mix(l->x, l->x, l->y, SC_VALID, s);
    sc_ok(cuMemsetD8Async(l->y + 8 * SC_VALID, 0, SC_BYTES - 8 * SC_VALID, s));
    nvtxRangePop();
}

SC_UNUSED static void sc_backward(struct sc_layer *l, CUstream s)
{
    sc_digest(l->y, SC_WORDS, s);
    sc_digest(l->x, SC_WORDS, s);
    sc_free(l->y, s);
    sc_free(l->x, s);
}

#define SC_FILLERS 4096

/* Takes all memory the device has but about `spare` bytes: what is only cached is out then. How many are to free. */
SC_UNUSED static unsigned sc_fill_device(CUdeviceptr fillers[SC_FILLERS], size_t spare)
{
    unsigned n = 0;

    sc_ok(cuCtxSynchronize());
    while (n < SC_FILLERS && cuMemAlloc(&fillers[n], SC_BYTES) == CUDA_SUCCESS) {
        n++;
    }
    for (size_t bytes = 0; n > 0 && bytes < spare; bytes += SC_BYTES) {
        sc_ok(cuMemFree(fillers[--n]));
    }
    return n;
}

SC_UNUSED static void sc_free_fillers(const CUdeviceptr *fillers, unsigned n)
{
    while (n > 0) {
        sc_ok(cuMemFree(fillers[--n]));
    }
}

SC_UNUSED static int sc_end(void)
{
    sc_ok(cuCtxSynchronize());
    puts("end");
    return 0;
}

#endif
