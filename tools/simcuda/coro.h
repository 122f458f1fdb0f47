/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coroutines: code on a stack of its own that gives way and goes on later, perhaps in another thread. Needs the big
 * lock; resumes do not nest.
 */
#ifndef SIMCUDA_CORO_H
#define SIMCUDA_CORO_H

struct sim_coro;

enum sim_coro_end {
    SIM_CORO_GAVE_WAY,
    SIM_CORO_ENDED,
    SIM_CORO_FAULTED, /* touched an address it has no right to: it cannot go on */
};

/* fn(arg) runs from the first resume on. */
struct sim_coro *sim_coro_new(void (*fn)(void *), void *arg);
enum sim_coro_end sim_coro_resume(struct sim_coro *c);
/* Inside of fn: back to the one who resumed it. */
void sim_coro_give_way(struct sim_coro *c);
/* It never goes on. */
void sim_coro_drop(struct sim_coro *c);

#endif
