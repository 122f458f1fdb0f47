/* SPDX-License-Identifier: Apache-2.0 */
/* See report.h. */
#include "tests/bench/launch/report.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "policy/base/json.h"

#define STALE_WORDS 3

static const char *const names_of[BENCH_N_NAMED] = {
    [BENCH_NOTHING] = "nothing", [BENCH_TENSOR] = "tensor", [BENCH_STALE] = "stale"};

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

struct bench_spread bench_spread(int64_t *values, unsigned n)
{
    qsort(values, n, sizeof(*values), compare);
    return (struct bench_spread){values[n / 10], values[n / 2], values[n - 1 - n / 10]};
}

static size_t bytes_of(const struct bench_cell *c)
{
    return bench_shapes[c->shape].n_params * bench_shapes[c->shape].size;
}

size_t bench_stale_words(enum bench_shape_id shape)
{
    const size_t words = bench_shapes[shape].n_params * bench_shapes[shape].size / 8;

    return words < STALE_WORDS ? words : STALE_WORDS;
}

int64_t bench_limit(const struct bench_cell *c)
{
    const size_t bytes = bytes_of(c);

    /* A record in the legacy stream is due at every launch then: no promise but that it is told. */
    if (strncmp(c->situation, "blocking", 8) == 0) {
        return INT64_MAX;
    }
    /* A hit has no less to look at. Stale words are as good as none. */
    const int64_t hit = c->named == BENCH_TENSOR ? 300 : 0;
    const int64_t scan = bytes <= 256 ? 80 : bytes <= 4096 ? 200 : 1000;

    return hit > scan ? hit : scan;
}

static const char *name_of_limit(const struct bench_cell *c, char buf[32])
{
    if (bench_limit(c) == INT64_MAX) {
        return "";
    }
    snprintf(buf, 32, "%s %lld", c->more.p50 <= bench_limit(c) ? "<=" : "ABOVE",
             (long long)bench_limit(c));
    return buf;
}

void bench_report_table(const struct bench_report *r)
{
    printf("%s, driver %d, ns a launch, medians of %u blocks of %u\n", r->rig->device,
           r->rig->driver_version, r->pairs, r->block);
    printf("%-22s %-14s %-12s %-8s %8s %8s %8s %7s..%-7s\n", "situation", "kernel", "by", "names",
           "bare", "hooked", "more", "p10", "p90");
    for (unsigned i = 0; i < r->n; i++) {
        const struct bench_cell *c = &r->cells[i];
        char limit[32];

        printf("%-22s %-14s %-12s %-8s %8lld %8lld %8lld %7lld..%-7lld %s\n", c->situation,
               bench_shapes[c->shape].name, c->extra ? "extra" : "kernelParams", names_of[c->named],
               (long long)c->bare.p50, (long long)c->hooked.p50, (long long)c->more.p50,
               (long long)c->more.p10, (long long)c->more.p90, name_of_limit(c, limit));
    }
}

/* The same situation, size up to 256 bytes, 4 KiB or 32 KiB, and kind of word. */
static bool alike(const struct bench_cell *a, const struct bench_cell *b)
{
    return strcmp(a->situation, b->situation) == 0 && a->named == b->named &&
           (bytes_of(a) <= 256) == (bytes_of(b) <= 256) &&
           (bytes_of(a) <= 4096) == (bytes_of(b) <= 4096);
}

void bench_report_worst(const struct bench_report *r)
{
    printf("\nworst medians, ns a launch more than bare\n");
    for (unsigned i = 0; i < r->n; i++) {
        const struct bench_cell *worst = &r->cells[i];
        char limit[32];
        bool first = true;

        for (unsigned k = 0; k < r->n; k++) {
            const struct bench_cell *c = &r->cells[k];

            if (alike(c, worst)) {
                first = first && k >= i;
                worst = c->more.p50 > worst->more.p50 ? c : worst;
            }
        }
        if (first) {
            printf("%-22s %5s B %-8s %6lld  of %6lld  %-14s %s\n", worst->situation,
                   bytes_of(worst) <= 256    ? "256"
                   : bytes_of(worst) <= 4096 ? "4096"
                                             : "32760",
                   names_of[worst->named], (long long)worst->more.p50, (long long)worst->bare.p50,
                   bench_shapes[worst->shape].name, name_of_limit(worst, limit));
        }
    }
}

static void put_spread(struct ps_json *j, const char *key, const struct bench_spread *s)
{
    ps_json_open(j, key, '{');
    ps_json_i64(j, "p10", s->p10);
    ps_json_i64(j, "p50", s->p50);
    ps_json_i64(j, "p90", s->p90);
    ps_json_close(j, '}');
}

static void put_cell(struct ps_json *j, const struct bench_cell *c)
{
    const struct bench_shape *shape = &bench_shapes[c->shape];

    ps_json_open(j, NULL, '{');
    ps_json_string(j, "situation", c->situation);
    ps_json_string(j, "kernel", shape->name);
    ps_json_u64(j, "n_params", shape->n_params);
    ps_json_u64(j, "param_bytes", shape->n_params * shape->size);
    ps_json_string(j, "by", c->extra ? "extra" : "kernelParams");
    ps_json_string(j, "names", names_of[c->named]);
    put_spread(j, "bare_ns", &c->bare);
    put_spread(j, "hooked_ns", &c->hooked);
    put_spread(j, "more_ns", &c->more);
    if (bench_limit(c) == INT64_MAX) {
        ps_json_null(j, "limit_ns");
    } else {
        ps_json_i64(j, "limit_ns", bench_limit(c));
        ps_json_bool(j, "within", c->more.p50 <= bench_limit(c));
    }
    ps_json_close(j, '}');
}

/* "model name" of the first processor, or what stands in for it. */
static void processor(char *buf, size_t size)
{
    FILE *const f = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(buf, size, "unknown");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        const char *const value = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && value != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(buf, size, "%s", value + 2);
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
}

static void put_head(struct ps_json *j, const struct bench_report *r)
{
    char cpu[256];

    processor(cpu, sizeof(cpu));
    ps_json_string(j, "benchmark", "launch_cost");
    ps_json_i64(j, "unix_time_s", (int64_t)time(NULL));
    ps_json_string(j, "device", r->rig->device);
    ps_json_i64(j, "driver_version", r->rig->driver_version);
    ps_json_string(j, "processor", cpu);
    ps_json_i64(j, "processors", sysconf(_SC_NPROCESSORS_ONLN));
    ps_json_string(j, "library", r->library);
    ps_json_u64(j, "tensor_bytes", r->rig->bytes);
    ps_json_u64(j, "blocks", r->pairs);
    ps_json_u64(j, "launches_a_block", r->block);
}

void bench_report_json(const struct bench_report *r, const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    char buf[4096];
    struct ps_json j;

    ps_json_init(&j, buf, sizeof(buf), fd);
    ps_json_open(&j, NULL, '{');
    put_head(&j, r);
    ps_json_open(&j, "cells", '[');
    for (unsigned i = 0; i < r->n; i++) {
        put_cell(&j, &r->cells[i]);
    }
    ps_json_close(&j, ']');
    ps_json_close(&j, '}');
    if (fd < 0 || !ps_json_finish(&j) || close(fd) != 0) {
        fprintf(stderr, "launch_cost: cannot write '%s'\n", path);
        exit(EXIT_FAILURE);
    }
}
