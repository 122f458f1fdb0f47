/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixture-of-experts model and its training step. Each layer: norm, a dense product with ReLU,
 * norm, router, routed experts in padded buffers (inside the NVTX range "moe_experts"), both parts
 * with a residual connection.
 *
 * Everything is enqueued on a stream; nothing here waits. Forward is called by the main thread,
 * backward by a second one while the first waits for it; the number of rows of a layer is drawn on
 * the host, as a rank of an expert-parallel job learns it from its peers.
 */
#ifndef DEMO_MODEL_H
#define DEMO_MODEL_H

#include <stdint.h>

#include "tools/demo/device.h"
#include "tools/demo/options.h"

enum demo_weight { DEMO_W_DENSE, DEMO_W_ROUTER, DEMO_W_UP, DEMO_W_DOWN, DEMO_N_WEIGHTS };

/* What a layer's forward pass keeps for its backward pass; each is one allocation. */
struct demo_saved {
    CUdeviceptr norm_in, rstd_in, dense; /* dense part */
    CUdeviceptr norm, rstd, prob;        /* router */
    CUdeviceptr expert, offsets, place, assignment;
    CUdeviceptr x, h, gate, act, out; /* experts: allocated inside the range */
    int64_t n;                        /* rows that exist */
};

struct demo_layer {
    CUdeviceptr weight[DEMO_N_WEIGHTS];
    CUdeviceptr grad[DEMO_N_WEIGHTS];
    struct demo_saved saved;
};

struct demo_model {
    const struct demo_device *dev;
    const struct demo_options *o;
    int64_t balanced; /* rows of a layer at balanced routing */
    int64_t up_width; /* of an expert's first product */
    struct demo_layer *layers;
    CUdeviceptr loss;       /* float: of the step so far */
    CUdeviceptr d_out;      /* gradient handed from the forward to the backward pass */
    uint64_t random;        /* state of the host's generator of row counts */
    uint64_t padding_bytes; /* saved bytes of a pass that hold no row, the largest so far */
};

void demo_model_init(struct demo_model *m, const struct demo_device *dev,
                     const struct demo_options *o, CUstream stream);
void demo_model_fini(struct demo_model *m, CUstream stream);

/* Zeroes gradients and loss. */
void demo_model_begin_step(struct demo_model *m, CUstream stream);
/* Forward pass and loss of one microbatch; leaves saved activations and d_out. */
void demo_model_forward(struct demo_model *m, CUstream stream, int64_t step, int64_t microbatch);
void demo_model_backward(struct demo_model *m, CUstream stream);
/* SGD. */
void demo_model_update(struct demo_model *m, CUstream stream);

/* Waits for the device. */
float demo_model_loss(const struct demo_model *m, CUstream stream);
uint64_t demo_model_checksum(const struct demo_model *m, CUstream stream);

/* Bytes that the experts of one layer save for each row. */
uint64_t demo_model_row_bytes(const struct demo_model *m);
/* Rows of an expert buffer that holds n rows. */
int64_t demo_model_rows(const struct demo_model *m, int64_t n);
/* Elements of a weight of one layer. */
int64_t demo_model_weight_size(const struct demo_model *m, enum demo_weight w);

/* layer.c: z = layer(x); *x is freed. n: rows that the experts receive. */
CUdeviceptr demo_layer_forward(struct demo_model *m, struct demo_layer *l, CUstream stream,
                               CUdeviceptr *x, int64_t n, uint64_t seed);
/* Returns the gradient of the input; *dz is freed, and all that was saved. */
CUdeviceptr demo_layer_backward(struct demo_model *m, struct demo_layer *l, CUstream stream,
                                CUdeviceptr *dz);

#endif
