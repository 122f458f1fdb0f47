/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the software driver and the happens-before checker: tells hb which operations exist, what orders them, and
 * which physical bytes each of them touches through which mapping. Guarded by the big lock.
 *
 * Copies, fills and the stash kernels declare their ranges, exact to the byte, those in pinned host memory too. What
 * any other kernel touches is seen by page faults (fault.c), so two kernels that write neighbouring parts of one block
 * look like a conflict; what it, or the host, touches in host memory is not seen.
 *
 * What an operation is ordered after is noted when it is queued and folded into its clock when it first matters, which
 * is after all of it has run: so edges that only show in the run (waits on a value) are in it.
 */
#include "tools/simcuda/access.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"
#include "tools/simcuda/fault.h"
#include "tools/simcuda/hb.h"
#include "tools/simcuda/late.h"
#include "tools/simcuda/pagekernels.h"

#define REPORTS_MAX 64
#define VALUES_MAX  256

/* Of an operation: what is known of its order. Of a stream: its actor and its newest operation's. */
struct sim_hb_clock {
    unsigned refs;
    unsigned actor;
    struct hb_op *op;             /* NULL in a stream's */
    struct sim_hb_clock **before; /* not folded into op yet */
    size_t n_before;
    struct sim_hb_clock *newest; /* of a stream */
    struct sim_pk_state pages;   /* of a stash kernel */
};

/* Physical pages that were handed out in one piece. */
struct unit {
    struct hb_unit *hb;
    uint64_t first_page;
    uint64_t n_pages; /* still its own */
    uint64_t n_runs;  /* mapped pieces */
};

/* A mapped piece that is contiguous in one unit. */
struct run {
    uint64_t offset; /* from the mapping's base */
    uint64_t bytes;
    struct unit *unit;
    struct hb_map *map;
};

struct checked {
    CUdeviceptr base;
    uint64_t bytes;
    struct run *runs;
    size_t n_runs;
    struct hb_op *freed; /* the stream-ordered free that ended it, or NULL */
};

/* The last write of a value operation to an address, device or host. */
struct value {
    CUdeviceptr address;
    struct sim_hb_clock *clock;
};

/* Who gave a page last through this slot of a free list. */
struct giver {
    CUdeviceptr slot; /* 0: none */
    struct sim_hb_clock *clock;
};

/* The newest operation of a stream that is gone, until the host knows of it. */
struct orphan {
    struct orphan *next;
    struct sim_ctx *ctx;
    bool blocking;
    struct sim_hb_clock *clock;
};

static struct hb *hb;
static struct orphan *orphans;
static struct unit **page_units; /* by physical page */
static struct checked **checked; /* by address */
static size_t n_checked, max_checked;
static struct value values[VALUES_MAX];
static size_t n_values;
static struct giver *givers; /* a hash table */
static size_t n_givers, max_givers;

/* ---- reports ---- */

static void print_report(void *arg, const struct hb_report *report)
{
    const char *line = report->text;

    (void)arg;
    while (*line != '\0') {
        const int length = (int)strcspn(line, "\n");

        sim_report("check: %.*s", length, line);
        line += length;
        line += *line == '\n';
    }
}

static bool on(void)
{
    if (!sim_options.check) {
        return false;
    }
    if (hb == NULL) {
        const uint64_t n_devices = sim_options.devices > 0 ? (uint64_t)sim_options.devices : 1;

        hb = hb_create(REPORTS_MAX, print_report, NULL);
        hb_set_granule(hb, SIM_PAGE);
        page_units = sim_calloc(n_devices * sim_options.mem / SIM_PAGE, sizeof(struct unit *));
    }
    return true;
}

uint64_t sim_check_reports(void)
{
    return hb == NULL ? 0 : hb_n_reports(hb);
}

uint64_t sim_check_finish(void)
{
    const uint64_t n = sim_check_reports();

    for (unsigned i = 0; i < n; i++) {
        const struct hb_report *r = hb_report_at(hb, i);

        sim_report("check: %u of %llu: %s: '%s' then '%s', %llu times", i + 1,
                   (unsigned long long)n, hb_kind_name(r->kind), r->first, r->second,
                   (unsigned long long)r->count);
    }
    return n;
}

