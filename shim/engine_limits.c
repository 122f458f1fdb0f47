/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the settings allow an engine's plan and its pages (policy/limits.h), and what ranges told of their capacities.
 * Any thread; lock held in every function.
 */
#include "policy/base/log.h"
#include "policy/spill.h"
#include "shim/engine_int.h"

#define REMAKE_BEYOND 5 /* percent of the valid bytes that may move beyond what was planned */

/* Dispatchers round the rows up to as many at most (Megatron-LM: for quantised grouped products). */
#define CAPACITY_UNIT 256

/* Of the regions that tell, by their numbers; guarded by ps_lock. */
static struct ps_capacity told[PS_REGION_NAMES_MAX];
static uint32_t n_told;

static bool given(const char *name)
{
    return ps_option_given(&ps_options, name);
}

void ps_learn_capacity(uint32_t name, uint64_t capacity, uint64_t balanced)
{
    uint32_t i = 0;

    while (i < n_told && told[i].name != name) {
        i++;
    }
    if (balanced != 0 && given("PAGEDSTASH_CAPACITY_FACTOR") &&
        (capacity < ps_capacity_rows(balanced, ps_options.capacity_factor, 1) ||
         capacity > ps_capacity_rows(balanced, ps_options.capacity_factor, CAPACITY_UNIT))) {
        ps_warn_once("a range has room for %llu rows and %llu when balanced, which is not what "
                     "PAGEDSTASH_CAPACITY_FACTOR says: the range counts; leave the setting out",
                     (unsigned long long)capacity, (unsigned long long)balanced);
    }
    if (i < PS_REGION_NAMES_MAX && capacity != 0) {
        n_told = i == n_told ? n_told + 1 : n_told;
        told[i] = (struct ps_capacity){name, capacity, balanced};
    }
}

static bool device_asked(void)
{
    return given("PAGEDSTASH_CUDA_BUDGET") || given("PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA");
}

/* Ours for good. */
static uint64_t fixed_bytes(const struct ps_engine *e)
{
    const struct ps_page_pool *p = &e->pool;
    return p->arena_bytes + p->tables_mapped + (p->host.ring != NULL ? p->host.ring->bytes : 0);
}

/* What other processes leave of the device: what is free, the job's pool has, and is ours. 0: not known. */
static uint64_t device_bytes(const struct ps_engine *e)
{
    CUmemoryPool pool;
    uint64_t reserved = 0;
    size_t left = 0;
    size_t total = 0;

    if (ps_driver.cuMemGetInfo(&left, &total) != CUDA_SUCCESS ||
        ps_driver.cuDeviceGetDefaultMemPool(&pool, e->device) != CUDA_SUCCESS ||
        ps_driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) !=
            CUDA_SUCCESS) {
        return ps_driver.cuDeviceTotalMem(&total, e->device) == CUDA_SUCCESS ? total : 0;
    }
    const uint64_t ours = left + reserved + e->chunk_bytes + e->pool.mapped + fixed_bytes(e);
    return ours < total ? ours : total;
}

/*
 * What the device has for homes and pages: all but what is spared, the job's other memory, two groups (a lane for each
 * of them, at worst), and what is ours for good.
 */
static uint64_t device_room(const struct ps_engine *e, const struct ps_plan_step *steps, uint32_t n)
{
    uint64_t other = 0;
    uint64_t group = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t sum = 0;
        for (uint32_t k = 0; k < steps[i].n_events; k++) {
            other = steps[i].events[k].other_bytes > other ? steps[i].events[k].other_bytes : other;
        }
        for (uint32_t k = 0; k < steps[i].n_tensors; k++) {
            const struct ps_plan_tensor *t = &steps[i].tensors[k];
            sum = k > 0 && steps[i].tensors[k - 1].group == t->group ? sum + t->bytes : t->bytes;
            group = sum > group ? sum : group;
        }
    }
    const uint64_t total = device_bytes(e);
    const uint64_t taken = total / PS_ROOM_SPARED + other + 2 * group + fixed_bytes(e);
    return total > taken ? total - taken : 0;
}

/* device_bytes: of homes and pages; PS_AUTO: as the settings say. */
static enum ps_status plan_within(struct ps_engine *e, const struct ps_plan_step *steps, uint32_t n,
                                  const struct ps_plan_settings *settings, uint64_t device_bytes,
                                  struct ps_plan *plan_p)
{
    const struct ps_limits_ask ask = {
        .settings =
            {
                .factor_cuda = ps_options.factor_cuda,
                .factor_given = given("PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA"),
                .factor_cpu = given("PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU") ? ps_options.factor_cpu
                                                                         : PS_FACTOR_AUTO,
                .cuda_budget =
                    given("PAGEDSTASH_CUDA_BUDGET") ? ps_options.cuda_budget : device_bytes,
                .host_budget = ps_pool_host_most(e),
            },
        .told = told,
        .n_told = n_told,
        .capacity_factor =
            given("PAGEDSTASH_CAPACITY_FACTOR") ? ps_options.capacity_factor : PS_FACTOR_AUTO,
    };
    struct ps_limits_found *found = &e->learner.found;
    const enum ps_status s = ps_limits_plan(steps, n, settings, &ask, plan_p, found);

    if (s == PS_OK && plan_p->adopt) {
        const uint64_t limit = found->limits.device_bytes;

        ps_observe_limit(limit != PS_NO_LIMIT ? limit : 0, found->wanted_bytes, found->short_bytes,
                         ps_limits_factor(&ask.settings, &found->seen, found->wanted_bytes));
    }
    return s;
}

