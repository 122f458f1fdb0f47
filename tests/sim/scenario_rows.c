/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges that count their rows: what lies behind them is neither looked at nor brought back, and nobody misses it.
 *
 *   i64     padding that nobody writes, and what is computed of it and copied of it
 *   i32     the same, with a counter of 4 bytes
 *   all     the job vouches for its rows
 *   over    counts beyond the capacity and below 0
 *   zero    every other layer has no row
 *   lying   one tensor holds data behind the rows
 *   zeros   the job itself clears what is behind the rows of one tensor, and reads that
 *   nowhere there is no counter
 *   freed   the counter is freed before its range is pushed
 *   wrong   the name is not well formed
 *   side    a second stream uses the tensors
 *   stops   half of the ranges do not count any more once they are believed
 *   thread  on the thread's own stream, where each use is recorded at once
 *   many    more ranges than can be counted at one time, of which the last are on another stream
 */
#include "tests/sim/scenario_plan.h"

#define N_STEPS   20
#define ROW_WORDS 64
#define CAPACITY  (SC_WORDS / ROW_WORDS) /* rows */
#define SCALES    513 /* words that serve 32 rows: no multiple of a row's share */

struct layer {
    CUdeviceptr x, y, z, scale;
    uint64_t n; /* rows */
};

static struct layer layers[PL_LAYERS];
static const char *kind;
static CUstream side;

static bool is(const char *name)
{
    return strcmp(kind, name) == 0;
}

static uint64_t rows_of(uint64_t seed)
{
    if (is("zero") && seed % 2 == 1) {
        return 0;
    }
    return is("over") && seed % 3 == 1 ? CAPACITY : CAPACITY / 4 + test_mix(seed) % (CAPACITY / 4);
}

/* What the counter says of them. */
static int64_t count_of(uint64_t n, uint64_t seed)
{
    if (is("over") && n == CAPACITY) {
        return seed % 2 == 0 ? (int64_t)CAPACITY + 1 : INT64_MAX;
    }
    return n == 0 && seed % 4 == 1 ? -5 : (int64_t)n;
}

static CUdeviceptr count(uint64_t n, uint64_t seed, CUstream s)
{
    const CUdeviceptr counter = sc_alloc(8, s);
    const int64_t value = count_of(n, seed);

    sc_ok(cuMemsetD32Async(counter, (unsigned)(uint64_t)value, 1, s));
    sc_ok(cuMemsetD32Async(counter + 4, (unsigned)((uint64_t)value >> 32), 1, s));
    return counter;
}

static void name_range(char *name, size_t size, uint64_t seed, CUdeviceptr counter)
{
    if (is("stops") && seed > N_STEPS / 2 * 100 && test_mix(seed) % 2 == 0) {
        snprintf(name, size, "moe_experts");
        return;
    }
    const unsigned long long at = is("nowhere") ? 0xdead0000ULL : counter;
    const char *type = is("i32") ? ":i32" : is("all") ? "" : ":i64";

    snprintf(name, size, "moe_experts;tokens=0x%llx%s;capacity=%llu%s%s", at, type,
             (unsigned long long)CAPACITY, is("wrong") ? "x" : "", is("all") ? ";rows=all" : "");
}

/* Rows are written, or copied with all that is behind them. */
static void fill(struct layer *l, uint64_t seed, CUstream s)
{
    const uint64_t valid = l->n * ROW_WORDS;
    CUdeviceptr temporary = sc_alloc(SC_BYTES, s);
    uint64_t n_words = SC_WORDS;

    sc_produce(temporary, valid, valid, seed, s);
    sc_launch(s, "test_copy", (void *[]){&temporary, &l->x, &n_words});
    sc_free(temporary, s);
    sc_mix(l->x, l->x, l->y, SC_WORDS, s);
    sc_mix(l->x, l->y, l->z, valid, s);
    sc_produce(l->scale, (l->n + 31) / 32 * SCALES, (l->n + 31) / 32 * SCALES, seed + 1, s);
    if (is("lying") && seed % 4 == 2) {
        sc_produce(l->z + 8 * (SC_WORDS - 24), 24, 24, seed + 2, s);
    }
    if (is("zeros")) {
        sc_ok(cuMemsetD8Async(l->z + 8 * valid, 0, SC_BYTES - 8 * valid, s));
    }
}

