/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told: the metrics file (PAGEDSTASH_METRICS), a line for each range that PAGEDSTASH_METRICS_RANGES names and
 * one at exit; at exit also a summary at info level, and advice. No driver call and no lock: other threads may still
 * run. Each line is one write.
 */
#include "shim/observe.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "policy/advice.h"
#include "policy/base/json.h"
#include "policy/base/log.h"
#include "policy/base/rank.h"
#include "policy/region.h"
#include "shim/demand.h"
#include "shim/driver.h"
#include "shim/engine_int.h"

#define PERCENT (PS_FACTOR_ONE / 100)

struct ps_counters ps_counters;

static const char *const phase_names[] = {
    [PS_PHASE_BEGIN] = "begin", [PS_PHASE_CAPTURE] = "capture", [PS_PHASE_CAPTURED] = "captured"};
static _Atomic int phase; /* enum ps_phase; pairs with itself, relaxed */

static _Atomic int64_t
    would_do; /* the factor of the device that allows all that is wanted; relaxed */

static struct ps_patterns marks; /* PAGEDSTASH_METRICS_RANGES; written once */
static pthread_once_t marks_once = PTHREAD_ONCE_INIT;

static char stray_range[64];      /* the first range that matched nothing; written once */
static _Atomic int stray_written; /* 0, 1 being written, 2 there: pairs with itself */

void ps_counter_peak(_Atomic uint64_t *peak, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(peak, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak_explicit(
                               peak, &seen, value, memory_order_relaxed, memory_order_relaxed)) {
    }
}

void ps_observe_limit(uint64_t allowed, uint64_t wanted, uint64_t missing, int64_t factor)
{
    atomic_store_explicit(&ps_counters.limit_bytes, allowed, memory_order_relaxed);
    atomic_store_explicit(&ps_counters.limit_wanted_bytes, wanted, memory_order_relaxed);
    atomic_store_explicit(&ps_counters.limit_short_bytes, missing, memory_order_relaxed);
    atomic_store_explicit(&would_do, factor, memory_order_relaxed);
}

void ps_observe_forked(void)
{
    memset(&ps_counters, 0, sizeof(ps_counters));
    atomic_store_explicit(&phase, PS_PHASE_BEGIN, memory_order_relaxed);
}

void ps_observe_phase(enum ps_phase next)
{
    const int before = atomic_exchange_explicit(&phase, (int)next, memory_order_relaxed);
    if (before != (int)next) {
        ps_info("learning: %s after %s", phase_names[next], phase_names[before]);
    }
}

static const char *phase_name(void)
{
    return phase_names[atomic_load_explicit(&phase, memory_order_relaxed)];
}

static void write_counters(struct ps_json *j)
{
    ps_json_string(j, "phase", phase_name());
    ps_json_open(j, "counters", '{');
#define PS_COUNTER(_name, _doc) ps_json_u64(j, #_name, ps_counter(_name));
    PS_COUNTERS
#undef PS_COUNTER
    ps_json_u64(j, "bytes_moved", ps_counter(bytes_stashed) + ps_counter(bytes_restored));
    ps_json_close(j, '}');
}

static void host_name(char host[64])
{
    host[63] = '\0';
    if (gethostname(host, 63) != 0) {
        memcpy(host, "unknown", sizeof("unknown"));
    }
}

/* Appends the line that fill writes, in one piece. */
static void write_line(void (*fill)(struct ps_json *j, const void *arg), const void *arg)
{
    char host[64];
    char path[PS_OPT_TEXT_MAX + 128];
    char buf[8192]; /* twice what a line takes */
    struct ps_json j;

    host_name(host);
    snprintf(path, sizeof(path), "%s/pagedstash-%s-%d.jsonl", ps_options.metrics, host,
             (int)getpid());
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) {
        ps_warn_once("cannot open '%s': %m; no metrics are written", path);
        return;
    }
    ps_json_init(&j, buf, sizeof(buf), fd);
    ps_json_open(&j, NULL, '{');
    fill(&j, arg);
    write_counters(&j);
    ps_json_close(&j, '}');
    if (!ps_json_finish(&j)) {
        ps_warn_once("cannot write '%s': the metrics are incomplete", path);
    }
    close(fd);
}

