/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the demo: one source for nvcc and the host compiler. Every sum is taken by one thread
 * in a fixed order, so that two runs on one device give the same bits. No mathematical library is
 * used, since on the host these kernels are linked into a library of their own.
 *
 * Elementwise kernels run over all rows of a padded buffer, products over the rows that exist only:
 * what the padding holds never reaches a result.
 */
#include "kernels/dual.h"

#include "tools/demo/args.h"

#ifdef __CUDACC__
#    define DEMO_SIDE                 16 /* SIDE x SIDE threads a block, each with a square part */
#    define DEMO_LANE                 ((int)PS_THREAD)
#    define DEMO_LIMIT(_part, _limit) (_part)
#else
#    define DEMO_SIDE                 1
#    define DEMO_LANE                 0
#    define DEMO_LIMIT(_part, _limit) (_limit)
#endif
#define DEMO_PART  (DEMO_TILE / DEMO_SIDE)
#define DEMO_DEPTH 16

#define F32(_i) ((float *)ps_address(args.operand[_i]))
#define I32(_i) ((int32_t *)ps_address(args.operand[_i]))
#define I64(_i) ((int64_t *)ps_address(args.operand[_i]))
#define EACH(_i, _n)                                                                               \
    int64_t _i = (int64_t)(PS_BLOCK * PS_N_THREADS + PS_THREAD);                                   \
    _i < (_n);                                                                                     \
    _i += (int64_t)(PS_N_BLOCKS * PS_N_THREADS)

PS_DEVICE uint64_t demo_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* In [-1, 1). */
PS_DEVICE float demo_random(uint64_t seed, uint64_t index)
{
    const uint64_t bits = demo_mix(seed ^ demo_mix(index)) >> 40;
    return (float)bits * (1.0f / 8388608.0f) - 1.0f;
}

union demo_bits {
    float f;
    uint32_t u;
};

/* e^x to about 1e-6, for |x| up to 80. */
PS_DEVICE float demo_exp(float x)
{
    const float clamped = x < -80.0f ? -80.0f : (x > 80.0f ? 80.0f : x);
    const float scaled = clamped * 1.44269504f;
    const int whole = (int)(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
    const float r = (scaled - (float)whole) * 0.693147181f;
    const float series =
        1.0f +
        r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * 0.00833333333f))));
    union demo_bits power;
    power.u = (uint32_t)(whole + 127) << 23;
    return series * power.f;
}

PS_DEVICE float demo_sigmoid(float x)
{
    return 1.0f / (1.0f + demo_exp(-x));
}

/* 1 / sqrt(x) for x > 0, by Newton's method from a first guess in the exponent. */
PS_DEVICE float demo_rsqrt(float x)
{
    union demo_bits guess;
    guess.f = x;
    guess.u = 0x5f375a86u - (guess.u >> 1);
    float y = guess.f;
    for (int i = 0; i < 4; i++) {
        y = y * (1.5f - 0.5f * x * y * y);
    }
    return y;
}

/* out[n] random in +-scale; dim: n, seed. */
PS_KERNEL1(demo_fill_random, struct demo_args, args)
{
    for (EACH(i, args.dim[0])) {
        F32(0)[i] = args.scalar[0] * demo_random((uint64_t)args.dim[1], (uint64_t)i);
    }
}

/* out[n] = 0, 1, 2, … as 64-bit integers; dim: n. */
PS_KERNEL1(demo_arange, struct demo_args, args)
{
    for (EACH(i, args.dim[0])) {
        I64(0)[i] = i;
    }
}

/* out[1] = value, as a 64-bit integer; dim: value. */
PS_KERNEL1(demo_count, struct demo_args, args)
{
    for (EACH(i, 1)) {
        I64(0)[i] = args.dim[0];
    }
}

/* y = x / rms(x), rstd; operands x, y, rstd; dim: rows, width. */
PS_KERNEL1(demo_rmsnorm, struct demo_args, args)
{
    const int64_t width = args.dim[1];
    for (EACH(row, args.dim[0])) {
        const float *x = F32(0) + row * width;
        float *y = F32(1) + row * width;
        float sum = 0.0f;
        for (int64_t j = 0; j < width; j++) {
            sum += x[j] * x[j];
        }
        const float rstd = demo_rsqrt(sum / (float)width + 1e-6f);
        for (int64_t j = 0; j < width; j++) {
            y[j] = x[j] * rstd;
        }
        F32(2)[row] = rstd;
    }
}

