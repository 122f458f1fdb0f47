/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: device addresses. One large range without access is reserved once; ranges are carved out of it and
 * pages of the memfd are mapped into them. A table with one entry a page answers what is mapped where. Guarded
 * by the big lock; sim_va_find may also be called by a signal handler of the thread that holds it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/simcuda/core.h"

struct pte {
    uint32_t page_1; /* physical page + 1; 0: nothing is mapped */
    uint32_t map;    /* index into maps */
};
struct range {
    CUdeviceptr base;
    uint64_t bytes;
};

uint8_t *sim_va_base;
static struct pte *ptes;
static struct sim_mapping **maps; /* slots; NULL when unused */
static size_t n_maps, maps_capacity;
static uint32_t *free_slots;
static size_t n_free_slots;
static struct range *ranges; /* reserved, sorted */
static size_t n_ranges, ranges_capacity;

static void die(const char *what)
{
    perror(what);
    _exit(85);
}

void sim_va_init(void)
{
    const uint64_t align = 1ull << 30;
    uint8_t *p = mmap(NULL, sim_options.va + align, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        die("simcuda: cannot reserve device addresses (option va=)");
    }
    sim_va_base = (uint8_t *)SIM_ROUND((uintptr_t)p, align);
    ptes = mmap(NULL, sim_options.va / SIM_PAGE * sizeof *ptes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ptes == MAP_FAILED) {
        die("simcuda: cannot map the page table");
    }
}

bool sim_va_is_device(CUdeviceptr address)
{
    return sim_va_base != NULL && address - (CUdeviceptr)(uintptr_t)sim_va_base < sim_options.va;
}

static struct pte *pte_of(CUdeviceptr address)
{
    return &ptes[(address - (CUdeviceptr)(uintptr_t)sim_va_base) / SIM_PAGE];
}

bool sim_va_find(CUdeviceptr address, const struct sim_mapping **mapping_p, uint64_t *page_p)
{
    if (!sim_va_is_device(address) || pte_of(address)->page_1 == 0) {
        return false;
    }
    if (mapping_p != NULL) {
        *mapping_p = maps[pte_of(address)->map];
    }
    if (page_p != NULL) {
        *page_p = pte_of(address)->page_1 - 1;
    }
    return true;
}

bool simcuda_mapped(CUdeviceptr address)
{
    return sim_va_find(address, NULL, NULL);
}

bool simcuda_mapped_now(CUdeviceptr address)
{
    sim_lock();
    const bool mapped = sim_va_find(address, NULL, NULL);
    sim_unlock();
    return mapped;
}

