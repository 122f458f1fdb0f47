/* SPDX-License-Identifier: Apache-2.0 */
/* See sinks.h. */
#include "shim/sinks.h"

#include <stdlib.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"

#define USES  4 /* streams on which restores read a sink, or its stage */
#define READY (USES + 2)

struct ps_stage {
    uint64_t list;                 /* device address of its free list */
    uint32_t first_page;           /* of the pool's addresses */
    struct ps_sink *sink;          /* whose bytes are there, or on their way; NULL: nobody's */
    struct ps_fence *ready[READY]; /* its last users' ends */
    uint64_t stream_key;           /* of the group that had it last */
    bool full;                     /* all its pages are in its list, or will be behind `ready` */
    bool lost;                     /* nobody knows when it is free */
};

struct ps_sink {
    struct ps_host_piece *piece;
    struct ps_stage *stage; /* where the bytes are as well; NULL: on the host only */
    uint32_t n_copies;      /* that name pages of it */
    uint64_t count;         /* device address: how many pages it were */
    uint32_t first_page, n_pages;
    uint32_t usual;       /* pages that the copy engine moves; a kernel, those beyond */
    uint32_t way, group;  /* of the plan: whose bytes it has, or had last */
    struct ps_fence *out; /* behind the copy to the host */
    struct ps_fence *in;  /* behind the last one from there */
    struct ps_fence
        *used[USES]; /* behind restores, and what else its copies ended with; a stream each */
    struct ps_fence *ready[READY]; /* free: its last users' ends */
    uint64_t stream_key;           /* of its group */
    bool on_host;                  /* the copy to the host is enqueued */
    bool due;                      /* its group is among those that return next */
    bool lost;
};

struct ps_sinks_memory {
    struct ps_sinks chosen;
    struct ps_pool_piece *piece; /* of the stages and their lists */
    struct ps_sink *sinks;
    uint32_t n_sinks;
    struct ps_stage stages[PS_STAGES_MAX];
    CUstream out, in;
    struct ps_fence *last_in; /* behind what `in` was given last, */
    uint64_t last_in_key;     /* for a group of this stream */
};

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static void unref_all(struct ps_engine *e, struct ps_fence **f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        f[i] = ps_fence_unref(&e->fences, f[i]);
    }
}

/* ---- made and freed ---- */

static uint32_t n_slots_of(uint32_t pages)
{
    uint32_t n = 4;
    while (n < pages) {
        n *= 2;
    }
    return n;
}

/* Pages of all stages first, then their lists, each with its ring, then the sinks' counts. */
static uint64_t list_bytes(const struct ps_sinks *c)
{
    return round_up(sizeof(struct ps_free_list), 64) +
           round_up((uint64_t)n_slots_of(c->stage_pages) * 2 * sizeof(uint32_t), 64);
}

static uint64_t stage_bytes(const struct ps_engine *e, const struct ps_sinks *c)
{
    return (uint64_t)c->stage_pages * e->pool.page_bytes;
}

static CUresult make_list(const struct ps_engine *e, uint64_t list, uint32_t pages)
{
    CUresult r =
        ps_driver.cuMemsetD32Async(list, 0, sizeof(struct ps_free_list) / 4, e->stash_stream);
    if (r == CUDA_SUCCESS) {
        r = ps_pool_poke(list + offsetof(struct ps_free_list, n_slots), n_slots_of(pages),
                         e->stash_stream);
    }
    if (r == CUDA_SUCCESS) {
        r = ps_pool_poke(list + offsetof(struct ps_free_list, slots),
                         list + round_up(sizeof(struct ps_free_list), 64), e->stash_stream);
    }
    return r;
}

/* Device memory for so many stages, their lists and the sinks' counts. */
static struct ps_pool_piece *map_stages(struct ps_engine *e, const struct ps_sinks_memory *m,
                                        uint32_t n_stages)
{
    struct ps_page_pool *p = &e->pool;
    const uint64_t unit = e->granularity > p->page_bytes ? e->granularity : p->page_bytes;
    const uint64_t each = stage_bytes(e, &m->chosen) + list_bytes(&m->chosen);
    const uint64_t bytes = round_up(n_stages * each + m->n_sinks * sizeof(uint64_t), unit);
    const uint64_t room = p->room / unit * unit;

    pthread_mutex_lock(&ps_lock);
    const bool fits = room >= bytes && room - bytes >= p->mapped;
    p->staged = fits ? p->room - (room - bytes) : 0;
    pthread_mutex_unlock(&ps_lock);
    return fits ? ps_pool_map(e, p->base + room - bytes, bytes) : NULL;
}

