/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations by address; see spans.h. */
#include "policy/spans.h"

#include <stdlib.h>
#include <string.h>

static bool holds(const struct ps_span *s, uint64_t address)
{
    return address - s->base < s->bytes;
}

/* The first live one whose base is above the address. */
static size_t above(const struct ps_spans *s, uint64_t address)
{
    size_t low = 0, high = s->n_live;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (s->live[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void ps_spans_fini(struct ps_spans *s)
{
    free(s->live);
    memset(s, 0, sizeof(*s));
}

static void remove_at(struct ps_spans *s, size_t i)
{
    if (s->live[i].tensor) {
        s->dead[s->n_dead++ % PS_SPANS_DEAD] = s->live[i];
    }
    memmove(&s->live[i], &s->live[i + 1], (s->n_live - i - 1) * sizeof(s->live[0]));
    s->n_live--;
}

bool ps_spans_add(struct ps_spans *s, const struct ps_span *span)
{
    size_t i = above(s, span->base);

    if (span->tensor) {
        s->low = s->high == 0 || span->base < s->low ? span->base : s->low;
        s->high = span->base + span->bytes > s->high ? span->base + span->bytes : s->high;
    }
    if (i > 0 && holds(&s->live[i - 1], span->base)) {
        remove_at(s, --i);
    }
    while (i < s->n_live && s->live[i].base - span->base < span->bytes) {
        remove_at(s, i);
    }
    if (s->n_live == s->room) {
        const size_t room = s->room == 0 ? 1024 : 2 * s->room;
        void *more = realloc(s->live, room * sizeof(s->live[0]));

        if (more == NULL) {
            return false;
        }
        s->live = more;
        s->room = room;
    }
    memmove(&s->live[i + 1], &s->live[i], (s->n_live - i) * sizeof(s->live[0]));
    s->live[i] = *span;
    s->n_live++;
    return true;
}

bool ps_spans_remove(struct ps_spans *s, uint64_t base, struct ps_span *span_p)
{
    const size_t i = above(s, base);

    if (i == 0 || s->live[i - 1].base != base) {
        return false;
    }
    *span_p = s->live[i - 1];
    remove_at(s, i - 1);
    return true;
}

const struct ps_span *ps_spans_live(const struct ps_spans *s, uint64_t address)
{
    const size_t i = above(s, address);

    return i > 0 && holds(&s->live[i - 1], address) ? &s->live[i - 1] : NULL;
}

const struct ps_span *ps_spans_dead(const struct ps_spans *s, uint64_t address)
{
    const uint64_t n = s->n_dead < PS_SPANS_DEAD ? s->n_dead : PS_SPANS_DEAD;

    if (n == 0 || address < s->low || address >= s->high || ps_spans_live(s, address) != NULL) {
        return NULL;
    }
    for (uint64_t i = 1; i <= n; i++) {
        const struct ps_span *dead = &s->dead[(s->n_dead - i) % PS_SPANS_DEAD];

        if (holds(dead, address)) {
            return dead;
        }
    }
    return NULL;
}

static void add_once(uint32_t *list, unsigned *n_p, uint32_t number)
{
    for (unsigned i = 0; i < *n_p; i++) {
        if (list[i] == number) {
            return;
        }
    }
    if (*n_p < PS_NAMED_MAX) {
        list[(*n_p)++] = number;
    }
}

void ps_named_add(struct ps_named *named, const struct ps_spans *s, uint64_t address)
{
    if (address < s->low || address >= s->high) {
        return;
    }
    const struct ps_span *span = ps_spans_live(s, address);

    if (span != NULL) {
        if (span->tensor) {
            add_once(named->live, &named->n_live, span->number);
        }
        return;
    }
    span = ps_spans_dead(s, address);
    if (span != NULL) {
        add_once(named->dead, &named->n_dead, span->number);
    }
}
