/* SPDX-License-Identifier: Apache-2.0 */
/* Where the groups of a recorded step return; see struct ps_seg_touch. Linear. The caller's lock is held. */
#include <stdlib.h>

#include "policy/segment.h"

/* The most that is named of a group at one place. */
struct most {
    uint32_t tensors, touches;
};

static struct most *measure(const struct ps_record *r)
{
    struct most *all = calloc(r->n_groups + 1u, sizeof(*all));

    for (uint32_t i = 0; all != NULL && i < r->n_touches; i++) {
        const struct ps_seg_touch *t = &r->touches[i];
        struct most *m = &all[t->group];

        m->tensors = t->n_tensors > m->tensors ? t->n_tensors : m->tensors;
        m->touches = t->n_touches > m->touches ? t->n_touches : m->touches;
    }
    return all;
}

static bool is_enough(const struct most *m, const struct ps_seg_touch *t)
{
    return 2 * (uint64_t)t->n_tensors > m->tensors &&
           (m->tensors > 1 || 2 * (uint64_t)t->n_touches >= m->touches);
}

/* A set of (group, place): open addressing, `mask` + 1 slots, 0 is empty. */
static uint64_t hash(const struct ps_seg_touch *t)
{
    const uint64_t h = (t->place ^ (uint64_t)t->group << 20) * UINT64_C(0x9e3779b97f4a7c15);

    return h ^ h >> 29;
}

static bool find(const struct ps_record *r, const uint32_t *slots, uint64_t mask,
                 const struct ps_seg_touch *t)
{
    for (uint64_t i = hash(t) & mask; slots[i] != 0; i = (i + 1) & mask) {
        const struct ps_seg_touch *other = &r->touches[slots[i] - 1];

        if (other->group == t->group && other->place == t->place) {
            return true;
        }
    }
    return false;
}

/* The places of the record where enough is named. */
static uint32_t *make_set(const struct ps_record *r, uint64_t *mask_p)
{
    uint64_t mask = 15;

    while (mask < 2 * (uint64_t)r->n_touches) {
        mask = mask * 2 + 1;
    }
    uint32_t *slots = calloc(mask + 1, sizeof(*slots));
    struct most *most = measure(r);

    for (uint32_t i = 0; slots != NULL && most != NULL && i < r->n_touches; i++) {
        const struct ps_seg_touch *t = &r->touches[i];
        uint64_t at = hash(t) & mask;

        if (!is_enough(&most[t->group], t)) {
            continue;
        }
        while (slots[at] != 0) {
            at = (at + 1) & mask;
        }
        slots[at] = i + 1;
    }
    if (most == NULL) {
        free(slots);
        slots = NULL;
    }
    free(most);
    *mask_p = mask;
    return slots;
}

/* What a pass over the touches knows. */
struct pass {
    const struct ps_record *r, *other;
    const struct most *most;
    const uint32_t *slots; /* NULL: any place will do */
    uint64_t mask;
    uint32_t last_group, last_event; /* of the latest return */
};

/* Could it have left by then: a push since its pop, or a return of another group? */
static bool behind_boundary(const struct pass *p, const struct ps_seg_touch *t)
{
    const struct ps_seg_group *g = &p->r->groups[t->group];

    return t->place >> 32 > g->pushes ||
           (p->last_group != PS_PLAN_NONE && p->last_group != t->group && p->last_event >= g->pop);
}

static void run_pass(struct pass *p, uint32_t *touch_p, bool *same)
{
    for (uint32_t i = 0; i < p->r->n_touches; i++) {
        const struct ps_seg_touch *t = &p->r->touches[i];
        const struct ps_seg_group *g = &p->r->groups[t->group];

        if (touch_p[t->group] == PS_PLAN_NONE && !g->returned && behind_boundary(p, t) &&
            is_enough(&p->most[t->group], t) &&
            (p->slots == NULL || find(p->other, p->slots, p->mask, t))) {
            touch_p[t->group] = i;
            *same =
                *same && (p->slots != NULL || p->other == NULL || !p->other->groups[t->group].held);
        }
        if (touch_p[t->group] == i) {
            p->last_group = t->group;
            p->last_event = t->event;
        }
    }
}

bool ps_record_returns(const struct ps_record *r, const struct ps_record *other, uint32_t *touch_p,
                       bool *same_p)
{
    struct most *most = measure(r);
    struct pass pass = {.r = r, .other = other, .most = most, .last_group = PS_PLAN_NONE};
    uint32_t *slots = other != NULL ? make_set(other, &pass.mask) : NULL;

    if (most == NULL || (other != NULL && slots == NULL)) {
        free(most);
        free(slots);
        return false;
    }
    for (uint32_t g = 0; g < r->n_groups; g++) {
        touch_p[g] = PS_PLAN_NONE;
    }
    *same_p = true;
    if (other != NULL) { /* common places first, then the record's own */
        pass.slots = slots;
        run_pass(&pass, touch_p, same_p);
        pass.slots = NULL;
        pass.last_group = PS_PLAN_NONE;
    }
    run_pass(&pass, touch_p, same_p);
    free(most);
    free(slots);
    return true;
}
