/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bf16 product of cuBLAS (found with dlopen), alone and beside a stream of copies of ours that lasts longer. Its
 * operands are random; the result beside must be the result alone, bit for bit.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/kernels/bench.h"

#define SIZE       8192
#define N_PRODUCTS 8 /* one after another, in a timed run */
#define N_PAIRS    5 /* of runs alone and beside */
#define WORKSPACE  (UINT64_C(64) << 20)
#define LAUNCHES   2048 /* beside, at most */

enum { CUBLAS_OP_N = 0, CUDA_R_16BF = 14, CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1 };

struct product {
    struct bench *b;
    void *handle;
    int (*gemm)(void *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c,
                int c_type, int ldc, int compute, int algo);
    int version;
    CUdeviceptr a, x, c, want, workspace;
    CUevent start, end, marks[LAUNCHES];
};

static void *symbol(void *lib, const char *name)
{
    void *p = dlsym(lib, name);

    if (p == NULL) {
        die("cuBLAS has no %s", name);
    }
    return p;
}

static void run_product(struct product *p, CUdeviceptr to)
{
    const float one = 1;
    const float zero = 0;
    const int r = p->gemm(
        p->handle, CUBLAS_OP_N, CUBLAS_OP_N, SIZE, SIZE, SIZE, &one, (const void *)(uintptr_t)p->a,
        CUDA_R_16BF, SIZE, (const void *)(uintptr_t)p->x, CUDA_R_16BF, SIZE, &zero,
        (void *)(uintptr_t)to, CUDA_R_16BF, SIZE, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);

    if (r != 0) {
        die("cublasGemmEx: %d", r);
    }
}

static void make_numbers(struct product *p, CUdeviceptr at)
{
    uint64_t n = (uint64_t)SIZE * SIZE * 2 / 16;
    uint64_t seed = bench_random(p->b);
    void *params[] = {&at, &n, &seed};

    launch_1d(p->b->numbers, p->b->n_multiprocessors * 4, 512, p->b->out, params);
}

struct product *product_create(struct bench *b, const char *cublas)
{
    void *lib = dlopen(cublas, RTLD_NOW | RTLD_GLOBAL);

    if (lib == NULL) {
        fprintf(stderr, "kernel_bench: no product: %s\n", dlerror());
        return NULL;
    }
    struct product *p = calloc(1, sizeof(*p));
    int (*create)(void **handle) = NULL;
    int (*set_stream)(void *handle, CUstream stream) = NULL;
    int (*set_workspace)(void *handle, void *at, size_t bytes) = NULL;
    int (*version)(void *handle, int *version) = NULL;

    if (p == NULL) {
        die("no memory");
    }
    p->b = b;
    *(void **)&create = symbol(lib, "cublasCreate_v2");
    *(void **)&set_stream = symbol(lib, "cublasSetStream_v2");
    *(void **)&set_workspace = symbol(lib, "cublasSetWorkspace_v2");
    *(void **)&version = symbol(lib, "cublasGetVersion_v2");
    *(void **)&p->gemm = symbol(lib, "cublasGemmEx");
    p->workspace = device_alloc(WORKSPACE);
    if (create(&p->handle) != 0 || set_stream(p->handle, b->beside) != 0 ||
        set_workspace(p->handle, (void *)(uintptr_t)p->workspace, WORKSPACE) != 0 ||
        version(p->handle, &p->version) != 0) {
        die("cuBLAS does not start");
    }
    CUdeviceptr *const all[] = {&p->a, &p->x, &p->c, &p->want};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        *all[i] = device_alloc((uint64_t)SIZE * SIZE * 2);
        make_numbers(p, *all[i]);
    }
    MUST(drv.cuStreamSynchronize(b->out));
    MUST(drv.cuEventCreate(&p->start, CU_EVENT_DEFAULT));
    MUST(drv.cuEventCreate(&p->end, CU_EVENT_DEFAULT));
    for (int i = 0; i < LAUNCHES; i++) {
        MUST(drv.cuEventCreate(&p->marks[i], CU_EVENT_DEFAULT));
    }
    for (int i = 0; i < 30; i++) {
        run_product(p, p->want);
    }
    MUST(drv.cuStreamSynchronize(b->beside));
    return p;
}

