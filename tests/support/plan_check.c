/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out a plan on imagined memory; see plan_check.h. */
#include "tests/support/plan_check.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define NONE PS_PLAN_NONE

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static void check_site(const struct ps_plan *plan, const struct ps_plan_settings *settings,
                       const struct ps_plan_site *site)
{
    ck_assert_ptr_eq(ps_plan_find(plan, site->name, site->ordinal), site);
    ck_assert_uint_eq(site->bytes % settings->granularity, 0);
    ck_assert_uint_eq(site->home_bytes % settings->granularity, 0);
    switch (site->class) {
    case PS_PLAN_STASH:
        ck_assert_uint_lt(site->slot, plan->n_slots);
        ck_assert_uint_lt(site->home_bytes, site->bytes);
        ck_assert_uint_le(site->bytes - site->home_bytes, plan->slot_bytes[site->slot]);
        break;
    case PS_PLAN_RESIDENT:
        ck_assert_uint_eq(site->slot, NONE);
        ck_assert_uint_eq(site->home_bytes, site->bytes);
        break;
    case PS_PLAN_TEMPORARY:
    default:
        ck_assert_int_eq(site->class, PS_PLAN_TEMPORARY);
        ck_assert_uint_eq(site->home_bytes, 0);
        break;
    }
}

/* Homes and tails of all sites of a name. */
static void name_bytes(const struct ps_plan *plan, uint32_t name, uint64_t *home_p,
                       uint64_t *tail_p)
{
    uint64_t home = 0, tail = 0;
    uint64_t slots = 0;

    for (uint32_t i = 0; i < plan->n_sites; i++) {
        const struct ps_plan_site *site = &plan->sites[i];

        if (site->name == name && site->class != PS_PLAN_TEMPORARY) {
            home += site->home_bytes;
            tail += site->bytes - site->home_bytes;
            if (site->class == PS_PLAN_STASH) {
                ck_assert_msg((slots >> site->slot & 1) == 0, "two tails of a name share a slot");
                slots |= UINT64_C(1) << site->slot;
            }
        }
    }
    *home_p = home;
    *tail_p = tail;
}

void plan_check_sums(const struct ps_plan *plan, const struct ps_plan_settings *settings)
{
    uint64_t homes = 0, lanes = 0, largest_tail = 0;

    for (uint32_t i = 0; i < plan->n_sites; i++) {
        const struct ps_plan_site *s = &plan->sites[i];

        check_site(plan, settings, s);
        ck_assert(i == 0 || s[-1].name < s->name ||
                  (s[-1].name == s->name && s[-1].ordinal < s->ordinal));
    }
    for (uint32_t i = 0; i < plan->n_sets; i++) {
        uint64_t home, tail;

        name_bytes(plan, plan->sets[i].name, &home, &tail);
        homes += home;
        largest_tail = tail > largest_tail ? tail : largest_tail;
        ck_assert((plan->sets[i].lane == NONE) ? tail == 0 : plan->sets[i].lane < plan->n_lanes);
    }
    for (uint32_t i = 0; i < plan->n_slots; i++) {
        ck_assert(i == 0 || plan->slot_bytes[i] <= plan->slot_bytes[i - 1]);
        ck_assert_uint_eq(plan->slot_bytes[i] % settings->granularity, 0);
        lanes += plan->slot_bytes[i] * plan->n_lanes;
    }
    ck_assert_uint_eq(homes, plan->home_bytes);
    ck_assert_uint_eq(lanes, plan->lane_bytes);
    ck_assert_uint_ge(plan->group_tail_bytes, largest_tail);
    ck_assert_uint_ge(plan->peak_bytes,
                      plan->home_bytes + plan->lane_bytes + plan->pool_bytes + plan->spare_bytes);
    ck_assert(!plan->adopt || plan->peak_bytes < plan->plain_peak_bytes);
}

