/* SPDX-License-Identifier: Apache-2.0 */
/* See demand.h. */
#include "shim/demand.h"

#include <stdlib.h>

#include "policy/base/log.h"
#include "shim/engine_int.h"
#include "shim/pagedstash.h"
#include "shim/rows.h"

__extension__ typedef unsigned __int128 wide;

#define READINGS_MAX 256 /* counters on their way at one time */

struct reading {
    struct ps_fence *copied; /* NULL: free */
    struct ps_range_rows rows;
    uint64_t step;
    uint32_t name;
};

struct ps_demand_memory {
    int64_t *seen; /* pinned host memory: a word for each reading */
    struct reading readings[READINGS_MAX];
    uint32_t oldest, n; /* in their order */
    bool broken; /* a copy is on its way that nobody will know the end of: nothing more is noted */
};

struct step {
    uint64_t number; /* from 1 */
    uint64_t kept, spilled, over, needed, capacity, balanced;
    uint32_t n_pending;
};

/* Guarded by ps_lock. */
static struct ps_demand demands[PS_REGION_NAMES_MAX];
static uint32_t n_demands;
static struct step now = {.number = 1}, last;
static uint64_t kept_before, spilled_before; /* the counters at the beginning of the step */
static bool job_tells;

static struct step *step_of(uint64_t number)
{
    return number == now.number ? &now : number == last.number ? &last : NULL;
}

/* ---- memory ---- */

void ps_demand_prepare(struct ps_engine *e, const struct ps_thread *th)
{
    if (th->rows.need.address == 0) {
        return;
    }
    pthread_mutex_lock(&ps_lock);
    const bool due =
        e->demand == NULL && !e->demand_tried && e->state == PS_ENGINE_READY && e->n_ending == 0;
    e->demand_tried = e->demand_tried || due;
    pthread_mutex_unlock(&ps_lock);
    if (!due) {
        return;
    }
    struct ps_demand_memory *m = calloc(1, sizeof(*m));
    void *host = NULL;
    const CUresult r = m == NULL ? CUDA_ERROR_OUT_OF_MEMORY
                                 : ps_driver.cuMemHostAlloc(&host, READINGS_MAX * sizeof(int64_t),
                                                            CU_MEMHOSTALLOC_PORTABLE);
    if (r != CUDA_SUCCESS) {
        ps_warn_once(
            "no memory to note the rows that ranges need: %s; nobody says when they exceed the capacity",
            ps_driver_error_name(&ps_driver, r));
        free(m);
        return;
    }
    m->seen = host;
    pthread_mutex_lock(&ps_lock);
    e->demand = m;
    pthread_mutex_unlock(&ps_lock);
}

void ps_demand_fini(struct ps_engine *e, bool gone)
{
    struct ps_demand_memory *m = e->demand;

    if (m == NULL) {
        return;
    }
    pthread_mutex_lock(&ps_lock);
    e->demand = NULL;
    for (; m->n > 0; m->n--) {
        struct reading *r = &m->readings[m->oldest];
        struct step *s = step_of(r->step);

        if (s != NULL) {
            s->n_pending--;
        }
        ps_fence_unref(&e->fences, r->copied);
        m->oldest = (m->oldest + 1) % READINGS_MAX;
    }
    pthread_mutex_unlock(&ps_lock);
    if (!gone) {
        ps_driver.cuMemFreeHost(m->seen);
    }
    free(m);
}

/* ---- regions ---- */

static struct ps_demand *demand_of(uint32_t name)
{
    uint32_t i = 0;

    while (i < n_demands && demands[i].name != name) {
        i++;
    }
    if (i == n_demands && i < PS_REGION_NAMES_MAX) {
        demands[n_demands++] = (struct ps_demand){.name = name};
    }
    return i < PS_REGION_NAMES_MAX ? &demands[i] : NULL;
}

