/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pagedstash doctor`: will it work here? Each check is a line: ok, warn or fail, what was found, and what to do. The
 * driver is looked at in a child (cmd_probe.c). Exit 0 unless a check failed. One thread.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cuda.h>

#include "policy/base/json.h"
#include "policy/base/option_types.h"
#include "policy/base/options.h"
#include "tools/child.h"
#include "tools/cmd.h"
#include "tools/library.h"

#define CHECKS_MAX  64
#define PROBE_MS    60000
#define PROBE_BYTES 16384

enum verdict { OK, WARN, FAIL };

struct check {
    enum verdict verdict;
    const char *name;
    char found[512];
    const char *advice; /* NULL: nothing to do */
};

static struct check checks[CHECKS_MAX];
static unsigned n_checks;

static void tell(enum verdict verdict, const char *name, const char *advice, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void tell(enum verdict verdict, const char *name, const char *advice, const char *fmt, ...)
{
    va_list args;

    if (n_checks == CHECKS_MAX) {
        return;
    }
    struct check *c = &checks[n_checks++];

    c->verdict = verdict;
    c->name = name;
    c->advice = advice;
    va_start(args, fmt);
    vsnprintf(c->found, sizeof(c->found), fmt, args);
    va_end(args);
}

/* The text after "key " at the beginning of a line of the probe's output, up to the line's end; NULL: no such line. */
static const char *probed(const char *out, const char *key, char *buf, size_t size)
{
    const size_t bytes = strlen(key);

    for (const char *p = out; *p != '\0';) {
        const size_t n = strcspn(p, "\n");

        if (n > bytes && strncmp(p, key, bytes) == 0 && p[bytes] == ' ') {
            snprintf(buf, size, "%.*s", (int)(n - bytes - 1), p + bytes + 1);
            return buf;
        }
        p += n + (p[n] == '\n' ? 1 : 0);
    }
    return NULL;
}

static int probed_number(const char *out, const char *key)
{
    char text[32];

    return probed(out, key, text, sizeof(text)) == NULL ? -1 : (int)strtol(text, NULL, 10);
}

static int run_probe(const char *preload, char *out, size_t size)
{
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    out[0] = '\0';
    if (n <= 0) {
        return -1;
    }
    self[n] = '\0';
    char command[] = "probe";
    char *const argv[] = {self, command, NULL};
    const struct ps_child child = {argv, preload, PROBE_MS};

    return ps_child_run(&child, out, size);
}

static void check_library(void)
{
    char path[PATH_MAX];
    static char out[PROBE_BYTES];

    if (!ps_library_find(path, sizeof(path))) {
        tell(FAIL, "library", "build or install it again",
             "no " PS_LIBRARY_NAME " beside this command");
        return;
    }
    const char *problem = ps_library_path_problem(path);

    if (problem != NULL) {
        tell(FAIL, "library", "move or install it elsewhere", "%s: %s", path, problem);
        return;
    }
    const int status = run_probe(path, out, sizeof(out));

    if (status != 0) {
        tell(FAIL, "library", "run `LD_PRELOAD=<library> /bin/true` and read what the loader says",
             "a child with %s preloaded ended with %d", path, status);
    } else if (probed_number(out, "preloaded") != 1) {
        tell(FAIL, "library", "use a program that is not statically linked and not setuid",
             "%s is not loaded in a child that has it in LD_PRELOAD", path);
    } else {
        tell(OK, "library", NULL, "%s, preloaded in a child", path);
    }
}

static void check_device(const char *line)
{
    int index = 0;
    int vmm = 0;
    int pools = 0;
    int arch = 0;
    size_t mib = 0;
    int at = 0;

    if (sscanf(line, "%d %d %d %d %zu %n", &index, &vmm, &pools, &arch, &mib, &at) != 5) {
        return;
    }
    const bool ok = vmm != 0 && pools != 0 && arch >= 80;

    tell(ok ? OK : FAIL, "device",
         ok ? NULL : "nothing is paged on this device; jobs run as if pagedstash were absent",
         "%d: %s, %zu MiB, sm_%d; virtual memory management %s; stream-ordered pools %s", index,
         line + at, mib, arch, vmm != 0 ? "yes" : "no", pools != 0 ? "yes" : "no");
}

static void check_devices(const char *out)
{
    const int n_devices = probed_number(out, "devices");

    if (n_devices <= 0) {
        tell(FAIL, "device", "see nvidia-smi, and CUDA_VISIBLE_DEVICES",
             "the driver shows no device");
        return;
    }
    for (const char *p = strstr(out, "\ndevice "); p != NULL; p = strstr(p + 1, "\ndevice ")) {
        char line[256];

        snprintf(line, sizeof(line), "%.*s", (int)strcspn(p + 8, "\n"), p + 8);
        check_device(line);
    }
}

static void check_driver(void)
{
    static char out[PROBE_BYTES];
    char text[512];
    const int status = run_probe(NULL, out, sizeof(out));

    if (probed(out, "error", text, sizeof(text)) != NULL || status > 128) {
        tell(
            FAIL, "driver",
            "install NVIDIA's driver; without it jobs run as if pagedstash were absent (the demo needs none)",
            "libcuda.so.1: %s", status > 128 ? "it crashed" : text);
        return;
    }
    const int version = probed_number(out, "version");
    const int init = probed_number(out, "init");

    if (status != 0 || version < 0 || init < 0) {
        tell(FAIL, "driver", "see dmesg and nvidia-smi", "libcuda.so.1 gave no answer (%s)",
             status == -1 ? "it took more than a minute" : "the child failed");
        return;
    }
    probed(out, "libcuda", text, sizeof(text));
    const bool new_enough = version / 1000 >= CUDA_VERSION / 1000;

    tell(new_enough ? OK : FAIL, "driver",
         new_enough ? NULL : "update the driver, or build with an older CUDA toolkit",
         "%.256s, CUDA %d.%d; built with %d.%d", text, version / 1000, version % 1000 / 10,
         CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    const bool params = probed_number(out, "params") == 1;

    tell(params ? OK : FAIL, "kernel parameters",
         params ? NULL : "update to a driver of CUDA 12.4 or later; nothing is paged without it",
         "the driver %s the layout of a kernel's parameters", params ? "tells" : "does not tell");
    if (init != 0) {
        tell(FAIL, "driver", "see nvidia-smi, and CUDA_VISIBLE_DEVICES", "cuInit returns %d", init);
        return;
    }
    check_devices(out);
}

static void check_settings(void)
{
    struct ps_options o;
    unsigned n_bad;
    const char *text;

    ps_options_load(&o, true, &n_bad);
    for (unsigned i = 0; (text = ps_options_complaint(i)) != NULL; i++) {
        tell(o.strict ? FAIL : WARN, "settings", "see pagedstash config --doc", "%s", text);
    }
    if (n_bad == 0) {
        tell(OK, "settings", NULL, "regions '%s'", o.regions);
    }
    if (o.disable) {
        tell(WARN, "settings", "unset PAGEDSTASH_DISABLE", "everything is passed through");
    }
}

static void check_preloads(void)
{
    const char *preload = getenv("LD_PRELOAD");
    char path[PATH_MAX];

    if (access("/etc/ld.so.preload", F_OK) == 0) {
        tell(WARN, "other preloads", "if a job misbehaves, try without it",
             "/etc/ld.so.preload is there");
    }
    if (preload == NULL || preload[0] == '\0' ||
        (ps_library_find(path, sizeof(path)) && strcmp(preload, path) == 0)) {
        tell(OK, "other preloads", NULL, "none in LD_PRELOAD");
    } else {
        tell(WARN, "other preloads",
             "they are kept, behind ours; if a job misbehaves, try without them", "LD_PRELOAD='%s'",
             preload);
    }
}

static void check_allocator(void)
{
    static const char *const names[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    const char *no_caching = getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
    bool said = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = getenv(names[i]);

        if (value != NULL && value[0] != '\0') {
            const bool ours = strstr(value, "backend:cudaMallocAsync") != NULL;

            tell(
                ours ? OK : WARN, "PyTorch's allocator",
                ours
                    ? NULL
                    : "`run` sets its backend to cudaMallocAsync; --keep-allocator prevents it, and paging",
                "%s='%s'", names[i], value);
            said = true;
        }
    }
    if (no_caching != NULL) {
        tell(WARN, "PyTorch's allocator", "unset it: plain allocations are left alone",
             "PYTORCH_NO_CUDA_MEMORY_CACHING='%s'", no_caching);
        said = true;
    }
    if (!said) {
        tell(OK, "PyTorch's allocator", NULL, "not set; `run` sets it to cudaMallocAsync");
    }
}

static void check_nvtx(void)
{
    const char *path = getenv("NVTX_INJECTION64_PATH");

    if (path == NULL) {
        tell(OK, "NVTX", NULL, "NVTX_INJECTION64_PATH is free");
    } else if (access(path, R_OK) == 0) {
        tell(OK, "NVTX", NULL, "NVTX_INJECTION64_PATH is taken by '%s'; both get the ranges", path);
    } else {
        tell(WARN, "NVTX",
             "unset it, or name a file that is there: NVTX would find no library at all",
             "NVTX_INJECTION64_PATH='%s' cannot be read", path);
    }
}

/* A number after `key` in a file of "key: number" lines; key "" takes the file's first number. */
static bool number_in(const char *path, const char *key, uint64_t *value_p)
{
    FILE *f = fopen(path, "re");
    char line[256];
    bool found = false;

    if (f == NULL) {
        return false;
    }
    while (!found && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            found = sscanf(line + strlen(key), "%" SCNu64, value_p) == 1;
        }
    }
    fclose(f);
    return found;
}

static void check_host(void)
{
    struct rlimit limit;
    uint64_t kib = 0;
    uint64_t bytes = 0;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        if (limit.rlim_cur == RLIM_INFINITY) {
            tell(OK, "pin limit", NULL, "unlimited");
        } else {
            tell(limit.rlim_cur < 1 << 20 ? WARN : OK, "pin limit",
                 limit.rlim_cur < 1 << 20 ? "raise `ulimit -l`" : NULL, "%" PRIu64 " KiB",
                 (uint64_t)limit.rlim_cur >> 10);
        }
    }
    if (!number_in("/proc/meminfo", "MemAvailable:", &kib)) {
        tell(WARN, "host memory", NULL, "/proc/meminfo does not say what is available");
        return;
    }
    const bool limited = number_in("/sys/fs/cgroup/memory.max", "", &bytes) ||
                         number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", &bytes);

    if (limited && bytes >> 50 == 0) { /* version 1 says "none" with a number beyond that */
        tell(OK, "host memory", NULL,
             "%" PRIu64 " MiB available, control group's limit %" PRIu64 " MiB", kib >> 10,
             bytes >> 20);
    } else {
        tell(OK, "host memory", NULL, "%" PRIu64 " MiB available", kib >> 10);
    }
}

static const char *const verdict_names[] = {"ok", "warn", "fail"};

static void print_checks(void)
{
    static const char *const colours[] = {"\033[32m", "\033[33m", "\033[31m"};
    const bool colour = isatty(STDOUT_FILENO) == 1 && getenv("NO_COLOR") == NULL;

    for (unsigned i = 0; i < n_checks; i++) {
        const struct check *c = &checks[i];

        printf("%s%-4s%s  %s: %s\n", colour ? colours[c->verdict] : "", verdict_names[c->verdict],
               colour ? "\033[0m" : "", c->name, c->found);
        if (c->advice != NULL) {
            printf("      -> %s\n", c->advice);
        }
    }
}

static bool print_json(bool ok)
{
    struct ps_json j;
    char buf[4096];

    ps_json_init(&j, buf, sizeof(buf), STDOUT_FILENO);
    ps_json_open(&j, NULL, '{');
    ps_json_bool(&j, "ok", ok);
    ps_json_open(&j, "checks", '[');
    for (unsigned i = 0; i < n_checks; i++) {
        ps_json_open(&j, NULL, '{');
        ps_json_string(&j, "name", checks[i].name);
        ps_json_string(&j, "verdict", verdict_names[checks[i].verdict]);
        ps_json_string(&j, "found", checks[i].found);
        ps_json_string(&j, "advice", checks[i].advice);
        ps_json_close(&j, '}');
    }
    ps_json_close(&j, ']');
    ps_json_close(&j, '}');
    return ps_json_finish(&j);
}

static int diagnose(bool json)
{
    bool ok = true;

    check_library();
    check_driver();
    check_settings();
    check_preloads();
    check_allocator();
    check_nvtx();
    check_host();
    for (unsigned i = 0; i < n_checks; i++) {
        ok = ok && checks[i].verdict != FAIL;
    }
    if (json) {
        ok = print_json(ok) && ok;
    } else {
        print_checks();
    }
    return ok ? 0 : 1;
}

int cmd_doctor(int argc, char **argv)
{
    static const struct option flags[] = {
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    bool json = false;
    int code;

    while ((code = getopt_long(argc, argv, "+h", flags, NULL)) != -1) {
        if (code == 'h') {
            puts("Usage: pagedstash doctor [--json]\n\n"
                 "Says whether pagedstash will work here, and what to do where it will not.\n"
                 "Exit status 0, or 1 when a check failed.\n\n"
                 "Examples:\n"
                 "  pagedstash doctor\n"
                 "  srun -N 16 pagedstash doctor --json");
            return 0;
        }
        if (code != 'j') {
            return PS_EXIT_USAGE;
        }
        json = true;
    }
    if (optind < argc) {
        fprintf(stderr, "pagedstash doctor: unexpected '%s'; see pagedstash doctor --help\n",
                argv[optind]);
        return PS_EXIT_USAGE;
    }
    return diagnose(json);
}
