/* SPDX-License-Identifier: Apache-2.0 */
/* A world's beginning and end, its tensors and host memory, and the comparison with the model. */
#include "tests/fuzz/calls.h"

#include <nvtx3/nvToolsExt.h>

bool fz_talk;

static void *need(void *p)
{
    if (p == NULL) {
        abort();
    }
    return p;
}

void fz_compare(const uint8_t *found, const uint8_t *want, size_t bytes, const char *what)
{
    if (memcmp(found, want, bytes) != 0) {
        size_t at = 0;

        while (found[at] == want[at]) {
            at++;
        }
        fz_require(false, "%s: byte %zu of %zu is %02x, not %02x", what, at, bytes, found[at],
                   want[at]);
    }
}

/* ---- host memory ---- */

uint8_t *fz_host(struct fz_world *w, size_t bytes)
{
    const unsigned kind = fz_below(&w->in, 2);
    const size_t size = (bytes + 15) / 16 * 16;

    if (w->used[kind] + size > FZ_ARENA) {
        fz_sync_all(w);
        w->used[0] = 0;
        w->used[1] = 0;
    }
    uint8_t *p = w->arena[kind] + w->used[kind];

    w->used[kind] += size;
    return p;
}

void fz_expect(struct fz_world *w, const uint8_t *host, const uint8_t *want, size_t bytes)
{
    if (w->n_reads == FZ_READS) {
        fz_sync_all(w);
    }
    struct fz_read *r = &w->reads[w->n_reads++];

    *r = (struct fz_read){host, need(malloc(bytes == 0 ? 1 : bytes)), bytes};
    memcpy(r->want, want, bytes);
}

void fz_reads_check(struct fz_world *w)
{
    for (unsigned i = 0; i < w->n_reads; i++) {
        fz_compare(w->reads[i].host, w->reads[i].want, w->reads[i].bytes, "an asynchronous copy");
        free(w->reads[i].want);
    }
    w->n_reads = 0;
}

/* ---- tensors ---- */

static void alloc_call(struct fz_world *w, struct fz_tensor *t, const struct fz_use *u)
{
    const unsigned form = fz_u8(&w->in) % 16;
    size_t pitch = 0;

    t->kind = FZ_POOL;
    if (form == 15) {
        t->kind = FZ_PLAIN;
        OK(cuMemAlloc_v2, &t->at, t->bytes);
    } else if (form == 14) {
        t->kind = FZ_PLAIN;
        OK(cuMemAllocPitch_v2, &t->at, &pitch, 512, t->bytes / 512 + 1, 8);
        t->bytes = pitch * (t->bytes / 512 + 1);
    } else if (form == 13) {
        t->kind = FZ_MANAGED;
        OK(cuMemAllocManaged, &t->at, t->bytes, CU_MEM_ATTACH_GLOBAL);
    } else if (form == 12) {
        t->kind = FZ_OTHER_POOL;
        fz_issue(w, u->lane);
        ON_LANE(cuMemAllocFromPoolAsync, *u, &t->at, t->bytes, w->pool);
    } else if (form == 11) {
        CUmemoryPool pool;

        PLAIN(cuDeviceGetDefaultMemPool(&pool, 0));
        fz_issue(w, u->lane);
        ON_LANE(cuMemAllocFromPoolAsync, *u, &t->at, t->bytes, pool);
    } else {
        fz_issue(w, u->lane);
        ON_LANE(cuMemAllocAsync, *u, &t->at, t->bytes);
    }
}

struct fz_tensor *fz_tensor_alloc(struct fz_world *w, size_t bytes, const struct fz_use *u)
{
    unsigned i = 0;

    while (i < FZ_TENSORS && w->tensor[i].live) {
        i++;
    }
    if (i == FZ_TENSORS || w->live_bytes + bytes > FZ_LIVE_BYTES) {
        return NULL;
    }
    struct fz_tensor *t = &w->tensor[i];

    *t = (struct fz_tensor){.bytes = bytes, .live = true};
    alloc_call(w, t, u);
    t->writer = u->lane;
    t->written =
        t->kind == FZ_POOL || t->kind == FZ_OTHER_POOL ? w->lane[u->lane].clock[u->lane] : 0;
    fz_issued(w, u->lane);
    t->model = need(calloc(1, t->bytes));
    w->live_bytes += t->bytes;
    w->last = i;
    FZ_SAY("tensor %u: %zu bytes at %#llx, kind %d, lane %u\n", i, t->bytes,
           (unsigned long long)t->at, (int)t->kind, u->lane);
    return t;
}

