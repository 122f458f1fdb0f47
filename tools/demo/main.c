/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pagedstash-demo: a small mixture-of-experts training job, an ordinary program of the CUDA driver
 * API.
 *
 * Two threads, as under an autograd engine: the main one runs forward passes and the optimizer, a
 * second one the backward passes, one after the other, in the order of the schedule chosen. Each
 * step is an NVTX range. The host waits for the device once a step, for the loss. Prints one JSON
 * object a step and one at the end.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <nvtx3/nvToolsExt.h>

#include "tools/demo/device.h"
#include "tools/demo/model.h"
#include "tools/demo/options.h"
#include "tools/demo/sampler.h"
#include "tools/demo/schedule.h"

/* Runs backward passes for the main thread. lock guards pending and quit. */
struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct demo_model *model;
    CUstream stream;
    struct demo_pass *pending; /* its backward pass is wanted or being enqueued */
    bool quit;
};

static void *run_worker(void *arg)
{
    struct worker *w = arg;
    demo_device_enter(w->model->dev);
    pthread_mutex_lock(&w->lock);
    while (!w->quit) {
        if (w->pending == NULL) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        demo_model_backward(w->model, w->stream, w->pending);
        pthread_mutex_lock(&w->lock);
        w->pending = NULL;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void worker_start(struct worker *w, struct demo_model *model, CUstream stream)
{
    *w = (struct worker){.model = model, .stream = stream};
    if (pthread_mutex_init(&w->lock, NULL) != 0 || pthread_cond_init(&w->changed, NULL) != 0 ||
        pthread_create(&w->thread, NULL, run_worker, w) != 0) {
        fprintf(stderr, "pagedstash-demo: cannot start the backward thread\n");
        exit(EXIT_FAILURE);
    }
}

/* Returns when the pass is enqueued. */
static void worker_backward(struct worker *w, struct demo_pass *pass)
{
    pthread_mutex_lock(&w->lock);
    w->pending = pass;
    pthread_cond_broadcast(&w->changed);
    while (w->pending != NULL) {
        pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

static void worker_stop(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
}

static void run_turn(struct demo_model *m, struct worker *w, CUstream stream,
                     const struct demo_turn *turn, struct demo_pass **pass)
{
    if (!turn->backward) {
        *pass = demo_model_forward(m, stream, turn);
        return;
    }
    demo_stream_order(m->dev, stream, w->stream);
    worker_backward(w, *pass);
    demo_stream_order(m->dev, w->stream, stream);
    *pass = NULL;
}

/* One step; returns the loss as the device computed it. */
static float train_step(struct demo_model *m, struct worker *w, CUstream stream, int64_t step)
{
    char name[32];
    snprintf(name, sizeof(name), "step%" PRId64, step);
    nvtxRangePushA(name);
    const struct demo_schedule schedule = demo_model_begin_step(m, stream, step);
    const int64_t n_turns = demo_schedule_turns(&schedule);
    struct demo_pass **passes = calloc((size_t)n_turns / 2, sizeof(struct demo_pass *));
    if (passes == NULL) {
        fprintf(stderr, "pagedstash-demo: out of host memory\n");
        exit(EXIT_FAILURE);
    }
    for (int64_t i = 0; i < n_turns; i++) {
        const struct demo_turn turn = demo_schedule_turn(&schedule, i);
        run_turn(m, w, stream, &turn, &passes[turn.microbatch * schedule.chunks + turn.chunk]);
    }
    free(passes);
    demo_model_update(m, stream);
    nvtxRangePop();
    if (m->o->eval_layers > 0) {
        demo_model_evaluate(m, stream);
    }
    return demo_model_loss(m, stream);
}

/*
 * balanced_bytes: what the experts save at balanced routing while most passes are in flight;
 * padding_bytes: by how much less their buffers would take at most, were they as large as their
 * rows; layer_tail_bytes: padding of one layer in one pass at balanced routing.
 */
static void print_end(const struct demo_model *m, uint64_t checksum, uint64_t peak)
{
    const uint64_t row_bytes = demo_model_row_bytes(m);
    const double capacity = m->o->capacity > 1 ? m->o->capacity : 1;
    const int64_t tail_rows = (int64_t)((double)m->balanced * capacity) - m->balanced;
    const int64_t balanced_rows = demo_options_in_flight(m->o) * m->balanced;
    printf("{\"device\": \"%s\", \"simulated\": %s, \"steps\": %" PRId64 ", \"layers\": %" PRId64
           ", \"weights\": \"%016" PRIx64 "\", \"peak_bytes\": %" PRIu64
           ", \"balanced_bytes\": %" PRIu64 ", \"padding_bytes\": %" PRIu64
           ", \"layer_tail_bytes\": %" PRIu64 "}\n",
           m->dev->name, m->dev->simulated ? "true" : "false", m->o->steps, m->o->layers, checksum,
           peak, (uint64_t)balanced_rows * row_bytes,
           (uint64_t)(m->buffers_peak - m->rows_peak) * row_bytes, (uint64_t)tail_rows * row_bytes);
}

int main(int argc, char **argv)
{
    struct demo_options options;
    struct demo_device dev;
    struct demo_model model;
    struct demo_sampler sampler;
    struct worker worker;
    demo_options_parse(&options, argc, argv);
    demo_device_open(&dev);
    demo_options_finish(&options, dev.simulated);
    const CUstream stream = demo_stream_create(&dev);
    const CUstream backward = options.own_stream ? demo_stream_create(&dev) : stream;
    demo_model_init(&model, &dev, &options, stream);
    demo_sampler_start(&sampler, &dev);
    worker_start(&worker, &model, backward);
    for (int64_t step = 0; step < options.steps; step++) {
        const float loss = train_step(&model, &worker, stream, step);
        printf("{\"step\": %" PRId64 ", \"loss\": \"%a\", \"used_bytes\": %" PRIu64
               ", \"peak_bytes\": %" PRIu64 "}\n",
               step, (double)loss, demo_used_bytes(&dev), demo_sampler_take(&sampler));
        fflush(stdout);
    }
    nvtxRangePushA("steps done");
    nvtxRangePop();
    demo_sampler_stop(&sampler);
    print_end(&model, demo_model_checksum(&model, stream), sampler.most);
    worker_stop(&worker);
    demo_model_fini(&model, stream);
    demo_stream_wait(&dev, stream);
    if (backward != stream) {
        demo_stream_destroy(&dev, backward);
    }
    demo_stream_destroy(&dev, stream);
    demo_device_close(&dev);
    return EXIT_SUCCESS;
}
