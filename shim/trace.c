/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the trace, and its file; see trace.h. All state is under the lock of tape.c. */
#include "shim/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "policy/base/log.h"
#include "policy/trace.h"
#include "shim/driver.h"

#define BUFFER_BYTES ((size_t)128 << 10)
#define FILE_BYTES   ((uint64_t)1 << 30) /* a trace is not longer: thousands of steps */
#define LINE_BYTES   ((size_t)8 << 10)
#define DETAIL_MAX   160
#define NO_STREAM    ((CUstream)UINTPTR_MAX)
#define NO_BYTES     UINT64_MAX

struct row {
    const char *event;
    uint32_t thread;
    CUstream stream;
    const uint32_t *ids;
    unsigned n_ids;
    uint64_t bytes;
    const char *detail;
};

bool ps_trace_flag;

static int fd = -1;
static char *buffer;
static size_t used;
static uint64_t written, first_ns;
static uint64_t small_bytes, small_told;

static uint64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void give_up(const char *what)
{
    ps_warn("%s: %m; the trace ends here", what);
    ps_trace_flag = false;
    used = 0;
}

static bool open_file(void)
{
    char path[PS_OPT_TEXT_MAX + 128];
    char pattern[PS_OPT_TEXT_MAX + 32];

    snprintf(pattern, sizeof(pattern), "%s/pagedstash-%%h-%%p.trace.tsv", ps_options.trace);
    ps_log_expand_path(pattern, path, sizeof(path));
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        give_up(path);
    }
    return fd >= 0;
}

static void flush(void)
{
    const char *from = buffer;

    if (used == 0 || (fd < 0 && !open_file())) {
        return;
    }
    while (used > 0) {
        const ssize_t n = write(fd, from, used);

        if (n < 0 && errno != EINTR) {
            give_up("cannot write the trace");
        } else if (n > 0) {
            from += n;
            used -= (size_t)n;
            written += (uint64_t)n;
        }
    }
}

/* The text as one column: no tab, no end of line, cut at DETAIL_MAX. */
static const char *column(const char *text, char buf[DETAIL_MAX + 1])
{
    size_t n = 0;

    for (; n < DETAIL_MAX && text[n] != '\0'; n++) {
        buf[n] = text[n];
        if ((unsigned char)text[n] < ' ' || text[n] == 0x7f) {
            buf[n] = ' ';
        }
    }
    buf[n] = '\0';
    return n == 0 ? "-" : buf;
}

static void write_head(void)
{
    char regions[DETAIL_MAX + 1], step[DETAIL_MAX + 1];

    used =
        (size_t)snprintf(buffer, BUFFER_BYTES,
                         PS_TRACE_MAGIC "\t%d\n"
                                        "#min_bytes\t%llu\n#regions\t%s\n#step\t%s\n"
                                        "#process\t%d\n#unix_time\t%llu\n#stash\t%s\n"
                                        "#columns\ttime_ns\tevent\tthread\tstream\tids\tbytes\t"
                                        "detail\n",
                         PS_TRACE_VERSION, (unsigned long long)ps_options.min_bytes,
                         column(ps_options.regions, regions), column(ps_options.step, step),
                         (int)getpid(), (unsigned long long)time(NULL), ps_paging() ? "on" : "off");
    first_ns = now();
}

void ps_trace_start(void)
{
    ps_trace_flag = true;
}

/* As many as fit; a launch that names more tensors than this has said enough. */
static size_t put_ids(char *to, size_t room, const struct row *row)
{
    size_t n = 0;

    for (unsigned i = 0; i < row->n_ids && n + 16 < room; i++) {
        n += (size_t)snprintf(to + n, room - n, "%s%u", i == 0 ? "" : ",", row->ids[i]);
    }
    if (n == 0) {
        to[n++] = '-';
    }
    to[n] = '\0';
    return n;
}

static size_t put_line(char *to, const struct row *row)
{
    char detail[DETAIL_MAX + 1], bytes[24] = "-", stream[24] = "-";
    int n = snprintf(to, LINE_BYTES, "%llu\t%s\t%u\t", (unsigned long long)(now() - first_ns),
                     row->event, row->thread);

    if (row->stream != NO_STREAM) {
        snprintf(stream, sizeof(stream), "%llu", (unsigned long long)(uintptr_t)row->stream);
    }
    if (row->bytes != UINT64_MAX) {
        snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)row->bytes);
    }
    size_t at = (size_t)n + (size_t)snprintf(to + n, LINE_BYTES - (size_t)n, "%s\t", stream);

    at += put_ids(to + at, LINE_BYTES - at - 256, row);
    at += (size_t)snprintf(to + at, LINE_BYTES - at, "\t%s\t%s\n", bytes,
                           column(row->detail == NULL ? "" : row->detail, detail));
    return at;
}

static void put(const struct row *row)
{
    if (!ps_trace_flag) {
        return;
    }
    if (buffer == NULL) {
        buffer = malloc(BUFFER_BYTES);
        if (buffer == NULL) {
            give_up("no memory for the trace");
            return;
        }
        write_head();
    }
    if (BUFFER_BYTES - used < 2 * LINE_BYTES) {
        flush();
    }
    if (ps_trace_flag) {
        used += put_line(buffer + used, row);
    }
    if (ps_trace_flag && written + used > FILE_BYTES) {
        const struct row cut = {
            .event = "cut", .thread = row->thread, .stream = NO_STREAM, .bytes = FILE_BYTES};

        used += put_line(buffer + used, &cut);
        ps_trace_end();
    }
}

