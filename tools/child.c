/* SPDX-License-Identifier: Apache-2.0 */
/* A child with its output taken through a pipe and a time limit. One thread. */
#include "tools/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/library.h"

static long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static _Noreturn void become(const struct ps_child *child, int out_fd)
{
    const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(out_fd, STDOUT_FILENO) < 0 ||
        dup2(null_fd, STDERR_FILENO) < 0) {
        _exit(126);
    }
    if (child->preload == NULL) {
        unsetenv("LD_PRELOAD");
    } else if (!ps_library_preload(child->preload)) {
        _exit(126);
    }
    execv(child->argv[0], child->argv);
    _exit(127);
}

/* False when the time was over before the end of the output. */
static bool take_output(int fd, int timeout_ms, char *out, size_t size)
{
    const long end = now_ms() + timeout_ms;
    size_t used = 0;
    bool ok = false;

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const long left = end - now_ms();
        char rest[256];

        if (left <= 0) {
            break;
        }
        const int n_ready = poll(&p, 1, (int)left);

        if (n_ready == 0 || (n_ready < 0 && errno != EINTR)) {
            break;
        }
        if (n_ready < 0) {
            continue;
        }
        const bool full = used + 1 >= size;
        const ssize_t n = read(fd, full ? rest : out + used, full ? sizeof(rest) : size - 1 - used);

        if (n == 0) {
            ok = true;
            break;
        }
        if (n < 0 && errno != EINTR) {
            break;
        }
        used += n > 0 && !full ? (size_t)n : 0;
    }
    out[used] = '\0';
    return ok;
}

int ps_child_run(const struct ps_child *child, char *out, size_t size)
{
    int fds[2];
    int status = 0;

    out[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return -1;
    }
    const pid_t pid = fork();

    if (pid == 0) {
        become(child, fds[1]);
    }
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return -1;
    }
    const bool in_time = take_output(fds[0], child->timeout_ms, out, size);

    close(fds[0]);
    if (!in_time) {
        kill(pid, SIGKILL);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!in_time) {
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
