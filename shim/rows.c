/* SPDX-License-Identifier: Apache-2.0 */
/* See rows.h. */
#include "shim/rows.h"

#include <stdlib.h>
#include <string.h>

#include "policy/base/assert.h"
#include "policy/base/log.h"
#include "shim/engine_int.h"

#define WORDS_MAX    512 /* groups alive at one time whose rows are counted */
#define OUTCOMES_MAX 128 /* sites of which is known what lies behind their rows */
#define CHECKS       6   /* instances of a name that are looked at after each fill, at least */
#define LOOK_AGAIN   64  /* of so many later ones, one is */
#define NOT_SEEN     INT64_MIN

struct ps_rows {
    struct ps_rows *next; /* in the list of free ones */
    uint64_t count; /* device address of the word: an int64_t, or an int32_t in its first half */
    int64_t *seen;  /* pinned host memory: the same, once the device has told */
    struct ps_fence *written; /* behind the counter's copy */
    uint32_t refs;
    bool narrow;
};

/* Device memory: the words, then the outcomes. */
struct ps_rows_memory {
    uint64_t base, bytes;
    CUmemGenericAllocationHandle handle; /* 0: none is mapped */
    int64_t *host;
    struct ps_fence *zeroed;          /* until then it is not used */
    struct ps_rows *free, **free_end; /* the one that is free longest first */
    uint32_t n_outcomes;
    uint32_t n_instances[PS_REGION_NAMES_MAX + 1]; /* by number of the name */
    uint32_t n_checked[PS_REGION_NAMES_MAX + 1][2];
    bool rows_only[PS_REGION_NAMES_MAX + 1]; /* in the last trusted instance */
    struct ps_rows all[WORDS_MAX];
};

/* ---- memory: lock not held ---- */

static void free_memory(struct ps_rows_memory *m, bool gone)
{
    if (m->handle != 0) {
        (void)ps_driver.cuMemUnmap(m->base, m->bytes);
        ps_driver.cuMemRelease(m->handle);
    }
    if (m->base != 0) {
        ps_driver.cuMemAddressFree(m->base, m->bytes);
    }
    if (m->host != NULL && !gone) {
        ps_driver.cuMemFreeHost(m->host);
    }
    free(m);
}

static CUresult map_memory(struct ps_engine *e, struct ps_rows_memory *m)
{
    CUdeviceptr base = 0;
    CUmemGenericAllocationHandle handle = 0;
    CUresult r = ps_driver.cuMemAddressReserve(&base, m->bytes, e->granularity, 0, 0);

    if (r != CUDA_SUCCESS) {
        return r;
    }
    m->base = base;
    r = ps_memory_create(e, m->bytes, &handle);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    ps_count_map();
    r = ps_driver.cuMemMap(base, m->bytes, 0, handle, 0);
    if (r != CUDA_SUCCESS) {
        ps_driver.cuMemRelease(handle);
        return r;
    }
    m->handle = handle;
    r = ps_memory_access(e, base, m->bytes);
    return r != CUDA_SUCCESS ? r
                             : ps_driver.cuMemsetD32Async(base, 0, m->bytes / 4, e->stash_stream);
}

static struct ps_rows_memory *make_memory(struct ps_engine *e)
{
    struct ps_rows_memory *m = calloc(1, sizeof(*m));
    void *host = NULL;

    if (m == NULL) {
        return NULL;
    }
    m->bytes = WORDS_MAX * sizeof(int64_t) + OUTCOMES_MAX * sizeof(struct ps_row_outcome);
    m->bytes = (m->bytes + e->granularity - 1) / e->granularity * e->granularity;
    CUresult r = ps_driver.cuMemHostAlloc(&host, WORDS_MAX * sizeof(int64_t),
                                          CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (r == CUDA_SUCCESS) {
        m->host = host;
        r = map_memory(e, m);
    }
    if (r != CUDA_SUCCESS) {
        ps_warn_once("no memory to note the rows that ranges count: %s; tensors are scanned whole",
                     ps_driver_error_name(&ps_driver, r));
        free_memory(m, false);
        return NULL;
    }
    m->free_end = &m->free;
    for (uint32_t i = 0; i < WORDS_MAX; i++) {
        m->all[i].count = m->base + i * sizeof(int64_t);
        m->all[i].seen = &m->host[i];
        *m->free_end = &m->all[i];
        m->free_end = &m->all[i].next;
    }
    return m;
}

void ps_rows_prepare(struct ps_engine *e, const struct ps_thread *th)
{
    pthread_mutex_lock(&ps_lock);
    const bool due = th->rows.tokens.address != 0 && e->rows == NULL && !e->rows_tried &&
                     e->state == PS_ENGINE_READY && e->n_ending == 0;
    e->rows_tried = e->rows_tried || due;
    pthread_mutex_unlock(&ps_lock);
    struct ps_rows_memory *m = due ? make_memory(e) : NULL;
    if (m == NULL) {
        return;
    }
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&ps_lock);
    m->zeroed = ps_fence_record(&e->fences, e->ctx, e->stash_stream, &r);
    if (m->zeroed == NULL) {
        m->zeroed = ps_fence_never(); /* and so it is never used */
        ps_count(errors, 1);
    }
    e->rows = m;
    pthread_mutex_unlock(&ps_lock);
}

