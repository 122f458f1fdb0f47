/* SPDX-License-Identifier: Apache-2.0 */
/*
 * At a cut: making a plan, its places, and taking both up. Lock held in every function; let go and taken again where
 * driver calls are long. `learner.busy` keeps a second thread's cut out meanwhile.
 *
 *   begin ──a step seen twice──► capture: plan made, pages wanted ──pages there──► captured: places made
 *                                    ▲                                              │
 *                                    └──── misses, or more moved than planned ──────┘
 */
#include <stdlib.h>
#include <string.h>

#include "policy/base/log.h"
#include "shim/engine_int.h"

#define MOVED_PERCENT 10
#define REMAKE_PERCENT                                                                             \
    15 /* more than that of the valid bytes moved in a step: homes are too small */
#define POOL_PERCENT  10
#define STALE_STEPS   32 /* a kind of step not seen for so many is not planned for */
#define FLIGHTS_FIRST 3  /* groups on their way at once, when the plan is taken up */
#define FLIGHTS                                                                                    \
    8 /* and later, if that is cheap: so far the host runs ahead without waiting for pages */
#define CHEAP_BYTES  ((uint64_t)1 << 30)
#define SWEEPS       4 /* steps after a miss: by then the device is done with the memory it took */
#define PAGE_TRIES   4 /* plans before which the pool's pages may become others */
#define DOUBTS_MAX   6 /* after 63 steps without pages there will be none */
#define FAILURES_MAX 4 /* times making places may fail before we stop trying */

static bool worth(const struct ps_learner *l, const struct ps_kind *k)
{
    return k->id != 0 && k->count >= 2 && k->record[0].n_groups > 1 &&
           k->last + STALE_STEPS >= l->segment.serial;
}

/* The plan for all kinds of step that are current. */
static enum ps_status make_plan(struct ps_engine *e, struct ps_plan *plan_p,
                                struct ps_sinks *sinks_p)
{
    struct ps_learner *l = &e->learner;
    struct ps_plan_step steps[PS_KINDS_MAX];
    uint32_t n = 0;
    enum ps_status s = PS_OK;
    const struct ps_plan_settings settings = {
        .granularity = e->granularity,
        .page_bytes = e->pool.page_bytes,
        .moved_percent = MOVED_PERCENT,
        .pool_percent = POOL_PERCENT,
    };
    for (uint32_t k = 0; k < PS_KINDS_MAX && s == PS_OK; k++) {
        bool same;
        if (worth(l, &l->segment.kinds[k])) {
            s = ps_kind_merge(&l->segment.kinds[k], &steps[n], &same);
            l->next_kind[n] = l->segment.kinds[k].id;
            n += s == PS_OK;
        }
    }
    if (s == PS_OK) {
        s = n > 0 ? ps_learn_make(e, steps, n, &settings, plan_p) : PS_ERR_UNSUPPORTED;
    }
    if (s == PS_OK) {
        s = ps_learn_sinks(e, steps, n, plan_p, sinks_p);
        if (s != PS_OK) {
            ps_plan_fini(plan_p);
        }
    }
    l->n_next = n;
    while (n > 0) {
        ps_plan_step_free(&steps[--n]);
    }
    return s;
}

static void forget_next(struct ps_learner *l)
{
    if (l->have_next) {
        ps_plan_fini(&l->next);
        ps_sinks_fini(&l->next_sinks);
        memset(&l->next, 0, sizeof(l->next));
        l->have_next = false;
    }
}

static void say_plan(const struct ps_plan *p)
{
    ps_info(
        "plan: homes %llu MiB, %u lanes of %llu MiB, pages %llu MiB; the step's peak %llu MiB instead of %llu",
        (unsigned long long)(p->home_bytes >> 20), p->n_lanes,
        (unsigned long long)(p->lane_bytes / (p->n_lanes != 0 ? p->n_lanes : 1) >> 20),
        (unsigned long long)(p->pool_bytes >> 20), (unsigned long long)(p->peak_bytes >> 20),
        (unsigned long long)(p->plain_peak_bytes >> 20));
}

static void want_sinks(struct ps_engine *e, const struct ps_sinks *sinks)
{
    ps_host_want_sinks(e, sinks->n_sinks, (uint64_t)sinks->stage_pages * e->pool.page_bytes);
}

/*
 * Until a stash is seen complete it may need the worst case: room for `flights` groups on their way, in host memory as
 * far as that goes.
 */
