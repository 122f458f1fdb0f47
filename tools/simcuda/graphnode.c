/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: nodes added to graphs one by one, and what they hold. Under the big lock. */
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"

/* ---- payloads ---- */

CUresult sim_gnode_kernel(struct sim_ctx *ctx, const CUDA_KERNEL_NODE_PARAMS *p,
                          struct sim_gnode *n)
{
    struct sim_func *f;
    struct sim_op *op;
    struct sim_ctx *c = ctx;
    CUresult result =
        sim_func_check(p->func != NULL ? p->func : (CUfunction)(uintptr_t)p->kern, &f);
    if (result == CUDA_SUCCESS && p->ctx != NULL) {
        result = sim_ctx_check(p->ctx, &c);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const unsigned dims[6] = {p->gridDimX,  p->gridDimY,  p->gridDimZ,
                              p->blockDimX, p->blockDimY, p->blockDimZ};
    result = sim_launch_make(c->legacy, f, dims, p->kernelParams, p->extra, &op);
    if (result == CUDA_SUCCESS) {
        sim_gnode_set(n, op);
    }
    return result;
}

CUresult sim_gnode_copy(struct sim_ctx *ctx, const CUDA_MEMCPY3D *p, struct sim_gnode *n)
{
    struct sim_copy c;
    const CUresult result = sim_copy_from_3d(p, &c);
    if (result == CUDA_SUCCESS) {
        sim_gnode_set(n, sim_copy_make(ctx->legacy, &c, "copy node", false));
    }
    return result;
}

CUresult sim_gnode_fill(struct sim_ctx *ctx, const CUDA_MEMSET_NODE_PARAMS *p, struct sim_gnode *n)
{
    const unsigned unit = p->elementSize;
    if ((unit != 1 && unit != 2 && unit != 4) || p->dst % unit != 0 || p->width == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_op *op = sim_op_new(SIM_OP_FILL, ctx->legacy, "fill node");
    op->fill = (struct sim_fill){.dst = p->dst,
                                 .pitch = p->pitch,
                                 .width = p->width,
                                 .height = p->height == 0 ? 1 : p->height,
                                 .unit = unit,
                                 .value = p->value};
    sim_gnode_set(n, op);
    return CUDA_SUCCESS;
}

CUresult sim_gnode_host(struct sim_ctx *ctx, const CUDA_HOST_NODE_PARAMS *p, struct sim_gnode *n)
{
    if (p->fn == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_op *op = sim_op_new(SIM_OP_HOST, ctx->legacy, "host node");
    op->host = (struct sim_host_call){.fn = p->fn, .data = p->userData};
    sim_gnode_set(n, op);
    return CUDA_SUCCESS;
}

/* ---- adding ---- */

static CUresult add(CUgraph graph, const CUgraphNode *deps, size_t n_deps, CUgraphNodeType type,
                    struct sim_gnode **node_p)
{
    if (!sim_handle_is(graph, SIM_K_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_graph *g = (struct sim_graph *)graph;
    const CUresult result = sim_gnodes_check(g, deps, n_deps);
    if (result == CUDA_SUCCESS) {
        *node_p = sim_graph_add(g, type, (struct sim_gnode *const *)(const void *)deps, n_deps);
    }
    return result;
}

/* Gives the node to the job, or takes it out of the graph when its payload was refused. */
static CUresult finish(CUresult result, struct sim_gnode *n, CUgraphNode *out)
{
    if (result != CUDA_SUCCESS || out == NULL) {
        sim_graph_remove(n);
        return out == NULL ? CUDA_ERROR_INVALID_VALUE : result;
    }
    *out = (CUgraphNode)n;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                         const CUgraphNode *dependencies, size_t numDependencies,
                                         const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_gnode *n = NULL;
    const CUresult result = nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE
                                               : add(hGraph, dependencies, numDependencies,
                                                     CU_GRAPH_NODE_TYPE_KERNEL, &n);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    return sim_leave(finish(sim_gnode_kernel(sim_ctx_current(t), nodeParams, n), n, phGraphNode));
}

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    SIM_ENTER(0, t);
    struct sim_ctx *c;
    struct sim_gnode *n = NULL;
    CUresult result = copyParams == NULL ? CUDA_ERROR_INVALID_VALUE : sim_ctx_check(ctx, &c);
    if (result == CUDA_SUCCESS) {
        result = add(hGraph, dependencies, numDependencies, CU_GRAPH_NODE_TYPE_MEMCPY, &n);
    }
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    return sim_leave(finish(sim_gnode_copy(c, copyParams, n), n, phGraphNode));
}

CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    SIM_ENTER(0, t);
    struct sim_ctx *c;
    struct sim_gnode *n = NULL;
    CUresult result = memsetParams == NULL ? CUDA_ERROR_INVALID_VALUE : sim_ctx_check(ctx, &c);
    if (result == CUDA_SUCCESS) {
        result = add(hGraph, dependencies, numDependencies, CU_GRAPH_NODE_TYPE_MEMSET, &n);
    }
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    return sim_leave(finish(sim_gnode_fill(c, memsetParams, n), n, phGraphNode));
}

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                    const CUgraphNode *dependencies, size_t numDependencies,
                                    const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_gnode *n = NULL;
    const CUresult result = nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE
                                               : add(hGraph, dependencies, numDependencies,
                                                     CU_GRAPH_NODE_TYPE_HOST, &n);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    return sim_leave(finish(sim_gnode_host(sim_ctx_current(t), nodeParams, n), n, phGraphNode));
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies, size_t numDependencies)
{
    SIM_ENTER(0, t);
    struct sim_gnode *n = NULL;
    const CUresult result =
        add(hGraph, dependencies, numDependencies, CU_GRAPH_NODE_TYPE_EMPTY, &n);
    return sim_leave(result == CUDA_SUCCESS ? finish(result, n, phGraphNode) : result);
}

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                          const CUgraphNode *dependencies, size_t numDependencies,
                                          CUgraph childGraph)
{
    SIM_ENTER(0, t);
    struct sim_gnode *n = NULL;
    CUresult result =
        sim_handle_is(childGraph, SIM_K_GRAPH) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        result = add(hGraph, dependencies, numDependencies, CU_GRAPH_NODE_TYPE_GRAPH, &n);
    }
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    n->child = sim_graph_clone((struct sim_graph *)childGraph);
    return sim_leave(finish(CUDA_SUCCESS, n, phGraphNode));
}

