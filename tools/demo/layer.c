/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One layer, forward and backward, allocation by allocation as an autograd framework makes them:
 * saved tensors are freed in backward as soon as their last use is enqueued, temporaries at once.
 * Forward: the main thread; backward: the second one, never at the same time.
 */
#include <stdio.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

#include "tools/demo/model.h"
#include "tools/demo/product.h"

#define F32 ((int64_t)sizeof(float))

/* Sets the first operands and dimensions of the thread's parameter block, and no other word. */
static void set(const CUdeviceptr *operands, int n_operands, const int64_t *dims, int n_dims)
{
    struct demo_args *args = demo_args();
    memcpy(args->operand, operands, (size_t)n_operands * sizeof(operands[0]));
    memcpy(args->dim, dims, (size_t)n_dims * sizeof(dims[0]));
}

#define OPERANDS(...) (const CUdeviceptr[]){__VA_ARGS__}, COUNT_((const CUdeviceptr[]){__VA_ARGS__})
#define DIMS(...)     (const int64_t[]){__VA_ARGS__}, COUNT_((const int64_t[]){__VA_ARGS__})
#define COUNT_(...)   (int)(sizeof(__VA_ARGS__) / sizeof((__VA_ARGS__)[0]))

static CUdeviceptr alloc_floats(const struct demo_model *m, CUstream stream, int64_t n)
{
    return demo_alloc(m->dev, stream, (uint64_t)(n * F32));
}

static void norm_forward(const struct demo_model *m, CUstream stream, CUdeviceptr x, CUdeviceptr *y,
                         CUdeviceptr *rstd)
{
    const int64_t tokens = m->o->tokens, hidden = m->o->hidden;
    *y = alloc_floats(m, stream, tokens * hidden);
    *rstd = alloc_floats(m, stream, tokens);
    set(OPERANDS(x, *y, *rstd), DIMS(tokens, hidden));
    demo_launch(m->dev, stream, DEMO_K_rmsnorm, tokens);
}

/* Returns residual + gradient through the norm; frees all of its inputs. */
static CUdeviceptr norm_backward(const struct demo_model *m, CUstream stream, CUdeviceptr *dy,
                                 CUdeviceptr *residual, CUdeviceptr *y, CUdeviceptr *rstd)
{
    const int64_t tokens = m->o->tokens, hidden = m->o->hidden;
    const CUdeviceptr dx = alloc_floats(m, stream, tokens * hidden);
    set(OPERANDS(*dy, *y, *rstd, *residual, dx), DIMS(tokens, hidden));
    demo_launch(m->dev, stream, DEMO_K_rmsnorm_backward, tokens);
    demo_free(m->dev, stream, dy);
    demo_free(m->dev, stream, residual);
    demo_free(m->dev, stream, y);
    demo_free(m->dev, stream, rstd);
    return dx;
}

static struct demo_shape dense_shape(const struct demo_model *m, int64_t out)
{
    return (struct demo_shape){.rows = m->o->tokens, .n_groups = 1, .in = m->o->hidden, .out = out};
}

static struct demo_shape expert_shape(const struct demo_model *m, const struct demo_saved *s,
                                      int64_t in, int64_t out)
{
    return (struct demo_shape){
        .offsets = s->offsets, .rows = s->n, .n_groups = m->o->experts, .in = in, .out = out};
}

/* a = x + max(norm(x) w, 0); frees x. */
static CUdeviceptr dense_forward(const struct demo_model *m, struct demo_saved *s, CUstream stream,
                                 CUdeviceptr *x)
{
    const int64_t n = m->o->tokens * m->o->hidden;
    const struct demo_shape shape = dense_shape(m, m->o->hidden);
    norm_forward(m, stream, *x, &s->norm_in, &s->rstd_in);
    s->dense = alloc_floats(m, stream, n);
    demo_product_forward(m->dev, stream, &shape, s->norm_in, s->layer->weight[DEMO_W_DENSE],
                         s->dense);
    const CUdeviceptr a = alloc_floats(m, stream, n);
    set(OPERANDS(*x, s->dense, a), DIMS(n));
    demo_launch(m->dev, stream, DEMO_K_add_relu, n);
    demo_free(m->dev, stream, x);
    return a;
}

