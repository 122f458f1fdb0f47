/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a job's processes this is. Looked up at the first driver call, not in the constructor: spawned workers get
 * their rank after the library is loaded. Until then, and without a launcher, the rank is -1 and printed as "r-".
 */
#ifndef PS_BASE_RANK_H
#define PS_BASE_RANK_H

#include <stdbool.h>
#include <stdint.h>

struct ps_rank {
    int64_t global; /* -1: not known; the others likewise */
    int64_t local;
    int64_t size;
};

/* What the environment says now; `own` (PAGEDSTASH_RANK, -1 for none) goes before the launchers' global rank. */
struct ps_rank ps_rank_read(int64_t own);
/* Reads and keeps it for the functions below. Any thread; the first call counts. */
void ps_rank_settle(int64_t own);
int64_t ps_rank_global(void);
int64_t ps_rank_local(void);
/* Processes of the job on this machine, as the environment says now; 1 when it does not. */
int64_t ps_rank_local_size(void);
/* Rank 0, or none known: the one that speaks for the job. */
bool ps_rank_speaks(void);

#endif
