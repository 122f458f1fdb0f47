/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: executable graphs: a copy of a graph, made when it is instantiated. A launch queues one operation a node in
 * hidden streams (lanes), between an operation that begins and one that ends it in the stream of the launch.
 * Launches of one executable follow each other. Under the big lock.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"

struct sim_exec {
    struct sim_graph *graph; /* its own; nodes in an order that respects dependencies */
    cuuint64_t flags;
    struct sim_op *last; /* the end of its last launch */
    struct sim_stream **lanes;
    size_t n_lanes;
};

static struct sim_exec *exec_of(CUgraphExec handle)
{
    return sim_handle_is(handle, SIM_K_EXEC) ? (struct sim_exec *)handle : NULL;
}

/* ---- instantiation ---- */

static void drop_lanes(struct sim_exec *e)
{
    for (size_t i = 0; i < e->n_lanes; i++) {
        sim_stream_drop(e->lanes[i]);
    }
    free(e->lanes);
    e->lanes = NULL;
    e->n_lanes = 0;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph handle, cuuint64_t flags)
{
    if (exec == NULL || !sim_handle_is(handle, SIM_K_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct sim_graph *g = (struct sim_graph *)handle;
    struct sim_gnode **order = sim_graph_order(g);
    if (order == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    free(order);
    struct sim_exec *e = sim_calloc(1, sizeof *e);
    e->graph = sim_graph_clone(g);
    e->flags = flags;
    sim_handle_add(e, SIM_K_EXEC);
    *exec = (CUgraphExec)e;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                             unsigned long long flags)
{
    SIM_ENTER(SIM_CTX, t);
    return sim_leave(instantiate(phGraphExec, hGraph, flags));
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    SIM_ENTER(SIM_CTX, t);
    if (instantiateParams == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const CUresult result = instantiate(phGraphExec, hGraph, instantiateParams->flags);
    instantiateParams->hErrNode_out = NULL;
    instantiateParams->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return sim_leave(result);
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph,
                                    CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    SIM_ENTER(SIM_CTX, t);
    if (phErrorNode != NULL) {
        *phErrorNode = NULL;
    }
    if (logBuffer != NULL && bufferSize > 0) {
        logBuffer[0] = '\0';
    }
    return sim_leave(instantiate(phGraphExec, hGraph, 0));
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
                                       CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    SIM_ENTER(SIM_CTX, t);
    if (phErrorNode != NULL) {
        *phErrorNode = NULL;
    }
    if (logBuffer != NULL && bufferSize > 0) {
        logBuffer[0] = '\0';
    }
    return sim_leave(instantiate(phGraphExec, hGraph, 0));
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    SIM_ENTER(0, t);
    struct sim_exec *e = exec_of(hGraphExec);
    if (e == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    sim_handle_remove(e, SIM_K_EXEC);
    if (e->graph->memory->n_blocks > 0 && e->last != NULL) {
        (void)sim_wait_op(t, e->last, "cuGraphExecDestroy"); /* its memory may go */
    }
    drop_lanes(e);
    sim_op_unref(e->last);
    sim_graph_unref(e->graph);
    free(e);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    SIM_ENTER(0, t);
    const struct sim_exec *e = exec_of(hGraphExec);
    if (e == NULL || flags == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = e->flags;
    return sim_leave(CUDA_SUCCESS);
}

/* ---- launch ---- */

struct launching {
    struct sim_thread *t;
    struct sim_exec *exec;
    struct sim_ctx *ctx;
    struct sim_op *begin;
    struct sim_op **all; /* every operation queued; each is referenced */
    size_t n_all;
    size_t n_lanes_used;
};

/* A lane whose newest operation `after` is, or one not used in this launch. */
static struct sim_stream *lane_for(struct launching *l, const struct sim_op *after)
{
    struct sim_exec *e = l->exec;
    for (size_t i = 0; after != NULL && i < l->n_lanes_used; i++) {
        if (e->lanes[i]->tail == after) {
            return e->lanes[i];
        }
    }
    if (l->n_lanes_used == e->n_lanes) {
        sim_push(&e->lanes, &e->n_lanes, sim_stream_hidden(l->ctx));
    }
    return e->lanes[l->n_lanes_used++];
}

static struct sim_op *make(const struct sim_gnode *n, struct sim_stream *lane)
{
    if (n->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
        struct sim_op *op = sim_op_new(SIM_OP_RECORD, lane, "event record node");
        op->event = n->event;
        n->event->refs++;
        return op;
    }
    if (n->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
        struct sim_op *op = sim_op_new(SIM_OP_WAIT, lane, "event wait node");
        sim_op_dep(op, n->event->rec);
        return op;
    }
    return n->tmpl != NULL ? sim_op_clone(n->tmpl, lane)
                           : sim_op_new(SIM_OP_NOP, lane, "empty node");
}

static void queue(struct launching *l, struct sim_op *op)
{
    (void)sim_op_ref(op);
    sim_push(&l->all, &l->n_all, op);
    sim_op_queue(l->t, op);
}

/* Queues g's nodes after `begin`; returns an operation that all of them precede. Child graphs nest. */
static struct sim_op *expand(struct launching *l, const struct sim_graph *g, struct sim_op *begin)
{
    struct sim_gnode **order = sim_graph_order(g);
    struct sim_op **ends = sim_calloc(g->n_nodes + 1, sizeof(struct sim_op *));
    bool *followed = sim_calloc(g->n_nodes + 1, sizeof *followed);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const struct sim_gnode *n = order[i];
        struct sim_op *first = n->n_deps > 0 ? ends[n->deps[0]->index] : NULL;
        struct sim_op *op = make(n, lane_for(l, first));
        for (size_t k = 0; k < n->n_deps; k++) {
            sim_op_dep(op, ends[n->deps[k]->index]);
            followed[n->deps[k]->index] = true;
        }
        if (n->n_deps == 0) {
            sim_op_dep(op, begin);
        }
        queue(l, op);
        if (n->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
            sim_event_recorded(n->event, op);
        }
        ends[n->index] = n->child != NULL ? expand(l, n->child, op) : op;
    }
    struct sim_op *end = sim_op_new(SIM_OP_NOP, lane_for(l, NULL), "end of a graph");
    sim_op_dep(end, begin);
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (!followed[i]) {
            sim_op_dep(end, ends[i]);
        }
    }
    queue(l, end);
    free(followed);
    free(ends);
    free(order);
    return end;
}

static CUresult launch(struct sim_thread *t, struct sim_exec *e, struct sim_stream *s)
{
    if (s->capture != NULL) {
        if (s->capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        }
        sim_capture_node(s, CU_GRAPH_NODE_TYPE_GRAPH)->child = sim_graph_clone(e->graph);
        return CUDA_SUCCESS;
    }
    if (e->n_lanes > 0 && e->lanes[0]->ctx != s->ctx) {
        drop_lanes(e);
    }
    struct launching l = {.t = t, .exec = e, .ctx = s->ctx};
    l.begin = sim_op_new(SIM_OP_NOP, s, "begin of a graph");
    sim_op_dep(l.begin, e->last);
    (void)sim_op_ref(l.begin);
    const CUresult result = sim_submit(t, l.begin);
    if (result != CUDA_SUCCESS) {
        sim_op_unref(l.begin);
        return result;
    }
    struct sim_op *done = expand(&l, e->graph, l.begin);
    struct sim_op *end = sim_op_new(SIM_OP_GRAPH, s, "cuGraphLaunch");
    sim_op_dep(end, done);
    (void)sim_op_ref(end);
    sim_op_queue(t, end);
    sim_op_unref(e->last);
    e->last = end;
    for (size_t i = 0; i < l.n_all; i++) {
        sim_op_unref(l.all[i]);
    }
    free(l.all);
    sim_op_unref(l.begin);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    SIM_ENTER(0, t);
    struct sim_exec *e = exec_of(hGraphExec);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS || e == NULL) {
        return sim_leave(e == NULL ? CUDA_ERROR_INVALID_VALUE : result);
    }
    return sim_leave(launch(t, e, s));
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    return sim_leave(exec_of(hGraphExec) == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

/* ---- update ---- */

struct sim_gnode *sim_exec_node(CUgraphExec exec, CUgraphNode node)
{
    const struct sim_exec *e = exec_of(exec);
    for (size_t i = 0; e != NULL && i < e->graph->n_nodes; i++) {
        if (e->graph->nodes[i]->orig == (struct sim_gnode *)node) {
            return e->graph->nodes[i];
        }
    }
    return NULL;
}

static bool same_shape(const struct sim_graph *a, const struct sim_graph *b)
{
    if (a->n_nodes != b->n_nodes) {
        return false;
    }
    for (size_t i = 0; i < a->n_nodes; i++) {
        const struct sim_gnode *x = a->nodes[i];
        const struct sim_gnode *y = b->nodes[i];
        if (x->type != y->type || x->n_deps != y->n_deps ||
            (x->child != NULL && !same_shape(x->child, y->child))) {
            return false;
        }
        for (size_t k = 0; k < x->n_deps; k++) {
            if (x->deps[k]->index != y->deps[k]->index) {
                return false;
            }
        }
    }
    return true;
}

static CUresult update(struct sim_exec *e, const struct sim_graph *g)
{
    if (!same_shape(e->graph, g)) {
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        sim_gnode_take(e->graph->nodes[i], g->nodes[i]);
        e->graph->nodes[i]->orig = g->nodes[i];
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph,
                                   CUgraphNode *hErrorNode_out,
                                   CUgraphExecUpdateResult *updateResult_out)
{
    SIM_ENTER(0, t);
    struct sim_exec *e = exec_of(hGraphExec);
    if (e == NULL || !sim_handle_is(hGraph, SIM_K_GRAPH)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const CUresult result = update(e, (struct sim_graph *)hGraph);
    if (hErrorNode_out != NULL) {
        *hErrorNode_out = NULL;
    }
    if (updateResult_out != NULL) {
        *updateResult_out = result == CUDA_SUCCESS ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                                   : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                                      CUgraphExecUpdateResultInfo *resultInfo)
{
    SIM_ENTER(0, t);
    struct sim_exec *e = exec_of(hGraphExec);
    if (e == NULL || !sim_handle_is(hGraph, SIM_K_GRAPH)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const CUresult result = update(e, (struct sim_graph *)hGraph);
    if (resultInfo != NULL) {
        memset(resultInfo, 0, sizeof *resultInfo);
        resultInfo->result = result == CUDA_SUCCESS ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                                    : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                   const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_gnode *n = sim_exec_node(hGraphExec, hNode);
    if (n == NULL || nodeParams == NULL || n->type != CU_GRAPH_NODE_TYPE_KERNEL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(sim_gnode_kernel(sim_ctx_current(t), nodeParams, n));
}

CUresult CUDAAPI cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    SIM_ENTER(0, t);
    struct sim_ctx *c;
    struct sim_gnode *n = sim_exec_node(hGraphExec, hNode);
    if (n == NULL || copyParams == NULL || n->type != CU_GRAPH_NODE_TYPE_MEMCPY ||
        sim_ctx_check(ctx, &c) != CUDA_SUCCESS) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(sim_gnode_copy(c, copyParams, n));
}

CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_MEMSET_NODE_PARAMS *memsetParams,
                                                CUcontext ctx)
{
    SIM_ENTER(0, t);
    struct sim_ctx *c;
    struct sim_gnode *n = sim_exec_node(hGraphExec, hNode);
    if (n == NULL || memsetParams == NULL || n->type != CU_GRAPH_NODE_TYPE_MEMSET ||
        sim_ctx_check(ctx, &c) != CUDA_SUCCESS) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(sim_gnode_fill(c, memsetParams, n));
}

CUresult CUDAAPI cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                              const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_gnode *n = sim_exec_node(hGraphExec, hNode);
    if (n == NULL || nodeParams == NULL || n->type != CU_GRAPH_NODE_TYPE_HOST) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(sim_gnode_host(sim_ctx_current(t), nodeParams, n));
}

CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                    CUgraph childGraph)
{
    SIM_ENTER(0, t);
    struct sim_gnode *n = sim_exec_node(hGraphExec, hNode);
    if (n == NULL || n->child == NULL || !sim_handle_is(childGraph, SIM_K_GRAPH) ||
        !same_shape(n->child, (struct sim_graph *)childGraph)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    sim_graph_unref(n->child);
    n->child = sim_graph_clone((struct sim_graph *)childGraph);
    return sim_leave(CUDA_SUCCESS);
}
