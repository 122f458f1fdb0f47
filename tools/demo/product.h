/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped products, in two launches as libraries make them: a preparing kernel that is told the
 * operands and writes their addresses to a workspace, and the product, which is told the workspace
 * only. Any thread.
 */
#ifndef DEMO_PRODUCT_H
#define DEMO_PRODUCT_H

#include "tools/demo/device.h"

/*
 * Row-major matrices. Rows of expert e are offsets[e] … offsets[e + 1]; with offsets 0 there is one
 * expert, all rows.
 */
struct demo_shape {
    CUdeviceptr offsets;
    int64_t rows; /* no more than this in all */
    int64_t n_groups;
    int64_t in, out; /* width of x and of y */
    bool accumulate; /* add to dx */
};

/* y = x w for each expert; w is [groups, in, out]. */
void demo_product_forward(const struct demo_device *dev, CUstream stream,
                          const struct demo_shape *s, CUdeviceptr x, CUdeviceptr w, CUdeviceptr y);
/* dx = dy w^T, or dx += of it where s->accumulate is set. */
void demo_product_input(const struct demo_device *dev, CUstream stream, const struct demo_shape *s,
                        CUdeviceptr dy, CUdeviceptr w, CUdeviceptr dx);
/* dw += x^T dy. */
void demo_product_weight(const struct demo_device *dev, CUstream stream, const struct demo_shape *s,
                         CUdeviceptr x, CUdeviceptr dy, CUdeviceptr dw);

#endif