static void route(const struct demo_model *m, struct demo_saved *s, CUstream stream, uint64_t seed)
{
    const struct demo_options *o = m->o;
    s->prob = alloc_floats(m, stream, o->tokens * o->experts);
    CUdeviceptr top = demo_alloc(m->dev, stream, (uint64_t)o->tokens * 4);
    set(OPERANDS(s->norm, s->layer->weight[DEMO_W_ROUTER], s->prob, top),
        DIMS(o->tokens, o->hidden, o->experts, (int64_t)seed));
    demo_args()->scalar[0] = 1.0f;
    demo_launch(m->dev, stream, DEMO_K_router, o->tokens);
    s->expert = demo_alloc(m->dev, stream, (uint64_t)s->n * 4);
    set(OPERANDS(top, s->expert), DIMS(s->n, o->tokens, o->experts));
    demo_launch(m->dev, stream, DEMO_K_assign, s->n);
    demo_free(m->dev, stream, &top);
    s->offsets = demo_alloc(m->dev, stream, (uint64_t)(o->experts + 1) * 4);
    s->place = demo_alloc(m->dev, stream, (uint64_t)s->n * 4);
    s->assignment = demo_alloc(m->dev, stream, (uint64_t)s->n * 4);
    set(OPERANDS(s->expert, s->offsets, s->place, s->assignment), DIMS(s->n, o->experts));
    demo_launch(m->dev, stream, DEMO_K_sort, o->experts * DEMO_THREADS);
}

/* The experts' input: rows gathered into the front of a buffer of fixed size. */
static void fill_buffer(const struct demo_model *m, struct demo_saved *s, CUstream stream)
{
    const struct demo_options *o = m->o;
    const uint64_t bytes = (uint64_t)(s->rows * o->hidden * F32);
    CUdeviceptr rows = alloc_floats(m, stream, s->n * o->hidden);
    set(OPERANDS(s->norm, s->assignment, rows), DIMS(s->n, o->hidden, o->tokens));
    demo_launch(m->dev, stream, DEMO_K_gather, s->n * o->hidden);
    if (o->capacity == 0) {
        s->x = rows;
        return;
    }
    CUdeviceptr empty = demo_alloc(m->dev, stream, bytes);
    if (o->padding_zeros) {
        demo_zero(m->dev, stream, empty, bytes);
    }
    CUdeviceptr index = demo_alloc(m->dev, stream, (uint64_t)s->n * 8);
    set(OPERANDS(index), DIMS(s->n));
    demo_launch(m->dev, stream, DEMO_K_arange, s->n);
    /* Out of place, so all rows are copied, whatever the unused ones hold. */
    s->x = demo_alloc(m->dev, stream, bytes);
    demo_copy(m->dev, stream, s->x, empty, bytes);
    set(OPERANDS(rows, index, s->x), DIMS(s->n, o->hidden));
    demo_launch(m->dev, stream, DEMO_K_index_copy, s->n * o->hidden);
    demo_free(m->dev, stream, &empty);
    demo_free(m->dev, stream, &index);
    demo_free(m->dev, stream, &rows);
}

static void activate(const struct demo_model *m, struct demo_saved *s, CUstream stream)
{
    const int64_t ffn = m->o->ffn, n = s->rows * ffn;
    if (m->o->relu) {
        s->act = alloc_floats(m, stream, n);
        set(OPERANDS(s->h, s->act), DIMS(n));
        demo_launch(m->dev, stream, DEMO_K_relu, n);
        demo_free(m->dev, stream, &s->h);
        return;
    }
    s->gate = alloc_floats(m, stream, n);
    set(OPERANDS(s->h, s->gate), DIMS(n, ffn));
    demo_launch(m->dev, stream, DEMO_K_silu, n);
    s->act = alloc_floats(m, stream, n);
    set(OPERANDS(s->h, s->gate, s->act), DIMS(n, ffn));
    demo_launch(m->dev, stream, DEMO_K_gate, n);
}

/* Pushes the range, with the address of a counter of its rows if that is wanted; returns the counter. */
static CUdeviceptr push_range(const struct demo_model *m, const struct demo_saved *s,
                              CUstream stream)
{
    char name[128];
    if (!m->o->mark_rows || m->o->capacity == 0) {
        nvtxRangePushA(s->range);
        return 0;
    }
    const CUdeviceptr counter = demo_alloc(m->dev, stream, sizeof(int64_t));
    set(OPERANDS(counter), DIMS(s->n));
    demo_launch(m->dev, stream, DEMO_K_count, 1);
    snprintf(name, sizeof(name), "%s;tokens=0x%llx:i64;capacity=%lld;balanced=%lld", s->range,
             (unsigned long long)counter, (long long)s->rows, (long long)m->balanced);
    nvtxRangePushA(name);
    return counter;
}

