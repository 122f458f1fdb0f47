/* SPDX-License-Identifier: Apache-2.0 */
/* See metrics.h. */
#include "tools/metrics.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <json-c/json.h>

#define SUFFIX ".jsonl"

struct reading {
    const char *who;
    struct ps_metrics metrics;
    size_t room;
};

uint64_t ps_metrics_number(struct json_object *object, const char *name)
{
    struct json_object *value;

    if (object == NULL || !json_object_object_get_ex(object, name, &value)) {
        return 0;
    }
    return json_object_get_uint64(value);
}

const char *ps_metrics_text(struct json_object *object, const char *name)
{
    struct json_object *value;

    if (object == NULL || !json_object_object_get_ex(object, name, &value) ||
        !json_object_is_type(value, json_type_string)) {
        return "";
    }
    return json_object_get_string(value);
}

uint64_t ps_metrics_counter(const struct ps_metrics_process *p, const char *name)
{
    return ps_metrics_number(p->counters, name);
}

/* The last whole line that is an object with counters; a summary goes before all others. */
static struct json_object *last_line(FILE *f)
{
    struct json_object *found = NULL;
    char *text = NULL;
    size_t room = 0;

    while (getline(&text, &room, f) >= 0) {
        struct json_object *line = json_tokener_parse(text);
        struct json_object *counters;

        if (line == NULL || !json_object_is_type(line, json_type_object) ||
            !json_object_object_get_ex(line, "counters", &counters)) {
            json_object_put(line);
            continue;
        }
        json_object_put(found);
        found = line;
        if (strcmp(ps_metrics_text(line, "type"), "summary") == 0) {
            break;
        }
    }
    free(text);
    return found;
}

static bool add(struct reading *r, const char *path)
{
    FILE *f = fopen(path, "re");
    struct json_object *rank = NULL;

    if (f == NULL) {
        fprintf(stderr, "%s: cannot read '%s': %s\n", r->who, path, strerror(errno));
        return false;
    }
    struct json_object *line = last_line(f);

    fclose(f);
    if (line == NULL) {
        fprintf(stderr, "%s: no line of counters in '%s'\n", r->who, path);
        return false;
    }
    if (r->metrics.n == r->room) {
        const size_t room = r->room == 0 ? 64 : 2 * r->room;
        struct ps_metrics_process *more =
            realloc(r->metrics.processes, room * sizeof(*r->metrics.processes));

        if (more == NULL) {
            json_object_put(line);
            fprintf(stderr, "%s: no memory\n", r->who);
            return false;
        }
        r->metrics.processes = more;
        r->room = room;
    }
    struct ps_metrics_process *p = &r->metrics.processes[r->metrics.n++];

    *p = (struct ps_metrics_process){.line = line, .rank = -1};
    p->ended = strcmp(ps_metrics_text(line, "type"), "summary") == 0;
    p->host = ps_metrics_text(line, "host");
    p->pid = (int64_t)ps_metrics_number(line, "pid");
    if (json_object_object_get_ex(line, "rank", &rank)) {
        p->rank = json_object_get_int64(rank);
    }
    (void)json_object_object_get_ex(line, "counters", &p->counters);
    return true;
}

static bool add_folder(struct reading *r, const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    bool ok = true;

    if (folder == NULL) {
        fprintf(stderr, "%s: cannot read '%s': %s\n", r->who, path, strerror(errno));
        return false;
    }
    while (ok && (entry = readdir(folder)) != NULL) {
        const size_t n = strlen(entry->d_name);
        char name[PATH_MAX];

        if (n > strlen(SUFFIX) && strcmp(entry->d_name + n - strlen(SUFFIX), SUFFIX) == 0 &&
            snprintf(name, sizeof(name), "%s/%s", path, entry->d_name) < (int)sizeof(name)) {
            ok = add(r, name);
        }
    }
    closedir(folder);
    return ok;
}

static int compare(const void *a, const void *b)
{
    const struct ps_metrics_process *x = a;
    const struct ps_metrics_process *y = b;

    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return (x->pid > y->pid) - (x->pid < y->pid);
}

bool ps_metrics_read(const char *who, char *const *paths, int n, struct ps_metrics *metrics_p)
{
    struct reading r = {.who = who};
    bool ok = true;

    for (int i = 0; i < n && ok; i++) {
        struct stat st;

        ok = stat(paths[i], &st) == 0 && S_ISDIR(st.st_mode) ? add_folder(&r, paths[i])
                                                             : add(&r, paths[i]);
    }
    if (ok && r.metrics.n == 0) {
        fprintf(stderr, "%s: no metrics in '%s'; `pagedstash run --metrics=DIR` writes them\n", who,
                paths[0]);
        ok = false;
    }
    if (!ok) {
        ps_metrics_free(&r.metrics);
        return false;
    }
    qsort(r.metrics.processes, r.metrics.n, sizeof(*r.metrics.processes), compare);
    *metrics_p = r.metrics;
    return true;
}

void ps_metrics_free(struct ps_metrics *metrics)
{
    for (size_t i = 0; i < metrics->n; i++) {
        json_object_put(metrics->processes[i].line);
    }
    free(metrics->processes);
    *metrics = (struct ps_metrics){0};
}
