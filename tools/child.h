/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program and takes what it prints. */
#ifndef PS_TOOLS_CHILD_H
#define PS_TOOLS_CHILD_H

#include <stdbool.h>
#include <stddef.h>

struct ps_child {
    char *const *argv;   /* argv[0] is the path */
    const char *preload; /* put in front of LD_PRELOAD, or NULL: LD_PRELOAD is unset */
    int timeout_ms;      /* then it is killed */
};

/*
 * Standard output goes to `out` (cut at size - 1, with a closing 0), standard error is thrown away. Returns its
 * exit status, 128 + the signal that ended it, or -1 when it could not be started or was killed for being late.
 */
int ps_child_run(const struct ps_child *child, char *out, size_t size);

#endif
