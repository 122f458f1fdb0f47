/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pagedstash run`: checks the settings, puts the library into LD_PRELOAD and execs, so that signals and the exit
 * status are the program's. Its flags are the rows of the option table. One thread.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "policy/base/options.h"
#include "policy/base/rank.h"
#include "tools/cmd.h"
#include "tools/library.h"

#define PREFIX         "PAGEDSTASH_"
#define FLAGS_MAX      64
#define FLAG_BYTES     64
#define FLAG_HELP      1
#define FLAG_FIRST_ROW 256

static char flag_names[FLAGS_MAX][FLAG_BYTES];
static struct option flags[FLAGS_MAX + 2];

static bool is_bool(const struct ps_option *opt)
{
    return strcmp(opt->type->syntax, "y|n") == 0;
}

/* "PAGEDSTASH_MIN_BYTES" to "min-bytes". */
static void flag_of(const char *name, char *buf, size_t size)
{
    size_t n = 0;

    for (const char *p = name + strlen(PREFIX); *p != '\0' && n + 1 < size; p++) {
        buf[n++] = (char)(*p == '_' ? '-' : tolower((unsigned char)*p));
    }
    buf[n] = '\0';
}

/* "--min-bytes=3" to "PAGEDSTASH_MIN_BYTES". */
static void name_of(const char *flag, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "%s", PREFIX);

    for (const char *p = flag + strspn(flag, "-"); *p != '\0' && *p != '=' && n + 1 < size; p++) {
        buf[n++] = (char)(*p == '-' ? '_' : toupper((unsigned char)*p));
    }
    buf[n] = '\0';
}

static void make_flags(void)
{
    size_t n = 0;

    for (size_t i = 0; i < ps_n_options && n < FLAGS_MAX; i++) {
        flag_of(ps_option_table[i].name, flag_names[n], FLAG_BYTES);
        flags[n] = (struct option){
            .name = flag_names[n],
            .has_arg = is_bool(&ps_option_table[i]) ? optional_argument : required_argument,
            .val = FLAG_FIRST_ROW + (int)i,
        };
        n++;
    }
    flags[n++] = (struct option){.name = "help", .has_arg = no_argument, .val = FLAG_HELP};
    flags[n] = (struct option){0};
}

static void print_help(void)
{
    puts("Usage: pagedstash run [OPTION...] [--] COMMAND [ARGUMENT...]\n\n"
         "Runs COMMAND with libpagedstash.so preloaded. Its signals and exit status are the\n"
         "command's; own failures end with 125, a command that cannot be executed with 126,\n"
         "one that is not found with 127.\n\n"
         "Each option sets the environment variable of its name:\n");
    for (size_t i = 0; i < ps_n_options; i++) {
        const struct ps_option *opt = &ps_option_table[i];
        char syntax[128];
        char flag[FLAG_BYTES];

        flag_of(opt->name, flag, sizeof(flag));
        ps_option_syntax(opt, syntax, sizeof(syntax));
        printf(is_bool(opt) ? "  --%s[=<%s>]\n" : "  --%s=<%s>\n", flag, syntax);
        printf("      %s\n      %s, default '%s'\n", opt->doc, opt->name, opt->text);
    }
    puts("  --help\n      This text.\n\n"
         "Examples:\n"
         "  pagedstash run -- python train.py\n"
         "  pagedstash run --regions='moe*,*experts*' --log-level=info -- python train.py\n"
         "  pagedstash run -- torchrun --nproc-per-node 8 train.py");
}

static int usage(const char *what, const char *of)
{
    fprintf(stderr, "pagedstash run: %s '%s'; see pagedstash run --help\n", what, of);
    return PS_EXIT_RUN_FAILED;
}

static int bad_flag(const char *arg, int code)
{
    char name[128];

    if (code == ':') {
        return usage("a value is missing after", arg);
    }
    name_of(arg, name, sizeof(name));
    const struct ps_option *near = ps_option_nearest(name);

    if (near != NULL && ps_option_find(name) == NULL) {
        char flag[FLAG_BYTES];

        flag_of(near->name, flag, sizeof(flag));
        fprintf(stderr, "pagedstash run: unknown option '%s' (did you mean '--%s'?)\n", arg, flag);
        return PS_EXIT_RUN_FAILED;
    }
    return usage("unknown option", arg);
}

static int set_from_flag(const struct ps_option *opt, const char *text)
{
    struct ps_options scratch;
    char syntax[128];
    char flag[FLAG_BYTES];

    ps_options_init(&scratch);
    if (ps_option_set(&scratch, opt, text)) {
        return setenv(opt->name, text, 1) == 0 ? 0 : usage("no memory for", opt->name);
    }
    flag_of(opt->name, flag, sizeof(flag));
    ps_option_syntax(opt, syntax, sizeof(syntax));
    fprintf(stderr, "pagedstash run: bad value '%s' for '--%s' (want <%s>)\n", text, flag, syntax);
    return PS_EXIT_RUN_FAILED;
}

/* 0: go on at optind. Else the exit status plus one, so that help's 0 can be told. */
static int parse_flags(int argc, char **argv)
{
    int code;

    make_flags();
    opterr = 0;
    optind = 1;
    while ((code = getopt_long(argc, argv, "+:h", flags, NULL)) != -1) {
        if (code == 'h' || code == FLAG_HELP) {
            print_help();
            return 1;
        }
        if (code < FLAG_FIRST_ROW) {
            const char letter[] = {'-', (char)optopt, '\0'};

            return bad_flag(optopt >= ' ' && optopt < FLAG_FIRST_ROW ? letter : argv[optind - 1],
                            code) +
                   1;
        }
        const int status =
            set_from_flag(&ps_option_table[code - FLAG_FIRST_ROW], optarg == NULL ? "y" : optarg);

        if (status != 0) {
            return status + 1;
        }
    }
    return 0;
}

/* Takes out of the environment what has been told of here, so that the library does not tell it again. */
static void drop_bad_variables(void)
{
    struct ps_options scratch;

    ps_options_init(&scratch);
    for (size_t i = 0; i < ps_n_options; i++) {
        const char *text = getenv(ps_option_table[i].name);

        if (text != NULL && !ps_option_set(&scratch, &ps_option_table[i], text)) {
            unsetenv(ps_option_table[i].name);
        }
    }
    for (char **e = environ; *e != NULL;) {
        char name[256];
        const size_t n = strcspn(*e, "=");

        snprintf(name, sizeof(name), "%.*s", (int)(n < 255 ? n : 255), *e);
        if (n < 255 && strncmp(name, PREFIX, strlen(PREFIX)) == 0 && !ps_option_known(name)) {
            unsetenv(name); /* moves the rest of environ up */
        } else {
            e++;
        }
    }
}

/* False when a bad setting stops the run, or two that contradict each other do. */
static bool check_settings(void)
{
    struct ps_options o;
    unsigned n_bad;
    const char *text;

    ps_options_load(&o, true, &n_bad);
    if (n_bad == 0) {
        return true;
    }
    const bool stops = o.strict || ps_options_contradictions() > 0;

    /* One process of the job speaks for all, unless the job is stopped here. */
    if (stops || ps_rank_read(o.rank).global <= 0) {
        for (unsigned i = 0; (text = ps_options_complaint(i)) != NULL; i++) {
            fprintf(stderr, "pagedstash run: %s: %s\n", stops ? "error" : "warning", text);
        }
    }
    if (!stops) {
        drop_bad_variables();
    }
    return !stops;
}

static bool prepare_library(void)
{
    char path[PATH_MAX];

    if (!ps_library_find(path, sizeof(path))) {
        fputs("pagedstash run: cannot find " PS_LIBRARY_NAME " beside this command or in " PS_LIBDIR
              "/pagedstash\n",
              stderr);
        return false;
    }
    const char *problem = ps_library_path_problem(path);

    if (problem != NULL) {
        fprintf(stderr, "pagedstash run: cannot preload '%s': %s; move or install it elsewhere\n",
                path, problem);
        return false;
    }
    if (!ps_library_preload(path)) {
        fputs("pagedstash run: no memory for LD_PRELOAD\n", stderr);
        return false;
    }
    return true;
}

int cmd_run(int argc, char **argv)
{
    const int status = parse_flags(argc, argv);

    if (status != 0) {
        return status - 1;
    }
    if (optind >= argc) {
        fputs("pagedstash run: no command to run; see pagedstash run --help\n", stderr);
        return PS_EXIT_RUN_FAILED;
    }
    if (!check_settings() || !prepare_library()) {
        return PS_EXIT_RUN_FAILED;
    }
    execvp(argv[optind], argv + optind);
    const int error = errno;

    fprintf(stderr, "pagedstash run: cannot execute '%s': %s\n", argv[optind], strerror(error));
    return error == ENOENT ? PS_EXIT_NOT_FOUND : PS_EXIT_CANNOT_EXECUTE;
}
