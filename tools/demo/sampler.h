/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peak of device memory as the driver reports it: its own exact figure, or the largest of a
 * sample a millisecond.
 */
#ifndef DEMO_SAMPLER_H
#define DEMO_SAMPLER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tools/demo/device.h"

struct demo_sampler {
    const struct demo_device *dev;
    bool exact; /* the driver keeps the peak itself: no thread */
    pthread_t thread;
    atomic_bool stop;      /* set by demo_sampler_stop, read by the thread */
    _Atomic uint64_t peak; /* since the last call; raised by the thread, restarted by another */
    uint64_t most;         /* of all that was told */
};

void demo_sampler_start(struct demo_sampler *s, const struct demo_device *dev);
void demo_sampler_stop(struct demo_sampler *s);
/* Peak bytes since the last call, or since the start: at least what is in use now. One thread. */
uint64_t demo_sampler_take(struct demo_sampler *s);

#endif
