/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running device code under page protection: what it touches first is told, what it must not touch ends it. Needs the
 * big lock.
 */
#ifndef SIMCUDA_FAULT_H
#define SIMCUDA_FAULT_H

#include <setjmp.h>

#include "tools/simcuda/sim.h"

/* A run of device addresses of one mapping that the code has touched. */
struct sim_touch {
    CUdeviceptr start, end;
    bool write;
};

/* The operation that runs next; true if it is another one than before, so that all must be declared anew. */
bool sim_fault_begin(const struct sim_op *op);
/*
 * Declares that what the running operation does to this range is told by other means: a mapping of which
 * it touches a declared byte is opened whole and without a record.
 */
void sim_fault_declare(CUdeviceptr base, uint64_t bytes);
/* What was touched since the last sim_fault_forget; valid until then. */
const struct sim_touch *sim_fault_touches(size_t *n_p);
void sim_fault_forget(void);
/* Pages opened for an operation in this range are closed. */
void sim_fault_close(CUdeviceptr base, uint64_t bytes);
/* Runs fn(arg); false when it was ended at an address it had no right to. Steps do not nest. */
bool sim_fault_run(void (*fn)(void *), void *arg, struct sim_fault *fault_p);
/* Inside of fn, for code on another stack: where a fault leads from now on. Returns where it led before. */
sigjmp_buf *sim_fault_escape(sigjmp_buf *to);
/* Inside of fn, on its own stack: a fault that ended code on another stack ends fn too. */
void sim_fault_end(void) __attribute__((noreturn));

#endif
