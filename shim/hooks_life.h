/* SPDX-License-Identifier: Apache-2.0 */
/* What hooks_life.c knows of captures. */
#ifndef PS_SHIM_HOOKS_LIFE_H
#define PS_SHIM_HOOKS_LIFE_H

#include <stdbool.h>

/* Whether the job has begun a capture, ever: before that no stream needs to be asked. */
bool ps_capture_ever_begun(void);

#endif
