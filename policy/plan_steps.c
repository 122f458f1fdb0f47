/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the steps given, finds when everything is born and dies, and the sites; see plan_int.h. */
#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/plan_int.h"

#define NONE        PS_PLAN_NONE
#define BYTES_LIMIT (UINT64_C(1) << 58) /* of all tensors of a step; so no sum can overflow */
#define UNIT_LIMIT  (UINT64_C(1) << 32)

static bool push(struct ps_planning_step *s, uint32_t index, uint32_t at, uint32_t *n_pushed)
{
    if (index != *n_pushed || index >= s->given->n_groups) {
        return false;
    }
    s->groups[index].push = at;
    ++*n_pushed;
    return true;
}

static bool is_open(const struct ps_planning_group *g, uint32_t n_events)
{
    return g->push != n_events && g->pop == n_events;
}

static bool tensor_event(struct ps_planning_step *s, const struct ps_plan_event *e, uint32_t at)
{
    const uint32_t n = s->given->n_events;

    if (e->index >= s->given->n_tensors) {
        return false;
    }
    struct ps_planning_tensor *t = &s->tensors[e->index];
    const uint32_t group = s->given->tensors[e->index].group;

    if (e->kind == PS_PLAN_FREE) {
        if (t->born == n || t->died != n) {
            return false;
        }
        t->died = at;
        return true;
    }
    if (t->born != n || group >= s->given->n_groups || !is_open(&s->groups[group], n)) {
        return false;
    }
    t->born = at;
    t->next = s->groups[group].first;
    s->groups[group].first = e->index;
    return true;
}

/* False: the events are impossible. */
static bool read_events(struct ps_planning_step *s)
{
    const uint32_t n = s->given->n_events;
    uint32_t n_pushed = 0;
    bool ok = true;

    for (uint32_t i = 0; i < n && ok; i++) {
        const struct ps_plan_event *e = &s->given->events[i];
        struct ps_planning_group *g = e->index < n_pushed ? &s->groups[e->index] : NULL;

        switch (e->kind) {
        case PS_PLAN_PUSH:
            ok = push(s, e->index, i, &n_pushed);
            break;
        case PS_PLAN_POP:
            ok = g != NULL && g->pop == n;
            if (ok) {
                g->pop = i;
            }
            break;
        case PS_PLAN_RETURN:
            ok = g != NULL && g->back == n;
            if (ok) {
                g->back = i;
            }
            break;
        case PS_PLAN_ALLOC:
        case PS_PLAN_FREE:
            ok = tensor_event(s, e, i);
            break;
        default:
            ok = false;
        }
        ok = ok && e->other_bytes <= BYTES_LIMIT;
    }
    return ok;
}

/* The boundaries next to each push, pop and return. */
static void find_boundaries(struct ps_planning_step *s)
{
    uint32_t before = NONE, after = NONE;

    for (uint32_t i = 0; i < s->given->n_events; i++) {
        const struct ps_plan_event *e = &s->given->events[i];

        if (e->kind == PS_PLAN_PUSH) {
            s->groups[e->index].before_push = before;
            before = i;
        } else if (e->kind == PS_PLAN_RETURN) {
            s->groups[e->index].before_back = before;
            before = i;
        }
    }
    for (uint32_t i = s->given->n_events; i-- > 0;) {
        const struct ps_plan_event *e = &s->given->events[i];

        if (e->kind == PS_PLAN_PUSH) {
            s->groups[e->index].after_push = after;
            after = i;
        } else if (e->kind == PS_PLAN_RETURN) {
            s->groups[e->index].after_back = after;
            after = i;
        } else if (e->kind == PS_PLAN_POP) {
            s->groups[e->index].after_pop = after;
        }
    }
}

static enum ps_status index_step(struct ps_planning_step *s, const struct ps_plan_step *given)
{
    const uint32_t n = given->n_events;
    uint64_t sum = 0;