void ps_rows_fini(struct ps_engine *e, bool gone)
{
    struct ps_rows_memory *m = e->rows;

    if (m != NULL) {
        e->rows = NULL;
        free_memory(m, gone);
    }
}

/* ---- words: lock held ---- */

/* One whose last copy is over, or in the order of the stream. NULL: all are in use. */
static struct ps_rows *take_word(struct ps_rows_memory *m, uint64_t stream_key)
{
    for (struct ps_rows **at = &m->free; *at != NULL; at = &(*at)->next) {
        struct ps_rows *rows = *at;

        if (rows->written != NULL && rows->written->stream_key != stream_key &&
            !ps_fence_done(rows->written)) {
            continue;
        }
        *at = rows->next;
        if (*at == NULL) {
            m->free_end = at;
        }
        rows->next = NULL;
        rows->refs = 1;
        return rows;
    }
    return NULL;
}

struct ps_rows *ps_rows_ref(struct ps_rows *rows)
{
    if (rows != NULL) {
        ps_assert(rows->refs > 0);
        rows->refs++;
    }
    return rows;
}

void ps_rows_unref(struct ps_engine *e, struct ps_rows *rows)
{
    if (rows == NULL) {
        return;
    }
    ps_assert(rows->refs > 0);
    if (--rows->refs == 0 && e->rows != NULL) {
        *e->rows->free_end = rows;
        e->rows->free_end = &rows->next;
    }
}

/* ---- what a range says ---- */

void ps_rows_named(struct ps_thread *th, uint32_t name, const char *range)
{
    const char *wrong = NULL;

    if (!ps_range_rows_read(range, &th->rows, &wrong)) {
        ps_warn_once("'%.*s' in a range's name is not as it should be: its rows are not counted; "
                     "wanted is name;tokens=0xADDRESS[:i32|:i64];capacity=ROWS",
                     (int)strcspn(wrong, ";"), wrong);
    }
    if (th->rows.capacity != 0) {
        pthread_mutex_lock(&ps_lock);
        ps_learn_capacity(name, th->rows.capacity, th->rows.balanced);
        pthread_mutex_unlock(&ps_lock);
    }
}

bool ps_rows_counter_lives(const struct ps_engine *e, const struct ps_row_counter *c)
{
    unsigned type = 0;
    int ordinal = -1;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[] = {&type, &ordinal};

    /*
     * Where the job's counter was, something of ours may be by now. It is aligned, so it does not reach from one
     * allocation into another.
     */
    return !ps_in_window(c->address) && !ps_pool_holds(e, c->address) &&
           ps_driver.cuPointerGetAttributes != NULL &&
           ps_driver.cuPointerGetAttributes(2, attributes, data, c->address) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE && ordinal == e->device;
}

static bool counter_counts(const struct ps_engine *e, const struct ps_row_counter *c)
{
    if (ps_rows_counter_lives(e, c)) {
        return true;
    }
    ps_warn_once(
        "a range's name says that rows are counted at 0x%llx, where no memory of device %d "
        "lives: they are not counted",
        (unsigned long long)c->address, e->device);
    return false;
}

static bool decided(const struct ps_rows_memory *m, uint32_t name)
{
    return m->n_checked[name][0] >= CHECKS && m->n_checked[name][1] >= CHECKS;
}

