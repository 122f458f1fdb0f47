/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `pagedstash`: each gets its own name as argv[0] and returns the exit status. One thread. */
#ifndef PS_TOOLS_CMD_H
#define PS_TOOLS_CMD_H

int cmd_run(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_advise(int argc, char **argv);
int cmd_replay(int argc, char **argv);
/* Not for users: what `doctor` starts under the library, to look from inside. */
int cmd_probe(int argc, char **argv);

/* Exit statuses of wrong usage: as `env` for what execs a program, 2 elsewhere. */
#define PS_EXIT_USAGE          2
#define PS_EXIT_RUN_FAILED     125
#define PS_EXIT_CANNOT_EXECUTE 126
#define PS_EXIT_NOT_FOUND      127

#endif
