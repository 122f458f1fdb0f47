/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of several contexts.
 *
 *   ends    contexts are destroyed with places in force and groups in them, with work queued or not
 *   reset   the primary context is reset, and lives again
 *   two     two contexts take turns, step by step and layer by layer
 *   models  two models in one context: two threads with streams of their own
 *   turns   two models in one context, a step of each in turn, on streams that are not ordered
 *   peers   other devices' contexts may read and do, before and while a plan is in force
 */
#include <pthread.h>

#include "tests/sim/scenario_plan.h"

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx);

static struct side {
    CUcontext ctx;
    CUmodule module;
    CUdeviceptr results;
    CUstream stream;
    struct sc_layer layers[PL_LAYERS];
} sides[2];

static void enter(const struct side *side)
{
    sc_ok(cuCtxSetCurrent(side->ctx));
    sc_ctx = side->ctx;
    sc_module = side->module;
    sc_results = side->results;
}

static void furnish(struct side *side)
{
    sc_ok(cuModuleLoadData(&side->module, ""));
    sc_ok(cuMemAlloc(&side->results, SC_RESULTS * 8));
    sc_ok(cuMemsetD8(side->results, 0, SC_RESULTS * 8));
    sc_ok(cuCtxSynchronize());
    side->stream = sc_stream();
    enter(side);
}

static void make(struct side *side, CUdevice dev)
{
    sc_ok(cuCtxCreate_v2(&side->ctx, 0, dev));
    furnish(side);
}

static void half_a_step(struct side *side, uint64_t seed)
{
    for (uint64_t i = 0; i < PL_LAYERS; i++) {
        pl_forward(&side->layers[i], seed + i, side->stream);
    }
    for (int i = PL_LAYERS - 1; i > PL_LAYERS / 2; i--) {
        sc_backward(&side->layers[i], side->stream);
    }
}

static void ends(void)
{
    for (uint64_t n = 0; n < 4; n++) {
        make(&sides[0], 0);
        pl_steps(100 * n, 5, sides[0].stream);
        if (n % 2 == 1) {
            half_a_step(&sides[0], 70000 + n);
        }
        if (n < 2) {
            sc_results_print("context");
        }
        sc_ok(cuCtxDestroy_v2(sides[0].ctx));
        sc_n_results = 0;
    }
}

static void reset(void)
{
    for (uint64_t n = 0; n < 3; n++) {
        sc_ok(cuDevicePrimaryCtxRetain(&sides[0].ctx, 0));
        sc_ok(cuCtxSetCurrent(sides[0].ctx));
        furnish(&sides[0]);
        pl_steps(100 * n, 5, sides[0].stream);
        half_a_step(&sides[0], 70000 + n);
        sc_results_print("context");
        sc_ok(cuDevicePrimaryCtxReset(0));
    }
}

static void backward(struct side *side)
{
    enter(side);
    for (int i = PL_LAYERS - 1; i >= 0; i--) {
        sc_backward(&side->layers[i], side->stream);
    }
    sc_results_print(side == &sides[0] ? "first" : "second");
}

static void two(void)
{
    int n_devices;

    sc_ok(cuDeviceGetCount(&n_devices));
    make(&sides[0], 0);
    make(&sides[1], n_devices - 1);
    for (uint64_t step = 0; step < PL_STEPS; step++) {
        if (step % 3 == 2) {
            for (unsigned d = 0; d < 2; d++) {
                enter(&sides[d]);
                pl_steps(1000 * d + step, 1, sides[d].stream);
                sc_results_print("alone");
            }
        }
        for (uint64_t i = 0; i < PL_LAYERS; i++) {
            for (unsigned d = 0; d < 2; d++) {
                enter(&sides[d]);
                pl_forward(&sides[d].layers[i], step * 100 + 10 * i + d, sides[d].stream);
            }
        }
        backward(&sides[1]);
        backward(&sides[0]);
    }
}

static void *model(void *arg)
{
    struct side *side = arg;
    const bool second = side == &sides[1];

    sc_ok(cuCtxSetCurrent(sc_ctx));
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < 2 * PL_STEPS; step++) {
        for (uint64_t i = 0; i < PL_LAYERS; i++) {
            pl_forward(&side->layers[i], 10000 * second + step * 100 + i, s);
        }
        for (unsigned i = PL_LAYERS; i > 0; i--) {
            const size_t at = second * SC_RESULTS / 2 + step % 8 * 2 * PL_LAYERS + 2 * i;

            sc_digest_at(side->layers[i - 1].y, SC_WORDS, at, s);
            sc_digest_at(side->layers[i - 1].x, SC_WORDS, at + 1, s);
            sc_free(side->layers[i - 1].y, s);
            sc_free(side->layers[i - 1].x, s);
        }
    }
    return NULL;
}