void ps_rows_begin(struct ps_engine *e, struct ps_group *g, const struct ps_thread *th)
{
    struct ps_rows_memory *m = e->rows;

    if (m == NULL || th->rows.tokens.address == 0 || g->name > PS_REGION_NAMES_MAX ||
        !ps_fence_done(m->zeroed) || !counter_counts(e, &th->rows.tokens)) {
        return;
    }
    const uint32_t n = m->n_instances[g->name]++;
    const bool check = e->places == NULL || !decided(m, g->name) || n % LOOK_AGAIN == 0;

    g->named = th->rows;
    g->row_mode = check && !g->named.all ? PS_ROW_MODE_CHECK : PS_ROW_MODE_TRUSTED;
    g->rows_only = m->rows_only[g->name];
    /* Not by turns: layers come by turns too. */
    g->row_fill = __builtin_parity(n) != 0;
}

/* There is an outcome to compare with: the site's own. */
static bool has_outcome(struct ps_rows_memory *m, struct ps_site *site)
{
    if (site->row_outcome == 0 && m->n_outcomes < OUTCOMES_MAX) {
        site->row_outcome = ++m->n_outcomes;
    }
    return site->row_outcome != 0;
}

void ps_rows_choose(struct ps_group *g, struct ps_site *site, uint64_t bytes, struct ps_tensor *t)
{
    struct ps_engine *e = g->engine;

    memset(&t->row_layout, 0, sizeof(t->row_layout));
    t->row_mode = PS_ROW_MODE_NONE;
    if (g->row_mode == PS_ROW_MODE_NONE) {
        return;
    }
    const bool fits =
        (g->named.all || !site->rows_excluded) &&
        ps_row_layout_of(bytes, g->named.capacity, e->pool.page_bytes, &t->row_layout);
    if (fits && g->row_mode == PS_ROW_MODE_CHECK) {
        t->row_mode = has_outcome(e->rows, site) ? PS_ROW_MODE_CHECK : PS_ROW_MODE_NONE;
    } else if (fits && (g->named.all || (t->place != NULL && ps_site_rows_trusted(site)))) {
        t->row_mode = PS_ROW_MODE_TRUSTED;
    }
    g->rows_scanned = g->rows_scanned || t->row_mode == PS_ROW_MODE_NONE;
}

bool ps_rows_left(const struct ps_group *g, size_t *from, uint32_t *word)
{
    if (g->row_mode == PS_ROW_MODE_CHECK) {
        *from = 0;
        *word = ps_rows_fill(g);
    }
    return g->row_mode != PS_ROW_MODE_TRUSTED || !g->rows_only;
}

uint32_t ps_rows_fill(const struct ps_group *g)
{
    return g->row_mode == PS_ROW_MODE_CHECK ? PS_ROWS_FILL(g->row_fill) : 0;
}

/* On one stream of the engine's context, and not under capture. */
static bool may_copy(const struct ps_engine *e, const struct ps_group *g)
{
    return e->state == PS_ENGINE_READY && e->n_ending == 0 && !e->ended && e->rows != NULL &&
           g->tensors != NULL && g->n_foreign == 0 && !g->crowded && g->stream != NULL &&
           ps_stream_key(e->ctx, g->stream) == g->stream_key && !ps_stream_capturing(g->stream);
}

void ps_rows_pop(struct ps_group *g, CUcontext current)
{
    struct ps_engine *e = g->engine;
    const struct ps_row_counter *c = &g->named.tokens;
    CUresult r = CUDA_ERROR_NOT_SUPPORTED;

    if (c->address == 0 || e == NULL || e->ctx != current || !may_copy(e, g) ||
        !counter_counts(e, c)) {
        return;
    }
    struct ps_rows *rows = take_word(e->rows, g->stream_key);
    if (rows == NULL) {
        return;
    }
    *rows->seen = NOT_SEEN;
    rows->narrow = c->narrow;
    if (ps_driver.cuMemcpyDtoDAsync != NULL) {
        r = ps_driver.cuMemcpyDtoDAsync(rows->count, c->address,
                                        c->narrow ? sizeof(int32_t) : sizeof(int64_t), g->stream);
    }
    CUresult recorded = CUDA_SUCCESS;
    struct ps_fence *f = ps_fence_record(&e->fences, e->ctx, g->stream, &recorded);
    ps_fence_unref(&e->fences, rows->written);
    rows->written = f != NULL ? f : ps_fence_never();
    if (r != CUDA_SUCCESS || f == NULL) {
        ps_count(errors, 1);
        ps_warn_once("the rows that a range counts cannot be copied: %s; they are not counted",
                     ps_driver_error_name(&ps_driver, r != CUDA_SUCCESS ? r : recorded));
        ps_rows_unref(e, rows);
        return;
    }
    /* What the stash waits for is behind the copy. */
    ps_fence_unref(&e->fences, g->home);
    g->home = ps_fence_ref(f);
    g->rows = rows;
    e->rows->n_checked[g->name][g->row_fill] += g->row_mode == PS_ROW_MODE_CHECK;
    e->rows->rows_only[g->name] = g->row_mode == PS_ROW_MODE_TRUSTED && !g->rows_scanned;
    ps_count(rows_counted, 1);
}

