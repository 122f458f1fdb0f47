/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters and the phase of learning. Each is an atomic of its own, read relaxed: any thread, no lock. The names are
 * those of the metrics file and of `pagedstash demo --json`. The file also holds `bytes_moved`, the sum of
 * bytes_stashed and bytes_restored.
 */
#ifndef PS_SHIM_OBSERVE_H
#define PS_SHIM_OBSERVE_H

#include <stdatomic.h>
#include <stdint.h>

/* PS_COUNTER(name, what it counts) */
#define PS_COUNTERS                                                                                \
    PS_COUNTER(region_instances, "region instances opened")                                        \
    PS_COUNTER(ranges_seen, "NVTX ranges pushed, matching or not")                                 \
    PS_COUNTER(step_ranges, "ranges pushed that begin a step (PAGEDSTASH_STEP)")                   \
    PS_COUNTER(tensors, "allocations taken over")                                                  \
    PS_COUNTER(tensor_bytes, "bytes of allocations taken over")                                    \
    PS_COUNTER(async_allocs_seen, "stream-ordered allocations seen, ours or not")                  \
    PS_COUNTER(left_alone,                                                                         \
               "allocations in a region left to the driver: no stream, or too late to move")       \
    PS_COUNTER(left_alone_bytes, "bytes of those")                                                 \
    PS_COUNTER(passed_through, "region allocations passed on for want of memory or by rule")       \
    PS_COUNTER(touches, "live tensors named by launches, copies and fills")                        \
    PS_COUNTER(stale_touches, "addresses named where no tensor lives")                             \
    PS_COUNTER(stashes, "tensors stashed")                                                         \
    PS_COUNTER(restores, "tensors copied back")                                                    \
    PS_COUNTER(cache_hits, "tensors named while their place was still intact")                     \
    PS_COUNTER(bytes_stashed, "bytes copied out, into pages or to the host")                       \
    PS_COUNTER(bytes_restored, "bytes copied back from there")                                     \
    PS_COUNTER(valid_bytes_stashed, "valid bytes of what was stashed, copied or kept in a home")   \
    PS_COUNTER(uniform_pages, "pages stored as one repeated word")                                 \
    PS_COUNTER(dead_pages, "pages behind the rows that a range counts: not looked at")             \
    PS_COUNTER(bytes_scanned, "bytes of the pages that were looked at")                            \
    PS_COUNTER(rows_counted, "region instances whose rows were counted")                           \
    PS_COUNTER(rows_excluded, "sites where something lay behind the rows counted")                 \
    PS_COUNTER(valid_bytes, "bytes held in pages now")                                             \
    PS_COUNTER(valid_bytes_peak, "most bytes held in pages at one time")                           \
    PS_COUNTER(place_bytes_peak, "most device memory of tensors in their places, free ones too")   \
    PS_COUNTER(page_bytes, "bytes of a page of the pool now")                                      \
    PS_COUNTER(pool_bytes, "device memory of the page pool now")                                   \
    PS_COUNTER(pages_used_peak, "most bytes held in pages since the last plan was taken up")       \
    PS_COUNTER(pool_bytes_peak, "most device memory of the page pool")                             \
    PS_COUNTER(host_pages_bytes, "host memory pinned for pages now")                               \
    PS_COUNTER(bytes_spilled, "bytes copied out, to host memory")                                  \
    PS_COUNTER(copied_out, "bytes that the copy engine copied to the host, for a plan")            \
    PS_COUNTER(copied_in, "bytes that it copied back")                                             \
    PS_COUNTER(limit_bytes, "device memory that the settings allow homes and pages; 0: no limit")  \
    PS_COUNTER(limit_wanted_bytes, "device memory that the plan wants for homes and pages")        \
    PS_COUNTER(limit_short_bytes, "of that, pages that go to the host for the limit's sake")       \
    PS_COUNTER(need_counters, "counters of needed rows read")                                      \
    PS_COUNTER(over_budget, "of those, above the capacity")                                        \
    PS_COUNTER(rows_needed_peak, "most rows that one of them told")                                \
    PS_COUNTER(kept_resident, "groups that stayed for want of pages or gain")                      \
    PS_COUNTER(restores_on_demand, "groups brought back by the first touch of backward")           \
    PS_COUNTER(unplanned_touches, "touches of a tensor that was out, outside of backward's order") \
    PS_COUNTER(steps, "steps that have ended")                                                     \
    PS_COUNTER(plans, "plans taken up")                                                            \
    PS_COUNTER(prefetches, "groups brought back ahead of their first touch")                       \
    PS_COUNTER(late_stashes, "groups that left because another needed their lane")                 \
    PS_COUNTER(plan_misses, "events of a step that its plan did not foresee")                      \
    PS_COUNTER(map_calls, "calls that map or unmap memory, for events of a plan")                  \
    PS_COUNTER(remaps, "the other calls that map or unmap memory")                                 \
    PS_COUNTER(pins, "tensors pinned until freed")                                                 \
    PS_COUNTER(host_syncs, "host waits outside a region boundary")                                 \
    PS_COUNTER(unplanned_waits, "host waits of unplanned touches, for a stash that is on its way") \
    PS_COUNTER(throttle_waits, "host waits at a region boundary")                                  \
    PS_COUNTER(idle_waits, "of those, ended with the GPU's queue empty")                           \
    PS_COUNTER(give_backs, "allocations of the job tried again after giving memory back")          \
    PS_COUNTER(errors, "driver calls of ours that failed")

struct ps_counters {
#define PS_COUNTER(_name, _doc) _Atomic uint64_t _name;
    PS_COUNTERS
#undef PS_COUNTER
};

extern struct ps_counters ps_counters;

/* How far the schedule is known. In the metrics file by these names, in small letters. */
enum ps_phase {
    PS_PHASE_BEGIN,    /* nothing recorded, or what was recorded is not what happens now */
    PS_PHASE_CAPTURE,  /* a step is being recorded or compared */
    PS_PHASE_CAPTURED, /* a plan is followed */
};

#define ps_count(_name, _n)                                                                        \
    ((void)atomic_fetch_add_explicit(&ps_counters._name, (uint64_t)(_n), memory_order_relaxed))
#define ps_counter(_name) (atomic_load_explicit(&ps_counters._name, memory_order_relaxed))
/* Raises a peak to at least value. */
void ps_counter_peak(_Atomic uint64_t *peak, uint64_t value);

/* What the settings allow on the device, what a plan wanted there, and how many bytes of pages are missing; and the
 * factor that would do, in millionths (0: none). For the advice. */
void ps_observe_limit(uint64_t allowed, uint64_t wanted, uint64_t missing, int64_t factor);
/* In a forked child: it counts what it does itself. */
void ps_observe_forked(void);
/* At exit: the metrics file's last line, the summary at info level. No driver call. */
void ps_observe_exit(void);
/* The phase from now on, for the process; says it at info when it is another. */
void ps_observe_phase(enum ps_phase next);
/*
 * A range that is no region: noted for the advice at exit, and a line of the metrics file if PAGEDSTASH_METRICS_RANGES
 * matches it. Not under the engine's lock: it writes to the file.
 */
void ps_observe_range(const char *name);

#endif