static void want_pages(struct ps_engine *e, const struct ps_plan *plan,
                       const struct ps_sinks *sinks, uint64_t flights)
{
    const uint64_t least = FLIGHTS_FIRST * plan->group_tail_bytes;
    const uint64_t worst = flights * plan->group_tail_bytes;
    const uint64_t most = ps_learn_host_most(e);
    uint64_t host = worst < most ? worst : most;
    uint64_t device = plan->pool_bytes + (host < least ? least - host : 0);

    ps_learn_limit(e, plan, sinks, &device, &host);
    ps_pool_want(e, device, host);
    want_sinks(e, sinks);
}

/* Everything that was freed is idle: its memory is given back. Lock let go and taken again. */
static bool clear_out(struct ps_engine *e)
{
    if (!ps_engine_await_idle(e)) {
        return false;
    }
    pthread_mutex_unlock(&ps_lock);
    ps_engine_release_unused(e);
    pthread_mutex_lock(&ps_lock);
    return true;
}

/* The pages become as large as the capacity asks for, while nothing lies in any. Lock let go and taken again. */
static void choose_page(struct ps_engine *e)
{
    struct ps_learner *l = &e->learner;
    const uint64_t page = e->places == NULL ? ps_learn_page(&l->segment) : 0;
    if (page == 0 || page == e->pool.page_bytes || l->page_tries >= PAGE_TRIES) {
        return;
    }
    l->page_tries++;
    if (clear_out(e)) {
        ps_engine_poll(e);
        if (ps_pool_set_page(e, page)) {
            ps_info("pages of %u KiB", e->pool.page_bytes >> 10);
        }
    }
}

static void say_sinks(const struct ps_engine *e, const struct ps_sinks *s)
{
    if (s->n_sinks > 0) {
        const uint64_t bytes = (uint64_t)s->stage_pages * e->pool.page_bytes;
        ps_info("sinks: %u of %llu MiB each in host memory, by way of %u on the device", s->n_sinks,
                (unsigned long long)(bytes >> 20), s->n_stages);
    }
}

/*
 * Does the plan gain nothing only because groups of the step found no pages, so that all of them counts as valid? Host
 * memory may have been pinned by the next time; each is twice as many steps away as the one before.
 */
static bool in_doubt(struct ps_learner *l)
{
    const bool seen = l->step_kept == 0 && l->step_valid > 0;
    if (seen || l->n_doubts == DOUBTS_MAX) {
        return false;
    }
    l->doubt_cuts = 1u << l->n_doubts++;
    return true;
}

/* Plans the steps seen so far. The pages are asked for now: pinning takes its time. */
static void consider(struct ps_engine *e)
{
    struct ps_learner *l = &e->learner;
    struct ps_plan plan;
    struct ps_sinks sinks = {0};

    memset(&plan, 0, sizeof(plan));
    choose_page(e);
    if (make_plan(e, &plan, &sinks) != PS_OK) {
        return;
    }
    say_plan(&plan);
    forget_next(l);
    if (!plan.adopt) {
        ps_plan_fini(&plan);
        ps_sinks_fini(&sinks);
        if (!in_doubt(l) && !l->left_alone) {
            l->left_alone = true;
            ps_info(
                "no plan would lower the peak of a step: allocations are left to the job's allocator");
        }
        return;
    }
    l->next = plan;
    l->next_sinks = sinks;
    l->have_next = true;
    say_sinks(e, &sinks);
    want_pages(e, &plan, &sinks, FLIGHTS_FIRST);
}

static struct ps_fence *pending(const struct ps_engine *e, const struct ps_places *p)
{
    struct ps_fence *f = ps_places_pending(p);
    return f != NULL ? f : ps_sinks_pending(e->sinks);
}

/* The places in force go. False: somebody is in them, or the device is not done with them. */
static bool take_down(struct ps_engine *e)
{
    struct ps_places *p = e->places;
    struct ps_fence *f;
    if (p == NULL) {
        return true;
    }
    ps_places_tidy(e);
    while (e->places == p && (f = pending(e, p)) != NULL) {
        if (ps_places_open_elsewhere(p)) {
            return false;
        }
        ps_fence_ref(f);
        ps_count(host_syncs, 1);
        pthread_mutex_unlock(&ps_lock);
        const CUresult r = ps_wait_bounded(f->event);
        pthread_mutex_lock(&ps_lock);
        ps_fence_unref(&e->fences, f);
        if (r != CUDA_SUCCESS) {
            return false;
        }
        ps_places_tidy(e);
    }
    if (e->places != p || !ps_places_idle(p) || !ps_sinks_idle(e->sinks)) {
        return false;
    }
    struct ps_sinks_memory *sinks = e->sinks;
    e->places = NULL;
    e->sinks = NULL;
    e->chunk_bytes -= p->bytes + ps_sinks_bytes(sinks);
    e->learner.n_ways = 0;
    pthread_mutex_unlock(&ps_lock);
    ps_sinks_free(e, sinks, false);
    ps_places_free(e, p);
    pthread_mutex_lock(&ps_lock);
    return true;
}

