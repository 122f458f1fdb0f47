/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the metrics files of a job (PAGEDSTASH_METRICS): what each process counted by its end. One thread. Needs
 * json-c.
 */
#ifndef PS_TOOLS_METRICS_H
#define PS_TOOLS_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_object;

struct ps_metrics_process {
    struct json_object *line;     /* the summary; where there is none, the last line */
    struct json_object *counters; /* of it */
    const char *host;
    int64_t rank, pid; /* rank -1: it has none */
    bool ended;        /* it has written its summary */
};

struct ps_metrics {
    struct ps_metrics_process *processes; /* by rank, then pid */
    size_t n;
};

/*
 * paths: files, or folders whose files that end in .jsonl count. False: something could not be read, or there is
 * nothing; said on stderr, beginning with `who`.
 */
bool ps_metrics_read(const char *who, char *const *paths, int n, struct ps_metrics *metrics_p);
void ps_metrics_free(struct ps_metrics *metrics);
/* 0 if there is no such counter (an older library). */
uint64_t ps_metrics_counter(const struct ps_metrics_process *p, const char *name);
uint64_t ps_metrics_number(struct json_object *object, const char *name);
const char *ps_metrics_text(struct json_object *object, const char *name);

#endif