/*
 * dx = residual + rstd * (dy - y * mean(dy * y)); operands dy, y, rstd, residual, dx; dim: rows,
 * width.
 */
PS_KERNEL1(demo_rmsnorm_backward, struct demo_args, args)
{
    const int64_t width = args.dim[1];
    for (EACH(row, args.dim[0])) {
        const float *dy = F32(0) + row * width;
        const float *y = F32(1) + row * width;
        float sum = 0.0f;
        for (int64_t j = 0; j < width; j++) {
            sum += dy[j] * y[j];
        }
        const float mean = sum / (float)width;
        const float rstd = F32(2)[row];
        for (int64_t j = 0; j < width; j++) {
            F32(4)[row * width + j] = F32(3)[row * width + j] + rstd * (dy[j] - y[j] * mean);
        }
    }
}

/* a = x + max(d, 0); operands x, d, a; dim: n. */
PS_KERNEL1(demo_add_relu, struct demo_args, args)
{
    for (EACH(i, args.dim[0])) {
        const float d = F32(1)[i];
        F32(2)[i] = F32(0)[i] + (d > 0.0f ? d : 0.0f);
    }
}

/* y = max(x, 0); operands x, y; dim: n. */
PS_KERNEL1(demo_relu, struct demo_args, args)
{
    for (EACH(i, args.dim[0])) {
        const float x = F32(0)[i];
        F32(1)[i] = x > 0.0f ? x : 0.0f;
    }
}

/* dx = y > 0 ? dy : 0; operands dy, y, dx; dim: n. */
PS_KERNEL1(demo_relu_backward, struct demo_args, args)
{
    for (EACH(i, args.dim[0])) {
        F32(2)[i] = F32(1)[i] > 0.0f ? F32(0)[i] : 0.0f;
    }
}

/*
 * Probabilities of the experts and the first choice of each token; operands y, gate, prob, top
 * (int32). dim: tokens, width, experts, seed; scalar: strength of the experts' popularity.
 */
PS_KERNEL1(demo_router, struct demo_args, args)
{
    const int64_t width = args.dim[1], experts = args.dim[2];
    for (EACH(token, args.dim[0])) {
        const float *y = F32(0) + token * width;
        float *prob = F32(2) + token * experts;
        float best = -1e30f;
        int32_t top = 0;
        for (int64_t e = 0; e < experts; e++) {
            float logit = args.scalar[0] * demo_random((uint64_t)args.dim[3], (uint64_t)e);
            for (int64_t j = 0; j < width; j++) {
                logit += y[j] * F32(1)[j * experts + e];
            }
            prob[e] = logit;
            if (logit > best) {
                best = logit;
                top = (int32_t)e;
            }
        }
        float sum = 0.0f;
        for (int64_t e = 0; e < experts; e++) {
            prob[e] = demo_exp(prob[e] - best);
            sum += prob[e];
        }
        for (int64_t e = 0; e < experts; e++) {
            prob[e] /= sum;
        }
        I32(3)[token] = top;
    }
}

/* Assignment i belongs to token i % tokens; operands top, expert; dim: n, tokens, experts. */
PS_KERNEL1(demo_assign, struct demo_args, args)
{
    for (EACH(i, args.dim[0])) {
        const int64_t token = i % args.dim[1], choice = i / args.dim[1];
        I32(1)[i] = (int32_t)((I32(0)[token] + choice * (1 + token % 3)) % args.dim[2]);
    }
}

/*
 * Stable sort of the assignments by expert; a block an expert. Operands: expert[n], offsets[experts
 * + 1], place[n] (row of an assignment), assignment[n] (its inverse); dim: n, experts.
 */
PS_KERNEL1(demo_sort, struct demo_args, args)
{
    PS_SHARED int32_t less[DEMO_THREADS];
    PS_SHARED int32_t equal[DEMO_THREADS];
    const int64_t n = args.dim[0];
    const int64_t share = (n + PS_N_THREADS - 1) / PS_N_THREADS;
    const int64_t first = share * PS_THREAD;
    const int64_t last = first + share < n ? first + share : n;
    for (int64_t e = (int64_t)PS_BLOCK; e < args.dim[1]; e += (int64_t)PS_N_BLOCKS) {
        int32_t n_less = 0, n_equal = 0;
        for (int64_t i = first; i < last; i++) {
            n_less += I32(0)[i] < e;
            n_equal += I32(0)[i] == e;
        }
        less[PS_THREAD] = n_less;
        equal[PS_THREAD] = n_equal;
        PS_SYNC();
        int32_t start = 0, before = 0, so_far = 0;
        for (uint32_t t = 0; t < PS_N_THREADS; t++) {
            start += less[t];
            before = t == PS_THREAD ? so_far : before;
            so_far += equal[t];
        }
        int32_t row = start + before;
        for (int64_t i = first; i < last; i++) {
            if (I32(0)[i] == e) {
                I32(2)[i] = row;
                I32(3)[row++] = (int32_t)i;
            }
        }
        if (PS_THREAD == 0) {
            I32(1)[e] = start;
            if (e == args.dim[1] - 1) {
                I32(1)[e + 1] = (int32_t)n;
            }
        }
        PS_SYNC();
    }
}

