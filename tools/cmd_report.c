/* SPDX-License-Identifier: Apache-2.0 */
/* `pagedstash report`: what each process of a job counted, and the sum, from its metrics. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <json-c/json.h>

#include "tools/cmd.h"
#include "tools/metrics.h"

enum unit { UNIT_NUMBER, UNIT_MIB };

static const struct column {
    const char *title, *counter;
    enum unit unit;
    bool most; /* the last row is the most instead of the sum */
} columns[] = {
    {"steps", "steps", UNIT_NUMBER, true},
    {"tensors", "tensors", UNIT_NUMBER, false},
    {"out MiB", "bytes_stashed", UNIT_MIB, false},
    {"back MiB", "bytes_restored", UNIT_MIB, false},
    {"host MiB", "bytes_spilled", UNIT_MIB, false},
    {"places MiB", "place_bytes_peak", UNIT_MIB, true},
    {"pages MiB", "pool_bytes_peak", UNIT_MIB, true},
    {"resident", "kept_resident", UNIT_NUMBER, false},
    {"unplanned", "unplanned_touches", UNIT_NUMBER, false},
    {"misses", "plan_misses", UNIT_NUMBER, false},
    {"over", "over_budget", UNIT_NUMBER, false},
    {"errors", "errors", UNIT_NUMBER, false},
};
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))

static uint64_t shown(const struct column *c, uint64_t value)
{
    return c->unit == UNIT_MIB ? (value + (UINT64_C(1) << 19)) >> 20 : value;
}

static void print_row(const char *name, const uint64_t values[N_COLUMNS])
{
    printf("%-10s", name);
    for (size_t i = 0; i < N_COLUMNS; i++) {
        printf(" %10" PRIu64, shown(&columns[i], values[i]));
    }
    putchar('\n');
}

static void print_text(const struct ps_metrics *m)
{
    uint64_t all[N_COLUMNS] = {0};
    size_t n_open = 0;

    printf("%-10s", "rank");
    for (size_t i = 0; i < N_COLUMNS; i++) {
        printf(" %10s", columns[i].title);
    }
    putchar('\n');
    for (size_t k = 0; k < m->n; k++) {
        const struct ps_metrics_process *p = &m->processes[k];
        uint64_t values[N_COLUMNS];
        char name[32];

        for (size_t i = 0; i < N_COLUMNS; i++) {
            values[i] = ps_metrics_counter(p, columns[i].counter);
            if (!columns[i].most) {
                all[i] += values[i];
            } else if (values[i] > all[i]) {
                all[i] = values[i];
            }
        }
        snprintf(name, sizeof(name), p->rank >= 0 ? "%" PRId64 "%s" : "pid %" PRId64 "%s",
                 p->rank >= 0 ? p->rank : p->pid, p->ended ? "" : "*");
        print_row(name, values);
        n_open += !p->ended;
    }
    if (m->n > 1) {
        print_row("all", all);
    }
    if (n_open > 0) {
        puts("* has not written its summary: the counts are those of its last line");
    }
}

/* Every counter of every process. */
static void print_csv(const struct ps_metrics *m)
{
    fputs("rank,host,pid,ended", stdout);
    struct json_object_iterator end = json_object_iter_end(m->processes[0].counters);
    for (struct json_object_iterator at = json_object_iter_begin(m->processes[0].counters);
         !json_object_iter_equal(&at, &end); json_object_iter_next(&at)) {
        printf(",%s", json_object_iter_peek_name(&at));
    }
    putchar('\n');
    for (size_t k = 0; k < m->n; k++) {
        const struct ps_metrics_process *p = &m->processes[k];

        printf("%" PRId64 ",%s,%" PRId64 ",%d", p->rank, p->host, p->pid, p->ended);
        for (struct json_object_iterator at = json_object_iter_begin(m->processes[0].counters);
             !json_object_iter_equal(&at, &end); json_object_iter_next(&at)) {
            printf(",%" PRIu64, ps_metrics_counter(p, json_object_iter_peek_name(&at)));
        }
        putchar('\n');
    }
}

static void print_json(const struct ps_metrics *m)
{
    struct json_object *all = json_object_new_object();
    struct json_object *processes = json_object_new_array();
    struct json_object *sum = json_object_new_object();

    for (size_t k = 0; k < m->n; k++) {
        json_object_array_add(processes, json_object_get(m->processes[k].line));
        struct json_object_iterator end = json_object_iter_end(m->processes[k].counters);
        for (struct json_object_iterator at = json_object_iter_begin(m->processes[k].counters);
             !json_object_iter_equal(&at, &end); json_object_iter_next(&at)) {
            const char *name = json_object_iter_peek_name(&at);

            json_object_object_add(
                sum, name,
                json_object_new_uint64(ps_metrics_number(sum, name) +
                                       json_object_get_uint64(json_object_iter_peek_value(&at))));
        }
    }
    json_object_object_add(all, "processes", processes);
    json_object_object_add(all, "sum", sum);
    puts(json_object_to_json_string_ext(all, JSON_C_TO_STRING_PLAIN));
    json_object_put(all);
}

static void print_help(void)
{
    puts("Usage: pagedstash report [--format=text|json|csv] DIR|FILE...\n\n"
         "Prints what the processes of a job counted, from its metrics (of\n"
         "`pagedstash run --metrics=DIR`): a row for each rank, and the sum; of steps and of\n"
         "device memory (places, pages) the most instead. csv and json hold all counters.\n\n"
         "  --format=<text|json|csv>  default 'text'\n"
         "  --help                    this text\n\n"
         "Example:\n"
         "  pagedstash run --metrics=/tmp/m -- python train.py\n"
         "  pagedstash report --format=csv /tmp/m > counters.csv");
}

int cmd_report(int argc, char **argv)
{
    static const struct option flags[] = {{"format", required_argument, NULL, 'f'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    static const struct {
        const char *name;
        void (*print)(const struct ps_metrics *m);
    } formats[] = {{"text", print_text}, {"json", print_json}, {"csv", print_csv}};
    void (*print)(const struct ps_metrics *m) = print_text;
    struct ps_metrics metrics;
    int code;

    while ((code = getopt_long(argc, argv, "+h", flags, NULL)) != -1) {
        if (code == 'h') {
            print_help();
            return 0;
        }
        if (code != 'f') {
            return PS_EXIT_USAGE;
        }
        print = NULL;
        for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
            print = strcmp(optarg, formats[i].name) == 0 ? formats[i].print : print;
        }
        if (print == NULL) {
            fprintf(stderr, "pagedstash report: unknown format '%s' (want <text|json|csv>)\n",
                    optarg);
            return PS_EXIT_USAGE;
        }
    }
    if (optind == argc) {
        fputs("pagedstash report: no folder of metrics; see pagedstash report --help\n", stderr);
        return PS_EXIT_USAGE;
    }
    if (!ps_metrics_read("pagedstash report", argv + optind, argc - optind, &metrics)) {
        return 1;
    }
    print(&metrics);
    ps_metrics_free(&metrics);
    return fflush(stdout) == 0 ? 0 : 1;
}
