/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights, passes over the layers, loss and SGD. Called by one thread at a time; enqueues and does
 * not wait.
 */
#include "tools/demo/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define INPUT_SCALE 1.7f /* of the random input: about unit variance */

/* Of rows: a spike, over balanced; above so many deviations, which is one in four; a small part. */
#define SPIKE       4.0
#define SPIKE_ABOVE 0.674
#define LITTLE      8.0
#define RANKS       4 /* that take turns at receiving all rows */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

/* The generator of row counts: the sum of twelve uniform numbers is close to a normal one. */
static double draw_normal(struct demo_model *m)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        m->random += 0x9e3779b97f4a7c15u;
        sum += (double)(mix(m->random) >> 11) / 9007199254740992.0;
    }
    return sum;
}

static bool drifts(const struct demo_model *m, enum demo_drift drift)
{
    return m->drifted && m->o->drift == drift;
}

/* Rows that the routing sends to a layer this time; most: that its buffers have room for. */
static double wanted_rows(struct demo_model *m, int64_t layer, double most)
{
    const double balanced = (double)m->balanced;
    switch (m->o->routing) {
    case DEMO_ROUTING_SPREAD:
        return balanced * (1.0 + m->o->spread * draw_normal(m));
    case DEMO_ROUTING_SPIKES: /* one in four, in no order */
        return draw_normal(m) > SPIKE_ABOVE ? SPIKE * balanced : balanced;
    case DEMO_ROUTING_ONE_RANK: /* another one in each layer and step */
        return (m->step + layer) % RANKS == 1 ? most : 0;
    case DEMO_ROUTING_ZERO: /* everywhere, or in every other layer */
        return m->step % 3 == 2 || (layer + m->step) % 2 == 1 ? 0 : balanced;
    case DEMO_ROUTING_ALTERNATING:
        return m->step % 2 == 1 ? most : balanced / LITTLE;
    case DEMO_ROUTING_CONSTANT:
    case DEMO_N_ROUTINGS:
        break;
    }
    return balanced;
}

/* Rows that a layer receives this time, and of its expert buffers. */
static void draw_rows(struct demo_model *m, int64_t layer, struct demo_saved *s)
{
    const double balanced = (double)m->balanced;
    const double scale = !drifts(m, DEMO_DRIFT_SIZES) ? 1.0 : layer % 2 == 0 ? 1.25 : 0.75;
    const double exact = m->o->routing == DEMO_ROUTING_SPREAD ? 2.0 : SPIKE;
    const double most = balanced * scale * (m->o->capacity > 0 ? m->o->capacity : exact);
    double wanted = wanted_rows(m, layer, most);
    if (m->o->capacity == 0) {
        wanted *= scale;
    }
    /* What is beyond the capacity is dropped, as by a dispatcher with buffers of fixed size. */
    s->n = (int64_t)fmin(most, fmax((double)m->o->experts, wanted));
    if (wanted == 0 || (drifts(m, DEMO_DRIFT_ZERO) && layer % 4 == 1)) {
        s->n = 0;
    }
    s->rows = m->o->capacity == 0 ? s->n : (int64_t)most;
}

int64_t demo_model_weight_size(const struct demo_model *m, enum demo_weight w)
{
    const struct demo_options *o = m->o;
    switch (w) {
    case DEMO_W_DENSE:
        return o->hidden * o->hidden;
    case DEMO_W_ROUTER:
        return o->hidden * o->experts;
    case DEMO_W_UP:
        return o->experts * o->hidden * m->up_width;
    case DEMO_W_DOWN:
        return o->experts * o->ffn * o->hidden;
    case DEMO_N_WEIGHTS:
        break;
    }
    return 0;
}

uint64_t demo_model_row_bytes(const struct demo_model *m)
{
    const int64_t inside = m->o->relu ? m->o->ffn : m->up_width + 2 * m->o->ffn;
    return (uint64_t)(2 * m->o->hidden + inside) * sizeof(float);
}

static _Noreturn void die_of_memory(void)
{
    fprintf(stderr, "pagedstash-demo: out of host memory\n");
    exit(EXIT_FAILURE);
}

/* Of an element of the output in the loss. */
static float weight_of_element(const struct demo_model *m)
{
    return (float)(1.0 / (double)(m->o->tokens * m->o->hidden * m->o->schedule.microbatches));
}

static void fill_random(const struct demo_model *m, CUstream stream, CUdeviceptr ptr, int64_t n,
                        uint64_t seed)
{
    struct demo_args *args = demo_args();
    args->operand[0] = ptr;
    args->dim[0] = n;
    args->dim[1] = (int64_t)seed;
    demo_launch(m->dev, stream, DEMO_K_fill_random, n);
}