/* out[r] = y[assignment[r] % tokens]; operands y, assignment, out; dim: n, width, tokens. */
PS_KERNEL1(demo_gather, struct demo_args, args)
{
    const int64_t width = args.dim[1];
    for (EACH(i, args.dim[0] * width)) {
        const int64_t token = I32(1)[i / width] % args.dim[2];
        F32(2)[i] = F32(0)[token * width + i % width];
    }
}

/* out[index[r]] = in[r]; operands in, index (int64), out; dim: n, width. */
PS_KERNEL1(demo_index_copy, struct demo_args, args)
{
    const int64_t width = args.dim[1];
    for (EACH(i, args.dim[0] * width)) {
        F32(2)[I64(1)[i / width] * width + i % width] = F32(0)[i];
    }
}

/* s = silu(first half of each row of h); operands h, s; dim: n, width of s. */
PS_KERNEL1(demo_silu, struct demo_args, args)
{
    const int64_t width = args.dim[1];
    for (EACH(i, args.dim[0])) {
        const float g = F32(0)[i / width * 2 * width + i % width];
        F32(1)[i] = g * demo_sigmoid(g);
    }
}

/* y = s * second half of each row of h; operands h, s, y; dim: n, width of s. */
PS_KERNEL1(demo_gate, struct demo_args, args)
{
    const int64_t width = args.dim[1];
    for (EACH(i, args.dim[0])) {
        F32(2)[i] = F32(1)[i] * F32(0)[(i / width * 2 + 1) * width + i % width];
    }
}

/* Of both of the above; operands dy, h, s, dh; dim: n, width of s. */
PS_KERNEL1(demo_swiglu_backward, struct demo_args, args)
{
    const int64_t width = args.dim[1];
    for (EACH(i, args.dim[0])) {
        const int64_t at = i / width * 2 * width + i % width;
        const float g = F32(1)[at], u = F32(1)[at + width], dy = F32(0)[i];
        const float sigmoid = demo_sigmoid(g);
        F32(3)[at] = dy * u * sigmoid * (1.0f + g * (1.0f - sigmoid));
        F32(3)[at + width] = dy * F32(2)[i];
    }
}

/*
 * z[t] = a[t] + sum of prob * o over the token's assignments; operands a, o, prob, expert, place,
 * z. dim: tokens, width, experts, n.
 */
PS_KERNEL1(demo_combine, struct demo_args, args)
{
    const int64_t tokens = args.dim[0], width = args.dim[1];
    for (EACH(i, tokens * width)) {
        const int64_t token = i / width, j = i % width;
        float sum = F32(0)[i];
        for (int64_t k = token; k < args.dim[3]; k += tokens) {
            sum += F32(2)[token * args.dim[2] + I32(3)[k]] * F32(1)[I32(4)[k] * width + j];
        }
        F32(5)[i] = sum;
    }
}

/*
 * Per row r: d_o[r] = prob * dz[token], and d_weight[assignment] = dz[token] . o[r]; operands dz,
 * o, prob, expert, assignment, d_o, d_weight; dim: tokens, width, experts, n.
 */
PS_KERNEL1(demo_combine_backward, struct demo_args, args)
{
    const int64_t tokens = args.dim[0], width = args.dim[1];
    for (EACH(r, args.dim[3])) {
        const int64_t k = I32(4)[r], token = k % tokens;
        const float weight = F32(2)[token * args.dim[2] + I32(3)[k]];
        float sum = 0.0f;
        for (int64_t j = 0; j < width; j++) {
            const float dz = F32(0)[token * width + j];
            F32(5)[r * width + j] = weight * dz;
            sum += dz * F32(1)[r * width + j];
        }
        F32(6)[k] = sum;
    }
}

