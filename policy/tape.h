/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tapes: the driver calls of a job in a file (docs/tape.md). Written by the shim, read by
 * pagedstash-tape. A tape is a header and records; a record is its kind, the length of what
 * follows, the thread's number, the time since the record before, the kind's numbers, and bytes.
 * Pure; no lock: the caller's.
 */
#ifndef PS_POLICY_TAPE_H
#define PS_POLICY_TAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_TAPE_MAGIC       "PSTAPE\r\n"
#define PS_TAPE_MAGIC_BYTES 8
#define PS_TAPE_VERSION     1
#define PS_TAPE_FIELDS_MAX  12
#define PS_TAPE_VARINT_MAX  10 /* bytes of one number */
/* A record without its bytes at most. */
#define PS_TAPE_HEAD_MAX   ((PS_TAPE_FIELDS_MAX + 4) * (size_t)PS_TAPE_VARINT_MAX)
#define PS_TAPE_PARAMS_MAX 32768u /* bytes of one launch's parameters */

/* X(kind, number, fields): numbers are never given anew, fields never change within a version. */
#define PS_TAPE_KINDS(X)                                                                           \
    X(STRING, 1, 1)        /* id | text */                                                         \
    X(CONTEXT, 2, 2)       /* context, device: the thread's from here on */                        \
    X(FUNCTION, 3, 3)      /* id, string, parameters | offset and size of each */                  \
    X(ALLOC, 4, 5)         /* form, stream, address, bytes, in a region */                         \
    X(FREE, 5, 3)          /* form, stream, address */                                             \
    X(LAUNCH, 6, 11)       /* function, stream, form, grid, block, shared, bytes | changes */      \
    X(COPY, 7, 11)         /* form, stream, dst, src, width, height, depth, pitches | payload */   \
    X(FILL, 8, 8)          /* form, stream, dst, element, value, width, height, pitch */           \
    X(STREAM_CREATE, 9, 3) /* stream, flags, priority (zigzag) */                                  \
    X(STREAM_DESTROY, 10, 1)                                                                       \
    X(EVENT_CREATE, 11, 2) /* event, flags */                                                      \
    X(EVENT_DESTROY, 12, 1)                                                                        \
    X(EVENT_RECORD, 13, 3) /* event, stream, flags */                                              \
    X(EVENT_SYNC, 14, 1)                                                                           \
    X(EVENT_QUERY, 15, 2) /* event, result */                                                      \
    X(STREAM_WAIT, 16, 3) /* stream, event, flags */                                               \
    X(STREAM_SYNC, 17, 1)                                                                          \
    X(STREAM_QUERY, 18, 2) /* stream, result */                                                    \
    X(CONTEXT_SYNC, 19, 0)                                                                         \
    X(PUSH, 20, 1) /* string */                                                                    \
    X(POP, 21, 0)                                                                                  \
    X(CALL, 22, 2) /* string, stream: a call that matters and is not told in full */               \
    X(END, 23, 9)  /* enum ps_tape_count */

enum ps_tape_kind {
#define X(_kind, _number, _fields) PS_TAPE_##_kind = (_number),
    PS_TAPE_KINDS(X)
#undef X
        PS_TAPE_KINDS_END = 24
};

/* What the recorder counted; the fields of END. */
enum ps_tape_count {
    PS_TAPE_N_ALLOCS,
    PS_TAPE_N_FREES,
    PS_TAPE_N_LAUNCHES,
    PS_TAPE_N_COPIES,
    PS_TAPE_N_FILLS,
    PS_TAPE_N_TENSORS,       /* allocations in a region, at least min_bytes large */
    PS_TAPE_N_TENSOR_FREES,  /* of those */
    PS_TAPE_N_TOUCHES,       /* pairs of a launch and a live tensor that it names */
    PS_TAPE_N_STALE_TOUCHES, /* pairs of a launch and a freed tensor, where nothing lives now */
    PS_TAPE_N_COUNTS
};