static void describe_kernel(const CUDA_KERNEL_NODE_PARAMS *k, struct ps_json *j)
{
    const char *name = NULL;
    CUfunction f = k->func;
    int registers = 0;
    int static_shared = 0;

    if (f != NULL && drv.cuFuncGetName != NULL && drv.cuFuncGetName(&name, f) != CUDA_SUCCESS) {
        name = NULL;
    }
    if (name == NULL && k->kern != NULL && drv.cuKernelGetName != NULL) {
        (void)drv.cuKernelGetName(&name, k->kern);
    }
    if (f != NULL) {
        (void)fns.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, f);
        (void)fns.cuFuncGetAttribute(&static_shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f);
    }
    ps_json_open(j, NULL, '{');
    ps_json_string(j, "name", name);
    ps_json_u64(j, "blocks", (uint64_t)k->gridDimX * k->gridDimY * k->gridDimZ);
    ps_json_u64(j, "threads", (uint64_t)k->blockDimX * k->blockDimY * k->blockDimZ);
    ps_json_u64(j, "shared_bytes", k->sharedMemBytes + (uint64_t)static_shared);
    ps_json_u64(j, "registers", (uint64_t)registers);
    ps_json_close(j, '}');
}

/* The kernels as a capture of one product shows them. */
void product_describe(struct product *p, struct ps_json *j)
{
    CUgraph graph = NULL;
    CUgraphNode nodes[16];
    size_t n = sizeof(nodes) / sizeof(nodes[0]);

    ps_json_u64(j, "cublas_version", (uint64_t)p->version);
    ps_json_u64(j, "size", SIZE);
    MUST(fns.cuStreamBeginCapture(p->b->beside, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    run_product(p, p->c);
    MUST(fns.cuStreamEndCapture(p->b->beside, &graph));
    MUST(fns.cuGraphGetNodes(graph, nodes, &n));
    ps_json_open(j, "kernels", '[');
    for (size_t i = 0; i < n && i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        CUgraphNodeType type;
        CUDA_KERNEL_NODE_PARAMS params;

        MUST(fns.cuGraphNodeGetType(nodes[i], &type));
        if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
            memset(&params, 0, sizeof(params));
            MUST(fns.cuGraphKernelNodeGetParams(nodes[i], &params));
            describe_kernel(&params, j);
        }
    }
    ps_json_close(j, ']');
    MUST(fns.cuGraphDestroy(graph));
}

void product_destroy(struct product *p)
{
    const CUdeviceptr all[] = {p->a, p->x, p->c, p->want, p->workspace};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        MUST(fns.cuMemFree(all[i]));
    }
    free(p);
}

static uint64_t elapsed(CUevent from, CUevent to)
{
    float ms = 0;

    MUST(fns.cuEventElapsedTime(&ms, from, to));
    return ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
}

static uint64_t time_alone(struct product *p)
{
    MUST(drv.cuCtxSynchronize());
    run_product(p, p->c);
    MUST(drv.cuEventRecord(p->start, p->b->beside));
    for (int i = 0; i < N_PRODUCTS; i++) {
        run_product(p, p->c);
    }
    MUST(drv.cuEventRecord(p->end, p->b->beside));
    MUST(drv.cuStreamSynchronize(p->b->beside));
    return elapsed(p->start, p->end) / N_PRODUCTS;
}

struct traffic_run {
    struct product *p;
    struct tensors *t;
    const struct ps_shape *shape;
    enum traffic kind;
    CUdeviceptr target;
    CUdeviceptr count; /* pages, for a shift */
    unsigned char *host;
};