static bool fits(const struct ps_engine *e, const struct ps_plan *plan)
{
    return ps_limits_fits(plan, e->learner.held_bytes, fixed_bytes(e), device_bytes(e));
}

enum ps_status ps_learn_make(struct ps_engine *e, const struct ps_plan_step *steps, uint32_t n,
                             const struct ps_plan_settings *settings, struct ps_plan *plan_p)
{
    const struct ps_limits_found *found = &e->learner.found;
    const struct ps_limits_found before = *found;
    const bool free = !device_asked() && ps_pool_host_most(e) > 0;
    enum ps_status s = plan_within(e, steps, n, settings, PS_AUTO, plan_p);
    bool will_do = s != PS_OK || plan_p->adopt || fits(e, plan_p);

    if (s == PS_OK && free && (e->short_of_memory || !fits(e, plan_p))) {
        e->short_of_memory = true;
        ps_plan_fini(plan_p);
        s = plan_within(e, steps, n, settings, device_room(e, steps, n), plan_p);
        will_do = s != PS_OK || (plan_p->adopt && fits(e, plan_p));
    }
    if (!will_do) {
        ps_plan_fini(plan_p); /* without a plan the job has come so far */
        e->learner.found = before;
        return PS_ERR_UNSUPPORTED;
    }
    if (s == PS_OK && plan_p->adopt && found->limits.device_bytes != PS_NO_LIMIT) {
        ps_info(
            "limits: %llu MiB of device memory for homes and pages of %llu wanted; %llu MiB of pages go to the host, "
            "%u percent of the valid bytes move",
            (unsigned long long)(found->limits.device_bytes >> 20),
            (unsigned long long)(found->wanted_bytes >> 20),
            (unsigned long long)(found->short_bytes >> 20), found->moved_percent);
    }
    return s;
}

enum ps_status ps_learn_sinks(struct ps_engine *e, const struct ps_plan_step *steps, uint32_t n,
                              const struct ps_plan *plan, struct ps_sinks *sinks_p)
{
    const uint64_t host = ps_learn_host_most(e);
    const uint64_t beside = plan->group_tail_bytes + e->pool.host.piece_bytes;
    const struct ps_sinks_settings settings = {
        .page_bytes = e->pool.page_bytes,
        .device_bytes = plan->pool_bytes,
        .beside = device_asked(),
        /* Beside what a stash may need that takes more than was planned. */
        .host_bytes = host > beside ? host - beside : 0,
        .link_rate = PS_LINK_RATE,
    };
    *sinks_p = (struct ps_sinks){0};
    return plan->adopt && e->learner.found.short_bytes > 0
               ? ps_sinks_choose(plan, steps, n, &settings, sinks_p)
               : PS_OK;
}

void ps_learn_limit(struct ps_engine *e, const struct ps_plan *plan, const struct ps_sinks *sinks,
                    uint64_t *device_p, uint64_t *host_p)
{
    const struct ps_limits_found *f = &e->learner.found;
    const uint64_t staged = (uint64_t)sinks->n_sinks * sinks->stage_pages * e->pool.page_bytes;
    const uint64_t most = f->limits.host_bytes > staged ? f->limits.host_bytes - staged : 0;
    const uint64_t more = staged > 0 ? 0 : f->short_bytes;
    const uint64_t host = f->limits.host_sized ? most : *host_p + more;

    *host_p = host < most ? host : most;
    e->pool.most_device = PS_NO_LIMIT;
    if (device_asked() || e->short_of_memory) {
        *device_p = ps_limits_pages(&f->limits, plan->home_bytes, *device_p);
        e->pool.most_device = ps_limits_pages(&f->limits, plan->home_bytes, PS_NO_LIMIT);
    }
    if (staged > 0) {
        *device_p = *device_p < sinks->device_bytes ? *device_p : sinks->device_bytes;
        e->pool.most_device = *device_p;
    }
}

uint64_t ps_learn_host_most(const struct ps_engine *e)
{
    const uint64_t most = ps_pool_host_most(e);
    const uint64_t limit = e->learner.found.limits.host_bytes;

    return limit < most ? limit : most;
}

uint64_t ps_learn_remake_percent(const struct ps_engine *e, uint64_t usual)
{
    const uint64_t planned = e->learner.found.moved_percent + REMAKE_BEYOND;

    return planned > usual ? planned : usual;
}

uint64_t ps_learn_first_page(void)
{
    const struct ps_thread *th = ps_thread_self();

    if (th == NULL || th->rows.capacity == 0 || th->asked == 0) {
        return 0;
    }
    return ps_limits_page_bytes(ps_options.page_size, ps_pages_for(th->asked, th->rows.capacity),
                                given("PAGEDSTASH_PAGE_SIZE"));
}

uint64_t ps_learn_page(const struct ps_segment *segment)
{
    uint64_t widest = 0;

    if (ps_options.page_bytes != PS_AUTO) {
        return 0;
    }
    for (uint32_t k = 0; k < PS_KINDS_MAX; k++) {
        const struct ps_record *r = &segment->kinds[k].record[0];
        const struct ps_plan_step step = {.tensors = r->tensors,
                                          .names = r->names,
                                          .n_tensors = r->n_tensors,
                                          .n_groups = r->n_groups};
        const uint64_t row =
            segment->kinds[k].id == 0 ? 0 : ps_limits_row_bytes(&step, 1, told, n_told);

        widest = row > widest ? row : widest;
    }
    return widest == 0
               ? 0
               : ps_limits_page_bytes(ps_options.page_size, widest, given("PAGEDSTASH_PAGE_SIZE"));
}
