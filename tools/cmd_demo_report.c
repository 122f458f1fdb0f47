/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the two runs of `pagedstash demo` and prints the table or the JSON object. One thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/cmd_demo.h"

/* Counters that the stash must tell; the table shows them in this order. */
static const struct {
    const char *name;
    const char *doc;
    bool bytes;
} counters[] = {
    {"bytes_stashed", "stashed", true},
    {"bytes_restored", "restored", true},
    {"valid_bytes_peak", "most in pages at once", true},
    {"uniform_pages", "uniform pages, not stored", false},
    {"kept_resident", "groups kept resident", false},
    {"unplanned_touches", "unplanned touches", false},
    {"remaps", "remaps", false},
    {"errors", "errors", false},
};
#define N_COUNTERS (sizeof(counters) / sizeof(counters[0]))

bool ps_demo_identical(const struct ps_demo_result *plain, const struct ps_demo_result *stash)
{
    if (plain->n_steps != stash->n_steps || strcmp(plain->weights, stash->weights) != 0) {
        return false;
    }
    for (int64_t i = 0; i < plain->n_steps; i++) {
        if (strcmp(plain->steps[i].loss, stash->steps[i].loss) != 0) {
            return false;
        }
    }
    return plain->n_steps > 0;
}

bool ps_demo_counter(const struct ps_demo_result *stash, const char *name, uint64_t *value_p)
{
    struct json_object *value = NULL;

    if (stash->counters == NULL || !json_object_object_get_ex(stash->counters, name, &value) ||
        !json_object_is_type(value, json_type_int)) {
        return false;
    }
    *value_p = json_object_get_uint64(value);
    return true;
}

static bool counters_complete(const struct ps_demo_result *stash)
{
    uint64_t unused;

    if (stash->counters == NULL) {
        fputs("pagedstash demo: the stash left no counters: was the library loaded?\n", stderr);
        return false;
    }
    for (size_t i = 0; i < N_COUNTERS; i++) {
        if (!ps_demo_counter(stash, counters[i].name, &unused)) {
            fprintf(stderr, "pagedstash demo: the stash does not tell '%s'\n", counters[i].name);
            return false;
        }
    }
    return true;
}

static void add_u64(struct json_object *to, const char *key, uint64_t value)
{
    json_object_object_add(to, key, json_object_new_uint64(value));
}

/* The steps whose peaks are told: the steady ones, or all when there are none. */
static int64_t first_told(const struct ps_demo_result *stash)
{
    const int64_t first = ps_demo_first_steady(stash);

    return first < stash->n_steps ? first : 0;
}

static struct json_object *run_object(const struct ps_demo_result *r, int64_t first)
{
    struct json_object *o = json_object_new_object();

    add_u64(o, "peak_bytes", ps_demo_peak(r, first, r->n_steps));
    json_object_object_add(o, "seconds", json_object_new_double(r->seconds));
    return o;
}

/* Of the steps before the steady ones. */
static struct json_object *learning_object(const struct ps_demo_result *plain,
                                           const struct ps_demo_result *stash)
{
    struct json_object *o = json_object_new_object();
    const int64_t n = ps_demo_first_steady(stash);

    add_u64(o, "steps", (uint64_t)n);
    add_u64(o, "peak_bytes", ps_demo_peak(stash, 0, n));
    add_u64(o, "plain_peak_bytes", ps_demo_peak(plain, 0, n));
    return o;
}

bool ps_demo_print_json(const struct ps_demo_result *plain, const struct ps_demo_result *stash)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "device", json_object_new_string(plain->device));
    json_object_object_add(o, "simulated", json_object_new_boolean(plain->simulated));
    add_u64(o, "steps", (uint64_t)plain->n_steps);
    add_u64(o, "layers", (uint64_t)plain->layers);
    json_object_object_add(o, "loss_identical",
                           json_object_new_boolean(ps_demo_identical(plain, stash)));
    json_object_object_add(o, "plain", run_object(plain, first_told(stash)));
    json_object_object_add(o, "stash", run_object(stash, first_told(stash)));
    json_object_object_add(o, "learning", learning_object(plain, stash));
    for (size_t i = 0; i < N_COUNTERS; i++) {
        uint64_t value;
        const bool known = ps_demo_counter(stash, counters[i].name, &value);

        json_object_object_add(o, counters[i].name, known ? json_object_new_uint64(value) : NULL);
    }
    add_u64(o, "padding_bytes", plain->padding_bytes);
    add_u64(o, "balanced_bytes", plain->balanced_bytes);
    add_u64(o, "layer_tail_bytes", plain->layer_tail_bytes);
    json_object_object_add(o, "steady", ps_demo_steady(stash));
    json_object_object_add(o, "phases", ps_demo_phases(stash));
    json_object_object_add(o, "by_step", ps_demo_by_step(plain, stash));
    json_object_object_add(o, "counters", json_object_get(stash->counters));
    puts(json_object_to_json_string_ext(o, JSON_C_TO_STRING_SPACED));
    json_object_put(o);
    return counters_complete(stash);
}

