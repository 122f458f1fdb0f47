/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happens-before checker: vector clocks for the host and for streams, and for every byte of physical device
 * memory, and of pinned host memory, the last write, the reads since, and the mapping (virtual address) that owns it.
 * A pair of accesses that no edge orders is reported whatever order ran. Pure C: knows nothing of CUDA, maps and
 * touches nothing.
 *
 * Not thread-safe: all calls of one checker are made under the simulator's lock.
 *
 * Actors. HB_HOST, and one for every stream. Host threads share HB_HOST: what one thread tells another (mutexes,
 * joins, queues) is invisible to a driver, so driver calls count as ordered as they were made. That can hide a race
 * between two host threads; it can never invent one.
 *
 * Operations. Everything a stream executes is an operation, begun when it is ENQUEUED: its clock is fixed then
 * (all that the host knew, all earlier work of the stream, all events the stream was made to wait for). Its accesses
 * are told when it RUNS. The caller never runs an operation before one it is ordered after.
 *
 * Owners. A physical byte may be mapped at several addresses. Its owner is
 *   (a) the first mapping it gets while nothing owns it (a mapping that goes away owns nothing), or
 *   (b) the mapping through which a claiming operation (a fill, ps_restore, ps_clean) last wrote it.
 * Any other access through a mapping that is not the owner is reported.
 */
#ifndef SIMCUDA_HB_H
#define SIMCUDA_HB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HB_HOST     0u
#define HB_TEXT_MAX 1024

enum hb_kind {
    HB_WRITE_WRITE, /* two writes, neither ordered before the other */
    HB_READ_WRITE,  /* a read, then a write that nothing orders after it */
    HB_WRITE_READ,  /* a write, then a read that nothing orders after it */
    HB_NEVER_OWNED, /* access through an address that has not been filled or restored since it was mapped */
    HB_OWNER_CHANGED, /* access through an address whose memory has been given to another address since */
    HB_FAULT,         /* access to an address where nothing is mapped */
    HB_IN_FLIGHT, /* unmapped (or released) while an operation using it is not known to have finished */
    HB_ALIASES,   /* one operation reads through one address what it writes through another */
    HB_UNWRITTEN, /* read of memory nobody has written; off unless hb_warn_unwritten */
    HB_ENDING,    /* a call uses a context while another thread destroys it */
    HB_N_KINDS
};

enum hb_mode {
    HB_READ,
    HB_WRITE,
    HB_ATOMIC, /* list memory: unordered with another atomic access is fine, with a plain one it is not */
    HB_BIRTH, /* allocated: forgets all history, owns it, nothing written yet */
    HB_DEATH  /* freed: conflicts like a write */
};

struct hb;      /* a checker */
struct hb_op;   /* an operation; counted references */
struct hb_unit; /* physical memory: a handle or an allocation */
struct hb_map;  /* a range of a unit mapped at a virtual address */

struct hb_report {
    enum hb_kind kind;
    char first[64];  /* name of the earlier operation; empty if there is none */
    char second[64]; /* name of the later one */
    uint64_t count;  /* times seen; the text is that of the first */
    char text[HB_TEXT_MAX];
};

/* Called for each new report (not for repetitions); under the simulator's lock. */
typedef void (*hb_report_fn)(void *arg, const struct hb_report *report);

/* NULL when out of memory. max_reports: distinct reports kept; further ones are only counted. */
struct hb *hb_create(unsigned max_reports, hb_report_fn fn, void *arg);
void hb_destroy(struct hb *hb);
void hb_warn_unwritten(struct hb *hb, bool on);
/* Ownership is kept for whole granules (a power of two, 1 at first): a claim of a part claims all of it. */
void hb_set_granule(struct hb *hb, uint64_t bytes);

/* ---- actors and edges ---- */
/* A new stream; label is for reports ("stream 3"). Places of ended actors are reused once that hides nothing. */
unsigned hb_actor_create(struct hb *hb, const char *label);
void hb_actor_end(struct hb *hb, unsigned actor);
/* All that `to` does from now on is ordered after all that `from` was given so far (legacy barriers, host sync). */
void hb_join(struct hb *hb, unsigned to, unsigned from);
/* All that `to` does from now on is ordered after this operation (and what it was ordered after). */
void hb_join_op(struct hb *hb, unsigned to, const struct hb_op *op);

/* ---- operations ---- */
/* Enqueues an operation of a stream. name is copied; seq is the caller's number, for reports. One reference. */
struct hb_op *hb_op_begin(struct hb *hb, unsigned actor, const char *name, uint64_t seq);
/* A point in the work of an actor, as an event record makes it. One reference; accesses are possible, not usual. */
struct hb_op *hb_op_mark(struct hb *hb, unsigned actor, const char *name, uint64_t seq);
/* What an operation does from now on is ordered after another (edges inside a graph, or that the run shows). */
void hb_op_after(struct hb_op *op, const struct hb_op *before);
/* Declares that the operation claims what it writes. */
void hb_op_claims(struct hb_op *op);
struct hb_op *hb_op_ref(struct hb_op *op);
void hb_op_unref(struct hb_op *op); /* NULL is fine */
bool hb_op_ordered(const struct hb_op *first, const struct hb_op *second);
/* All that the actor does from now on is ordered after the operation already. */
bool hb_known(const struct hb *hb, unsigned actor, const struct hb_op *op);
/* The stream waited for something that was never recorded: no edge, but told in reports about this stream. */
void hb_note_empty_wait(struct hb *hb, unsigned actor, const char *what);

/* ---- memory ---- */
/* New physical memory with no history. label is for reports ("handle 12"). */
struct hb_unit *hb_unit_create(struct hb *hb, uint64_t bytes, const char *label);
/* All of a new unit counts as written: somebody who is not seen here writes it. */
void hb_unit_written(struct hb_unit *unit);
/* The memory is gone; its mappings must be gone too. */
void hb_unit_destroy(struct hb *hb, struct hb_unit *unit);
/* [address, address + bytes) now shows unit from offset on. NULL when out of memory. */
struct hb_map *hb_map(struct hb *hb, struct hb_unit *unit, uint64_t offset, uint64_t bytes,
                      uint64_t address);
/*
 * The host takes the mapping away, by a call named `name`. Reports operations that used it and are not ordered before
 * the host's present. by: NULL, or the stream operation that frees it in stream order (then that one's clock counts).
 */
void hb_unmap(struct hb *hb, struct hb_map *map, const char *name, const struct hb_op *by);

/* The operation reads, writes or moves [offset, offset + bytes) of the mapping. */
void hb_access(struct hb *hb, struct hb_op *op, struct hb_map *map, uint64_t offset, uint64_t bytes,
               enum hb_mode mode);
/* The operation that wrote the byte last, or NULL; borrowed. */
struct hb_op *hb_last_write(struct hb_map *map, uint64_t offset);
/* The operation touched an address where nothing is mapped. */
void hb_fault(struct hb *hb, struct hb_op *op, uint64_t address, bool write);
/* The call uses a context that another thread's call is destroying. */
void hb_ending(struct hb *hb, const char *call);

/* ---- reports ---- */
unsigned hb_n_reports(const struct hb *hb);                 /* distinct ones kept */
uint64_t hb_n_seen(const struct hb *hb, enum hb_kind kind); /* with repetitions */
const struct hb_report *hb_report_at(const struct hb *hb, unsigned index);
const char *hb_kind_name(enum hb_kind kind);

#endif
