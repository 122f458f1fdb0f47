/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks, a stage of a pipeline each, one forward one backward with overlapped communication: a context, a thread
 * and three streams a rank. Receives are posted before the compute that makes the other rank send, so any stream
 * that is made to wait for the receiving one hangs both ranks.
 *
 *   early     a microbatch at a time: the gradient's receive is posted before the forward that leads to it
 *   1f1b      a microbatch ahead: the next activations go out before the last gradient comes in
 *   foreign   as 1f1b; what is saved is also read on the receiving stream, in front of a receive
 *   posted    as early, and the next gradient's receive is posted before tensors are freed behind it
 *   record    as foreign; freed on a stream that waits for all users, the receiving stream included
 *   behind    as record, but read behind a receive of what this rank has yet to cause
 */
#include <pthread.h>

#include "tests/sim/scenario.h"

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);

#define N_LAYERS  3
#define N_BATCHES 5

static unsigned n_steps =
    2; /* with a number behind the kind: so many, and the host waits for none of them */
static bool waits = true;
static bool ahead, foreign, recorded, posted, behind;

static struct rank {
    uint64_t number;
    CUcontext ctx;
    CUmodule module;
    CUstream compute, in, out, frees;
    CUdeviceptr results;
    unsigned n_results, n_aside;
    CUdeviceptr came[N_BATCHES], goes[N_BATCHES];
    CUevent arrived[N_BATCHES];
    struct sc_layer layers[N_BATCHES][N_LAYERS];
} ranks[2];

static __thread struct rank *me;

