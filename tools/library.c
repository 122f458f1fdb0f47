/* SPDX-License-Identifier: Apache-2.0 */
/* Finds libpagedstash.so relative to the running executable, so that a tree can be moved. One thread. */
#include "tools/library.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool ps_own_folder(char *path, size_t size)
{
    const ssize_t n = readlink("/proc/self/exe", path, size - 1);

    if (n <= 0 || (size_t)n >= size - 1) {
        return false;
    }
    path[n] = '\0';
    char *slash = strrchr(path, '/');

    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    return true;
}

bool ps_library_find(char *path, size_t size)
{
    static const char *const places[] = {
        "/../shim/",
        "/../" PS_LIBDIR "/pagedstash/",
        "/../lib/pagedstash/",
        "/../lib64/pagedstash/",
    };
    char folder[PATH_MAX];
    char candidate[PATH_MAX + 64];
    char real[PATH_MAX];

    if (!ps_own_folder(folder, sizeof(folder))) {
        return false;
    }
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(candidate, sizeof(candidate), "%s%s%s", folder, places[i], PS_LIBRARY_NAME);
        if (realpath(candidate, real) != NULL && access(real, R_OK) == 0) {
            return snprintf(path, size, "%s", real) < (int)size;
        }
    }
    return false;
}

const char *ps_library_path_problem(const char *path)
{
    if (strpbrk(path, " \t\n:") != NULL) {
        return "LD_PRELOAD cannot hold a path with a space or a colon";
    }
    if (strchr(path, '$') != NULL) {
        return "the loader would expand the '$' of that path";
    }
    return NULL;
}

static bool holds(const char *list, const char *path)
{
    const size_t bytes = strlen(path);

    for (const char *p = list; *p != '\0';) {
        const size_t n = strcspn(p, " :");

        if (n == bytes && strncmp(p, path, n) == 0) {
            return true;
        }
        p += n;
        p += strspn(p, " :");
    }
    return false;
}

bool ps_library_preload(const char *path)
{
    const char *before = getenv("LD_PRELOAD");
    char *joined = NULL;

#ifdef PS_SANITIZED
    /* Preloaded, the library comes before the run-time that it needs. */
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 0);
#endif
    if (before == NULL || before[0] == '\0') {
        return setenv("LD_PRELOAD", path, 1) == 0;
    }
    if (holds(before, path)) {
        return true;
    }
    if (asprintf(&joined, "%s:%s", path, before) < 0) {
        return false;
    }
    const bool ok = setenv("LD_PRELOAD", joined, 1) == 0;

    free(joined);
    return ok;
}
