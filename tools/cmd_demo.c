/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pagedstash demo`: trains a small mixture-of-experts model twice, plain and under the stash, on
 * the GPU if there is one and on the software driver if not, and compares. One thread.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/child.h"
#include "tools/cmd.h"
#include "tools/cmd_demo.h"
#include "tools/library.h"

#define PROBE_MS 60000 /* the first use of a GPU may take long */

enum device { DEVICE_AUTO, DEVICE_GPU, DEVICE_SIMCUDA };

struct request {
    bool json;
    bool help;
    enum device device;
    char **args; /* what is left, for the demo program */
    int n_args;
};

/* Beside this executable in a build folder, else where it was installed relative to it. */
static bool find_part(const char *built, const char *installed, char *path, size_t size)
{
    const char *const places[] = {"", "/../" PS_LIBDIR "/pagedstash", "/../lib/pagedstash"};
    char folder[PATH_MAX];

    if (!ps_own_folder(folder, sizeof(folder))) {
        return false;
    }
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const int n =
            snprintf(path, size, "%s%s/%s", folder, places[i], i == 0 ? built : installed);

        if (n < (int)size && access(path, R_OK) == 0) {
            return true;
        }
    }
    return false;
}

static int bad_device(const char *text)
{
    fprintf(stderr, "pagedstash demo: bad value '%s' for '--device' (want <auto|gpu|simcuda>)\n",
            text);
    return PS_EXIT_USAGE;
}

/* 0, or the exit status of wrong usage. Options that are not ours are the demo program's. */
static int parse(struct request *q, int argc, char **argv)
{
    static const char *const devices[] = {"auto", "gpu", "simcuda"};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            q->json = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            q->help = true;
        } else if (strcmp(argv[i], "--device") == 0 || strncmp(argv[i], "--device=", 9) == 0) {
            const char *text = argv[i][8] == '=' ? argv[i] + 9 : (i + 1 < argc ? argv[++i] : "");
            size_t d = 0;

            while (d < 3 && strcmp(text, devices[d]) != 0) {
                d++;
            }
            if (d == 3) {
                return bad_device(text);
            }
            q->device = (enum device)d;
        } else {
            q->args[q->n_args++] = argv[i];
        }
    }
    return 0;
}

static int print_help(const char *program)
{
    puts(
        "Usage: pagedstash demo [OPTION...]\n\n"
        "Trains a small mixture-of-experts model twice, plain and under the stash, and compares\n"
        "losses, final weights and memory. Ends with 0 if both runs gave the same bits, with 1 if\n"
        "not or if a run failed.\n\n"
        "  --json               one JSON object instead of the table\n"
        "  --device <auto|gpu|simcuda>\n"
        "                       where it runs (auto: the GPU if there is one, else in software)\n"
        "  --help               this text\n\n"
        "Examples:\n"
        "  pagedstash demo\n"
        "  pagedstash demo --json --layers 24 --capacity 2\n"
        "  pagedstash demo --schedule interleaved --stages 4 --virtual 2 --microbatches 32\n\n"
        "The rest is for the program that it runs:\n");
    fflush(stdout);
    execl(program, program, "--help", (char *)NULL);
    perror("pagedstash demo: cannot execute the demo program");
    return EXIT_FAILURE;
}

/* A device that the system's driver can use; what it says otherwise goes to `why`. */
static bool gpu_present(char *why, size_t size)
{
    char self[] = "/proc/self/exe";
    char command[] = "probe";
    char *argv[] = {self, command, NULL};
    const struct ps_child child = {.argv = argv, .timeout_ms = PROBE_MS};
    char out[4096];
    const int status = ps_child_run(&child, out, sizeof(out));
    const char *error = strstr(out, "\nerror ");

    snprintf(why, size, "%s",
             status == 0 ? "the driver has no device" : "the driver does not answer");
    if (error != NULL) {
        const char *text = error + strlen("\nerror ");

        snprintf(why, size, "%.*s", (int)strcspn(text, "\n"), text);
    }
    if (strstr(out, "simcuda") != NULL) {
        snprintf(why, size, "the driver found is simcuda");
        return false;
    }
    return strstr(out, "\ndevice ") != NULL;
}

/* Sets what the device asks for; false, with the reason said, when there is none. */
static bool choose_device(const struct request *q, struct ps_demo_setup *setup, char *folder,
                          size_t size)
{
    char why[256];
    const bool gpu = q->device != DEVICE_SIMCUDA && gpu_present(why, sizeof(why));

    if (gpu) {
        return true;
    }
    if (q->device == DEVICE_GPU) {
        fprintf(stderr, "pagedstash demo: no GPU: %s\n", why);
        return false;
    }
    if (q->device == DEVICE_AUTO) {
        fprintf(stderr, "pagedstash demo: no GPU (%s); running on the software driver\n", why);
    }
    if (!find_part("simcuda/libcuda.so.1", "simcuda/libcuda.so.1", folder, size)) {
        fputs("pagedstash demo: cannot find the software driver beside this command\n", stderr);
        return false;
    }
    *strrchr(folder, '/') = '\0';
    setup->simcuda = folder;
    return true;
}

static void remove_folder(const char *path)
{
    DIR *dir = opendir(path);

    if (dir == NULL) {
        return;
    }
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (entry->d_name[0] != '.') {
            unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    closedir(dir);
    rmdir(path);
}

static int compare(const struct request *q, struct ps_demo_setup *setup)
{
    struct ps_demo_result plain = {0};
    struct ps_demo_result stash = {0};
    int status = EXIT_FAILURE;

    setup->stash = false;
    if (!ps_demo_run(setup, &plain)) {
        status = plain.status == PS_EXIT_USAGE ? PS_EXIT_USAGE : EXIT_FAILURE;
        goto out;
    }
    setup->stash = true;
    if (!ps_demo_run(setup, &stash)) {
        goto out;
    }
    const bool complete =
        q->json ? ps_demo_print_json(&plain, &stash) : ps_demo_print_table(&plain, &stash);

    status = complete && ps_demo_identical(&plain, &stash) ? EXIT_SUCCESS : EXIT_FAILURE;
out:
    ps_demo_result_fini(&plain);
    ps_demo_result_fini(&stash);
    return status;
}

static int run_demo(struct request *q)
{
    struct ps_demo_setup setup = {.args = q->args, .n_args = q->n_args};
    char program[PATH_MAX];
    char folder[PATH_MAX];
    const char *tmp = getenv("TMPDIR");

    if (!find_part("demo/pagedstash-demo", "pagedstash-demo", program, sizeof(program))) {
        fputs("pagedstash demo: cannot find the program pagedstash-demo beside this command\n",
              stderr);
        return EXIT_FAILURE;
    }
    if (q->help) {
        return print_help(program);
    }
    setup.program = program;
    if (!choose_device(q, &setup, folder, sizeof(folder))) {
        return EXIT_FAILURE;
    }
    snprintf(setup.metrics, sizeof(setup.metrics), "%s/pagedstash-demo.XXXXXX",
             tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(setup.metrics) == NULL) {
        perror("pagedstash demo: cannot make a folder for the counters");
        return EXIT_FAILURE;
    }
    const int status = compare(q, &setup);

    remove_folder(setup.metrics);
    return status;
}

int cmd_demo(int argc, char **argv)
{
    struct request q = {.args = calloc((size_t)argc, sizeof(*argv))};

    if (q.args == NULL) {
        perror("pagedstash demo");
        return EXIT_FAILURE;
    }
    const int bad = parse(&q, argc, argv);
    const int status = bad != 0 ? bad : run_demo(&q);

    free(q.args);
    return status;
}
