/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: the devices' physical memory: one memfd for all of them, handed out in pages of SIM_PAGE as lists of
 * extents, lowest first. Guarded by the big lock. Memory that is given back keeps its bytes, as on a device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/simcuda/core.h"

struct device_memory {
    struct sim_extent *free; /* sorted, never adjacent */
    size_t n_free, capacity;
    uint64_t n_free_pages;
};
static struct device_memory devices[16];
static int fd = -1;
static uint8_t *view;
static uint64_t used_bytes, peak_bytes;

static void die(const char *what)
{
    perror(what);
    _exit(85);
}

void sim_phys_init(void)
{
    const uint64_t each = sim_options.mem / SIM_PAGE;
    const uint64_t others =
        (sim_options.others < sim_options.mem ? sim_options.others : 0) / SIM_PAGE;
    const uint64_t n_devices = sim_options.devices > 0 ? (uint64_t)sim_options.devices : 1;
    fd = memfd_create("simcuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)(n_devices * sim_options.mem)) != 0) {
        die("simcuda: memfd");
    }
    view = mmap(NULL, n_devices * sim_options.mem, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (view == MAP_FAILED) {
        die("simcuda: mmap of the device memory");
    }
    (void)madvise(view, n_devices * sim_options.mem, MADV_DONTDUMP);
    for (uint64_t d = 0; d < n_devices; d++) {
        devices[d].capacity = 64;
        devices[d].free = sim_calloc(64, sizeof *devices[d].free);
        devices[d].free[0] = (struct sim_extent){d * each + others, each - others};
        devices[d].n_free = 1;
        devices[d].n_free_pages = each - others;
    }
}

int sim_phys_fd(void)
{
    return fd;
}

uint8_t *sim_phys(uint64_t page)
{
    return view + page * SIM_PAGE;
}

static void append(struct sim_pages *p, struct sim_extent e)
{
    if (p->n_ext > 0 && p->ext[p->n_ext - 1].page + p->ext[p->n_ext - 1].n == e.page) {
        p->ext[p->n_ext - 1].n += e.n;
    } else {
        if ((p->n_ext & (p->n_ext - 1)) == 0) {
            p->ext = sim_realloc(p->ext, (p->n_ext == 0 ? 1 : p->n_ext * 2) * sizeof *p->ext);
        }
        p->ext[p->n_ext++] = e;
    }
    p->n_pages += e.n;
}

static void take(struct device_memory *d, size_t i, uint64_t n, struct sim_pages *p)
{
    append(p, (struct sim_extent){d->free[i].page, n});
    sim_check_pages_fresh(d->free[i].page, n);
    d->free[i].page += n;
    d->free[i].n -= n;
    if (d->free[i].n == 0) {
        d->n_free--;
        memmove(&d->free[i], &d->free[i + 1], (d->n_free - i) * sizeof *d->free);
    }
    d->n_free_pages -= n;
}

bool sim_pages_alloc(struct sim_pages *p, int device, uint64_t n_pages)
{
    struct device_memory *d = &devices[device];
    if (n_pages > d->n_free_pages) {
        return false;
    }
    *p = (struct sim_pages){.device = device};
    size_t whole = 0;
    while (whole < d->n_free && d->free[whole].n < n_pages) {
        whole++;
    }
    if (whole < d->n_free) {
        take(d, whole, n_pages, p);
    }
    while (p->n_pages < n_pages) {
        const uint64_t left = n_pages - p->n_pages;
        take(d, 0, d->free[0].n < left ? d->free[0].n : left, p);
    }
    used_bytes += n_pages * SIM_PAGE;
    if (used_bytes > peak_bytes) {
        peak_bytes = used_bytes;
    }
    return true;
}

static void give(struct device_memory *d, struct sim_extent e)
{
    size_t low = 0, high = d->n_free;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (d->free[mid].page < e.page) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    const bool joins_before = low > 0 && d->free[low - 1].page + d->free[low - 1].n == e.page;
    const bool joins_after = low < d->n_free && e.page + e.n == d->free[low].page;
    d->n_free_pages += e.n;
    if (joins_before) {
        d->free[low - 1].n += e.n;
        if (joins_after) {
            d->free[low - 1].n += d->free[low].n;
            d->n_free--;
            memmove(&d->free[low], &d->free[low + 1], (d->n_free - low) * sizeof *d->free);
        }
        return;
    }
    if (joins_after) {
        d->free[low].page = e.page;
        d->free[low].n += e.n;
        return;
    }
    if (d->n_free == d->capacity) {
        d->capacity *= 2;
        d->free = sim_realloc(d->free, d->capacity * sizeof *d->free);
    }
    memmove(&d->free[low + 1], &d->free[low], (d->n_free - low) * sizeof *d->free);
    d->free[low] = e;
    d->n_free++;
}

void sim_pages_free(struct sim_pages *p)
{
    for (size_t i = 0; i < p->n_ext; i++) {
        give(&devices[p->device], p->ext[i]);
    }
    used_bytes -= p->n_pages * SIM_PAGE;
    free(p->ext);
    *p = (struct sim_pages){.device = p->device};
}

void sim_pages_move(struct sim_pages *to, struct sim_pages *from, uint64_t n)
{
    to->device = from->device;
    size_t i = 0;
    while (n > 0) {
        struct sim_extent *e = &from->ext[i];
        const uint64_t part = e->n < n ? e->n : n;
        append(to, (struct sim_extent){e->page, part});
        e->page += part;
        e->n -= part;
        from->n_pages -= part;
        n -= part;
        i += e->n == 0;
    }
    from->n_ext -= i;
    if (from->n_ext == 0) {
        free(from->ext);
        from->ext = NULL;
        return;
    }
    /* append() counts on capacities that are powers of two, which a shorter list still fits in */
    struct sim_extent *rest = NULL;
    size_t capacity = 1;
    while (capacity < from->n_ext) {
        capacity *= 2;
    }
    rest = sim_calloc(capacity, sizeof *rest);
    memcpy(rest, &from->ext[i], from->n_ext * sizeof *rest);
    free(from->ext);
    from->ext = rest;
}

uint64_t sim_phys_used(int device)
{
    return sim_options.mem - devices[device].n_free_pages * SIM_PAGE;
}

uint64_t sim_phys_used_all(void)
{
    return used_bytes;
}

uint64_t sim_phys_peak(void)
{
    return peak_bytes;
}

void sim_phys_reset_peak(void)
{
    peak_bytes = used_bytes;
}
