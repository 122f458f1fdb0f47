/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays a tape: one host thread for each recorded one, taking turns in the recorded order, each
 * call made in its recorded stream. Launches become launches of tape_touch with the recorded
 * parameters, in which addresses are those that the replay got.
 *
 * Threads: `turn_lock` guards the turn; whose turn it is may touch everything else, and makes its
 * driver calls without the lock.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

#include "tools/tape/args.h"
#include "tools/tape/device.h"
#include "tools/tape/tape.h"

#define N_BLOCKS_MAX    264
#define WORDS_PER_BLOCK 4096
#define N_THREADS       256

struct kept { /* host memory that the device may still read or write */
    struct kept *next;
    size_t bytes;
    bool from_device; /* to be hashed at the end */
    uint8_t data[];
};

struct play {
    const struct tape *t;
    struct tape_device dev;
    CUdeviceptr *bases;   /* by allocation; kept after its free */
    bool *live;           /* likewise */
    CUstream *streams;    /* by number */
    CUdeviceptr *results; /* by stream */
    CUevent *cuda_events; /* by number */
    uint8_t *pattern;     /* what is copied from the host where the tape does not tell */
    struct kept *kept;
    struct tape_played played;
    pthread_mutex_t turn_lock;
    pthread_cond_t turned[TAPE_THREADS_MAX];
    unsigned padding; /* percent */
    size_t turn;      /* the next record */
    bool failed;
};

struct player {
    struct play *p;
    uint32_t number;
    uint32_t device;
    uint32_t n_raw; /* bytes of `args->raw` that are not 0 */
    struct tape_args *args;
};

#define OK(_what, _call) tape_device_ok(&p->dev, p->dev.cu._call, _what)

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0xbf58476d1ce4e5b9);
    return h ^ (h >> 29);
}

static uint32_t device_of(const struct play *p, uint32_t recorded)
{
    return p->dev.n_devices == 0 ? 0 : recorded % p->dev.n_devices;
}

static bool enter_device(const struct play *p, uint32_t device)
{
    return OK("cuCtxSetCurrent", cuCtxSetCurrent(p->dev.contexts[device]));
}

/* ---- launches ---- */

/* What is left of a tensor stays as it was filled: padding, which the stash need not store. */
static void set_operands(struct tape_args *args, const struct play *p, const struct tape_event *e)
{
    memset(args->tensors, 0, args->n_tensors * sizeof(args->tensors[0]));
    args->n_tensors = 0;
    for (uint32_t i = 0; i < e->n_access && args->n_tensors < TAPE_TENSORS_MAX; i++) {
        const uint32_t alloc = e->access[i].alloc;
        const uint64_t words = p->t->allocs[alloc].bytes / 8;

        if (e->access[i].mode != TAPE_NAMED) {
            args->tensors[args->n_tensors++] = (struct tape_operand){
                .address = p->bases[alloc],
                .words = words,
                .written = e->access[i].mode == TAPE_WRITE ? words - words * p->padding / 100 : 0,
            };
        }
    }
}

static void rewrite(uint8_t *raw, const struct play *p, const struct tape_event *e)
{
    memcpy(raw, e->raw, e->n_raw);
    for (uint32_t i = 0; i < e->n_words; i++) {
        const uint64_t address = p->bases[e->words[i].alloc] + e->words[i].delta;

        memcpy(raw + e->words[i].at, &address, sizeof(address));
    }
}

static bool launch(struct player *self, uint32_t stream)
{
    struct play *p = self->p;
    struct tape_args *args = self->args;
    uint64_t longest = 0;
    void *params[] = {args};

    for (uint32_t i = 0; i < args->n_tensors; i++) {
        longest = args->tensors[i].words > longest ? args->tensors[i].words : longest;
    }
    const uint64_t wanted = longest / WORDS_PER_BLOCK + 1;
    const unsigned n_blocks = wanted < N_BLOCKS_MAX ? (unsigned)wanted : N_BLOCKS_MAX;

    return OK("cuLaunchKernel",
              cuLaunchKernel(p->dev.touch[device_of(p, p->t->streams[stream].device)], n_blocks, 1,
                             1, N_THREADS, 1, 1, 0, p->streams[stream], params, NULL));
}