/* Parts of the tensors' sizes that the homes of a name's sites hold, the smallest. */
static uint32_t front_parts(const struct ps_plan *plan, uint32_t name)
{
    uint32_t parts = PS_SITE_PARTS;
    for (uint32_t i = 0; i < plan->n_sites; i++) {
        const struct ps_plan_site *s = &plan->sites[i];
        if (s->name == name && s->class == PS_PLAN_STASH) {
            const uint64_t its = s->home_bytes / (s->bytes / PS_SITE_PARTS + 1);
            parts = its < parts ? (uint32_t)its : parts;
        }
    }
    return parts;
}

/*
 * The job's allocator serves temporaries from now on, whose memory the rest of the step can use as well. What they hold
 * flows into what is saved, so behind the part that homes hold they are handed out uniform.
 */
static void leave_temporaries(struct ps_engine *e, const struct ps_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_sites; i++) {
        struct ps_site *site =
            plan->sites[i].class == PS_PLAN_TEMPORARY
                ? ps_sites_get(&e->sites, plan->sites[i].name, plan->sites[i].ordinal)
                : NULL;
        if (site != NULL) {
            site->left =
                true; /* plans are of allocations that are ours: later ones have no such site */
            site->front_parts =
                (uint16_t)(e->learner.fill_whole ? 0 : front_parts(plan, plan->sites[i].name));
        }
    }
}

static void take_up(struct ps_engine *e)
{
    struct ps_learner *l = &e->learner;
    if (!take_down(e) || !clear_out(e)) {
        return;
    }
    /* What the plan before had is there now, or asked for. */
    want_sinks(e, &l->next_sinks);
    if (!ps_host_settled(e)) {
        return;
    }
    struct ps_plan plan = l->next;
    const uint32_t n_peers = e->n_peers;
    pthread_mutex_unlock(&ps_lock);
    ps_memory_trim_pool(e);
    struct ps_places *p = ps_places_make(e, &plan);
    const uint32_t n_sinks = l->next_sinks.n_sinks;
    struct ps_sinks_memory *sinks = p != NULL ? ps_sinks_make(e, &l->next_sinks) : NULL;
    pthread_mutex_lock(&ps_lock);
    if (p == NULL) {
        l->n_failures++;
        ps_warn_once("no memory for the plan's places; groups are stashed without a plan");
        return;
    }
    memset(&l->next, 0, sizeof(l->next));
    l->have_next = false;
    l->n_ways = l->n_next;
    memcpy(l->way_kind, l->next_kind, sizeof(l->way_kind));
    e->places = p;
    e->sinks = sinks;
    if (n_peers != e->n_peers) {
        ps_places_grant(e, p);
    }
    e->chunk_bytes += p->bytes + ps_sinks_bytes(sinks);
    ps_counter_peak(&ps_counters.place_bytes_peak, e->chunk_bytes);
    ps_learn_watch(e, false);
    leave_temporaries(e, &p->plan);
    /* Every tail may be out, and as many copies dropped but not seen gone: no later stash waits for a table. */
    ps_pool_tables(e, 2 * ps_places_pages(e, p));
    /* Clearing out has taken the device's pages along. */
    (void)ps_pool_ready(e);
    ps_count(plans, 1);
    atomic_store_explicit(&ps_counters.pages_used_peak, 0, memory_order_relaxed);
    const bool cheap = FLIGHTS * p->plan.group_tail_bytes <= CHEAP_BYTES;
    if (cheap || ps_sinks_chosen(sinks)->n_sinks < n_sinks) {
        want_pages(e, &p->plan, ps_sinks_chosen(sinks), cheap ? FLIGHTS : FLIGHTS_FIRST);
    }
    ps_info("places: %llu MiB for homes, lanes and one spare, %llu MiB for pages",
            (unsigned long long)(p->bytes >> 20), (unsigned long long)(e->pool.mapped >> 20));
    ps_observe_phase(PS_PHASE_CAPTURED);
}

/* Did the step that has just ended go otherwise than planned? */
static bool drifted(struct ps_engine *e, const struct ps_cut *cut)
{
    struct ps_learner *l = &e->learner;
    const bool far =
        l->step_misses > l->step_taken ||
        l->step_moved * 100 > l->step_valid * ps_learn_remake_percent(e, REMAKE_PERCENT);
    const bool off = far || (l->step_taken > 0 && !l->crowded);
    /* If homes hold less than was thought, so it may be of temporaries. */
    l->fill_whole = l->fill_whole || (off && l->step_misses == 0);
    l->n_off = off && cut->complete ? l->n_off + 1 : 0;
    ps_learn_watch(e, l->n_off > 0);
    if (l->n_off < 2 || !cut->known) {
        return false;
    }
    l->crowded = !far;
    return true;
}