uint64_t simcuda_check_count(void)
{
    sim_lock();
    const uint64_t n = sim_check_reports();

    sim_unlock();
    return n;
}

int simcuda_check_kind(uint64_t index, const char **first_p, const char **second_p)
{
    sim_lock();
    const struct hb_report *r = hb == NULL ? NULL : hb_report_at(hb, (unsigned)index);

    sim_unlock();
    if (r == NULL) {
        return -1;
    }
    if (first_p != NULL) {
        *first_p = r->first;
    }
    if (second_p != NULL) {
        *second_p = r->second;
    }
    return (int)r->kind;
}

const char *simcuda_check_text(uint64_t index)
{
    sim_lock();
    const struct hb_report *r = hb == NULL ? NULL : hb_report_at(hb, (unsigned)index);

    sim_unlock();
    return r == NULL ? NULL : r->text;
}

void simcuda_check_unwritten(int enable)
{
    sim_lock();
    if (on()) {
        hb_warn_unwritten(hb, enable != 0);
    }
    sim_unlock();
}

/* ---- clocks ---- */

static void clock_unref(struct sim_hb_clock *c)
{
    if (c == NULL || --c->refs > 0) {
        return;
    }
    for (size_t i = 0; i < c->n_before; i++) {
        clock_unref(c->before[i]);
    }
    free(c->before);
    hb_op_unref(c->op);
    free(c);
}

/* Takes in what it is ordered after, all of which has run. The chains end at the last operation that did it. */
static struct hb_op *clock_settle(struct sim_hb_clock *c)
{
    for (size_t i = 0; i < c->n_before; i++) {
        hb_op_after(c->op, clock_settle(c->before[i]));
        clock_unref(c->before[i]);
    }
    free(c->before);
    c->before = NULL;
    c->n_before = 0;
    return c->op;
}

static void clock_after(struct sim_hb_clock *c, const struct sim_op *op)
{
    if (op == NULL || op->clock == NULL) {
        return;
    }
    if (op->state == SIM_OP_DONE) {
        (void)clock_settle(op->clock);
    }
    op->clock->refs++;
    sim_push(&c->before, &c->n_before, op->clock);
}

static void stream_label(const struct sim_stream *s, char *text, size_t size)
{
    static const char *const kinds[] = {
        [SIM_STREAM_LEGACY] = "the legacy stream",
        [SIM_STREAM_PER_THREAD] = "per-thread stream",
        [SIM_STREAM_CREATED] = "stream",
    };

    snprintf(text, size, "%s %u", kinds[s->kind], s->id);
}

static struct sim_hb_clock *stream_clock(struct sim_stream *s)
{
    if (s->clock == NULL) {
        char label[32];

        stream_label(s, label, sizeof(label));
        s->clock = sim_calloc(1, sizeof(*s->clock));
        s->clock->actor = hb_actor_create(hb, label);
    }
    return s->clock;
}

static bool op_claims(const struct sim_op *op)
{
    return op->kind == SIM_OP_FILL || (op->kind == SIM_OP_KERNEL && sim_pk_claims(op));
}

void sim_check_empty_wait(struct sim_stream *stream)
{
    if (on()) {
        hb_note_empty_wait(hb, stream_clock(stream)->actor, "an event");
    }
}

