/* SPDX-License-Identifier: Apache-2.0 */
/* What the library says of itself while the program runs: the last line of its metrics file. One thread. */
#ifndef PS_BENCH_METRICS_H
#define PS_BENCH_METRICS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_MARK "bench_mark" /* the range at whose push a line is written */

/* Sets what makes the library write them, into a new folder. Before the library is loaded. */
void bench_metrics_prepare(void);
/* Has a line written and reads it. */
void bench_metrics_read(void);
/* Of that line. */
bool bench_metrics_captured(void);
uint64_t bench_metrics_counter(const char *name);
/* The folder goes, with what the process wrote there, which has ended. */
void bench_metrics_remove(pid_t pid);

#endif
