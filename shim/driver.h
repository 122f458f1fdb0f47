/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real driver, found once: the handle of libcuda.so.1, the real dlsym/cuGetProcAddress, and the table that our
 * own calls go through. Resolved at the first cu* look-up (ps_driver_init is idempotent and thread-safe, takes no
 * lock of ours across dl* calls); read-only afterwards.
 */
#ifndef PS_SHIM_DRIVER_H
#define PS_SHIM_DRIVER_H

#include <stdbool.h>

#include "kernels/driver.h"
#include "policy/base/options.h"

extern struct ps_driver ps_driver;   /* valid once ps_driver_init returned true */
extern struct ps_options ps_options; /* written by the constructor, read-only afterwards */

/* True when every needed function was found. When false, the reason was logged once and nothing is paged. */
bool ps_driver_init(void);
/* The real function of an exported name (as dlsym on libcuda would give), or NULL. */
void *ps_driver_symbol(const char *symbol);

/* Paging is on: not disabled, driver usable, not ended, not forked. One relaxed load. */
bool ps_paging(void);
void ps_paging_off(void);
/* It is off for good: not merely not begun. */
bool ps_paging_over(void);

#endif
