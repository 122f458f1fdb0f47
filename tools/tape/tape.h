/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tape in memory, ready to be played: records with their handles and addresses resolved to
 * numbers, and for each tensor that a call names whether it may be read and written there without a
 * race. load.c makes it, order.c finds the races, play.c makes the calls. Written by one thread,
 * read-only while it is played.
 */
#ifndef TAPE_TAPE_H
#define TAPE_TAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/tape.h"

#define TAPE_THREADS_MAX 1024u
#define TAPE_NONE        UINT32_MAX
#define TAPE_RESULT_CUT  120 /* bytes of an error's text */

enum tape_mode {
    TAPE_NAMED, /* in the parameters only: unordered with a write, or freed meanwhile */
    TAPE_READ,
    TAPE_WRITE /* and read */
};

/* A live tensor that a call names. */
struct tape_access {
    uint32_t alloc;
    uint32_t mode;
};

/* An address in a launch's parameters or a copy's payload. */
struct tape_word {
    uint32_t at; /* in the raw bytes */
    uint32_t alloc;
    uint64_t delta; /* from its base, scaled */
};

struct tape_extent {
    uint32_t alloc;        /* or TAPE_NONE: not memory of the tape's */
    uint64_t delta, bytes; /* scaled */
};

struct tape_event {
    uint32_t kind; /* enum ps_tape_kind */
    uint32_t thread;
    uint32_t stream;  /* number, for kinds that have one */
    uint32_t thing;   /* event, allocation, string; or the device of a context */
    uint32_t form;    /* or flags, or a query's result */
    int32_t priority; /* or the value of a fill */
    uint32_t n_access, n_words, n_raw;
    struct tape_access *access;
    struct tape_word *words;
    uint8_t *raw; /* parameters as the replay passes them, or a payload */
    struct tape_extent dst, src;
    uint32_t result; /* of a launch: its place among its stream's results */
};

struct tape_alloc {
    uint64_t bytes; /* scaled */
    uint32_t form;
    uint32_t stream;
    bool tensor;
    bool freed;
};

struct tape_stream {
    uint64_t handle; /* 1 and 2: the default ones */
    uint32_t thread; /* of a per-thread default stream */
    uint32_t flags;
    int32_t priority;
    uint32_t device;
    uint32_t n_results; /* launches that access something */
    bool created;       /* on the tape; else made at the start */
};

struct tape_cuda_event {
    uint32_t flags;
    uint32_t device;
    bool created;
};

struct tape {
    struct ps_tape_head head;
    uint64_t scale; /* sizes are divided by it */
    struct tape_event *events;
    size_t n_events;
    struct tape_alloc *allocs;
    uint32_t n_allocs;
    struct tape_stream *streams;
    uint32_t n_streams;
    struct tape_cuda_event *cuda_events;
    uint32_t n_cuda_events;
    char **strings;
    uint32_t n_strings;
    uint32_t n_threads;
    uint32_t n_devices;
    uint64_t counts[PS_TAPE_N_COUNTS]; /* as read */
    uint64_t told[PS_TAPE_N_COUNTS];   /* as the recorder counted */
    uint64_t n_left_out;               /* calls that are on the tape by name only */
    uint64_t n_races;                  /* accesses left out by order.c */
    bool cut;
    bool ended; /* told is there */
    char error[TAPE_RESULT_CUT];
};

/* The size that stands for `bytes`. */
uint64_t tape_scaled(const struct tape *t, uint64_t bytes);

/* False with t->error set. tape_fini in any case. */
bool tape_load(struct tape *t, const void *data, size_t size, uint64_t scale);
void tape_fini(struct tape *t);

/* Decides each access' mode. False when out of memory. */
bool tape_order(struct tape *t);

struct tape_played {
    uint64_t hash; /* of all that was read */
    uint64_t n_touches, n_stale_touches, n_tensor_frees;
};
/*
 * Plays all of it. Of each tensor that a launch writes, the last `padding` percent stay. False, and
 * a line on stderr, when the driver refuses something.
 */
bool tape_play(const struct tape *t, unsigned padding, struct tape_played *played_p);

#endif
