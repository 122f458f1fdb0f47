/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs: captured from a stream or put together from nodes, instantiated in every form, changed, launched some times,
 * and gone at the end of the operation. What a launch does to the tensors is kept as a list and done on the model.
 */
#include "tests/fuzz/calls.h"

#define STEPS 4

struct step {
    enum { ROWS, MIX, FILL, COPY } kind;
    struct fz_tensor *to, *a, *b;
    uint64_t n_valid, n, seed;
};

struct plan {
    struct step step[STEPS];
    unsigned n;
};

static void do_step(const struct step *s)
{
    switch (s->kind) {
    case ROWS:
        fz_model_rows(s->to->model, s->n_valid, s->n, s->seed);
        break;
    case MIX:
        fz_model_mix(s->to->model, s->a->model, s->b->model, s->n);
        break;
    case FILL:
        memset(s->to->model, (uint8_t)s->seed, s->n);
        break;
    case COPY:
        memmove(s->to->model, s->a->model, s->n);
        break;
    }
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What the graph shall do, with tensors that are defined by now. False: there are none. */
static bool make_plan(struct fz_world *w, const struct fz_use *u, struct plan *plan)
{
    plan->n = 1 + fz_below(&w->in, STEPS);
    for (unsigned i = 0; i < plan->n; i++) {
        struct step *s = &plan->step[i];
        const unsigned b = fz_u8(&w->in);

        s->kind = b % 4;
        s->to = fz_tensor_choose(w, u);
        s->a = fz_tensor_choose(w, u);
        s->b = fz_tensor_choose(w, u);
        if (s->to == NULL) {
            return false;
        }
        if (s->kind == COPY && s->to == s->a) {
            s->kind = FILL;
        }
        s->seed = b;
        s->n_valid = s->to->bytes / 32;
        s->n = s->to->bytes / 8;
        if (s->kind == MIX) {
            s->n = least(least(s->to->bytes, s->a->bytes), s->b->bytes) / 8;
        } else if (s->kind != ROWS) {
            s->n = least(s->to->bytes, s->a->bytes);
        }
    }
    return true;
}

static void launch_graph(struct fz_world *w, const struct plan *plan, CUgraphExec exec)
{
    const unsigned n = 1 + fz_below(&w->in, 3);

    for (unsigned k = 0; k < n; k++) {
        const struct fz_use u = fz_lane_choose(w);

        for (unsigned i = 0; i < plan->n; i++) {
            const struct step *s = &plan->step[i];

            fz_use(w, s->to, u.lane, true);
            fz_use(w, s->a, u.lane, false);
            fz_use(w, s->b, u.lane, false);
        }
        fz_issue(w, u.lane);
        if (fz_below(&w->in, 4) == 0) {
            ON_LANE(cuGraphUpload, u, exec);
        }
        ON_LANE(cuGraphLaunch, u, exec);
        fz_issued(w, u.lane);
        for (unsigned i = 0; i < plan->n; i++) {
            do_step(&plan->step[i]);
        }
    }
}

static CUgraphExec instantiate(struct fz_world *w, CUgraph g)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS p = {0};
    CUgraphExec exec = NULL;

    switch (fz_below(&w->in, 5)) {
    case 0:
        OK(cuGraphInstantiate, &exec, g, NULL, NULL, 0);
        break;
    case 1:
        OK(cuGraphInstantiate_v2, &exec, g, NULL, NULL, 0);
        break;
    case 2:
        OK(cuGraphInstantiateWithFlags, &exec, g, 0);
        break;
    case 3:
        OK(cuGraphInstantiateWithParams, &exec, g, &p);
        break;
    default:
        OK(cuGraphInstantiateWithParams_ptsz, &exec, g, &p);
        break;
    }
    return exec;
}

/* ---- captured ---- */

static void begin_capture(struct fz_world *w, const struct fz_use *u, CUgraph *g_p)
{
    const unsigned form = fz_below(&w->in, 3);
    /* A capture of another mode forbids other threads what they do. */
    const CUstreamCaptureMode mode =
        w->alone ? (CUstreamCaptureMode)fz_below(&w->in, 3) : CU_STREAM_CAPTURE_MODE_RELAXED;

    *g_p = NULL;
    if (form == 0 && w->alone) {
        fz_ok(u->ptds ? CALL(cuStreamBeginCapture_ptsz, u->handle)
                      : CALL(cuStreamBeginCapture, u->handle),
              "cuStreamBeginCapture");
    } else if (form == 1) {
        PLAIN(cuGraphCreate(g_p, 0));
        fz_ok(u->ptds ? CALL(cuStreamBeginCaptureToGraph_ptsz, u->handle, *g_p, NULL, NULL, 0, mode)
                      : CALL(cuStreamBeginCaptureToGraph, u->handle, *g_p, NULL, NULL, 0, mode),
              "cuStreamBeginCaptureToGraph");
    } else {
        fz_ok(u->ptds ? CALL(cuStreamBeginCapture_v2_ptsz, u->handle, mode)
                      : CALL(cuStreamBeginCapture_v2, u->handle, mode),
              "cuStreamBeginCapture_v2");
    }
}

