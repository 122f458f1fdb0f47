/* SPDX-License-Identifier: Apache-2.0 */
/* How much host memory a process may take for itself. No allocation, no stream; errno is kept. Any thread. */
#ifndef PS_BASE_HOSTMEM_H
#define PS_BASE_HOSTMEM_H

#include <stdint.h>

/*
 * The smaller of the machine's available memory and the limits of the process's control groups, in bytes; 0 when
 * neither is known. root: "" (tests have files of their own below another).
 */
uint64_t ps_hostmem_available(const char *root);
/* Half of that, divided by the processes of this job on this machine. */
uint64_t ps_hostmem_share(const char *root);

#endif
