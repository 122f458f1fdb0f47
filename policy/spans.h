/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocations of a tape by address: those that live, and those that have died lately, so that
 * an address left over in a launch's parameters is told from any number. Pure; no lock: the
 * caller's.
 */
#ifndef PS_POLICY_SPANS_H
#define PS_POLICY_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_SPANS_DEAD 1024 /* remembered; the oldest is forgotten first */

struct ps_span {
    uint64_t base;
    uint64_t bytes;
    uint32_t number; /* the caller's */
    bool tensor;     /* in a region and large enough */
};

struct ps_spans {
    struct ps_span *live; /* sorted by base, none overlap */
    size_t n_live, room;
    struct ps_span dead[PS_SPANS_DEAD]; /* tensors only: a ring */
    uint64_t n_dead;                    /* ever */
    uint64_t low, high;                 /* no tensor ever was outside of [low, high) */
};

#define PS_NAMED_MAX 4096 /* words of the largest parameters */

/* The tensors that one call names, each once. */
struct ps_named {
    unsigned n_live, n_dead;
    uint32_t live[PS_NAMED_MAX];
    uint32_t dead[PS_NAMED_MAX];
};

void ps_spans_fini(struct ps_spans *s);
/*
 * False when out of memory. A live one that it overlaps must have been freed unseen (by its
 * context's end): it dies.
 */
bool ps_spans_add(struct ps_spans *s, const struct ps_span *span);
/* The live span with that base leaves; false when there is none. */
bool ps_spans_remove(struct ps_spans *s, uint64_t base, struct ps_span *span_p);
/* The live span that holds the address, or NULL. */
const struct ps_span *ps_spans_live(const struct ps_spans *s, uint64_t address);
/* The tensor that held it last, where nothing lives now, or NULL. */
const struct ps_span *ps_spans_dead(const struct ps_spans *s, uint64_t address);
/* Notes the tensor, live or dead, that the address names, if there is one. */
void ps_named_add(struct ps_named *named, const struct ps_spans *s, uint64_t address);

#endif
