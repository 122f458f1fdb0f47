/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happens-before checker: actors, clocks and operations; what they mean stands in hb.h. Guarded by the
 * simulator's lock.
 *
 * Running out of host memory ends the process: a checker that forgets accesses would be silent about races.
 */
#include "tools/simcuda/hb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/hb_int.h"

/* ---- memory of our own ---- */

static void *need(void *p)
{
    if (p == NULL) {
        fputs("simcuda: the checker is out of host memory\n", stderr);
        abort();
    }
    return p;
}

void *hb_zalloc(size_t n, size_t size)
{
    return need(calloc(n, size));
}

void *hb_grow(void *array, size_t n, size_t *max_p, size_t size)
{
    if (n < *max_p) {
        return array;
    }
    *max_p = *max_p == 0 ? 4 : *max_p * 2;
    return need(reallocarray(array, *max_p, size));
}

void hb_copy_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

/* ---- the checker ---- */

struct hb *hb_create(unsigned max_reports, hb_report_fn fn, void *arg)
{
    struct hb *hb = hb_zalloc(1, sizeof(*hb));

    hb->reports = hb_zalloc(max_reports == 0 ? 1 : max_reports, sizeof(*hb->reports));
    hb->max_reports = max_reports;
    hb->fn = fn;
    hb->arg = arg;
    hb->next_map = 1;
    hb->granule = 1;
    (void)hb_actor_create(hb, "host");
    return hb;
}

void hb_destroy(struct hb *hb)
{
    if (hb == NULL) {
        return;
    }
    for (unsigned i = 0; i < hb->n_actors; i++) {
        free(hb->actors[i].clock);
    }
    free(hb->actors);
    free(hb->reports);
    free(hb);
}

void hb_warn_unwritten(struct hb *hb, bool on)
{
    hb->warn_unwritten = on;
}

void hb_set_granule(struct hb *hb, uint64_t bytes)
{
    hb->granule = bytes;
}

/* ---- clocks ---- */

static void clock_reach(uint64_t **clock_p, unsigned *n_p, unsigned n)
{
    if (n > *n_p) {
        *clock_p = need(reallocarray(*clock_p, n, sizeof(**clock_p)));
        memset(*clock_p + *n_p, 0, (n - *n_p) * sizeof(**clock_p));
        *n_p = n;
    }
}

/* *clock_p becomes the maximum, element by element, of itself and from. */
static void clock_join(uint64_t **clock_p, unsigned *n_p, const uint64_t *from, unsigned n_from)
{
    clock_reach(clock_p, n_p, n_from);
    for (unsigned i = 0; i < n_from; i++) {
        if ((*clock_p)[i] < from[i]) {
            (*clock_p)[i] = from[i];
        }
    }
}

static void actor_join(struct actor *to, const uint64_t *from, unsigned n_from)
{
    clock_join(&to->clock, &to->n_clock, from, n_from);
}

/* An ended actor's place, once the host knows that all its work is over; else a new place. */
static unsigned actor_place(struct hb *hb)
{
    for (unsigned i = 1; i < hb->n_actors; i++) {
        const struct actor *a = &hb->actors[i];
        const struct actor *host = &hb->actors[HB_HOST];

        if (a->ended && hb_clock_at(host->clock, host->n_clock, i) >= a->epoch) {
            return i;
        }
    }
    hb->actors = hb_grow(hb->actors, hb->n_actors, &hb->max_actors, sizeof(*hb->actors));
    memset(&hb->actors[hb->n_actors], 0, sizeof(*hb->actors));
    return hb->n_actors++;
}

unsigned hb_actor_create(struct hb *hb, const char *label)
{
    const unsigned i = actor_place(hb);
    struct actor *a = &hb->actors[i];

    a->used = true;
    a->ended = false;
    a->note[0] = '\0';
    hb_copy_text(a->label, sizeof(a->label), label);
    if (i != HB_HOST) {
        actor_join(a, hb->actors[HB_HOST].clock, hb->actors[HB_HOST].n_clock);
    }
    return i;
}

void hb_actor_end(struct hb *hb, unsigned actor)
{
    hb->actors[actor].ended = true;
}

void hb_join(struct hb *hb, unsigned to, unsigned from)
{
    if (to != from) {
        actor_join(&hb->actors[to], hb->actors[from].clock, hb->actors[from].n_clock);
    }
}

void hb_join_op(struct hb *hb, unsigned to, const struct hb_op *op)
{
    actor_join(&hb->actors[to], op->clock, op->n_clock);
}

void hb_note_empty_wait(struct hb *hb, unsigned actor, const char *what)
{
    hb_copy_text(hb->actors[actor].note, sizeof(hb->actors[actor].note), what);
}

/* ---- operations ---- */

static struct hb_op *op_new(struct hb *hb, unsigned actor, const char *name, uint64_t seq)
{
    struct actor *a = &hb->actors[actor];
    struct hb_op *op = hb_zalloc(1, sizeof(*op));

    op->hb = hb;
    op->refs = 1;
    op->actor = actor;
    op->epoch = a->epoch;
    op->seq = seq;
    hb_copy_text(op->name, sizeof(op->name), name);
    hb_copy_text(op->label, sizeof(op->label), a->label);
    hb_copy_text(op->note, sizeof(op->note), a->note);
    clock_join(&op->clock, &op->n_clock, a->clock, a->n_clock);
    return op;
}

struct hb_op *hb_op_begin(struct hb *hb, unsigned actor, const char *name, uint64_t seq)
{
    struct actor *a = &hb->actors[actor];

    hb_join(hb, actor, HB_HOST);
    clock_reach(&a->clock, &a->n_clock, actor + 1);
    a->clock[actor] = ++a->epoch;
    return op_new(hb, actor, name, seq);
}

struct hb_op *hb_op_mark(struct hb *hb, unsigned actor, const char *name, uint64_t seq)
{
    hb_join(hb, actor, HB_HOST);
    return op_new(hb, actor, name, seq);
}

void hb_op_after(struct hb_op *op, const struct hb_op *before)
{
    clock_join(&op->clock, &op->n_clock, before->clock, before->n_clock);
}

void hb_op_claims(struct hb_op *op)
{
    op->claims = true;
}

struct hb_op *hb_op_ref(struct hb_op *op)
{
    op->refs++;
    return op;
}

void hb_op_unref(struct hb_op *op)
{
    if (op == NULL || --op->refs > 0) {
        return;
    }
    free(op->clock);
    free(op);
}

bool hb_op_ordered(const struct hb_op *first, const struct hb_op *second)
{
    return hb_clock_at(second->clock, second->n_clock, first->actor) >= first->epoch;
}

bool hb_known(const struct hb *hb, unsigned actor, const struct hb_op *op)
{
    const struct actor *a = &hb->actors[actor];

    return hb_clock_at(a->clock, a->n_clock, op->actor) >= op->epoch;
}