enum { PS_TAPE_ALLOC_ASYNC, PS_TAPE_ALLOC_POOL, PS_TAPE_ALLOC_SYNC, PS_TAPE_ALLOC_MANAGED };
enum { PS_TAPE_LAUNCH_PARAMS, PS_TAPE_LAUNCH_PACKED, PS_TAPE_LAUNCH_UNKNOWN };
/* Bits of a copy's or fill's form. */
#define PS_TAPE_ASYNC     1u
#define PS_TAPE_DST_HOST  2u
#define PS_TAPE_SRC_HOST  4u
#define PS_TAPE_DST_ARRAY 8u
#define PS_TAPE_SRC_ARRAY 16u

struct ps_tape_head {
    uint64_t min_bytes;
    uint64_t pid;
    uint64_t unix_time; /* seconds */
    char regions[256];
};

struct ps_tape_record {
    uint32_t kind;
    uint32_t thread; /* from 0, in order of first appearance */
    uint64_t time;   /* ns since the first record */
    uint64_t field[PS_TAPE_FIELDS_MAX];
    const uint8_t *bytes; /* into the tape */
    size_t n_bytes;
};

/* Number of fields of a kind; -1 for one that this version does not know. */
int ps_tape_n_fields(uint32_t kind);
const char *ps_tape_kind_name(uint32_t kind);

static inline uint64_t ps_tape_zigzag(int64_t v)
{
    return (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0);
}
static inline int64_t ps_tape_unzigzag(uint64_t v)
{
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

/* ---- writing ---- */
/* Returns the bytes written, at most PS_TAPE_VARINT_MAX. */
size_t ps_tape_put_number(uint8_t *to, uint64_t value);
/* `to` has room for 4 KiB. */
size_t ps_tape_put_head(uint8_t *to, const struct ps_tape_head *head);
/* All of the record but its bytes; `since` is the time since the record before. */
size_t ps_tape_put_record(uint8_t *to, const struct ps_tape_record *r, uint64_t since);
/*
 * The changes from `before` to `now` (both `bytes` long), as (words equal, words changed, their
 * bytes) until none follow. `to` has room for ps_tape_changes_max(bytes).
 */
size_t ps_tape_put_changes(uint8_t *to, const uint8_t *before, const uint8_t *now, size_t bytes);
static inline size_t ps_tape_changes_max(size_t bytes)
{
    return bytes + 64 + bytes / 4 * 2;
}

/* ---- reading ---- */
struct ps_tape_reader {
    const uint8_t *data;
    size_t size;
    size_t at;
    uint64_t time;
    const char *error; /* NULL, or what is wrong at `at` */
    bool cut;          /* the last record is not whole: the job was killed while writing */
};

/* False with r->error set when it is no tape, or of another version. */
bool ps_tape_open(struct ps_tape_reader *r, const void *data, size_t size,
                  struct ps_tape_head *head_p);
/* False at the end, at a cut, or with r->error set. Records of unknown kinds are passed over. */
bool ps_tape_next(struct ps_tape_reader *r, struct ps_tape_record *record_p);
/* A number at *at_p, before `end`; false when it is not whole. */
bool ps_tape_get_number(const uint8_t **at_p, const uint8_t *end, uint64_t *value_p);
/* Applies changes to `image`, `bytes` long; false when they are malformed. */
bool ps_tape_get_changes(const uint8_t *from, size_t n, uint8_t *image, size_t bytes);

/* ---- the words of a launch that may be addresses ---- */
struct ps_tape_param {
    uint32_t offset;
    uint32_t size;
};
struct ps_tape_layout {
    uint32_t n;
    uint32_t bytes; /* of all parameters */
    const struct ps_tape_param *params;
};
typedef void (*ps_tape_word_fn)(void *arg, uint32_t offset, uint64_t word);
/* Calls `fn` for each 8-byte word at 4-byte steps that the engine too would look at. */
void ps_tape_each_word(const struct ps_tape_layout *layout, unsigned form, const uint8_t *image,
                       uint32_t bytes, ps_tape_word_fn fn, void *arg);

#endif