struct imagined {
    const struct ps_plan *plan;
    const struct ps_plan_settings *settings;
    const struct ps_plan_step *step;
    const struct ps_plan_moves *moves; /* NULL: an unknown step */
    struct ps_lanes lanes;
    struct ps_lanes_group *groups;
    struct {
        uint32_t n_live; /* tensors that are no temporaries */
        uint32_t first;  /* tensor, or NONE */
        bool begun, closed, apart, saved, loose;
        uint64_t pages;
    } * own;
    bool *live;         /* tensors */
    uint32_t *next;     /* tensor of the group, or NONE */
    uint32_t *set_user; /* by set: group, or NONE */
    uint32_t in_lane[PS_LANES_MAX];
    uint64_t pages, most_pages, moved_pages, temporary, most_temporary, loose, most;
    struct plan_checked result;
};

static const struct ps_plan_site *site_of(const struct imagined *m, uint32_t tensor)
{
    const struct ps_plan_tensor *t = &m->step->tensors[tensor];

    return ps_plan_find(m->plan, m->step->names[t->group], t->ordinal);
}

static bool is_kept(const struct imagined *m, uint32_t tensor)
{
    const struct ps_plan_site *site = site_of(m, tensor);

    return site != NULL && site->class != PS_PLAN_TEMPORARY;
}

static uint32_t number_of(const struct imagined *m, const struct ps_lanes_group *g)
{
    return (uint32_t)(g - m->groups);
}

/* Pages of the group's live tails. Where the valid bytes are not known there is nothing to check them against. */
static uint64_t pages_of(const struct imagined *m, uint32_t group)
{
    uint64_t pages = 0;

    for (uint32_t i = m->own[group].first; i != NONE; i = m->next[i]) {
        const struct ps_plan_tensor *t = &m->step->tensors[i];

        if (m->live[i] && t->valid != PS_PLAN_UNKNOWN && is_kept(m, i)) {
            const uint64_t home = site_of(m, i)->home_bytes;
            const uint64_t valid = t->valid < t->bytes ? t->valid : t->bytes;

            pages += valid > home
                         ? round_up(valid - home, m->settings->page_bytes) / m->settings->page_bytes
                         : 0;
        }
    }
    return pages;
}

static void save(struct imagined *m, uint32_t group)
{
    ck_assert(m->own[group].closed);
    ck_assert(!m->own[group].saved);
    ck_assert_uint_eq(m->in_lane[m->plan->sets[m->groups[group].set].lane], group);
    m->own[group].saved = true;
    m->own[group].pages = pages_of(m, group);
    m->pages += m->own[group].pages;
    m->moved_pages += m->own[group].pages;
    m->most_pages = m->pages > m->most_pages ? m->pages : m->most_pages;
}

static void drop(struct imagined *m, uint32_t group)
{
    ck_assert(m->own[group].saved);
    m->own[group].saved = false;
    m->pages -= m->own[group].pages;
}

/* The group's tails come into the lane, after what the answer says was done. */
static void enter(struct imagined *m, uint32_t group, const struct ps_lanes_taken *taken)
{
    if (taken->lane == NONE) {
        return;
    }
    ck_assert_uint_eq(taken->lane, m->plan->sets[taken->set].lane);
    if (taken->before != NULL) {
        const uint32_t before = number_of(m, taken->before);

        ck_assert_uint_eq(m->in_lane[taken->lane], before);
        ck_assert(!m->groups[before].returned);
        if (taken->now) {
            save(m, before);
        }
        ck_assert_msg(m->own[before].saved, "group %u loses its bytes", before);
    } else {
        ck_assert_uint_eq(m->in_lane[taken->lane], NONE);
    }
    m->in_lane[taken->lane] = group;
}

static void come_in(struct imagined *m, uint32_t group, const struct ps_lanes_taken *taken)
{
    enter(m, group, taken);
    m->moved_pages += m->own[group].pages;
    drop(m, group);
}

static void boundary(struct imagined *m, const struct ps_lanes_group *but)
{
    struct ps_lanes_group *leaving[PS_LANES_MAX];
    const uint32_t n = ps_lanes_boundary(&m->lanes, but, leaving);

    for (uint32_t i = 0; i < n; i++) {
        save(m, number_of(m, leaving[i]));
    }
}

static void bring_ahead(struct imagined *m, uint32_t group)
{
    struct ps_lanes_taken taken;

    if (group != NONE && ps_lanes_ahead(&m->lanes, &m->groups[group], &taken)) {
        come_in(m, group, &taken);
    }
}