/* As many as there is memory for. */
static bool make_stages(struct ps_engine *e, struct ps_sinks_memory *m)
{
    const struct ps_page_pool *p = &e->pool;
    struct ps_sinks *c = &m->chosen;

    m->piece = map_stages(e, m, c->n_stages);
    while (m->piece == NULL && c->n_stages > 1) {
        m->piece = map_stages(e, m, --c->n_stages);
    }
    const uint64_t stages = c->n_stages * stage_bytes(e, c);
    const uint64_t lists = stages + c->n_stages * list_bytes(c);
    CUresult r = m->piece != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < c->n_stages && r == CUDA_SUCCESS; i++) {
        struct ps_stage *s = &m->stages[i];
        s->first_page = (uint32_t)((m->piece->base - p->base) / p->page_bytes) + i * c->stage_pages;
        s->list = m->piece->base + stages + i * list_bytes(c);
        r = make_list(e, s->list, c->stage_pages);
    }
    for (uint32_t i = 0; i < m->n_sinks && r == CUDA_SUCCESS; i++) {
        m->sinks[i].count = m->piece->base + lists + i * sizeof(uint64_t);
    }
    return r == CUDA_SUCCESS;
}

static bool make_streams(struct ps_sinks_memory *m)
{
    return ps_driver.cuStreamCreateWithPriority(&m->out, CU_STREAM_NON_BLOCKING, 0) ==
               CUDA_SUCCESS &&
           ps_driver.cuStreamCreateWithPriority(&m->in, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS;
}

struct ps_sinks_memory *ps_sinks_make(struct ps_engine *e, struct ps_sinks *chosen)
{
    const uint32_t n = chosen->n_sinks;
    const bool can = ps_driver.cuMemcpyDtoHAsync != NULL && ps_driver.cuMemcpyHtoDAsync != NULL;
    struct ps_sinks_memory *m = n > 0 && can ? calloc(1, sizeof(*m)) : NULL;
    if (m == NULL) {
        ps_sinks_fini(chosen);
        return NULL;
    }
    m->chosen = *chosen;
    *chosen = (struct ps_sinks){0};
    m->sinks = calloc(n, sizeof(*m->sinks));
    pthread_mutex_lock(&ps_lock);
    while (m->sinks != NULL && m->n_sinks < n) {
        struct ps_host_piece *piece = ps_host_take_sink(e, stage_bytes(e, &m->chosen));
        if (piece == NULL) {
            break;
        }
        m->sinks[m->n_sinks++].piece = piece;
    }
    m->chosen.n_sinks = m->n_sinks;
    pthread_mutex_unlock(&ps_lock);
    if (m->n_sinks == 0 || !make_streams(m) || !make_stages(e, m)) {
        ps_info("no memory for what the plan sends to the host by the copy engine: pages serve");
        (void)PS_TWICE(ps_driver.cuStreamSynchronize(e->stash_stream)); /* the lists' first fill */
        ps_sinks_free(e, m, false);
        return NULL;
    }
    return m;
}

void ps_sinks_free(struct ps_engine *e, struct ps_sinks_memory *m, bool gone)
{
    bool idle = true;
    if (m == NULL) {
        return;
    }
    CUstream *const streams[] = {&m->out, &m->in};
    for (int i = 0; i < 2 && !gone; i++) {
        idle =
            (*streams[i] == NULL || PS_TWICE(ps_driver.cuStreamSynchronize(*streams[i]))) && idle;
    }
    for (uint32_t i = 0; i < PS_STAGES_MAX; i++) {
        idle = idle && !m->stages[i].lost; /* what runs there may run on */
    }
    idle = gone || idle;
    for (int i = 0; i < 2 && !gone && idle; i++) {
        if (*streams[i] != NULL) {
            ps_driver.cuStreamDestroy(*streams[i]);
        }
    }
    if (m->piece != NULL && idle) {
        ps_pool_unmap(m->piece);
    }
    pthread_mutex_lock(&ps_lock);
    e->pool.staged = idle ? 0 : e->pool.staged;
    for (uint32_t i = 0; m->sinks != NULL && i < m->n_sinks; i++) {
        struct ps_sink *s = &m->sinks[i];
        ps_assert(gone || s->n_copies == 0);
        unref_all(e, s->ready, READY);
        unref_all(e, s->used, USES);
        unref_all(e, &s->out, 1);
        unref_all(e, &s->in, 1);
        ps_host_give_sink(e, idle && !s->lost ? s->piece : NULL);
    }
    for (uint32_t i = 0; i < PS_STAGES_MAX; i++) {
        unref_all(e, m->stages[i].ready, READY);
    }
    unref_all(e, &m->last_in, 1);
    pthread_mutex_unlock(&ps_lock);
    free(m->sinks);
    ps_sinks_fini(&m->chosen);
    free(m);
}

const struct ps_sinks *ps_sinks_chosen(const struct ps_sinks_memory *m)
{
    static const struct ps_sinks none;
    return m != NULL ? &m->chosen : &none;
}

uint64_t ps_sinks_bytes(const struct ps_sinks_memory *m)
{
    return m != NULL ? m->piece->bytes : 0;
}

static struct ps_fence *first_pending(struct ps_fence *const *f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!ps_fence_done(f[i])) {
            return f[i];
        }
    }
    return NULL;
}