static void capture_step(struct fz_world *w, const struct fz_use *u, struct step *s)
{
    switch (s->kind) {
    case ROWS:
        fz_launch(w, u, "test_rows", (void *[]){&s->to->at, &s->n_valid, &s->n, &s->seed}, 4, 8);
        break;
    case MIX:
        fz_launch(w, u, "test_mix2", (void *[]){&s->a->at, &s->b->at, &s->to->at, &s->n}, 4, 8);
        break;
    case FILL:
        ON_LANE(cuMemsetD8Async, *u, s->to->at, (uint8_t)s->seed, s->n);
        break;
    case COPY:
        ON_LANE(cuMemcpyDtoDAsync_v2, *u, s->to->at, s->a->at, s->n);
        break;
    }
}

void fz_op_capture(struct fz_world *w)
{
    struct plan plan;
    struct fz_use u;
    CUgraph into;
    CUgraph g;
    bool pushed = false;

    if (!fz_lane_created(w, &u) || (!w->alone && w->lane[u.lane].blocking) ||
        !make_plan(w, &u, &plan)) {
        return;
    }
    FZ_SAY("capture on lane %u\n", u.lane);
    begin_capture(w, &u, &into);
    for (unsigned i = 0; i < plan.n; i++) {
        if (i == 1 && fz_below(&w->in, 4) == 0) {
            fz_push(w, 0);
            pushed = true;
        }
        capture_step(w, &u, &plan.step[i]);
    }
    if (pushed) {
        fz_pop(w);
    }
    PLAIN(cuStreamEndCapture(u.handle, &g));
    CUgraphExec exec = instantiate(w, g);

    if (fz_below(&w->in, 3) == 0) {
        fz_push(w, 0);
        fz_pop(w);
    }
    launch_graph(w, &plan, exec);
    PLAIN(cuGraphExecDestroy(exec));
    PLAIN(cuGraphDestroy(g));
}

/* ---- put together ---- */

struct nodes {
    CUgraph g;
    CUgraphNode node[STEPS];
    CUfunction rows, mix;
    CUgraphExec exec; /* its instance, for SET_EXEC */
};

static CUDA_KERNEL_NODE_PARAMS kernel_params(const struct nodes *n, const struct step *s,
                                             void **params)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = s->kind == ROWS ? n->rows : n->mix,
                                     .gridDimX = 3,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 32,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = params};
}

static CUDA_MEMSET_NODE_PARAMS fill_params(const struct step *s)
{
    return (CUDA_MEMSET_NODE_PARAMS){
        .dst = s->to->at, .value = (uint8_t)s->seed, .elementSize = 1, .width = s->n, .height = 1};
}

static CUDA_MEMCPY3D copy_params(const struct step *s)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = s->a->at,
                           .srcPitch = s->n,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = s->to->at,
                           .dstPitch = s->n,
                           .WidthInBytes = s->n,
                           .Height = 1,
                           .Depth = 1};
}

/* The same as one of the kinds that cuGraphAddNode takes. */
static CUgraphNodeParams any_params(struct fz_world *w, const struct nodes *n, const struct step *s,
                                    void **params)
{
    CUgraphNodeParams p;
    const CUDA_KERNEL_NODE_PARAMS k = kernel_params(n, s, params);
    const CUDA_MEMSET_NODE_PARAMS f = fill_params(s);

    memset(&p, 0, sizeof(p));
    if (s->kind == ROWS || s->kind == MIX) {
        p.type = CU_GRAPH_NODE_TYPE_KERNEL;
        p.kernel = (CUDA_KERNEL_NODE_PARAMS_v3){.func = k.func,
                                                .gridDimX = 3,
                                                .gridDimY = 1,
                                                .gridDimZ = 1,
                                                .blockDimX = 32,
                                                .blockDimY = 1,
                                                .blockDimZ = 1,
                                                .kernelParams = params};
    } else if (s->kind == FILL) {
        p.type = CU_GRAPH_NODE_TYPE_MEMSET;
        p.memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = f.dst,
                                                .value = f.value,
                                                .elementSize = 1,
                                                .width = f.width,
                                                .height = 1,
                                                .ctx = w->ctx};
    } else {
        p.type = CU_GRAPH_NODE_TYPE_MEMCPY;
        p.memcpy.copyCtx = w->ctx;
        p.memcpy.copyParams = copy_params(s);
    }
    return p;
}

enum what { ADD, SET, SET_EXEC };