/* Two of three times one of the newest. */
struct fz_tensor *fz_tensor_choose(struct fz_world *w, const struct fz_use *u)
{
    const unsigned b = fz_u8(&w->in);
    const unsigned from = b % 3 == 0 ? b / 3 : w->last + FZ_TENSORS - b / 3 % 4;

    for (unsigned i = 0; i < FZ_TENSORS; i++) {
        struct fz_tensor *t = &w->tensor[(from + FZ_TENSORS - i) % FZ_TENSORS];

        if (t->live && !t->busy) {
            if (!t->defined) {
                fz_define(w, t, u);
            }
            return t;
        }
    }
    return NULL;
}

void fz_tensor_free(struct fz_world *w, struct fz_tensor *t)
{
    const unsigned b = fz_u8(&w->in);
    const struct fz_use u = fz_lane_choose(w);
    const bool pooled = t->kind == FZ_POOL || t->kind == FZ_OTHER_POOL;

    FZ_SAY("tensor %d is freed\n", (int)(t - w->tensor));
    if (pooled && b % 8 != 7) {
        fz_use(w, t, u.lane, true);
        fz_issue(w, u.lane);
        ON_LANE(cuMemFreeAsync, u, t->at);
        fz_issued(w, u.lane);
    } else {
        if (b % 16 == 15) {
            fz_sync_all(w);
        }
        OK(cuMemFree_v2, t->at);
    }
    free(t->model);
    t->model = NULL;
    t->live = false;
    w->live_bytes -= t->bytes;
}

uint64_t fz_stale(struct fz_world *w)
{
    const struct fz_tensor *t = &w->tensor[fz_u8(&w->in) % FZ_TENSORS];
    const unsigned b = fz_u8(&w->in);

    switch (b % 4) {
    case 0:
        return t->at + 8 * (uint64_t)b;
    case 1:
        return t->at + t->bytes;
    case 2:
        return t->at - 8 * (uint64_t)b;
    default:
        return t->at;
    }
}

/* ---- ranges ---- */

void fz_push(struct fz_world *w, unsigned name)
{
    static const char *const names[] = {
        "moe_experts", "moe_experts; layer=3", "experts_2",      "moe_experts",
        "attention",   "moe_experts",          "Xexperts;moe_x", "step"};

    FZ_SAY("thread %u pushes %s\n", w->worker, names[name % 8]);
    nvtxRangePushA(names[name % 8]);
    w->depth[w->worker]++;
}

/* One more than there are, too. */
void fz_pop(struct fz_world *w)
{
    FZ_SAY("thread %u pops\n", w->worker);
    nvtxRangePop();
    w->depth[w->worker] -= w->depth[w->worker] > 0;
}

/* ---- the whole ---- */

void fz_world_begin(struct fz_world *w, const uint8_t *data, size_t size)
{
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

    w->in = (struct fz_input){data, size};
    PLAIN(cuCtxGetCurrent(&w->ctx));
    OK(cuModuleLoadData, &w->module, "");
    OK(cuLibraryLoadData, &w->library, "", NULL, NULL, 0, NULL, NULL, 0);
    PLAIN(cuMemPoolCreate(&w->pool, &props));
    w->arena[0] = need(malloc(FZ_ARENA));
    PLAIN(cuMemHostAlloc((void **)&w->arena[1], FZ_ARENA, 0));
    fz_lanes_begin(w);
    fz_lane_create(w);
}

static void read_back(const struct fz_tensor *t)
{
    uint8_t *found = need(malloc(t->bytes));

    if (t->defined) {
        OK(cuMemcpyDtoH_v2, found, t->at, t->bytes);
        fz_compare(found, t->model, t->bytes, "a tensor at the end");
    }
    free(found);
}

void fz_world_end(struct fz_world *w)
{
    fz_sync_all(w);
    for (unsigned i = 0; i < FZ_TENSORS; i++) {
        struct fz_tensor *t = &w->tensor[i];

        if (t->live) {
            read_back(t);
            if (i % 2 == 0 && (t->kind == FZ_POOL || t->kind == FZ_OTHER_POOL)) {
                OK(cuMemFreeAsync, t->at, CU_STREAM_LEGACY);
            } else {
                OK(cuMemFree_v2, t->at);
            }
            free(t->model);
        }
    }
    fz_lanes_end(w);
    PLAIN(cuCtxSynchronize());
    PLAIN(cuMemPoolDestroy(w->pool));
    PLAIN(cuMemFreeHost(w->arena[1]));
    free(w->arena[0]);
    OK(cuLibraryUnload, w->library);
    OK(cuModuleUnload, w->module);
}
