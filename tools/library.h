/* SPDX-License-Identifier: Apache-2.0 */
/* Where the preloaded library is, and how it gets into LD_PRELOAD. */
#ifndef PS_TOOLS_LIBRARY_H
#define PS_TOOLS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#define PS_LIBRARY_NAME "libpagedstash.so"

/* Beside this executable in a build folder, else where it was installed relative to it. False: not there. */
bool ps_library_find(char *path, size_t size);
/* The folder of this executable; false when /proc is not there. */
bool ps_own_folder(char *path, size_t size);
/* NULL when the path can stand in LD_PRELOAD, else the reason why not. */
const char *ps_library_path_problem(const char *path);
/* Puts the path in front of what LD_PRELOAD holds, unless it is there. False: no memory. */
bool ps_library_preload(const char *path);

#endif
