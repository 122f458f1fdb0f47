/* SPDX-License-Identifier: Apache-2.0 */
/* Files of NAME=value lines: '#' starts a comment line, blanks around name and value are dropped. */
#ifndef PS_BASE_CONF_FILE_H
#define PS_BASE_CONF_FILE_H

#include <stdbool.h>

/* value is NULL for a line without '=' and for one too long to be valid (name then holds its beginning). */
typedef void (*ps_conf_line_fn)(void *arg, const char *name, const char *value);

/* Calls fn for each line. False with errno set when the file is not there, not regular, or unreadable. */
bool ps_conf_file_read(const char *path, ps_conf_line_fn fn, void *arg);

#endif
