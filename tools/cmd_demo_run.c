/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts the demo program, plain or as `pagedstash run` does, follows its lines and reads the
 * counters that the stash left. Progress goes to stderr: one line that is rewritten on a terminal,
 * else a line a run. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/cmd.h"
#include "tools/cmd_demo.h"

/*
 * What suits the small tensors of the software driver; the user's own settings come first. The page
 * tables' size goes with that of the device, so the device is a small one.
 */
#define SIM_SETTINGS   "mem=128M,granularity=4K,check=1"
#define SIM_MIN_BYTES  "32K"
#define SIM_PAGE_BYTES "4K"

#define STEP_RANGES "step*" /* of the demo program: one a step, and one after the last */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool use_simcuda(const char *folder)
{
    const char *before = getenv("LD_LIBRARY_PATH");
    char *joined = NULL;

    if (asprintf(&joined, "%s%s%s", folder, before != NULL ? ":" : "",
                 before != NULL ? before : "") < 0) {
        return false;
    }
    const bool ok = setenv("LD_LIBRARY_PATH", joined, 1) == 0 &&
                    setenv("SIMCUDA", SIM_SETTINGS, 0) == 0 &&
                    setenv("PAGEDSTASH_MIN_BYTES", SIM_MIN_BYTES, 0) == 0 &&
                    setenv("PAGEDSTASH_PAGE_BYTES", SIM_PAGE_BYTES, 0) == 0;

    free(joined);
    return ok;
}

/* In the child. */
static _Noreturn void become_program(const struct ps_demo_setup *setup, int out_fd)
{
    char run[] = "run";
    char end[] = "--";
    char **argv = calloc((size_t)setup->n_args + 4, sizeof(*argv));
    int n = 0;

    if (argv == NULL || dup2(out_fd, STDOUT_FILENO) < 0 ||
        (setup->simcuda != NULL && !use_simcuda(setup->simcuda))) {
        _exit(PS_EXIT_RUN_FAILED);
    }
    if (setup->stash) {
        argv[n++] = run;
        argv[n++] = end;
    }
    argv[n++] = setup->program;
    memcpy(argv + n, setup->args, (size_t)setup->n_args * sizeof(*argv));
    if (setup->stash) {
        setenv("PAGEDSTASH_METRICS", setup->metrics, 1);
        setenv("PAGEDSTASH_METRICS_RANGES", STEP_RANGES, 1);
        _exit(cmd_run(n + setup->n_args, argv));
    }
    setenv("PAGEDSTASH_DISABLE", "y", 1);
    execv(setup->program, argv);
    _exit(errno == ENOENT ? PS_EXIT_NOT_FOUND : PS_EXIT_CANNOT_EXECUTE);
}

static uint64_t get_u64(struct json_object *line, const char *key)
{
    struct json_object *value = NULL;

    return json_object_object_get_ex(line, key, &value) ? json_object_get_uint64(value) : 0;
}

static void get_text(struct json_object *line, const char *key, char *buf, size_t size)
{
    struct json_object *value = NULL;

    snprintf(buf, size, "%s",
             json_object_object_get_ex(line, key, &value) ? json_object_get_string(value) : "");
}

static bool take_step(struct ps_demo_result *r, struct json_object *line)
{
    if (r->n_steps == r->room) {
        const int64_t room = r->room == 0 ? 64 : 2 * r->room;
        void *more = realloc(r->steps, (size_t)room * sizeof(*r->steps));

        if (more == NULL) {
            return false;
        }
        r->steps = more;
        r->room = room;
    }
    struct ps_demo_step *step = &r->steps[r->n_steps++];

    get_text(line, "loss", step->loss, sizeof(step->loss));
    step->peak_bytes = get_u64(line, "peak_bytes");
    return true;
}

static void take_end(struct ps_demo_result *r, struct json_object *line)
{
    get_text(line, "weights", r->weights, sizeof(r->weights));
    get_text(line, "device", r->device, sizeof(r->device));
    r->simulated = get_u64(line, "simulated") != 0;
    r->layers = (int64_t)get_u64(line, "layers");
    r->padding_bytes = get_u64(line, "padding_bytes");
    r->balanced_bytes = get_u64(line, "balanced_bytes");
    r->layer_tail_bytes = get_u64(line, "layer_tail_bytes");
    r->ended = true;
}