static void experts_forward(const struct demo_model *m, struct demo_saved *s, CUstream stream)
{
    const struct demo_options *o = m->o;
    const struct demo_shape up = expert_shape(m, s, o->hidden, m->up_width);
    const struct demo_shape down = expert_shape(m, s, o->ffn, o->hidden);
    CUdeviceptr counter = push_range(m, s, stream);
    fill_buffer(m, s, stream);
    s->h = alloc_floats(m, stream, s->rows * m->up_width);
    demo_product_forward(m->dev, stream, &up, s->x, s->layer->weight[DEMO_W_UP], s->h);
    if (s->forward_only) {
        demo_free(m->dev, stream, &s->x);
    }
    activate(m, s, stream);
    if (s->forward_only) {
        demo_free(m->dev, stream, &s->h);
        demo_free(m->dev, stream, &s->gate);
    }
    s->out = alloc_floats(m, stream, s->rows * o->hidden);
    demo_product_forward(m->dev, stream, &down, s->act, s->layer->weight[DEMO_W_DOWN], s->out);
    if (s->forward_only) {
        demo_free(m->dev, stream, &s->act);
    }
    nvtxRangePop();
    demo_free(m->dev, stream, &counter);
}

/* What forward alone has no use for. */
static void drop_saved(const struct demo_model *m, struct demo_saved *s, CUstream stream)
{
    CUdeviceptr *const all[] = {&s->norm_in, &s->rstd_in,    &s->dense,  &s->norm,
                                &s->rstd,    &s->prob,       &s->expert, &s->offsets,
                                &s->place,   &s->assignment, &s->out};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        demo_free(m->dev, stream, all[i]);
    }
}

CUdeviceptr demo_layer_forward(const struct demo_model *m, struct demo_saved *s, CUstream stream,
                               CUdeviceptr *x, uint64_t seed)
{
    const struct demo_options *o = m->o;
    CUdeviceptr a = dense_forward(m, s, stream, x);
    norm_forward(m, stream, a, &s->norm, &s->rstd);
    route(m, s, stream, seed);
    experts_forward(m, s, stream);
    const CUdeviceptr z = alloc_floats(m, stream, o->tokens * o->hidden);
    set(OPERANDS(a, s->out, s->prob, s->expert, s->place, z),
        DIMS(o->tokens, o->hidden, o->experts, s->n));
    demo_launch(m->dev, stream, DEMO_K_combine, o->tokens * o->hidden);
    demo_free(m->dev, stream, &a);
    if (s->forward_only) {
        drop_saved(m, s, stream);
    }
    return z;
}

/* Gradient of the experts' outputs in *d_out_p, of the routing weights returned. */
static CUdeviceptr combine_backward(const struct demo_model *m, struct demo_saved *s,
                                    CUstream stream, CUdeviceptr dz, CUdeviceptr *d_out_p)
{
    const struct demo_options *o = m->o;
    const int64_t rows = s->rows;
    const CUdeviceptr d_weight = alloc_floats(m, stream, s->n);
    *d_out_p = alloc_floats(m, stream, rows * o->hidden);
    demo_zero(m->dev, stream, *d_out_p, (uint64_t)(rows * o->hidden * F32));
    set(OPERANDS(dz, s->out, s->prob, s->expert, s->assignment, *d_out_p, d_weight),
        DIMS(o->tokens, o->hidden, o->experts, s->n));
    demo_launch(m->dev, stream, DEMO_K_combine_backward, s->n);
    demo_free(m->dev, stream, &s->out);
    return d_weight;
}

/* Gradient of h from that of the activation, which is freed. */
static CUdeviceptr activate_backward(const struct demo_model *m, struct demo_saved *s,
                                     CUstream stream, CUdeviceptr *d_act)
{
    const int64_t rows = s->rows, n = rows * m->o->ffn;
    const CUdeviceptr d_h = alloc_floats(m, stream, rows * m->up_width);
    if (m->o->relu) {
        set(OPERANDS(*d_act, s->act, d_h), DIMS(n));
        demo_launch(m->dev, stream, DEMO_K_relu_backward, n);
    } else {
        set(OPERANDS(*d_act, s->h, s->gate, d_h), DIMS(n, m->o->ffn));
        demo_launch(m->dev, stream, DEMO_K_swiglu_backward, n);
    }
    demo_free(m->dev, stream, d_act);
    demo_free(m->dev, stream, &s->act);
    demo_free(m->dev, stream, &s->h);
    demo_free(m->dev, stream, &s->gate);
    return d_h;
}

