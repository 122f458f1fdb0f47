/* SPDX-License-Identifier: Apache-2.0 */
/* See limits.h. Products are taken in 128 bits, and what does not fit into 64 is the largest that does. */
#include "policy/limits.h"

#define HUNDREDTH     (PS_FACTOR_ONE / 100)
#define PAGE_MIN      UINT64_C(512)
#define PAGE_MAX      (UINT64_C(256) << 20)
#define PAGE_MIN_AUTO (UINT64_C(64) << 10)
#define PAGE_MAX_AUTO (UINT64_C(2) << 20)

__extension__ typedef unsigned __int128 wide;

static uint64_t clip(wide value)
{
    return value > UINT64_MAX ? UINT64_MAX : (uint64_t)value;
}

static uint64_t magnitude(int64_t factor)
{
    return factor < 0 ? -(uint64_t)factor : (uint64_t)factor;
}

static uint64_t times(uint64_t bytes, int64_t factor)
{
    return clip((wide)bytes * magnitude(factor) / PS_FACTOR_ONE);
}

/* Up; what would not fit stays. */
static uint64_t whole(uint64_t bytes, uint64_t unit)
{
    const wide up = ((wide)bytes + unit - 1) / unit * unit;

    return up > UINT64_MAX ? bytes : (uint64_t)up;
}

static uint64_t base_of(const struct ps_limits_seen *seen, int64_t factor)
{
    return factor >= 0 && seen->balanced_bytes != 0 ? seen->balanced_bytes : seen->largest_bytes;
}

struct ps_limits ps_limits_find(const struct ps_limits_settings *settings,
                                const struct ps_limits_seen *seen, uint64_t page_bytes)
{
    const int64_t cuda = settings->factor_cuda;
    const int64_t cpu = settings->factor_cpu;
    struct ps_limits l = {PS_NO_LIMIT, settings->host_budget, false};

    if (settings->cuda_budget != PS_AUTO) {
        l.device_bytes = settings->cuda_budget;
    } else if (settings->factor_given || (cuda >= 0 && seen->balanced_bytes != 0)) {
        l.device_bytes = whole(times(base_of(seen, cuda), cuda), page_bytes);
    }
    if (cpu != PS_FACTOR_AUTO) {
        const uint64_t size = whole(times(base_of(seen, cpu), cpu), page_bytes);

        l.host_bytes = size < settings->host_budget ? size : settings->host_budget;
        l.host_sized = true;
    }
    return l;
}

uint64_t ps_limits_pages(const struct ps_limits *limits, uint64_t home_bytes, uint64_t wanted)
{
    const uint64_t left = limits->device_bytes > home_bytes ? limits->device_bytes - home_bytes : 0;

    return wanted < left ? wanted : left;
}

/* In whole hundredths, up. */
static int64_t ratio_up(uint64_t of, uint64_t to)
{
    const wide hundredths = ((wide)of * 100 + to - 1) / to;
    const wide most = (wide)INT64_MAX / HUNDREDTH;

    return (int64_t)(hundredths < most ? hundredths : most) * HUNDREDTH;
}

int64_t ps_limits_factor(const struct ps_limits_settings *settings,
                         const struct ps_limits_seen *seen, uint64_t bytes)
{
    const uint64_t base = base_of(seen, settings->factor_cuda);
    const int64_t factor = base == 0 ? 0 : ratio_up(bytes, base);

    return settings->factor_cuda < 0 ? -factor : factor;
}

static const struct ps_capacity *find_name(const struct ps_capacity *told, uint32_t n,
                                           uint32_t name)
{
    for (uint32_t i = 0; i < n; i++) {
        if (told[i].name == name && told[i].capacity != 0) {
            return &told[i];
        }
    }
    return NULL;
}

/* Of a tensor of so many bytes; false: not known. */
static bool balanced_of(const struct ps_capacity *told, int64_t factor, uint64_t bytes,
                        uint64_t *balanced_p)
{
    if (told != NULL && told->balanced != 0) {
        *balanced_p = clip((wide)bytes * told->balanced / told->capacity);
    } else if (factor != PS_FACTOR_AUTO) {
        *balanced_p = clip((wide)bytes * PS_FACTOR_ONE / magnitude(factor));
    } else {
        return false;
    }
    return true;
}