struct ps_fence *ps_sinks_pending(const struct ps_sinks_memory *m)
{
    struct ps_fence *f = NULL;
    for (uint32_t i = 0; m != NULL && f == NULL && i < m->n_sinks; i++) {
        f = first_pending(m->sinks[i].ready, READY);
    }
    for (uint32_t i = 0; m != NULL && f == NULL && i < m->chosen.n_stages; i++) {
        f = first_pending(m->stages[i].ready, READY);
    }
    return f;
}

bool ps_sinks_idle(const struct ps_sinks_memory *m)
{
    bool idle = true;
    for (uint32_t i = 0; m != NULL && i < m->n_sinks; i++) {
        idle = idle && m->sinks[i].n_copies == 0;
    }
    return idle;
}

void ps_sinks_retire(struct ps_sinks_memory *m, uint64_t key, uint64_t new_key)
{
    for (uint32_t i = 0; m != NULL && i < m->n_sinks; i++) {
        struct ps_sink *s = &m->sinks[i];
        s->stream_key = s->stream_key == key ? new_key : s->stream_key;
    }
    for (uint32_t i = 0; m != NULL && i < m->chosen.n_stages; i++) {
        struct ps_stage *s = &m->stages[i];
        s->stream_key = s->stream_key == key ? new_key : s->stream_key;
    }
    if (m != NULL && m->last_in_key == key) {
        m->last_in_key = new_key;
    }
}

/* ---- who has which ---- */

/*
 * May a stream of ours wait for these in the name of a group of stream `key`? What is on another stream of the job may
 * wait for what this thread has yet to do. its_key: for whose group copies of ours were made.
 */
static bool may_follow(const struct ps_engine *e, struct ps_fence *const *f, uint32_t n,
                       uint64_t key, uint64_t its_key)
{
    const uint64_t out = ps_stream_key(e->ctx, e->sinks->out);
    const uint64_t in = ps_stream_key(e->ctx, e->sinks->in);
    bool may = true;
    for (uint32_t i = 0; i < n && may; i++) {
        const uint64_t on = f[i] != NULL ? f[i]->stream_key : key;
        const bool follows =
            f[i] == NULL || f[i]->behind_key == key || (its_key == key && (on == out || on == in));
        may = follows || ps_fence_done(f[i]);
    }
    return may;
}

/* Its bytes are on the host as well, or will be. */
static bool may_lose_stage(const struct ps_sink *s)
{
    return s == NULL || s->on_host;
}

/* The same of all that was enqueued for it. */
static bool may_follow_sink(const struct ps_engine *e, const struct ps_sink *s, uint64_t key)
{
    return may_follow(e, &s->out, 1, key, s->stream_key) &&
           may_follow(e, &s->in, 1, key, s->stream_key) &&
           may_follow(e, s->used, USES, key, s->stream_key);
}

/* The later, the worse: a stage nobody has, one that was stashed into, one that was brought ahead. */
static int cost_of(const struct ps_stage *s)
{
    return s->sink == NULL ? 0 : s->sink->in == NULL ? 1 : 2;
}

