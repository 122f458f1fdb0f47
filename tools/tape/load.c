/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a file's bytes to struct tape. Nothing that a file holds is trusted: whatever does not fit is
 * an error with the record's number. One thread.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/spans.h"
#include "tools/tape/args.h"
#include "tools/tape/map.h"
#include "tools/tape/tape.h"

#define ROUND      256u
#define UNSCALED   4096u /* smaller ones keep their size */
#define LEGACY     1u
#define PER_THREAD 2u

/* Products of two sizes. */
__extension__ typedef unsigned __int128 wide;

struct function {
    struct ps_tape_layout layout;
    struct ps_tape_param *params;
    uint8_t *image;
    uint32_t room;
    bool known;
};

struct loader {
    struct tape *t;
    struct ps_tape_reader reader;
    struct ps_tape_record r;
    struct ps_spans spans; /* numbers are those of allocations */
    struct ps_named named;
    struct tape_map streams, cuda_events, strings, functions;
    struct function *list; /* of functions, by the map's numbers */
    uint32_t n_functions;
    uint32_t devices[TAPE_THREADS_MAX];
    size_t room;
    struct tape_event *e;
    /* of the launch being read */
    struct tape_word *words;
    uint32_t n_words, words_room;
    uint32_t shift; /* from where a word stands in the image to where in the raw bytes */
};

static bool fail(struct loader *l, const char *what)
{
    snprintf(l->t->error, sizeof(l->t->error), "record %zu (%s): %s", l->t->n_events,
             ps_tape_kind_name(l->r.kind), what);
    return false;
}

static bool no_memory(struct loader *l)
{
    return fail(l, "out of memory");
}

/* One more element at the end of a list; NULL when out of memory. */
static void *append(void **list_p, uint32_t *n_p, size_t size)
{
    if ((*n_p & (*n_p - 1)) == 0) { /* room for a power of two */
        void *more = realloc(*list_p, (*n_p == 0 ? 1 : 2 * (size_t)*n_p) * size);

        if (more == NULL) {
            return NULL;
        }
        *list_p = more;
    }
    void *at = (char *)*list_p + (*n_p)++ * size;

    memset(at, 0, size);
    return at;
}

uint64_t tape_scaled(const struct tape *t, uint64_t bytes)
{
    if (t->scale == 1 || bytes < UNSCALED) {
        return bytes;
    }
    const uint64_t scaled = bytes / t->scale / ROUND * ROUND;

    return scaled < UNSCALED ? UNSCALED : scaled;
}

/* Where a byte of a span lies in what stands for it. */
static uint64_t scaled_at(const struct loader *l, const struct ps_span *s, uint64_t address)
{
    const uint64_t now = l->t->allocs[s->number].bytes;
    const uint64_t delta = address - s->base;
    const uint64_t at = (uint64_t)((wide)delta * now / s->bytes);

    return delta % 16 == 0 ? at & ~UINT64_C(15) : at;
}

/* ---- streams and events ---- */

static bool add_stream(struct loader *l, const struct tape_stream *s, uint64_t key,
                       uint32_t *number_p)
{
    struct tape_stream *at =
        append((void **)&l->t->streams, &l->t->n_streams, sizeof(*l->t->streams));

    if (at == NULL || !tape_map_set(&l->streams, key, l->t->n_streams - 1)) {
        return no_memory(l);
    }
    *at = *s;
    at->device = l->devices[l->r.thread];
    *number_p = l->t->n_streams - 1;
    return true;
}

/* The stream behind a handle; one that nobody was seen to make was there before. */
static bool find_stream(struct loader *l, uint64_t handle, uint32_t *number_p)
{
    struct tape_stream s = {.handle = handle, .flags = 1};
    uint64_t key = handle;

    if (handle == 0) {
        return fail(l, "no stream");
    }
    if (handle == LEGACY || handle == PER_THREAD) {
        s.flags = 0;
        s.thread = handle == PER_THREAD ? l->r.thread : 0;
        /* One a thread, or a device: below all handles. */
        key = handle == PER_THREAD ? UINT64_C(1) << 63 | l->r.thread
                                   : UINT64_C(3) << 62 | l->devices[l->r.thread];
    }
    return tape_map_get(&l->streams, key, number_p) || add_stream(l, &s, key, number_p);
}