/* After what rewrite put into the raw bytes, nothing of the launch before. */
static void clear_rest(struct player *self, uint32_t n_raw)
{
    if (n_raw < self->n_raw) {
        memset(self->args->raw + n_raw, 0, self->n_raw - n_raw);
    }
    self->n_raw = n_raw;
}

static bool play_launch(struct player *self, const struct tape_event *e)
{
    struct play *p = self->p;

    set_operands(self->args, p, e);
    rewrite(self->args->raw, p, e);
    clear_rest(self, e->n_raw);
    self->args->seed = (uint64_t)(e - p->t->events);
    self->args->result =
        e->result == TAPE_NONE ? 0 : p->results[e->stream] + (CUdeviceptr)e->result * 8;
    return launch(self, e->stream);
}

/* A copy or fill that may not be made, since nothing orders it: a launch that names the same. */
static bool name_only(struct player *self, const struct tape_event *e)
{
    uint32_t n = 0;

    memset(self->args->tensors, 0, sizeof(self->args->tensors));
    self->args->n_tensors = 0;
    self->args->result = 0;
    for (uint32_t i = 0; i < e->n_access && n + 8 <= TAPE_RAW_MAX; i++, n += 8) {
        memcpy(self->args->raw + n, &self->p->bases[e->access[i].alloc], 8);
    }
    clear_rest(self, n);
    return launch(self, e->stream);
}

/* ---- counts ---- */

static bool first_of(const struct tape_event *e, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++) {
        if (e->words[k].alloc == e->words[i].alloc) {
            return false;
        }
    }
    return true;
}

static void count(struct play *p, const struct tape_event *e)
{
    for (uint32_t i = 0; i < e->n_access; i++) {
        p->played.n_touches += p->live[e->access[i].alloc];
    }
    for (uint32_t i = 0; e->kind == PS_TAPE_LAUNCH && i < e->n_words; i++) {
        const uint32_t alloc = e->words[i].alloc;

        p->played.n_stale_touches +=
            p->t->allocs[alloc].tensor && !p->live[alloc] && first_of(e, i);
    }
}

/* ---- memory ---- */

static bool play_alloc(struct play *p, const struct tape_event *e)
{
    const struct tape_alloc *a = &p->t->allocs[e->thing];
    const CUstream stream = p->streams[e->stream];
    CUdeviceptr *base = &p->bases[e->thing];
    bool ok;

    if (a->form == PS_TAPE_ALLOC_MANAGED) {
        ok = OK("cuMemAllocManaged", cuMemAllocManaged(base, a->bytes, CU_MEM_ATTACH_GLOBAL));
    } else if (a->form == PS_TAPE_ALLOC_SYNC) {
        ok = OK("cuMemAlloc", cuMemAlloc(base, a->bytes));
    } else {
        ok = OK("cuMemAllocAsync", cuMemAllocAsync(base, a->bytes, stream));
    }
    p->live[e->thing] = ok;
    /* Nothing is ever read that was not written: plain and under the stash it is the same. */
    return ok && (!a->tensor ||
                  OK("cuMemsetD8Async",
                     cuMemsetD8Async(*base, (uint8_t)(37 * e->thing + 1), a->bytes, stream)));
}

static bool play_free(struct play *p, const struct tape_event *e)
{
    if (e->thing == TAPE_NONE || !p->live[e->thing]) {
        return true;
    }
    const CUdeviceptr base = p->bases[e->thing];

    p->live[e->thing] = false;
    p->played.n_tensor_frees += p->t->allocs[e->thing].tensor;
    return e->form == PS_TAPE_ALLOC_ASYNC
               ? OK("cuMemFreeAsync", cuMemFreeAsync(base, p->streams[e->stream]))
               : OK("cuMemFree", cuMemFree(base));
}

static uint8_t *keep(struct play *p, size_t bytes, bool from_device)
{
    struct kept *k = malloc(sizeof(*k) + bytes);

    if (k == NULL) {
        fprintf(stderr, "pagedstash-tape: out of memory\n");
        return NULL;
    }
    k->next = p->kept;
    k->bytes = bytes;
    k->from_device = from_device;
    p->kept = k;
    return k->data;
}

static enum tape_mode mode_of(const struct play *p, const struct tape_event *e, uint32_t alloc)
{
    for (uint32_t i = 0; alloc != TAPE_NONE && i < e->n_access; i++) {
        if (e->access[i].alloc == alloc) {
            return (enum tape_mode)e->access[i].mode;
        }
    }
    (void)p;
    return TAPE_NAMED;
}

