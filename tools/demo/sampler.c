/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peak of device memory; see sampler.h. One thread of its own, where the driver keeps no exact
 * figure.
 */
#include "tools/demo/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void note(struct demo_sampler *s)
{
    const uint64_t used = demo_used_bytes(s->dev);
    uint64_t peak = atomic_load(&s->peak);
    while (used > peak && !atomic_compare_exchange_weak(&s->peak, &peak, used)) {
    }
}

static void *sample(void *arg)
{
    struct demo_sampler *s = arg;
    const struct timespec pause = {.tv_nsec = 1000000};
    demo_device_enter(s->dev);
    while (!atomic_load(&s->stop)) {
        note(s);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

void demo_sampler_start(struct demo_sampler *s, const struct demo_device *dev)
{
    s->dev = dev;
    s->most = 0;
    atomic_init(&s->stop, false);
    atomic_init(&s->peak, 0);
    s->exact = demo_take_exact_peak(dev, &s->most);
    if (!s->exact && pthread_create(&s->thread, NULL, sample, s) != 0) {
        fprintf(stderr, "pagedstash-demo: cannot start the sampling thread\n");
        exit(EXIT_FAILURE);
    }
}

void demo_sampler_stop(struct demo_sampler *s)
{
    atomic_store(&s->stop, true);
    if (!s->exact) {
        pthread_join(s->thread, NULL);
    }
}

uint64_t demo_sampler_take(struct demo_sampler *s)
{
    uint64_t bytes = 0;
    if (!s->exact || !demo_take_exact_peak(s->dev, &bytes)) {
        note(s);
        bytes = atomic_exchange(&s->peak, 0);
    }
    s->most = bytes > s->most ? bytes : s->most;
    return bytes;
}
