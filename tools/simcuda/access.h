/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the checker of simcuda tells test programs: functions exported by its libcuda.so.1, found by dlsym.
 * Any thread. The driver's side of access.c is declared in sim.h.
 */
#ifndef SIMCUDA_ACCESS_H
#define SIMCUDA_ACCESS_H

#include <stdint.h>

#define SIMCUDA_EXPORT __attribute__((visibility("default")))

/* Distinct reports so far. */
SIMCUDA_EXPORT uint64_t simcuda_check_count(void);
/* Kind (enum hb_kind), or -1, and the whole text of a report; both operations' names may be NULL. */
SIMCUDA_EXPORT int simcuda_check_kind(uint64_t index, const char **first_p, const char **second_p);
SIMCUDA_EXPORT const char *simcuda_check_text(uint64_t index);
/* Reads of memory nobody wrote are reported too, from now on. */
SIMCUDA_EXPORT void simcuda_check_unwritten(int on);

#endif
