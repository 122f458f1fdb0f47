/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces (docs/trace.md): read, and played to a segmenter, so that they become the steps that the engine would have
 * recorded. Pure; one thread.
 */
#ifndef PS_POLICY_TRACE_H
#define PS_POLICY_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/region.h"
#include "policy/segment.h"

#define PS_TRACE_MAGIC       "#pagedstash-trace"
#define PS_TRACE_VERSION     1
#define PS_TRACE_THREADS_MAX 4096
#define PS_TRACE_NONE        UINT32_MAX

/* ---- reading ---- */

enum ps_trace_kind {
    PS_TRACE_CONTEXT,
    PS_TRACE_PUSH,
    PS_TRACE_POP,
    PS_TRACE_ALLOC,
    PS_TRACE_FREE,
    PS_TRACE_LAUNCH,
    PS_TRACE_COPY,
    PS_TRACE_FILL,
    PS_TRACE_VALID,
    PS_TRACE_SMALL,
    PS_TRACE_CUT, /* the rest was not written */
    PS_TRACE_END,
};

struct ps_trace_event {
    uint64_t time_ns; /* 0 in the old form */
    uint64_t bytes;   /* of a context: its number */
    uint8_t kind;     /* enum ps_trace_kind */
    uint16_t thread;
    uint32_t first, n_ids; /* of the allocations named: into ids */
    uint32_t text;         /* of a push: its name, into texts */
};

struct ps_trace_alloc {
    uint32_t id; /* as in the file */
    bool live;
    bool ordered;     /* stream-ordered: may be a tensor */
    bool told;        /* its valid bytes, sooner or later */
    uint32_t ordinal; /* in its region; PS_TRACE_NONE: not told */
    uint64_t bytes;
};

struct ps_trace {
    bool old;           /* constant sizes, regions' allocations only, no times, no valid bytes */
    bool cut;           /* by its limit, or in the middle of a line */
    uint64_t min_bytes; /* 0: not told */
    char regions[1024], step[1024];
    struct ps_trace_event *events;
    struct ps_trace_alloc *allocs;
    uint32_t *ids; /* indices of allocations */
    char *texts;
    uint32_t n_events, n_allocs, n_ids, n_texts;
    uint32_t n_threads, n_valid; /* the highest number and one; events that tell valid bytes */
    char error[160];             /* of a failure, with the line */
};

/* False: t->error says why. In any case ps_trace_fini must follow. */
bool ps_trace_read(struct ps_trace *t, const char *data, size_t size);
void ps_trace_fini(struct ps_trace *t);

/* ---- playing ---- */

#define PS_TRACE_CONTEXTS_MAX 32
#define PS_TRACE_NAMES_MAX    256

struct ps_trace_settings {
    const char *regions; /* patterns */
    const char *step;    /* pattern; "": steps are found */
    uint64_t min_bytes;  /* of a tensor */
    uint32_t
        valid_parts; /* of a million, of tensors whose valid bytes are not told; 0: they stay unknown */
};

/* What one context's steps were. */
struct ps_trace_context {
    uint64_t number;
    struct ps_segment segment;
    uint64_t other_bytes, region_bytes; /* live; region_bytes: of tensors */
    uint64_t peak_bytes;                /* of both */
    uint64_t begin_ns;                  /* of the step */
    uint64_t kind_ns[PS_KINDS_MAX];     /* from one begin to the next, the latest; 0: not known */
    uint32_t n_steps, n_incomplete, n_tensors;
};

struct ps_trace_play {
    struct ps_trace_context contexts[PS_TRACE_CONTEXTS_MAX];
    uint32_t n_contexts;
    char names[PS_TRACE_NAMES_MAX][PS_REGION_NAME_MAX]; /* of regions; number - 1 */
    uint32_t n_names;
    uint32_t n_told, n_assumed; /* tensors whose valid bytes were told, were assumed */
};

/* PS_ERR_MEMORY, or PS_ERR_INVALID: too many patterns. In any case ps_trace_play_fini must follow. */
enum ps_status PS_MUST_CHECK ps_trace_play(const struct ps_trace *t,
                                           const struct ps_trace_settings *settings,
                                           struct ps_trace_play *play);
void ps_trace_play_fini(struct ps_trace_play *play);
/* The context with the most tensors; NULL: there is none with any. */
struct ps_trace_context *ps_trace_busiest(struct ps_trace_play *play);

#endif