static bool is_tensor(const struct play *p, uint32_t alloc)
{
    return alloc != TAPE_NONE && p->t->allocs[alloc].tensor && p->live[alloc];
}

/* Synchronous functions are ordered in the legacy stream; others' are made of what there is. */
static bool is_plain_sync(const struct play *p, const struct tape_event *e)
{
    return (e->form & PS_TAPE_ASYNC) == 0 && p->streams[e->stream] == CU_STREAM_LEGACY;
}

/* After an asynchronous copy from or to the host that stands for a synchronous one. */
static bool end_copy(struct play *p, const struct tape_event *e)
{
    return (e->form & PS_TAPE_ASYNC) != 0 ||
           OK("cuStreamSynchronize", cuStreamSynchronize(p->streams[e->stream]));
}

static bool copy_in(struct play *p, const struct tape_event *e, CUdeviceptr dst, uint64_t bytes)
{
    const uint8_t *from = p->pattern;

    if (e->n_raw != 0) {
        uint8_t *payload = keep(p, e->n_raw, false);

        if (payload == NULL) {
            return false;
        }
        rewrite(payload, p, e);
        bytes = e->n_raw < bytes ? e->n_raw : bytes;
        from = payload;
    }
    return is_plain_sync(p, e) ? OK("cuMemcpyHtoD", cuMemcpyHtoD(dst, from, bytes))
                               : OK("cuMemcpyHtoDAsync",
                                    cuMemcpyHtoDAsync(dst, from, bytes, p->streams[e->stream])) &&
                                     end_copy(p, e);
}

static bool copy_out(struct play *p, const struct tape_event *e, CUdeviceptr src, uint64_t bytes)
{
    uint8_t *to = keep(p, bytes, true);

    if (to == NULL) {
        return false;
    }
    return is_plain_sync(p, e) ? OK("cuMemcpyDtoH", cuMemcpyDtoH(to, src, bytes))
                               : OK("cuMemcpyDtoHAsync",
                                    cuMemcpyDtoHAsync(to, src, bytes, p->streams[e->stream])) &&
                                     end_copy(p, e);
}

static bool copy_across(struct play *p, const struct tape_event *e, CUdeviceptr dst,
                        CUdeviceptr src)
{
    const uint64_t bytes = e->dst.bytes < e->src.bytes ? e->dst.bytes : e->src.bytes;

    return is_plain_sync(p, e)
               ? OK("cuMemcpyDtoD", cuMemcpyDtoD(dst, src, bytes))
               : OK("cuMemcpyDtoDAsync", cuMemcpyDtoDAsync(dst, src, bytes, p->streams[e->stream]));
}

/* Memory other than tensors holds nothing that is checked: of its copies only the order is kept. */
static bool copy_elsewhere(struct play *p, const struct tape_event *e, CUdeviceptr dst)
{
    if (e->n_words != 0 && e->dst.alloc != TAPE_NONE && p->live[e->dst.alloc]) {
        return copy_in(p, e, dst, e->dst.bytes);
    }
    if ((e->form & (PS_TAPE_ASYNC | PS_TAPE_DST_HOST)) == PS_TAPE_DST_HOST) {
        return OK("cuStreamSynchronize", cuStreamSynchronize(p->streams[e->stream]));
    }
    return true;
}

static bool play_copy(struct player *self, const struct tape_event *e)
{
    struct play *p = self->p;
    const bool to = is_tensor(p, e->dst.alloc), from = is_tensor(p, e->src.alloc);
    const CUdeviceptr dst = e->dst.alloc == TAPE_NONE ? 0 : p->bases[e->dst.alloc] + e->dst.delta;
    const CUdeviceptr src = e->src.alloc == TAPE_NONE ? 0 : p->bases[e->src.alloc] + e->src.delta;

    if (!to && !from) {
        return copy_elsewhere(p, e, dst);
    }
    if ((to && mode_of(p, e, e->dst.alloc) != TAPE_WRITE) ||
        (from && mode_of(p, e, e->src.alloc) == TAPE_NAMED)) {
        return name_only(self, e) && copy_elsewhere(p, e, dst);
    }
    if (to && from) {
        return copy_across(p, e, dst, src);
    }
    if (from) {
        return e->dst.alloc != TAPE_NONE && p->live[e->dst.alloc]
                   ? copy_across(p, e, dst, src)
                   : copy_out(p, e, src, e->src.bytes);
    }
    if ((e->form & PS_TAPE_SRC_HOST) != 0) {
        return copy_in(p, e, dst, e->dst.bytes);
    }
    return OK("cuMemsetD8Async", cuMemsetD8Async(dst, (uint8_t)(e - p->t->events), e->dst.bytes,
                                                 p->streams[e->stream]));
}