static bool add_event(struct loader *l, uint64_t handle, uint32_t flags, bool created,
                      uint32_t *number_p)
{
    struct tape_cuda_event *at =
        append((void **)&l->t->cuda_events, &l->t->n_cuda_events, sizeof(*l->t->cuda_events));

    if (at == NULL || !tape_map_set(&l->cuda_events, handle, l->t->n_cuda_events - 1)) {
        return no_memory(l);
    }
    at->flags = flags;
    at->created = created;
    at->device = l->devices[l->r.thread];
    *number_p = l->t->n_cuda_events - 1;
    return true;
}

static bool find_event(struct loader *l, uint64_t handle, uint32_t *number_p)
{
    return tape_map_get(&l->cuda_events, handle, number_p) ||
           add_event(l, handle, 0, false, number_p);
}

static bool load_stream(struct loader *l)
{
    const uint64_t *f = l->r.field;
    struct tape_event *e = l->e;

    switch ((int)l->r.kind) {
    case PS_TAPE_STREAM_CREATE: {
        const struct tape_stream s = {
            .handle = f[0],
            .flags = (uint32_t)f[1] & 1,
            .priority = (int32_t)ps_tape_unzigzag(f[2]),
            .created = true,
        };

        return f[0] <= PER_THREAD ? fail(l, "no stream") : add_stream(l, &s, f[0], &e->stream);
    }
    case PS_TAPE_STREAM_WAIT:
        return find_stream(l, f[0], &e->stream) && find_event(l, f[1], &e->thing);
    case PS_TAPE_STREAM_QUERY:
        e->form = (uint32_t)f[1];
        return find_stream(l, f[0], &e->stream);
    case PS_TAPE_STREAM_DESTROY:
        if (f[0] <= PER_THREAD) {
            return fail(l, "no stream");
        }
        if (!find_stream(l, f[0], &e->stream)) {
            return false;
        }
        tape_map_remove(&l->streams, f[0]);
        return true;
    default:
        return find_stream(l, f[0], &e->stream);
    }
}

static bool load_event(struct loader *l)
{
    const uint64_t *f = l->r.field;
    struct tape_event *e = l->e;

    switch ((int)l->r.kind) {
    case PS_TAPE_EVENT_CREATE:
        /* Neither timing nor other processes matter. */
        return add_event(l, f[0], (uint32_t)f[1] & 1, true, &e->thing);
    case PS_TAPE_EVENT_RECORD:
        return find_event(l, f[0], &e->thing) && find_stream(l, f[1], &e->stream);
    case PS_TAPE_EVENT_QUERY:
        e->form = (uint32_t)f[1];
        return find_event(l, f[0], &e->thing);
    case PS_TAPE_EVENT_DESTROY:
        if (!find_event(l, f[0], &e->thing)) {
            return false;
        }
        tape_map_remove(&l->cuda_events, f[0]);
        return true;
    default:
        return find_event(l, f[0], &e->thing);
    }
}

/* ---- allocations ---- */

static bool load_alloc(struct loader *l)
{
    const uint64_t *f = l->r.field;
    const struct ps_span span = {f[2], f[3], l->t->n_allocs, f[4] != 0};

    if (f[0] > PS_TAPE_ALLOC_MANAGED || f[3] == 0 || f[2] + f[3] < f[2] || f[4] > 1) {
        return fail(l, "no allocation");
    }
    if (!find_stream(l, f[1], &l->e->stream)) {
        return false;
    }
    struct tape_alloc *a = append((void **)&l->t->allocs, &l->t->n_allocs, sizeof(*l->t->allocs));

    if (a == NULL || !ps_spans_add(&l->spans, &span)) {
        return no_memory(l);
    }
    a->bytes = tape_scaled(l->t, f[3]);
    a->form = (uint32_t)f[0];
    a->stream = l->e->stream;
    a->tensor = span.tensor;
    l->e->thing = span.number;
    l->t->counts[PS_TAPE_N_ALLOCS]++;
    l->t->counts[PS_TAPE_N_TENSORS] += span.tensor;
    return true;
}

static bool load_free(struct loader *l)
{
    const uint64_t *f = l->r.field;
    struct ps_span span;

    if (f[0] > PS_TAPE_ALLOC_SYNC || !find_stream(l, f[1], &l->e->stream)) {
        return l->t->error[0] == '\0' ? fail(l, "no free") : false;
    }
    l->e->form = (uint32_t)f[0];
    l->e->thing = TAPE_NONE; /* of something that was there before */
    l->t->counts[PS_TAPE_N_FREES]++;
    if (ps_spans_remove(&l->spans, f[2], &span)) {
        l->e->thing = span.number;
        l->t->allocs[span.number].freed = true;
        l->t->counts[PS_TAPE_N_TENSOR_FREES] += span.tensor;
    }
    return true;
}

