/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the checker (hb.c, hb_shadow.c, hb_report.c) share; guarded by the simulator's lock. */
#ifndef SIMCUDA_HB_INT_H
#define SIMCUDA_HB_INT_H

#include "tools/simcuda/hb.h"

#define LABEL_MAX 24
#define NOTE_MAX  32

struct hb_op {
    struct hb *hb;
    unsigned refs;
    unsigned actor;
    uint64_t epoch; /* its number among the operations of the actor */
    uint64_t seq;   /* the caller's number */
    bool claims;
    unsigned n_clock;
    uint64_t *clock; /* clock[a] = k: ordered after the first k operations of actor a */
    char name[64];
    char label[LABEL_MAX]; /* of the actor when enqueued: places of actors are reused */
    char note[NOTE_MAX];   /* an empty wait before it, or "" */
};

struct actor {
    bool used;
    bool ended;
    uint64_t epoch; /* operations begun so far */
    uint64_t *clock;
    unsigned n_clock;
    char label[LABEL_MAX];
    char note[NOTE_MAX];
};

/* One access that is still remembered. */
struct seen {
    struct hb_op *op;
    uint64_t map;   /* serial of the mapping gone through */
    uint64_t delta; /* virtual address minus offset in the unit */
    bool atomic;
    bool freed;
};

struct segment {
    uint64_t start; /* ends where the next one starts */
    struct hb_map *owner;
    bool written;
    struct seen write;  /* op NULL: none */
    struct seen *reads; /* reads and atomic accesses since the last write */
    size_t n_reads;
    size_t max_reads;
};

struct hb_unit {
    uint64_t bytes;
    struct segment *segments;
    size_t n_segments;
    size_t max_segments;
    char label[LABEL_MAX];
};

struct hb_map {
    struct hb_unit *unit;
    uint64_t serial;
    uint64_t offset;
    uint64_t bytes;
    uint64_t address;
    bool owned;           /* has owned some of it since it was mapped */
    struct hb_op **users; /* last operation of each actor that went through it */
    size_t n_users;
    size_t max_users;
};

struct hb {
    struct actor *actors;
    unsigned n_actors;
    size_t max_actors;
    uint64_t next_map;
    bool warn_unwritten;
    uint64_t granule;
    struct hb_report *reports;
    unsigned n_reports;
    unsigned max_reports;
    uint64_t n_seen[HB_N_KINDS];
    hb_report_fn fn;
    void *arg;
};

/* What is being done to a segment. */
struct doing {
    struct hb *hb;
    struct hb_op *op;
    struct hb_map *map;
    enum hb_mode mode;
};

/* hb.c: memory of the checker's own; running out ends the process. */
void *hb_zalloc(size_t n, size_t size);
/* Room for one more element in a growing array of n. */
void *hb_grow(void *array, size_t n, size_t *max_p, size_t size);
void hb_copy_text(char *to, size_t size, const char *from);

static inline uint64_t hb_clock_at(const uint64_t *clock, unsigned n, unsigned actor)
{
    return actor < n ? clock[actor] : 0;
}

static inline uint64_t hb_map_delta(const struct hb_map *map)
{
    return map->address - map->offset;
}

/* hb_report.c; range is [0] start and [1] end of the bytes in the unit. */
void hb_report_pair(const struct doing *d, enum hb_kind kind, const struct seen *prev, bool wrote,
                    const uint64_t range[2]);
void hb_report_owner(const struct doing *d, const struct segment *s, const uint64_t range[2]);
void hb_report_unwritten(const struct doing *d, const uint64_t range[2]);
void hb_report_in_flight(struct hb *hb, const struct hb_map *map, const struct hb_op *user,
                         const struct hb_op *now);

#endif
