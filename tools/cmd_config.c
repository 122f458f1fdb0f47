/* SPDX-License-Identifier: Apache-2.0 */
/* `pagedstash config`: the settings as a process started here would use them, in the form of a configuration file. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "policy/base/json.h"
#include "policy/base/options.h"
#include "tools/cmd.h"

struct config_args {
    bool changed, doc, json;
    const char *filter; /* part of a name, any case, or NULL */
};

static void print_help(void)
{
    puts(
        "Usage: pagedstash config [--all|--changed] [--doc] [--filter TEXT] [--json]\n\n"
        "Prints the settings as they would be used here. The output is a valid configuration file.\n"
        "Places, first to last: flags of `pagedstash run`, the environment, the file named by\n"
        "PAGEDSTASH_CONFIG_FILE, ~/.config/pagedstash.conf, /etc/pagedstash.conf, the default.\n\n"
        "  --all          every setting (the default)\n"
        "  --changed      only those that differ from the default\n"
        "  --doc          with a comment on each\n"
        "  --filter TEXT  only those whose name holds TEXT\n"
        "  --json         one JSON object\n"
        "  --help         this text\n\n"
        "Examples:\n"
        "  pagedstash config --doc > ~/.config/pagedstash.conf\n"
        "  pagedstash config --changed\n"
        "  pagedstash config --filter log --json");
}

static bool is_wanted(const struct config_args *args, const struct ps_option *opt,
                      const char *value)
{
    if (args->changed && strcmp(value, opt->text) == 0) {
        return false;
    }
    return args->filter == NULL || strcasestr(opt->name, args->filter) != NULL;
}

static void print_row(const struct config_args *args, const struct ps_option *opt,
                      const char *value)
{
    char syntax[128];

    if (args->doc) {
        ps_option_syntax(opt, syntax, sizeof(syntax));
        printf("# %s\n# <%s>, default '%s'\n", opt->doc, syntax, opt->text);
    }
    /* A file does not name another. */
    printf("%s%s=%s\n", strcmp(opt->name, "PAGEDSTASH_CONFIG_FILE") == 0 ? "# " : "", opt->name,
           value);
    if (args->doc) {
        putchar('\n');
    }
}

static void json_row(struct ps_json *j, const struct ps_option *opt, const char *value)
{
    char syntax[128];

    ps_option_syntax(opt, syntax, sizeof(syntax));
    ps_json_open(j, opt->name, '{');
    ps_json_string(j, "value", value);
    ps_json_string(j, "default", opt->text);
    ps_json_string(j, "syntax", syntax);
    ps_json_string(j, "doc", opt->doc);
    ps_json_close(j, '}');
}

static int print_all(const struct config_args *args)
{
    struct ps_options o;
    struct ps_json j;
    char buf[4096];
    const char *text;
    bool ok = true;

    ps_options_load(&o, true, NULL);
    ps_json_init(&j, buf, sizeof(buf), STDOUT_FILENO);
    if (args->json) {
        ps_json_open(&j, NULL, '{');
        ps_json_open(&j, "settings", '{');
    }
    for (size_t i = 0; i < ps_n_options; i++) {
        char value[PS_OPT_TEXT_MAX];

        ps_option_print(&o, &ps_option_table[i], value, sizeof(value));
        if (!is_wanted(args, &ps_option_table[i], value)) {
            continue;
        }
        if (args->json) {
            json_row(&j, &ps_option_table[i], value);
        } else {
            print_row(args, &ps_option_table[i], value);
        }
    }
    if (args->json) {
        ps_json_close(&j, '}');
        ps_json_open(&j, "warnings", '[');
        for (unsigned i = 0; (text = ps_options_complaint(i)) != NULL; i++) {
            ps_json_string(&j, NULL, text);
        }
        ps_json_close(&j, ']');
        ps_json_close(&j, '}');
        ok = ps_json_finish(&j);
    }
    for (unsigned i = 0; (text = ps_options_complaint(i)) != NULL; i++) {
        fprintf(stderr, "pagedstash config: warning: %s\n", text);
    }
    return ok && fflush(stdout) == 0 ? 0 : 1;
}

int cmd_config(int argc, char **argv)
{
    static const struct option flags[] = {
        {"all", no_argument, NULL, 'a'},
        {"changed", no_argument, NULL, 'c'},
        {"doc", no_argument, NULL, 'd'},
        {"filter", required_argument, NULL, 'f'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct config_args args = {0};
    int code;

    while ((code = getopt_long(argc, argv, "+h", flags, NULL)) != -1) {
        switch (code) {
        case 'a':
            args.changed = false;
            break;
        case 'c':
            args.changed = true;
            break;
        case 'd':
            args.doc = true;
            break;
        case 'f':
            args.filter = optarg;
            break;
        case 'j':
            args.json = true;
            break;
        case 'h':
            print_help();
            return 0;
        default:
            return PS_EXIT_USAGE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "pagedstash config: unexpected '%s'; see pagedstash config --help\n",
                argv[optind]);
        return PS_EXIT_USAGE;
    }
    return print_all(&args);
}