static bool play_fill(struct player *self, const struct tape_event *e)
{
    struct play *p = self->p;

    if (!is_tensor(p, e->dst.alloc)) {
        return true;
    }
    if (mode_of(p, e, e->dst.alloc) != TAPE_WRITE) {
        return name_only(self, e);
    }
    const CUdeviceptr dst = p->bases[e->dst.alloc] + e->dst.delta;

    return is_plain_sync(p, e)
               ? OK("cuMemsetD8", cuMemsetD8(dst, (uint8_t)e->priority, e->dst.bytes))
               : OK("cuMemsetD8Async", cuMemsetD8Async(dst, (uint8_t)e->priority, e->dst.bytes,
                                                       p->streams[e->stream]));
}

/* ---- streams and events ---- */

static bool make_stream(struct play *p, uint32_t i)
{
    const struct tape_stream *s = &p->t->streams[i];

    return OK("cuStreamCreateWithPriority",
              cuStreamCreateWithPriority(&p->streams[i], s->flags, s->priority));
}

static bool make_event(struct play *p, uint32_t i)
{
    return OK("cuEventCreate", cuEventCreate(&p->cuda_events[i],
                                             p->t->cuda_events[i].flags | CU_EVENT_DISABLE_TIMING));
}

/* What had ended when it was asked for must have ended now, too. */
static bool play_query(struct play *p, const struct tape_event *e)
{
    const bool of_stream = e->kind == PS_TAPE_STREAM_QUERY;

    if (e->form == CUDA_SUCCESS) {
        return of_stream ? OK("cuStreamSynchronize", cuStreamSynchronize(p->streams[e->stream]))
                         : OK("cuEventSynchronize", cuEventSynchronize(p->cuda_events[e->thing]));
    }
    const CUresult r = of_stream ? p->dev.cu.cuStreamQuery(p->streams[e->stream])
                                 : p->dev.cu.cuEventQuery(p->cuda_events[e->thing]);

    return r == CUDA_ERROR_NOT_READY ||
           tape_device_ok(&p->dev, r, of_stream ? "cuStreamQuery" : "cuEventQuery");
}

static bool play_order(struct play *p, const struct tape_event *e)
{
    switch ((int)e->kind) {
    case PS_TAPE_STREAM_CREATE:
        return make_stream(p, e->stream);
    case PS_TAPE_STREAM_DESTROY:
        return OK("cuStreamDestroy", cuStreamDestroy(p->streams[e->stream]));
    case PS_TAPE_STREAM_WAIT:
        return OK("cuStreamWaitEvent",
                  cuStreamWaitEvent(p->streams[e->stream], p->cuda_events[e->thing], 0));
    case PS_TAPE_STREAM_SYNC:
        return OK("cuStreamSynchronize", cuStreamSynchronize(p->streams[e->stream]));
    case PS_TAPE_EVENT_CREATE:
        return make_event(p, e->thing);
    case PS_TAPE_EVENT_DESTROY:
        return OK("cuEventDestroy", cuEventDestroy(p->cuda_events[e->thing]));
    case PS_TAPE_EVENT_RECORD:
        return OK("cuEventRecord", cuEventRecord(p->cuda_events[e->thing], p->streams[e->stream]));
    case PS_TAPE_EVENT_SYNC:
        return OK("cuEventSynchronize", cuEventSynchronize(p->cuda_events[e->thing]));
    case PS_TAPE_CONTEXT_SYNC:
        return OK("cuCtxSynchronize", cuCtxSynchronize());
    default:
        return play_query(p, e);
    }
}

/* ---- threads ---- */