/* dy[t] = sum of dx over the token's rows; operands dx, place, dy; dim: tokens, width, n. */
PS_KERNEL1(demo_gather_backward, struct demo_args, args)
{
    const int64_t tokens = args.dim[0], width = args.dim[1];
    for (EACH(i, tokens * width)) {
        const int64_t token = i / width, j = i % width;
        float sum = 0.0f;
        for (int64_t k = token; k < args.dim[2]; k += tokens) {
            sum += F32(0)[I32(1)[k] * width + j];
        }
        F32(2)[i] = sum;
    }
}

/* Softmax backward; operands d_weight[n], prob, expert, d_logit; dim: tokens, experts, n. */
PS_KERNEL1(demo_router_backward, struct demo_args, args)
{
    const int64_t tokens = args.dim[0], experts = args.dim[1];
    for (EACH(token, tokens)) {
        const float *prob = F32(1) + token * experts;
        float *out = F32(3) + token * experts;
        for (int64_t e = 0; e < experts; e++) {
            out[e] = 0.0f;
        }
        float mean = 0.0f;
        for (int64_t k = token; k < args.dim[2]; k += tokens) {
            const int64_t e = I32(2)[k];
            out[e] += F32(0)[k];
            mean += prob[e] * F32(0)[k];
        }
        for (int64_t e = 0; e < experts; e++) {
            out[e] = prob[e] * (out[e] - mean);
        }
    }
}

/*
 * Mean square distance to the input moved by one place and halved; operands z, dz, partial[tokens].
 * dim: tokens, width, seed of the input; scalar: scale of the input, weight of one element.
 */
PS_KERNEL1(demo_loss, struct demo_args, args)
{
    const int64_t width = args.dim[1];
    for (EACH(token, args.dim[0])) {
        float sum = 0.0f;
        for (int64_t j = 0; j < width; j++) {
            const uint64_t from = (uint64_t)(token * width + (j + 1) % width);
            const float want = 0.5f * args.scalar[0] * demo_random((uint64_t)args.dim[2], from);
            const float off = F32(0)[token * width + j] - want;
            F32(1)[token * width + j] = 2.0f * off * args.scalar[1];
            sum += off * off * args.scalar[1];
        }
        F32(2)[token] = sum;
    }
}

/* *total += sum of partial, by one block; operands partial, total; dim: n. */
PS_KERNEL1(demo_sum, struct demo_args, args)
{
    PS_SHARED float sums[DEMO_THREADS];
    float sum = 0.0f;
    if (PS_BLOCK != 0) {
        return;
    }
    for (int64_t i = PS_THREAD; i < args.dim[0]; i += PS_N_THREADS) {
        sum += F32(0)[i];
    }
    sums[PS_THREAD] = sum;
    PS_SYNC();
    if (PS_THREAD == 0) {
        for (uint32_t t = 1; t < PS_N_THREADS; t++) {
            sum += sums[t];
        }
        F32(1)[0] += sum;
    }
}

/* w -= rate * g; operands w, g; dim: n; scalar: rate. */
PS_KERNEL1(demo_sgd, struct demo_args, args)
{
    for (EACH(i, args.dim[0])) {
        F32(0)[i] -= args.scalar[0] * F32(1)[i];
    }
}

/* One thread an expert. */
PS_KERNEL1(demo_prepare, struct demo_prepare, args)
{
    struct demo_group *groups = (struct demo_group *)ps_address(args.workspace);
    const int32_t *offsets = (const int32_t *)ps_address(args.offsets);
    for (EACH(e, (int64_t)args.n_groups)) {
        const int64_t first = offsets ? offsets[e] : 0;
        const int64_t rows = offsets ? offsets[e + 1] - first : -1;
        struct demo_group g;
        const int64_t skip = e * args.group * (int64_t)sizeof(float);
        const int in_m = args.rows_in == DEMO_ROWS_IN_M;
        const int64_t from = first * (int64_t)sizeof(float);
        g.a = args.a + (uint64_t)(from * (in_m ? args.a_row : args.a_col));
        g.b = args.b + (uint64_t)(in_m ? skip : from * args.b_row);
        g.c = args.c + (uint64_t)(in_m ? from * args.c_row : skip);
        g.m = in_m && rows >= 0 ? rows : args.m;
        g.n = args.n;
        g.k = !in_m && rows >= 0 ? rows : args.k;
        g.a_row = args.a_row;
        g.a_col = args.a_col;
        g.b_row = args.b_row;
        g.b_col = args.b_col;
        g.c_row = args.c_row;
        groups[e] = g;
    }
}