/* ---- what a call names ---- */

static void names_begin(struct loader *l)
{
    l->named.n_live = 0;
    l->named.n_dead = 0;
    l->n_words = 0;
}

static bool names_end(struct loader *l)
{
    struct tape_event *e = l->e;

    l->t->counts[PS_TAPE_N_TOUCHES] += l->named.n_live;
    l->t->counts[PS_TAPE_N_STALE_TOUCHES] += l->named.n_dead;
    if (l->named.n_live == 0) {
        return true;
    }
    e->access = calloc(l->named.n_live, sizeof(*e->access));
    if (e->access == NULL) {
        return no_memory(l);
    }
    e->n_access = l->named.n_live;
    for (uint32_t i = 0; i < e->n_access; i++) {
        e->access[i].alloc = l->named.live[i];
    }
    return true;
}

/* An address of any allocation, or of a tensor that was freed. */
static void take_word(void *arg, uint32_t offset, uint64_t value)
{
    struct loader *l = arg;
    const struct ps_span *s = ps_spans_live(&l->spans, value);

    ps_named_add(&l->named, &l->spans, value);
    s = s != NULL ? s : ps_spans_dead(&l->spans, value);
    if (s == NULL) {
        return;
    }
    if (l->n_words == l->words_room) {
        const uint32_t room = l->words_room == 0 ? 256 : 2 * l->words_room;
        void *more = realloc(l->words, room * sizeof(*l->words));

        if (more == NULL) {
            no_memory(l);
            return;
        }
        l->words = more;
        l->words_room = room;
    }
    l->words[l->n_words++] = (struct tape_word){
        .at = offset + l->shift,
        .alloc = s->number,
        .delta = scaled_at(l, s, value),
    };
}

static bool keep_words(struct loader *l)
{
    if (l->n_words == 0 || l->t->error[0] != '\0') {
        return l->t->error[0] == '\0';
    }
    l->e->words = malloc(l->n_words * sizeof(*l->words));
    if (l->e->words == NULL) {
        return no_memory(l);
    }
    memcpy(l->e->words, l->words, l->n_words * sizeof(*l->words));
    l->e->n_words = l->n_words;
    return true;
}

/*
 * Other values that look like an address of the user's half could by chance be one of the replay's:
 * their upper half is cleared.
 */
static void neutralise(struct loader *l)
{
    struct tape_event *e = l->e;
    uint32_t next = 0;

    for (uint32_t at = 0; at + 8 <= e->n_raw; at += 4) {
        uint32_t high;

        while (next < e->n_words && e->words[next].at + 4 < at) {
            next++;
        }
        memcpy(&high, e->raw + at + 4, sizeof(high));
        bool mine = false; /* bytes [at + 4, at + 8) belong to a word that is kept */

        for (uint32_t i = next; i < e->n_words && e->words[i].at <= at + 4; i++) {
            mine = mine || e->words[i].at + 8 > at + 4;
        }
        if (!mine && high >= 0x1000 && high <= 0x7fff) {
            memset(e->raw + at + 4, 0, sizeof(high));
        }
    }
}

/* ---- launches ---- */

static bool load_function(struct loader *l)
{
    const uint64_t *f = l->r.field;
    const uint8_t *at = l->r.bytes, *const end = at + l->r.n_bytes;
    uint32_t name;

    if (f[2] > PS_NAMED_MAX || !tape_map_get(&l->strings, f[1], &name)) {
        return fail(l, "no function");
    }
    struct function *fn = append((void **)&l->list, &l->n_functions, sizeof(*fn));

    if (fn == NULL || !tape_map_set(&l->functions, f[0], l->n_functions - 1)) {
        return no_memory(l);
    }
    fn->params = calloc(f[2] + 1, sizeof(*fn->params));
    if (fn->params == NULL) {
        return no_memory(l);
    }
    fn->layout.params = fn->params;
    fn->layout.n = (uint32_t)f[2];
    for (uint32_t i = 0; i < fn->layout.n; i++) {
        uint64_t offset, size;

        if (!ps_tape_get_number(&at, end, &offset) || !ps_tape_get_number(&at, end, &size) ||
            offset > PS_TAPE_PARAMS_MAX || size > PS_TAPE_PARAMS_MAX - offset) {
            return fail(l, "no layout");
        }
        fn->params[i] = (struct ps_tape_param){(uint32_t)offset, (uint32_t)size};
    }
    return true;
}