/* Adds a node, or gives a node or an instance its parameters once more, by the functions of its kind. */
static void own_form(struct fz_world *w, struct nodes *n, unsigned i, const struct step *s,
                     void **params, enum what what)
{
    const CUgraphNode *before = i > 0 ? &n->node[i - 1] : NULL;
    const CUDA_KERNEL_NODE_PARAMS k = kernel_params(n, s, params);
    const CUDA_MEMSET_NODE_PARAMS f = fill_params(s);
    const CUDA_MEMCPY3D c = copy_params(s);
    CUgraphNode *node = &n->node[i];

    switch (s->kind) {
    case ROWS:
    case MIX:
        if (what == ADD) {
            OK(cuGraphAddKernelNode_v2, node, n->g, before, i > 0, &k);
        } else if (what == SET) {
            OK(cuGraphKernelNodeSetParams_v2, *node, &k);
        } else {
            OK(cuGraphExecKernelNodeSetParams_v2, n->exec, *node, &k);
        }
        break;
    case FILL:
        if (what == ADD) {
            OK(cuGraphAddMemsetNode, node, n->g, before, i > 0, &f, w->ctx);
        } else if (what == SET) {
            OK(cuGraphMemsetNodeSetParams, *node, &f);
        } else {
            OK(cuGraphExecMemsetNodeSetParams, n->exec, *node, &f, w->ctx);
        }
        break;
    case COPY:
        if (what == ADD) {
            OK(cuGraphAddMemcpyNode, node, n->g, before, i > 0, &c, w->ctx);
        } else if (what == SET) {
            OK(cuGraphMemcpyNodeSetParams, *node, &c);
        } else {
            OK(cuGraphExecMemcpyNodeSetParams, n->exec, *node, &c, w->ctx);
        }
        break;
    }
}

static void node_call(struct fz_world *w, struct nodes *n, unsigned i, struct step *s,
                      enum what what)
{
    void *of_rows[] = {&s->to->at, &s->n_valid, &s->n, &s->seed};
    void *of_mix[] = {&s->a->at, &s->b->at, &s->to->at, &s->n};
    void **params = s->kind == ROWS ? of_rows : of_mix;
    const CUgraphNode *before = i > 0 ? &n->node[i - 1] : NULL;
    const unsigned form = fz_below(&w->in, 3);
    CUgraphNodeParams p = any_params(w, n, s, params);

    fz_name(s->to);
    if (s->kind == MIX || s->kind == COPY) {
        fz_name(s->a);
    }
    if (form == 0) {
        own_form(w, n, i, s, params, what);
    } else if (what == SET) {
        OK(cuGraphNodeSetParams, n->node[i], &p);
    } else if (what == SET_EXEC) {
        OK(cuGraphExecNodeSetParams, n->exec, n->node[i], &p);
    } else if (form == 1) {
        OK(cuGraphAddNode, &n->node[i], n->g, before, i > 0, &p);
    } else {
        OK(cuGraphAddNode_v2, &n->node[i], n->g, before, NULL, i > 0, &p);
    }
    fz_name(NULL);
}

/* Memory of the graph's own, which is no tensor of ours. */
static void add_alloc(struct nodes *n)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = 4096};
    CUgraphNode alloc;
    CUgraphNode end;

    OK(cuGraphAddMemAllocNode, &alloc, n->g, NULL, 0, &p);
    PLAIN(cuGraphAddMemFreeNode(&end, n->g, &alloc, 1, p.dptr));
}

/* From now on into another tensor, where that fits. */
static void turn_to(struct fz_world *w, const struct fz_use *u, struct step *s)
{
    struct fz_tensor *t = fz_tensor_choose(w, u);

    if (t->bytes >= s->to->bytes && t != s->a && t != s->b) {
        s->to = t;
    }
}

void fz_op_graph(struct fz_world *w)
{
    const struct fz_use u = fz_lane_choose(w);
    struct nodes n = {0};
    struct plan plan;

    if (!make_plan(w, &u, &plan)) {
        return;
    }
    FZ_SAY("a graph of nodes\n");
    PLAIN(cuGraphCreate(&n.g, 0));
    OK(cuModuleGetFunction, &n.rows, w->module, "test_rows");
    OK(cuModuleGetFunction, &n.mix, w->module, "test_mix2");
    for (unsigned i = 0; i < plan.n; i++) {
        node_call(w, &n, i, &plan.step[i], ADD);
    }
    const unsigned b = fz_u8(&w->in);

    if (b % 4 == 0) {
        turn_to(w, &u, &plan.step[0]);
        node_call(w, &n, 0, &plan.step[0], SET);
    }
    if (b % 16 == 1) {
        add_alloc(&n);
    }
    n.exec = instantiate(w, n.g);

    if (b % 3 == 0) {
        plan.step[plan.n - 1].seed = b;
        turn_to(w, &u, &plan.step[plan.n - 1]);
        node_call(w, &n, plan.n - 1, &plan.step[plan.n - 1], SET_EXEC);
    }
    if (b % 5 == 0) {
        fz_push(w, 0);
        fz_pop(w);
    }
    launch_graph(w, &plan, n.exec);
    PLAIN(cuGraphExecDestroy(n.exec));
    PLAIN(cuGraphDestroy(n.g));
}
