/* SPDX-License-Identifier: Apache-2.0 */
/* Start and end of the object's life in a process. */
#ifndef PS_SHIM_ENTRY_H
#define PS_SHIM_ENTRY_H

#include <stdbool.h>

/*
 * Options read, and we are preloaded and not disabled. Reads them now if no constructor has run
 * yet. Any thread.
 */
bool ps_entry_active(void);
/* Once, when the driver was found: what was kept to be said, and the rank. */
void ps_entry_announce(void);
/* Whether the driver has been looked for: a process that never came so far leaves no trace. */
bool ps_driver_known(void);

#endif
