/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the tests on simcuda; include in one file of a program. Memory is counted in 8-byte words. */
#ifndef PS_TESTS_SIM_KERNELS_H
#define PS_TESTS_SIM_KERNELS_H

#include "kernels/dual.h"

/* The software driver's: adds kernels of a program to those it has itself. */
void simcuda_add_kernels(const struct ps_sim_kernel *rows, size_t n);
extern const struct ps_sim_kernel __start_ps_sim_kernels[] __attribute__((visibility("hidden")));
extern const struct ps_sim_kernel __stop_ps_sim_kernels[] __attribute__((visibility("hidden")));

static void __attribute__((constructor)) test_add_kernels(void)
{
    simcuda_add_kernels(__start_ps_sim_kernels,
                        (size_t)(__stop_ps_sim_kernels - __start_ps_sim_kernels));
}

typedef uint64_t *test_words;
typedef const uint64_t *test_const_words;

/* This block's share of n words. */
#define SHARE_(_n) (((_n) + PS_N_BLOCKS - 1) / PS_N_BLOCKS)
#define FIRST_(_n) (PS_BLOCK * SHARE_(_n) < (_n) ? PS_BLOCK * SHARE_(_n) : (_n))
#define LAST_(_n)  (FIRST_(_n) + SHARE_(_n) < (_n) ? FIRST_(_n) + SHARE_(_n) : (_n))

static inline uint64_t test_mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

/* to[i] = a word that depends on seed and i. */
PS_KERNEL3(test_write, test_words, to, uint64_t, n, uint64_t, seed)
{
    for (uint64_t i = FIRST_(n); i < LAST_(n); i++) {
        to[i] = test_mix(seed + i);
    }
}

/* As test_write for n_valid words, zeros up to n. */
PS_KERNEL4(test_rows, test_words, to, uint64_t, n_valid, uint64_t, n, uint64_t, seed)
{
    for (uint64_t i = FIRST_(n); i < LAST_(n); i++) {
        to[i] = i < n_valid ? test_mix(seed + i) : 0;
    }
}

/* to[0] = a hash of all words; one block. */
PS_KERNEL3(test_read, test_const_words, from, uint64_t, n, test_words, to)
{
    uint64_t hash = n;

    for (uint64_t i = 0; i < n && PS_BLOCK == 0; i++) {
        hash = test_mix(hash ^ from[i]);
    }
    if (PS_BLOCK == 0 && to != NULL) {
        to[0] = hash;
    }
}

/* The same, for results: to is never NULL. */
PS_KERNEL3(test_hash, test_const_words, from, uint64_t, n, test_words, to)
{
    uint64_t hash = n;

    for (uint64_t i = 0; i < n && PS_BLOCK == 0; i++) {
        hash = test_mix(hash ^ from[i]);
    }
    if (PS_BLOCK == 0) {
        to[0] = hash;
    }
}

PS_KERNEL3(test_copy, test_const_words, from, test_words, to, uint64_t, n)
{
    for (uint64_t i = FIRST_(n); i < LAST_(n); i++) {
        to[i] = from[i];
    }
}

/* to[i] = mix(a[i] + b[i]). */
PS_KERNEL4(test_mix2, test_const_words, a, test_const_words, b, test_words, to, uint64_t, n)
{
    for (uint64_t i = FIRST_(n); i < LAST_(n); i++) {
        to[i] = test_mix(a[i] + b[i]);
    }
}

/* ---- kernels whose operands are named elsewhere ---- */

#define TEST_OPERANDS 4
struct test_product {
    uint64_t a, b, to, n;
};
/* What a caller fills in part: the words it leaves alone hold whatever the stack held. */
struct test_operands {
    uint64_t n_used;
    uint64_t spare[3];
    struct test_product product[TEST_OPERANDS];
    uint64_t scratch[8];
};

static inline void test_multiply(const struct test_product *p, uint64_t first, uint64_t last)
{
    const uint64_t *a = (const uint64_t *)(uintptr_t)p->a;
    const uint64_t *b = (const uint64_t *)(uintptr_t)p->b;
    uint64_t *to = (uint64_t *)(uintptr_t)p->to;

    for (uint64_t i = first; i < last; i++) {
        to[i] = test_mix(a[i] + b[i]);
    }
}

/* Writes the operands' addresses to memory, as the kernel that prepares a grouped product does. */
PS_KERNEL2(test_prepare, struct test_operands, o, test_words, to)
{
    struct test_product *p = (struct test_product *)(void *)to;

    for (uint64_t i = 0; i < o.n_used && PS_BLOCK == 0; i++) {
        p[i] = o.product[i];
    }
}

/* A grouped product: its operands stand in memory. */
PS_KERNEL2(test_grouped, test_const_words, list, uint64_t, n_products)
{
    const struct test_product *p = (const struct test_product *)(const void *)list;

    for (uint64_t i = 0; i < n_products; i++) {
        test_multiply(&p[i], FIRST_(p[i].n), LAST_(p[i].n));
    }
}

/* A product that takes its operands by value, with words nobody set. */
PS_KERNEL1(test_by_value, struct test_operands, o)
{
    for (uint64_t i = 0; i < o.n_used; i++) {
        test_multiply(&o.product[i], FIRST_(o.product[i].n), LAST_(o.product[i].n));
    }
}

/* to[i] = mix(end[-1 - i]): reads backwards from one past the end. */
PS_KERNEL3(test_from_end, test_const_words, end, uint64_t, n, test_words, to)
{
    for (uint64_t i = FIRST_(n); i < LAST_(n); i++) {
        to[i] = test_mix(end[-1 - (int64_t)i]);
    }
}

/* As test_copy, with a base that lies k words before the first one read. */
PS_KERNEL4(test_from_before, test_const_words, base, uint64_t, k, test_words, to, uint64_t, n)
{
    for (uint64_t i = FIRST_(n); i < LAST_(n); i++) {
        to[i] = test_mix(base[k + i]);
    }
}

#endif
