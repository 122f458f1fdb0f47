/* SPDX-License-Identifier: Apache-2.0 */
/* What the job has switched through pagedstash.h. Any thread. */
#ifndef PS_SHIM_API_H
#define PS_SHIM_API_H

#include <stdatomic.h>
#include <stdbool.h>

/* Read relaxed: it takes effect with the next range and the next allocation. */
extern _Atomic bool ps_switched_off;

static inline bool ps_switched_on(void)
{
    return !atomic_load_explicit(&ps_switched_off, memory_order_relaxed);
}

#endif
