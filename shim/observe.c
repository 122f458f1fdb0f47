/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told at exit: the metrics file (PAGEDSTASH_METRICS), a summary at info level, advice. No driver call and no
 * lock: other threads may still run.
 */
#include "shim/observe.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "policy/base/json.h"
#include "policy/base/log.h"
#include "policy/base/rank.h"
#include "shim/driver.h"

struct ps_counters ps_counters;

static char stray_range[64];      /* the first range that matched nothing; written once */
static _Atomic int stray_written; /* 0, 1 being written, 2 there: pairs with itself */

void ps_counter_peak(_Atomic uint64_t *peak, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(peak, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak_explicit(
                               peak, &seen, value, memory_order_relaxed, memory_order_relaxed)) {
    }
}

void ps_observe_forked(void)
{
    memset(&ps_counters, 0, sizeof(ps_counters));
}

void ps_observe_range(const char *name)
{
    int none = 0;
    if (atomic_load_explicit(&stray_written, memory_order_relaxed) != 0 ||
        !atomic_compare_exchange_strong(&stray_written, &none, 1)) {
        return;
    }
    snprintf(stray_range, sizeof(stray_range), "%s", name);
    atomic_store(&stray_written, 2);
}

static void write_counters(struct ps_json *j)
{
    ps_json_open(j, "counters", '{');
#define PS_COUNTER(_name, _doc) ps_json_u64(j, #_name, ps_counter(_name));
    PS_COUNTERS
#undef PS_COUNTER
    ps_json_close(j, '}');
}

static void write_metrics(void)
{
    char host[64] = "";
    char path[PS_OPT_TEXT_MAX + 128];
    char buf[4096];
    struct ps_json j;

    if (gethostname(host, sizeof(host) - 1) != 0) {
        memcpy(host, "unknown", sizeof("unknown"));
    }
    snprintf(path, sizeof(path), "%s/pagedstash-%s-%d.jsonl", ps_options.metrics, host,
             (int)getpid());
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) {
        ps_warn("cannot open '%s': %m; no metrics are written", path);
        return;
    }
    ps_json_init(&j, buf, sizeof(buf), fd);
    ps_json_open(&j, NULL, '{');
    ps_json_string(&j, "type", "summary");
    ps_json_i64(&j, "schema", 1);
    ps_json_string(&j, "version", PS_VERSION);
    ps_json_string(&j, "host", host);
    ps_json_i64(&j, "pid", getpid());
    ps_json_i64(&j, "rank", ps_rank_global());
    ps_json_i64(&j, "unix_time_s", (int64_t)time(NULL));
    write_counters(&j);
    ps_json_close(&j, '}');
    if (!ps_json_finish(&j)) {
        ps_warn("cannot write '%s': the metrics are incomplete", path);
    }
    close(fd);
}

static void advise(void)
{
    if (ps_counter(async_allocs_seen) == 0 || ps_counter(region_instances) > 0) {
        return;
    }
    if (ps_counter(ranges_seen) == 0) {
        ps_warn(
            "no NVTX range was pushed, so nothing was paged: mark the expert regions (PAGEDSTASH_REGIONS='%s')",
            ps_options.regions);
        return;
    }
    ps_warn(
        "none of %llu NVTX ranges matched PAGEDSTASH_REGIONS='%s' (one was '%s'), so nothing was paged",
        (unsigned long long)ps_counter(ranges_seen), ps_options.regions,
        atomic_load(&stray_written) == 2 ? stray_range : "?");
}

void ps_observe_exit(void)
{
    /* A process that never came to CUDA has nothing to tell, and must leave no trace. */
    if (ps_counter(async_allocs_seen) == 0 && ps_counter(region_instances) == 0) {
        return;
    }
    if (ps_options.metrics[0] != '\0') {
        write_metrics();
    }
    advise();
    if (ps_counter(tensors) > 0) {
        ps_info(
            "%llu tensors taken over, %llu stashed, %llu restored; %llu MiB stored at most; %llu groups kept resident; "
            "%llu unplanned touches; %llu errors",
            (unsigned long long)ps_counter(tensors), (unsigned long long)ps_counter(stashes),
            (unsigned long long)ps_counter(restores),
            (unsigned long long)(ps_counter(valid_bytes_peak) >> 20),
            (unsigned long long)ps_counter(kept_resident),
            (unsigned long long)ps_counter(unplanned_touches),
            (unsigned long long)ps_counter(errors));
    }
}