void ps_trace_tell_small(uint32_t thread)
{
    if (small_bytes != small_told) {
        const struct row row = {
            .event = "small", .thread = thread, .stream = NO_STREAM, .bytes = small_bytes};

        small_told = small_bytes;
        put(&row);
    }
}

/* Small allocations came or, less than 0, went. */
static void add_small(uint32_t thread, int64_t bytes)
{
    small_bytes += (uint64_t)bytes;
    const uint64_t change =
        small_bytes > small_told ? small_bytes - small_told : small_told - small_bytes;

    if (change >= PS_TRACE_SMALL_BYTES || change >= ps_options.min_bytes) {
        ps_trace_tell_small(thread);
    }
}

void ps_trace_mark(uint32_t thread, const char *event, const char *detail)
{
    const struct row row = {
        .event = event, .thread = thread, .stream = NO_STREAM, .bytes = NO_BYTES, .detail = detail};

    put(&row);
}

void ps_trace_context(uint32_t thread, CUcontext context, CUdevice device)
{
    char text[32];

    snprintf(text, sizeof(text), "device %d", device);
    const struct row row = {.event = "context",
                            .thread = thread,
                            .stream = NO_STREAM,
                            .bytes = (uint64_t)(uintptr_t)context,
                            .detail = text};

    put(&row);
}

static void put_span(const char *event, uint32_t thread, const struct ps_span *span,
                     CUstream stream, const char *detail)
{
    const struct row row = {.event = event,
                            .thread = thread,
                            .stream = stream,
                            .ids = &span->number,
                            .n_ids = 1,
                            .bytes = span->bytes,
                            .detail = detail};

    put(&row);
}

void ps_trace_alloc(uint32_t thread, const struct ps_span *span, unsigned form, CUstream stream,
                    uint32_t ordinal)
{
    static const char *const forms[] = {"async", "pool", "sync", "managed"};
    char text[48];

    if (span->bytes < PS_TRACE_SMALL_BYTES && !span->tensor) {
        add_small(thread, (int64_t)span->bytes);
        return;
    }
    int n = snprintf(text, sizeof(text), "%s", span->tensor ? "tensor" : forms[form % 4]);

    if (ordinal != PS_TRACE_OUTSIDE) {
        snprintf(text + n, sizeof(text) - (size_t)n, " %u", ordinal);
    }
    put_span("alloc", thread, span, form <= PS_TAPE_ALLOC_POOL ? stream : NO_STREAM, text);
}

void ps_trace_free(uint32_t thread, const struct ps_span *span, unsigned form, CUstream stream)
{
    if (span->bytes < PS_TRACE_SMALL_BYTES && !span->tensor) {
        add_small(thread, -(int64_t)span->bytes);
        return;
    }
    put_span("free", thread, span, form == PS_TAPE_ALLOC_ASYNC ? stream : NO_STREAM, NULL);
}

void ps_trace_tell_valid(uint32_t thread, uint32_t number, uint64_t bytes)
{
    const struct ps_span part = {.bytes = bytes, .number = number};

    put_span("valid", thread, &part, NO_STREAM, NULL);
}

/* The live tensors that a call names. */
static void put_named(const char *event, uint32_t thread, CUstream stream,
                      const struct ps_named *named, uint64_t bytes, const char *detail)
{
    const struct row row = {.event = event,
                            .thread = thread,
                            .stream = stream,
                            .ids = named->live,
                            .n_ids = named->n_live,
                            .bytes = bytes,
                            .detail = detail};

    put(&row);
}

void ps_trace_launch(uint32_t thread, CUstream stream, const struct ps_named *named,
                     const char *name)
{
    if (named->n_live != 0) {
        put_named("launch", thread, stream, named, NO_BYTES, name);
    }
}

/* Those that name a tensor, and large ones to or from the host. */
void ps_trace_copy(uint32_t thread, const struct ps_tape_copy *c, const struct ps_named *named)
{
    static const char *const ways[] = {"d2d", "d2h", "h2d", "h2h"};
    const bool to_host = (c->form & PS_TAPE_DST_HOST) != 0;
    const bool from_host = (c->form & PS_TAPE_SRC_HOST) != 0;
    const uint64_t bytes = (uint64_t)c->width * c->height * c->depth;

    if (named->n_live != 0 || (to_host != from_host && bytes >= PS_TRACE_SMALL_BYTES)) {
        put_named("copy", thread, c->stream, named, bytes, ways[to_host + 2 * from_host]);
    }
}

void ps_trace_fill(uint32_t thread, const struct ps_tape_fill *f, const struct ps_named *named)
{
    if (named->n_live != 0) {
        put_named("fill", thread, f->stream, named, (uint64_t)f->width * f->element * f->height,
                  NULL);
    }
}

void ps_trace_end(void)
{
    flush();
    if (fd >= 0) {
        close(fd);
        fd = -1;
    }
    ps_trace_flag = false;
}
