/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context is destroyed while its work still waits; meanwhile a thread in another context begins a capture, destroys a
 * stream, and names in a launch, as stale words, what is cached in the context that goes. Nobody may use that one then;
 * and the thread must get on, for it is what lets the work go on.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx);

#define N_LAYERS 3
#define N_ROUNDS 3

static uint64_t (*count)(const char *name);
static pthread_barrier_t barrier;
static CUdeviceptr word;
static struct sc_layer layers[N_LAYERS]; /* of the context that goes */

/* Makes the context and destroys it with work that the other thread lets go on. */
static void *end_context(void *arg)
{
    const uint64_t round = *(const uint64_t *)arg;
    const CUmodule first = sc_module;
    CUcontext ctx;

    sc_ok(cuCtxCreate_v2(&ctx, 0, 0));
    sc_ok(cuModuleLoadData(&sc_module, ""));
    const CUstream s = sc_stream();

    for (uint64_t i = 0; i < N_LAYERS; i++) {
        sc_forward(&layers[i], round * 100 + i, s);
    }
    nvtxRangePushA("moe_experts");
    nvtxRangePop();
    sc_ok(cuCtxSynchronize());
    sc_ok(cuStreamWaitValue32(s, word, (cuuint32_t)round + 1, CU_STREAM_WAIT_VALUE_GEQ));
    sc_digest(layers[N_LAYERS - 1].x, SC_WORDS, s);
    sc_module = first;
    pthread_barrier_wait(&barrier);
    sc_ok(cuCtxDestroy_v2(ctx));
    return NULL;
}

static void still_here(void)
{
    CUcontext now;

    sc_ok(cuCtxGetCurrent(&now));
    sc_ok(now == sc_ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

static void end_stream(void)
{
    const CUstream s = sc_stream();
    CUgraph graph;

    sc_ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    sc_ok(cuStreamEndCapture(s, &graph));
    sc_ok(cuGraphDestroy(graph));
    sc_ok(cuStreamDestroy(s));
    still_here();
}

static void name_stale(const struct sc_layer *own, CUstream s)
{
    struct test_operands o = {.n_used = 1};

    o.product[0] = (struct test_product){own->x, own->x, own->y, SC_WORDS};
    o.product[1] = (struct test_product){layers[0].x, layers[0].y, layers[1].x, SC_WORDS};
    sc_launch(s, "test_by_value", (void *[]){&o});
    still_here();
}

int main(void)
{
    pthread_t thread;
    struct sc_layer own;

    sc_start();
    void *const stat = dlsym(RTLD_DEFAULT, "simcuda_stat");

    memcpy(&count, &stat, sizeof(count));
    if (count == NULL || pthread_barrier_init(&barrier, NULL, 2) != 0) {
        return 1;
    }
    const CUstream s = sc_stream();

    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemsetD32(word, 0, 1));
    sc_ok(cuCtxSynchronize());
    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        const uint64_t n_ends = count("calls.cuCtxDestroy");

        if (pthread_create(&thread, NULL, end_context, &round) != 0) {
            return 1;
        }
        pthread_barrier_wait(&barrier);
        while (count("calls.cuCtxDestroy") == n_ends) {
            usleep(100);
        }
        sc_forward(&own, round, s);
        end_stream();
        sc_ok(cuStreamWriteValue32(s, word, (cuuint32_t)round + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
        name_stale(&own, s);
        pthread_join(thread, NULL);
        sc_backward(&own, s);
        sc_results_print("round");
    }
    return sc_end();
}