static void launch(CUstream stream, const char *name, void **params)
{
    CUfunction f;

    sc_ok(cuModuleGetFunction(&f, me->module, name));
    sc_ok(cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static void mix(CUdeviceptr a, CUdeviceptr b, CUdeviceptr to)
{
    uint64_t n = SC_VALID;

    launch(me->compute, "test_mix2", (void *[]){&a, &b, &to, &n});
}

static void rows(CUdeviceptr to, uint64_t n_valid, uint64_t seed)
{
    uint64_t n = SC_WORDS;

    launch(me->compute, "test_rows", (void *[]){&to, &n_valid, &n, &seed});
}

static void digest(CUdeviceptr p, bool aside)
{
    const unsigned half = SC_RESULTS / 2;
    const unsigned at = aside ? half + me->n_aside++ % half : me->n_results++ % half;
    uint64_t n = SC_WORDS;
    CUdeviceptr to = me->results + (CUdeviceptr)8 * at;

    launch(aside ? me->in : me->compute, "test_hash", (void *[]){&p, &n, &to});
}

/* Channel: the receiving rank. */
static void post_receive(unsigned batch)
{
    uint64_t channel = me->number, n = SC_BYTES;

    launch(me->in, "sim_recv", (void *[]){&channel, &me->came[batch], &n});
    sc_ok(cuEventRecord(me->arrived[batch], me->in));
}

static void post_send(unsigned batch)
{
    uint64_t channel = 1 - me->number, n = SC_BYTES;

    sc_order(me->compute, me->out);
    launch(me->out, "sim_send", (void *[]){&channel, &me->goes[batch], &n});
}

static void wait_for_arrival(unsigned batch)
{
    sc_ok(cuStreamWaitEvent(me->compute, me->arrived[batch], 0));
}

static void forward(unsigned batch, uint64_t seed)
{
    struct sc_layer *l = me->layers[batch];

    for (unsigned i = 0; i < N_LAYERS; i++) {
        nvtxRangePushA("moe_experts");
        l[i].x = sc_alloc(SC_BYTES, me->compute);
        l[i].y = sc_alloc(SC_BYTES, me->compute);
        rows(l[i].x, SC_VALID, seed + i);
        rows(l[i].y, 0, 0);
        if (me->number == 1) {
            mix(l[i].x, me->came[batch], l[i].x);
        }
        /* The first layer's output is read by all later ones. */
        mix(l[i].x, i == 0 ? l[i].x : l[0].y, l[i].y);
        nvtxRangePop();
    }
    mix(l[N_LAYERS - 1].y, l[0].x, me->goes[batch]);
}

static void free_both(const struct sc_layer *l)
{
    if (recorded) {
        sc_order(me->compute, me->frees);
        sc_order(me->in, me->frees);
    }
    sc_free(l->y, recorded ? me->frees : me->compute);
    sc_free(l->x, recorded ? me->frees : me->compute);
}

static void backward(unsigned batch)
{
    const CUdeviceptr grad = me->number == 0 ? me->came[batch] : me->goes[batch];

    if (me->number == 0) {
        wait_for_arrival(batch);
    }
    for (unsigned i = N_LAYERS; i > 0; i--) {
        struct sc_layer *l = &me->layers[batch][i - 1];

        mix(grad, l->y, grad);
        digest(l->y, false);
        digest(l->x, false);
        free_both(l);
    }
    digest(grad, false);
}

/* On the receiving stream: what it reads is ordered behind its making, and the next receive behind that. */
static void read_aside(unsigned batch)
{
    if (foreign) {
        sc_order(me->compute, me->in);
        digest(me->layers[batch][1].x, true);
    }
}

/* What is freed after the next receive was posted is idle once that has come: after the next forward. */
static void first_stage_posted(uint64_t step)
{
    if (step == 0) {
        post_receive(0);
    }
    for (unsigned b = 0; b < N_BATCHES; b++) {
        forward(b, step * 1000 + 10 * b);
        post_send(b);
        if (b + 1 < N_BATCHES || step + 1 < n_steps) {
            sc_order(me->compute, me->in);
            post_receive((b + 1) % N_BATCHES);
        }
        backward(b);
    }
}

static void first_stage(uint64_t step)
{
    for (unsigned b = 0; b < N_BATCHES; b++) {
        if (!ahead) {
            post_receive(b);
        }
        forward(b, step * 1000 + 10 * b);
        post_send(b);
        if (ahead) {
            if (behind) {
                post_receive(b);
            }
            read_aside(b);
            if (!behind) {
                post_receive(b);
            }
        }
        if (!ahead || b > 0) {
            backward(ahead ? b - 1 : b);
        }
    }
    if (ahead) {
        backward(N_BATCHES - 1);
    }
}

static void last_stage(uint64_t step)
{
    post_receive(0);
    for (unsigned b = 0; b < N_BATCHES; b++) {
        if (b + 1 < N_BATCHES) {
            post_receive(b + 1);
        }
        wait_for_arrival(b);
        forward(b, step * 1000 + 500 + 10 * b);
        if (!ahead || b > 0) {
            backward(ahead ? b - 1 : b);
            post_send(ahead ? b - 1 : b);
        }
    }
    if (ahead) {
        backward(N_BATCHES - 1);
        post_send(N_BATCHES - 1);
    }
}

static CUdeviceptr plain(size_t bytes)
{
    CUdeviceptr p;

    sc_ok(cuMemAlloc(&p, bytes));
    sc_ok(cuMemsetD8(p, 0, bytes));
    return p;
}

static void make(struct rank *r)
{
    sc_ok(cuCtxCreate_v2(&r->ctx, 0, 0));
    sc_ok(cuModuleLoadData(&r->module, ""));
    r->results = plain(SC_RESULTS * 8);
    for (unsigned b = 0; b < N_BATCHES; b++) {
        r->came[b] = plain(SC_BYTES);
        r->goes[b] = plain(SC_BYTES);
        sc_ok(cuEventCreate(&r->arrived[b], CU_EVENT_DISABLE_TIMING));
    }
    r->compute = sc_stream();
    r->in = sc_stream();
    r->out = sc_stream();
    r->frees = sc_stream();
    /* What is done once for a context is done before anything waits for the other rank. */
    nvtxRangePushA("moe_experts");
    sc_free(sc_alloc(SC_BYTES, r->compute), r->compute);
    nvtxRangePop();
    sc_ok(cuCtxSynchronize());
}

static void *run(void *arg)
{
    me = arg;
    sc_ok(cuCtxSetCurrent(me->ctx));
    for (uint64_t step = 0; step < n_steps; step++) {
        if (me->number == 0 && posted) {
            first_stage_posted(step);
        } else if (me->number == 0) {
            first_stage(step);
        } else {
            last_stage(step);
        }
        if (waits || step + 1 == n_steps) {
            sc_ok(cuStreamSynchronize(me->compute));
            sc_ok(cuCtxSynchronize());
        } else {
            /* What came, and what went, is overwritten in the next step. */
            sc_order(me->compute, me->in);
            sc_order(me->out, me->compute);
        }
    }
    return NULL;
}

static void print_results(const struct rank *r)
{
    static uint64_t host[SC_RESULTS];

    sc_ok(cuCtxSetCurrent(r->ctx));
    sc_ok(cuMemcpyDtoH(host, r->results, sizeof(host)));
    sc_print(r->number == 0 ? "first stage" : "last stage", host, sizeof(host));
    printf("%u results, %u aside\n", r->n_results, r->n_aside);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "1f1b";
    pthread_t thread;

    posted = strcmp(kind, "posted") == 0;
    ahead = !posted && strcmp(kind, "early") != 0;
    behind = strcmp(kind, "behind") == 0;
    recorded = posted || behind || strcmp(kind, "record") == 0;
    if (argc > 2) {
        n_steps = (unsigned)strtoul(argv[2], NULL, 10);
        waits = false;
    }
    foreign = (recorded && !posted) || strcmp(kind, "foreign") == 0;
    nvtxMarkA("start");
    sc_ok(cuInit(0));
    for (unsigned i = 0; i < 2; i++) {
        ranks[i].number = i;
        make(&ranks[i]);
    }
    if (pthread_create(&thread, NULL, run, &ranks[1]) != 0) {
        return 1;
    }
    (void)run(&ranks[0]);
    pthread_join(thread, NULL);
    print_results(&ranks[0]);
    print_results(&ranks[1]);
    puts("end");
    return 0;
}
