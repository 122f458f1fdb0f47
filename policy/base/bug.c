/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when an invariant is broken. Any thread; no lock; the handler is set before threads enter. */
#include "policy/base/bug.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "policy/base/log.h"

static void (*bug_handler)(void);
/* Pairs with itself: the first to exchange it speaks. */
static atomic_bool bug_said;

void ps_bug_set_handler(void (*handler)(void))
{
    bug_handler = handler;
}

void ps_bug_at(const char *file, int line, const char *fmt, ...)
{
    if (!atomic_exchange_explicit(&bug_said, true, memory_order_relaxed)) {
        static struct ps_log_site site = {0, true};
        char text[512];
        va_list args;

        va_start(args, fmt);
        vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        ps_log_at(&site, PS_LOG_ERROR, file, line, "BUG: %s; passing everything through", text);
    }
    if (bug_handler != NULL) {
        bug_handler();
    }
}