static void loosen(struct imagined *m, uint32_t group, bool with_home)
{
    uint64_t home, tail;

    name_bytes(m->plan, m->step->names[group], &home, &tail);
    m->own[group].loose = true;
    m->loose += with_home ? home + tail : tail;
}

static void begin(struct imagined *m, uint32_t group)
{
    struct ps_lanes_taken taken;
    const uint32_t wanted = m->moves == NULL ? NONE : m->moves->set[group];

    m->own[group].begun = true;
    if (!ps_lanes_acquire(&m->lanes, &m->groups[group], m->step->names[group], wanted, &taken)) {
        m->result.n_conflicts++;
        loosen(m, group, true);
        return;
    }
    ck_assert_uint_eq(m->set_user[taken.set], NONE);
    ck_assert_uint_eq(m->plan->sets[taken.set].name, m->step->names[group]);
    m->set_user[taken.set] = group;
    enter(m, group, &taken);
}

static void touch(struct imagined *m, uint32_t group)
{
    struct ps_lanes_taken taken;

    boundary(m, &m->groups[group]);
    if (m->own[group].n_live == 0 && m->own[group].closed) {
        return;
    }
    switch (ps_lanes_return(&m->lanes, &m->groups[group], &taken)) {
    case PS_LANES_CAME_BACK:
        drop(m, group);
        break;
    case PS_LANES_CAME_IN:
        come_in(m, group, &taken);
        m->result.n_late++;
        break;
    case PS_LANES_CAME_APART:
        m->own[group].apart = true;
        m->moved_pages += m->own[group].pages;
        drop(m, group);
        loosen(m, group, false);
        m->result.n_conflicts++;
        break;
    case PS_LANES_CAME_NOT:
    case PS_LANES_WAS_IN:
    default:
        break;
    }
    if (m->groups[group].owns && m->plan->sets[m->groups[group].set].lane != NONE) {
        const uint32_t lane = m->plan->sets[m->groups[group].set].lane;

        ck_assert_msg(m->own[group].apart || m->in_lane[lane] == group,
                      "group %u is touched, not in", group);
    }
    if (m->moves != NULL) {
        bring_ahead(m, m->moves->after_return[group]);
    }
}

static void end(struct imagined *m, uint32_t group)
{
    struct ps_lanes_group *g = &m->groups[group];
    uint64_t home, tail;

    if (m->own[group].saved) {
        drop(m, group);
    }
    if (m->own[group].loose) {
        name_bytes(m->plan, m->step->names[group], &home, &tail);
        m->loose -= g->owns ? tail : home + tail;
    }
    if (g->owns) {
        const uint32_t lane = m->plan->sets[g->set].lane;

        ck_assert_uint_eq(m->set_user[g->set], group);
        m->set_user[g->set] = NONE;
        if (lane != NONE && m->in_lane[lane] == group) {
            m->in_lane[lane] = NONE;
        }
    }
    m->own[group].begun = false;
    struct ps_lanes_group *next = ps_lanes_free(&m->lanes, g);

    if (next != NULL) {
        const struct ps_lanes_taken taken = {.set = next->set,
                                             .lane = m->plan->sets[next->set].lane};

        come_in(m, number_of(m, next), &taken);
    }
}

static void pop(struct imagined *m, uint32_t group)
{
    ps_lanes_close(&m->lanes, &m->groups[group]);
    m->own[group].closed = true;
    if (ps_lanes_leave(&m->lanes, &m->groups[group])) {
        save(m, group);
    }
    if (m->own[group].begun && m->own[group].n_live == 0) {
        end(m, group);
    }
    if (m->moves != NULL) {
        bring_ahead(m, m->moves->after_push[group]);
    }
}