static bool play_record(struct player *self, const struct tape_event *e)
{
    struct play *p = self->p;

    count(p, e);
    switch ((int)e->kind) {
    case PS_TAPE_CONTEXT:
        self->device = device_of(p, e->thing);
        return enter_device(p, self->device);
    case PS_TAPE_ALLOC:
        return play_alloc(p, e);
    case PS_TAPE_FREE:
        return play_free(p, e);
    case PS_TAPE_LAUNCH:
        return play_launch(self, e);
    case PS_TAPE_COPY:
        return play_copy(self, e);
    case PS_TAPE_FILL:
        return play_fill(self, e);
    case PS_TAPE_PUSH:
        nvtxRangePushA(p->t->strings[e->thing]);
        return true;
    case PS_TAPE_POP:
        nvtxRangePop();
        return true;
    case PS_TAPE_STRING:
    case PS_TAPE_FUNCTION:
    case PS_TAPE_CALL:
    case PS_TAPE_END:
        return true;
    default:
        return play_order(p, e);
    }
}

static void *run_player(void *arg)
{
    struct player *self = arg;
    struct play *p = self->p;
    const struct tape *t = p->t;
    bool ok = enter_device(p, 0);

    pthread_mutex_lock(&p->turn_lock);
    for (;;) {
        while (!p->failed && p->turn < t->n_events && t->events[p->turn].thread != self->number) {
            pthread_cond_wait(&p->turned[self->number], &p->turn_lock);
        }
        if (p->failed || p->turn == t->n_events) {
            break;
        }
        pthread_mutex_unlock(&p->turn_lock);
        ok = ok && play_record(self, &t->events[p->turn]);
        pthread_mutex_lock(&p->turn_lock);
        if (!ok) {
            fprintf(stderr, "pagedstash-tape: at record %zu (%s)\n", p->turn,
                    ps_tape_kind_name(t->events[p->turn].kind));
        }
        p->failed = !ok;
        p->turn++;
        for (uint32_t i = 0; i < t->n_threads; i++) {
            if (p->failed || p->turn == t->n_events || t->events[p->turn].thread == i) {
                pthread_cond_signal(&p->turned[i]);
            }
        }
    }
    pthread_mutex_unlock(&p->turn_lock);
    return NULL;
}

static bool run_threads(struct play *p)
{
    struct player *players = calloc(p->t->n_threads, sizeof(*players));
    pthread_t *threads = calloc(p->t->n_threads, sizeof(*threads));
    uint32_t n = 0;

    for (; players != NULL && threads != NULL && n < p->t->n_threads; n++) {
        players[n] = (struct player){.p = p, .number = n};
        players[n].args = calloc(1, sizeof(*players[n].args));
        if (players[n].args == NULL ||
            pthread_create(&threads[n], NULL, run_player, &players[n]) != 0) {
            fprintf(stderr, "pagedstash-tape: cannot start thread %u\n", n);
            free(players[n].args);
            break;
        }
    }
    if (n < p->t->n_threads) {
        pthread_mutex_lock(&p->turn_lock);
        p->failed = true;
        for (uint32_t i = 0; i < n; i++) {
            pthread_cond_signal(&p->turned[i]);
        }
        pthread_mutex_unlock(&p->turn_lock);
    }
    for (uint32_t i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        free(players[i].args);
    }
    free(players);
    free(threads);
    return !p->failed;
}

/* ---- before and after ---- */

static bool make_results(struct play *p, uint32_t i)
{
    const struct tape_stream *s = &p->t->streams[i];
    const size_t bytes = (size_t)s->n_results * 8;

    return bytes == 0 || (enter_device(p, device_of(p, s->device)) &&
                          OK("cuMemAlloc", cuMemAlloc(&p->results[i], bytes)) &&
                          OK("cuMemsetD8", cuMemsetD8(p->results[i], 0, bytes)) &&
                          OK("cuCtxSynchronize", cuCtxSynchronize()));
}

