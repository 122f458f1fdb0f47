/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines. Any thread, also inside a hook: no lock, no allocation, one write a line. Level and path are set by the
 * constructor before other threads enter; the file is opened by the first line, so that a silent process makes none.
 */
#include "policy/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "policy/base/rank.h"

#define LINE_BYTES     1024
#define LINES_PER_SITE 16
#define PATH_BYTES     1024

static enum ps_log_level log_level = PS_LOG_WARN;
static char log_path[PATH_BYTES];
/* The open log file or -1, and what it was when opened: the program may close our descriptor and reuse its
 * number. Written by whoever opens it; a race opens it twice, which does no harm. */
static _Atomic int log_fd = -1;
static _Atomic uint64_t log_inode;
static atomic_bool file_failed; /* relaxed: seen late, one more try is made */
static atomic_uint n_suppressed;

void ps_log_init(enum ps_log_level level, const char *path)
{
    log_level = level;
    snprintf(log_path, sizeof(log_path), "%s", path == NULL ? "" : path);
}

bool ps_log_enabled(enum ps_log_level level)
{
    return level <= log_level;
}

static void rank_text(char *buf, size_t size)
{
    const int64_t rank = ps_rank_global();

    if (rank < 0) {
        snprintf(buf, size, "-");
    } else {
        snprintf(buf, size, "%" PRId64, rank);
    }
}

static void host_text(char *buf, size_t size)
{
    struct utsname names;

    if (uname(&names) != 0) {
        snprintf(buf, size, "-");
        return;
    }
    names.nodename[strcspn(names.nodename, ".")] = '\0';
    snprintf(buf, size, "%s", names.nodename);
}

void ps_log_expand_path(const char *pattern, char *buf, size_t size)
{
    size_t used = 0;

    buf[0] = '\0';
    for (const char *p = pattern; *p != '\0' && used + 1 < size; p++) {
        char *at = buf + used;

        if (p[0] == '%' && p[1] == 'h') {
            host_text(at, size - used);
            p++;
        } else if (p[0] == '%' && p[1] == 'p') {
            snprintf(at, size - used, "%d", (int)getpid());
            p++;
        } else if (p[0] == '%' && p[1] == 'r') {
            rank_text(at, size - used);
            p++;
        } else {
            at[0] = p[0];
            at[1] = '\0';
        }
        used += strlen(at);
    }
}

static int open_file(void)
{
    char path[PATH_BYTES];
    struct stat st;

    ps_log_expand_path(log_path, path, sizeof(path));
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);

    if (fd < 0 || fstat(fd, &st) != 0) {
        static const char text[] = "pagedstash: cannot open PAGEDSTASH_LOG_FILE; using stderr\n";

        atomic_store_explicit(&file_failed, true, memory_order_relaxed);
        if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) {
            return -1;
        }
        return STDERR_FILENO;
    }
    atomic_store_explicit(&log_inode, (uint64_t)st.st_ino, memory_order_relaxed);
    atomic_store_explicit(&log_fd, fd, memory_order_release); /* pairs with target_fd */
    return fd;
}

static int target_fd(void)
{
    struct stat st;

    if (log_path[0] == '\0' || atomic_load_explicit(&file_failed, memory_order_relaxed)) {
        return STDERR_FILENO;
    }
    const int fd = atomic_load_explicit(&log_fd, memory_order_acquire); /* pairs with open_file */

    if (fd >= 0 && fstat(fd, &st) == 0 &&
        (uint64_t)st.st_ino == atomic_load_explicit(&log_inode, memory_order_relaxed)) {
        return fd;
    }
    return open_file();
}

static void write_line(const char *line, size_t bytes)
{
    const int fd = target_fd();

    while (fd >= 0 && bytes > 0) {
        const ssize_t n = write(fd, line, bytes);

        if (n < 0 && errno != EINTR) {
            return;
        }
        if (n > 0) {
            line += n;
            bytes -= (size_t)n;
        }
    }
}

/* The beginning of a line, up to the level; returns its length. */
static size_t line_head(char *buf, size_t size, enum ps_log_level level)
{
    static const char *const names[] = {"ERROR", "WARN", "INFO", "DEBUG", "TRACE"};
    char rank[24];
    char host[66];

    rank_text(rank, sizeof(rank));
    host_text(host, sizeof(host));
    const int n =
        snprintf(buf, size, "pagedstash: r%s %s:%d %s ", rank, host, (int)getpid(), names[level]);

    return n < 0 ? 0 : (size_t)n;
}

void ps_log_at(struct ps_log_site *site, enum ps_log_level level, const char *file, int line,
               const char *fmt, ...)
{
    const int saved_errno = errno;
    char buf[LINE_BYTES];
    va_list args;
    /* Pairs with itself; the order among sites does not matter. */
    const unsigned before = __atomic_fetch_add(&site->count, 1, __ATOMIC_RELAXED);

    if (before >= (site->once ? 1 : LINES_PER_SITE)) {
        if (!site->once) {
            atomic_fetch_add_explicit(&n_suppressed, 1, memory_order_relaxed);
        }
        return;
    }
    size_t used = line_head(buf, sizeof(buf), level);

    used += (size_t)snprintf(buf + used, sizeof(buf) - used, "%s:%d: ", file, line);
    if (used < sizeof(buf) - 1) {
        errno = saved_errno; /* for %m */
        va_start(args, fmt);
        const int n = vsnprintf(buf + used, sizeof(buf) - used, fmt, args);

        va_end(args);
        used += n < 0 ? 0 : (size_t)n;
    }
    if (used > sizeof(buf) - 1) {
        used = sizeof(buf) - 1;
    }
    buf[used++] = '\n';
    write_line(buf, used);
    errno = saved_errno;
}

void ps_log_fini(void)
{
    const unsigned n = atomic_exchange_explicit(&n_suppressed, 0, memory_order_relaxed);
    const int saved_errno = errno;
    char buf[LINE_BYTES];

    if (n != 0) {
        size_t used = line_head(buf, sizeof(buf), PS_LOG_WARN);

        used += (size_t)snprintf(buf + used, sizeof(buf) - used,
                                 "%u more lines like those above were left out\n", n);
        write_line(buf, used);
    }
    errno = saved_errno;
}