/* "12.3 MiB". */
static const char *text_of(uint64_t bytes, char *buf, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        unit++;
    }
    snprintf(buf, size, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return buf;
}

static void print_row(const char *name, uint64_t bytes)
{
    char buf[32];

    printf("  %-34s %12s\n", name, text_of(bytes, buf, sizeof(buf)));
}

static void print_counters(const struct ps_demo_result *stash)
{
    for (size_t i = 0; i < N_COUNTERS; i++) {
        uint64_t value;

        if (!ps_demo_counter(stash, counters[i].name, &value)) {
            continue;
        }
        if (counters[i].bytes) {
            print_row(counters[i].doc, value);
        } else {
            printf("  %-34s %12" PRIu64 "\n", counters[i].doc, value);
        }
    }
}

static uint64_t member(struct json_object *o, const char *key)
{
    struct json_object *value = NULL;

    return json_object_object_get_ex(o, key, &value) ? json_object_get_uint64(value) : 0;
}

static void print_steady(const struct ps_demo_result *stash)
{
    struct json_object *o = ps_demo_steady(stash);
    const uint64_t n_steps = member(o, "steps");
    const uint64_t valid = member(o, "valid_bytes");
    const uint64_t n_maps = member(o, "map_calls") + member(o, "remaps");

    if (n_steps > 0) {
        printf("\n  %-34s %12" PRIu64 "\n", "steps after learning", n_steps);
        print_row("valid bytes of a step's tensors", valid / n_steps);
        print_row("moved in a step, out and back", member(o, "bytes_moved") / n_steps);
        printf("  %-34s %12.1f\n", "mapping calls in a step", (double)n_maps / (double)n_steps);
        printf("  %-34s %12" PRIu64 "\n", "events not planned", member(o, "plan_misses"));
    }
    json_object_put(o);
}

bool ps_demo_print_table(const struct ps_demo_result *plain, const struct ps_demo_result *stash)
{
    char a[32];
    char b[32];
    const int64_t first = first_told(stash);
    const uint64_t with = ps_demo_peak(stash, first, stash->n_steps);
    const uint64_t without = ps_demo_peak(plain, first, plain->n_steps);
    const bool less = with <= without;
    const uint64_t difference = less ? without - with : with - without;

    printf("%" PRId64 " layers of experts, %" PRId64 " steps on %s\n\n", plain->layers,
           plain->n_steps, plain->device);
    printf("  %-34s %12s %12s\n", "", "plain", "stash");
    printf("  %-34s %12s %12s\n",
           first > 0 ? "peak device memory after learning" : "peak device memory",
           text_of(without, a, sizeof(a)), text_of(with, b, sizeof(b)));
    if (first > 0) {
        printf("  %-34s %12s %12s\n", "while learning",
               text_of(ps_demo_peak(plain, 0, first), a, sizeof(a)),
               text_of(ps_demo_peak(stash, 0, first), b, sizeof(b)));
    }
    printf("  %-34s %10.2f s %10.2f s\n", "time of the whole run", plain->seconds, stash->seconds);
    printf("  %-34s %12s\n\n", "losses and final weights",
           ps_demo_identical(plain, stash) ? "identical" : "DIFFERENT");
    print_row(less ? "memory saved" : "memory added", difference);
    print_row("saved for backward, unpadded", plain->balanced_bytes);
    print_row("padding saved with it", plain->padding_bytes);
    print_row("padding of one layer", plain->layer_tail_bytes);
    print_counters(stash);
    print_steady(stash);
    fflush(stdout);
    return counters_complete(stash);
}