/* ---- what becomes of it ---- */

void ps_rows_copy(const struct ps_tensor *t, struct ps_copy *c)
{
    if (t->row_mode != PS_ROW_MODE_NONE && t->group->rows != NULL && t->site != NULL) {
        c->rows = ps_rows_ref(t->group->rows);
        c->row_layout = t->row_layout;
        c->trusted = t->row_mode == PS_ROW_MODE_TRUSTED;
        c->row_fill = t->group->row_fill;
    }
}

void ps_rows_item(const struct ps_copy *c, struct ps_batch_item *item)
{
    if (c->rows == NULL) {
        return;
    }
    item->rows = c->rows->count;
    item->before = c->home_bytes;
    item->rows_max = c->row_layout.capacity;
    item->unit_bytes = c->row_layout.unit_bytes;
    item->unit_shift = c->row_layout.unit_shift;
    item->rows_kind = c->rows->narrow ? PS_ROWS_I32 : 0;
    if (c->trusted) {
        item->rows_kind |= PS_ROWS_TRUSTED;
        item->rows_kind |= ps_options.verify == PS_VERIFY_POISON ? PS_ROWS_OVERWRITE : 0;
    } else {
        item->outcome = c->site->row_outcome - 1;
        item->rows_kind |= c->row_fill ? PS_ROWS_SECOND : 0;
    }
}

uint64_t ps_rows_outcomes(const struct ps_engine *e)
{
    return e->rows != NULL ? e->rows->base + WORDS_MAX * sizeof(int64_t) : 0;
}

void ps_rows_tell(struct ps_engine *e, const struct ps_group *g)
{
    /* All of the word, so that NOT_SEEN goes. When it fails nobody judges by it. */
    if (g->rows != NULL && ps_driver.cuMemcpyDtoHAsync != NULL) {
        (void)ps_driver.cuMemcpyDtoHAsync(g->rows->seen, g->rows->count, sizeof(int64_t),
                                          e->stash_stream);
    }
}

/* The site is out, and that is said. Before it was trusted nothing was at risk. */
static void exclude(struct ps_site *site)
{
    const char *name = ps_region_name(site->name);

    if (ps_site_rows_trusted(site)) {
        ps_warn(
            "allocation %u of '%s' was found written behind the rows that its range counts, which it was not while "
            "that was learned: it is scanned whole from here on; what it held there meanwhile was not kept",
            site->ordinal, name);
    } else {
        ps_warn(
            "allocation %u of '%s' is written behind the rows that its range counts: it is scanned whole; "
            "if the job does not read that, ';rows=all' in the range's name says so",
            site->ordinal, name);
    }
    ps_count(rows_excluded, 1);
    ps_site_rows_exclude(site);
}

/* full: there was nothing behind the rows. */
static void judge(struct ps_site *site, bool beyond, bool full, bool fill)
{
    if (beyond && !site->rows_excluded) {
        exclude(site);
    } else if (!beyond && !full) {
        ps_site_rows_kept(site, fill);
    }
}

uint32_t ps_rows_settle(const struct ps_engine *e, const struct ps_copy *c, uint64_t ledger)
{
    struct ps_batch_item item = {.bytes = (uint64_t)c->n_pages * e->pool.page_bytes};

    if (c->rows == NULL) {
        return 0;
    }
    const int64_t word = __atomic_load_n(c->rows->seen, __ATOMIC_ACQUIRE);
    const int64_t n = c->rows->narrow ? (int32_t)word : word;
    if (word == NOT_SEEN || PS_LEDGER_SEQ(ledger) != c->seq) {
        return 0;
    }
    if (!c->trusted) {
        judge(c->site, (ledger & PS_LEDGER_BEYOND) != 0, n >= (int64_t)c->row_layout.capacity,
              c->row_fill);
        return 0;
    }
    ps_rows_item(c, &item);
    const uint64_t live = ps_pool_pages(&e->pool, ps_batch_item_valid(&item, n));
    return c->n_pages - (uint32_t)live;
}