    s->given = given;
    s->tensors = malloc((given->n_tensors + (size_t)1) * sizeof(*s->tensors));
    s->groups = malloc((given->n_groups + (size_t)1) * sizeof(*s->groups));
    if (s->tensors == NULL || s->groups == NULL) {
        return PS_ERR_MEMORY;
    }
    if (n == NONE) {
        return PS_ERR_INVALID;
    }
    for (uint32_t i = 0; i < given->n_tensors; i++) {
        s->tensors[i] =
            (struct ps_planning_tensor){.site = NONE, .born = n, .died = n, .next = NONE};
        sum += given->tensors[i].bytes;
        if (given->tensors[i].bytes > BYTES_LIMIT || sum > BYTES_LIMIT) {
            return PS_ERR_INVALID;
        }
    }
    for (uint32_t i = 0; i < given->n_groups; i++) {
        s->groups[i] = (struct ps_planning_group){.push = n,
                                                  .pop = n,
                                                  .back = n,
                                                  .born = NONE,
                                                  .first = NONE,
                                                  .before_push = NONE,
                                                  .after_push = NONE,
                                                  .after_pop = NONE,
                                                  .before_back = NONE,
                                                  .after_back = NONE,
                                                  .edge = NONE,
                                                  .parent = NONE,
                                                  .anchor = NONE,
                                                  .set = NONE};
    }
    if (!read_events(s)) {
        return PS_ERR_INVALID;
    }
    find_boundaries(s);
    return PS_OK;
}

static int compare_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static enum ps_status find_names(struct ps_planning *p, const struct ps_plan_step *steps)
{
    uint32_t n = 0, last = 0;
    size_t room = 1;

    for (uint32_t i = 0; i < p->n_steps; i++) {
        room += steps[i].n_groups;
    }
    p->name_list = malloc(room * sizeof(*p->name_list));
    if (p->name_list == NULL) {
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const struct ps_plan_step *given = &steps[i];

        for (uint32_t g = 0; g < given->n_groups; g++) {
            if (n == 0 || given->names[g] != p->name_list[n - 1]) {
                p->name_list[n++] = given->names[g];
            }
        }
    }
    qsort(p->name_list, n, sizeof(*p->name_list), compare_u32);
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 || p->name_list[i] != last) {
            last = p->name_list[i];
            p->name_list[p->n_names++] = last;
        }
    }
    p->names = calloc(p->n_names + (size_t)1, sizeof(*p->names));
    if (p->names == NULL) {
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < p->n_names; i++) {
        p->names[i].name = p->name_list[i];
    }
    for (uint32_t i = 0; i < p->n_steps; i++) {
        ps_assert(p->steps[i].groups != NULL);
        for (uint32_t g = 0; g < steps[i].n_groups; g++) {
            const uint32_t *found = bsearch(&steps[i].names[g], p->name_list, p->n_names,
                                            sizeof(*p->name_list), compare_u32);

            if (found == NULL) {
                return PS_ERR_INVALID;
            }
            p->steps[i].groups[g].name = (uint32_t)(found - p->name_list);
        }
    }
    return PS_OK;
}

/* Sites while they are being found: open addressing by name and ordinal. */
struct site_table {
    uint32_t *heads; /* index + 1 into keys; 0: empty */
    uint64_t *keys;  /* name, ordinal */
    uint32_t n, room, n_heads;
};

static uint32_t *site_head(const struct site_table *t, uint64_t key)
{
    uint64_t i = key * UINT64_C(0x9e3779b97f4a7c15) >> 20;

    while (t->heads[i % t->n_heads] != 0 && t->keys[t->heads[i % t->n_heads] - 1] != key) {
        i++;
    }
    return &t->heads[i % t->n_heads];
}

static bool site_table_grow(struct site_table *t)
{
    const uint32_t room = t->room == 0 ? 256 : 2 * t->room;
    void *keys = realloc(t->keys, room * sizeof(*t->keys));
    void *heads = calloc(2 * (size_t)room, sizeof(*t->heads));

    if (keys != NULL) {
        t->keys = keys;
    }
    if (keys == NULL || heads == NULL) {
        free(heads);
        return false;
    }
    free(t->heads);
    t->heads = heads;
    t->room = room;
    t->n_heads = 2 * room;
    for (uint32_t i = 0; i < t->n; i++) {
        *site_head(t, t->keys[i]) = i + 1;
    }
    return true;
}

