/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads come and go, each with streams and regions of its own, and make every kind of call that looks at or
 * changes what all share: regions of new names, frees at once and elsewhere, queries, the pool's figures and
 * trimming, captures, streams that end, uploads that name tensors, contexts of their own.
 */
#include <pthread.h>

#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx);

#define N_THREADS 4
#define N_LAYERS  4
#define N_STEPS   3
#define N_SLOTS   (SC_RESULTS / N_THREADS)

static pthread_barrier_t barrier;

struct worker {
    pthread_t thread;
    uint64_t number, step;
    unsigned n_results;
};

static void digest(struct worker *w, CUdeviceptr p, CUstream s)
{
    sc_digest_at(p, SC_WORDS, w->number * N_SLOTS + w->n_results++ % N_SLOTS, s);
}

static void ask(CUdeviceptr p)
{
    CUmemoryPool pool;
    cuuint64_t value;
    CUdeviceptr base;
    CUcontext ctx;
    size_t bytes;

    sc_ok(cuMemGetAddressRange(&base, &bytes, p + 64));
    sc_ok(cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    if (base != p || bytes < SC_BYTES) {
        printf("not that tensor\n");
    }
    CUmemLocation place = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemAccess_flags flags;

    sc_ok(cuDeviceGetDefaultMemPool(&pool, 0));
    sc_ok(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    sc_ok(cuMemPoolGetAccess(&flags, pool, &place));
    const CUmemAccessDesc access = {.location = place, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    sc_ok(cuMemPoolSetAccess(pool, &access, 1));
    sc_ok(cuMemPoolTrimTo(pool, 0));
}

static void capture(CUstream s)
{
    CUgraph graph;

    sc_ok(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    sc_ok(cuStreamEndCapture(s, &graph));
    sc_ok(cuGraphDestroy(graph));
}

/* Names a tensor where no launch does. */
static void upload(struct worker *w, CUdeviceptr x, CUdeviceptr y, CUstream s)
{
    const struct test_product p = {x, x, y, SC_WORDS};
    const CUdeviceptr list = sc_alloc(sizeof(p), s);
    uint64_t n = 1;

    (void)w;
    sc_ok(cuMemcpyHtoDAsync(list, &p, sizeof(p), s));
    sc_launch(s, "test_grouped", (void *[]){(void *)&list, &n});
    sc_free(list, s);
}

static void layer(struct worker *w, struct sc_layer *l, uint64_t i, CUstream s)
{
    char name[64];

    snprintf(name, sizeof(name), "experts.%d.%d.%d", (int)w->number, (int)w->step, (int)i);
    nvtxRangePushA(name);
    sc_forward(l, w->step * 1000 + w->number * 100 + i, s);
    nvtxRangePop();
}

static void backward(struct worker *w, struct sc_layer *l, int i, CUstream s)
{
    const CUstream aside = sc_stream();

    digest(w, l->y, s);
    digest(w, l->x, s);
    if (i == 2) {
        ask(l->x);
        upload(w, l->x, l->y, s);
        digest(w, l->y, s);
    }
    sc_order(s, aside);
    sc_free(l->y, aside);
    sc_ok(cuStreamDestroy(aside));
    if (i == 1) {
        sc_ok(cuMemFree(l->x));
    } else {
        sc_free(l->x, s);
    }
}

/* A context of one thread's, which ends with tensors in it. */
static void visit_context(void)
{
    CUcontext ctx;
    CUmodule module;
    CUfunction f;
    CUstream s;
    uint64_t n_valid = SC_VALID, n = SC_WORDS, seed = 1;

    sc_ok(cuCtxCreate_v2(&ctx, 0, 0));
    sc_ok(cuModuleLoadData(&module, ""));
    sc_ok(cuModuleGetFunction(&f, module, "test_rows"));
    sc_ok(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 3; i++) {
        nvtxRangePushA("experts elsewhere");
        const CUdeviceptr p = sc_alloc(SC_BYTES, s);

        sc_ok(cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, s,
                             (void *[]){(void *)&p, &n_valid, &n, &seed}, NULL));
        nvtxRangePop();
    }
    sc_ok(cuCtxDestroy_v2(ctx));
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct sc_layer layers[N_LAYERS];

    sc_ok(cuCtxSetCurrent(sc_ctx));
    const CUstream s = sc_stream();

    pthread_barrier_wait(&barrier);
    for (uint64_t i = 0; i < N_LAYERS; i++) {
        layer(w, &layers[i], i, s);
    }
    capture(s);
    if (w->number == w->step) {
        visit_context();
        sc_ok(cuCtxSetCurrent(sc_ctx));
    }
    for (int i = N_LAYERS - 1; i >= 0; i--) {
        backward(w, &layers[i], i, s);
    }
    sc_ok(cuStreamSynchronize(s));
    nvtxRangePushA("experts left open");
    sc_free(sc_alloc(SC_BYTES, s), s);
    sc_ok(cuStreamDestroy(s));
    return NULL;
}

int main(void)
{
    static struct worker workers[N_THREADS];

    sc_start();
    if (pthread_barrier_init(&barrier, NULL, N_THREADS) != 0) {
        return 1;
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (unsigned n = 0; n < N_THREADS; n++) {
            workers[n].number = n;
            workers[n].step = step;
            if (pthread_create(&workers[n].thread, NULL, work, &workers[n]) != 0) {
                return 1;
            }
        }
        for (unsigned n = 0; n < N_THREADS; n++) {
            pthread_join(workers[n].thread, NULL);
        }
        sc_results_print("step");
    }
    return sc_end();
}