/* Index of the first range that ends behind address. */
static size_t range_index(CUdeviceptr address)
{
    size_t low = 0, high = n_ranges;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (ranges[mid].base + ranges[mid].bytes <= address) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

static void insert_range(size_t at, CUdeviceptr base, uint64_t bytes)
{
    if (n_ranges == ranges_capacity) {
        ranges_capacity = ranges_capacity == 0 ? 64 : ranges_capacity * 2;
        ranges = sim_realloc(ranges, ranges_capacity * sizeof *ranges);
    }
    memmove(&ranges[at + 1], &ranges[at], (n_ranges - at) * sizeof *ranges);
    ranges[at] = (struct range){base, bytes};
    n_ranges++;
}

static bool reserve_at(CUdeviceptr base, uint64_t bytes)
{
    const CUdeviceptr end = (CUdeviceptr)(uintptr_t)sim_va_base + sim_options.va;
    if (!sim_va_is_device(base) || bytes > end - base) {
        return false;
    }
    const size_t i = range_index(base);
    if (i < n_ranges && ranges[i].base < base + bytes) {
        return false;
    }
    insert_range(i, base, bytes);
    return true;
}

CUdeviceptr sim_va_reserve(uint64_t bytes, uint64_t align, CUdeviceptr hint)
{
    if (hint != 0 && hint % align == 0 && reserve_at(hint, bytes)) {
        return hint;
    }
    /* One page more than asked for stays unmapped, so that running over an end faults. */
    const CUdeviceptr start = (CUdeviceptr)(uintptr_t)sim_va_base;
    CUdeviceptr at = SIM_ROUND(start, align);
    for (size_t i = 0; i <= n_ranges; i++) {
        const CUdeviceptr limit = i < n_ranges ? ranges[i].base : start + sim_options.va;
        if (at < limit && limit - at >= bytes + SIM_PAGE) {
            insert_range(i, at, bytes);
            return at;
        }
        if (i < n_ranges) {
            at = SIM_ROUND(ranges[i].base + ranges[i].bytes + SIM_PAGE, align);
        }
    }
    return 0;
}

uint64_t sim_va_reserved(CUdeviceptr base)
{
    const size_t i = range_index(base);
    return i < n_ranges && ranges[i].base == base ? ranges[i].bytes : 0;
}

bool sim_va_range(CUdeviceptr address, uint64_t bytes, CUdeviceptr *base_p, uint64_t *bytes_p)
{
    const size_t i = range_index(address);
    if (i == n_ranges || ranges[i].base > address ||
        bytes > ranges[i].base + ranges[i].bytes - address) {
        return false;
    }
    *base_p = ranges[i].base;
    *bytes_p = ranges[i].bytes;
    return true;
}

void sim_va_release(CUdeviceptr base)
{
    const size_t i = range_index(base);
    n_ranges--;
    memmove(&ranges[i], &ranges[i + 1], (n_ranges - i) * sizeof *ranges);
}

static uint32_t new_slot(struct sim_mapping *m)
{
    if (n_free_slots > 0) {
        const uint32_t slot = free_slots[--n_free_slots];
        maps[slot] = m;
        return slot;
    }
    if (n_maps == maps_capacity) {
        maps_capacity = maps_capacity == 0 ? 256 : maps_capacity * 2;
        maps = sim_realloc(maps, maps_capacity * sizeof(struct sim_mapping *));
        free_slots = sim_realloc(free_slots, maps_capacity * sizeof *free_slots);
    }
    maps[n_maps] = m;
    return (uint32_t)n_maps++;
}

/* What the process's page tables hold for a mapping with these rights. */
static int visible_prot(enum sim_owner owner, int prot)
{
    return sim_options.check && owner != SIM_OWNER_MANAGED ? PROT_NONE : prot;
}

struct sim_mapping *sim_va_map(CUdeviceptr base, const struct sim_pages *pages,
                               enum sim_owner owner, int prot, void *object)
{
    static uint64_t n_serials;
    struct sim_mapping *m = sim_calloc(1, sizeof *m);
    *m = (struct sim_mapping){.base = base,
                              .bytes = pages->n_pages * SIM_PAGE,
                              .owner = owner,
                              .prot = prot,
                              .device = pages->device,
                              .serial = ++n_serials,
                              .object = object};
    const uint32_t slot = new_slot(m);
    CUdeviceptr at = base;
    for (size_t i = 0; i < pages->n_ext; i++) {
        const struct sim_extent e = pages->ext[i];
        if (mmap((void *)(uintptr_t)at, e.n * SIM_PAGE, visible_prot(owner, prot),
                 MAP_FIXED | MAP_SHARED, sim_phys_fd(), (off_t)(e.page * SIM_PAGE)) == MAP_FAILED) {
            die("simcuda: cannot map device memory (vm.max_map_count?)");
        }
        struct pte *pte = pte_of(at);
        for (uint64_t k = 0; k < e.n; k++) {
            pte[k] = (struct pte){(uint32_t)(e.page + k + 1), slot};
        }
        at += e.n * SIM_PAGE;
    }
    sim_check_mapped(m);
    return m;
}

void sim_va_unmap(struct sim_mapping *m)
{
    sim_check_unmapping(m);
    const uint32_t slot = pte_of(m->base)->map;
    if (mmap((void *)(uintptr_t)m->base, m->bytes, PROT_NONE,
             MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
        die("simcuda: cannot unmap device memory");
    }
    memset(pte_of(m->base), 0, m->bytes / SIM_PAGE * sizeof(struct pte));
    maps[slot] = NULL;
    free_slots[n_free_slots++] = slot;
    free(m);
}

void sim_va_protect(struct sim_mapping *m, int prot)
{
    m->prot = prot;
    if (mprotect((void *)(uintptr_t)m->base, m->bytes, visible_prot(m->owner, prot)) != 0) {
        die("simcuda: mprotect");
    }
}

bool sim_va_usable(CUdeviceptr address, uint64_t bytes, int prot, CUdeviceptr *bad_p)
{
    CUdeviceptr at = address;
    while (at - address < bytes) {
        const struct sim_mapping *m;
        if (!sim_va_find(at, &m, NULL) || (m->prot & prot) != prot) {
            *bad_p = at;
            return false;
        }
        at = m->base + m->bytes;
    }
    return true;
}

bool sim_va_mapped(CUdeviceptr address, uint64_t bytes)
{
    CUdeviceptr bad;
    return sim_va_usable(address, bytes, PROT_NONE, &bad);
}
