/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that match between ranks, as the point-to-point operations of a communication library do. Ranks are contexts
 * of one process, each with threads of its own. Needs the big lock.
 *
 *   sim_send(channel, from, bytes)   takes the bytes along; never waits
 *   sim_recv(channel, to, bytes)     runs only when the send that matches it has run: the n-th of a channel the n-th
 */
#ifndef SIMCUDA_MATCH_H
#define SIMCUDA_MATCH_H

#include "tools/simcuda/sim.h"

/* False: a receive whose send has not run. */
bool sim_match_ready(const struct sim_op *op);
/* The send that a receive waits for, if it is queued already. */
const struct sim_op *sim_match_awaited(const struct sim_op *op);
/* The channel of a receive that waits. */
uint64_t sim_match_channel(const struct sim_op *op);

#endif
