/* SPDX-License-Identifier: Apache-2.0 */
/* See advice.h. */
#include "policy/advice.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

/* Pages go over the bus at this rate, either way (measured on an H200 with PCIe 5: 51 by kernels, 55 by copies). */
#define LINK_BYTES_PER_MS UINT64_C(50000000)
#define SPARE_PERCENT     5  /* of the rows, beyond the most seen, that are advised */
#define WORTH_PERCENT     10 /* of a capacity, or of the pages: less is not worth a line */
#define WORTH_BYTES       (UINT64_C(64) << 20)
#define MIB(_bytes)       (((_bytes) + (UINT64_C(1) << 19)) >> 20)

__extension__ typedef unsigned __int128 wide;

struct telling {
    ps_advice_fn *tell;
    void *arg;
};

static void tell(const struct telling *t, enum ps_advice kind, uint64_t weight, const char *fmt,
                 ...) __attribute__((format(printf, 4, 5)));
static void tell(const struct telling *t, enum ps_advice kind, uint64_t weight, const char *fmt,
                 ...)
{
    char line[PS_ADVICE_LINE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    t->tell(t->arg, kind, weight, line);
}

static uint64_t percent_up(uint64_t of, uint64_t to)
{
    return (uint64_t)(((wide)of * 100 + to - 1) / to);
}

static void over_capacity(const struct telling *t, const struct ps_advice_region *r)
{
    if (r->balanced == 0) {
        tell(t, PS_ADVICE_OVER_CAPACITY, r->n_over,
             "region '%s' had to deliver more rows than there is room for %" PRIu64
             " times, so rows were dropped: up to %" PRIu64 " where %" PRIu64
             " have room; a capacity of %" PRIu64 " rows would do",
             r->name, r->n_over, r->needed, r->capacity, r->needed);
        return;
    }
    const uint64_t is = percent_up(r->capacity, r->balanced);
    const uint64_t would_do = percent_up(r->needed, r->balanced);

    tell(t, PS_ADVICE_OVER_CAPACITY, r->n_over,
         "region '%s' had to deliver more rows than there is room for %" PRIu64
         " times, so rows were dropped: capacity is %" PRIu64 ".%02" PRIu64
         " and the peak needed is %" PRIu64 ".%02" PRIu64 ", which would do",
         r->name, r->n_over, is / 100, is % 100, would_do / 100, would_do % 100);
}

/* Rows that were used at most, of the capacity: by the counter where there is one, else by the pages. */
static uint64_t rows_used(const struct ps_advice_region *r)
{
    if (r->needed != 0) {
        return r->needed;
    }
    return (uint64_t)((wide)r->capacity * r->used_ppm / 1000000);
}

static void large_capacity(const struct telling *t, const struct ps_advice_region *r)
{
    if (r->capacity == 0 || r->balanced == 0) {
        const uint64_t used = (r->used_ppm + 9999) / 10000;

        /* Nobody says what balanced rows are, or there would be a factor. */
        if (r->used_ppm != 0 && used + WORTH_PERCENT + SPARE_PERCENT < 100) {
            tell(t, PS_ADVICE_CAPACITY, 100 - used,
                 "region '%s': at most %" PRIu64
                 " %% of its padded buffers held data; a capacity of %" PRIu64
                 " %% of what it is would do",
                 r->name, used, used * (100 + SPARE_PERCENT) / 100 + 1);
        }
        return;
    }
    const uint64_t is = percent_up(r->capacity, r->balanced);
    const uint64_t seen = percent_up(rows_used(r), r->balanced);
    const uint64_t would_do = (seen * (100 + SPARE_PERCENT) + 99) / 100;

    if (seen == 0 || would_do + is * WORTH_PERCENT / 100 >= is) {
        return;
    }
    tell(t, PS_ADVICE_CAPACITY, is - would_do,
         "region '%s': capacity is %" PRIu64 ".%02" PRIu64 " and the peak seen is %" PRIu64
         ".%02" PRIu64 ": %" PRIu64 ".%02" PRIu64 " would do",
         r->name, is / 100, is % 100, seen / 100, seen % 100, would_do / 100, would_do % 100);
}

static void device_limit(const struct telling *t, const struct ps_advice_facts *f)
{
    const uint64_t step = f->steps != 0 ? f->bytes_spilled / f->steps : f->bytes_spilled;
    char factor[64] = "";

    if (f->limit_factor_percent != 0) {
        snprintf(factor, sizeof(factor),
                 "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA=%s%" PRIu64 ".%02" PRIu64 " or ",
                 f->limit_is_largest != 0 ? "-" : "", f->limit_factor_percent / 100,
                 f->limit_factor_percent % 100);
    }
    tell(t, PS_ADVICE_BUDGET, f->limit_short_bytes,
         "homes and pages are allowed %" PRIu64 " MiB of device memory and want %" PRIu64
         ": %" PRIu64 " MiB of pages go to the host, %" PRIu64 " MiB a step, about %" PRIu64
         " ms of the link each way; %sPAGEDSTASH_CUDA_BUDGET=%" PRIu64 "M would do",
         MIB(f->limit_bytes), MIB(f->limit_wanted_bytes), MIB(f->limit_short_bytes), MIB(step),
         step / LINK_BYTES_PER_MS, factor, MIB(f->limit_wanted_bytes) + 1);
}

static void spill(const struct telling *t, const struct ps_advice_facts *f)
{
    const uint64_t step = f->steps != 0 ? f->bytes_spilled / f->steps : f->bytes_spilled;

    if (f->bytes_spilled == 0) {
        return;
    }
    tell(t, PS_ADVICE_SPILL, f->bytes_spilled,
         "%" PRIu64 " MiB went to pages in host memory, %" PRIu64 " MiB a step, about %" PRIu64
         " ms of the link each way: the device had no page free; a larger "
         "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA or less memory of the job's own keeps them there",
         MIB(f->bytes_spilled), MIB(step), step / LINK_BYTES_PER_MS);
}

static void unused_pages(const struct telling *t, const struct ps_advice_facts *f)
{
    const uint64_t unused =
        f->pool_bytes > f->pages_used_peak ? f->pool_bytes - f->pages_used_peak : 0;

    if (f->plans == 0 || unused < WORTH_BYTES || unused / WORTH_PERCENT < f->pool_bytes / 100) {
        return;
    }
    const uint64_t budget = f->limit_wanted_bytes > unused ? f->limit_wanted_bytes - unused : 0;

    tell(t, PS_ADVICE_PAGES, unused,
         "%" PRIu64 " of %" PRIu64 " MiB of device pages were never used; "
         "PAGEDSTASH_CUDA_BUDGET=%" PRIu64 "M would give them back",
         MIB(unused), MIB(f->pool_bytes), MIB(budget));
}

void ps_advise(const struct ps_advice_facts *facts, ps_advice_fn *tell_to, void *arg)
{
    const struct ps_advice_facts *f = facts;
    const struct telling t = {tell_to, arg};

    for (uint32_t i = 0; i < f->n_regions && i < PS_ADVICE_REGIONS_MAX; i++) {
        if (f->regions[i].n_over != 0) {
            over_capacity(&t, &f->regions[i]);
        } else {
            large_capacity(&t, &f->regions[i]);
        }
    }
    if (f->limit_short_bytes != 0) {
        device_limit(&t, f);
    } else {
        spill(&t, f);
    }
    unused_pages(&t, f);
    if (f->kept_resident != 0) {
        tell(
            &t, PS_ADVICE_RESIDENT, f->kept_resident,
            "%" PRIu64
            " groups stayed in device memory, for want of free pages or of padding: a larger "
            "PAGEDSTASH_HOST_BUDGET helps against the first, a smaller PAGEDSTASH_PAGE_BYTES may against the second",
            f->kept_resident);
    }
    if (f->plans != 0 && f->plan_misses != 0) {
        tell(&t, PS_ADVICE_PLAN, f->plan_misses,
             "%" PRIu64 " events in %" PRIu64 " steps were not foreseen by a plan: "
             "PAGEDSTASH_STEP names the range that begins a step, if the library finds other steps",
             f->plan_misses, f->steps);
    }
}
