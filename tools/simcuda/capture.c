/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: stream capture. While a stream takes part in a capture, what is queued in it becomes a node that depends on
 * the stream's current set of nodes; events carry sets of nodes from stream to stream. Under the big lock.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"

static struct sim_capture *captures; /* from begin to end, invalidated ones included */

static void set_deps(struct sim_gnode ***deps, size_t *n, struct sim_gnode *const *from,
                     size_t n_from)
{
    free(*deps);
    *deps = NULL;
    *n = 0;
    for (size_t i = 0; i < n_from; i++) {
        sim_push(deps, n, from[i]);
    }
}

static void add_deps(struct sim_gnode ***deps, size_t *n, struct sim_gnode *const *from,
                     size_t n_from)
{
    for (size_t i = 0; i < n_from; i++) {
        bool known = false;
        for (size_t k = 0; k < *n; k++) {
            known = known || (*deps)[k] == from[i];
        }
        if (!known) {
            sim_push(deps, n, from[i]);
        }
    }
}

void sim_capture_invalidate(struct sim_capture *c)
{
    c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

CUresult sim_capture_unsafe(struct sim_thread *t)
{
    CUresult result = CUDA_SUCCESS;
    if (t->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return result;
    }
    for (struct sim_capture *c = captures; c != NULL; c = c->next) {
        const bool own = c->thread == t->id && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        const bool any = t->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                         c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (own || any) {
            sim_capture_invalidate(c);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult sim_capture_implicit(struct sim_ctx *ctx)
{
    CUresult result = CUDA_SUCCESS;
    for (const struct sim_stream *s = ctx->streams; s != NULL; s = s->next) {
        if (s->blocking && s->capture != NULL) {
            sim_capture_invalidate(s->capture);
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return result;
}

/* The same for who only asks about a capture: none is invalidated. */
static CUresult implicit_question(const struct sim_ctx *ctx)
{
    for (const struct sim_stream *s = ctx->streams; s != NULL; s = s->next) {
        if (s->blocking && s->capture != NULL) {
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return CUDA_SUCCESS;
}

static CUgraphNodeType type_of(const struct sim_op *op)
{
    static const CUgraphNodeType types[] = {
        [SIM_OP_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [SIM_OP_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [SIM_OP_FILL] = CU_GRAPH_NODE_TYPE_MEMSET,
        [SIM_OP_HOST] = CU_GRAPH_NODE_TYPE_HOST,
        [SIM_OP_WRITE_VALUE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [SIM_OP_WAIT_VALUE] = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        [SIM_OP_ALLOC] = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        [SIM_OP_FREE] = CU_GRAPH_NODE_TYPE_MEM_FREE,
        [SIM_OP_RECORD] = CU_GRAPH_NODE_TYPE_EMPTY,
        [SIM_OP_WAIT] = CU_GRAPH_NODE_TYPE_EMPTY,
        [SIM_OP_GRAPH] = CU_GRAPH_NODE_TYPE_GRAPH,
        [SIM_OP_NOP] = CU_GRAPH_NODE_TYPE_EMPTY,
    };
    return types[op->kind];
}

struct sim_gnode *sim_capture_node(struct sim_stream *s, CUgraphNodeType type)
{
    struct sim_gnode *n = sim_graph_add(s->capture->graph, type, s->cap_deps, s->n_cap_deps);
    set_deps(&s->cap_deps, &s->n_cap_deps, &n, 1);
    return n;
}

CUresult sim_capture_op(struct sim_thread *t, struct sim_op *op)
{
    (void)t;
    struct sim_stream *s = op->stream;
    if (s->capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        sim_op_unref(op);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    struct sim_gnode *n = sim_capture_node(s, type_of(op));
    if (op->kind == SIM_OP_ALLOC) {
        sim_graph_own(n->graph, op->alloc.block);
    }
    sim_gnode_set(n, op);
    return CUDA_SUCCESS;
}

void sim_capture_forget_event(struct sim_event *e)
{
    e->capture = NULL;
    free(e->cap_nodes);
    e->cap_nodes = NULL;
    e->n_cap_nodes = 0;
}

CUresult sim_capture_record(struct sim_stream *s, struct sim_event *e)
{
    if (s->capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    e->capture = s->capture;
    e->cap_id = s->capture->id;
    set_deps(&e->cap_nodes, &e->n_cap_nodes, s->cap_deps, s->n_cap_deps);
    return CUDA_SUCCESS;
}

CUresult sim_capture_event_node(struct sim_stream *s, struct sim_event *e, CUgraphNodeType type)
{
    if (s->capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    struct sim_gnode *n = sim_capture_node(s, type);
    n->event = e;
    e->refs++;
    return CUDA_SUCCESS;
}

/* The capture an event was recorded in, if that is still going on. */
static struct sim_capture *capture_of(const struct sim_event *e)
{
    for (struct sim_capture *c = captures; c != NULL; c = c->next) {
        if (c == e->capture && c->id == e->cap_id) {
            return c;
        }
    }
    return NULL;
}

CUresult sim_capture_wait(struct sim_thread *t, struct sim_stream *s, struct sim_event *e)
{
    (void)t;
    struct sim_capture *c = e->capture == NULL ? NULL : capture_of(e);
    if (s->capture != NULL && s->capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (c == NULL) {
        if (s->capture == NULL) { /* the event belongs to a capture that has ended */
            return CUDA_ERROR_CAPTURED_EVENT;
        }
        if (e->rec == NULL && e->capture == NULL) {
            return CUDA_SUCCESS; /* never recorded */
        }
        sim_capture_invalidate(s->capture); /* work outside of the capture cannot be a dependency */
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (c->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (s->kind == SIM_STREAM_LEGACY) {
        sim_capture_invalidate(c);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (s->capture != NULL && s->capture != c) {
        sim_capture_invalidate(c);
        sim_capture_invalidate(s->capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    s->capture = c;
    add_deps(&s->cap_deps, &s->n_cap_deps, e->cap_nodes, e->n_cap_nodes);
    return CUDA_SUCCESS;
}

static void leave(struct sim_stream *s)
{
    s->capture = NULL;
    free(s->cap_deps);
    s->cap_deps = NULL;
    s->n_cap_deps = 0;
}

static void end(struct sim_capture *c)
{
    for (struct sim_ctx *ctx = sim_contexts; ctx != NULL; ctx = ctx->next) {
        for (struct sim_stream *s = ctx->streams; s != NULL; s = s->next) {
            if (s->capture == c) {
                leave(s);
            }
        }
    }
    for (struct sim_capture **link = &captures; *link != NULL; link = &(*link)->next) {
        if (*link == c) {
            *link = c->next;
            break;
        }
    }
    free(c);
}

void sim_capture_stream_gone(struct sim_stream *s)
{
    struct sim_capture *c = s->capture;
    sim_capture_invalidate(c);
    leave(s);
    if (c->origin == s) {
        sim_graph_unref(c->graph);
        end(c);
    }
}

static CUresult begin(struct sim_thread *t, CUstream hStream, CUstreamCaptureMode mode,
                      struct sim_graph *into)
{
    static unsigned long long n_ids;
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (s->kind == SIM_STREAM_LEGACY) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (s->capture != NULL || (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return s->capture != NULL ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_capture *c = sim_calloc(1, sizeof *c);
    c->graph = into == NULL ? sim_graph_new() : into;
    c->into = into != NULL;
    c->origin = s;
    c->thread = t->id;
    c->mode = mode;
    c->status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    c->id = ++n_ids;
    c->next = captures;
    captures = c;
    s->capture = c;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    SIM_ENTER(0, t);
    return sim_leave(begin(t, hStream, mode, NULL));
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream hStream)
{
    SIM_ENTER(0, t);
    return sim_leave(begin(t, hStream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL));
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                             const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *dependencyData,
                                             size_t numDependencies, CUstreamCaptureMode mode)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS || !sim_handle_is(hGraph, SIM_K_GRAPH) || dependencyData != NULL) {
        return sim_leave(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    }
    struct sim_graph *g = (struct sim_graph *)hGraph;
    for (size_t i = 0; i < numDependencies; i++) {
        if (!sim_handle_is(dependencies[i], SIM_K_NODE) ||
            ((struct sim_gnode *)dependencies[i])->graph != g) {
            return sim_leave(CUDA_ERROR_INVALID_VALUE);
        }
    }
    g->refs++;
    result = begin(t, hStream, mode, g);
    if (result != CUDA_SUCCESS) {
        sim_graph_unref(g);
        return sim_leave(result);
    }
    for (size_t i = 0; i < numDependencies; i++) {
        sim_push(&s->cap_deps, &s->n_cap_deps, (struct sim_gnode *)dependencies[i]);
    }
    return sim_leave(CUDA_SUCCESS);
}

/* A stream that joined and has work the origin does not depend on. */
static bool has_unjoined(const struct sim_capture *c)
{
    for (const struct sim_ctx *ctx = sim_contexts; ctx != NULL; ctx = ctx->next) {
        for (const struct sim_stream *s = ctx->streams; s != NULL; s = s->next) {
            for (size_t i = 0; s->capture == c && s != c->origin && i < s->n_cap_deps; i++) {
                if (!sim_gnode_reached(s->cap_deps[i], c->origin->cap_deps,
                                       c->origin->n_cap_deps)) {
                    return true;
                }
            }
        }
    }
    return false;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS || phGraph == NULL) {
        return sim_leave(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    }
    struct sim_capture *c = s->capture;
    if (c == NULL) {
        return sim_leave(CUDA_ERROR_ILLEGAL_STATE);
    }
    if (c->origin != s) {
        sim_capture_invalidate(c);
        return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != t->id) {
        return sim_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    struct sim_graph *g = c->graph;
    if (c->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (has_unjoined(c)) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    const bool into = c->into;
    end(c);
    *phGraph = result == CUDA_SUCCESS ? (CUgraph)g : NULL;
    if (result != CUDA_SUCCESS || into) {
        sim_graph_unref(g); /* of a graph captured into, the capture held a reference of its own */
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS && s->kind == SIM_STREAM_LEGACY) {
        result = implicit_question(s->ctx);
    }
    if (result == CUDA_SUCCESS && captureStatus != NULL) {
        *captureStatus = s->capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : s->capture->status;
    }
    return sim_leave(captureStatus == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ENTER(0, t);
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const CUstreamCaptureMode old = t->capture_mode;
    t->capture_mode = *mode;
    *mode = old;
    return sim_leave(CUDA_SUCCESS);
}

struct info {
    CUstreamCaptureStatus *status;
    cuuint64_t *id;
    CUgraph *graph;
    const CUgraphNode **deps;
    size_t *n_deps;
};

static CUresult info(struct sim_thread *t, CUstream hStream, const struct info *out)
{
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result == CUDA_SUCCESS && s->kind == SIM_STREAM_LEGACY) {
        result = implicit_question(s->ctx);
    }
    if (result != CUDA_SUCCESS || out->status == NULL) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    *out->status = s->capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : s->capture->status;
    if (*out->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return CUDA_SUCCESS;
    }
    if (out->id != NULL) {
        *out->id = s->capture->id;
    }
    if (out->graph != NULL) {
        *out->graph = (CUgraph)s->capture->graph;
    }
    if (out->deps != NULL) {
        *out->deps = (const CUgraphNode *)(void *)s->cap_deps;
    }
    if (out->n_deps != NULL) {
        *out->n_deps = s->n_cap_deps;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                        cuuint64_t *id_out)
{
    SIM_ENTER(0, t);
    return sim_leave(info(t, hStream, &(struct info){captureStatus_out, id_out, NULL, NULL, NULL}));
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream hStream,
                                           CUstreamCaptureStatus *captureStatus_out,
                                           cuuint64_t *id_out, CUgraph *graph_out,
                                           const CUgraphNode **dependencies_out,
                                           size_t *numDependencies_out)
{
    SIM_ENTER(0, t);
    return sim_leave(info(t, hStream,
                          &(struct info){captureStatus_out, id_out, graph_out, dependencies_out,
                                         numDependencies_out}));
}

/* Edges carry no data here: all of them are full dependencies. */
/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream hStream,
                                           CUstreamCaptureStatus *captureStatus_out,
                                           cuuint64_t *id_out, CUgraph *graph_out,
                                           const CUgraphNode **dependencies_out,
                                           const CUgraphEdgeData **edgeData_out,
                                           size_t *numDependencies_out)
{
    SIM_ENTER(0, t);
    if (edgeData_out != NULL) {
        *edgeData_out = NULL;
    }
    return sim_leave(info(t, hStream,
                          &(struct info){captureStatus_out, id_out, graph_out, dependencies_out,
                                         numDependencies_out}));
}

static CUresult update_deps(struct sim_thread *t, CUstream hStream, CUgraphNode *deps, size_t n,
                            unsigned flags)
{
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS || s->capture == NULL ||
        flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        return result != CUDA_SUCCESS ? result
               : s->capture == NULL   ? CUDA_ERROR_ILLEGAL_STATE
                                      : CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < n; i++) {
        if (!sim_handle_is(deps[i], SIM_K_NODE) ||
            ((struct sim_gnode *)deps[i])->graph != s->capture->graph) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    struct sim_gnode *const *nodes = (struct sim_gnode *const *)(void *)deps;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        set_deps(&s->cap_deps, &s->n_cap_deps, nodes, n);
    } else {
        add_deps(&s->cap_deps, &s->n_cap_deps, nodes, n);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
                                                   size_t numDependencies, unsigned int flags)
{
    SIM_ENTER(0, t);
    return sim_leave(update_deps(t, hStream, dependencies, numDependencies, flags));
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                                      const CUgraphEdgeData *dependencyData,
                                                      size_t numDependencies, unsigned int flags)
{
    SIM_ENTER(0, t);
    return sim_leave(dependencyData != NULL
                         ? CUDA_ERROR_NOT_SUPPORTED
                         : update_deps(t, hStream, dependencies, numDependencies, flags));
}