/* The best stage for a group of that stream. */
static struct ps_stage *choose_stage(const struct ps_engine *e, uint64_t key, int most)
{
    struct ps_sinks_memory *m = e->sinks;
    struct ps_stage *best = NULL;
    for (uint32_t i = 0; i < m->chosen.n_stages; i++) {
        struct ps_stage *s = &m->stages[i];
        if (s->lost || !may_lose_stage(s->sink) || cost_of(s) > most ||
            !may_follow(e, s->ready, READY, key, s->stream_key)) {
            continue;
        }
        if (s->sink != NULL && (s->sink->due || !may_follow_sink(e, s->sink, key))) {
            continue;
        }
        best = best == NULL || cost_of(s) < cost_of(best) ? s : best;
    }
    return best;
}

/* It is nobody's, behind what was enqueued for its holder. */
static void leave_stage(struct ps_engine *e, struct ps_stage *s)
{
    struct ps_sink *sink = s->sink;
    unref_all(e, s->ready, READY);
    s->ready[0] = ps_fence_ref(sink->out);
    s->ready[1] = ps_fence_ref(sink->in);
    for (uint32_t i = 0; i < USES; i++) {
        s->ready[2 + i] = ps_fence_ref(sink->used[i]);
    }
    s->stream_key = sink->stream_key;
    s->sink = NULL;
    sink->stage = NULL;
}

/* The stream waits for all that a stage, nobody's now, was last used for. */
static CUresult order_stage(const struct ps_engine *e, const struct ps_stage *s, CUstream stream)
{
    const uint64_t key = ps_stream_key(e->ctx, stream);
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < READY && r == CUDA_SUCCESS; i++) {
        r = ps_fence_wait(s->ready[i], key, stream);
    }
    return r;
}

static struct ps_sink *choose_sink(const struct ps_engine *e, uint64_t key)
{
    struct ps_sinks_memory *m = e->sinks;
    struct ps_sink *best = NULL;
    for (uint32_t i = 0; i < m->n_sinks; i++) {
        struct ps_sink *s = &m->sinks[i];
        if (s->n_copies > 0 || s->lost || s->stage != NULL ||
            !may_follow(e, s->ready, READY, key, s->stream_key)) {
            continue;
        }
        if (first_pending(s->ready, READY) == NULL) {
            return s;
        }
        best = best == NULL ? s : best;
    }
    return best;
}

/* ---- out ---- */

/* Pages that the copy engine moves of such a group, whatever there are; 0: it does not go. */
static uint32_t usual_pages(const struct ps_engine *e, const struct ps_group *g)
{
    const struct ps_sinks_memory *m = e->sinks;
    /* A copy there keeps its group's set, and so the plan. */
    const uint32_t way = m != NULL && g->set != NULL ? ps_learn_way(e, g) : PS_PLAN_NONE;
    if (way >= (m != NULL ? m->chosen.n_steps : 0) || g->seg.group >= m->chosen.n_groups[way]) {
        return 0;
    }
    const uint32_t usual = m->chosen.usual[way][g->seg.group];
    return usual < m->chosen.stage_pages ? usual : m->chosen.stage_pages;
}

uint32_t ps_sink_pages(const struct ps_engine *e, const struct ps_group *g)
{
    return usual_pages(e, g) != 0 && e->pool.host_list != 0 ? e->sinks->chosen.stage_pages : 0;
}

/* All of the stage's planned pages are in its list, in order. At first, and where no copy to the host saw to it. */
static CUresult fill_list(const struct ps_engine *e, const struct ps_stage *s, uint32_t pages)
{
    CUresult r = ps_driver.cuMemsetD32Async(s->list + offsetof(struct ps_free_list, head), 0, 6,
                                            e->stash_stream);
    if (r == CUDA_SUCCESS) {
        r = ps_kernels_grow(&ps_driver, &e->kernels, e->stash_stream, s->list, s->first_page,
                            pages);
    }
    return r;
}

/* Behind what the stream was given. False: nobody will know when that is over. */
static bool record(struct ps_engine *e, CUstream stream, struct ps_fence **f_p)
{
    CUresult r;
    *f_p = ps_fence_record(&e->fences, e->ctx, stream, &r);
    if (*f_p != NULL) {
        return true;
    }
    ps_count(errors, 1);
    ps_count(host_syncs, 1);
    return PS_TWICE(ps_driver.cuStreamSynchronize(stream));
}

/* Its list was begun, or made anew, but nothing is stashed: free behind that, which follows all that was before. */
static void leave_list(struct ps_engine *e, struct ps_stage *stage)
{
    struct ps_fence *f;
    stage->lost = !record(e, e->stash_stream, &f);
    unref_all(e, stage->ready, READY);
    stage->ready[0] = f;
}

