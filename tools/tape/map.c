/* SPDX-License-Identifier: Apache-2.0 */
/* See map.h: open addressing, grown when half full. */
#include "tools/tape/map.h"

#include <stdlib.h>
#include <string.h>

enum { FREE, HELD, REMOVED };

/* The slot of the key, or the one to put it. `m` is not full. */
static struct tape_map_slot *find(const struct tape_map *m, uint64_t key)
{
    size_t i = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (m->room - 1);

    while (m->slots[i].state != FREE && (m->slots[i].state != HELD || m->slots[i].key != key)) {
        i = (i + 1) & (m->room - 1);
    }
    return &m->slots[i];
}

static bool grow(struct tape_map *m)
{
    struct tape_map more = {.room = m->room == 0 ? 64 : 2 * m->room};

    more.slots = calloc(more.room, sizeof(*more.slots));
    if (more.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < m->room; i++) {
        if (m->slots[i].state == HELD) {
            *find(&more, m->slots[i].key) = m->slots[i];
            more.used++;
        }
    }
    free(m->slots);
    *m = more;
    return true;
}

bool tape_map_set(struct tape_map *m, uint64_t key, uint32_t number)
{
    if (2 * (m->used + 1) > m->room && !grow(m)) {
        return false;
    }
    struct tape_map_slot *slot = find(m, key);

    m->used += slot->state == FREE;
    *slot = (struct tape_map_slot){key, number, HELD};
    return true;
}

bool tape_map_get(const struct tape_map *m, uint64_t key, uint32_t *number_p)
{
    const struct tape_map_slot *slot = m->room == 0 ? NULL : find(m, key);

    if (slot == NULL || slot->state != HELD) {
        return false;
    }
    *number_p = slot->number;
    return true;
}

void tape_map_remove(struct tape_map *m, uint64_t key)
{
    struct tape_map_slot *slot = m->room == 0 ? NULL : find(m, key);

    if (slot != NULL && slot->state == HELD) {
        slot->state = REMOVED;
    }
}

void tape_map_fini(struct tape_map *m)
{
    free(m->slots);
    memset(m, 0, sizeof(*m));
}
