/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pagedstash advise`: what the metrics of a job say should be set otherwise. Of each kind of advice the process where
 * it matters most speaks.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <json-c/json.h>

#include "policy/advice.h"
#include "policy/base/json.h"
#include "tools/cmd.h"
#include "tools/metrics.h"

static const char *const kind_names[PS_ADVICE_KINDS] = {
    [PS_ADVICE_OVER_CAPACITY] = "over_capacity",
    [PS_ADVICE_CAPACITY] = "capacity",
    [PS_ADVICE_BUDGET] = "budget",
    [PS_ADVICE_SPILL] = "spill",
    [PS_ADVICE_PAGES] = "pages",
    [PS_ADVICE_RESIDENT] = "resident",
    [PS_ADVICE_PLAN] = "plan",
};

struct advice {
    const struct ps_metrics_process *by; /* NULL: none of the kind */
    uint64_t weight;
    size_t n; /* processes that say it */
    char line[PS_ADVICE_LINE_MAX];
};

struct gathering {
    struct advice of[PS_ADVICE_KINDS];
    const struct ps_metrics_process *now, *counted[PS_ADVICE_KINDS];
};

static void keep(void *arg, enum ps_advice kind, uint64_t weight, const char *line)
{
    struct gathering *g = arg;
    struct advice *a = &g->of[kind];

    a->n += g->counted[kind] != g->now; /* several regions of one process are one */
    g->counted[kind] = g->now;
    if (a->by == NULL || weight > a->weight) {
        a->by = g->now;
        a->weight = weight;
        snprintf(a->line, sizeof(a->line), "%s", line);
    }
}

static void read_regions(const struct ps_metrics_process *p, struct ps_advice_facts *f)
{
    struct json_object *regions;

    if (!json_object_object_get_ex(p->line, "regions", &regions) ||
        !json_object_is_type(regions, json_type_array)) {
        return;
    }
    const size_t n = json_object_array_length(regions);

    for (size_t i = 0; i < n && f->n_regions < PS_ADVICE_REGIONS_MAX; i++) {
        struct json_object *from = json_object_array_get_idx(regions, i);
        struct ps_advice_region *r = &f->regions[f->n_regions];

        if (!json_object_is_type(from, json_type_object)) {
            continue;
        }
        f->n_regions++;
        snprintf(r->name, sizeof(r->name), "%s", ps_metrics_text(from, "name"));
        r->capacity = ps_metrics_number(from, "capacity");
        r->balanced = ps_metrics_number(from, "balanced");
        r->needed = ps_metrics_number(from, "needed");
        r->n_over = ps_metrics_number(from, "n_over");
        r->used_ppm = ps_metrics_number(from, "used_ppm");
    }
}

static void gather(const struct ps_metrics *m, struct gathering *g)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct ps_metrics_process *p = &m->processes[i];
        struct ps_advice_facts f = {
            .limit_factor_percent = ps_metrics_number(p->line, "limit_factor_percent"),
            .limit_is_largest = ps_metrics_number(p->line, "limit_is_largest"),
        };

#define PS_FACT(_name) f._name = ps_metrics_counter(p, #_name);
        PS_ADVICE_COUNTERS
#undef PS_FACT
        read_regions(p, &f);
        g->now = p;
        ps_advise(&f, keep, g);
    }
}

static void print_text(const struct ps_metrics *m, const struct gathering *g)
{
    unsigned n = 0;

    for (int k = 0; k < PS_ADVICE_KINDS; k++) {
        const struct advice *a = &g->of[k];

        if (a->by == NULL) {
            continue;
        }
        n++;
        if (a->by->rank >= 0) {
            printf("rank %" PRId64, a->by->rank);
        } else {
            printf("%s:%" PRId64, a->by->host, a->by->pid);
        }
        if (a->n > 1) {
            printf(" (the worst of %zu)", a->n);
        }
        printf(": %s\n", a->line);
    }
    if (n == 0) {
        printf("nothing to advise, of %zu process%s\n", m->n, m->n == 1 ? "" : "es");
    }
}

static bool print_json(const struct gathering *g)
{
    char buf[4096];
    struct ps_json j;

    ps_json_init(&j, buf, sizeof(buf), STDOUT_FILENO);
    ps_json_open(&j, NULL, '{');
    ps_json_open(&j, "advice", '[');
    for (int k = 0; k < PS_ADVICE_KINDS; k++) {
        const struct advice *a = &g->of[k];

        if (a->by == NULL) {
            continue;
        }
        ps_json_open(&j, NULL, '{');
        ps_json_string(&j, "kind", kind_names[k]);
        ps_json_i64(&j, "rank", a->by->rank);
        ps_json_string(&j, "host", a->by->host);
        ps_json_i64(&j, "pid", a->by->pid);
        ps_json_u64(&j, "n_processes", a->n);
        ps_json_string(&j, "text", a->line);
        ps_json_close(&j, '}');
    }
    ps_json_close(&j, ']');
    ps_json_close(&j, '}');
    return ps_json_finish(&j);
}

static void print_help(void)
{
    puts(
        "Usage: pagedstash advise [--json] DIR|FILE...\n\n"
        "Reads the metrics of a job (of `pagedstash run --metrics=DIR`) and says what should be\n"
        "set otherwise, with numbers: capacities, budgets, pages, steps. Of each kind the process\n"
        "where it matters most speaks.\n\n"
        "  --json  one JSON object\n"
        "  --help  this text\n\n"
        "Example:\n"
        "  pagedstash run --metrics=/tmp/m -- python train.py\n"
        "  pagedstash advise /tmp/m");
}

int cmd_advise(int argc, char **argv)
{
    static const struct option flags[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    struct ps_metrics metrics;
    static struct gathering g;
    bool json = false;
    int code;

    while ((code = getopt_long(argc, argv, "+h", flags, NULL)) != -1) {
        if (code == 'h') {
            print_help();
            return 0;
        }
        if (code != 'j') {
            return PS_EXIT_USAGE;
        }
        json = true;
    }
    if (optind == argc) {
        fputs("pagedstash advise: no folder of metrics; see pagedstash advise --help\n", stderr);
        return PS_EXIT_USAGE;
    }
    if (!ps_metrics_read("pagedstash advise", argv + optind, argc - optind, &metrics)) {
        return 1;
    }
    bool ok = true;

    gather(&metrics, &g);
    if (json) {
        ok = print_json(&g);
    } else {
        print_text(&metrics, &g);
    }
    ps_metrics_free(&metrics);
    return ok && fflush(stdout) == 0 ? 0 : 1;
}
