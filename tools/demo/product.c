/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped products in two launches; see product.h. Any thread; no state. */
#include "tools/demo/product.h"

static int64_t tiles(int64_t n)
{
    return (n + DEMO_TILE - 1) / DEMO_TILE;
}

/*
 * The rest of the preparing kernel's parameters is set already. n_tiles: no more than this in all.
 */
static void run(const struct demo_device *dev, CUstream stream, const struct demo_shape *s,
                bool accumulate, int64_t n_tiles)
{
    CUdeviceptr workspace =
        demo_alloc(dev, stream, (uint64_t)s->n_groups * sizeof(struct demo_group));
    struct demo_prepare *prepare = demo_prepare_args();
    prepare->offsets = s->offsets;
    prepare->n_groups = (uint32_t)s->n_groups;
    prepare->workspace = workspace;
    demo_launch_prepare(dev, stream);
    struct demo_product *product = demo_product_args();
    product->workspace = workspace;
    product->n_groups = (uint32_t)s->n_groups;
    product->accumulate = accumulate;
    demo_launch_product(dev, stream, n_tiles);
    demo_free(dev, stream, &workspace);
}

void demo_product_forward(const struct demo_device *dev, CUstream stream,
                          const struct demo_shape *s, CUdeviceptr x, CUdeviceptr w, CUdeviceptr y)
{
    struct demo_prepare *p = demo_prepare_args();
    p->a = x;
    p->b = w;
    p->c = y;
    p->m = s->rows;
    p->n = s->out;
    p->k = s->in;
    p->a_row = s->in;
    p->a_col = 1;
    p->b_row = s->out;
    p->b_col = 1;
    p->c_row = s->out;
    p->group = s->in * s->out;
    p->rows_in = DEMO_ROWS_IN_M;
    run(dev, stream, s, false, (tiles(s->rows) + s->n_groups) * tiles(s->out));
}

void demo_product_input(const struct demo_device *dev, CUstream stream, const struct demo_shape *s,
                        CUdeviceptr dy, CUdeviceptr w, CUdeviceptr dx)
{
    struct demo_prepare *p = demo_prepare_args();
    p->a = dy;
    p->b = w;
    p->c = dx;
    p->m = s->rows;
    p->n = s->in;
    p->k = s->out;
    p->a_row = s->out;
    p->a_col = 1;
    p->b_row = 1;
    p->b_col = s->out;
    p->c_row = s->in;
    p->group = s->in * s->out;
    p->rows_in = DEMO_ROWS_IN_M;
    run(dev, stream, s, s->accumulate, (tiles(s->rows) + s->n_groups) * tiles(s->in));
}

void demo_product_weight(const struct demo_device *dev, CUstream stream, const struct demo_shape *s,
                         CUdeviceptr x, CUdeviceptr dy, CUdeviceptr dw)
{
    struct demo_prepare *p = demo_prepare_args();
    p->a = x;
    p->b = dy;
    p->c = dw;
    p->m = s->in;
    p->n = s->out;
    p->k = s->rows;
    p->a_row = 1;
    p->a_col = s->in;
    p->b_row = s->out;
    p->b_col = 1;
    p->c_row = s->out;
    p->group = s->in * s->out;
    p->rows_in = DEMO_ROWS_IN_K;
    run(dev, stream, s, true, s->n_groups * tiles(s->in) * tiles(s->out));
}
