/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes of the tails that are out go to host memory, when they leave and when they come back, if the device's
 * pages do not reach; planned for a step whose moves are known (plan.h). Pure, no threads; memory linear in the items,
 * time by the items and their logarithm, except ps_spill_bound.
 *
 * The model. The job goes from event to event in the times of the step, and stands still where something is not done
 * yet: that is a wait. Bytes go to the host and back on a link of so many bytes a second each way, both ways at once;
 * what moves on the device takes no time. The bytes of an item
 *   from `leave` are in its lane: they can go to the host from there, or to device pages;
 *   at `gone` are in device pages or on the host. The job waits until there are pages for the rest (a);
 *   before `come` may come back into device pages that are free until then;
 *   from `come` have their lane again, and can come back into it. Device pages are free from then on;
 *   at `due` are all in their lane. The job waits until they are (b).
 *
 * The rule. A byte goes to the host only if there would not be pages for all at some later `gone`, and as late as the
 * link's rate allows without a wait: then more is known of what is needed last. Of all that are out, those go that come
 * back last, page by page. They come back as soon as pages are free that nobody needs before, first those due first.
 *
 * Megatron-LM's rule, to compare with: whole tensors, on the device if there are pages enough when they leave, else all
 * of it to the host at once; back when the lane is its own again.
 */
#ifndef PS_POLICY_SPILL_H
#define PS_POLICY_SPILL_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/base/status.h"
#include "policy/plan.h"

/* Bytes a second each way, where nobody says: pinned copies of an H200, PCI Express 5 (docs/benchmarks/kernels.md). */
#define PS_LINK_RATE UINT64_C(55000000000)

/* A tensor's tail while it is out; events of the step, leave <= gone <= come <= due. */
struct ps_spill_item {
    uint64_t bytes; /* of its pages */
    uint32_t group, tensor;
    uint32_t leave, gone;
    uint32_t come; /* or freed; the number of events: neither in this step */
    uint32_t due;  /* PS_PLAN_NONE: it does not come back, it is freed while it is out */
};

struct ps_spill_step {
    const uint64_t *times_ns; /* of the events; a later one is never earlier */
    const struct ps_spill_item *items;
    uint32_t n_events, n_items;
};

struct ps_spill_settings {
    uint64_t device_bytes; /* of pages */
    uint64_t link_rate;    /* bytes a second, each way; not 0 */
};

enum ps_spill_rule {
    PS_SPILL_LAST_NEEDED, /* ours */
    PS_SPILL_FIRST_COME,  /* Megatron-LM's */
};

/* What becomes of an item. Of its pages, the last host_bytes go (any would do). */
struct ps_spill_move {
    uint64_t host_bytes;
    uint64_t direct_bytes; /* of them: from the lane, without a device page */
    uint32_t out;  /* event behind which the first byte may leave; PS_PLAN_NONE: none does */
    uint32_t back; /* event behind which the first may come back; PS_PLAN_NONE */
};

struct ps_spill {
    struct ps_spill_move *moves; /* by item */
    uint32_t n_moves;
    uint64_t wait_ns;    /* all waits of a step */
    uint64_t out_bytes;  /* to the host in a step */
    uint64_t host_bytes; /* the most there at once */
};

/*
 * The items of step number `kind` of those the plan was made from. A tail whose valid bytes are not known counts as
 * the fullest of its site, or as full. items: room for step->n_tensors. PS_ERR_MEMORY.
 */
enum ps_status PS_MUST_CHECK ps_spill_items(const struct ps_plan *plan,
                                            const struct ps_plan_step *step, uint32_t kind,
                                            uint64_t page_bytes, struct ps_spill_item *items,
                                            uint32_t *n_items_p);
/*
 * PS_ERR_MEMORY, or PS_ERR_INVALID: an item's events are out of order or not of the step, or the settings are not
 * sound. On failure *spill_p is untouched.
 */
enum ps_status PS_MUST_CHECK ps_spill_plan(const struct ps_spill_step *step,
                                           const struct ps_spill_settings *settings,
                                           enum ps_spill_rule rule, struct ps_spill *spill_p);
void ps_spill_fini(struct ps_spill *spill);
/*
 * No rule waits less: between two moments no more bytes cross the link than its rate allows, whatever is chosen.
 * Takes the square of the number of items.
 */
enum ps_status PS_MUST_CHECK ps_spill_bound(const struct ps_spill_step *step,
                                            const struct ps_spill_settings *settings,
                                            uint64_t *wait_ns_p);

#endif