static void init_weight(struct demo_model *m, CUstream stream, int64_t layer, enum demo_weight w)
{
    struct demo_layer *l = &m->layers[layer];
    const int64_t n = demo_model_weight_size(m, w);
    const int64_t fan_in = w == DEMO_W_DOWN ? m->o->ffn : m->o->hidden;
    l->weight[w] = demo_alloc(m->dev, stream, (uint64_t)n * sizeof(float));
    l->grad[w] = demo_alloc(m->dev, stream, (uint64_t)n * sizeof(float));
    demo_args()->scalar[0] = (float)sqrt(1.0 / (double)fan_in);
    fill_random(m, stream, l->weight[w], n,
                mix(m->o->seed) + (uint64_t)(layer * DEMO_N_WEIGHTS) + (uint64_t)w);
}

void demo_model_init(struct demo_model *m, const struct demo_device *dev,
                     const struct demo_options *o, CUstream stream)
{
    *m = (struct demo_model){.dev = dev, .o = o};
    m->balanced = o->tokens * o->topk;
    m->up_width = o->relu ? o->ffn : 2 * o->ffn;
    m->random = mix(o->seed + 1);
    m->layers = calloc((size_t)o->layers, sizeof(m->layers[0]));
    if (m->layers == NULL) {
        die_of_memory();
    }
    for (int64_t i = 0; i < o->layers; i++) {
        for (int w = 0; w < DEMO_N_WEIGHTS; w++) {
            init_weight(m, stream, i, (enum demo_weight)w);
        }
    }
    m->loss = demo_alloc(dev, stream, sizeof(float));
}

void demo_model_fini(struct demo_model *m, CUstream stream)
{
    for (int64_t i = 0; i < m->o->layers; i++) {
        for (int w = 0; w < DEMO_N_WEIGHTS; w++) {
            demo_free(m->dev, stream, &m->layers[i].weight[w]);
            demo_free(m->dev, stream, &m->layers[i].grad[w]);
        }
    }
    demo_free(m->dev, stream, &m->loss);
    free(m->layers);
}

struct demo_schedule demo_model_begin_step(struct demo_model *m, CUstream stream, int64_t step)
{
    struct demo_schedule schedule = m->o->schedule;
    m->step = step;
    m->drifted = step >= m->o->steps / 2;
    demo_zero(m->dev, stream, m->loss, sizeof(float));
    for (int64_t i = 0; i < m->o->layers; i++) {
        for (int w = 0; w < DEMO_N_WEIGHTS; w++) {
            demo_zero(m->dev, stream, m->layers[i].grad[w],
                      (uint64_t)demo_model_weight_size(m, (enum demo_weight)w) * sizeof(float));
        }
    }
    if (drifts(m, DEMO_DRIFT_MICROBATCHES)) {
        schedule.microbatches += schedule.stages;
    }
    return schedule;
}

/* Adds the loss of *z, which is freed; returns its gradient. */
static CUdeviceptr take_loss(struct demo_model *m, CUstream stream, CUdeviceptr *z, uint64_t seed)
{
    const int64_t tokens = m->o->tokens, hidden = m->o->hidden;
    CUdeviceptr partial = demo_alloc(m->dev, stream, (uint64_t)tokens * sizeof(float));
    const CUdeviceptr dz = demo_alloc(m->dev, stream, (uint64_t)(tokens * hidden) * sizeof(float));
    struct demo_args *args = demo_args();
    args->operand[0] = *z;
    args->operand[1] = dz;
    args->operand[2] = partial;
    args->dim[0] = tokens;
    args->dim[1] = hidden;
    args->dim[2] = (int64_t)seed;
    args->scalar[0] = INPUT_SCALE;
    args->scalar[1] = weight_of_element(m);
    demo_launch(m->dev, stream, DEMO_K_loss, tokens);
    demo_free(m->dev, stream, z);
    args = demo_args();
    args->operand[0] = partial;
    args->operand[1] = m->loss;
    args->dim[0] = tokens;
    demo_launch(m->dev, stream, DEMO_K_sum, 1);
    demo_free(m->dev, stream, &partial);
    return dz;
}

/* What another stage would have sent, or the data. */
static CUdeviceptr receive(struct demo_model *m, CUstream stream, float scale, uint64_t seed)
{
    const int64_t n = m->o->tokens * m->o->hidden;
    const CUdeviceptr x = demo_alloc(m->dev, stream, (uint64_t)n * sizeof(float));
    demo_args()->scalar[0] = scale;
    fill_random(m, stream, x, n, seed);
    return x;
}

/* Rows saved by a layer of a pass, or no longer saved. */
static void note_rows(struct demo_model *m, const struct demo_saved *s, int64_t sign)
{
    m->rows += sign * s->n;
    m->unused += sign * (s->rows - s->n);
    m->rows_peak = m->rows > m->rows_peak ? m->rows : m->rows_peak;
    const int64_t both = m->rows + m->unused;
    m->buffers_peak = both > m->buffers_peak ? both : m->buffers_peak;
}

