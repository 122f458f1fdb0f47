/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's functions without the driver's types, for its unit test; the rest is declared in sim.h. */
#ifndef SIMCUDA_SCHED_H
#define SIMCUDA_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the device behaves until the next change point. */
struct sched_era {
    uint64_t number;
    bool uniform; /* any ready stream, instead of the one of highest priority */
    bool oldest;  /* the operation queued first */
    bool mixed;   /* any of the kernels whose blocks take turns, if there are two */
    unsigned
        visible_times; /* of 8 entries, how many make a word visible that a kernel wrote to host memory */
    unsigned eager_times; /* of 8 entries, how many let the device work at all */
    uint64_t left;        /* picks until the next era */
};

struct sched_random {
    uint64_t x;
};

void sched_random_init(struct sched_random *r, uint64_t seed);
uint64_t sched_random(struct sched_random *r);
/* 0 <= result < n, n > 0. */
uint64_t sched_below(struct sched_random *r, uint64_t n);
/* The next era: drawn anew, from one pick to some thousands long. */
void sched_era_next(struct sched_era *era, struct sched_random *r);

#endif
