/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging: one write(2) a line to stderr or PAGEDSTASH_LOG_FILE, from a 1 KiB stack buffer; no lock, no
 * allocation, errno preserved. Any thread, also inside a hook. At most 16 lines from one place, then the
 * suppressed count is told at exit.
 *
 * Line: "pagedstash: r3 node7:12345 WARN shim/engine.c:88: cannot map 1.5 GiB: CUDA_ERROR_OUT_OF_MEMORY"
 */
#ifndef PS_BASE_LOG_H
#define PS_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum ps_log_level { PS_LOG_ERROR, PS_LOG_WARN, PS_LOG_INFO, PS_LOG_DEBUG, PS_LOG_TRACE };

/* One per call site; static, zero-initialised. `count` pairs with itself only (relaxed). */
struct ps_log_site {
    unsigned count;
    bool once;
};

/* Sets level and target; path may be NULL (stderr) and may hold %h %p %r. Called once, from the constructor. */
void ps_log_init(enum ps_log_level level, const char *path);
bool ps_log_enabled(enum ps_log_level level);
void ps_log_at(struct ps_log_site *site, enum ps_log_level level, const char *file, int line,
               const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Tells how many lines were suppressed, if any. */
void ps_log_fini(void);
/* %h, %p and %r of a file name become host, process and rank ('-' if not known). */
void ps_log_expand_path(const char *pattern, char *buf, size_t size);

#define PS_LOG_(_level, _once, ...)                                                                \
    do {                                                                                           \
        static struct ps_log_site ps_site_ = {0, _once};                                           \
        if (ps_log_enabled(_level)) {                                                              \
            ps_log_at(&ps_site_, _level, __FILE__, __LINE__, __VA_ARGS__);                         \
        }                                                                                          \
    } while (0)

#define ps_error(...)      PS_LOG_(PS_LOG_ERROR, false, __VA_ARGS__)
#define ps_warn(...)       PS_LOG_(PS_LOG_WARN, false, __VA_ARGS__)
#define ps_info(...)       PS_LOG_(PS_LOG_INFO, false, __VA_ARGS__)
#define ps_debug(...)      PS_LOG_(PS_LOG_DEBUG, false, __VA_ARGS__)
#define ps_trace(...)      PS_LOG_(PS_LOG_TRACE, false, __VA_ARGS__)
#define ps_warn_once(...)  PS_LOG_(PS_LOG_WARN, true, __VA_ARGS__)
#define ps_error_once(...) PS_LOG_(PS_LOG_ERROR, true, __VA_ARGS__)
#define ps_info_once(...)  PS_LOG_(PS_LOG_INFO, true, __VA_ARGS__)

#endif
