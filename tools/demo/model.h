/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixture-of-experts model and its training step. Each layer: norm, a dense product with ReLU,
 * norm, router, routed experts in padded buffers (inside the NVTX range "moe_experts"), both parts
 * with a residual connection. A process that is one stage of a pipeline has no peers: what would
 * come from other stages is made by a kernel.
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
#include "tools/demo/schedule.h"

enum demo_weight { DEMO_W_DENSE, DEMO_W_ROUTER, DEMO_W_UP, DEMO_W_DOWN, DEMO_N_WEIGHTS };

struct demo_layer {
    CUdeviceptr weight[DEMO_N_WEIGHTS];
    CUdeviceptr grad[DEMO_N_WEIGHTS];
};

/* One layer in one pass: what forward keeps for backward; each is one allocation. */
struct demo_saved {
    const struct demo_layer *layer;
    const char *range;                   /* name of the NVTX range around the experts */
    bool forward_only;                   /* nothing is kept longer than forward needs it */
    int64_t n;                           /* rows that exist */
    int64_t rows;                        /* of an expert buffer */
    CUdeviceptr norm_in, rstd_in, dense; /* dense part */
    CUdeviceptr norm, rstd, prob;        /* router */
    CUdeviceptr expert, offsets, place, assignment;
    CUdeviceptr x, h, gate, act, out; /* experts: allocated inside the range */
};

/* One microbatch's way through one chunk of the model, from its forward to its backward pass. */
struct demo_pass {
    CUdeviceptr d_out; /* gradient of the output, if the loss is taken here */
    bool sends;        /* the output goes to another stage, its gradient comes from there */
    uint64_t seed;
    int64_t n_layers;
    struct demo_saved saved[];
};

struct demo_model {
    const struct demo_device *dev;
    const struct demo_options *o;
    int64_t balanced; /* rows of a layer at balanced routing */
    int64_t up_width; /* of an expert's first product */
    struct demo_layer *layers;
    CUdeviceptr loss;     /* float: of the step so far */
    uint64_t random;      /* state of the host's generator of row counts */
    int64_t step;         /* the current one */
    bool drifted;         /* what --drift names has changed */
    int64_t rows, unused; /* saved now: rows that exist, and the rest of the expert buffers */
    int64_t rows_peak, buffers_peak; /* most of the first, of both together */
};

void demo_model_init(struct demo_model *m, const struct demo_device *dev,
                     const struct demo_options *o, CUstream stream);
void demo_model_fini(struct demo_model *m, CUstream stream);

/* Zeroes gradients and loss. Returns the step's schedule. */
struct demo_schedule demo_model_begin_step(struct demo_model *m, CUstream stream, int64_t step);
/* Forward pass, and the loss where the output stays here. */
struct demo_pass *demo_model_forward(struct demo_model *m, CUstream stream,
                                     const struct demo_turn *turn);
/* Frees the pass. */
void demo_model_backward(struct demo_model *m, CUstream stream, struct demo_pass *pass);
/* Layers forward only; the loss of what comes out is added. */
void demo_model_evaluate(struct demo_model *m, CUstream stream);
/* SGD. */
void demo_model_update(struct demo_model *m, CUstream stream);

/* Waits for the device. */
float demo_model_loss(const struct demo_model *m, CUstream stream);
uint64_t demo_model_checksum(const struct demo_model *m, CUstream stream);

/* Bytes that the experts of one layer save for each row. */
uint64_t demo_model_row_bytes(const struct demo_model *m);
/* Elements of a weight of one layer. */
int64_t demo_model_weight_size(const struct demo_model *m, enum demo_weight w);

/* layer.c: z = layer(x); *x is freed. Layer, range, rows and forward_only of s are set already. */
CUdeviceptr demo_layer_forward(const struct demo_model *m, struct demo_saved *s, CUstream stream,
                               CUdeviceptr *x, uint64_t seed);
/* Returns the gradient of the input; *dz is freed, and all that was saved. */
CUdeviceptr demo_layer_backward(const struct demo_model *m, struct demo_saved *s, CUstream stream,
                                CUdeviceptr *dz);

#endif
