/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: blocks that take turns. A few blocks of a launch are resident at a time, begun in order; which of them
 * makes the next turn is decided by priorities drawn at random, so that one may stay behind at any point while the
 * others run to their ends. Two launches on two streams take turns as well: op.c steps now this, now that one.
 * Under the big lock.
 */
#include "tools/simcuda/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"
#include "tools/simcuda/coro.h"

#define RESIDENT_MAX 8

struct block {
    struct sim_coro *coro;
    struct ps_sim_block at;
    const struct sim_launch *launch;
    uint64_t priority;
};

/* Of a launch; sim_launch.next_block counts the blocks begun. */
struct sim_blocks {
    unsigned room; /* blocks resident at a time, at most */
    unsigned n;
    struct block *resident[RESIDENT_MAX];
};

bool sim_blocks_give_way(const struct ps_sim_kernel *row)
{
    return strncmp(row->name, "ps_", 3) == 0;
}

static void give_way(const struct ps_sim_block *at)
{
    sim_coro_give_way(at->yield_arg);
}

static void run_block(void *arg)
{
    const struct block *b = arg;

    b->launch->row->run(&b->at, b->launch->params);
}

static void begin_block(struct sim_launch *l)
{
    struct block *b = sim_calloc(1, sizeof *b);

    b->coro = sim_coro_new(run_block, b);
    b->launch = l;
    b->at = (struct ps_sim_block){
        .block = l->next_block++, .n_blocks = l->n_blocks, .yield = give_way, .yield_arg = b->coro};
    b->priority = sim_sched_draw();
    l->blocks->resident[l->blocks->n++] = b;
}

static void end_block(struct sim_blocks *all, unsigned i)
{
    struct block *b = all->resident[i];

    sim_coro_drop(b->coro);
    free(b);
    all->resident[i] = all->resident[--all->n];
}

static unsigned highest(const struct sim_blocks *all)
{
    unsigned best = 0;

    for (unsigned i = 1; i < all->n; i++) {
        if (all->resident[i]->priority > all->resident[best]->priority) {
            best = i;
        }
    }
    return best;
}

/* One turn of one block. */
static bool turn(struct sim_launch *l)
{
    struct sim_blocks *all = l->blocks;

    while (all->n < all->room && l->next_block < l->n_blocks) {
        begin_block(l);
    }
    const unsigned i = highest(all);
    const enum sim_coro_end end = sim_coro_resume(all->resident[i]->coro);

    if (end == SIM_CORO_GAVE_WAY) {
        /* Now and then it falls behind. */
        if (sim_sched_draw() % 4 == 0) {
            all->resident[i]->priority = sim_sched_draw();
        }
        return true;
    }
    end_block(all, i);
    return end == SIM_CORO_ENDED;
}

bool sim_blocks_turns(struct sim_op *op, uint64_t n)
{
    struct sim_launch *l = &op->launch;

    if (l->blocks == NULL) {
        l->blocks = sim_calloc(1, sizeof *l->blocks);
        l->blocks->room = 1 + (unsigned)(sim_sched_draw() % RESIDENT_MAX);
    }
    for (; n > 0 && !sim_blocks_over(op); n--) {
        if (!turn(l)) {
            return false;
        }
    }
    return true;
}

bool sim_blocks_over(const struct sim_op *op)
{
    const struct sim_launch *l = &op->launch;

    return l->next_block == l->n_blocks && (l->blocks == NULL || l->blocks->n == 0);
}

void sim_blocks_drop(struct sim_launch *launch)
{
    if (launch->blocks == NULL) {
        return;
    }
    while (launch->blocks->n > 0) {
        end_block(launch->blocks, launch->blocks->n - 1);
    }
    free(launch->blocks);
    launch->blocks = NULL;
}
