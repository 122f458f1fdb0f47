/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory as the kernel tells it: MemAvailable, and the limits of control groups, version 1 or 2, of this process's
 * group and all above it. No state, no lock.
 */
#include "policy/base/hostmem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "policy/base/rank.h"

#define PATH_BYTES 4096
#define FILE_BYTES 8192
#define UNKNOWN    UINT64_MAX

/* The file's beginning as text; false when there is none. */
static bool read_file(const char *path, char text[FILE_BYTES])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;

    if (fd < 0) {
        return false;
    }
    for (;;) {
        const ssize_t got = read(fd, text + n, FILE_BYTES - 1 - n);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        n += (size_t)got;
    }
    close(fd);
    text[n] = '\0';
    return n > 0;
}

/* The number that a text begins with; UNKNOWN: none, or one too large to limit anything. */
static uint64_t number_at(const char *text)
{
    uint64_t value = 0;
    const char *p = text;

    for (; *p >= '0' && *p <= '9'; p++) {
        if (value > (UINT64_MAX >> 5)) {
            return UNKNOWN;
        }
        value = value * 10 + (uint64_t)(*p - '0');
    }
    return p == text ? UNKNOWN : value;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t machine_available(const char *root)
{
    static const char field[] = "MemAvailable:";
    char path[PATH_BYTES];
    char text[FILE_BYTES];

    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    if (!read_file(path, text)) {
        return UNKNOWN;
    }
    const char *at = strstr(text, field);

    if (at == NULL) {
        return UNKNOWN;
    }
    at += sizeof(field) - 1;
    at += strspn(at, " \t");
    const uint64_t kib = number_at(at);

    return kib == UNKNOWN ? UNKNOWN : kib * 1024;
}

/* The least limit of a group and of all above it. group: "/a/b", its end of line cut off; changed. */
static uint64_t group_limit(const char *root, const char *mount, const char *file, char *group)
{
    uint64_t limit = UNKNOWN;

    for (;;) {
        char path[PATH_BYTES];
        char text[FILE_BYTES];
        char *slash = strrchr(group, '/');

        if (snprintf(path, sizeof(path), "%s%s%s/%s", root, mount, group, file) <
                (int)sizeof(path) &&
            read_file(path, text)) {
            limit = smaller(limit, number_at(text));
        }
        if (slash == NULL) {
            return limit;
        }
        *slash = '\0';
    }
}

/* A line of /proc/self/cgroup: NUMBER:CONTROLLERS:/GROUP, with no controllers in version 2. */
static uint64_t line_limit(const char *root, char *line)
{
    char *controllers = strchr(line, ':');
    char *group = controllers == NULL ? NULL : strchr(++controllers, ':');

    if (group == NULL) {
        return UNKNOWN;
    }
    *group++ = '\0';
    if (strcmp(group, "/") == 0) {
        group[0] = '\0';
    }
    if (controllers[0] == '\0') {
        return group_limit(root, "/sys/fs/cgroup", "memory.max", group);
    }
    for (char *rest = NULL, *name = strtok_r(controllers, ",", &rest); name != NULL;
         name = strtok_r(NULL, ",", &rest)) {
        if (strcmp(name, "memory") == 0) {
            return group_limit(root, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", group);
        }
    }
    return UNKNOWN;
}

static uint64_t groups_limit(const char *root)
{
    char path[PATH_BYTES];
    char text[FILE_BYTES];
    uint64_t limit = UNKNOWN;

    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    if (!read_file(path, text)) {
        return UNKNOWN;
    }
    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        limit = smaller(limit, line_limit(root, line));
    }
    return limit;
}

uint64_t ps_hostmem_available(const char *root)
{
    const int saved_errno = errno;
    const uint64_t available = smaller(machine_available(root), groups_limit(root));

    errno = saved_errno;
    return available == UNKNOWN ? 0 : available;
}

uint64_t ps_hostmem_share(const char *root)
{
    return ps_hostmem_available(root) / 2 / (uint64_t)ps_rank_local_size();
}
