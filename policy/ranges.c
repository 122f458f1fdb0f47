/* SPDX-License-Identifier: Apache-2.0 */
/* First-fit range allocator; see ranges.h. Called with the engine's lock held, never from kernels. */
#include "policy/ranges.h"

#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"

enum ps_status ps_ranges_init(struct ps_ranges *r, uint64_t base, uint64_t size)
{
    memset(r, 0, sizeof(*r));
    r->free = malloc(64 * sizeof(*r->free));
    if (r->free == NULL) {
        return PS_ERR_MEMORY;
    }
    r->n_room = 64;
    r->base = base;
    r->size = size;
    if (size > 0) {
        r->free[0] = (struct ps_range){base, size};
        r->n_free = 1;
        r->free_total = size;
    }
    return PS_OK;
}

void ps_ranges_fini(struct ps_ranges *r)
{
    free(r->free);
    memset(r, 0, sizeof(*r));
}

static void remove_at(struct ps_ranges *r, size_t i)
{
    memmove(&r->free[i], &r->free[i + 1], (r->n_free - i - 1) * sizeof(*r->free));
    r->n_free--;
}

bool ps_ranges_take(struct ps_ranges *r, uint64_t size, uint64_t *base_p)
{
    if (size == 0) {
        return false;
    }
    for (size_t i = 0; i < r->n_free; i++) {
        struct ps_range *f = &r->free[i];
        if (f->size < size) {
            continue;
        }
        *base_p = f->base;
        f->base += size;
        f->size -= size;
        r->free_total -= size;
        if (f->size == 0) {
            remove_at(r, i);
        }
        ps_assert_slow(ps_ranges_check(r));
        return true;
    }
    return false;
}

/* Index of the first free range that starts after base. */
static size_t upper(const struct ps_ranges *r, uint64_t base)
{
    size_t lo = 0;
    size_t hi = r->n_free;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (r->free[mid].base <= base) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

void ps_ranges_give(struct ps_ranges *r, uint64_t base, uint64_t size)
{
    if (size == 0) {
        return;
    }
    const size_t i = upper(r, base);
    const bool joins_left = i > 0 && r->free[i - 1].base + r->free[i - 1].size == base;
    const bool joins_right = i < r->n_free && base + size == r->free[i].base;

    ps_assert(i == 0 || r->free[i - 1].base + r->free[i - 1].size <= base);
    ps_assert(i == r->n_free || base + size <= r->free[i].base);
    if (joins_left) {
        r->free[i - 1].size += size;
        if (joins_right) {
            r->free[i - 1].size += r->free[i].size;
            remove_at(r, i);
        }
    } else if (joins_right) {
        r->free[i].base = base;
        r->free[i].size += size;
    } else {
        if (r->n_free == r->n_room) {
            ps_assert(r->n_room > 0);
            struct ps_range *more = realloc(r->free, 2 * r->n_room * sizeof(*more));
            if (more == NULL) {
                return;
            }
            r->free = more;
            r->n_room *= 2;
        }
        memmove(&r->free[i + 1], &r->free[i], (r->n_free - i) * sizeof(*r->free));
        r->free[i] = (struct ps_range){base, size};
        r->n_free++;
    }
    r->free_total += size;
    ps_assert_slow(ps_ranges_check(r));
}

bool ps_ranges_check(const struct ps_ranges *r)
{
    uint64_t total = 0;
    for (size_t i = 0; i < r->n_free; i++) {
        const struct ps_range *f = &r->free[i];
        if (f->size == 0 || f->base < r->base || f->base + f->size > r->base + r->size) {
            return false;
        }
        if (i > 0 && r->free[i - 1].base + r->free[i - 1].size >= f->base) {
            return false;
        }
        total += f->size;
    }
    return total == r->free_total;
}
