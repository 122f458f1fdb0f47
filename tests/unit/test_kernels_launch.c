/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the blocks of a host kernel in a chosen order. In ORDER_INTERLEAVED each block has a thread
 * but one runs at a time: gang.turn, under gang.lock, says which.
 */
#include "tests/unit/test_kernels_sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

extern const struct ps_sim_kernel __start_ps_sim_kernels[];
extern const struct ps_sim_kernel __stop_ps_sim_kernels[];

struct gang {
    const struct ps_sim_kernel *kernel;
    void *const *params;
    uint64_t n_blocks;
    bool take_turns;
    pthread_mutex_t lock;
    pthread_cond_t turn_changed[BLOCKS_MAX];
    uint64_t turn;
    bool ended[BLOCKS_MAX];
    uint64_t rng;
};

uint64_t test_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

const struct ps_sim_kernel *kernels_find(const char *name)
{
    for (const struct ps_sim_kernel *k = __start_ps_sim_kernels; k < __stop_ps_sim_kernels; k++) {
        if (strcmp(k->name, name) == 0) {
            return k;
        }
    }
    return NULL;
}

static void pass_turn_locked(struct gang *g)
{
    uint64_t left[BLOCKS_MAX];
    uint64_t n_left = 0;

    for (uint64_t i = 0; i < g->n_blocks; i++) {
        if (!g->ended[i]) {
            left[n_left++] = i;
        }
    }
    if (n_left > 0) {
        g->turn = left[test_random(&g->rng) % n_left];
        pthread_cond_signal(&g->turn_changed[g->turn]);
    }
}

static void wait_turn_locked(struct gang *g, uint64_t block)
{
    while (g->turn != block) {
        pthread_cond_wait(&g->turn_changed[block], &g->lock);
    }
}

static void yield(const struct ps_sim_block *b)
{
    struct gang *g = b->yield_arg;

    pthread_mutex_lock(&g->lock);
    pass_turn_locked(g);
    wait_turn_locked(g, b->block);
    pthread_mutex_unlock(&g->lock);
}

struct member {
    struct gang *gang;
    uint64_t block;
};

static void *member_run(void *arg)
{
    const struct member *m = arg;
    struct gang *g = m->gang;
    const struct ps_sim_block block = {m->block, g->n_blocks, g->take_turns ? yield : NULL, g};

    if (g->take_turns) {
        pthread_mutex_lock(&g->lock);
        wait_turn_locked(g, m->block);
        pthread_mutex_unlock(&g->lock);
    }
    g->kernel->run(&block, g->params);
    pthread_mutex_lock(&g->lock);
    g->ended[m->block] = true;
    if (g->take_turns) {
        pass_turn_locked(g);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static void run_gang(struct gang *g)
{
    pthread_t threads[BLOCKS_MAX];
    struct member members[BLOCKS_MAX];

    pthread_mutex_init(&g->lock, NULL);
    for (uint64_t i = 0; i < g->n_blocks; i++) {
        pthread_cond_init(&g->turn_changed[i], NULL);
    }
    pass_turn_locked(g);
    for (uint64_t i = 0; i < g->n_blocks; i++) {
        members[i] = (struct member){g, i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, member_run, &members[i]), 0);
    }
    for (uint64_t i = 0; i < g->n_blocks; i++) {
        pthread_join(threads[i], NULL);
    }
    for (uint64_t i = 0; i < g->n_blocks; i++) {
        pthread_cond_destroy(&g->turn_changed[i]);
    }
    pthread_mutex_destroy(&g->lock);
}

static void run_in_sequence(const struct gang *g, bool shuffled, uint64_t *rng)
{
    uint64_t next[BLOCKS_MAX];

    for (uint64_t i = 0; i < g->n_blocks; i++) {
        next[i] = i;
    }
    for (uint64_t i = 0; i < g->n_blocks; i++) {
        const uint64_t at = shuffled ? i + test_random(rng) % (g->n_blocks - i) : i;
        const struct ps_sim_block block = {.block = next[at], .n_blocks = g->n_blocks};

        next[at] = next[i];
        g->kernel->run(&block, g->params);
    }
}

void kernels_launch(const char *name, void *const *params, uint64_t n_blocks, enum order order,
                    uint64_t *rng)
{
    struct gang g = {
        .kernel = kernels_find(name),
        .params = params,
        .n_blocks = n_blocks,
        .take_turns = order == ORDER_INTERLEAVED,
        .rng = test_random(rng),
    };

    ck_assert_ptr_nonnull(g.kernel);
    ck_assert_uint_ge(n_blocks, 1);
    ck_assert_uint_le(n_blocks, BLOCKS_MAX);
    if (order == ORDER_INTERLEAVED || order == ORDER_CONCURRENT) {
        run_gang(&g);
    } else {
        run_in_sequence(&g, order == ORDER_SHUFFLED, rng);
    }
}
