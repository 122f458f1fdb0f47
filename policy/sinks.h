/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which groups' tails go to host memory by copies of the copy engine, planned with the step. Such a tail is stashed
 * into a *stage*, device memory for the pages of one group, which are copied to a *sink*, as large, in pinned host
 * memory; on their way back they are copied into a stage again and restored from there. Only the device knows how many
 * pages it were, so the copy engine moves as many as there usually are, and few blocks of a kernel what is beyond: what
 * a kernel writes to the host stalls the job's, what the copy engine does not (docs/benchmarks/kernels.md).
 *
 * Who goes is said by the rule of spill.h, group by group: if any of its pages would, all of them do. Pure, no threads.
 * Units: bytes, pages.
 */
#ifndef PS_POLICY_SINKS_H
#define PS_POLICY_SINKS_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/base/status.h"
#include "policy/plan.h"

#define PS_SINKS_SEEN 8 /* of so many stashes what is usual is the mean, about */
#define PS_STAGES_MAX 2 /* one is being filled or emptied while the other is copied */

struct ps_sinks_settings {
    uint64_t page_bytes;
    uint64_t device_bytes; /* of pages and stages together */
    bool beside;         /* should that be too little for a stage, there are stages all the same */
    uint64_t host_bytes; /* of sinks */
    uint64_t link_rate;  /* bytes a second, each way; not 0 */
};

struct ps_sinks {
    /*
     * By step of the plan, then group: what the tails of such a group take on the average, at least 1; 0: it does not
     * go. Such are all as large, whatever they hold: how many rows come is another matter at every step.
     */
    uint32_t **usual;
    uint8_t **seen; /* likewise: how often what it takes was seen since, PS_SINKS_SEEN at most */
    uint32_t *n_groups;
    uint32_t n_steps;
    uint32_t stage_pages; /* of each stage and sink; 0: nothing goes */
    uint32_t n_stages, n_sinks;
    uint64_t device_bytes; /* what stages leave of it */
};

/*
 * For the plan made from these steps. Nothing goes, if all finds pages on the device, a stage or the sinks have no
 * room, or times are not known. PS_ERR_MEMORY: *sinks_p is untouched.
 */
enum ps_status PS_MUST_CHECK ps_sinks_choose(const struct ps_plan *plan,
                                             const struct ps_plan_step *steps, uint32_t n_steps,
                                             const struct ps_sinks_settings *settings,
                                             struct ps_sinks *sinks_p);
void ps_sinks_fini(struct ps_sinks *sinks);

/* One of a group that goes took so many pages. What was planned, the most there may be, counts only until then. */
void ps_sinks_see(struct ps_sinks *sinks, uint32_t step, uint32_t group, uint64_t pages);

#endif