static void forward(struct layer *l, uint64_t seed, CUstream s)
{
    char name[160];

    l->n = rows_of(seed);
    CUdeviceptr counter = count(l->n, seed, s);
    name_range(name, sizeof(name), seed, counter);
    if (is("freed")) {
        sc_free(counter, s);
        sc_ok(cuStreamSynchronize(s));
    }
    nvtxRangePushA(name);
    l->x = sc_alloc(SC_BYTES, s);
    l->y = sc_alloc(SC_BYTES, s);
    l->z = sc_alloc(SC_BYTES, s);
    l->scale = sc_alloc((size_t)CAPACITY / 32 * SCALES * 8, s);
    fill(l, seed, s);
    if (side != NULL) {
        sc_order(s, side);
        sc_digest_aside(l->x, l->n * ROW_WORDS, side);
        sc_order(side, s);
    }
    nvtxRangePop();
    if (!is("freed")) {
        sc_free(counter, s);
    }
}

static void backward(struct layer *l, uint64_t seed, CUstream s)
{
    const uint64_t valid = l->n * ROW_WORDS;

    sc_digest(l->z, is("zeros") ? SC_WORDS : valid, s);
    if (is("lying") && seed % 4 == 2) {
        sc_digest(l->z + 8 * (SC_WORDS - 24), 24, s);
    }
    sc_digest(l->y, valid, s);
    sc_digest(l->x, valid, s);
    sc_digest(l->scale, (l->n + 31) / 32 * SCALES, s);
    sc_free(l->z, s);
    sc_free(l->y, s);
    sc_free(l->x, s);
    sc_free(l->scale, s);
}

#define N_MANY  640
#define N_FIRST 540 /* of them on the first stream: more than there are words for */

static void many(CUstream s)
{
    const CUstream other = sc_stream();
    CUdeviceptr word;

    sc_ok(cuMemAlloc(&word, 4));
    sc_ok(cuMemsetD32(word, 0, 1));
    for (uint64_t i = 0; i < N_MANY; i++) {
        const CUstream on = i < N_FIRST ? s : other;
        const CUdeviceptr counter = count(CAPACITY / 2, i, on);
        char name[160];

        name_range(name, sizeof(name), i, counter);
        nvtxRangePushA(name);
        const CUdeviceptr x = sc_alloc(SC_BYTES, on);
        sc_produce(x, CAPACITY / 2 * ROW_WORDS, SC_WORDS, i, on);
        (on == s ? sc_digest : sc_digest_aside)(x, SC_WORDS, on);
        nvtxRangePop();
        sc_free(x, on);
        sc_free(counter, on);
        if (i == 3) {
            sc_ok(cuCtxSynchronize());
            /* From here on none of the first stream's is over before the last of the other's is given. */
            sc_ok(cuStreamWaitValue32(s, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
        }
    }
    sc_ok(cuStreamWriteValue32(sc_stream(), word, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
}

int main(int argc, char **argv)
{
    kind = argc > 1 ? argv[1] : "i64";
    sc_start();
    const CUstream s = is("thread") ? CU_STREAM_PER_THREAD : sc_stream();

    side = is("side") ? sc_stream() : NULL;
    if (is("many")) {
        many(s);
    }
    for (uint64_t step = 0; step < N_STEPS && !is("many"); step++) {
        for (uint64_t i = 0; i < PL_LAYERS; i++) {
            forward(&layers[i], step * 100 + i, s);
        }
        for (int i = PL_LAYERS - 1; i >= 0; i--) {
            backward(&layers[i], step * 100 + (uint64_t)i, s);
        }
    }
    sc_results_print("all");
    return sc_end();
}