/* The image of this launch, after its changes. */
static bool update_image(struct loader *l, struct function *fn, uint32_t bytes)
{
    if (bytes > fn->room) {
        uint8_t *more = realloc(fn->image, bytes);

        if (more == NULL) {
            return no_memory(l);
        }
        memset(more + fn->room, 0, bytes - fn->room);
        fn->image = more;
        fn->room = bytes;
    }
    return ps_tape_get_changes(l->r.bytes, l->r.n_bytes, fn->image, bytes)
               ? true
               : fail(l, "changes that do not fit");
}

/* Parameters one after the other at multiples of 8, so that 4-byte steps find what they found. */
static bool take_params(struct loader *l, const struct function *fn, uint32_t bytes)
{
    const struct ps_tape_layout none = {.n = 0};
    uint32_t n = 0;

    for (uint32_t i = 0; i < fn->layout.n; i++) {
        const struct ps_tape_param *p = &fn->params[i];

        if (p->size < 8 || p->offset + p->size > bytes) {
            continue;
        }
        if (n + p->size > TAPE_RAW_MAX) {
            return fail(l, "more parameters than the replay can pass on");
        }
        memcpy(l->e->raw + n, fn->image + p->offset, p->size);
        l->shift = n;
        ps_tape_each_word(&none, PS_TAPE_LAUNCH_PACKED, fn->image + p->offset, p->size, take_word,
                          l);
        n += (p->size + 7) / 8 * 8;
    }
    l->e->n_raw = n < TAPE_RAW_MAX ? n : TAPE_RAW_MAX;
    return true;
}

static bool take_packed(struct loader *l, const struct function *fn, uint32_t bytes)
{
    if (bytes > TAPE_RAW_MAX) {
        return fail(l, "more parameters than the replay can pass on");
    }
    memcpy(l->e->raw, fn->image, bytes);
    l->e->n_raw = bytes;
    l->shift = 0;
    ps_tape_each_word(&fn->layout, PS_TAPE_LAUNCH_PACKED, fn->image, bytes, take_word, l);
    return true;
}

static bool load_launch(struct loader *l)
{
    const uint64_t *f = l->r.field;
    uint32_t number;

    if (!tape_map_get(&l->functions, f[0], &number) || f[2] > PS_TAPE_LAUNCH_UNKNOWN ||
        f[10] > PS_TAPE_PARAMS_MAX || !find_stream(l, f[1], &l->e->stream)) {
        return l->t->error[0] == '\0' ? fail(l, "no launch") : false;
    }
    struct function *fn = &l->list[number];
    const uint32_t bytes = (uint32_t)f[10];

    l->e->form = (uint32_t)f[2];
    l->t->counts[PS_TAPE_N_LAUNCHES]++;
    l->t->n_left_out += f[2] == PS_TAPE_LAUNCH_UNKNOWN;
    names_begin(l);
    if (bytes != 0) {
        l->e->raw = calloc(1, (size_t)bytes + 8 * (size_t)fn->layout.n + 8);
        if (l->e->raw == NULL) {
            return no_memory(l);
        }
        if (!update_image(l, fn, bytes) ||
            !(f[2] == PS_TAPE_LAUNCH_PARAMS ? take_params(l, fn, bytes)
                                            : take_packed(l, fn, bytes))) {
            return false;
        }
    }
    if (!keep_words(l)) {
        return false;
    }
    neutralise(l);
    return names_end(l);
}

/* ---- copies and fills ---- */

static uint64_t extent_bytes(const uint64_t box[3], uint64_t pitch, uint64_t layer, bool *ok_p)
{
    const wide n = (wide)(box[2] - 1) * layer + (wide)(box[1] - 1) * pitch + box[0];

    *ok_p = n <= INT64_MAX;
    return (uint64_t)n;
}

/* What [address, address + bytes) became; also notes the tensor. */
static struct tape_extent take_extent(struct loader *l, uint64_t address, uint64_t bytes)
{
    struct tape_extent x = {.alloc = TAPE_NONE};
    const struct ps_span *s = ps_spans_live(&l->spans, address);

