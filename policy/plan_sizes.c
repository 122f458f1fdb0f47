/* SPDX-License-Identifier: Apache-2.0 */
/* Homes, tails and slots; see plan_int.h. */
#include <stdlib.h>

#include "policy/plan_int.h"

#define NONE PS_PLAN_NONE

static bool is_stashed(const struct ps_planning_step *s, uint32_t tensor)
{
    const struct ps_planning_tensor *t = &s->tensors[tensor];
    const struct ps_planning_group *g = &s->groups[s->given->tensors[tensor].group];

    return t->site != NONE && g->stash && g->after_pop < t->died;
}

/* Room for the valid bytes of each site's tensors in p->scratch: where each begins, in `start`. */
static void lay_out(const struct ps_planning *p, uint32_t *start)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_sites; i++) {
        start[i] = n;
        n += p->sites[i].n_tensors;
    }
}

/* The valid bytes of the tensors stashed; of all of a site that is not stashed itself, though its name is. */
static void gather(struct ps_planning *p, const uint32_t *start, bool all)
{
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const struct ps_planning_step *s = &p->steps[i];

        for (uint32_t t = 0; t < s->given->n_tensors; t++) {
            struct ps_planning_site *site =
                s->tensors[t].site == NONE ? NULL : &p->sites[s->tensors[t].site];

            if (site == NULL || site->temporary || !site->known ||
                (all ? site->slot != NONE : !is_stashed(s, t))) {
                continue;
            }
            const uint64_t valid = ps_planning_valid(site, &s->given->tensors[t]);

            p->scratch[start[s->tensors[t].site] + site->n_known++] = valid;
            site->valid_sum += valid;
        }
    }
}

/* Whether more than the settings allow would move, of n valid sizes. */
static bool moves_too_much(const struct ps_planning *p, const struct ps_planning_site *site,
                           const uint64_t *valid, uint64_t home)
{
    const uint64_t percent = p->settings->moved_percent;
    const uint64_t most = site->valid_sum / 100 * percent + site->valid_sum % 100 * percent / 100;
    uint64_t moved = 0;

    for (uint32_t i = 0; i < site->n_known; i++) {
        moved += valid[i] > home ? valid[i] - home : 0;
    }
    return moved > most;
}

static void find_home(const struct ps_planning *p, struct ps_planning_site *site,
                      const uint64_t *valid)
{
    const uint64_t unit = p->settings->granularity;
    uint64_t low = 0, high = ps_planning_round(site->bytes, unit) / unit;

    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;

        if (moves_too_much(p, site, valid, middle * unit)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    site->home_bytes = low * unit;
}

static void make_resident(const struct ps_planning *p, struct ps_planning_site *site)
{
    site->home_bytes = ps_planning_round(site->bytes, p->settings->granularity);
    site->tail_bytes = 0;
    site->slot = NONE;
}

static void cut(const struct ps_planning *p, struct ps_planning_site *site)
{
    const uint64_t unit = p->settings->granularity;

    if (site->bytes < site->home_bytes + unit) {
        make_resident(p, site);
    } else {
        site->tail_bytes = ps_planning_round(site->bytes, unit) - site->home_bytes;
    }
}

struct tail {
    uint64_t bytes;
    uint32_t site;
};

static int compare_tails(const void *a, const void *b)
{
    const struct tail *x = a, *y = b;

    if (x->bytes != y->bytes) {
        return x->bytes < y->bytes ? 1 : -1;
    }
    return (x->site > y->site) - (x->site < y->site);
}

/* Slots of one name's tails, the largest first; there is no slot for more than the most. */
static void give_slots(struct ps_planning *p, const struct ps_planning_name *name,
                       struct tail *tails)
{
    uint32_t n = 0;

    for (uint32_t i = name->first_site; i < name->first_site + name->n_sites; i++) {
        if (p->sites[i].tail_bytes != 0) {
            tails[n++] = (struct tail){.bytes = p->sites[i].tail_bytes, .site = i};
        }
    }
    qsort(tails, n, sizeof(tails[0]), compare_tails);
    for (uint32_t i = 0; i < n; i++) {
        if (i >= PS_PLAN_SLOTS_MAX) {
            make_resident(p, &p->sites[tails[i].site]);
            continue;
        }
        p->sites[tails[i].site].slot = i;
        p->n_slots = i >= p->n_slots ? i + 1 : p->n_slots;
        if (tails[i].bytes > p->slot_bytes[i]) {
            p->slot_bytes[i] = tails[i].bytes;
        }
    }
}

static void sum_names(struct ps_planning *p, struct tail *tails)
{
    p->n_slots = 0;
    for (uint32_t i = 0; i < PS_PLAN_SLOTS_MAX; i++) {
        p->slot_bytes[i] = 0;
    }
    for (uint32_t i = 0; i < p->n_names; i++) {
        struct ps_planning_name *name = &p->names[i];

        give_slots(p, name, tails);
        name->home_bytes = name->tail_bytes = 0;
        for (uint32_t j = 0; j < name->n_sites; j++) {
            name->home_bytes += p->sites[name->first_site + j].home_bytes;
            name->tail_bytes += p->sites[name->first_site + j].tail_bytes;
        }
        name->tails = name->tail_bytes != 0;
    }
}

/* Which names have groups that are marked. */
static void find_marked(struct ps_planning *p)
{
    for (uint32_t i = 0; i < p->n_names; i++) {
        p->names[i].tails = false;
    }
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const struct ps_planning_step *s = &p->steps[i];

        for (uint32_t g = 0; g < s->given->n_groups; g++) {
            if (s->groups[g].stash) {
                p->names[s->groups[g].name].tails = true;
            }
        }
    }
}

enum ps_status ps_planning_sizes(struct ps_planning *p)
{
    uint32_t *start = calloc(p->n_sites + (size_t)1, sizeof(*start));
    struct tail *tails = calloc(p->n_sites + (size_t)1, sizeof(*tails));

    if (start == NULL || tails == NULL) {
        free(start);
        free(tails);
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < p->n_sites; i++) {
        p->sites[i].n_known = 0;
        p->sites[i].valid_sum = 0;
        p->sites[i].slot = NONE;
        p->sites[i].home_bytes = p->sites[i].tail_bytes = 0;
    }
    lay_out(p, start);
    find_marked(p);
    gather(p, start, false);
    for (uint32_t i = 0; i < p->n_sites; i++) {
        p->sites[i].slot = p->sites[i].n_known != 0 ? 0 : NONE;
    }
    gather(p, start, true);
    for (uint32_t i = 0; i < p->n_sites; i++) {
        struct ps_planning_site *site = &p->sites[i];

        site->slot = NONE;
        if (site->temporary) {
            continue;
        }
        if (!site->known || !p->names[site->name].tails) {
            make_resident(p, site);
        } else {
            find_home(p, site, &p->scratch[start[i]]);
            cut(p, site);
        }
    }
    sum_names(p, tails);
    free(start);
    free(tails);
    return PS_OK;
}