static void models(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, model, &sides[1]) != 0) {
        sc_fail();
    }
    (void)model(&sides[0]);
    pthread_join(thread, NULL);
    sc_results_print("models");
}

static void turns(void)
{
    static struct sc_layer layers[PL_LAYERS];
    const CUstream s[2] = {sc_stream(), sc_stream()};

    for (uint64_t step = 0; step < 2 * PL_STEPS; step++) {
        const unsigned which = step > 12 ? step % 3 == 0 : step % 2;
        const unsigned n = which == 0 ? PL_LAYERS : PL_LAYERS - 3;

        for (uint64_t i = 0; i < n; i++) {
            pl_forward(&layers[i], step * 100 + i, s[which]);
        }
        for (unsigned i = n; i > 0; i--) {
            (which == 0 ? sc_digest : sc_digest_aside)(layers[i - 1].y, SC_WORDS, s[which]);
            (which == 0 ? sc_digest : sc_digest_aside)(layers[i - 1].x, SC_WORDS, s[which]);
            sc_free(layers[i - 1].y, s[which]);
            sc_free(layers[i - 1].x, s[which]);
        }
    }
    sc_results_print("models");
}

/* The peer reads, behind the layer's own stream, what is in and what is out. */
static void read_as_peer(CUcontext peer, CUdeviceptr to, const struct sc_layer *l, CUstream s)
{
    sc_ok(cuMemcpyPeerAsync(to, peer, l->x, sc_ctx, SC_BYTES, s));
}

static void peers(void)
{
    CUcontext mine = sc_ctx, peer[2];
    CUdeviceptr to[2];
    static struct sc_layer layers[PL_LAYERS];
    static uint64_t host[SC_WORDS];
    const CUstream s = sc_stream();

    for (int d = 1; d <= 2; d++) {
        sc_ok(cuDevicePrimaryCtxRetain(&peer[d - 1], d));
        sc_ok(cuCtxSetCurrent(peer[d - 1]));
        sc_ok(cuMemAlloc(&to[d - 1], SC_BYTES));
        sc_ok(cuMemsetD8(to[d - 1], 0, SC_BYTES));
        sc_ok(cuCtxSynchronize());
    }
    sc_ok(cuCtxSetCurrent(mine));
    for (uint64_t step = 0; step < 2 * PL_STEPS; step++) {
        if (step == 1 || step == 6) {
            sc_ok(cuCtxSetCurrent(peer[step / 6]));
            sc_ok(cuCtxEnablePeerAccess(mine, 0));
            sc_ok(cuCtxSetCurrent(mine));
            sc_ok(cuCtxEnablePeerAccess(peer[step / 6], 0));
        }
        for (uint64_t i = 0; i < PL_LAYERS; i++) {
            pl_forward(&layers[i], step * 100 + i, s);
        }
        if (step >= 1) {
            read_as_peer(peer[0], to[0], &layers[step % PL_LAYERS], s);
        }
        if (step >= 6) {
            read_as_peer(peer[1], to[1], &layers[(step + 3) % PL_LAYERS], s);
        }
        for (int i = PL_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
        for (int d = 0; d < 2; d++) {
            sc_ok(cuCtxSetCurrent(peer[d]));
            sc_ok(cuMemcpyDtoH(host, to[d], SC_BYTES));
            sc_print("peer", host, SC_BYTES);
        }
        sc_ok(cuCtxSetCurrent(mine));
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    static const struct {
        const char *name;
        void (*run)(void);
        bool bare; /* makes its contexts itself */
    } kinds[] = {{"ends", ends, true},      {"reset", reset, true},  {"two", two, true},
                 {"models", models, false}, {"turns", turns, false}, {"peers", peers, false}};

    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kind, kinds[i].name) != 0) {
            continue;
        }
        if (kinds[i].bare) {
            nvtxMarkA("start");
            sc_ok(cuInit(0));
        } else {
            sc_start();
        }
        kinds[i].run();
        puts("end");
        return 0;
    }
    return 2;
}