struct looking {
    const struct ps_plan *plan;
    const struct ps_plan_step *step;
    const struct ps_capacity *told;
    uint32_t n;
    int64_t factor;
    bool unknown;
    uint64_t balanced, largest; /* alive */
    struct ps_limits_seen most;
};

static void count(struct looking *l, uint32_t tensor, bool born)
{
    const struct ps_plan_tensor *t = &l->step->tensors[tensor];
    const uint32_t name = l->step->names[t->group];
    const struct ps_plan_site *site = ps_plan_find(l->plan, name, t->ordinal);
    const uint64_t valid = t->valid < t->bytes ? t->valid : t->bytes;
    uint64_t balanced = 0;

    if (site == NULL || site->class == PS_PLAN_TEMPORARY) {
        return;
    }
    /* What has no padding is as large at balanced routing too. */
    if (site->class == PS_PLAN_RESIDENT) {
        balanced = t->bytes;
    } else if (!balanced_of(find_name(l->told, l->n, name), l->factor, t->bytes, &balanced)) {
        l->unknown = true;
    }
    const uint64_t largest = site->class == PS_PLAN_RESIDENT ? t->bytes : valid;

    l->balanced = born ? l->balanced + balanced : l->balanced - balanced;
    l->largest = born ? l->largest + largest : l->largest - largest;
    if (l->balanced > l->most.balanced_bytes) {
        l->most.balanced_bytes = l->balanced;
    }
    if (l->largest > l->most.largest_bytes) {
        l->most.largest_bytes = l->largest;
    }
}

struct ps_limits_seen ps_limits_look(const struct ps_plan *plan, const struct ps_plan_step *steps,
                                     uint32_t n_steps, const struct ps_capacity *told, uint32_t n,
                                     int64_t factor)
{
    struct looking l = {.plan = plan, .told = told, .n = n, .factor = factor};

    for (uint32_t i = 0; i < n_steps; i++) {
        l.step = &steps[i];
        l.balanced = l.largest = 0;
        for (uint32_t e = 0; e < steps[i].n_events; e++) {
            const struct ps_plan_event *event = &steps[i].events[e];

            if (event->kind == PS_PLAN_ALLOC || event->kind == PS_PLAN_FREE) {
                count(&l, event->index, event->kind == PS_PLAN_ALLOC);
            }
        }
    }
    if (l.unknown) {
        l.most.balanced_bytes = 0;
    }
    return l.most;
}

uint64_t ps_limits_row_bytes(const struct ps_plan_step *steps, uint32_t n_steps,
                             const struct ps_capacity *told, uint32_t n)
{
    uint64_t widest = 0;

    for (uint32_t i = 0; i < n_steps; i++) {
        for (uint32_t t = 0; t < steps[i].n_tensors; t++) {
            const struct ps_plan_tensor *tensor = &steps[i].tensors[t];
            const struct ps_capacity *c = find_name(told, n, steps[i].names[tensor->group]);
            const uint64_t row = c == NULL ? 0 : ps_pages_for(tensor->bytes, c->capacity);

            widest = row > widest ? row : widest;
        }
    }
    return widest;
}

uint64_t ps_limits_page_bytes(uint64_t rows, uint64_t row_bytes, bool chosen)
{
    const uint64_t least = chosen ? PAGE_MIN : PAGE_MIN_AUTO;
    const uint64_t most = chosen ? PAGE_MAX : PAGE_MAX_AUTO;
    const wide bytes = (wide)rows * row_bytes;
    uint64_t page = least;

    while (page < bytes && page < most) {
        page *= 2;
    }
    return page;
}

/* Homes and pages of the plan come to no more. */
static bool fits(const struct ps_plan *plan, uint64_t device_bytes)
{
    return plan->home_bytes <= device_bytes && plan->pool_bytes <= device_bytes - plan->home_bytes;
}

