/* SPDX-License-Identifier: Apache-2.0 */
/* See sinks.h. */
#include "policy/sinks.h"

#include <stdlib.h>
#include <string.h>

#include "policy/spill.h"

#define OVERFLOW                                                                                   \
    32 /* such a part of all pages, at most, is more than a stage holds: they go to pages of the pool */

/* Of one step. */
struct items {
    struct ps_spill_item *item;
    uint64_t *times;
    uint32_t n;
};

static void items_fini(struct items *items, uint32_t n)
{
    for (uint32_t k = 0; items != NULL && k < n; k++) {
        free(items[k].item);
        free(items[k].times);
    }
    free(items);
}

static enum ps_status items_init(const struct ps_plan *plan, const struct ps_plan_step *step,
                                 uint32_t kind, uint64_t page_bytes, struct items *items)
{
    uint64_t now = 0;

    items->item = malloc((step->n_tensors + 1u) * sizeof(*items->item));
    items->times = malloc((step->n_events + 1u) * sizeof(*items->times));
    if (items->item == NULL || items->times == NULL) {
        return PS_ERR_MEMORY;
    }
    for (uint32_t e = 0; e < step->n_events; e++) {
        now = step->events[e].time_ns > now ? step->events[e].time_ns : now;
        items->times[e] = now;
    }
    return ps_spill_items(plan, step, kind, page_bytes, items->item, &items->n);
}

/* Of one group: pages that its tails take, with one more for each, and bytes of its tensors. */
struct sum {
    uint64_t pages, bytes;
};

static struct sum sum_of(const struct items *items, const struct ps_plan_step *step, uint32_t group,
                         uint64_t page_bytes)
{
    struct sum sum = {0, 0};

    for (uint32_t i = 0; i < items->n; i++) {
        const struct ps_spill_item *item = &items->item[i];

        if (item->group == group) {
            sum.pages += item->bytes / page_bytes + 1;
        }
    }
    for (uint32_t i = 0; i < step->n_tensors; i++) {
        sum.bytes += step->tensors[i].group == group ? step->tensors[i].bytes : 0;
    }
    return sum;
}

static bool goes(const struct ps_plan_moves *moves, const struct ps_spill *spill,
                 const struct items *items, uint32_t group)
{
    bool any = false;

    for (uint32_t i = 0; i < items->n && moves->set[group] != PS_PLAN_NONE; i++) {
        any = any || (items->item[i].group == group && spill->moves[i].host_bytes > 0);
    }
    return any;
}

/* So many sets of the plan have groups that go. */
static uint32_t count_sets(const struct ps_plan *plan, const struct ps_plan_moves *moves,
                           const uint32_t *usual)
{
    uint32_t n = 0;

    for (uint32_t set = 0; set < plan->n_sets; set++) {
        bool any = false;

        for (uint32_t g = 0; g < moves->n_groups; g++) {
            any = any || (usual[g] != 0 && moves->set[g] == set);
        }
        n += any;
    }
    return n;
}

