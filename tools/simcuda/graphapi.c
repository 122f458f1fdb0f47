/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: making, copying, asking and changing the shape of graphs. Under the big lock. */
#include <stdlib.h>

#include "tools/simcuda/core.h"

static struct sim_graph *graph_of(CUgraph handle)
{
    return sim_handle_is(handle, SIM_K_GRAPH) ? (struct sim_graph *)handle : NULL;
}

static struct sim_gnode *node_of(CUgraphNode handle)
{
    return sim_handle_is(handle, SIM_K_NODE) ? (struct sim_gnode *)handle : NULL;
}

CUresult CUDAAPI cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    SIM_ENTER(0, t);
    if (phGraph == NULL || flags != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *phGraph = (CUgraph)sim_graph_new();
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph)
{
    SIM_ENTER(0, t);
    struct sim_graph *g = graph_of(hGraph);
    if (g == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    sim_graph_unref(g);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    SIM_ENTER(0, t);
    const struct sim_graph *g = graph_of(originalGraph);
    if (g == NULL || phGraphClone == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *phGraphClone = (CUgraph)sim_graph_clone(g);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                        CUgraph hClonedGraph)
{
    SIM_ENTER(0, t);
    const struct sim_graph *g = graph_of(hClonedGraph);
    for (size_t i = 0; g != NULL && phNode != NULL && i < g->n_nodes; i++) {
        if (g->nodes[i]->orig == (struct sim_gnode *)hOriginalNode) {
            *phNode = (CUgraphNode)g->nodes[i];
            return sim_leave(CUDA_SUCCESS);
        }
    }
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode hNode)
{
    SIM_ENTER(0, t);
    struct sim_gnode *n = node_of(hNode);
    if (n == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    sim_graph_remove(n);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    SIM_ENTER(0, t);
    const struct sim_gnode *n = node_of(hNode);
    if (n == NULL || type == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *type = n->type;
    return sim_leave(CUDA_SUCCESS);
}

/* ---- lists: with no place to put them, their number is told ---- */

struct list {
    CUgraphNode *out;
    size_t capacity, n;
};

static void list_add(struct list *l, const struct sim_gnode *n)
{
    if (l->out != NULL && l->n < l->capacity) {
        l->out[l->n] = (CUgraphNode)(uintptr_t)n;
    }
    l->n++;
}

static CUresult list_end(const struct list *l, size_t *count)
{
    for (size_t i = l->n; l->out != NULL && i < l->capacity; i++) {
        l->out[i] = NULL;
    }
    *count = l->out == NULL || l->n < l->capacity ? l->n : l->capacity;
    return CUDA_SUCCESS;
}

static CUresult list_nodes(const struct sim_graph *g, CUgraphNode *out, size_t *count, bool roots)
{
    if (g == NULL || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct list l = {out, *count, 0};
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (!roots || g->nodes[i]->n_deps == 0) {
            list_add(&l, g->nodes[i]);
        }
    }
    return list_end(&l, count);
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    SIM_ENTER(0, t);
    return sim_leave(list_nodes(graph_of(hGraph), nodes, numNodes, false));
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    SIM_ENTER(0, t);
    return sim_leave(list_nodes(graph_of(hGraph), rootNodes, numRootNodes, true));
}

static CUresult neighbours(const struct sim_gnode *n, CUgraphNode *out, size_t *count, bool before)
{
    if (n == NULL || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct list l = {out, *count, 0};
    for (size_t i = 0; before && i < n->n_deps; i++) {
        list_add(&l, n->deps[i]);
    }
    for (size_t i = 0; !before && i < n->graph->n_nodes; i++) {
        const struct sim_gnode *x = n->graph->nodes[i];
        for (size_t k = 0; k < x->n_deps; k++) {
            if (x->deps[k] == n) {
                list_add(&l, x);
            }
        }
    }
    return list_end(&l, count);
}

CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
                                            size_t *numDependencies)
{
    SIM_ENTER(0, t);
    return sim_leave(neighbours(node_of(hNode), dependencies, numDependencies, true));
}

CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                               CUgraphEdgeData *edgeData, size_t *numDependencies)
{
    SIM_ENTER(0, t);
    const size_t capacity = numDependencies == NULL ? 0 : *numDependencies;
    for (size_t i = 0; edgeData != NULL && i < capacity; i++) {
        edgeData[i] = (CUgraphEdgeData){0};
    }
    return sim_leave(neighbours(node_of(hNode), dependencies, numDependencies, true));
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                              size_t *numDependentNodes)
{
    SIM_ENTER(0, t);
    return sim_leave(neighbours(node_of(hNode), dependentNodes, numDependentNodes, false));
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                                 CUgraphEdgeData *edgeData,
                                                 size_t *numDependentNodes)
{
    SIM_ENTER(0, t);
    const size_t capacity = numDependentNodes == NULL ? 0 : *numDependentNodes;
    for (size_t i = 0; edgeData != NULL && i < capacity; i++) {
        edgeData[i] = (CUgraphEdgeData){0};
    }
    return sim_leave(neighbours(node_of(hNode), dependentNodes, numDependentNodes, false));
}

static CUresult edges(const struct sim_graph *g, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    if (g == NULL || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct list a = {from, *count, 0};
    struct list b = {to, *count, 0};
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (size_t k = 0; k < g->nodes[i]->n_deps; k++) {
            list_add(&a, g->nodes[i]->deps[k]);
            list_add(&b, g->nodes[i]);
        }
    }
    (void)list_end(&b, count);
    return list_end(&a, count);
}

CUresult CUDAAPI cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                 size_t *numEdges)
{
    SIM_ENTER(0, t);
    return sim_leave(edges(graph_of(hGraph), from, to, numEdges));
}

CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                    CUgraphEdgeData *edgeData, size_t *numEdges)
{
    SIM_ENTER(0, t);
    const size_t capacity = numEdges == NULL ? 0 : *numEdges;
    for (size_t i = 0; edgeData != NULL && i < capacity; i++) {
        edgeData[i] = (CUgraphEdgeData){0};
    }
    return sim_leave(edges(graph_of(hGraph), from, to, numEdges));
}

static CUresult join(const struct sim_graph *g, const CUgraphNode *from, const CUgraphNode *to,
                     size_t n)
{
    if (g == NULL || sim_gnodes_check(g, from, n) != CUDA_SUCCESS ||
        sim_gnodes_check(g, to, n) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < n; i++) {
        struct sim_gnode *x = (struct sim_gnode *)to[i];
        sim_push(&x->deps, &x->n_deps, (struct sim_gnode *)from[i]);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from,
                                        const CUgraphNode *to, size_t numDependencies)
{
    SIM_ENTER(0, t);
    return sim_leave(join(graph_of(hGraph), from, to, numDependencies));
}

CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                           const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                           size_t numDependencies)
{
    SIM_ENTER(0, t);
    return sim_leave(edgeData != NULL ? CUDA_ERROR_NOT_SUPPORTED
                                      : join(graph_of(hGraph), from, to, numDependencies));
}

static CUresult part(const struct sim_graph *g, const CUgraphNode *from, const CUgraphNode *to,
                     size_t n)
{
    if (g == NULL || sim_gnodes_check(g, from, n) != CUDA_SUCCESS ||
        sim_gnodes_check(g, to, n) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < n; i++) {
        sim_gnode_part((struct sim_gnode *)to[i], (struct sim_gnode *)from[i]);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from,
                                           const CUgraphNode *to, size_t numDependencies)
{
    SIM_ENTER(0, t);
    return sim_leave(part(graph_of(hGraph), from, to, numDependencies));
}

CUresult CUDAAPI cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                              const CUgraphNode *to,
                                              const CUgraphEdgeData *edgeData,
                                              size_t numDependencies)
{
    SIM_ENTER(0, t);
    return sim_leave(edgeData != NULL ? CUDA_ERROR_NOT_SUPPORTED
                                      : part(graph_of(hGraph), from, to, numDependencies));
}

/* ---- nodes by the driver's general structure ---- */

static CUresult set_general(struct sim_thread *t, struct sim_gnode *n, const CUgraphNodeParams *p)
{
    struct sim_ctx *ctx = sim_ctx_current(t);
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        const CUDA_KERNEL_NODE_PARAMS_v3 *k = &p->kernel;
        const CUDA_KERNEL_NODE_PARAMS v2 = {k->func,      k->gridDimX,       k->gridDimY,
                                            k->gridDimZ,  k->blockDimX,      k->blockDimY,
                                            k->blockDimZ, k->sharedMemBytes, k->kernelParams,
                                            k->extra,     k->kern,           k->ctx};
        return sim_gnode_kernel(ctx, &v2, n);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return sim_gnode_copy(ctx, &p->memcpy.copyParams, n);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        const CUDA_MEMSET_NODE_PARAMS_v2 *m = &p->memset;
        const CUDA_MEMSET_NODE_PARAMS v1 = {m->dst,         m->pitch, m->value,
                                            m->elementSize, m->width, m->height};
        return sim_gnode_fill(ctx, &v1, n);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        const CUDA_HOST_NODE_PARAMS v1 = {p->host.fn, p->host.userData};
        return sim_gnode_host(ctx, &v1, n);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult add_general(struct sim_thread *t, CUgraphNode *out, struct sim_graph *g,
                            const CUgraphNode *deps, size_t n_deps, const CUgraphNodeParams *p)
{
    if (out == NULL || g == NULL || p == NULL ||
        sim_gnodes_check(g, deps, n_deps) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_gnode *n =
        sim_graph_add(g, p->type, (struct sim_gnode *const *)(const void *)deps, n_deps);
    const CUresult result = set_general(t, n, p);
    if (result != CUDA_SUCCESS) {
        sim_graph_remove(n);
        return result;
    }
    *out = (CUgraphNode)n;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                const CUgraphNode *dependencies, size_t numDependencies,
                                CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    return sim_leave(
        add_general(t, phGraphNode, graph_of(hGraph), dependencies, numDependencies, nodeParams));
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                   const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                   CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    if (dependencyData != NULL) {
        return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    return sim_leave(
        add_general(t, phGraphNode, graph_of(hGraph), dependencies, numDependencies, nodeParams));
}

CUresult CUDAAPI cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_gnode *n = node_of(hNode);
    if (n == NULL || nodeParams == NULL || nodeParams->type != n->type) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(set_general(t, n, nodeParams));
}

CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_gnode *n = sim_exec_node(hGraphExec, hNode);
    if (n == NULL || nodeParams == NULL || nodeParams->type != n->type) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(set_general(t, n, nodeParams));
}
