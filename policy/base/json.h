/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON into a caller's buffer, and from there to a descriptor. No allocation, no stream, no lock; one writer
 * a thread. `key` is NULL inside an array and for the outermost value.
 */
#ifndef PS_BASE_JSON_H
#define PS_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ps_json {
    char *buf;
    size_t size;
    size_t used;
    int fd;         /* -1: the buffer only */
    unsigned depth; /* open objects and arrays, at most 64 */
    uint64_t some;  /* bit d: depth d holds a member already */
    bool failed;    /* the buffer was too small, or a write failed */
};

/* With fd -1 the buffer must hold all of it (with a closing 0); else it is written out whenever it is full. */
void ps_json_init(struct ps_json *j, char *buf, size_t size, int fd);
void ps_json_open(struct ps_json *j, const char *key, char bracket);        /* '{' or '[' */
void ps_json_close(struct ps_json *j, char bracket);                        /* '}' or ']' */
void ps_json_string(struct ps_json *j, const char *key, const char *value); /* NULL becomes null */
void ps_json_u64(struct ps_json *j, const char *key, uint64_t value);
void ps_json_i64(struct ps_json *j, const char *key, int64_t value);
void ps_json_bool(struct ps_json *j, const char *key, bool value);
void ps_json_null(struct ps_json *j, const char *key);
/* Ends the line and writes it out. False if anything was lost. The writer may then be used for the next line. */
bool ps_json_finish(struct ps_json *j);

#endif