/* With those pages on the host that the limit sends there. */
static bool gains(const struct ps_plan *plan, const struct ps_limits *limits)
{
    const uint64_t pages = ps_limits_pages(limits, plan->home_bytes, plan->pool_bytes);

    return plan->n_slots != 0 &&
           plan->peak_bytes - (plan->pool_bytes - pages) < plan->plain_peak_bytes;
}

/*
 * The first of the percentages with which all fits; else the first with which the homes do, since what is in a home
 * does not move; else the last.
 */
static enum ps_status tighten(const struct ps_plan_step *steps, uint32_t n_steps,
                              const struct ps_plan_settings *settings,
                              struct ps_limits_found *found, struct ps_plan *plan)
{
    static const uint32_t percents[] = {12, 15, 20, 30, 40, 55, 70, 85, 100};
    const uint64_t most = found->limits.device_bytes;
    const size_t n = sizeof(percents) / sizeof(percents[0]);
    bool homes_fit = plan->home_bytes <= most;

    for (size_t i = 0; i < n && !fits(plan, most); i++) {
        struct ps_plan_settings tighter = *settings;
        struct ps_plan other;

        tighter.moved_percent = percents[i];
        if (percents[i] <= settings->moved_percent) {
            continue;
        }
        const enum ps_status s = ps_plan_make(steps, n_steps, &tighter, &other);

        if (s != PS_OK) {
            return s;
        }
        const bool better =
            fits(&other, most) || (!homes_fit && other.home_bytes < plan->home_bytes);

        if (better && gains(&other, &found->limits)) {
            ps_plan_fini(plan);
            *plan = other;
            found->moved_percent = percents[i];
            homes_fit = plan->home_bytes <= most;
        } else {
            ps_plan_fini(&other);
        }
    }
    return PS_OK;
}

enum ps_status ps_limits_plan(const struct ps_plan_step *steps, uint32_t n_steps,
                              const struct ps_plan_settings *settings,
                              const struct ps_limits_ask *ask, struct ps_plan *plan_p,
                              struct ps_limits_found *found_p)
{
    struct ps_limits_found found = {.moved_percent = settings->moved_percent};
    const bool asked = ask->settings.factor_given || ask->settings.cuda_budget != PS_AUTO;
    struct ps_plan plan;
    enum ps_status s = ps_plan_make(steps, n_steps, settings, &plan);

    if (s != PS_OK) {
        return s;
    }
    found.seen =
        ps_limits_look(&plan, steps, n_steps, ask->told, ask->n_told, ask->capacity_factor);
    found.limits = ps_limits_find(&ask->settings, &found.seen, settings->page_bytes);
    found.wanted_bytes = plan.home_bytes + plan.pool_bytes;
    if (plan.adopt || asked) {
        s = tighten(steps, n_steps, settings, &found, &plan);
    }
    if (s != PS_OK) {
        ps_plan_fini(&plan);
        return s;
    }
    const uint64_t pages = ps_limits_pages(&found.limits, plan.home_bytes, plan.pool_bytes);

    found.short_bytes = plan.pool_bytes - pages;
    if (asked || found.short_bytes <= found.limits.host_bytes) {
        plan.adopt = gains(&plan, &found.limits);
        plan.pool_bytes = pages;
        plan.peak_bytes -= found.short_bytes;
    } else {
        found.short_bytes = 0;
        found.limits.device_bytes = PS_NO_LIMIT;
    }
    *plan_p = plan;
    *found_p = found;
    return PS_OK;
}

bool ps_limits_fits(const struct ps_plan *plan, uint64_t held_bytes, uint64_t ours,
                    uint64_t device_bytes)
{
    const wide taken = plan->adopt ? (wide)plan->peak_bytes + plan->spare_bytes : held_bytes;
    const uint64_t spared = plan->adopt ? device_bytes / PS_ROOM_SPARED : 0;

    return device_bytes == 0 || taken + ours <= device_bytes - spared;
}

uint64_t ps_capacity_rows(uint64_t balanced, int64_t factor, uint64_t unit)
{
    return whole(times(balanced, factor), unit);
}

int64_t ps_capacity_factor(uint64_t balanced, uint64_t rows)
{
    return ratio_up(rows, balanced);
}