static int compare_pages(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The smallest stage that holds all groups' pages but for the part that may be more. pages: sorted here. */
static uint32_t stage_pages(uint64_t *pages, uint32_t n)
{
    uint64_t total = 0;
    uint64_t over = 0;
    uint64_t stage = 0;

    qsort(pages, n, sizeof(*pages), compare_pages);
    for (uint32_t i = 0; i < n; i++) {
        total += pages[i];
    }
    stage = n > 0 ? pages[n - 1] : 0;
    for (uint32_t i = n; i-- > 1;) {
        /* One size down all from i on are over by that much more. */
        over += (pages[i] - pages[i - 1]) * (n - i);
        if (over > total / OVERFLOW || pages[i - 1] == 0) {
            break;
        }
        stage = pages[i - 1];
    }
    return stage < UINT32_MAX ? (uint32_t)stage : UINT32_MAX;
}

/* A second one only where as much is left for pages. */
static void choose_stages(const struct ps_sinks_settings *settings, struct ps_sinks *s)
{
    const uint64_t bytes = s->stage_pages * settings->page_bytes;
    const uint64_t fit = bytes != 0 ? settings->device_bytes / bytes : 0;
    const uint32_t within = fit > PS_STAGES_MAX ? PS_STAGES_MAX : fit > 0 ? 1 : 0;

    s->n_stages = within == 0 && settings->beside ? PS_STAGES_MAX : within;
    s->device_bytes = settings->device_bytes - within * bytes;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* What the group's like take on the average: those with tensors as large. */
static uint32_t usual_of(const struct sum *sums, uint32_t n_groups, uint32_t group)
{
    uint64_t pages = 0;
    uint32_t n = 0;

    for (uint32_t g = 0; g < n_groups; g++) {
        if (sums[g].pages != 0 && sums[g].bytes == sums[group].bytes) {
            pages += sums[g].pages;
            n++;
        }
    }
    return n > 0 && pages / n > 1 ? (uint32_t)(pages / n) : 1;
}

/* What a choice is made from; sums: of all groups of all steps. */
struct matter {
    const struct ps_plan *plan;
    const struct ps_plan_step *steps;
    const struct ps_sinks_settings *settings;
    const struct items *items;
    struct sum *sums;
};

/* sums: of the step's groups. */
static enum ps_status choose_step(const struct matter *m, uint32_t kind, const struct sum *sums,
                                  struct ps_sinks *s)
{
    const struct ps_plan_moves *moves = &m->plan->moves[kind];
    const struct items *items = &m->items[kind];
    const uint32_t n_events = m->steps[kind].n_events;
    const struct ps_spill_step step = {items->times, items->item, n_events, items->n};
    const struct ps_spill_settings its = {s->device_bytes, m->settings->link_rate};
    const bool timed = n_events > 0 && items->times[n_events - 1] > 0;
    struct ps_spill spill;
    const enum ps_status status =
        timed ? ps_spill_plan(&step, &its, PS_SPILL_LAST_NEEDED, &spill) : PS_ERR_INVALID;

    if (status != PS_OK) {
        return status == PS_ERR_MEMORY ? status : PS_OK; /* nothing of it goes */
    }
    for (uint32_t g = 0; g < moves->n_groups; g++) {
        if (goes(moves, &spill, items, g)) {
            s->usual[kind][g] = usual_of(sums, moves->n_groups, g);
        }
    }
    s->n_sinks = larger(s->n_sinks, count_sets(m->plan, moves, s->usual[kind]));
    ps_spill_fini(&spill);
    return PS_OK;
}

/* Nothing goes. */
static void choose_none(const struct ps_sinks_settings *settings, struct ps_sinks *s)
{
    for (uint32_t k = 0; k < s->n_steps; k++) {
        memset(s->usual[k], 0, s->n_groups[k] * sizeof(**s->usual));
    }
    s->stage_pages = s->n_stages = s->n_sinks = 0;
    s->device_bytes = settings->device_bytes;
}

static enum ps_status choose_steps(const struct matter *m, struct ps_sinks *s)
{
    enum ps_status status = PS_OK;
    uint32_t at = 0;

    for (uint32_t k = 0; k < s->n_steps && status == PS_OK; k++) {
        status = choose_step(m, k, &m->sums[at], s);
        at += s->n_groups[k];
    }
    return status;
}

/* pages: room for all groups of all steps. */
static enum ps_status choose(const struct matter *m, uint64_t *pages, struct ps_sinks *s)
{
    const uint64_t page_bytes = m->settings->page_bytes;
    uint32_t n = 0;

    for (uint32_t k = 0; k < s->n_steps; k++) {
        for (uint32_t g = 0; g < s->n_groups[k]; g++, n++) {
            m->sums[n] = sum_of(&m->items[k], &m->steps[k], g, page_bytes);
            pages[n] = m->sums[n].pages;
        }
    }
    enum ps_status status = choose_steps(m, s);
    if (status != PS_OK || s->n_sinks == 0) { /* without stages all finds pages on the device */
        return status;
    }
    choose_none(m->settings, s);
    s->stage_pages = stage_pages(pages, n);
    choose_stages(m->settings, s);
    status = s->n_stages > 0 ? choose_steps(m, s) : PS_OK;
    const uint64_t host = (uint64_t)s->n_sinks * s->stage_pages * page_bytes;
    if (s->n_sinks == 0 || s->stage_pages == UINT32_MAX || host > m->settings->host_bytes) {
        choose_none(m->settings, s);
    }
    return status;
}

enum ps_status ps_sinks_choose(const struct ps_plan *plan, const struct ps_plan_step *steps,
                               uint32_t n_steps, const struct ps_sinks_settings *settings,
                               struct ps_sinks *sinks_p)
{
    struct ps_sinks s = {.n_steps = n_steps, .device_bytes = settings->device_bytes};
    struct items *items = calloc(n_steps + 1u, sizeof(*items));
    enum ps_status status = PS_OK;
    uint64_t n = 0;

    s.usual = calloc(n_steps + 1u, sizeof(*s.usual));
    s.seen = calloc(n_steps + 1u, sizeof(*s.seen));
    s.n_groups = calloc(n_steps + 1u, sizeof(*s.n_groups));
    if (items == NULL || s.usual == NULL || s.seen == NULL || s.n_groups == NULL) {
        status = PS_ERR_MEMORY;
    }
    for (uint32_t k = 0; k < n_steps && status == PS_OK; k++) {
        s.n_groups[k] = plan->moves[k].n_groups;
        n += s.n_groups[k];
        s.usual[k] = calloc(s.n_groups[k] + 1u, sizeof(**s.usual));
        s.seen[k] = calloc(s.n_groups[k] + 1u, sizeof(**s.seen));
        status = s.usual[k] != NULL && s.seen[k] != NULL
                     ? items_init(plan, &steps[k], k, settings->page_bytes, &items[k])
                     : PS_ERR_MEMORY;
    }
    struct sum *sums = calloc(n + 1u, sizeof(*sums));
    uint64_t *pages = calloc(n + 1u, sizeof(*pages));
    if (status == PS_OK) {
        const struct matter m = {plan, steps, settings, items, sums};

        status = sums != NULL && pages != NULL ? choose(&m, pages, &s) : PS_ERR_MEMORY;
    }
    free(sums);
    free(pages);
    items_fini(items, n_steps);
    if (status != PS_OK) {
        ps_sinks_fini(&s);
        return status;
    }
    *sinks_p = s;
    return PS_OK;
}

void ps_sinks_fini(struct ps_sinks *sinks)
{
    for (uint32_t k = 0; k < sinks->n_steps; k++) {
        free(sinks->usual != NULL ? sinks->usual[k] : NULL);
        free(sinks->seen != NULL ? sinks->seen[k] : NULL);
    }
    free(sinks->usual);
    free(sinks->seen);
    free(sinks->n_groups);
    memset(sinks, 0, sizeof(*sinks));
}

void ps_sinks_see(struct ps_sinks *sinks, uint32_t step, uint32_t group, uint64_t pages)
{
    uint32_t *const usual = &sinks->usual[step][group];
    uint8_t *const seen = &sinks->seen[step][group];
    const int64_t taken = pages < UINT32_MAX ? (int64_t)pages : UINT32_MAX;

    *seen += *seen < PS_SINKS_SEEN;
    const int64_t next = (int64_t)*usual + (taken - (int64_t)*usual) / *seen;

    *usual = next > 1 ? (uint32_t)next : 1;
}
