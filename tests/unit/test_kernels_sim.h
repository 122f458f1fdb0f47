/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For test_kernels.c: runs the host build of the stash kernels, and keeps a model of the pool, its
 * free list and the tensors beside the real ones. One thread, except inside kernels_launch.
 */
#ifndef PS_TESTS_TEST_KERNELS_SIM_H
#define PS_TESTS_TEST_KERNELS_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/layout.h"
#include "kernels/simkernel.h"

/* How the blocks of one launch run. */
enum order {
    ORDER_RISING,
    ORDER_SHUFFLED,
    ORDER_INTERLEAVED, /* one at a time, another may go on at each PS_YIELD */
    ORDER_CONCURRENT,  /* a thread each */
    N_ORDERS,
};

#define BLOCKS_MAX 8

uint64_t test_random(uint64_t *state);
const struct ps_sim_kernel *kernels_find(const char *name);
void kernels_launch(const char *name, void *const *params, uint64_t n_blocks, enum order order,
                    uint64_t *rng);

/* The device's or the host's pages. */
struct part {
    uint32_t bit; /* 0 or PS_PAGE_HOST */
    uint32_t capacity;
    uint64_t n_slots;
    struct ps_free_list *list; /* NULL: there is no such part */
    /* The model: what the counters must be, and which pages are out. */
    uint64_t head, tail;
    uint64_t hidden; /* free pages that the kernels are not told of */
    bool *is_out;
    uint64_t n_out;
};

struct pool {
    uint32_t page_bytes;
    struct part device, host;
    unsigned char *pages;
    uint64_t *pieces; /* of host pages */
    uint32_t n_pieces, host_shift;
    uint64_t rng;
};

struct tensor {
    uint64_t bytes;
    uint64_t n_pages;
    unsigned char *data; /* guards before and after */
    unsigned char *copy;
    struct ps_page_entry *table;
    unsigned char *flags; /* NULL: none; a guard behind the last */
    uint64_t counts[2];
    uint64_t ledger;
    uint64_t n_stored, n_uniform; /* the model's */
    /* Rows: as of a batch item. */
    uint64_t before;
    int64_t count;
    uint64_t valid; /* the model's: bytes that may hold rows, if `counted` */
    struct ps_row_outcome outcome;
    int32_t count32;
    uint32_t rows_max, unit_bytes;
    uint16_t seq;
    unsigned char rows_kind, unit_shift;
    bool counted;
    bool beyond;   /* something was written behind them */
    bool poisoned; /* a restore has overwritten what is behind them */
    bool known;    /* restores are told that they are right, at random; */
    bool lied;     /* and are told wrong: what is flagged 0 is not zero, and stays so where it
                      should be */
};

/* A full free list in random order whose counters start at `start`. */
void pool_init(struct pool *p, uint32_t page_bytes, uint32_t capacity, uint64_t n_slots,
               uint64_t start);
/* Only pages below n_first are on the list; the rest come by pool_grow. */
void pool_init_part(struct pool *p, uint32_t page_bytes, uint32_t capacity, uint64_t n_slots,
                    uint32_t n_first);
/* Host pages in pieces of 2^shift, all free, in random order. */
void pool_add_host(struct pool *p, uint32_t capacity, uint64_t n_slots, uint32_t shift);
void pool_fini(struct pool *p);
/* Stashes may take so many of the device's free pages, those given meanwhile, and no more. */
void pool_hide_rest(struct pool *p, uint64_t n_seen);
/* Counters and rings against the model. */
void pool_check(const struct pool *p);
uint64_t pool_n_free(const struct pool *p);

/* Random content, page by page of a random kind; uniform_percent: how many pages are uniform. */
void tensor_init(struct tensor *t, struct pool *p, uint64_t bytes, unsigned uniform_percent);
void tensor_fini(struct tensor *t);
/* Stash and restore note from now on which pages are not uniform. */
void tensor_add_flags(struct tensor *t);

/*
 * Random rows are counted of the tensor, `percent` of what it holds or so; kind: PS_ROWS_*. Behind them lies one word,
 * if they are not trusted, and at times another byte, or a word that lay there after the other fill too.
 */
void tensor_count(struct tensor *t, struct pool *p, unsigned kind, unsigned percent);

/* Each runs the kernel on the tensors and checks all that it must and must not have changed. */
void pool_stash(struct pool *p, struct tensor *tensors, uint32_t n, uint64_t n_blocks,
                enum order order);
void pool_restore(struct pool *p, struct tensor *tensors, uint32_t n, uint64_t n_blocks,
                  enum order order);
/* The tensors, which have flags, get random ones first, flag_percent of them set. */
void pool_clean(struct pool *p, struct tensor *tensors, uint32_t n, unsigned flag_percent,
                uint64_t n_blocks, enum order order);
void pool_drop(struct pool *p, struct tensor *tensors, uint32_t n);
/* part: of p. */
void pool_grow(struct pool *p, struct part *part, uint32_t first, uint32_t count);

#endif
