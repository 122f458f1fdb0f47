/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's entry points. Its kernels find their buffers' addresses in memory that NCCL fills, not always in their
 * parameters, so the buffers are touched where they are named. Any thread; see nccl.c.
 */
#ifndef PS_SHIM_NCCL_H
#define PS_SHIM_NCCL_H

#include <stdbool.h>

/* One of ours, by its name. */
bool ps_nccl_knows(const char *name);
/*
 * What a look-up that has found `real` shall give: our function, which goes on to that one; or `real` itself, of a name
 * that we do not know, or of a second NCCL in the process.
 */
void *ps_nccl_answer(const char *name, void *real);

#endif