void sim_check_op_queued(struct sim_op *op, struct sim_thread *thread)
{
    (void)thread;
    if (!on()) {
        return;
    }
    struct sim_hb_clock *s = stream_clock(op->stream);
    struct sim_hb_clock *c = sim_calloc(1, sizeof(*c));
    const struct sim_hb_clock *prev = op->prev == NULL ? NULL : op->prev->clock;
    const bool in_line = s->newest == prev;

    c->refs = 1;
    c->actor = s->actor;
    if (!in_line) {
        /* It does not follow the stream's newest operation, so it must not look as if it did. */
        char label[32];

        stream_label(op->stream, label, sizeof(label));
        c->actor = hb_actor_create(hb, label);
    }
    c->op = hb_op_begin(hb, c->actor, op->name != NULL ? op->name : "operation", op->serial);
    if (op_claims(op)) {
        hb_op_claims(c->op);
    }
    clock_after(c, op->prev);
    for (size_t i = 0; i < op->n_deps; i++) {
        clock_after(c, op->deps[i]);
    }
    for (const struct orphan *o = orphans; o != NULL && op->stream->kind == SIM_STREAM_LEGACY;
         o = o->next) {
        if (o->ctx == op->ctx && o->blocking) {
            o->clock->refs++;
            sim_push(&c->before, &c->n_before, o->clock);
        }
    }
    op->clock = c;
    if (in_line) {
        clock_unref(s->newest);
        c->refs++;
        s->newest = c;
    } else {
        hb_actor_end(hb, c->actor);
    }
}

void sim_check_op_gone(struct sim_op *op)
{
    clock_unref(op->clock);
    op->clock = NULL;
}

/* Forgets the orphans that the host knows of. */
static void orphans_prune(void)
{
    for (struct orphan **link = &orphans; *link != NULL;) {
        struct orphan *o = *link;

        if (hb_known(hb, HB_HOST, clock_settle(o->clock))) {
            *link = o->next;
            clock_unref(o->clock);
            free(o);
        } else {
            link = &o->next;
        }
    }
}

void sim_check_stream_gone(struct sim_stream *stream)
{
    if (stream->clock == NULL) {
        return;
    }
    hb_actor_end(hb, stream->clock->actor);
    if (stream->clock->newest != NULL) {
        struct orphan *o = sim_calloc(1, sizeof(*o));

        *o = (struct orphan){orphans, stream->ctx, stream->blocking, stream->clock->newest};
        orphans = o;
        orphans_prune();
    }
    free(stream->clock);
    stream->clock = NULL;
}

void sim_check_ending(const char *call)
{
    if (on()) {
        hb_ending(hb, call);
    }
}

void sim_check_ctx_saw(struct sim_ctx *ctx)
{
    if (on()) {
        for (const struct orphan *o = orphans; o != NULL; o = o->next) {
            if (o->ctx == ctx) {
                hb_join_op(hb, HB_HOST, clock_settle(o->clock));
            }
        }
        orphans_prune();
    }
    sim_late_learned();
}

void sim_check_thread_gone(struct sim_thread *thread)
{
    (void)thread; /* host threads share one clock: hb.h */
}

void sim_check_host_saw(struct sim_thread *thread, struct sim_op *op)
{
    (void)thread;
    if (on() && op->clock != NULL) {
        hb_join_op(hb, HB_HOST, clock_settle(op->clock));
    }
    sim_late_learned();
}

bool sim_check_host_knows(struct sim_op *op)
{
    return !on() || op->clock == NULL || hb_known(hb, HB_HOST, clock_settle(op->clock));
}

/* ---- physical memory and mappings ---- */

static void unit_reap(struct unit *u)
{
    if (u->n_pages == 0 && u->n_runs == 0) {
        hb_unit_destroy(hb, u->hb);
        free(u);
    }
}

void sim_check_pages_fresh(uint64_t first_page, uint64_t n_pages)
{
    if (!on()) {
        return;
    }
    char label[64];
    struct unit *u = sim_calloc(1, sizeof(*u));

    snprintf(label, sizeof(label), "page %llu on", (unsigned long long)first_page);
    u->hb = hb_unit_create(hb, n_pages * SIM_PAGE, label);
    u->first_page = first_page;
    u->n_pages = n_pages;
    for (uint64_t p = first_page; p < first_page + n_pages; p++) {
        if (page_units[p] != NULL) {
            page_units[p]->n_pages--;
            unit_reap(page_units[p]);
        }
        page_units[p] = u;
    }
}