/* What advice is made of, as far as it is not in the counters. */
static void write_facts(struct ps_json *j, const struct ps_advice_facts *f)
{
    ps_json_u64(j, "limit_factor_percent", f->limit_factor_percent);
    ps_json_u64(j, "limit_is_largest", f->limit_is_largest);
    ps_json_open(j, "regions", '[');
    for (uint32_t i = 0; i < f->n_regions; i++) {
        const struct ps_advice_region *r = &f->regions[i];

        ps_json_open(j, NULL, '{');
        ps_json_string(j, "name", r->name);
        ps_json_u64(j, "capacity", r->capacity);
        ps_json_u64(j, "balanced", r->balanced);
        ps_json_u64(j, "needed", r->needed);
        ps_json_u64(j, "n_over", r->n_over);
        ps_json_u64(j, "used_ppm", r->used_ppm);
        ps_json_close(j, '}');
    }
    ps_json_close(j, ']');
}

static void gather_facts(struct ps_advice_facts *f)
{
    const int64_t factor = atomic_load_explicit(&would_do, memory_order_relaxed) / PERCENT;
    struct ps_demand demands[PS_ADVICE_REGIONS_MAX];

    *f = (struct ps_advice_facts){
        .limit_factor_percent = (uint64_t)(factor < 0 ? -factor : factor),
        .limit_is_largest = factor < 0,
    };
#define PS_FACT(_name) f->_name = ps_counter(_name);
    PS_ADVICE_COUNTERS
#undef PS_FACT
    f->n_regions = ps_demand_look(demands, PS_ADVICE_REGIONS_MAX);
    for (uint32_t i = 0; i < f->n_regions; i++) {
        struct ps_advice_region *r = &f->regions[i];

        snprintf(r->name, sizeof(r->name), "%s", ps_region_name(demands[i].name));
        r->capacity = demands[i].capacity;
        r->balanced = demands[i].balanced;
        r->needed = demands[i].needed;
        r->n_over = demands[i].n_over;
        r->used_ppm = demands[i].used_ppm;
    }
}

static void fill_summary(struct ps_json *j, const void *facts)
{
    char host[64];

    host_name(host);
    ps_json_string(j, "type", "summary");
    ps_json_i64(j, "schema", 1);
    ps_json_string(j, "version", PS_VERSION);
    ps_json_string(j, "host", host);
    ps_json_i64(j, "pid", getpid());
    ps_json_i64(j, "rank", ps_rank_global());
    ps_json_i64(j, "unix_time_s", (int64_t)time(NULL));
    write_facts(j, facts);
}

static void fill_range(struct ps_json *j, const void *name)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    ps_json_string(j, "type", "range");
    ps_json_i64(j, "schema", 1);
    ps_json_string(j, "range", name);
    ps_json_i64(j, "time_ns", (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
}

static void read_marks(void)
{
    if (!ps_patterns_init(&marks, ps_options.metrics_ranges)) {
        ps_warn("PAGEDSTASH_METRICS_RANGES holds more than %d patterns: the first %u count",
                PS_PATTERNS_MAX, marks.n);
    }
}

static void note_stray(const char *name)
{
    int none = 0;
    if (atomic_load_explicit(&stray_written, memory_order_relaxed) != 0 ||
        !atomic_compare_exchange_strong(&stray_written, &none, 1)) {
        return;
    }
    snprintf(stray_range, sizeof(stray_range), "%s", name);
    atomic_store(&stray_written, 2);
}

void ps_observe_range(const char *name)
{
    char cut[PS_REGION_NAME_MAX];

    note_stray(name);
    if (ps_options.metrics[0] == '\0' || ps_options.metrics_ranges[0] == '\0') {
        return;
    }
    pthread_once(&marks_once, read_marks);
    if (ps_patterns_match(&marks, name, cut)) {
        write_line(fill_range, cut);
    }
}

static void tell_advice(void *arg, enum ps_advice kind, uint64_t weight, const char *line)
{
    (void)arg;
    (void)kind;
    (void)weight;
    ps_info("advice: %s", line);
}

static void advise(void)
{
    if (ps_options.step[0] != '\0' && ps_counter(step_ranges) == 0 && ps_counter(tensors) > 0) {
        ps_warn(
            "none of %llu NVTX ranges matched PAGEDSTASH_STEP='%s', so no step was learned: unset, steps are found",
            (unsigned long long)ps_counter(ranges_seen), ps_options.step);
    }
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
    struct ps_advice_facts facts;

    gather_facts(&facts);
    if (ps_options.metrics[0] != '\0') {
        write_line(fill_summary, &facts);
    }
    advise();
    if (ps_counter(tensors) > 0) {
        ps_advise(&facts, tell_advice, NULL);
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
