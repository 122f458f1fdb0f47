/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a configuration file with open and read alone, since it runs in the constructor of any program. No state. */
#include "policy/base/conf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES 2048

static char *trimmed(char *text)
{
    size_t n = strlen(text);

    while (n > 0 && strchr(" \t\r", text[n - 1]) != NULL) {
        text[--n] = '\0';
    }
    return text + strspn(text, " \t");
}

static void take_line(char *line, bool too_long, ps_conf_line_fn fn, void *arg)
{
    char *name = trimmed(line);
    char *equals = strchr(name, '=');

    if (name[0] == '\0' || name[0] == '#') {
        return;
    }
    if (equals == NULL || too_long) {
        fn(arg, name, NULL);
        return;
    }
    *equals = '\0';
    fn(arg, trimmed(name), trimmed(equals + 1));
}

static bool read_lines(int fd, ps_conf_line_fn fn, void *arg)
{
    char line[LINE_BYTES];
    char chunk[1024];
    size_t used = 0;
    bool too_long = false;

    for (;;) {
        const ssize_t n = read(fd, chunk, sizeof(chunk));

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return false;
        }
        for (ssize_t i = 0; i < n; i++) {
            if (chunk[i] == '\n') {
                line[used] = '\0';
                take_line(line, too_long, fn, arg);
                used = 0;
                too_long = false;
            } else if (used < sizeof(line) - 1) {
                line[used++] = chunk[i];
            } else {
                too_long = true;
            }
        }
        if (n == 0) {
            break;
        }
    }
    line[used] = '\0';
    take_line(line, too_long, fn, arg);
    return true;
}

bool ps_conf_file_read(const char *path, ps_conf_line_fn fn, void *arg)
{
    /* Not blocking, so that a FIFO of that name cannot stop a program's start. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;

    if (fd < 0) {
        return false;
    }
    bool ok = fstat(fd, &st) == 0;

    if (ok && !S_ISREG(st.st_mode)) {
        errno = EINVAL;
        ok = false;
    }
    if (ok) {
        ok = read_lines(fd, fn, arg);
    }
    const int saved_errno = errno;

    close(fd);
    errno = saved_errno;
    return ok;
}
