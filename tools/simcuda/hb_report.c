/* SPDX-License-Identifier: Apache-2.0 */
/* Happens-before checker: its reports, worded for people. Guarded by the simulator's lock. */
#include "tools/simcuda/hb.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tools/simcuda/hb_int.h"

static const char *const kind_names[HB_N_KINDS] = {
    [HB_WRITE_WRITE] = "two unordered writes",
    [HB_READ_WRITE] = "write not ordered after a read",
    [HB_WRITE_READ] = "read not ordered after a write",
    [HB_NEVER_OWNED] = "access before fill or restore",
    [HB_OWNER_CHANGED] = "access through an address that lost its memory",
    [HB_FAULT] = "access where nothing is mapped",
    [HB_IN_FLIGHT] = "unmapped while in use",
    [HB_ALIASES] = "one operation uses two addresses of the same memory",
    [HB_UNWRITTEN] = "read of memory never written",
    [HB_ENDING] = "context used while it is destroyed",
};

const char *hb_kind_name(enum hb_kind kind)
{
    return kind_names[kind];
}

unsigned hb_n_reports(const struct hb *hb)
{
    return hb->n_reports;
}

uint64_t hb_n_seen(const struct hb *hb, enum hb_kind kind)
{
    return hb->n_seen[kind];
}

const struct hb_report *hb_report_at(const struct hb *hb, unsigned index)
{
    return index < hb->n_reports ? &hb->reports[index] : NULL;
}

__attribute__((format(printf, 2, 3))) static void add_text(struct hb_report *r, const char *fmt,
                                                           ...)
{
    const size_t used = strlen(r->text);
    va_list args;

    va_start(args, fmt);
    vsnprintf(r->text + used, sizeof(r->text) - used, fmt, args);
    va_end(args);
}

/* The place for a new report, or NULL when it is a repetition or there are too many. */
static struct hb_report *report_new(struct hb *hb, enum hb_kind kind, const char *first,
                                    const char *second)
{
    hb->n_seen[kind]++;
    for (unsigned i = 0; i < hb->n_reports; i++) {
        struct hb_report *r = &hb->reports[i];

        if (r->kind == kind && strcmp(r->first, first) == 0 && strcmp(r->second, second) == 0) {
            r->count++;
            return NULL;
        }
    }
    if (hb->n_reports == hb->max_reports) {
        return NULL;
    }
    struct hb_report *r = &hb->reports[hb->n_reports++];

    memset(r, 0, sizeof(*r));
    r->kind = kind;
    r->count = 1;
    hb_copy_text(r->first, sizeof(r->first), first);
    hb_copy_text(r->second, sizeof(r->second), second);
    add_text(r, "%s\n", kind_names[kind]);
    return r;
}

static void report_done(struct hb *hb, struct hb_report *r)
{
    if (hb->fn != NULL) {
        hb->fn(hb->arg, r);
    }
}

static void tell_op(struct hb_report *r, const char *role, const struct hb_op *op)
{
    add_text(r, "  %s: '%s' on %s (its operation %" PRIu64 ", number %" PRIu64 ")", role, op->name,
             op->label, op->epoch, op->seq);
}

static void tell_missing(struct hb_report *r, const struct hb_op *first, const struct hb_op *second)
{
    add_text(r,
             "  missing: an edge from %s, operation %" PRIu64
             " or later, to %s before its operation %" PRIu64
             "; it is ordered only after %s's first"
             " %" PRIu64 "\n",
             first->label, first->epoch, second->label, second->epoch, first->label,
             hb_clock_at(second->clock, second->n_clock, first->actor));
    if (second->note[0] != '\0') {
        add_text(r, "  note: %s waited for %s, which had never been recorded: no edge\n",
                 second->label, second->note);
    }
}

static const char *const mode_names[] = {
    [HB_READ] = "reads",      [HB_WRITE] = "writes", [HB_ATOMIC] = "moves",
    [HB_BIRTH] = "allocates", [HB_DEATH] = "frees",
};

static void tell_where(struct hb_report *r, const struct doing *d, uint64_t start, uint64_t end)
{
    add_text(r, "  memory: %s, bytes 0x%" PRIx64 " to 0x%" PRIx64 "\n", d->map->unit->label, start,
             end);
}

