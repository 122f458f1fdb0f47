/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of `pagedstash demo`: one run of the demo program, and the comparison of two.
 */
#ifndef PS_TOOLS_CMD_DEMO_H
#define PS_TOOLS_CMD_DEMO_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>

#define PS_DEMO_LOSS_MAX 32

/* How the demo program is started. Strings and arrays are the caller's. */
struct ps_demo_setup {
    char *program;
    char **args; /* for the program, n_args of them */
    int n_args;
    const char *simcuda; /* folder of the software driver to use, or NULL: the system's driver */
    char metrics[PATH_MAX];
    bool stash;
};

/* What one run of it printed. Initialised by zeros; freed by ps_demo_result_fini. */
struct ps_demo_result {
    int status; /* exit status, or 128 + signal */
    int64_t n_steps;
    int64_t room; /* in steps */
    struct ps_demo_step {
        char loss[PS_DEMO_LOSS_MAX];
        uint64_t peak_bytes; /* of device memory since the step before */
    } * steps;
    char weights[PS_DEMO_LOSS_MAX];
    char device[128];
    bool simulated;
    bool ended; /* the closing object was read */
    int64_t layers;
    uint64_t padding_bytes, balanced_bytes, layer_tail_bytes;
    double seconds;
    struct json_object *counters; /* of the stash, by name; NULL: none were found */
    struct json_object *marks;    /* its lines at the begin of each step and after the last */
};

/* Runs the demo once. False, with the reason said, when it could not be run or ended badly. */
bool ps_demo_run(const struct ps_demo_setup *setup, struct ps_demo_result *r);
void ps_demo_result_fini(struct ps_demo_result *r);

/* Every loss and the weights. */
bool ps_demo_identical(const struct ps_demo_result *plain, const struct ps_demo_result *stash);
/* A counter of the stash; false: the stash does not tell it. */
bool ps_demo_counter(const struct ps_demo_result *stash, const char *name, uint64_t *value_p);
/* Peak of device memory in steps from … to - 1. */
uint64_t ps_demo_peak(const struct ps_demo_result *r, int64_t from, int64_t to);
/*
 * The first of the steady steps: the first that began under a plan, without one the third; n_steps
 * when the stash told too little of each step.
 */
int64_t ps_demo_first_steady(const struct ps_demo_result *r);
/*
 * New objects, or NULL when the stash did not tell enough of each step: what was counted in the
 * steady steps; how many steps began in which phase; what was counted in each step, and both peaks.
 */
struct json_object *ps_demo_steady(const struct ps_demo_result *stash);
struct json_object *ps_demo_phases(const struct ps_demo_result *stash);
struct json_object *ps_demo_by_step(const struct ps_demo_result *plain,
                                    const struct ps_demo_result *stash);
/* Print the comparison on stdout. False when the stash told too little, which has been said. */
bool ps_demo_print_json(const struct ps_demo_result *plain, const struct ps_demo_result *stash);
bool ps_demo_print_table(const struct ps_demo_result *plain, const struct ps_demo_result *stash);

#endif
