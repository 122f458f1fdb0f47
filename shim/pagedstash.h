/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pagedstash.h: what a program may ask of the preloaded library. All of it is optional: a job that knows nothing of
 * pagedstash is paged all the same. The library is not linked but preloaded (`pagedstash run`), so that a program finds
 * these functions at run time, and finds none where it runs alone:
 *
 *     pagedstash_step_fn *step = (pagedstash_step_fn *)dlsym(RTLD_DEFAULT, "pagedstash_step");
 *     if (step != NULL) {
 *         step();
 *     }
 *
 * Threads: each function may be called by any thread at any time, also before the first CUDA call, and returns
 * without waiting for the device. What a call says of "the context" is the one current to the calling thread.
 *
 * Errors: functions return PAGEDSTASH_OK or one of the values below, and change nothing when they fail. They never
 * touch errno nor the CUDA error state.
 *
 * Steps: one ends at each pagedstash_step(); in a process that never calls it, where the library finds the steps
 * itself (or by the range that PAGEDSTASH_STEP names). A group is what one instance of a region has saved.
 */
#ifndef PAGEDSTASH_H
#define PAGEDSTASH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PAGEDSTASH_OK 0
/* The library is there, but passes everything through (PAGEDSTASH_DISABLE, or it had to give up; it said so). */
#define PAGEDSTASH_INACTIVE 1
/* An argument is not as it has to be. */
#define PAGEDSTASH_INVALID 2

/* Bits of `flags`. */
#define PAGEDSTASH_ENABLED 0x1u /* new tensors are taken over */
#define PAGEDSTASH_PLANNED 0x2u /* a learned plan is in force somewhere in the process */
/*
 * All that the step's counters of needed rows say is known. Without it over_budget and rows_needed may still grow: the
 * step's work is still running on the device. It comes once the job has synchronised with that work and its context is
 * current to the caller.
 */
#define PAGEDSTASH_COMPLETE 0x4u

/* Of the last step that has ended, in this process, all contexts together. */
struct pagedstash_status {
    uint32_t size;          /* set by the caller to sizeof(struct pagedstash_status) */
    uint32_t flags;         /* PAGEDSTASH_ENABLED, ... */
    uint64_t step;          /* its number, from 1; 0: none has ended, and all that follows is 0 */
    uint64_t kept_resident; /* groups that stayed in device memory for want of pages */
    uint64_t spilled_bytes; /* copied to pages in host memory */
    /*
     * Where ranges name a counter of the rows that their dispatcher had to deliver (";need=0xADDRESS;capacity=ROWS"):
     * instances that had to deliver more than there was room for. Rows were dropped there.
     */
    uint64_t over_budget;
    uint64_t rows_needed;   /* the most that one instance had to deliver; 0: no range tells */
    uint64_t rows_capacity; /* what that one had room for */
    /*
     * Hundredths: the capacity factor (rows over balanced rows) that would have sufficed for rows_needed, rounded up.
     * 0: the balanced rows are not known (";balanced=ROWS" or PAGEDSTASH_CAPACITY_FACTOR).
     */
    uint64_t factor_needed;
};

/*
 * Fills *status, as much of it as status->size says. PAGEDSTASH_INVALID: status is NULL, or its size is less than that
 * of `size` and `flags`.
 */
int pagedstash_status(struct pagedstash_status *status);

/*
 * enabled 0: from here on regions are not seen and new tensors are left to the job's own allocator, as without the
 * library. Tensors that are out come back when they are touched, as ever. Not 0: as before. For the whole process.
 */
int pagedstash_enable(int enabled);

/*
 * A step ends here, and the next begins: as the push of the range that PAGEDSTASH_STEP names, for the context. From the
 * first call on, steps are no longer looked for. Call it where nothing of a region is in use: before the forward pass.
 */
int pagedstash_step(void);

/*
 * Forgets what was learned of the job's steps: a plan in force is taken down as soon as nothing lies in its places,
 * at the end of a step; then steps are learned anew. For a job that goes on quite differently. What was counted for
 * pagedstash_status and for advice is forgotten too.
 */
int pagedstash_reset(void);

/* "0.1.0" */
const char *pagedstash_version(void);

typedef int pagedstash_status_fn(struct pagedstash_status *status);
typedef int pagedstash_enable_fn(int enabled);
typedef int pagedstash_step_fn(void);
typedef int pagedstash_reset_fn(void);
typedef const char *pagedstash_version_fn(void);

#ifdef __cplusplus
}
#endif

#endif