struct ps_sink *ps_sink_open(struct ps_engine *e, const struct ps_group *g, uint32_t pages)
{
    struct ps_sink *sink = choose_sink(e, g->stream_key);
    struct ps_stage *stage = sink != NULL ? choose_stage(e, g->stream_key, 2) : NULL;
    if (stage == NULL) {
        return NULL;
    }
    if (stage->sink != NULL) {
        leave_stage(e, stage);
    }
    CUresult r = order_stage(e, stage, e->stash_stream);
    if (r != CUDA_SUCCESS) {
        ps_count(errors, 1);
        return NULL;
    }
    if (!stage->full && fill_list(e, stage, pages) != CUDA_SUCCESS) {
        ps_count(errors, 1);
        leave_list(e, stage);
        return NULL;
    }
    stage->full = false;
    unref_all(e, &sink->out, 1);
    unref_all(e, &sink->in, 1);
    unref_all(e, sink->used, USES);
    sink->stage = stage;
    sink->first_page = stage->first_page;
    sink->n_pages = pages;
    sink->usual = usual_pages(e, g);
    sink->way = ps_learn_way(e, g);
    sink->group = g->seg.group;
    sink->on_host = false;
    sink->stream_key = g->stream_key;
    stage->sink = sink;
    return sink;
}

uint64_t ps_sink_list(const struct ps_sink *s)
{
    return s->stage->list;
}

static uint64_t stage_address(const struct ps_engine *e, const struct ps_stage *s)
{
    return e->pool.base + (uint64_t)s->first_page * e->pool.page_bytes;
}

/* What is beyond those. */
static CUresult shift_rest(const struct ps_engine *e, const struct ps_sink *s,
                           const struct ps_stage *stage, bool out)
{
    const uint64_t host = (uint64_t)(uintptr_t)s->piece->base;
    const uint64_t device = stage_address(e, stage);
    const struct ps_shift shift = {
        .to = out ? host : device,
        .from = out ? device : host,
        .count = out ? stage->list + offsetof(struct ps_free_list, head) : s->count,
        .note = out ? s->count : 0,
        .list = out ? stage->list : 0,
        .first = s->usual,
        .n_pages = s->n_pages,
        .page_bytes = e->pool.page_bytes,
        .to_host = out,
    };
    return ps_kernels_shift(&ps_driver, &e->kernels, out ? e->sinks->out : e->sinks->in, &shift);
}

void ps_sink_stashed(struct ps_engine *e, struct ps_sink *s, uint32_t n_copies,
                     struct ps_fence *stash)
{
    struct ps_sinks_memory *m = e->sinks;
    const uint64_t key = ps_stream_key(e->ctx, m->out);
    const uint64_t bytes = (uint64_t)s->usual * e->pool.page_bytes;
    s->n_copies = n_copies;
    if (n_copies == 0) {
        leave_list(e, s->stage);
        s->stage->sink = NULL;
        s->stage = NULL;
        return;
    }
    CUresult r = ps_fence_wait(stash, key, m->out);
    for (uint32_t i = 0; i < READY && r == CUDA_SUCCESS; i++) {
        r = ps_fence_wait(s->ready[i], key, m->out);
    }
    if (r != CUDA_SUCCESS) {
        ps_count(errors, 1); /* it stays in the stage */
        return;
    }
    r = shift_rest(e, s, s->stage, true);
    s->stage->full = r == CUDA_SUCCESS;
    if (r == CUDA_SUCCESS && bytes > 0) {
        r = ps_driver.cuMemcpyDtoHAsync(s->piece->base, stage_address(e, s->stage), bytes, m->out);
    }
    unref_all(e, s->ready, READY);
    const bool known = record(e, m->out, &s->out);
    s->lost = s->stage->lost = !known;
    s->on_host = known && r == CUDA_SUCCESS;
    ps_count(errors, r != CUDA_SUCCESS);
    ps_count(copied_out, s->on_host ? bytes : 0);
}

/* What is usual follows what is seen. */
void ps_sink_used(struct ps_engine *e, struct ps_sink *s, uint64_t pages)
{
    ps_sinks_see(&e->sinks->chosen, s->way, s->group, pages);
}

void ps_sink_lost(struct ps_sink *s)
{
    s->lost = s->stage->lost = true;
}

/* ---- in ---- */

