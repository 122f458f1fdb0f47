/* SPDX-License-Identifier: Apache-2.0 */
/* From a handle to a number. No lock: the caller's. */
#ifndef TAPE_MAP_H
#define TAPE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tape_map_slot {
    uint64_t key;
    uint32_t number;
    uint32_t state; /* 0 never used, 1 held, 2 removed */
};

struct tape_map {
    struct tape_map_slot *slots; /* a power of two */
    size_t room, used;           /* used: held or removed */
};

/* Replaces what was there. False when out of memory. */
bool tape_map_set(struct tape_map *m, uint64_t key, uint32_t number);
bool tape_map_get(const struct tape_map *m, uint64_t key, uint32_t *number_p);
void tape_map_remove(struct tape_map *m, uint64_t key);
void tape_map_fini(struct tape_map *m);

#endif
