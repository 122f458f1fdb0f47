/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stash kernels (kernels/stash.cu) touch, read from their parameters and from the tables and lists in device
 * memory: exact to the byte, without page faults. Needs the big lock.
 */
#ifndef SIMCUDA_PAGEKERNELS_H
#define SIMCUDA_PAGEKERNELS_H

#include "tools/simcuda/sim.h"

enum sim_pk_mode {
    SIM_PK_READ,
    SIM_PK_WRITE,
    SIM_PK_LIST,      /* a free list: kernels that move its two ends may run at the same time */
    SIM_PK_GIVE,      /* writes a slot of a free list, and tells whoever claims it */
    SIM_PK_CLAIM,     /* reads one, behind all that the launch did which gave it */
    SIM_PK_HOST_READ, /* pinned host memory */
    SIM_PK_HOST_WRITE,
};
typedef void (*sim_pk_tell_fn)(void *op, CUdeviceptr address, uint64_t bytes,
                               enum sim_pk_mode mode);

/* Kept with an operation; zero at first. */
struct sim_pk_state {
    bool begun;
    uint64_t head[2]; /* of the free lists, up to which pages taken (or given) have been told */
};

/* The operation is a launch of a kernel known here. */
bool sim_pk_known(const struct sim_op *op);
/* It claims what it writes: the tensors are theirs from now on. */
bool sim_pk_claims(const struct sim_op *op);
/* Declares (sim_fault_declare) everything it may touch. */
void sim_pk_declare(const struct sim_op *op);
/* The fields of its parameters that hold addresses of words of host memory which it writes; how many there are. */
#define SIM_PK_WORDS_MAX 64
size_t sim_pk_host_words(const struct sim_op *op, uint64_t *fields[SIM_PK_WORDS_MAX]);
/* Tells what it touches, as far as is known before (after) a step of it. */
void sim_pk_before(struct sim_op *op, struct sim_pk_state *state, sim_pk_tell_fn tell);
void sim_pk_after(struct sim_op *op, struct sim_pk_state *state, sim_pk_tell_fn tell);

#endif