/* Index of the first mapping that ends behind the address. */
static size_t checked_index(CUdeviceptr address)
{
    size_t low = 0;
    size_t high = n_checked;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (checked[middle]->base + checked[middle]->bytes <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static struct checked *checked_find(CUdeviceptr address)
{
    const size_t i = checked_index(address);

    return i < n_checked && checked[i]->base <= address ? checked[i] : NULL;
}

/* The piece of the mapping that begins at the offset. */
static struct run run_at(const struct sim_mapping *m, uint64_t offset)
{
    uint64_t page = 0;

    (void)sim_va_find(m->base + offset, NULL, &page);
    struct run r = {.offset = offset, .unit = page_units[page]};
    const uint64_t first = page;
    uint64_t next = page;

    while (offset + r.bytes < m->bytes && sim_va_find(m->base + offset + r.bytes, NULL, &next) &&
           next == first + r.bytes / SIM_PAGE && page_units[next] == r.unit) {
        r.bytes += SIM_PAGE;
    }
    r.map =
        hb_map(hb, r.unit->hb, (first - r.unit->first_page) * SIM_PAGE, r.bytes, m->base + offset);
    r.unit->n_runs++;
    return r;
}

void sim_check_mapped(const struct sim_mapping *m)
{
    if (m->owner == SIM_OWNER_MANAGED || !on()) {
        return;
    }
    struct checked *c = sim_calloc(1, sizeof(*c));

    c->base = m->base;
    c->bytes = m->bytes;
    for (uint64_t offset = 0; offset < m->bytes;) {
        c->runs = sim_realloc(c->runs, (c->n_runs + 1) * sizeof(*c->runs));
        c->runs[c->n_runs] = run_at(m, offset);
        offset += c->runs[c->n_runs++].bytes;
    }
    const size_t i = checked_index(m->base);

    if (n_checked == max_checked) {
        max_checked = max_checked == 0 ? 256 : max_checked * 2;
        checked = sim_realloc(checked, max_checked * sizeof(struct checked *));
    }
    memmove(&checked[i + 1], &checked[i], (n_checked - i) * sizeof(struct checked *));
    checked[i] = c;
    n_checked++;
}

void sim_check_unmapping(const struct sim_mapping *m)
{
    if (m->owner == SIM_OWNER_MANAGED || !on()) {
        return;
    }
    const char *name = m->owner == SIM_OWNER_VMM ? "cuMemUnmap" : "cuMemFree";
    const size_t i = checked_index(m->base);
    struct checked *c = checked[i];

    sim_fault_close(m->base, m->bytes);
    for (size_t r = 0; r < c->n_runs; r++) {
        hb_unmap(hb, c->runs[r].map, name, c->freed);
        c->runs[r].unit->n_runs--;
        unit_reap(c->runs[r].unit);
    }
    n_checked--;
    memmove(&checked[i], &checked[i + 1], (n_checked - i) * sizeof(struct checked *));
    hb_op_unref(c->freed);
    free(c->runs);
    free(c);
}

/* ---- accesses ---- */

/* Bytes without a mapping are left out: they fault elsewhere. */
static void access_range(struct hb_op *op, CUdeviceptr address, uint64_t bytes, enum hb_mode mode)
{
    const CUdeviceptr end = address + bytes;

    while (address < end) {
        const struct checked *c = checked_find(address);

        if (c == NULL) {
            return;
        }
        for (size_t i = 0; i < c->n_runs; i++) {
            const struct run *r = &c->runs[i];
            const CUdeviceptr start = c->base + r->offset;
            const CUdeviceptr from = address > start ? address : start;
            const CUdeviceptr to = end < start + r->bytes ? end : start + r->bytes;

            if (from < to) {
                hb_access(hb, op, r->map, from - start, to - from, mode);
            }
        }
        address = c->base + c->bytes;
    }
}

void sim_check_range(struct sim_op *op, CUdeviceptr address, uint64_t bytes, bool write)
{
    if (!on() || op->clock == NULL) {
        return;
    }
    const bool value = op->kind == SIM_OP_WRITE_VALUE || op->kind == SIM_OP_WAIT_VALUE;

    access_range(clock_settle(op->clock), address, bytes,
                 value   ? HB_ATOMIC
                 : write ? HB_WRITE
                         : HB_READ);
}

void sim_check_value(struct sim_op *op, CUdeviceptr address)
{
    if (!on() || op->clock == NULL) {
        return;
    }
    size_t i = 0;

    while (i < n_values && values[i].address != address) {
        i++;
    }
    if (op->kind == SIM_OP_WAIT_VALUE) {
        if (i < n_values) {
            hb_op_after(clock_settle(op->clock), clock_settle(values[i].clock));
        }
        return;
    }
    if (i == n_values && n_values < VALUES_MAX) {
        n_values++;
    } else {
        i = i == n_values ? op->serial % VALUES_MAX : i;
        clock_unref(values[i].clock);
    }
    op->clock->refs++;
    values[i] = (struct value){address, op->clock};
}

/* An act of the host on memory: ordered after all it knows, and before what it queues from now on. */
static void host_access(const char *name, CUdeviceptr base, uint64_t bytes, enum hb_mode mode)
{
    struct hb_op *op = hb_op_begin(hb, HB_HOST, name, 0);

    access_range(op, base, bytes, mode);
    hb_op_unref(op);
}

/* The operation that ended the use of a pool's memory at this address for now; the mapping may live on. */
static void set_freed(CUdeviceptr base, struct hb_op *freed)
{
    struct checked *c = checked_find(base);

    if (c != NULL) {
        hb_op_unref(c->freed);
        c->freed = freed == NULL ? NULL : hb_op_ref(freed);
    }
}

void sim_check_alloc(struct sim_op *op, CUdeviceptr base, uint64_t bytes)
{
    if (!on()) {
        return;
    }
    set_freed(base, NULL);
    if (op == NULL || op->clock == NULL) {
        host_access("cuMemAlloc", base, bytes, HB_BIRTH);
        return;
    }
    access_range(clock_settle(op->clock), base, bytes, HB_BIRTH);
}

void sim_check_free(struct sim_op *op, CUdeviceptr base, uint64_t bytes)
{
    if (!on()) {
        return;
    }
    if (op == NULL || op->clock == NULL) {
        host_access("cuMemFree", base, bytes, HB_DEATH);
        return;
    }
    access_range(clock_settle(op->clock), base, bytes, HB_DEATH);
    set_freed(base, op->clock->op);
}

/* ---- pinned host memory, as far as copies, fills and the stash kernels use it ---- */

struct sim_check_area {
    struct hb_unit *unit;
    struct hb_map *map;
};

static void access_host(struct hb_op *op, CUdeviceptr address, uint64_t bytes, enum hb_mode mode)
{
    struct sim_hostmem *h =
        sim_hostmem_find((const void *)(uintptr_t)address); /* NOLINT(performance-no-int-to-ptr) */

    if (h == NULL) {
        hb_fault(hb, op, address, mode == HB_WRITE);
        return;
    }
    const CUdeviceptr base = (CUdeviceptr)(uintptr_t)h->base;

    if (h->check == NULL) {
        h->check = sim_calloc(1, sizeof(*h->check));
        h->check->unit = hb_unit_create(hb, h->bytes, "pinned host memory");
        hb_unit_written(h->check->unit); /* by the host */
        h->check->map = hb_map(hb, h->check->unit, 0, h->bytes, base);
    }
    const uint64_t left = h->bytes - (address - base);

    hb_access(hb, op, h->check->map, address - base, bytes < left ? bytes : left, mode);
}

void sim_check_host_range(struct sim_op *op, const void *address, uint64_t bytes, bool write)
{
    if (on() && op->clock != NULL && sim_hostmem_find(address) != NULL) {
        access_host(clock_settle(op->clock), (CUdeviceptr)(uintptr_t)address, bytes,
                    write ? HB_WRITE : HB_READ);
    }
}

void sim_check_hostmem_gone(struct sim_hostmem *h)
{
    if (h->check != NULL) {
        hb_unmap(hb, h->check->map, "cuMemFreeHost", NULL);
        hb_unit_destroy(hb, h->check->unit);
        free(h->check);
        h->check = NULL;
    }
}

/* ---- device code ---- */

static void tell_touches(struct sim_op *op)
{
    size_t n;
    const struct sim_touch *t = sim_fault_touches(&n);

    for (size_t i = 0; i < n; i++) {
        access_range(op->clock->op, t[i].start, t[i].end - t[i].start,
                     t[i].write ? HB_WRITE : HB_READ);
    }
    sim_fault_forget();
}

/* The entry of the slot, or the free one where it would be; there is one. */
static struct giver *giver_at(CUdeviceptr slot)
{
    size_t i = (size_t)(slot / sizeof(uint32_t) * UINT64_C(0x9e3779b97f4a7c15) >> 20);

    while (givers[i & (max_givers - 1)].slot != 0 && givers[i & (max_givers - 1)].slot != slot) {
        i++;
    }
    return &givers[i & (max_givers - 1)];
}

static void givers_grow(void)
{
    struct giver *old = givers;
    const size_t n_old = max_givers;

    max_givers = n_old == 0 ? 256 : 2 * n_old;
    givers = sim_calloc(max_givers, sizeof(*givers));
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].slot != 0) {
            *giver_at(old[i].slot) = old[i];
        }
    }
    free(old);
}

