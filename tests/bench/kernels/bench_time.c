/* SPDX-License-Identifier: Apache-2.0 */
/* Timings of one launch after another, each between two events, and of trains of launches between two. */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/kernels/bench.h"

#define SAMPLES_MAX 8192

static uint64_t samples[SAMPLES_MAX];

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

struct stats stats_of(uint64_t *ns, uint32_t n)
{
    struct stats s = {0, 0, 0, n};

    if (n > 0) {
        qsort(ns, n, sizeof(*ns), compare);
        s.median = ns[n / 2];
        s.p10 = ns[n / 10];
        s.p90 = ns[n - 1 - n / 10];
    }
    return s;
}

uint64_t mb_s(uint64_t bytes, uint64_t ns)
{
    return ns > 0 ? bytes * 1000 / ns : 0;
}

void json_stats(struct ps_json *j, const char *key, const struct stats *s)
{
    ps_json_open(j, key, '{');
    ps_json_u64(j, "median_ns", s->median);
    ps_json_u64(j, "p10_ns", s->p10);
    ps_json_u64(j, "p90_ns", s->p90);
    ps_json_u64(j, "samples", s->n);
    ps_json_close(j, '}');
}

/* ---- one operation over all sets ---- */

enum op { OP_STASH, OP_RESTORE, OP_COPY, OP_FILL, OP_TO_HOST, OP_FROM_HOST, OP_EMPTY, OP_LARGE };

struct work {
    struct bench *b;
    struct tensors *t;
    const struct ps_shape *shape;
    unsigned char *host; /* pinned; of a set */
    CUdeviceptr target;  /* as large as all sets */
};

static uint64_t no_words[511]; /* parameters of bench_large */

static void do_op(const struct work *k, enum op op, uint32_t set)
{
    const struct tensors *t = k->t;
    const uint64_t bytes = t->set_bytes;
    const CUdeviceptr at = t->region + set * t->stride;
    const CUstream s = k->b->out;

    switch (op) {
    case OP_STASH:
        launch_stash(k->b, t, set, k->shape, PS_FAST);
        break;
    case OP_RESTORE:
        launch_restore(k->b, t, set, k->shape, PS_FAST);
        break;
    case OP_COPY:
        MUST(fns.cuMemcpyDtoDAsync(k->target + set * t->stride, at, bytes, s));
        break;
    case OP_FILL:
        MUST(drv.cuMemsetD32Async(k->target + set * t->stride, 0x12345678, bytes / 4, s));
        break;
    case OP_TO_HOST:
        MUST(fns.cuMemcpyDtoHAsync(k->host, at, bytes, s));
        break;
    case OP_FROM_HOST:
        MUST(fns.cuMemcpyHtoDAsync(k->target, k->host, bytes, s));
        break;
    case OP_EMPTY:
        launch_1d(k->b->empty, 1, 32, s, NULL);
        break;
    case OP_LARGE:
        launch_1d(k->b->large, 1, 32, s, (void *[]){no_words});
        break;
    }
}

static uint64_t between(const struct bench *b, int from, int to)
{
    float ms = 0;

    MUST(fns.cuEventElapsedTime(&ms, b->events[from], b->events[to]));
    return (uint64_t)((double)ms * 1e6);
}

/* Appends a sample a set. */
static void pass_each(const struct work *k, enum op op, uint32_t *n)
{
    struct bench *b = k->b;

    gate(b, b->out);
    for (uint32_t set = 0; set < k->t->n_sets; set++) {
        MUST(drv.cuEventRecord(b->events[2 * set], b->out));
        do_op(k, op, set);
        MUST(drv.cuEventRecord(b->events[2 * set + 1], b->out));
    }
    MUST(drv.cuStreamSynchronize(b->out));
    for (uint32_t set = 0; set < k->t->n_sets && *n < SAMPLES_MAX; set++) {
        samples[(*n)++] = between(b, 2 * (int)set, 2 * (int)set + 1);
    }
}

