/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: graphs as structures: nodes, dependencies, copies, the memory they own. Under the big lock. */
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"

struct sim_graph *sim_graph_new(void)
{
    struct sim_graph *g = sim_calloc(1, sizeof *g);
    g->refs = 1;
    g->memory = sim_calloc(1, sizeof *g->memory);
    g->memory->refs = 1;
    sim_handle_add(g, SIM_K_GRAPH);
    return g;
}

struct sim_gnode *sim_graph_add(struct sim_graph *g, CUgraphNodeType type,
                                struct sim_gnode *const *deps, size_t n_deps)
{
    struct sim_gnode *n = sim_calloc(1, sizeof *n);
    n->graph = g;
    n->type = type;
    n->index = g->n_nodes;
    for (size_t i = 0; i < n_deps; i++) {
        sim_push(&n->deps, &n->n_deps, deps[i]);
    }
    sim_push(&g->nodes, &g->n_nodes, n);
    sim_handle_add(n, SIM_K_NODE);
    return n;
}

void sim_gnode_set(struct sim_gnode *n, struct sim_op *op)
{
    sim_op_unref(n->tmpl);
    n->tmpl = op;
}

static void free_node(struct sim_gnode *n)
{
    sim_handle_remove(n, SIM_K_NODE);
    sim_op_unref(n->tmpl);
    if (n->child != NULL) {
        sim_graph_unref(n->child);
    }
    if (n->event != NULL) {
        sim_event_unref(n->event);
    }
    free(n->deps);
    free(n);
}

void sim_gnode_part(struct sim_gnode *n, const struct sim_gnode *dep)
{
    struct sim_gnode **old = n->deps;
    const size_t n_old = n->n_deps;
    n->deps = NULL;
    n->n_deps = 0;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i] != dep) {
            sim_push(&n->deps, &n->n_deps, old[i]);
        }
    }
    free(old);
}

void sim_graph_remove(struct sim_gnode *n)
{
    struct sim_graph *g = n->graph;
    for (size_t i = 0; i < g->n_nodes; i++) {
        sim_gnode_part(g->nodes[i], n);
    }
    struct sim_gnode **old = g->nodes;
    const size_t n_old = g->n_nodes;
    g->nodes = NULL;
    g->n_nodes = 0;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i] != n) {
            old[i]->index = g->n_nodes;
            sim_push(&g->nodes, &g->n_nodes, old[i]);
        }
    }
    free(old);
    free_node(n);
}

void sim_graph_unref(struct sim_graph *g)
{
    if (--g->refs > 0) {
        return;
    }
    sim_handle_remove(g, SIM_K_GRAPH);
    for (size_t i = 0; i < g->n_nodes; i++) {
        free_node(g->nodes[i]);
    }
    free(g->nodes);
    if (--g->memory->refs == 0) {
        for (size_t i = 0; i < g->memory->n_blocks; i++) {
            sim_pool_graph_free(g->memory->blocks[i]);
        }
        free(g->memory->blocks);
        free(g->memory);
    }
    free(g);
}

void sim_graph_own(struct sim_graph *g, struct sim_block *block)
{
    sim_push(&g->memory->blocks, &g->memory->n_blocks, block);
}

CUresult sim_gnodes_check(const struct sim_graph *g, const CUgraphNode *nodes, size_t n)
{
    if (n > 0 && nodes == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < n; i++) {
        if (!sim_handle_is(nodes[i], SIM_K_NODE) || ((struct sim_gnode *)nodes[i])->graph != g) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

void sim_gnode_take(struct sim_gnode *to, const struct sim_gnode *from)
{
    sim_gnode_set(to, from->tmpl == NULL ? NULL : sim_op_clone(from->tmpl, from->tmpl->stream));
    if (from->event != NULL) {
        from->event->refs++;
    }
    if (to->event != NULL) {
        sim_event_unref(to->event);
    }
    to->event = from->event;
    struct sim_graph *old = to->child;
    to->child = from->child == NULL ? NULL : sim_graph_clone(from->child);
    if (old != NULL) {
        sim_graph_unref(old);
    }
}

struct sim_graph *sim_graph_clone(const struct sim_graph *g)
{
    struct sim_graph *copy = sim_graph_new();
    free(copy->memory);
    copy->memory = g->memory;
    copy->memory->refs++;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const struct sim_gnode *from = g->nodes[i];
        struct sim_gnode *to = sim_graph_add(copy, from->type, NULL, 0);
        to->orig = from;
        sim_gnode_take(to, from);
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (size_t k = 0; k < g->nodes[i]->n_deps; k++) {
            sim_push(&copy->nodes[i]->deps, &copy->nodes[i]->n_deps,
                     copy->nodes[g->nodes[i]->deps[k]->index]);
        }
    }
    return copy;
}

bool sim_gnode_reached(const struct sim_gnode *n, struct sim_gnode *const *from, size_t n_from)
{
    if (n_from == 0) {
        return false;
    }
    bool *seen = sim_calloc(n->graph->n_nodes, sizeof *seen);
    const struct sim_gnode **stack = sim_calloc(n->graph->n_nodes, sizeof(struct sim_gnode *));
    size_t depth = 0;
    for (size_t i = 0; i < n_from; i++) {
        if (!seen[from[i]->index]) {
            seen[from[i]->index] = true;
            stack[depth++] = from[i];
        }
    }
    while (depth > 0 && !seen[n->index]) {
        const struct sim_gnode *x = stack[--depth];
        for (size_t i = 0; i < x->n_deps; i++) {
            if (!seen[x->deps[i]->index]) {
                seen[x->deps[i]->index] = true;
                stack[depth++] = x->deps[i];
            }
        }
    }
    const bool reached = seen[n->index];
    free(stack);
    free(seen);
    return reached;
}

struct sim_gnode **sim_graph_order(const struct sim_graph *g)
{
    size_t *missing = sim_calloc(g->n_nodes, sizeof *missing);
    struct sim_gnode **order = sim_calloc(g->n_nodes + 1, sizeof(struct sim_gnode *));
    size_t n = 0;
    for (size_t i = 0; i < g->n_nodes; i++) {
        missing[i] = g->nodes[i]->n_deps;
        if (missing[i] == 0) {
            order[n++] = g->nodes[i];
        }
    }
    for (size_t done = 0; done < n; done++) {
        for (size_t i = 0; i < g->n_nodes; i++) {
            for (size_t k = 0; k < g->nodes[i]->n_deps; k++) {
                if (g->nodes[i]->deps[k] == order[done] && --missing[i] == 0) {
                    order[n++] = g->nodes[i];
                }
            }
        }
    }
    free(missing);
    if (n < g->n_nodes) {
        free(order);
        return NULL;
    }
    return order;
}