static bool make_all(struct play *p)
{
    const struct tape *t = p->t;
    size_t pattern = 4096;

    for (uint32_t i = 0; i < t->n_streams; i++) {
        const struct tape_stream *s = &t->streams[i];

        if (s->handle <= 2) {
            p->streams[i] = s->handle == 1 ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
        } else if (!s->created &&
                   !(enter_device(p, device_of(p, s->device)) && make_stream(p, i))) {
            return false;
        }
        if (!make_results(p, i)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < t->n_cuda_events; i++) {
        if (!t->cuda_events[i].created &&
            !(enter_device(p, device_of(p, t->cuda_events[i].device)) && make_event(p, i))) {
            return false;
        }
    }
    for (size_t i = 0; i < t->n_events; i++) {
        const struct tape_event *e = &t->events[i];

        pattern = e->kind == PS_TAPE_COPY && e->dst.bytes > pattern ? e->dst.bytes : pattern;
    }
    p->pattern = malloc(pattern);
    for (size_t i = 0; p->pattern != NULL && i < pattern; i++) {
        p->pattern[i] = (uint8_t)(i * 131 >> 4);
    }
    return p->pattern != NULL;
}

static bool hash_memory(struct play *p, CUdeviceptr ptr, size_t bytes)
{
    uint64_t *data = calloc(bytes / 8 + 1, 8);
    const bool ok = data != NULL && OK("cuMemcpyDtoH", cuMemcpyDtoH(data, ptr, bytes));

    for (size_t i = 0; ok && i < bytes / 8; i++) {
        p->played.hash = mix(p->played.hash, data[i]);
    }
    free(data);
    return ok;
}

/* Everything that was read, and what is left. */
static bool hash_all(struct play *p)
{
    const struct tape *t = p->t;

    for (uint32_t i = 0; i < p->dev.n_devices; i++) {
        if (!enter_device(p, i) || !OK("cuCtxSynchronize", cuCtxSynchronize())) {
            return false;
        }
    }
    for (uint32_t i = 0; i < t->n_streams; i++) {
        const struct tape_stream *s = &t->streams[i];

        if (s->n_results != 0 && !(enter_device(p, device_of(p, s->device)) &&
                                   hash_memory(p, p->results[i], (size_t)s->n_results * 8))) {
            return false;
        }
    }
    for (uint32_t i = 0; i < t->n_allocs; i++) {
        const struct tape_alloc *a = &t->allocs[i];

        if (a->tensor && p->live[i] &&
            !(enter_device(p, device_of(p, t->streams[a->stream].device)) &&
              hash_memory(p, p->bases[i], a->bytes))) {
            return false;
        }
    }
    for (const struct kept *k = p->kept; k != NULL; k = k->next) {
        for (size_t i = 0; k->from_device && i < k->bytes; i++) {
            p->played.hash = mix(p->played.hash, k->data[i]);
        }
    }
    return true;
}

static void fini(struct play *p)
{
    while (p->kept != NULL) {
        struct kept *next = p->kept->next;

        free(p->kept);
        p->kept = next;
    }
    free(p->bases);
    free(p->live);
    free(p->streams);
    free(p->results);
    free(p->cuda_events);
    free(p->pattern);
    for (uint32_t i = 0; i < p->t->n_threads; i++) {
        pthread_cond_destroy(&p->turned[i]);
    }
    pthread_mutex_destroy(&p->turn_lock);
    free(p);
}

bool tape_play(const struct tape *t, unsigned padding, struct tape_played *played_p)
{
    struct play *p = calloc(1, sizeof(*p));

    if (p == NULL) {
        fprintf(stderr, "pagedstash-tape: out of memory\n");
        return false;
    }
    p->t = t;
    p->padding = padding;
    pthread_mutex_init(&p->turn_lock, NULL);
    for (uint32_t i = 0; i < t->n_threads; i++) {
        pthread_cond_init(&p->turned[i], NULL);
    }
    p->bases = calloc((size_t)t->n_allocs + 1, sizeof(*p->bases));
    p->live = calloc((size_t)t->n_allocs + 1, sizeof(*p->live));
    p->streams = calloc((size_t)t->n_streams + 1, sizeof(CUstream));
    p->results = calloc((size_t)t->n_streams + 1, sizeof(*p->results));
    p->cuda_events = calloc((size_t)t->n_cuda_events + 1, sizeof(CUevent));
    bool ok = p->bases != NULL && p->live != NULL && p->streams != NULL && p->results != NULL &&
              p->cuda_events != NULL && tape_device_open(&p->dev, t->n_devices);

    if (ok) {
        ok = make_all(p) && run_threads(p) && hash_all(p);
        *played_p = p->played;
        tape_device_close(&p->dev);
    }
    fini(p);
    return ok;
}
