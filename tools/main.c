/* SPDX-License-Identifier: Apache-2.0 */
/* The command `pagedstash`: finds the subcommand and hands over. */
#include <stdio.h>
#include <string.h>

#include "tools/cmd.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary; /* NULL: not shown */
} commands[] = {
    {"run", cmd_run, "run a program with its expert activations in pages"},
#ifdef PS_HAVE_DEMO
    {"demo", cmd_demo, "train a small mixture of experts, plain and under the stash"},
#endif
    {"doctor", cmd_doctor, "say whether it will work here"},
    {"config", cmd_config, "print the settings as they would be used"},
#ifdef PS_HAVE_DEMO
    {"report", cmd_report, "print what the processes of a job counted"},
    {"advise", cmd_advise, "say what should be set otherwise, from what was counted"},
#endif
    {"replay", cmd_replay, "plan from a trace and say what the plan comes to"},
    {"info", cmd_info, "version and build"},
    {"probe", cmd_probe, NULL},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *f)
{
    fputs("Usage: pagedstash COMMAND [OPTION...]\n\n"
          "Keeps the expert activations of an unmodified CUDA training job in pages.\n\n"
          "Commands:\n",
          f);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].summary != NULL) {
            fprintf(f, "  %-8s %s\n", commands[i].name, commands[i].summary);
        }
    }
    fputs("\nOptions:\n"
          "  --help      this text; after a command, that command's\n"
          "  --version   the version\n\n"
          "Examples:\n"
          "  pagedstash doctor\n"
          "  pagedstash run -- python train.py\n"
          "  torchrun --nproc-per-node 8 --no-python pagedstash run -- python train.py\n",
          f);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return PS_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("pagedstash " PS_VERSION);
        return 0;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "pagedstash: unknown command '%s'; see pagedstash --help\n", argv[1]);
    return PS_EXIT_USAGE;
}