static void prepare(struct demo_model *m, struct demo_saved *s, int64_t layer)
{
    s->layer = &m->layers[layer];
    s->range = drifts(m, DEMO_DRIFT_RENAME) ? "late_experts" : "moe_experts";
    draw_rows(m, layer, s);
}

struct demo_pass *demo_model_forward(struct demo_model *m, CUstream stream,
                                     const struct demo_turn *turn)
{
    const struct demo_schedule *schedule = &m->o->schedule;
    const int64_t n_layers = m->o->layers / schedule->chunks;
    struct demo_pass *pass = calloc(1, sizeof(*pass) + (size_t)n_layers * sizeof(pass->saved[0]));
    if (pass == NULL) {
        die_of_memory();
    }
    pass->seed = mix(m->o->seed + 2) +
                 (uint64_t)(m->step * schedule->microbatches + turn->microbatch) +
                 ((uint64_t)turn->chunk << 40);
    pass->sends = demo_schedule_sends(schedule, turn->chunk);
    CUdeviceptr x = receive(m, stream, INPUT_SCALE, pass->seed);
    for (int64_t i = 0; i < n_layers; i++) {
        struct demo_saved *s = &pass->saved[pass->n_layers];
        if (drifts(m, DEMO_DRIFT_SKIP) && i == n_layers / 2) {
            continue;
        }
        prepare(m, s, turn->chunk * n_layers + i);
        x = demo_layer_forward(m, s, stream, &x, mix(pass->seed) + (uint64_t)i);
        note_rows(m, s, 1);
        pass->n_layers++;
    }
    pass->d_out = take_loss(m, stream, &x, pass->seed);
    if (pass->sends) {
        demo_free(m->dev, stream, &pass->d_out);
    }
    return pass;
}

void demo_model_backward(struct demo_model *m, CUstream stream, struct demo_pass *pass)
{
    CUdeviceptr dz = pass->d_out;
    if (pass->sends) {
        dz = receive(m, stream, 2.0f * INPUT_SCALE * weight_of_element(m), ~pass->seed);
    }
    for (int64_t i = pass->n_layers; i-- > 0;) {
        dz = demo_layer_backward(m, &pass->saved[i], stream, &dz);
        note_rows(m, &pass->saved[i], -1);
    }
    demo_free(m->dev, stream, &dz);
    free(pass);
}

void demo_model_evaluate(struct demo_model *m, CUstream stream)
{
    const uint64_t seed = mix(m->o->seed + 3) + (uint64_t)m->step;
    CUdeviceptr x = receive(m, stream, INPUT_SCALE, seed);
    for (int64_t i = 0; i < m->o->eval_layers; i++) {
        struct demo_saved s = {.forward_only = true};
        prepare(m, &s, i % m->o->layers);
        x = demo_layer_forward(m, &s, stream, &x, mix(seed) + (uint64_t)i);
    }
    CUdeviceptr unused = take_loss(m, stream, &x, seed);
    demo_free(m->dev, stream, &unused);
}

void demo_model_update(struct demo_model *m, CUstream stream)
{
    for (int64_t i = 0; i < m->o->layers; i++) {
        for (int w = 0; w < DEMO_N_WEIGHTS; w++) {
            const int64_t n = demo_model_weight_size(m, (enum demo_weight)w);
            struct demo_args *args = demo_args();
            args->scalar[0] = (float)m->o->rate;
            args->operand[0] = m->layers[i].weight[w];
            args->operand[1] = m->layers[i].grad[w];
            args->dim[0] = n;
            demo_launch(m->dev, stream, DEMO_K_sgd, n);
        }
    }
}

float demo_model_loss(const struct demo_model *m, CUstream stream)
{
    float loss = 0;
    demo_stream_wait(m->dev, stream);
    demo_read(m->dev, &loss, m->loss, sizeof(loss));
    return loss;
}

static uint64_t hash_words(uint64_t hash, const uint32_t *words, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ words[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

uint64_t demo_model_checksum(const struct demo_model *m, CUstream stream)
{
    uint64_t hash = 0xcbf29ce484222325u;
    demo_stream_wait(m->dev, stream);
    for (int64_t i = 0; i < m->o->layers; i++) {
        for (int w = 0; w < DEMO_N_WEIGHTS; w++) {
            const size_t n = (size_t)demo_model_weight_size(m, (enum demo_weight)w);
            uint32_t *words = malloc(n * sizeof(*words));
            if (words == NULL) {
                die_of_memory();
            }
            demo_read(m->dev, words, m->layers[i].weight[w], n * sizeof(*words));
            hash = hash_words(hash, words, n);
            free(words);
        }
    }
    return hash;
}