/* Index of the key; NONE: out of memory. */
static uint32_t site_table_add(struct site_table *t, uint64_t key)
{
    if (t->n == t->room && !site_table_grow(t)) {
        return NONE;
    }
    uint32_t *head = site_head(t, key);

    if (*head == 0) {
        t->keys[t->n++] = key;
        *head = t->n;
    }
    return *head - 1;
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The sites in order; the tensors' numbers follow. */
static enum ps_status sort_sites(struct ps_planning *p, const struct site_table *table)
{
    uint64_t *sorted = malloc((table->n + (size_t)1) * sizeof(*sorted));
    uint32_t *number = malloc((table->n + (size_t)1) * sizeof(*number));

    p->n_sites = table->n;
    p->sites = calloc(table->n + (size_t)1, sizeof(*p->sites));
    if (sorted == NULL || number == NULL || p->sites == NULL) {
        free(sorted);
        free(number);
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < table->n; i++) {
        sorted[i] = table->keys[i];
    }
    qsort(sorted, table->n, sizeof(*sorted), compare_u64);
    for (uint32_t i = 0; i < table->n; i++) {
        struct ps_planning_name *name = &p->names[sorted[i] >> 32];

        p->sites[i] = (struct ps_planning_site){
            .name = (uint32_t)(sorted[i] >> 32), .ordinal = (uint32_t)sorted[i], .temporary = true};
        name->first_site = name->n_sites == 0 ? i : name->first_site;
        name->n_sites++;
        number[*site_head(table, sorted[i]) - 1] = i;
    }
    for (uint32_t i = 0; i < p->n_steps; i++) {
        for (uint32_t t = 0; t < p->steps[i].given->n_tensors; t++) {
            uint32_t *site = &p->steps[i].tensors[t].site;

            *site = *site == NONE ? NONE : number[*site];
        }
    }
    free(sorted);
    free(number);
    return PS_OK;
}

static enum ps_status find_sites(struct ps_planning *p)
{
    struct site_table table = {0};
    enum ps_status status = site_table_grow(&table) ? PS_OK : PS_ERR_MEMORY;

    for (uint32_t i = 0; i < p->n_steps && status == PS_OK; i++) {
        struct ps_planning_step *s = &p->steps[i];

        for (uint32_t t = 0; t < s->given->n_tensors && status == PS_OK; t++) {
            if (s->tensors[t].born == s->given->n_events) {
                continue;
            }
            const struct ps_plan_tensor *given = &s->given->tensors[t];
            const uint64_t name = s->groups[given->group].name;

            s->tensors[t].site = site_table_add(&table, name << 32 | given->ordinal);
            status = s->tensors[t].site != NONE ? PS_OK : PS_ERR_MEMORY;
        }
    }
    if (status == PS_OK) {
        status = sort_sites(p, &table);
    }
    free(table.heads);
    free(table.keys);
    return status;
}

/* Before its group could leave: locals of a function live on a little beyond its pop. */
static bool dies_in_place(const struct ps_planning_group *g, uint32_t died)
{
    return died < (g->after_pop != NONE ? g->after_pop : g->pop);
}

/* Sizes, valid bytes and class of the sites. */
static void measure_sites(struct ps_planning *p)
{
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const struct ps_planning_step *s = &p->steps[i];

        for (uint32_t t = 0; t < s->given->n_tensors; t++) {
            const struct ps_planning_tensor *tensor = &s->tensors[t];
            const struct ps_plan_tensor *given = &s->given->tensors[t];

            if (tensor->site == NONE) {
                continue;
            }
            struct ps_planning_site *site = &p->sites[tensor->site];

            site->n_tensors++;
            site->bytes = given->bytes > site->bytes ? given->bytes : site->bytes;
            site->temporary =
                site->temporary && dies_in_place(&s->groups[given->group], tensor->died);
            if (given->valid != PS_PLAN_UNKNOWN) {
                site->n_known++;
                site->valid_sum += given->valid < given->bytes ? given->valid : given->bytes;
            }
        }
    }
    for (uint32_t i = 0; i < p->n_sites; i++) {
        struct ps_planning_site *site = &p->sites[i];

        site->known = site->n_known != 0;
        site->mean_valid = site->known ? site->valid_sum / site->n_known : 0;
    }
}

/* When what is kept of each group is born and dies. */
static void measure_groups(const struct ps_planning *p, struct ps_planning_step *s)
{
    for (uint32_t i = 0; i < s->given->n_groups; i++) {
        struct ps_planning_group *g = &s->groups[i];

        for (uint32_t t = g->first; t != NONE; t = s->tensors[t].next) {
            const struct ps_planning_tensor *tensor = &s->tensors[t];

            if (!p->sites[tensor->site].temporary) {
                g->born = tensor->born < g->born ? tensor->born : g->born;
                g->died = tensor->died > g->died ? tensor->died : g->died;
            }
        }
        if (g->died < g->pop) {
            g->died = g->pop; /* it may allocate again until then */
        }
    }
}

static uint64_t extra_of(const struct ps_planning *p, const struct ps_planning_step *s, uint32_t t)
{
    const struct ps_planning_site *site = &p->sites[s->tensors[t].site];
    const uint64_t bytes = s->given->tensors[t].bytes;

    return site->known ? bytes - ps_planning_valid(site, &s->given->tensors[t]) : 0;
}

