/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameter structures of the demo's kernels, shared by the kernels and the host: plain C, no CUDA
 * header. All are passed by value, and as in larger frameworks only part of the words are set for a
 * given launch.
 */
#ifndef DEMO_ARGS_H
#define DEMO_ARGS_H

#include <stdint.h>

#define DEMO_THREADS     256 /* threads a block on a GPU; a block of the host build has one */
#define DEMO_TILE        64  /* rows and columns of one tile of a product */
#define DEMO_MAX_EXPERTS 256

/* Everything but the products: a kernel uses the first few words of each array. */
struct demo_args {
    uint64_t operand[8]; /* device addresses */
    int64_t dim[8];
    float scalar[4];
};

/* Which dimension of a grouped product is the row count of the expert. */
enum demo_rows { DEMO_ROWS_IN_M, DEMO_ROWS_IN_K };

/*
 * c[i, j] (+)= sum over l of a[i * a_row + l * a_col] * b[l * b_row + j * b_col]; strides in
 * elements.
 */
struct demo_group {
    uint64_t a, b, c;
    int64_t m, n, k;
    int64_t a_row, a_col, b_row, b_col, c_row;
};

/*
 * Writes one struct demo_group for each expert to the workspace; the only launch that names the
 * operands.
 */
struct demo_prepare {
    uint64_t a, b, c;
    uint64_t offsets;   /* int32_t[n_groups + 1], or 0: one group of `rows` rows */
    uint64_t workspace; /* struct demo_group[n_groups] */
    int64_t m, n, k;    /* the one that is the row count is taken from the offsets */
    int64_t a_row, a_col, b_row, b_col, c_row;
    int64_t group; /* elements between the experts' matrices: b's, or c's for DEMO_ROWS_IN_K */
    uint32_t n_groups;
    uint32_t rows_in; /* enum demo_rows */
    uint64_t unused[4];
};

struct demo_product {
    uint64_t workspace;
    uint32_t n_groups;
    uint32_t accumulate;
    uint64_t unused[14];
};

#endif