static void show_progress(const struct ps_demo_setup *setup, const struct ps_demo_result *r)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r%s: step %lld, loss %.6g   ", setup->stash ? "with the stash" : "plain",
                (long long)r->n_steps, strtod(r->steps[r->n_steps - 1].loss, NULL));
    }
}

static bool take_lines(const struct ps_demo_setup *setup, struct ps_demo_result *r, FILE *from)
{
    char *text = NULL;
    size_t size = 0;
    bool ok = true;

    while (ok && getline(&text, &size, from) > 0) {
        struct json_object *line = json_tokener_parse(text);

        if (json_object_object_get_ex(line, "loss", NULL)) {
            ok = take_step(r, line);
            if (ok) {
                show_progress(setup, r);
            }
        } else if (json_object_object_get_ex(line, "weights", NULL)) {
            take_end(r, line);
        } else {
            fprintf(stderr, "pagedstash demo: unexpected line from the demo: %s", text);
            ok = false;
        }
        json_object_put(line);
    }
    free(text);
    return ok;
}

/* Lines of ranges mark the steps; the one at exit has the counters of the whole run. */
static void take_metrics_line(struct ps_demo_result *r, struct json_object *line)
{
    char type[16];
    struct json_object *counters = NULL;

    get_text(line, "type", type, sizeof(type));
    if (strcmp(type, "range") == 0) {
        json_object_array_add(r->marks, json_object_get(line));
    } else if (json_object_object_get_ex(line, "counters", &counters)) {
        json_object_put(r->counters);
        r->counters = json_object_get(counters);
    }
}

/* From the file that the stash left in process pid. */
static void read_metrics(const char *folder, pid_t pid, struct ps_demo_result *r)
{
    char host[HOST_NAME_MAX + 1] = "";
    char path[PATH_MAX + HOST_NAME_MAX + 64];
    char *text = NULL;
    size_t size = 0;

    gethostname(host, sizeof(host) - 1);
    snprintf(path, sizeof(path), "%s/pagedstash-%s-%ld.jsonl", folder, host, (long)pid);
    FILE *f = fopen(path, "re");

    if (f == NULL) {
        return;
    }
    r->marks = json_object_new_array();
    while (getline(&text, &size, f) > 0) {
        struct json_object *line = json_tokener_parse(text);

        take_metrics_line(r, line);
        json_object_put(line);
    }
    free(text);
    fclose(f);
}

static bool wait_for(pid_t pid, struct ps_demo_result *r)
{
    int status = 0;

    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return false;
        }
    }
    r->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return r->status == 0;
}

static bool fail(const struct ps_demo_setup *setup, const char *what)
{
    fprintf(stderr, "pagedstash demo: %s: %s\n", setup->stash ? "run under the stash" : "plain run",
            what);
    return false;
}

bool ps_demo_run(const struct ps_demo_setup *setup, struct ps_demo_result *r)
{
    int fds[2];
    char what[64];

    if (!isatty(STDERR_FILENO)) {
        fprintf(stderr, "pagedstash demo: %s\n",
                setup->stash ? "running under the stash" : "running plain");
    }
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return fail(setup, strerror(errno));
    }
    const double start = now();
    const pid_t pid = fork();

    if (pid == 0) {
        become_program(setup, fds[1]);
    }
    close(fds[1]);
    FILE *from = pid < 0 ? NULL : fdopen(fds[0], "r");

    if (from == NULL) {
        close(fds[0]);
        return fail(setup, "cannot start it");
    }
    const bool read_ok = take_lines(setup, r, from);

    fclose(from);
    const bool ended_ok = wait_for(pid, r);

    r->seconds = now() - start;
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K");
    }
    if (!ended_ok || !read_ok || !r->ended) {
        snprintf(what, sizeof(what), "the demo ended with status %d", r->status);
        return fail(setup, what);
    }
    if (setup->stash) {
        read_metrics(setup->metrics, pid, r);
    }
    return true;
}

void ps_demo_result_fini(struct ps_demo_result *r)
{
    free(r->steps);
    json_object_put(r->counters);
    json_object_put(r->marks);
}