static void tensor_event(struct imagined *m, uint32_t tensor, bool alloc)
{
    const uint32_t group = m->step->tensors[tensor].group;
    const struct ps_plan_site *site = site_of(m, tensor);
    const uint64_t bytes = m->step->tensors[tensor].bytes;

    m->live[tensor] = alloc;
    if (alloc) {
        m->next[tensor] = m->own[group].first;
        m->own[group].first = tensor;
    }
    if (site == NULL) {
        m->loose += alloc ? bytes : -bytes;
    } else if (site->class == PS_PLAN_TEMPORARY) {
        const uint64_t rounded = round_up(bytes, m->settings->granularity);

        m->temporary += alloc ? rounded : -rounded;
        m->most_temporary = m->temporary > m->most_temporary ? m->temporary : m->most_temporary;
    } else if (alloc) {
        if (m->own[group].n_live++ == 0 && !m->own[group].begun) {
            begin(m, group);
        }
    } else {
        if (m->own[group].saved) {
            const uint64_t pages = pages_of(m, group);

            m->pages -= m->own[group].pages - pages;
            m->own[group].pages = pages;
        }
        if (--m->own[group].n_live == 0 && m->own[group].closed) {
            end(m, group);
        }
    }
}

/* Check keeps a record of each of its assertions; this is for those of every event. */
static void must(bool holds, const char *what)
{
    if (!holds) {
        ck_abort_msg("%s", what);
    }
}

static void check_now(struct imagined *m, uint64_t other_bytes)
{
    must(ps_lanes_check(&m->lanes), "the lanes are sound");
    for (uint32_t lane = 0; lane < m->plan->n_lanes; lane++) {
        const struct ps_lanes_group *holder = m->lanes.holder[lane];

        must((holder == NULL ? NONE : number_of(m, holder)) == m->in_lane[lane],
             "a lane's group is the one whose bytes are there");
    }
    const uint64_t now = m->loose + m->temporary + other_bytes;
    m->most = now > m->most ? now : m->most;
}

static void imagine(struct imagined *m)
{
    const size_t n_groups = m->step->n_groups + (size_t)1;

    m->groups = calloc(n_groups, sizeof(*m->groups));
    m->own = calloc(n_groups, sizeof(*m->own));
    m->live = calloc(m->step->n_tensors + (size_t)1, sizeof(*m->live));
    m->next = calloc(m->step->n_tensors + (size_t)1, sizeof(*m->next));
    m->set_user = malloc((m->plan->n_sets + (size_t)1) * sizeof(*m->set_user));
    ck_assert(m->groups != NULL && m->own != NULL && m->live != NULL && m->next != NULL &&
              m->set_user != NULL);
    memset(m->set_user, 0xff, (m->plan->n_sets + (size_t)1) * sizeof(*m->set_user));
    memset(m->in_lane, 0xff, sizeof(m->in_lane));
    ck_assert_int_eq(ps_plan_lanes(m->plan, &m->lanes), PS_OK);
    for (uint32_t i = 0; i < m->step->n_groups; i++) {
        m->own[i].first = NONE;
        m->groups[i].stash = m->moves == NULL || m->moves->stash[i];
    }
}

void plan_check_step(const struct ps_plan *plan, const struct ps_plan_settings *settings,
                     const struct ps_plan_step *step, uint32_t kind, struct plan_checked *checked_p)
{
    struct imagined m = {.plan = plan, .settings = settings, .step = step};

    m.moves = kind == NONE ? NULL : &plan->moves[kind];
    imagine(&m);
    for (uint32_t i = 0; i < step->n_events; i++) {
        const struct ps_plan_event *e = &step->events[i];

        switch ((enum ps_plan_kind)e->kind) {
        case PS_PLAN_PUSH:
            boundary(&m, NULL);
            break;
        case PS_PLAN_POP:
            pop(&m, e->index);
            break;
        case PS_PLAN_RETURN:
            touch(&m, e->index);
            break;
        case PS_PLAN_ALLOC:
        case PS_PLAN_FREE:
        default:
            tensor_event(&m, e->index, e->kind == PS_PLAN_ALLOC);
            break;
        }
        check_now(&m, e->other_bytes);
    }
    m.result.moved_bytes = m.moved_pages * settings->page_bytes;
    m.result.pool_bytes = m.most_pages * settings->page_bytes;
    m.result.peak_bytes =
        plan->home_bytes + plan->lane_bytes + plan->pool_bytes + plan->spare_bytes + m.most;
    *checked_p = m.result;
    ps_lanes_fini(&m.lanes);
    free(m.groups);
    free(m.own);
    free(m.live);
    free(m.next);
    free(m.set_user);
}