/* False: somebody is in the places in force; at a later cut, then. Lock let go and taken again. */
static bool forget(struct ps_engine *e)
{
    struct ps_learner *l = &e->learner;
    l->busy = true;
    const bool down = take_down(e);
    if (down) {
        forget_next(l);
        ps_segment_forget(&l->segment);
        ps_sites_forget_gain(&e->sites);
        l->forget = l->left_alone = false;
        l->n_off = l->n_failures = l->page_tries = l->n_sweeps = 0;
        l->n_doubts = l->doubt_cuts = 0;
        l->step_misses = l->step_taken = 0;
        l->crowded = false;
        l->step_moved = l->step_valid = l->held_bytes = 0;
        e->gain.n_full = 0;
        ps_pool_unwant(e);
        ps_observe_phase(PS_PHASE_BEGIN);
    }
    l->busy = false;
    return down;
}

/* Memory of what was freed is given back, for some cuts: by then the device is done with it. */
static void sweep(struct ps_engine *e)
{
    struct ps_learner *l = &e->learner;
    if (l->n_sweeps > 0) {
        l->n_sweeps--;
        pthread_mutex_unlock(&ps_lock);
        const bool was = ps_mapping_unplanned(true);
        ps_memory_sweep(e);
        (void)ps_mapping_unplanned(was);
        pthread_mutex_lock(&ps_lock);
    }
}

/* What moved held no padding, and a whole step has found its memory: the job's own allocator serves it from now on. */
static void leave_alone(struct ps_engine *e, const struct ps_cut *cut)
{
    struct ps_learner *l = &e->learner;
    if (!l->left_alone && cut->complete) {
        l->left_alone = true;
        l->n_sweeps = SWEEPS;
        ps_learn_watch(e, false);
        ps_info("regions' tensors hold no padding: allocations are left to the job's allocator");
    }
    sweep(e);
}

void ps_learn_cut(struct ps_engine *e, const struct ps_cut *cut)
{
    struct ps_learner *l = &e->learner;
    if (l->forget && !l->busy && forget(e)) {
        return;
    }
    if (!ps_options.plan || l->busy || l->n_failures >= FAILURES_MAX) {
        return;
    }
    if (ps_gain_none(&e->gain)) {
        leave_alone(e, cut);
        return;
    }
    l->busy = true;
    ps_debug("cut: %llu KiB of places and spares, %llu of pages, %llu of tables, %llu of the rest",
             (unsigned long long)(e->chunk_bytes >> 10), (unsigned long long)(e->pool.mapped >> 10),
             (unsigned long long)(e->pool.tables_mapped >> 10),
             (unsigned long long)(e->pool.arena_bytes >> 10));
    ps_engine_poll(e);
    const bool off = e->places != NULL && drifted(e, cut);
    const bool ready =
        cut->known && cut->kind != PS_KIND_NONE && worth(l, &l->segment.kinds[cut->kind]);
    if (e->places == NULL && !l->left_alone) {
        ps_learn_watch(e, true);
        ps_observe_phase(PS_PHASE_CAPTURE);
    }
    const bool waits = l->doubt_cuts > 0;
    l->doubt_cuts -= waits;
    if ((e->places == NULL && ready && !waits && !l->have_next && !l->left_alone) ||
        (off && ready)) {
        consider(e);
        l->n_off = 0;
    }
    if (l->have_next && ps_pool_ready(e)) {
        take_up(e);
    } else if (e->places != NULL) {
        (void)ps_pool_ready(e); /* its pages may have been given back when memory ran out */
    }
    l->n_sweeps = l->step_misses > 0 ? SWEEPS : l->n_sweeps;
    if (e->places != NULL) {
        sweep(e);
    }
    l->step_misses = l->step_taken = l->step_kept = 0;
    l->step_moved = 0;
    l->step_valid = 0;
    l->busy = false;
}

void ps_learn_release(struct ps_engine *e)
{
    pthread_mutex_lock(&ps_lock);
    struct ps_learner *l = &e->learner;
    if (!l->busy && e->places != NULL && ps_places_idle(e->places)) {
        l->busy = true;
        /* The next cut plans again, from what is known. */
        if (take_down(e)) {
            ps_pool_unlimit(e);
            ps_host_want_sinks(e, 0, 0);
        }
        l->busy = false;
    }
    pthread_mutex_unlock(&ps_lock);
}

void ps_learn_fini(struct ps_engine *e)
{
    struct ps_learner *l = &e->learner;
    ps_learn_watch(e, false);
    forget_next(l);
    ps_segment_fini(&l->segment);
}