PS_DEVICE int64_t demo_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/*
 * Copies rows x depth elements to to[DEMO_DEPTH][DEMO_TILE + 1], zeros outside; coalesced along the
 * unit stride.
 */
PS_DEVICE void demo_load_tile(float (*to)[DEMO_TILE + 1], const float *from, int64_t row_stride,
                              int64_t depth_stride, int64_t rows, int64_t depth)
{
    const int along_depth = depth_stride == 1;
    for (int64_t i = DEMO_LANE; i < (int64_t)DEMO_TILE * DEMO_DEPTH;
         i += (int64_t)DEMO_SIDE * DEMO_SIDE) {
        const int64_t l = along_depth ? i % DEMO_DEPTH : i / DEMO_TILE;
        const int64_t r = along_depth ? i / DEMO_DEPTH : i % DEMO_TILE;
        to[l][r] = r < rows && l < depth ? from[r * row_stride + l * depth_stride] : 0.0f;
    }
}

/* One tile of one group's product; the whole block takes part. */
PS_DEVICE void demo_tile(const struct demo_group *g, int64_t row0, int64_t col0,
                         uint32_t accumulate)
{
    PS_SHARED float a[DEMO_DEPTH][DEMO_TILE + 1];
    PS_SHARED float b[DEMO_DEPTH][DEMO_TILE + 1];
    float sums[DEMO_PART][DEMO_PART];
    const int64_t rows = demo_min(DEMO_TILE, g->m - row0), cols = demo_min(DEMO_TILE, g->n - col0);
    const int64_t n_i = DEMO_LIMIT(DEMO_PART, rows), n_j = DEMO_LIMIT(DEMO_PART, cols);
    const int at_row = DEMO_LANE / DEMO_SIDE, at_col = DEMO_LANE % DEMO_SIDE;
    float *c = (float *)ps_address(g->c) + row0 * g->c_row + col0;
    for (int64_t i = 0; i < n_i; i++) {
        for (int64_t j = 0; j < n_j; j++) {
            sums[i][j] = 0.0f;
        }
    }
    for (int64_t l0 = 0; l0 < g->k; l0 += DEMO_DEPTH) {
        const int64_t depth = demo_min(DEMO_DEPTH, g->k - l0);
        demo_load_tile(a, (const float *)ps_address(g->a) + row0 * g->a_row + l0 * g->a_col,
                       g->a_row, g->a_col, rows, depth);
        demo_load_tile(b, (const float *)ps_address(g->b) + col0 * g->b_col + l0 * g->b_row,
                       g->b_col, g->b_row, cols, depth);
        PS_SYNC();
        for (int64_t l = 0; l < DEMO_LIMIT(DEMO_DEPTH, depth); l++) {
            for (int64_t i = 0; i < n_i; i++) {
                const float x = a[l][at_row + DEMO_SIDE * i];
                for (int64_t j = 0; j < n_j; j++) {
                    sums[i][j] += x * b[l][at_col + DEMO_SIDE * j];
                }
            }
        }
        PS_SYNC();
    }
    for (int64_t i = 0; i < n_i; i++) {
        for (int64_t j = 0; j < n_j; j++) {
            const int64_t row = at_row + DEMO_SIDE * i, col = at_col + DEMO_SIDE * j;
            if (row < rows && col < cols) {
                const float old = accumulate ? c[row * g->c_row + col] : 0.0f;
                c[row * g->c_row + col] = old + sums[i][j];
            }
        }
    }
}

/* Grouped product: tiles of all groups, one after the other, are dealt out to the blocks. */
PS_KERNEL1(demo_product, struct demo_product, args)
{
    const struct demo_group *groups = (const struct demo_group *)ps_address(args.workspace);
    uint32_t e = 0;
    int64_t before = 0;
    for (int64_t tile = (int64_t)PS_BLOCK; e < args.n_groups;) {
        const int64_t across = (groups[e].n + DEMO_TILE - 1) / DEMO_TILE;
        const int64_t n_tiles = (groups[e].m + DEMO_TILE - 1) / DEMO_TILE * across;
        if (tile - before >= n_tiles) {
            before += n_tiles;
            e++;
            continue;
        }
        const int64_t at = tile - before;
        demo_tile(&groups[e], at / across * DEMO_TILE, at % across * DEMO_TILE, args.accumulate);
        tile += (int64_t)PS_N_BLOCKS;
    }
}
