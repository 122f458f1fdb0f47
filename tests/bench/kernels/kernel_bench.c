/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stash kernels on a GPU beside the driver's own copies and beside a matrix product: one JSON object on standard
 * output, a table on standard error. Exit 0 if every byte and ledger was right, 1 if not, 77 where there is no device.
 *
 * --quick: what docs/benchmarks/kernels.md sets as goals; below a minute. Without: sizes, pages, contents and numbers
 * of tensors as well; below four. --shapes: how launches of other shapes do. One thread.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/kernels/bench.h"

#define KB    1024u
#define MB    (UINT64_C(1) << 20)
#define N(_a) (sizeof(_a) / sizeof((_a)[0]))

enum mode { MODE_FULL, MODE_QUICK, MODE_SHAPES };

static struct report report = {.repeats = 8};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#define CASE(_bytes, _n, _page, _uniform)                                                          \
    {                                                                                              \
        (_bytes), (_n), (_page), (_uniform), false, false, false                                   \
    }
static const struct shape_case large = CASE(448 * MB, 1, 256 * KB, 0);
static const struct shape_case half = CASE(448 * MB, 1, 256 * KB, 500);
static const struct shape_case seven = CASE(7 * MB, 1, 256 * KB, 0);
static const struct shape_case eight = CASE(4 * MB, 8, 256 * KB, 0);
static const struct shape_case row = CASE(256 * MB, 1, 256 * KB, 0);
static const struct shape_case host = {448 * MB, 1, 256 * KB, 0, false, true, false};

static const struct shapes as_it_is = {NULL, 0};

/* ---- goals ---- */

static unsigned n_goals, n_met;

static void goal(const char *what, double value, double limit, bool at_least)
{
    const bool met = at_least ? value >= limit : value <= limit;

    n_goals++;
    n_met += met;
    ps_json_open(&report.json, NULL, '{');
    ps_json_string(&report.json, "goal", what);
    ps_json_u64(&report.json, "value_thousandths", (uint64_t)(value * 1000));
    ps_json_u64(&report.json, "limit_thousandths", (uint64_t)(limit * 1000));
    ps_json_bool(&report.json, "met", met);
    ps_json_close(&report.json, '}');
    fprintf(stderr, "  %-66s %8.2f, %s %.0f: %s\n", what, value, at_least ? "at least" : "at most",
            limit, met ? "met" : "missed");
}

struct measured {
    struct outcome large, half, seven, eight, host;
    struct beside device[2], spot[2],
        link[4]; /* link: a kernel out and in, the copy engine out and in */
    bool product;
};

static void goals(const struct measured *m)
{
    fprintf(stderr, "\n");
    ps_json_open(&report.json, "goals", '[');
    goal("448 MiB: stash, % of the driver's copy", m->large.stash_percent, 95, true);
    goal("448 MiB: restore, %", m->large.restore_percent, 95, true);
    goal("448 MiB, half uniform: stash, %", m->half.stash_percent, 95, true);
    goal("448 MiB, half uniform: restore, %", m->half.restore_percent, 95, true);
    goal("7 MiB: stash, us", (double)m->seven.times.stash.median * 1e-3, 9, false);
    goal("7 MiB: restore, us", (double)m->seven.times.restore.median * 1e-3, 9, false);
    goal("4 MiB in 8 tensors: stash, us", (double)m->eight.times.stash.median * 1e-3, 10, false);
    goal("4 MiB in 8 tensors: restore, us", (double)m->eight.times.restore.median * 1e-3, 10,
         false);
    goal("to the host: % of the driver's pinned copy", m->host.stash_percent, 90, true);
    goal("from the host: %", m->host.restore_percent, 90, true);
    for (int k = 0; k < 2 && m->product; k++) {
        const struct beside *d = &m->device[k];

        goal(k == 0 ? "beside a product: stash, GB/s" : "beside a product: restore, GB/s",
             (double)d->payload_mb_s * 1e-3, 220, true);
        goal("  and the product is longer by %", (double)d->slow_permille / 10, 8, false);
    }
    for (int k = 0; k < 4 && m->product; k++) {
        static const char *const names[] = {
            "beside a product, a kernel to the host: % of the copy engine's",
            "beside a product, a kernel from the host: %",
            "beside a product, the copy engine to the host: %",
            "beside a product, the copy engine from the host: %"};
        const struct beside *l = &m->link[k];

        goal(names[k], (double)l->payload_mb_s * 100 / (double)m->link[2 + k % 2].quiet_mb_s, 90,
             true);
        goal("  and the product is longer by %", (double)l->slow_permille / 10, 4, false);
    }
    ps_json_close(&report.json, ']');
    fprintf(stderr, "%u of %u goals met\n", n_met, n_goals);
}

/* ---- sweeps ---- */