static void one_shift(const struct traffic_run *r, bool to_host)
{
    struct ps_kernels k = r->p->b->kernels;
    const uint64_t host = (uint64_t)(uintptr_t)r->host;
    const struct ps_shift s = {.to = to_host ? host : r->target,
                               .from = to_host ? r->target : host,
                               .count = r->count,
                               .n_pages = UINT32_MAX,
                               .page_bytes = r->t->what.page_bytes,
                               .to_host = to_host};

    if (r->shape != NULL) {
        k.shift_out = k.shift_in = *r->shape;
    }
    MUST(ps_kernels_shift(&drv, &k, r->p->b->out, &s));
}

static void one_launch(const struct traffic_run *r, uint32_t i)
{
    const struct bench *b = r->p->b;
    const uint32_t set = r->t->n_sets > 0 ? i % r->t->n_sets : 0;
    const CUdeviceptr at = r->t->region + set * r->t->stride;

    switch (r->kind) {
    case T_STASH_DROP:
        launch_stash(b, r->t, set, r->shape, PS_QUIET);
        launch_drop(b, r->t, set);
        break;
    case T_RESTORE:
        launch_restore(b, r->t, set, r->shape, PS_QUIET);
        break;
    case T_COPY:
        MUST(fns.cuMemcpyDtoDAsync(r->target, at, r->t->set_bytes, b->out));
        break;
    case T_SHIFT_OUT:
    case T_SHIFT_IN:
        one_shift(r, r->kind == T_SHIFT_OUT);
        break;
    case T_TO_HOST_CE:
        MUST(fns.cuMemcpyDtoHAsync(r->host, r->target, r->t->set_bytes, b->out));
        break;
    case T_FROM_HOST_CE:
        MUST(fns.cuMemcpyHtoDAsync(r->target, r->host, r->t->set_bytes, b->out));
        break;
    }
}

/* How many launches of it fill the time. */
static uint32_t calibrate(const struct traffic_run *r, uint64_t ns, uint64_t *mb_s_p)
{
    const struct product *p = r->p;

    one_launch(r, 0);
    MUST(drv.cuEventRecord(p->marks[0], p->b->out));
    one_launch(r, 1);
    one_launch(r, 2);
    MUST(drv.cuEventRecord(p->marks[1], p->b->out));
    MUST(drv.cuStreamSynchronize(p->b->out));
    const uint64_t each = elapsed(p->marks[0], p->marks[1]) / 2;
    const uint64_t n = ns / (each > 0 ? each : 1) + 2;

    *mb_s_p = mb_s(r->t->set_bytes, each);

    return n < LAUNCHES ? (uint32_t)n : LAUNCHES;
}

/* Launches of ours first; the products start once the first of those is through. */
static uint64_t time_with(const struct traffic_run *r, uint32_t n, uint64_t *done_permille_p)
{
    struct product *p = r->p;
    const CUstream ours = p->b->out;
    uint64_t done = 0;

    MUST(drv.cuCtxSynchronize());
    one_launch(r, 0);
    MUST(drv.cuEventRecord(p->marks[0], ours));
    MUST(drv.cuStreamWaitEvent(p->b->beside, p->marks[0], 0));
    for (uint32_t i = 1; i < n && i < 24; i++) {
        one_launch(r, i);
        MUST(drv.cuEventRecord(p->marks[i], ours));
    }
    run_product(p, p->c);
    MUST(drv.cuEventRecord(p->start, p->b->beside));
    for (int i = 0; i < N_PRODUCTS; i++) {
        run_product(p, p->c);
    }
    MUST(drv.cuEventRecord(p->end, p->b->beside));
    for (uint32_t i = 24; i < n; i++) {
        one_launch(r, i);
        MUST(drv.cuEventRecord(p->marks[i], ours));
    }
    MUST(drv.cuCtxSynchronize());
    const uint64_t begin = elapsed(p->marks[0], p->start);
    const uint64_t end = elapsed(p->marks[0], p->end);

    for (uint32_t i = 1; i < n; i++) {
        const uint64_t from = i == 1 ? 0 : elapsed(p->marks[0], p->marks[i - 1]);
        const uint64_t to = elapsed(p->marks[0], p->marks[i]);
        const uint64_t first = from > begin ? from : begin;
        const uint64_t last = to < end ? to : end;

        if (last > first && to > from) {
            done += (last - first) * 1000 / (to - from);
        }
    }
    *done_permille_p = elapsed(p->marks[0], p->marks[n - 1]) < end ? UINT64_MAX : done;
    return elapsed(p->start, p->end) / N_PRODUCTS;
}