/* Sum of what is not valid in the group's live tensors. */
static uint64_t group_extra(const struct ps_planning *p, const struct ps_planning_step *s,
                            uint32_t g, uint32_t at)
{
    uint64_t sum = 0;

    for (uint32_t t = s->groups[g].first; t != NONE; t = s->tensors[t].next) {
        sum += s->tensors[t].died > at ? extra_of(p, s, t) : 0;
    }
    return sum;
}

struct levels {
    uint64_t plain, bound, temporary;
};

static void level_event(const struct ps_planning *p, const struct ps_planning_step *s, uint32_t at,
                        struct levels *now)
{
    const struct ps_plan_event *e = &s->given->events[at];
    const bool about_tensor = e->kind == PS_PLAN_ALLOC || e->kind == PS_PLAN_FREE;
    const uint32_t index = about_tensor ? s->given->tensors[e->index].group : e->index;
    const struct ps_planning_group *g = &s->groups[index];

    if (e->kind == PS_PLAN_POP && g->back > at) {
        now->bound -= group_extra(p, s, index, at);
    } else if (e->kind == PS_PLAN_RETURN && g->pop < at) {
        now->bound += group_extra(p, s, index, at);
    } else if (about_tensor) {
        const bool alloc = e->kind == PS_PLAN_ALLOC;
        const uint64_t bytes = s->given->tensors[e->index].bytes;
        const bool whole = g->pop > at || g->back < at;
        const uint64_t least = bytes - (whole ? 0 : extra_of(p, s, e->index));
        const uint64_t temporary = p->sites[s->tensors[e->index].site].temporary
                                       ? ps_planning_round(bytes, p->settings->granularity)
                                       : 0;

        now->plain = alloc ? now->plain + bytes : now->plain - bytes;
        now->bound = alloc ? now->bound + least : now->bound - least;
        now->temporary = alloc ? now->temporary + temporary : now->temporary - temporary;
    }
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void measure_peaks(struct ps_planning *p, const struct ps_planning_step *s)
{
    struct levels now = {0};

    for (uint32_t i = 0; i < s->given->n_events; i++) {
        const uint64_t other = s->given->events[i].other_bytes;

        level_event(p, s, i, &now);
        p->plain_peak_bytes = larger(p->plain_peak_bytes, now.plain + other);
        p->bound_bytes = larger(p->bound_bytes, now.bound + other);
        p->temporary_bytes = larger(p->temporary_bytes, now.temporary);
    }
}

static bool settings_are_sound(const struct ps_plan_settings *s)
{
    const uint64_t g = s->granularity, page = s->page_bytes;

    return g != 0 && (g & (g - 1)) == 0 && g <= UNIT_LIMIT && page != 0 && page <= UNIT_LIMIT &&
           s->moved_percent <= 100 && s->pool_percent <= 1000;
}

enum ps_status ps_planning_init(struct ps_planning *p, const struct ps_plan_step *steps,
                                uint32_t n_steps, const struct ps_plan_settings *settings)
{
    enum ps_status status = settings_are_sound(settings) ? PS_OK : PS_ERR_INVALID;
    size_t n_tensors = 1;

    *p = (struct ps_planning){.settings = settings, .n_steps = n_steps};
    p->steps = calloc(n_steps + (size_t)1, sizeof(*p->steps));
    if (p->steps == NULL) {
        return PS_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < n_steps && status == PS_OK; i++) {
        status = index_step(&p->steps[i], &steps[i]);
        n_tensors += steps[i].n_tensors;
    }
    status = status == PS_OK ? find_names(p, steps) : status;
    status = status == PS_OK ? find_sites(p) : status;
    if (status != PS_OK) {
        return status;
    }
    p->scratch = malloc(n_tensors * sizeof(*p->scratch));
    if (p->scratch == NULL) {
        return PS_ERR_MEMORY;
    }
    measure_sites(p);
    for (uint32_t i = 0; i < n_steps; i++) {
        measure_groups(p, &p->steps[i]);
        measure_peaks(p, &p->steps[i]);
    }
    return PS_OK;
}

void ps_planning_fini(struct ps_planning *p)
{
    for (uint32_t i = 0; p->steps != NULL && i < p->n_steps; i++) {
        free(p->steps[i].tensors);
        free(p->steps[i].groups);
        free(p->steps[i].edges);
    }
    free(p->steps);
    free(p->sites);
    free(p->names);
    free(p->name_list);
    free(p->scratch);
    free(p->sets);
    memset(p, 0, sizeof(*p));
}