static uint64_t pass_train(const struct work *k, enum op op)
{
    struct bench *b = k->b;

    gate(b, b->out);
    MUST(drv.cuEventRecord(b->events[0], b->out));
    for (uint32_t set = 0; set < k->t->n_sets; set++) {
        do_op(k, op, set);
    }
    MUST(drv.cuEventRecord(b->events[1], b->out));
    MUST(drv.cuStreamSynchronize(b->out));
    return between(b, 0, 1) / (k->t->n_sets > 0 ? k->t->n_sets : 1);
}

static void drop_all(const struct work *k)
{
    for (uint32_t set = 0; set < k->t->n_sets; set++) {
        launch_drop(k->b, k->t, set);
    }
}

/* Stash and restore of all sets, once; every second time in a train. */
void time_kernels(struct bench *b, struct tensors *t, const struct ps_shape *shape,
                  uint32_t repeats, struct times *out)
{
    static uint64_t stash_samples[SAMPLES_MAX];
    const struct work k = {b, t, shape, NULL, 0};
    const uint64_t wrong_before = n_errors(b);
    uint64_t trains[2][64];
    uint32_t n_stash = 0;
    uint32_t n_restore = 0;
    uint64_t wrong_ledgers = 0;

    repeats = repeats < 64 ? repeats : 64;
    for (uint32_t i = 0; i < repeats; i++) {
        uint32_t n = 0;

        memset(t->ledgers, 0xff, (size_t)t->n_sets * t->what.n_tensors * sizeof(uint64_t));
        pass_each(&k, OP_STASH, &n);
        wrong_ledgers += ledgers_right(t) ? 0 : 1;
        for (uint32_t s = 0; i > 0 && s < n && n_stash < SAMPLES_MAX; s++) {
            stash_samples[n_stash++] = samples[s];
        }
        drop_all(&k);
        trains[0][i] = pass_train(&k, OP_STASH);
        tensors_poison(t, b);
        trains[1][i] = pass_train(&k, OP_RESTORE);
        tensors_check(t, b);
        tensors_poison(t, b);
        if (i == 0) {
            n_restore = 0;
        }
        pass_each(&k, OP_RESTORE, &n_restore);
        if (i == 0 && repeats > 1) {
            n_restore = 0;
        }
        tensors_check(t, b);
        drop_all(&k);
    }
    out->restore = stats_of(samples, n_restore);
    out->stash = stats_of(stash_samples, n_stash);
    out->stash_train = stats_of(trains[0], repeats).median;
    out->restore_train = stats_of(trains[1], repeats).median;
    out->wrong = n_errors(b) - wrong_before + wrong_ledgers;
}

static struct stats time_op(const struct work *k, enum op op, uint32_t repeats)
{
    uint32_t n = 0;

    pass_each(k, op, &n);
    n = 0;
    for (uint32_t i = 0; i < repeats; i++) {
        pass_each(k, op, &n);
    }
    return stats_of(samples, n);
}

void time_driver(struct bench *b, struct tensors *t, uint32_t repeats, bool host,
                 struct driver_times *out)
{
    struct work k = {b, t, NULL, NULL, device_alloc(t->region_bytes)};

    memset(out, 0, sizeof(*out));
    out->copy = time_op(&k, OP_COPY, repeats);
    out->copy_train = pass_train(&k, OP_COPY);
    out->fill = time_op(&k, OP_FILL, repeats);
    out->empty = time_op(&k, OP_EMPTY, repeats);
    out->large = time_op(&k, OP_LARGE, repeats);
    if (host) {
        MUST(drv.cuMemHostAlloc((void **)&k.host, t->set_bytes, 0));
        out->to_host = time_op(&k, OP_TO_HOST, repeats);
        out->from_host = time_op(&k, OP_FROM_HOST, repeats);
        MUST(drv.cuMemFreeHost(k.host));
    }
    MUST(fns.cuMemFree(k.target));
}