static void note_giver(struct sim_hb_clock *clock, CUdeviceptr slot)
{
    if (2 * n_givers >= max_givers) {
        givers_grow();
    }
    struct giver *g = giver_at(slot);

    n_givers += g->slot == 0;
    clock->refs++;
    clock_unref(g->clock);
    *g = (struct giver){slot, clock};
}

static void follow_giver(struct sim_hb_clock *clock, CUdeviceptr slot)
{
    const struct giver *g = n_givers == 0 ? NULL : giver_at(slot);

    if (g != NULL && g->slot == slot) {
        hb_op_after(clock->op, clock_settle(g->clock));
    }
}

static void tell_range(void *arg, CUdeviceptr address, uint64_t bytes, enum sim_pk_mode mode)
{
    static const enum hb_mode modes[] = {
        [SIM_PK_READ] = HB_READ,  [SIM_PK_WRITE] = HB_WRITE, [SIM_PK_LIST] = HB_ATOMIC,
        [SIM_PK_GIVE] = HB_WRITE, [SIM_PK_CLAIM] = HB_READ,
    };
    struct sim_op *op = arg;

    if (mode == SIM_PK_GIVE) {
        note_giver(op->clock, address);
    } else if (mode == SIM_PK_CLAIM) {
        follow_giver(op->clock, address);
    }
    if (mode == SIM_PK_HOST_READ || mode == SIM_PK_HOST_WRITE) {
        access_host(op->clock->op, address, bytes, mode == SIM_PK_HOST_READ ? HB_READ : HB_WRITE);
    } else {
        access_range(op->clock->op, address, bytes, modes[mode]);
    }
}

bool sim_access_run(struct sim_op *op, void (*fn)(void *), void *arg, struct sim_fault *fault_p)
{
    const bool checks = on() && op->clock != NULL;
    const bool knows = checks && sim_pk_known(op);

    if (checks) {
        (void)clock_settle(op->clock);
    }
    if (sim_fault_begin(op) && knows) {
        sim_pk_declare(op);
    }
    if (knows) {
        sim_pk_before(op, &op->clock->pages, tell_range);
    }
    const bool fine = sim_fault_run(fn, arg, fault_p);

    if (!checks) {
        return fine;
    }
    if (knows) {
        sim_pk_after(op, &op->clock->pages, tell_range);
    }
    tell_touches(op);
    if (!fine) {
        hb_fault(hb, op->clock->op, fault_p->address, fault_p->write);
    }
    return fine;
}
