/* SPDX-License-Identifier: Apache-2.0 */
/* See metrics.h. The process that is measured finds the folder in the setting. */
#include "tests/bench/launch/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

#define LINE_BYTES 8192

static char line[LINE_BYTES];

static void fail(const char *why)
{
    fprintf(stderr, "launch_cost: %s\n", why);
    exit(EXIT_FAILURE);
}

void bench_metrics_prepare(void)
{
    char folder[] = "/tmp/launch_cost.XXXXXX";

    if (mkdtemp(folder) == NULL || setenv("PAGEDSTASH_METRICS", folder, 1) != 0 ||
        setenv("PAGEDSTASH_METRICS_RANGES", BENCH_MARK, 1) != 0) {
        fail("cannot make a folder for metrics");
    }
}

static void path_of(char *buf, size_t size, pid_t pid)
{
    char host[64] = "";

    gethostname(host, sizeof(host) - 1);
    snprintf(buf, size, "%s/pagedstash-%s-%d.jsonl", getenv("PAGEDSTASH_METRICS"), host, (int)pid);
}

void bench_metrics_read(void)
{
    char path[512];

    nvtxRangePushA(BENCH_MARK);
    nvtxRangePop();
    path_of(path, sizeof(path), getpid());
    FILE *const f = fopen(path, "re");

    line[0] = '\0';
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
    }
    if (f == NULL || strchr(line, '\n') == NULL) {
        fail("the library writes no metrics: are its ranges seen?");
    }
    fclose(f);
}

bool bench_metrics_captured(void)
{
    return strstr(line, "\"phase\":\"captured\"") != NULL;
}

uint64_t bench_metrics_counter(const char *name)
{
    char key[80];

    snprintf(key, sizeof(key), "\"%s\":", name);
    const char *const at = strstr(line, key);

    if (at == NULL) {
        fail("a counter is missing from the metrics");
    }
    return strtoull(at + strlen(key), NULL, 10);
}

void bench_metrics_remove(pid_t pid)
{
    char path[512];

    const char *const folder = getenv("PAGEDSTASH_METRICS");

    path_of(path, sizeof(path), pid);
    unlink(path);
    if (folder != NULL) {
        rmdir(folder);
    }
}
