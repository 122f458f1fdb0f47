/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reserved window; see window.h. The map from granules to tensors is an array of pointers in lazily touched
 * memory (8 bytes for each 2 MiB of window on a GPU). Guarded by the engine's lock, but for the two atomics and for the
 * map's elements: these are written under the lock and read by any thread. The map is made once and never moved nor
 * given back; who holds no lock compares its elements with NULL and follows none.
 */
#include "shim/window.h"

#include <string.h>
#include <sys/mman.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "policy/ranges.h"
#include "shim/driver.h"
#include "shim/engine.h"

/* cuda_interposition.md, section 5: what breaks scanning is `base - k` and one-past-end; 2 MiB of unused addresses
 * (design, section 4) on either side. */
#define GAP_MIN ((uint64_t)2 << 20)

/*
 * The search of parameters looks at high halves of addresses first (params.c). So that no memory of the job's has the
 * same as ours, a window that is large enough is cut to whole spans of one high half.
 */
#define HALF_SPAN ((uint64_t)1 << 32)
#define CUT_FROM  (16 * HALF_SPAN)

_Atomic uint64_t ps_window_base;
_Atomic uint64_t ps_window_size;

static struct {
    struct ps_ranges ranges;
    _Atomic(struct ps_tensor *) *map; /* relaxed: nothing is read through it without the lock */
    /* with map: written once, before ps_window_size */
    uint64_t base, size, granularity, gap;
    unsigned shift; /* log2 of the bytes of an element: the largest power of two in a granule */
} window;

static uint64_t gap_for(uint64_t granularity)
{
    return granularity > GAP_MIN ? granularity : GAP_MIN;
}

static void cut_to_halves(uint64_t *base, uint64_t *bytes, uint64_t granularity)
{
    if (*bytes < CUT_FROM || HALF_SPAN % granularity != 0) {
        return;
    }
    const uint64_t first = (*base + HALF_SPAN - 1) / HALF_SPAN * HALF_SPAN;
    const uint64_t end = (*base + *bytes) / HALF_SPAN * HALF_SPAN;
    *base = first;
    *bytes = end - first;
}

enum ps_status ps_window_reserve(uint64_t bytes, uint64_t granularity)
{
    if (window.size != 0) {
        return granularity == window.granularity ? PS_OK : PS_ERR_UNSUPPORTED;
    }
    CUdeviceptr base = 0;
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    /* A driver or a sanitizer may refuse a large window: a smaller one serves smaller jobs. */
    for (; bytes >= 64 * GAP_MIN; bytes /= 2) {
        bytes = bytes / granularity * granularity;
        r = ps_driver.cuMemAddressReserve(&base, bytes, granularity, 0, 0);
        if (r == CUDA_SUCCESS) {
            break;
        }
    }
    if (r != CUDA_SUCCESS) {
        ps_warn("cannot reserve addresses: %s; nothing is paged",
                ps_driver_error_name(&ps_driver, r));
        return PS_ERR_DEVICE;
    }
    uint64_t first = base, size = bytes;
    cut_to_halves(&first, &size, granularity);
    const unsigned shift = (unsigned)__builtin_ctzll(granularity);
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the map's elements are pointers */
    const size_t map_bytes = (size_t)((size >> shift) * sizeof(*window.map));
    void *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || ps_ranges_init(&window.ranges, first, size) != PS_OK) {
        ps_warn("no host memory for the address map; nothing is paged");
        if (map != MAP_FAILED) {
            munmap(map, map_bytes);
        }
        ps_driver.cuMemAddressFree(base, bytes);
        return PS_ERR_MEMORY;
    }
    window.map = map;
    window.base = first;
    window.size = size;
    window.granularity = granularity;
    window.gap = gap_for(granularity);
    window.shift = shift;
    /* Size last: a reader that sees the size sees the base (ps_in_window then merely misses until both are there). */
    atomic_store_explicit(&ps_window_base, first, memory_order_release);
    atomic_store_explicit(&ps_window_size, size, memory_order_release);
    return PS_OK;
}

bool ps_slot_take(uint64_t bytes, struct ps_slot *slot_p)
{
    uint64_t base;
    ps_assert(bytes % window.granularity == 0);
    if (!ps_ranges_take(&window.ranges, bytes + 2 * window.gap, &base)) {
        return false;
    }
    slot_p->base = base + window.gap;
    slot_p->bytes = bytes;
    return true;
}

void ps_slot_give(const struct ps_slot *slot)
{
    ps_ranges_give(&window.ranges, slot->base - window.gap, slot->bytes + 2 * window.gap);
}

void ps_window_name(const struct ps_slot *slot, struct ps_tensor *tensor)
{
    const uint64_t first = (slot->base - window.gap - window.base) >> window.shift;
    const uint64_t count = (slot->bytes + 2 * window.gap) >> window.shift;
    for (uint64_t i = 0; i < count; i++) {
        atomic_store_explicit(&window.map[first + i], tensor, memory_order_relaxed);
    }
}

struct ps_tensor *ps_window_find(uint64_t address)
{
    if (address - window.base >= window.size) {
        return NULL;
    }
    return atomic_load_explicit(&window.map[(address - window.base) >> window.shift],
                                memory_order_relaxed);
}

bool ps_window_names(uint64_t address)
{
    /* Pairs with the store in ps_window_reserve; 0 in a forked child. */
    return atomic_load_explicit(&ps_window_size, memory_order_acquire) != 0 &&
           ps_window_find(address) != NULL;
}