static uint64_t differing(struct product *p)
{
    CUdeviceptr errors = p->b->errors;
    uint64_t n = (uint64_t)SIZE * SIZE * 2 / 16;
    const uint64_t before = n_errors(p->b);
    void *params[] = {&p->c, &p->want, &n, &errors};

    launch_1d(p->b->same, p->b->n_multiprocessors * 4, 512, p->b->out, params);
    return n_errors(p->b) - before;
}

static void enter_link(struct traffic_run *r)
{
    const uint64_t n = r->t->set_bytes / r->t->what.page_bytes;

    MUST(drv.cuMemHostAlloc((void **)&r->host, r->t->set_bytes, CU_MEMHOSTALLOC_DEVICEMAP));
    r->count = device_alloc(sizeof(n));
    MUST(fns.cuMemcpyHtoD(r->count, &n, sizeof(n)));
}

static void leave_traffic(struct traffic_run *r)
{
    if (r->count != 0) {
        MUST(fns.cuMemFree(r->count));
    }
    if (r->target != 0) {
        MUST(fns.cuMemFree(r->target));
    }
    if (r->host != NULL) {
        MUST(drv.cuMemFreeHost(r->host));
    }
}

void time_beside(struct bench *b, struct product *p, struct tensors *t,
                 const struct ps_shape *shape, enum traffic kind, struct beside *out)
{
    struct traffic_run r = {p, t, shape, kind, 0, 0, NULL};
    uint64_t alone[N_PAIRS];
    uint64_t with[N_PAIRS];
    uint64_t slow[N_PAIRS];
    uint64_t rate[N_PAIRS];

    memset(out, 0, sizeof(*out));
    if (kind >= T_COPY) {
        r.target = device_alloc(t->set_bytes);
    }
    if (kind > T_COPY) {
        enter_link(&r);
    } else if (kind == T_RESTORE) {
        for (uint32_t set = 0; set < t->n_sets; set++) {
            launch_stash(b, t, set, shape, PS_QUIET);
        }
        tensors_poison(t, b);
    }
    uint64_t span = time_alone(p) * (N_PRODUCTS + 3);
    uint32_t n = calibrate(&r, span, &out->quiet_mb_s);

    for (int i = 0; i < N_PAIRS; i++) {
        uint64_t done = 0;

        alone[i] = time_alone(p);
        with[i] = time_with(&r, n, &done);
        for (int again = 0; done == UINT64_MAX && again < 3 && n < LAUNCHES; again++) {
            n = 2 * n < LAUNCHES ? 2 * n : LAUNCHES;
            with[i] = time_with(&r, n, &done);
        }
        out->ended_early = out->ended_early || done == UINT64_MAX;
        out->wrong += differing(p);
        slow[i] = with[i] > alone[i] ? (with[i] - alone[i]) * 1000 / alone[i] : 0;
        rate[i] = done == UINT64_MAX ? 0 : mb_s(t->set_bytes * done / 1000, with[i] * N_PRODUCTS);
    }
    out->alone_ns = stats_of(alone, N_PAIRS).median;
    out->beside_ns = stats_of(with, N_PAIRS).median;
    out->slow_permille = stats_of(slow, N_PAIRS).median;
    out->payload_mb_s = stats_of(rate, N_PAIRS).median;
    if (kind == T_RESTORE) {
        const uint64_t before = n_errors(b);

        tensors_check(t, b);
        out->wrong += n_errors(b) - before;
        for (uint32_t set = 0; set < t->n_sets; set++) {
            launch_drop(b, t, set);
        }
    }
    leave_traffic(&r);
}