static void sweep(struct bench *b)
{
    static const uint64_t sizes[] = {4 * KB,  64 * KB,  512 * KB, 2 * MB,   7 * MB,
                                     32 * MB, 128 * MB, 448 * MB, 4096 * MB};
    static const uint32_t pages[] = {16 * KB, 64 * KB, 256 * KB, 2048 * KB};
    static const uint32_t uniform[] = {0, 250, 500, 750, 1000};
    static const uint32_t numbers[] = {1, 2, 8, 24, PS_BATCH_MAX};
    struct outcome o;

    for (size_t i = 0; i < N(sizes); i++) {
        for (size_t p = 0; p < N(pages); p++) {
            const struct shape_case c = CASE(sizes[i], 1, pages[p], 0);

            report_case(&report, b, &c, &as_it_is, &o);
        }
    }
    for (size_t u = 0; u < N(uniform); u++) {
        for (int ragged = 0; ragged < 2; ragged++) {
            struct shape_case c = CASE(448 * MB, 6, 256 * KB, uniform[u]);

            c.ragged = ragged != 0;
            report_case(&report, b, &c, &as_it_is, &o);
        }
    }
    for (size_t n = 0; n < N(numbers); n++) {
        for (int ragged = 0; ragged < 2; ragged++) {
            struct shape_case c = CASE(32 * MB, numbers[n], 256 * KB, 300);

            c.ragged = ragged != 0;
            report_case(&report, b, &c, &as_it_is, &o);
        }
    }
}

#define V(_blocks, _slots, _chunk, _unit)                                                          \
    {                                                                                              \
        (_blocks), (_unit)*KB, (_chunk)*KB, (_slots)                                               \
    }
static const struct ps_shape fast_shapes[] = {
    V(1056, 6, 4, 32),   V(1056, 4, 4, 32),    V(1056, 6, 4, 16), V(1056, 6, 4, 8),
    V(1056, 6, 4, 2048), V(528, 12, 4, 32),    V(528, 6, 8, 32),  V(528, 6, 8, 16),
    V(528, 3, 16, 32),   V(528, 6, 4, 32),     V(264, 6, 16, 32), V(264, 6, 8, 32),
    V(132, 12, 16, 32),  V(132, 12, 16, 2048), V(132, 8, 8, 32),  V(0, 2, 32, 32),
    V(0, 2, 16, 16),     V(0, 2, 8, 8),        V(0, 4, 4, 16),    V(0, 4, 8, 32),
    V(1452, 4, 4, 32),   V(1848, 3, 4, 32),    V(2112, 4, 2, 16), V(1056, 6, 4, 64),
    V(1434, 4, 4, 32),   V(1024, 6, 4, 32),    V(1792, 3, 4, 32), V(1188, 5, 4, 32),
    V(924, 3, 8, 32),    V(924, 3, 8, 16),     V(1320, 5, 4, 16), V(660, 4, 8, 32),
};
static const struct ps_shape small_shapes[] = {
    V(0, 2, 8, 8),  V(0, 3, 4, 8),   V(0, 2, 16, 16),   V(0, 3, 8, 16),
    V(0, 5, 4, 16), V(0, 3, 16, 32), V(0, 5, 8, 32),    V(0, 9, 4, 32),
    V(0, 5, 2, 8),  V(264, 4, 8, 8), V(264, 4, 16, 32), V(132, 6, 16, 32),
};
static const struct ps_shape quiet_shapes[] = {
    V(132, 4, 4, 32), V(132, 4, 4, 2048), V(132, 3, 4, 32), V(132, 2, 4, 32), V(132, 6, 4, 32),
    V(132, 8, 4, 32), V(132, 4, 8, 32),   V(132, 3, 8, 32), V(132, 4, 2, 32), V(264, 2, 4, 32),
    V(264, 3, 2, 32), V(264, 4, 4, 32),   V(0, 2, 4, 32),   V(66, 8, 4, 32),  V(33, 8, 4, 32),
};
static const struct ps_shape link_shapes[] = {
    V(1, 8, 16, 2048), V(2, 8, 8, 2048), V(2, 8, 16, 2048), V(4, 6, 4, 2048),  V(4, 6, 8, 2048),
    V(8, 4, 4, 2048),  V(8, 6, 4, 2048), V(16, 4, 4, 2048), V(66, 2, 2, 2048), V(132, 4, 4, 32),
};

/* Units are no matter here. */
static const struct ps_shape out_shapes[] = {
    V(1, 8, 4, 0), V(2, 8, 4, 0), V(2, 4, 8, 0), V(4, 8, 4, 0),
    V(4, 4, 8, 0), V(8, 4, 4, 0), V(8, 8, 4, 0), V(16, 4, 4, 0),
};
static const struct ps_shape in_shapes[] = {
    V(2, 8, 4, 0), V(4, 8, 4, 0),  V(4, 4, 8, 0),  V(8, 8, 4, 0),
    V(8, 4, 8, 0), V(16, 4, 4, 0), V(66, 4, 1, 0), V(132, 2, 1, 0),
};

static const struct shapes link_all_ways[] = {{out_shapes, N(out_shapes)},
                                              {in_shapes, N(in_shapes)}};