    ps_named_add(&l->named, &l->spans, address);
    ps_named_add(&l->named, &l->spans, address + bytes - 1);
    if (s == NULL) {
        return x;
    }
    const uint64_t now = l->t->allocs[s->number].bytes;
    const uint64_t room = s->bytes - (address - s->base);
    const uint64_t end = bytes >= room ? now : scaled_at(l, s, address + bytes);

    x.alloc = s->number;
    x.delta = scaled_at(l, s, address);
    x.bytes = end > x.delta ? end - x.delta : 1;
    return x;
}

static bool load_copy(struct loader *l)
{
    const uint64_t *f = l->r.field;
    bool dst_ok, src_ok;

    if (f[4] == 0 || f[5] == 0 || f[6] == 0 || f[0] > 31 || !find_stream(l, f[1], &l->e->stream)) {
        return l->t->error[0] == '\0' ? fail(l, "no copy") : false;
    }
    const uint64_t dst = extent_bytes(f + 4, f[7], f[8], &dst_ok);
    const uint64_t src = extent_bytes(f + 4, f[9], f[10], &src_ok);

    if (!dst_ok || !src_ok || l->r.n_bytes > (size_t)64 << 10) {
        return fail(l, "no copy");
    }
    l->e->form = (uint32_t)f[0];
    l->t->counts[PS_TAPE_N_COPIES]++;
    names_begin(l);
    l->e->dst = take_extent(l, f[2], dst);
    l->e->src = take_extent(l, f[3], src);
    if (!names_end(l)) {
        return false;
    }
    if (l->r.n_bytes != 0) {
        l->e->raw = malloc(l->r.n_bytes);
        if (l->e->raw == NULL) {
            return no_memory(l);
        }
        memcpy(l->e->raw, l->r.bytes, l->r.n_bytes);
        l->e->n_raw = (uint32_t)l->r.n_bytes;
        l->shift = 0;
        names_begin(l);
        ps_tape_each_word(&(struct ps_tape_layout){.n = 0}, PS_TAPE_LAUNCH_PACKED, l->e->raw,
                          l->e->n_raw, take_word, l);
        if (!keep_words(l)) {
            return false;
        }
        neutralise(l);
    }
    return true;
}

static bool load_fill(struct loader *l)
{
    const uint64_t *f = l->r.field;
    const uint64_t box[3] = {f[5] * f[3], f[6], 1};
    bool ok;

    if (f[3] == 0 || f[3] > 16 || f[5] == 0 || f[5] > INT64_MAX / 16 || f[6] == 0 || f[0] > 1 ||
        !find_stream(l, f[1], &l->e->stream)) {
        return l->t->error[0] == '\0' ? fail(l, "no fill") : false;
    }
    const uint64_t bytes = extent_bytes(box, f[7], 0, &ok);

    if (!ok) {
        return fail(l, "no fill");
    }
    l->e->form = (uint32_t)f[0];
    l->e->priority = (int32_t)(f[4] & 0xff);
    l->t->counts[PS_TAPE_N_FILLS]++;
    names_begin(l);
    l->e->dst = take_extent(l, f[2], bytes);
    l->e->src.alloc = TAPE_NONE;
    return names_end(l);
}

/* ---- the rest ---- */

static bool load_string(struct loader *l)
{
    char **at = append((void **)&l->t->strings, &l->t->n_strings, sizeof(*at));

    if (at == NULL || !tape_map_set(&l->strings, l->r.field[0], l->t->n_strings - 1)) {
        return no_memory(l);
    }
    *at = strndup((const char *)l->r.bytes, l->r.n_bytes);
    return *at != NULL ? true : no_memory(l);
}

static bool load_context(struct loader *l)
{
    const int64_t device = ps_tape_unzigzag(l->r.field[1]);

    if (device < -1 || device >= 64) {
        return fail(l, "no device");
    }
    l->e->thing = device < 0 ? 0 : (uint32_t)device;
    l->devices[l->r.thread] = l->e->thing;
    l->t->n_devices = l->e->thing >= l->t->n_devices ? l->e->thing + 1 : l->t->n_devices;
    return true;
}

static bool load_end(struct loader *l)
{
    memcpy(l->t->told, l->r.field, sizeof(l->t->told));
    l->t->ended = true;
    return true;
}