static CUresult add_event(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
                          CUgraphNodeType type, CUevent event)
{
    struct sim_gnode *n = NULL;
    CUresult result = sim_handle_is(event, SIM_K_EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        result = add(graph, deps, n_deps, type, &n);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    n->event = (struct sim_event *)event;
    n->event->refs++;
    return finish(CUDA_SUCCESS, n, out);
}

CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                           const CUgraphNode *dependencies, size_t numDependencies,
                                           CUevent event)
{
    SIM_ENTER(0, t);
    return sim_leave(add_event(phGraphNode, hGraph, dependencies, numDependencies,
                               CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}

CUresult CUDAAPI cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                         const CUgraphNode *dependencies, size_t numDependencies,
                                         CUevent event)
{
    SIM_ENTER(0, t);
    return sim_leave(add_event(phGraphNode, hGraph, dependencies, numDependencies,
                               CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}

/* ---- memory nodes ---- */

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_gnode *n = NULL;
    struct sim_block *b = NULL;
    struct sim_ctx *ctx = sim_ctx_current(t);
    if (nodeParams == NULL || nodeParams->bytesize == 0 ||
        nodeParams->poolProps.location.id != ctx->device) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUresult result = add(hGraph, dependencies, numDependencies, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &n);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    result = sim_pool_graph_alloc(ctx, nodeParams->bytesize, &b);
    if (result == CUDA_SUCCESS) {
        sim_graph_own(n->graph, b);
        struct sim_op *op = sim_op_new(SIM_OP_ALLOC, ctx->legacy, "allocation node");
        op->alloc = (struct sim_alloc_op){b->base, b->bytes, NULL};
        sim_gnode_set(n, op);
        nodeParams->dptr = b->base;
    }
    return sim_leave(finish(result, n, phGraphNode));
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUdeviceptr dptr)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_gnode *n = NULL;
    const struct sim_mapping *m;
    if (!sim_va_find(dptr, &m, NULL) || m->base != dptr || m->owner != SIM_OWNER_POOL ||
        !((const struct sim_block *)m->object)->pool->graph) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const CUresult result =
        add(hGraph, dependencies, numDependencies, CU_GRAPH_NODE_TYPE_MEM_FREE, &n);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    struct sim_op *op = sim_op_new(SIM_OP_FREE, sim_ctx_current(t)->legacy, "free node");
    op->alloc = (struct sim_alloc_op){m->base, m->bytes, NULL};
    sim_gnode_set(n, op);
    return sim_leave(finish(CUDA_SUCCESS, n, phGraphNode));
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device)
{
    SIM_ENTER(0, t);
    return sim_leave(device < 0 || device >= sim_options.devices ? CUDA_ERROR_INVALID_DEVICE
                                                                 : CUDA_SUCCESS);
}

/* ---- payloads asked for and changed ---- */

static struct sim_gnode *node_of(CUgraphNode handle, CUgraphNodeType type)
{
    struct sim_gnode *n = (struct sim_gnode *)handle;
    return sim_handle_is(handle, SIM_K_NODE) && n->type == type ? n : NULL;
}

CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode hNode,
                                               CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(0, t);
    const struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    if (n == NULL || nodeParams == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const struct sim_launch *l = &n->tmpl->launch;
    *nodeParams = (CUDA_KERNEL_NODE_PARAMS){.func = l->func,
                                            .gridDimX = l->grid[0],
                                            .gridDimY = l->grid[1],
                                            .gridDimZ = l->grid[2],
                                            .blockDimX = l->block[0],
                                            .blockDimY = l->block[1],
                                            .blockDimZ = l->block[2],
                                            .kernelParams = l->params,
                                            .ctx = (CUcontext)n->tmpl->ctx};
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                               const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    if (n == NULL || nodeParams == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(sim_gnode_kernel(sim_ctx_current(t), nodeParams, n));
}

static void tell_place(const struct sim_place *p, CUmemorytype *type, void **host,
                       CUdeviceptr *device)
{
    *type = p->is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    *host = p->is_host ? p->host : NULL;
    *device = p->device;
}

CUresult CUDAAPI cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
    SIM_ENTER(0, t);
    const struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_MEMCPY);
    if (n == NULL || nodeParams == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const struct sim_copy *c = &n->tmpl->copy;
    void *src;
    *nodeParams = (CUDA_MEMCPY3D){.WidthInBytes = c->width,
                                  .Height = c->height,
                                  .Depth = c->depth,
                                  .dstPitch = c->dst.pitch,
                                  .dstHeight = c->dst.height,
                                  .srcPitch = c->src.pitch,
                                  .srcHeight = c->src.height};
    tell_place(&c->dst, &nodeParams->dstMemoryType, &nodeParams->dstHost, &nodeParams->dstDevice);
    tell_place(&c->src, &nodeParams->srcMemoryType, &src, &nodeParams->srcDevice);
    nodeParams->srcHost = src;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    SIM_ENTER(0, t);
    struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_MEMCPY);
    if (n == NULL || nodeParams == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(sim_gnode_copy(n->tmpl->ctx, nodeParams, n));
}

CUresult CUDAAPI cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(0, t);
    const struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_MEMSET);
    if (n == NULL || nodeParams == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const struct sim_fill *f = &n->tmpl->fill;
    *nodeParams = (CUDA_MEMSET_NODE_PARAMS){.dst = f->dst,
                                            .pitch = f->pitch,
                                            .value = f->value,
                                            .elementSize = f->unit,
                                            .width = f->width,
                                            .height = f->height};
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphMemsetNodeSetParams(CUgraphNode hNode,
                                            const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(0, t);
    struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_MEMSET);
    if (n == NULL || nodeParams == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(sim_gnode_fill(n->tmpl->ctx, nodeParams, n));
}

CUresult CUDAAPI cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(0, t);
    const struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_HOST);
    if (n == NULL || nodeParams == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *nodeParams = (CUDA_HOST_NODE_PARAMS){n->tmpl->host.fn, n->tmpl->host.data};
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphHostNodeSetParams(CUgraphNode hNode,
                                          const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(0, t);
    struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_HOST);
    if (n == NULL || nodeParams == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(sim_gnode_host(n->tmpl->ctx, nodeParams, n));
}

CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode hNode,
                                              CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    SIM_ENTER(0, t);
    const struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (n == NULL || params_out == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    memset(params_out, 0, sizeof *params_out);
    params_out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params_out->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params_out->poolProps.location.id = n->tmpl->ctx->device;
    params_out->bytesize = n->tmpl->alloc.bytes;
    params_out->dptr = n->tmpl->alloc.base;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
    SIM_ENTER(0, t);
    const struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (n == NULL || dptr_out == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *dptr_out = n->tmpl->alloc.base;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    SIM_ENTER(0, t);
    const struct sim_gnode *n = node_of(hNode, CU_GRAPH_NODE_TYPE_GRAPH);
    if (n == NULL || phGraph == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *phGraph = (CUgraph)n->child;
    return sim_leave(CUDA_SUCCESS);
}
