/* SPDX-License-Identifier: Apache-2.0 */
/* Broken invariants: said once, then the shim passes everything through. Any thread, also inside a hook. */
#ifndef PS_BASE_BUG_H
#define PS_BASE_BUG_H

/* Logs "BUG: ..." once for the process and calls the function set below each time. Never aborts. */
void ps_bug_at(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Set once, from the constructor, before other threads enter; NULL is the start value. */
void ps_bug_set_handler(void (*handler)(void));

#define ps_bug(...) ps_bug_at(__FILE__, __LINE__, __VA_ARGS__)

#endif