static bool load_record(struct loader *l)
{
    switch ((enum ps_tape_kind)l->r.kind) {
    case PS_TAPE_STRING:
        return load_string(l);
    case PS_TAPE_CONTEXT:
        return load_context(l);
    case PS_TAPE_FUNCTION:
        return load_function(l);
    case PS_TAPE_ALLOC:
        return load_alloc(l);
    case PS_TAPE_FREE:
        return load_free(l);
    case PS_TAPE_LAUNCH:
        return load_launch(l);
    case PS_TAPE_COPY:
        return load_copy(l);
    case PS_TAPE_FILL:
        return load_fill(l);
    case PS_TAPE_STREAM_CREATE:
    case PS_TAPE_STREAM_DESTROY:
    case PS_TAPE_STREAM_WAIT:
    case PS_TAPE_STREAM_SYNC:
    case PS_TAPE_STREAM_QUERY:
        return load_stream(l);
    case PS_TAPE_EVENT_CREATE:
    case PS_TAPE_EVENT_DESTROY:
    case PS_TAPE_EVENT_RECORD:
    case PS_TAPE_EVENT_SYNC:
    case PS_TAPE_EVENT_QUERY:
        return load_event(l);
    case PS_TAPE_PUSH:
    case PS_TAPE_CALL:
        l->t->n_left_out += l->r.kind == PS_TAPE_CALL;
        return tape_map_get(&l->strings, l->r.field[0], &l->e->thing) ? true : fail(l, "no string");
    case PS_TAPE_END:
        return load_end(l);
    case PS_TAPE_CONTEXT_SYNC:
    case PS_TAPE_POP:
    case PS_TAPE_KINDS_END:
        return true;
    }
    return true;
}

static bool load_all(struct loader *l)
{
    struct tape *t = l->t;

    while (!t->ended && ps_tape_next(&l->reader, &l->r)) {
        if (l->r.thread >= TAPE_THREADS_MAX) {
            return fail(l, "too many threads");
        }
        if (t->n_events == l->room) {
            const size_t room = l->room == 0 ? 4096 : 2 * l->room;
            void *more = realloc(t->events, room * sizeof(*t->events));

            if (more == NULL) {
                return no_memory(l);
            }
            t->events = more;
            l->room = room;
        }
        l->e = &t->events[t->n_events];
        *l->e = (struct tape_event){.kind = l->r.kind, .thread = l->r.thread};
        l->e->dst.alloc = TAPE_NONE;
        l->e->src.alloc = TAPE_NONE;
        t->n_events++;
        t->n_threads = l->r.thread >= t->n_threads ? l->r.thread + 1 : t->n_threads;
        if (!load_record(l)) {
            return false;
        }
    }
    t->cut = l->reader.cut || !t->ended;
    return l->reader.error == NULL ? true : fail(l, l->reader.error);
}

bool tape_load(struct tape *t, const void *data, size_t size, uint64_t scale)
{
    struct loader *l = calloc(1, sizeof(*l));
    bool ok = false;

    memset(t, 0, sizeof(*t));
    t->scale = scale == 0 ? 1 : scale;
    t->n_devices = 1;
    if (l == NULL) {
        snprintf(t->error, sizeof(t->error), "out of memory");
        return false;
    }
    l->t = t;
    if (ps_tape_open(&l->reader, data, size, &t->head)) {
        ok = load_all(l);
    } else {
        snprintf(t->error, sizeof(t->error), "%s", l->reader.error);
    }
    for (uint32_t i = 0; i < l->n_functions; i++) {
        free(l->list[i].params);
        free(l->list[i].image);
    }
    free(l->list);
    free(l->words);
    ps_spans_fini(&l->spans);
    tape_map_fini(&l->streams);
    tape_map_fini(&l->cuda_events);
    tape_map_fini(&l->strings);
    tape_map_fini(&l->functions);
    free(l);
    return ok;
}

void tape_fini(struct tape *t)
{
    for (size_t i = 0; i < t->n_events; i++) {
        free(t->events[i].access);
        free(t->events[i].words);
        free(t->events[i].raw);
    }
    for (uint32_t i = 0; i < t->n_strings; i++) {
        free(t->strings[i]);
    }
    free(t->strings);
    free(t->events);
    free(t->allocs);
    free(t->streams);
    free(t->cuda_events);
    memset(t, 0, sizeof(*t));
}