/* Only the operation is left of an earlier access; its mode at that place is told by what it was kept as. */
static const char *past_verb(const struct seen *prev, bool wrote)
{
    if (prev->freed) {
        return "freed";
    }
    return !wrote ? "read" : prev->atomic ? "moved" : "wrote";
}

void hb_report_pair(const struct doing *d, enum hb_kind kind, const struct seen *prev, bool wrote,
                    const uint64_t range[2])
{
    struct hb_report *r = report_new(d->hb, kind, prev->op->name, d->op->name);

    if (r == NULL) {
        return;
    }
    tell_op(r, "first", prev->op);
    add_text(r, " %s it at 0x%" PRIx64 "\n", past_verb(prev, wrote), prev->delta + range[0]);
    tell_op(r, "then", d->op);
    add_text(r, " %s it at 0x%" PRIx64 "\n", mode_names[d->mode], hb_map_delta(d->map) + range[0]);
    tell_where(r, d, range[0], range[1]);
    if (kind != HB_ALIASES) {
        tell_missing(r, prev->op, d->op);
    }
    report_done(d->hb, r);
}

void hb_report_owner(const struct doing *d, const struct segment *s, const uint64_t range[2])
{
    const enum hb_kind kind = d->map->owned ? HB_OWNER_CHANGED : HB_NEVER_OWNED;
    const char *last = s->write.op != NULL ? s->write.op->name : "";
    struct hb_report *r = report_new(d->hb, kind, last, d->op->name);

    if (r == NULL) {
        return;
    }
    tell_op(r, "access", d->op);
    add_text(r, " %s 0x%" PRIx64 "\n", mode_names[d->mode], hb_map_delta(d->map) + range[0]);
    if (s->owner != NULL) {
        add_text(r, "  owner: the same memory at 0x%" PRIx64 "\n",
                 hb_map_delta(s->owner) + range[0]);
    } else {
        add_text(r, "  owner: none since its last address was unmapped\n");
    }
    if (s->write.op != NULL) {
        tell_op(r, "last written", s->write.op);
        add_text(r, " at 0x%" PRIx64 "\n", s->write.delta + range[0]);
    }
    tell_where(r, d, range[0], range[1]);
    add_text(r, "  missing: a fill or restore through this address before the access\n");
    report_done(d->hb, r);
}

void hb_report_unwritten(const struct doing *d, const uint64_t range[2])
{
    struct hb_report *r = report_new(d->hb, HB_UNWRITTEN, "", d->op->name);

    if (r == NULL) {
        return;
    }
    tell_op(r, "access", d->op);
    add_text(r, " reads 0x%" PRIx64 "\n", hb_map_delta(d->map) + range[0]);
    tell_where(r, d, range[0], range[1]);
    report_done(d->hb, r);
}

void hb_report_in_flight(struct hb *hb, const struct hb_map *map, const struct hb_op *user,
                         const struct hb_op *now)
{
    struct hb_report *r = report_new(hb, HB_IN_FLIGHT, user->name, now->name);

    if (r == NULL) {
        return;
    }
    tell_op(r, "first", user);
    add_text(r, " uses it\n");
    tell_op(r, "then", now);
    add_text(r, " takes it away\n");
    add_text(r, "  memory: %s at 0x%" PRIx64 ", %" PRIu64 " bytes\n", map->unit->label,
             map->address, map->bytes);
    tell_missing(r, user, now);
    report_done(hb, r);
}

void hb_fault(struct hb *hb, struct hb_op *op, uint64_t address, bool write)
{
    struct hb_report *r = report_new(hb, HB_FAULT, "", op->name);

    if (r == NULL) {
        return;
    }
    tell_op(r, "access", op);
    add_text(r, " %s 0x%" PRIx64 "\n", write ? "writes" : "reads", address);
    add_text(r, "  missing: memory mapped there (and kept mapped) until the operation is over\n");
    report_done(hb, r);
}

void hb_ending(struct hb *hb, const char *call)
{
    struct hb_report *r = report_new(hb, HB_ENDING, "", call);

    if (r == NULL) {
        return;
    }
    add_text(r, "  then: %s, while another thread is inside the call that destroys it\n", call);
    add_text(r, "  missing: nothing; no call may use a context during its destruction\n");
    report_done(hb, r);
}
