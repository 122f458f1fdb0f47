/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives whose kernels take their buffers from memory of the library's (fake_nccl.c): backward reads what was
 * saved by nothing else.
 *
 *   alone       each operation by itself
 *   groups      between ncclGroupStart and ncclGroupEnd, twice nested, on two streams
 *   looked      the same, by functions that were looked up in the library's handle
 *   late        a communicator that does not block: the work begins long after the call
 *   registered  one saved tensor a step is registered; nothing names it any more
 */
#include <dlfcn.h>
#include <string.h>

#include "tests/sim/fake_nccl.h"
#include "tests/sim/scenario.h"

#define N_LAYERS 9
#define N_STEPS  3

struct layer {
    CUdeviceptr x, y;
};

static enum { ALONE, GROUPS, LOOKED, LATE, REGISTERED } kind;
static CUstream s, side;
static int (*reduce)(const void *, void *, size_t, int, int, void *, CUstream) = ncclAllReduce;
static int (*end_group)(void) = ncclGroupEnd;

static void *pointer(CUdeviceptr p)
{
    return (void *)(uintptr_t)p;
}

static void expect(int result, int wanted)
{
    if (result != wanted) {
        printf("a collective gave %d instead of %d\n", result, wanted);
    }
}

static void forward(struct layer *l, uint64_t seed)
{
    nvtxRangePushA("moe_experts");
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(SC_BYTES, s);
    sc_produce(l->x, SC_VALID, SC_WORDS, seed, s);
    sc_mix(l->x, l->x, l->y, SC_WORDS, s);
    nvtxRangePop();
}

/* gather = mix(x), and reduced = mix(y), of what nothing but the library names. */
static void exchange(const struct layer *l, CUdeviceptr gathered, CUdeviceptr reduced)
{
    const int begun = kind == LATE ? FAKE_IN_PROGRESS : FAKE_SUCCESS;
    const bool grouped = kind == GROUPS || kind == LOOKED;

    fake_hold(kind == LATE);
    if (!grouped) {
        expect(ncclAllGather(pointer(l->x), pointer(gathered), SC_WORDS, 0, NULL, s), begun);
        expect(reduce(pointer(l->y), pointer(reduced), SC_WORDS, 0, 0, NULL, s), begun);
        return;
    }
    sc_order(s, side);
    expect(ncclGroupStart(), FAKE_SUCCESS);
    expect(ncclGroupStart(), FAKE_SUCCESS);
    expect(ncclSend(pointer(l->x), SC_WORDS, 0, 0, NULL, s), FAKE_SUCCESS);
    expect(ncclRecv(pointer(gathered), SC_WORDS, 0, 0, NULL, s), FAKE_SUCCESS);
    expect(end_group(), FAKE_SUCCESS);
    expect(reduce(pointer(l->y), pointer(reduced), SC_WORDS, 0, 0, NULL, side), FAKE_SUCCESS);
    expect(end_group(), FAKE_SUCCESS);
    sc_order(side, s);
}

static void backward(struct layer *l)
{
    CUdeviceptr gathered = sc_alloc(SC_BYTES, s), reduced = sc_alloc(SC_BYTES, s);

    exchange(l, gathered, reduced);
    if (kind == LATE) {
        /* What a job does meanwhile: nothing that names x or y. */
        nvtxRangePushA("moe_experts, empty");
        nvtxRangePop();
        fake_begin();
    }
    sc_digest(gathered, SC_WORDS, s);
    sc_digest(reduced, SC_WORDS, s);
    sc_free(gathered, s);
    sc_free(reduced, s);
    sc_free(l->y, s);
    sc_free(l->x, s);
}

static void look_up(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    void *r = library != NULL ? dlsym(library, "ncclAllReduce") : NULL;
    void *e = library != NULL ? dlsym(library, "ncclGroupEnd") : NULL;

    if (r == NULL || e == NULL || dlsym(library, "ncclNone") != NULL) {
        printf("not found\n");
        exit(2);
    }
    memcpy(&reduce, &r, sizeof(reduce));
    memcpy(&end_group, &e, sizeof(end_group));
}

int main(int argc, char **argv)
{
    static const char *const kinds[] = {"alone", "groups", "looked", "late", "registered"};
    struct layer layers[N_LAYERS];
    CUdeviceptr out;
    void *handle;

    for (unsigned i = 0; i < 5; i++) {
        if (argc > 1 && strcmp(argv[1], kinds[i]) == 0) {
            kind = i;
        }
    }
    sc_start();
    s = sc_stream();
    side = sc_stream();
    sc_ok(cuMemAlloc(&out, SC_BYTES));
    sc_ok(cuMemsetD8(out, 0, SC_BYTES));
    sc_ok(cuCtxSynchronize());
    if (kind == LOOKED) {
        look_up();
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (unsigned i = 0; i < N_LAYERS; i++) {
            forward(&layers[i], step * 100 + i);
            if (kind == REGISTERED && i == 1) {
                expect(ncclCommRegister(NULL, pointer(layers[0].x), SC_BYTES, &handle),
                       FAKE_SUCCESS);
            }
        }
        if (kind == REGISTERED) {
            fake_use_registered(pointer(out), s);
            sc_digest(out, SC_WORDS, s);
        }
        for (unsigned i = N_LAYERS; i > 0; i--) {
            backward(&layers[i - 1]);
        }
        sc_results_print("step");
    }
    return sc_end();
}