static const struct shapes as_it_is_both[] = {{NULL, 0}, {NULL, 0}};
static const struct shapes fast_all = {fast_shapes, N(fast_shapes)};
static const struct shapes small_all = {small_shapes, N(small_shapes)};
static const struct shapes quiet_all = {quiet_shapes, N(quiet_shapes)};
static const struct shapes link_all = {link_shapes, N(link_shapes)};

static void compare_shapes(struct bench *b)
{
    static const struct shape_case more[] = {
        CASE(448 * MB, 1, 256 * KB, 500), CASE(448 * MB, 1, 2048 * KB, 0),
        CASE(448 * MB, 1, 16 * KB, 500),  CASE(4096 * MB, 1, 256 * KB, 0),
        CASE(64 * MB, 6, 256 * KB, 0),    {448 * MB, 1, 256 * KB, 0, false, false, true},
    };
    struct outcome o;

    report_case(&report, b, &large, &fast_all, &o);
    report_case(&report, b, &seven, &small_all, &o);
    report_case(&report, b, &eight, &small_all, &o);
    for (size_t i = 0; i < N(more); i++) {
        report_case(&report, b, &more[i], &fast_all, &o);
    }
    report_case(&report, b, &host, &link_all, &o);
}

static void beside(struct bench *b, const char *cublas, enum mode mode, struct measured *m)
{
    struct product *p = product_create(b, cublas);
    const bool shapes = mode == MODE_SHAPES;

    m->product = p != NULL;
    if (p == NULL) {
        return;
    }
    ps_json_open(&report.json, "product", '{');
    product_describe(p, &report.json);
    ps_json_open(&report.json, "beside", '[');
    report_beside(&report, b, p, &large, shapes ? &quiet_all : &as_it_is, m->device);
    report_beside(&report, b, p, &host, shapes ? &link_all : &as_it_is, m->spot);
    report_link(&report, b, p, &row, shapes ? link_all_ways : as_it_is_both, m->link);
    ps_json_close(&report.json, ']');
    ps_json_close(&report.json, '}');
    product_destroy(p);
}

static void run(struct bench *b, const char *cublas, enum mode mode)
{
    static struct measured m;
    const double start = now();
    const uint64_t seed = b->seed;

    bench_init(b);
    ps_json_open(&report.json, NULL, '{');
    ps_json_string(&report.json, "device", b->device);
    ps_json_u64(&report.json, "multiprocessors", b->n_multiprocessors);
    ps_json_u64(&report.json, "seed", seed);
    ps_json_open(&report.json, "cases", '[');
    if (mode == MODE_SHAPES) {
        compare_shapes(b);
    } else {
        report_case(&report, b, &large, &as_it_is, &m.large);
        report_case(&report, b, &half, &as_it_is, &m.half);
        report_case(&report, b, &seven, &as_it_is, &m.seven);
        report_case(&report, b, &eight, &as_it_is, &m.eight);
        report_case(&report, b, &host, &as_it_is, &m.host);
    }
    if (mode == MODE_FULL) {
        sweep(b);
    }
    ps_json_close(&report.json, ']');
    beside(b, cublas, mode, &m);
    if (mode != MODE_SHAPES) {
        goals(&m);
    }
    ps_json_u64(&report.json, "wrong", report.wrong);
    ps_json_u64(&report.json, "milliseconds", (uint64_t)((now() - start) * 1e3));
    ps_json_close(&report.json, '}');
    fprintf(stderr, "after %.1f s, %llu wrong\n", now() - start, (unsigned long long)report.wrong);
}

int main(int argc, char **argv)
{
    static char buffer[65536];
    static struct bench b;
    const char *cublas = "libcublas.so.13";
    enum mode mode = MODE_FULL;
    const struct option table[] = {
        {"cublas", required_argument, NULL, 'c'},  {"seed", required_argument, NULL, 's'},
        {"repeats", required_argument, NULL, 'r'}, {"quick", no_argument, NULL, 'q'},
        {"shapes", no_argument, NULL, 'v'},        {NULL, 0, NULL, 0},
    };
    int c;

    b.seed = (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
    while ((c = getopt_long(argc, argv, "", table, NULL)) != -1) {
        if (c == 'c') {
            cublas = optarg;
        } else if (c == 's') {
            b.seed = strtoull(optarg, NULL, 0);
        } else if (c == 'r') {
            report.repeats = (uint32_t)strtoul(optarg, NULL, 0);
        } else if (c == 'q') {
            mode = MODE_QUICK;
        } else if (c == 'v') {
            mode = MODE_SHAPES;
        } else {
            die("usage: kernel_bench [--quick | --shapes] [--cublas PATH] [--seed N] [--repeats N]");
        }
    }
    ps_json_init(&report.json, buffer, sizeof(buffer), 1);
    run(&b, cublas, mode);
    return ps_json_finish(&report.json) && report.wrong == 0 ? 0 : 1;
}