/* Balanced rows, if they are known from anywhere; 0. */
static uint64_t balanced_of(uint64_t balanced, uint64_t capacity)
{
    const int64_t factor = ps_options.capacity_factor;

    if (balanced != 0 || !ps_option_given(&ps_options, "PAGEDSTASH_CAPACITY_FACTOR") ||
        factor <= 0) {
        return balanced;
    }
    return capacity * PS_FACTOR_ONE / (uint64_t)factor;
}

static uint64_t factor_of(uint64_t balanced, uint64_t rows)
{
    return balanced == 0 ? 0 : (uint64_t)ps_capacity_factor(balanced, rows) / (PS_FACTOR_ONE / 100);
}

/* Once, and again only when it has become worse. */
static void say_over(struct ps_demand *d, uint64_t needed)
{
    const uint64_t balanced = balanced_of(d->balanced, d->capacity);
    const uint64_t would_do = factor_of(balanced, needed);
    const uint64_t measure = balanced != 0 ? would_do : needed;

    if (measure <= d->told_factor) {
        return;
    }
    d->told_factor = measure;
    if (balanced != 0) {
        const uint64_t is = factor_of(balanced, d->capacity);

        ps_warn(
            "region '%s' had to deliver %llu rows and has room for %llu: rows were dropped; a capacity factor "
            "of %llu.%02llu instead of %llu.%02llu would have sufficed",
            ps_region_name(d->name), (unsigned long long)needed, (unsigned long long)d->capacity,
            (unsigned long long)(would_do / 100), (unsigned long long)(would_do % 100),
            (unsigned long long)(is / 100), (unsigned long long)(is % 100));
    } else {
        ps_warn(
            "region '%s' had to deliver %llu rows and has room for %llu: rows were dropped; a capacity of %llu "
            "rows would have sufficed (with ';balanced=ROWS' in its name the factor is told)",
            ps_region_name(d->name), (unsigned long long)needed, (unsigned long long)d->capacity,
            (unsigned long long)needed);
    }
}

static void read_counter(const struct reading *r, int64_t value)
{
    struct ps_demand *d = demand_of(r->name);
    struct step *s = step_of(r->step);
    const uint64_t needed = value > 0 ? (uint64_t)value : 0;
    const bool over = needed > r->rows.capacity;

    ps_count(need_counters, 1);
    ps_count(over_budget, over);
    ps_counter_peak(&ps_counters.rows_needed_peak, needed);
    if (s != NULL) {
        s->n_pending--;
        s->over += over;
        if (needed > s->needed) {
            s->needed = needed;
            s->capacity = r->rows.capacity;
            s->balanced = r->rows.balanced;
        }
    }
    if (d == NULL) {
        return;
    }
    d->capacity = r->rows.capacity;
    d->balanced = r->rows.balanced;
    d->n_read++;
    d->n_over += over;
    d->needed = needed > d->needed ? needed : d->needed;
    if (over) {
        say_over(d, needed);
    }
}

void ps_demand_poll(struct ps_engine *e)
{
    struct ps_demand_memory *m = e->demand;

    while (m != NULL && m->n > 0) {
        struct reading *r = &m->readings[m->oldest];

        if (!ps_fence_done(r->copied)) {
            return;
        }
        const int64_t *seen = &m->seen[m->oldest];

        read_counter(r, r->rows.need.narrow ? *(const int32_t *)seen
                                            : __atomic_load_n(seen, __ATOMIC_ACQUIRE));
        r->copied = ps_fence_unref(&e->fences, r->copied);
        m->oldest = (m->oldest + 1) % READINGS_MAX;
        m->n--;
    }
}

/* The stream of the instance's tensors, or of its last allocation if none is ours. False: there is none any more. */
static bool stream_of(const struct ps_thread *th, const struct ps_engine *e, CUstream *stream_p)
{
    const struct ps_group *g = th->group;

    if (g != NULL) {
        *stream_p = g->stream;
        return g->engine == e && ps_stream_key(e->ctx, g->stream) == g->stream_key;
    }
    *stream_p = th->stream;
    return th->streams_ended != 0 && th->streams_ended == ps_streams_ended();
}

