/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: host memory that must not fail, the set of live handles, random numbers, and the log. The set and the
 * numbers are guarded by the big lock; logging may be done by any thread.
 */
#include <fcntl.h>
#include <pthread.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/simcuda/core.h"

void sim_no_memory(void)
{
    static const char text[] = "simcuda: out of host memory\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(85);
}

void *sim_calloc(size_t n, size_t size)
{
    void *p = calloc(n == 0 ? 1 : n, size == 0 ? 1 : size);
    if (p == NULL) {
        sim_no_memory();
    }
    return p;
}

void *sim_realloc(void *p, size_t bytes)
{
    void *q = realloc(p, bytes == 0 ? 1 : bytes);
    if (q == NULL) {
        sim_no_memory();
    }
    return q;
}

void sim_push(void *array_p, size_t *n, void *element)
{
    void **array = *(void ***)array_p;
    if ((*n & (*n - 1)) == 0) { /* capacities are the powers of two */
        array = sim_realloc(array, (*n == 0 ? 1 : *n * 2) * sizeof *array);
        memcpy(array_p, &array, sizeof array);
    }
    array[(*n)++] = element;
}

struct handle {
    const void *pointer;
    enum sim_kind kind;
};
static void *handles;

static int handle_compare(const void *a, const void *b)
{
    const struct handle *x = a;
    const struct handle *y = b;
    return x->pointer < y->pointer ? -1 : x->pointer > y->pointer;
}

void sim_handle_add(const void *handle, enum sim_kind kind)
{
    struct handle *h = sim_calloc(1, sizeof *h);
    h->pointer = handle;
    h->kind = kind;
    (void)tsearch(h, &handles, handle_compare);
}

void sim_handle_remove(const void *handle, enum sim_kind kind)
{
    struct handle key = {handle, kind};
    struct handle **found = tfind(&key, &handles, handle_compare);
    if (found != NULL) {
        struct handle *h = *found;
        (void)tdelete(&key, &handles, handle_compare);
        free(h);
    }
}

bool sim_handle_is(const void *handle, enum sim_kind kind)
{
    const struct handle key = {handle, kind};
    struct handle **found = tfind(&key, &handles, handle_compare);
    return found != NULL && (*found)->kind == kind;
}

static uint64_t random_state;

void sim_random_seed(uint64_t seed)
{
    random_state = (seed + 1) * 0x9e3779b97f4a7c15u;
}

uint64_t sim_random(void)
{
    if (random_state == 0) {
        sim_random_seed(sim_options.seed);
    }
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int log_fd = STDERR_FILENO;
static pthread_once_t log_once = PTHREAD_ONCE_INIT;

static void log_open(void)
{
    if (sim_options.log != NULL) {
        const int fd = open(sim_options.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (fd < 0) {
            fprintf(stderr, "simcuda: cannot open log '%s'\n", sim_options.log);
            exit(2);
        }
        log_fd = fd;
    }
}

static void __attribute__((format(printf, 2, 0))) put(int fd, const char *fmt, va_list args)
{
    char line[1024] = "simcuda: ";
    const size_t head = strlen(line);
    const int n = vsnprintf(line + head, sizeof line - head - 1, fmt, args);
    size_t size = head + (n < 0 ? 0 : (size_t)n);
    if (size > sizeof line - 2) {
        size = sizeof line - 2;
    }
    line[size++] = '\n';
    (void)!write(fd, line, size);
}

void sim_log(const char *fmt, ...)
{
    pthread_once(&log_once, log_open);
    va_list args;
    va_start(args, fmt);
    put(log_fd, fmt, args);
    va_end(args);
}

void sim_report(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    put(STDERR_FILENO, fmt, args);
    va_end(args);
    if (sim_options.log != NULL) {
        pthread_once(&log_once, log_open);
        va_start(args, fmt);
        put(log_fd, fmt, args);
        va_end(args);
    }
}