/* Returns the gradient of the experts' input, by rows; frees d_out. */
static CUdeviceptr experts_backward(const struct demo_model *m, struct demo_saved *s,
                                    CUstream stream, CUdeviceptr *d_out)
{
    const struct demo_options *o = m->o;
    const int64_t rows = s->rows;
    const struct demo_shape up = expert_shape(m, s, o->hidden, m->up_width);
    const struct demo_shape down = expert_shape(m, s, o->ffn, o->hidden);
    CUdeviceptr d_act = alloc_floats(m, stream, rows * o->ffn);
    demo_product_input(m->dev, stream, &down, *d_out, s->layer->weight[DEMO_W_DOWN], d_act);
    demo_product_weight(m->dev, stream, &down, s->act, *d_out, s->layer->grad[DEMO_W_DOWN]);
    demo_free(m->dev, stream, d_out);
    CUdeviceptr d_h = activate_backward(m, s, stream, &d_act);
    const CUdeviceptr d_x = alloc_floats(m, stream, rows * o->hidden);
    demo_product_input(m->dev, stream, &up, d_h, s->layer->weight[DEMO_W_UP], d_x);
    demo_product_weight(m->dev, stream, &up, s->x, d_h, s->layer->grad[DEMO_W_UP]);
    demo_free(m->dev, stream, &s->x);
    demo_free(m->dev, stream, &d_h);
    return d_x;
}

/* Adds the router's gradient to d_norm; frees d_weight and what was saved for routing. */
static void route_backward(const struct demo_model *m, struct demo_saved *s, CUstream stream,
                           CUdeviceptr *d_weight, CUdeviceptr d_norm)
{
    const struct demo_options *o = m->o;
    struct demo_shape shape = dense_shape(m, o->experts);
    CUdeviceptr d_logit = alloc_floats(m, stream, o->tokens * o->experts);
    set(OPERANDS(*d_weight, s->prob, s->expert, d_logit), DIMS(o->tokens, o->experts, s->n));
    demo_launch(m->dev, stream, DEMO_K_router_backward, o->tokens);
    demo_free(m->dev, stream, d_weight);
    demo_free(m->dev, stream, &s->prob);
    demo_free(m->dev, stream, &s->expert);
    shape.accumulate = true;
    demo_product_input(m->dev, stream, &shape, d_logit, s->layer->weight[DEMO_W_ROUTER], d_norm);
    demo_product_weight(m->dev, stream, &shape, s->norm, d_logit, s->layer->grad[DEMO_W_ROUTER]);
    demo_free(m->dev, stream, &d_logit);
}

/* Returns the gradient of the layer's input; frees da. */
static CUdeviceptr dense_backward(const struct demo_model *m, struct demo_saved *s, CUstream stream,
                                  CUdeviceptr *da)
{
    const int64_t n = m->o->tokens * m->o->hidden;
    const struct demo_shape shape = dense_shape(m, m->o->hidden);
    CUdeviceptr d_dense = alloc_floats(m, stream, n);
    set(OPERANDS(*da, s->dense, d_dense), DIMS(n));
    demo_launch(m->dev, stream, DEMO_K_relu_backward, n);
    demo_free(m->dev, stream, &s->dense);
    CUdeviceptr d_norm = alloc_floats(m, stream, n);
    demo_product_input(m->dev, stream, &shape, d_dense, s->layer->weight[DEMO_W_DENSE], d_norm);
    demo_product_weight(m->dev, stream, &shape, s->norm_in, d_dense, s->layer->grad[DEMO_W_DENSE]);
    demo_free(m->dev, stream, &d_dense);
    return norm_backward(m, stream, &d_norm, da, &s->norm_in, &s->rstd_in);
}

CUdeviceptr demo_layer_backward(const struct demo_model *m, struct demo_saved *s, CUstream stream,
                                CUdeviceptr *dz)
{
    const struct demo_options *o = m->o;
    CUdeviceptr d_out = 0;
    CUdeviceptr d_weight = combine_backward(m, s, stream, *dz, &d_out);
    CUdeviceptr d_x = experts_backward(m, s, stream, &d_out);
    CUdeviceptr d_norm = alloc_floats(m, stream, o->tokens * o->hidden);
    set(OPERANDS(d_x, s->place, d_norm), DIMS(o->tokens, o->hidden, s->n));
    demo_launch(m->dev, stream, DEMO_K_gather_backward, o->tokens * o->hidden);
    demo_free(m->dev, stream, &d_x);
    route_backward(m, s, stream, &d_weight, d_norm);
    demo_free(m->dev, stream, &s->offsets);
    demo_free(m->dev, stream, &s->place);
    demo_free(m->dev, stream, &s->assignment);
    CUdeviceptr da = norm_backward(m, stream, &d_norm, dz, &s->norm, &s->rstd);
    return dense_backward(m, s, stream, &da);
}
