/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A product on another stream than its operands', which only the kernel before it names: that one is over at the
 * boundary, the product waits for what the job writes only later.
 */
#include "tests/sim/scenario.h"

#define N_STEPS 3

static CUdeviceptr list, word;

static void step(uint64_t number, CUstream s, CUstream side)
{
    struct test_operands o = {.n_used = 1};
    struct sc_layer l;
    CUevent prepared;
    uint64_t n = 1;
    char range[32];

    snprintf(range, sizeof(range), "experts %u", (unsigned)number);
    nvtxRangePushA(range);
    l.x = sc_alloc(SC_BYTES, s);
    l.y = sc_alloc(SC_BYTES, s);
    sc_produce(l.x, SC_VALID, SC_WORDS, number, s);
    nvtxRangePop();
    sc_order(s, side);
    o.product[0] = (struct test_product){l.x, l.x, l.y, SC_VALID};
    sc_launch(side, "test_prepare", (void *[]){&o, &list});
    sc_ok(cuEventCreate(&prepared, CU_EVENT_DISABLE_TIMING));
    sc_ok(cuEventRecord(prepared, side));
    sc_ok(cuStreamWaitValue32(side, word, (cuuint32_t)number + 1, CU_STREAM_WAIT_VALUE_GEQ));
    sc_launch(side, "test_grouped", (void *[]){&list, &n});
    sc_ok(cuEventSynchronize(prepared));
    sc_ok(cuEventDestroy(prepared));
    nvtxRangePushA("experts boundary");
    nvtxRangePop();
    sc_ok(cuStreamWriteValue32(s, word, (cuuint32_t)number + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    sc_order(side, s);
    sc_backward(&l, s);
}

int main(void)
{
    sc_start();
    const CUstream s = sc_stream(), side = sc_stream();

    sc_ok(cuMemAlloc(&list, sizeof(struct test_operands)));
    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemsetD32(word, 0, 1));
    sc_ok(cuCtxSynchronize());
    for (uint64_t number = 0; number < N_STEPS; number++) {
        step(number, s, side);
    }
    sc_results_print("all");
    return sc_end();
}
