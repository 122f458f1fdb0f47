/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pagedstash-demo: a small mixture-of-experts training job, an ordinary program of the CUDA driver
 * API.
 *
 * Two threads, as under an autograd engine: the main one runs forward passes and the optimizer, a
 * second one the backward passes, one after the other. The host waits for the device once a step,
 * for the loss. Prints one JSON object a step and one at the end.
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

/* Runs backward passes for the main thread. lock guards pending and quit. */
struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct demo_model *model;
    CUstream stream;
    bool pending; /* a pass is wanted or being enqueued */
    bool quit;
};

static void *run_worker(void *arg)
{
    struct worker *w = arg;
    demo_device_enter(w->model->dev);
    pthread_mutex_lock(&w->lock);
    while (!w->quit) {
        if (!w->pending) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        demo_model_backward(w->model, w->stream);
        pthread_mutex_lock(&w->lock);
        w->pending = false;
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
static void worker_backward(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->pending = true;
    pthread_cond_broadcast(&w->changed);
    while (w->pending) {
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

/* One step; returns the loss as the device computed it. */
static float train_step(struct demo_model *m, struct worker *w, CUstream stream, int64_t step)
{
    char name[32];
    snprintf(name, sizeof(name), "step%" PRId64, step);
    nvtxRangePushA(name);
    demo_model_begin_step(m, stream);
    for (int64_t i = 0; i < m->o->microbatches; i++) {
        demo_model_forward(m, stream, step, i);
        demo_stream_order(m->dev, stream, w->stream);
        worker_backward(w);
        demo_stream_order(m->dev, w->stream, stream);
    }
    demo_model_update(m, stream);
    nvtxRangePop();
    return demo_model_loss(m, stream);
}

static void print_end(const struct demo_model *m, uint64_t checksum, uint64_t peak)
{
    const uint64_t row_bytes = demo_model_row_bytes(m);
    const uint64_t tail_rows =
        m->o->capacity > 1 ? (uint64_t)(demo_model_rows(m, m->balanced) - m->balanced) : 0;
    printf("{\"device\": \"%s\", \"simulated\": %s, \"steps\": %" PRId64 ", \"layers\": %" PRId64
           ", \"weights\": \"%016" PRIx64 "\", \"peak_bytes\": %" PRIu64
           ", \"balanced_bytes\": %" PRIu64 ", \"padding_bytes\": %" PRIu64
           ", \"layer_tail_bytes\": %" PRIu64 "}\n",
           m->dev->name, m->dev->simulated ? "true" : "false", m->o->steps, m->o->layers, checksum,
           peak, (uint64_t)(m->o->layers * m->balanced) * row_bytes, m->padding_bytes,
           tail_rows * row_bytes);
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
               step, (double)loss, demo_used_bytes(&dev), demo_sampler_peak(&sampler));
        fflush(stdout);
    }
    demo_sampler_stop(&sampler);
    const uint64_t peak = demo_sampler_peak(&sampler);
    print_end(&model, demo_model_checksum(&model, stream), peak);
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
