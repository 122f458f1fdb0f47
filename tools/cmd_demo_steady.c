/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `pagedstash demo` tells of single steps, from the lines that the stash wrote at the begin of
 * each step and after the last one. One thread.
 */
#include <string.h>

#include "tools/cmd_demo.h"

#define LEARNING_STEPS 2 /* left out where nothing says that a plan was followed */

/* Key in our output, counter of the stash. */
static const struct {
    const char *key;
    const char *counter;
} differences[] = {
    {"map_calls", "map_calls"},
    {"remaps", "remaps"},
    {"host_syncs", "host_syncs"},
    {"bytes_moved", "bytes_moved"},
    {"valid_bytes", "valid_bytes_stashed"},
    {"plan_misses", "plan_misses"},
    {"unplanned_touches", "unplanned_touches"},
    {"unplanned_waits", "unplanned_waits"},
    {"throttle_waits", "throttle_waits"},
    {"idle_waits", "idle_waits"},
};
#define N_DIFFERENCES (sizeof(differences) / sizeof(differences[0]))

static const char *const phases[] = {"begin", "capture", "captured"};
#define N_PHASES (sizeof(phases) / sizeof(phases[0]))

static struct json_object *mark(const struct ps_demo_result *r, int64_t step)
{
    return json_object_array_get_idx(r->marks, (size_t)step);
}

static const char *phase_of(const struct ps_demo_result *r, int64_t step)
{
    struct json_object *phase = NULL;

    return json_object_object_get_ex(mark(r, step), "phase", &phase) ? json_object_get_string(phase)
                                                                     : "";
}

static bool counter_at(const struct ps_demo_result *r, int64_t step, const char *name,
                       uint64_t *value_p)
{
    struct json_object *counters = NULL;
    struct json_object *value = NULL;

    if (!json_object_object_get_ex(mark(r, step), "counters", &counters) ||
        !json_object_object_get_ex(counters, name, &value) ||
        !json_object_is_type(value, json_type_int)) {
        return false;
    }
    *value_p = json_object_get_uint64(value);
    return true;
}

static bool complete(const struct ps_demo_result *r)
{
    return r->n_steps > 0 && r->marks != NULL &&
           json_object_array_length(r->marks) == (size_t)r->n_steps + 1;
}

/* Adds what was counted from the begin of one step to that of another. */
static bool add_differences(const struct ps_demo_result *r, int64_t from, int64_t to,
                            struct json_object *o)
{
    for (size_t i = 0; i < N_DIFFERENCES; i++) {
        uint64_t before;
        uint64_t after;

        if (!counter_at(r, from, differences[i].counter, &before) ||
            !counter_at(r, to, differences[i].counter, &after) || after < before) {
            return false;
        }
        json_object_object_add(o, differences[i].key, json_object_new_uint64(after - before));
    }
    return true;
}

uint64_t ps_demo_peak(const struct ps_demo_result *r, int64_t from, int64_t to)
{
    uint64_t peak = 0;

    for (int64_t i = from; i < to && i < r->n_steps; i++) {
        peak = r->steps[i].peak_bytes > peak ? r->steps[i].peak_bytes : peak;
    }
    return peak;
}

int64_t ps_demo_first_steady(const struct ps_demo_result *r)
{
    for (int64_t i = 0; complete(r) && i < r->n_steps; i++) {
        if (strcmp(phase_of(r, i), "captured") == 0) {
            return i;
        }
    }
    return !complete(r) || r->n_steps < LEARNING_STEPS ? r->n_steps : LEARNING_STEPS;
}

struct json_object *ps_demo_steady(const struct ps_demo_result *stash)
{
    if (!complete(stash)) {
        return NULL;
    }
    const int64_t first = ps_demo_first_steady(stash);
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "first_step", json_object_new_int64(first));
    json_object_object_add(o, "steps", json_object_new_int64(stash->n_steps - first));
    if (!add_differences(stash, first, stash->n_steps, o)) {
        json_object_put(o);
        return NULL;
    }
    return o;
}

struct json_object *ps_demo_phases(const struct ps_demo_result *stash)
{
    if (!complete(stash)) {
        return NULL;
    }
    struct json_object *o = json_object_new_object();

    for (size_t p = 0; p < N_PHASES; p++) {
        int64_t n = 0;

        for (int64_t i = 0; i < stash->n_steps; i++) {
            n += strcmp(phase_of(stash, i), phases[p]) == 0;
        }
        json_object_object_add(o, phases[p], json_object_new_int64(n));
    }
    return o;
}

struct json_object *ps_demo_by_step(const struct ps_demo_result *plain,
                                    const struct ps_demo_result *stash)
{
    if (!complete(stash) || plain->n_steps != stash->n_steps) {
        return NULL;
    }
    struct json_object *all = json_object_new_array();

    for (int64_t i = 0; i < stash->n_steps; i++) {
        struct json_object *o = json_object_new_object();

        json_object_object_add(o, "phase", json_object_new_string(phase_of(stash, i)));
        json_object_object_add(o, "peak_bytes", json_object_new_uint64(stash->steps[i].peak_bytes));
        json_object_object_add(o, "plain_peak_bytes",
                               json_object_new_uint64(plain->steps[i].peak_bytes));
        json_object_array_add(all, o);
        if (!add_differences(stash, i, i + 1, o)) {
            json_object_put(all);
            return NULL;
        }
    }
    return all;
}