static bool may_copy(const struct ps_engine *e)
{
    return e != NULL && e->state == PS_ENGINE_READY && e->n_ending == 0 && !e->ended &&
           e->demand != NULL && !e->demand->broken && e->demand->n < READINGS_MAX &&
           ps_driver.cuMemcpyDtoHAsync != NULL;
}

void ps_demand_pop(const struct ps_thread *th, CUcontext current)
{
    struct ps_engine *e = th->rows.need.address != 0 ? ps_engine_find(current) : NULL;
    CUstream stream;

    if (!may_copy(e) || !stream_of(th, e, &stream) || ps_stream_capturing(stream) ||
        !ps_rows_counter_lives(e, &th->rows.need)) {
        return;
    }
    struct ps_demand_memory *m = e->demand;
    const uint32_t at = (m->oldest + m->n) % READINGS_MAX;
    CUresult r = ps_driver.cuMemcpyDtoHAsync(
        &m->seen[at], th->rows.need.address,
        th->rows.need.narrow ? sizeof(int32_t) : sizeof(int64_t), stream);
    struct ps_fence *f = r == CUDA_SUCCESS ? ps_fence_record(&e->fences, e->ctx, stream, &r) : NULL;

    if (f == NULL) {
        ps_count(errors, 1);
        ps_warn_once(
            "the rows that a range needs cannot be copied: %s; nobody says when they exceed the capacity",
            ps_driver_error_name(&ps_driver, r));
        m->broken = true;
        return;
    }
    m->readings[at] = (struct reading){f, th->rows, now.number, th->name};
    m->n++;
    now.n_pending++;
}

void ps_demand_stashed(const struct ps_copy *c, uint64_t valid)
{
    struct ps_demand *d;

    /* Where nothing is padding there is no capacity to speak of. */
    if (c->site == NULL || c->uniform == 0 || c->bytes == 0 ||
        (d = demand_of(c->site->name)) == NULL) {
        return;
    }
    const uint64_t ppm = (uint64_t)((wide)valid * 1000000 / c->bytes);

    d->used_ppm = ppm > d->used_ppm ? ppm : d->used_ppm;
}

/* ---- steps ---- */

void ps_demand_step(bool found)
{
    if (found && job_tells) {
        return;
    }
    job_tells = job_tells || !found;
    ps_count(steps, 1);
    last = now;
    last.kept = ps_counter(kept_resident) - kept_before;
    last.spilled = ps_counter(bytes_spilled) - spilled_before;
    kept_before += last.kept;
    spilled_before += last.spilled;
    now = (struct step){.number = last.number + 1};
}

void ps_demand_status(struct pagedstash_status *status_p)
{
    const uint64_t balanced = balanced_of(last.balanced, last.capacity);

    status_p->flags |= last.n_pending == 0 ? PAGEDSTASH_COMPLETE : 0;
    status_p->step = last.number;
    status_p->kept_resident = last.kept;
    status_p->spilled_bytes = last.spilled;
    status_p->over_budget = last.over;
    status_p->rows_needed = last.needed;
    status_p->rows_capacity = last.capacity;
    status_p->factor_needed = last.needed == 0 ? 0 : factor_of(balanced, last.needed);
}

void ps_demand_reset(void)
{
    n_demands = 0;
    last = (struct step){0};
    now = (struct step){.number = now.number + 1};
    kept_before = ps_counter(kept_resident);
    spilled_before = ps_counter(bytes_spilled);
}

uint32_t ps_demand_look(struct ps_demand *demand_p, uint32_t n)
{
    if (pthread_mutex_trylock(&ps_lock) != 0) {
        return 0;
    }
    n = n < n_demands ? n : n_demands;
    for (uint32_t i = 0; i < n; i++) {
        demand_p[i] = demands[i];
        demand_p[i].balanced = balanced_of(demands[i].balanced, demands[i].capacity);
    }
    pthread_mutex_unlock(&ps_lock);
    return n;
}