struct ps_fence *ps_sink_source(const struct ps_engine *e, const struct ps_sink *s,
                                uint64_t *pool_p, bool *on_host_p)
{
    const uint64_t skipped = (uint64_t)s->first_page * e->pool.page_bytes;
    *on_host_p = s->stage == NULL;
    if (s->stage != NULL) {
        *pool_p = stage_address(e, s->stage) - skipped;
        return s->in;
    }
    ps_assert(s->on_host);
    *pool_p = (uint64_t)(uintptr_t)s->piece->base - skipped;
    return s->out;
}

/* Later in the same stream stands for earlier. False: there are too many streams. */
static bool note_use(struct ps_engine *e, struct ps_sink *s, struct ps_fence *use)
{
    for (uint32_t i = 0; i < USES; i++) {
        struct ps_fence *const f = s->used[i];
        if (f == NULL || f->stream_key == use->stream_key || ps_fence_done(f)) {
            s->used[i] = ps_fence_ref(use);
            ps_fence_unref(&e->fences, f);
            return true;
        }
    }
    return false;
}

void ps_sink_left(struct ps_engine *e, struct ps_sink *s, struct ps_fence *use)
{
    ps_assert(s->n_copies > 0);
    if (use != NULL && !note_use(e, s, use)) {
        s->lost = true;
    }
    if (s->stage != NULL) {
        s->stage->lost = s->stage->lost || s->lost;
    }
    if (--s->n_copies > 0) {
        return;
    }
    unref_all(e, s->ready, READY);
    s->ready[0] = ps_fence_ref(s->in);
    s->ready[1] = ps_fence_ref(s->out);
    for (uint32_t i = 0; i < USES; i++) {
        s->ready[2 + i] = ps_fence_ref(s->used[i]);
    }
    if (s->stage != NULL) {
        leave_stage(e, s->stage);
    }
}

static struct ps_sink *sink_of(const struct ps_group *g)
{
    for (const struct ps_tensor *t = g->tensors; t != NULL; t = t->next) {
        if (t->copy != NULL && t->copy->sink != NULL && t->state == PS_OUT) {
            return t->copy->sink;
        }
    }
    return NULL;
}

/* What runs between a group's stage and `in`: only what its own stream is in front of. */
static bool in_is_free(const struct ps_sinks_memory *m, uint64_t key)
{
    return m->last_in_key == key || ps_fence_done(m->last_in);
}

static void bring_ahead(struct ps_engine *e, struct ps_sink *s)
{
    struct ps_sinks_memory *m = e->sinks;
    struct ps_stage *stage =
        in_is_free(m, s->stream_key) ? choose_stage(e, s->stream_key, 1) : NULL;
    if (stage == NULL) {
        return;
    }
    if (stage->sink != NULL) {
        leave_stage(e, stage);
    }
    const uint64_t bytes = (uint64_t)s->usual * e->pool.page_bytes;
    CUresult r = ps_fence_wait(s->out, ps_stream_key(e->ctx, m->in), m->in);
    if (r == CUDA_SUCCESS) {
        r = order_stage(e, stage, m->in);
    }
    if (r != CUDA_SUCCESS) {
        ps_count(errors, 1); /* then it is read from the host */
        return;
    }
    r = shift_rest(e, s, stage, false);
    if (r == CUDA_SUCCESS && bytes > 0) {
        r = ps_driver.cuMemcpyHtoDAsync(stage_address(e, stage), s->piece->base, bytes, m->in);
    }
    unref_all(e, &s->in, 1);
    if (!record(e, m->in, &s->in)) {
        s->lost = stage->lost = true; /* neither is anybody else's from here on */
        return;
    }
    unref_all(e, &m->last_in, 1);
    m->last_in = ps_fence_ref(s->in);
    m->last_in_key = s->stream_key;
    unref_all(e, stage->ready, READY);
    stage->ready[0] = ps_fence_ref(s->in);
    stage->stream_key = s->stream_key;
    ps_count(errors, r != CUDA_SUCCESS);
    if (r == CUDA_SUCCESS) {
        s->stage = stage;
        stage->sink = s;
        ps_count(copied_in, bytes);
    }
}

void ps_sinks_ahead(struct ps_engine *e, struct ps_group *const *g, uint32_t n)
{
    struct ps_sink *s[PS_STAGES_MAX];
    for (uint32_t i = 0; i < n; i++) {
        s[i] = sink_of(g[i]);
        if (s[i] != NULL) {
            s[i]->due = true;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (s[i] != NULL && s[i]->stage == NULL && s[i]->on_host && !s[i]->lost) {
            bring_ahead(e, s[i]);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (s[i] != NULL) {
            s[i]->due = false;
        }
    }
}
