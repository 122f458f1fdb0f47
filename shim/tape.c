/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is recorded of this process, for the tape and for the trace (trace.c): buffer, file, threads, names,
 * functions, allocations, counts. Any thread; all state is under `lock`, but for a thread's own, which only that
 * thread touches. Driver calls (names and layouts of functions, the current context) are made before the lock is
 * taken.
 */
#include "shim/tape.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "policy/base/log.h"
#include "policy/region.h"
#include "policy/spans.h"
#include "shim/driver.h"
#include "shim/hooks.h"
#include "shim/trace.h"

#define BUFFER_BYTES ((size_t)256 << 10)
#define N_BUCKETS    4096u
#define PARAMS_MAX   4096u

struct thread {
    struct thread *next; /* all of them, for as long as the process lives */
    uint32_t number;
    CUcontext context; /* of its last record */
    uint32_t ordinal;  /* of the next allocation of the open region */
    struct ps_region_stack stack;
};

struct text {
    struct text *next;
    uint64_t id;
    char text[];
};

struct function {
    struct function *next;
    CUfunction handle;
    uint64_t id;
    unsigned generation; /* of the query */
    bool known;          /* its layout is */
    char name[81];       /* for the trace */
    struct ps_tape_layout layout;
    uint8_t *image; /* parameters of its last launch */
    uint32_t room;
};

_Atomic bool ps_tape_flag;
static bool taping; /* else it is for the trace alone */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int fd = -1;
static uint8_t *buffer;
static size_t used;
static struct thread *threads;
static struct text *texts[N_BUCKETS];
static struct function *functions[N_BUCKETS];
static uint64_t last_time, n_texts, n_functions;
static uint32_t n_numbers, n_threads;
static struct ps_spans spans;
static struct ps_named named;
static uint64_t counts[PS_TAPE_N_COUNTS];
static struct ps_patterns patterns;     /* read-only after ps_tape_start */
static _Atomic unsigned generation = 1; /* incremented before modules go */

static __thread struct thread *self __attribute__((tls_model("initial-exec")));

/* ---- the file: lock held ---- */

static void give_up(const char *what)
{
    ps_warn("%s: %m; the %s ends here", what, taping ? "tape" : "trace");
    ps_trace_flag = ps_trace_flag && taping;
    taping = false;
    atomic_store_explicit(&ps_tape_flag, ps_trace_flag, memory_order_relaxed);
}

static bool open_file(void)
{
    char path[PS_OPT_TEXT_MAX + 128], pattern[PS_OPT_TEXT_MAX + 32];

    snprintf(pattern, sizeof(pattern), "%s/pagedstash-%%h-%%p.tape", ps_options.tape);
    ps_log_expand_path(pattern, path, sizeof(path));
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        give_up(path);
    }
    return fd >= 0;
}

static void flush(void)
{
    const uint8_t *from = buffer;

    if (used == 0 || (fd < 0 && !open_file())) {
        used = 0;
        return;
    }
    while (used > 0) {
        const ssize_t n = write(fd, from, used);

        if (n < 0 && errno != EINTR) {
            give_up("cannot write the tape");
            used = 0;
        } else if (n > 0) {
            from += n;
            used -= (size_t)n;
        }
    }
}

static uint8_t *room_for(size_t bytes)
{
    if (bytes > BUFFER_BYTES - used) {
        flush();
    }
    return buffer + used;
}

static uint64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A record whose bytes follow; `bytes` may be NULL, then the caller adds them. */
static void put(enum ps_tape_kind kind, const uint64_t *fields, const void *bytes, size_t n_bytes)
{
    if (!taping) {
        return;
    }
    const int n_fields = ps_tape_n_fields((uint32_t)kind);
    struct ps_tape_record r = {.kind = (uint32_t)kind, .n_bytes = n_bytes};
    const uint64_t time = now();

    r.thread = self->number;
    for (int i = 0; i < n_fields; i++) {
        r.field[i] = fields[i];
    }
    uint8_t *to = room_for(PS_TAPE_HEAD_MAX + n_bytes);

    used += ps_tape_put_record(to, &r, last_time == 0 ? 0 : time - last_time);
    if (n_bytes != 0) {
        memcpy(buffer + used, bytes, n_bytes);
        used += n_bytes;
    }
    last_time = time;
}

/* ---- entering ---- */

static bool first_record(void)
{
    struct ps_tape_head head = {
        .min_bytes = ps_options.min_bytes,
        .pid = (uint64_t)getpid(),
        .unix_time = (uint64_t)time(NULL),
    };

    buffer = malloc(BUFFER_BYTES);
    if (buffer == NULL) {
        give_up("no memory for the tape");
        return false;
    }
    snprintf(head.regions, sizeof(head.regions), "%.255s", ps_options.regions);
    used = ps_tape_put_head(buffer, &head);
    return true;
}

static bool have_thread(void)
{
    if (self == NULL) {
        self = calloc(1, sizeof(*self));
        if (self == NULL) {
            give_up("no memory for the tape");
            return false;
        }
        self->number = n_threads++;
        self->next = threads;
        threads = self;
    }
    return true;
}

/* True with the lock held. */
static bool enter(void)
{
    pthread_mutex_lock(&lock);
    if (ps_tape_on() && (!taping || buffer != NULL || first_record()) && have_thread()) {
        return true;
    }
    pthread_mutex_unlock(&lock);
    return false;
}

/* Likewise; also tells in which context the thread is. */
static bool enter_call(void)
{
    CUcontext context = NULL;
    CUdevice device = -1;

    if (ps_driver.cuCtxGetCurrent == NULL || ps_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS) {
        context = NULL;
    }
    if (context != NULL && (self == NULL || self->context != context) &&
        ps_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) {
        device = -1;
    }
    if (!enter()) {
        return false;
    }
    if (context != NULL && self->context != context) {
        const uint64_t fields[] = {(uint64_t)(uintptr_t)context, ps_tape_zigzag(device)};

        self->context = context;
        put(PS_TAPE_CONTEXT, fields, NULL, 0);
        ps_trace_context(self->number, context, device);
    }
    return true;
}

static void leave(int saved_errno)
{
    pthread_mutex_unlock(&lock);
    errno = saved_errno;
}

static unsigned hash_text(const char *text)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (; *text != '\0'; text++) {
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return (unsigned)(h >> 32) % N_BUCKETS;
}

/* Number of a name, told once. */
static uint64_t intern(const char *text)
{
    struct text **head = &texts[hash_text(text)];
    const size_t n = strlen(text);

    for (const struct text *t = *head; t != NULL; t = t->next) {
        if (strcmp(t->text, text) == 0) {
            return t->id;
        }
    }
    const uint64_t id = n_texts++;

    put(PS_TAPE_STRING, &id, text, n < 4096 ? n : 4096);
    struct text *t = malloc(sizeof(*t) + n + 1);

    if (t != NULL) { /* else it is told again next time */
        t->next = *head;
        t->id = id;
        memcpy(t->text, text, n + 1);
        *head = t;
    }
    return id;
}

/* ---- simple records ---- */

void ps_tape_put(enum ps_tape_kind kind, const uint64_t *fields)
{
    const int saved = errno;

    if (enter_call()) {
        put(kind, fields, NULL, 0);
        leave(saved);
    }
}

void ps_tape_put_call(const char *name, CUstream stream)
{
    const int saved = errno;

    if (enter_call()) {
        const uint64_t fields[] = {intern(name), (uint64_t)(uintptr_t)stream};

        put(PS_TAPE_CALL, fields, NULL, 0);
        leave(saved);
    }
}

void ps_tape_push(const char *name)
{
    const int saved = errno;
    char region[PS_REGION_NAME_MAX];

    if (!enter()) {
        return;
    }
    const uint64_t id = intern(name);
    const bool matches = ps_patterns_match(&patterns, name, region);
    const uint32_t number = matches ? (uint32_t)intern(region) + 1 : 0;

    put(PS_TAPE_PUSH, &id, NULL, 0);
    ps_trace_tell_small(self->number);
    ps_trace_mark(self->number, "push", name);
    const enum ps_region_act act = ps_region_stack_push(&self->stack, number);

    self->ordinal = act == PS_REGION_OPEN || act == PS_REGION_CLOSE_OPEN ? 0 : self->ordinal;
    leave(saved);
}

void ps_tape_pop(void)
{
    const int saved = errno;

    if (enter()) {
        put(PS_TAPE_POP, NULL, NULL, 0);
        ps_trace_mark(self->number, "pop", NULL);
        ps_region_stack_pop(&self->stack);
        leave(saved);
    }
}

/* ---- allocations ---- */

void ps_tape_put_alloc(unsigned form, CUstream stream, CUdeviceptr ptr, size_t bytes)
{
    const int saved = errno;

    if (!enter_call()) {
        return;
    }
    const bool tensor = (form == PS_TAPE_ALLOC_ASYNC || form == PS_TAPE_ALLOC_POOL) &&
                        self->stack.open_depth != 0 && bytes >= ps_options.min_bytes;
    const struct ps_span span = {ptr, bytes, n_numbers++, tensor};
    const uint64_t fields[] = {form, (uint64_t)(uintptr_t)stream, ptr, bytes, tensor};

    counts[PS_TAPE_N_TENSORS] += tensor;
    counts[PS_TAPE_N_ALLOCS]++;
    if (!ps_spans_add(&spans, &span)) {
        give_up("no memory for the tape");
    }
    put(PS_TAPE_ALLOC, fields, NULL, 0);
    const bool region = form <= PS_TAPE_ALLOC_POOL && self->stack.open_depth != 0;

    ps_trace_alloc(self->number, &span, form, stream, region ? self->ordinal++ : PS_TRACE_OUTSIDE);
    leave(saved);
}

void ps_tape_put_free(unsigned form, CUstream stream, CUdeviceptr ptr)
{
    const int saved = errno;
    struct ps_span span;

    if (!enter_call()) {
        return;
    }
    const uint64_t fields[] = {form, (uint64_t)(uintptr_t)stream, ptr};

    counts[PS_TAPE_N_FREES]++;
    if (ps_spans_remove(&spans, ptr, &span)) {
        counts[PS_TAPE_N_TENSOR_FREES] += span.tensor;
        ps_trace_free(self->number, &span, form, stream);
    }
    put(PS_TAPE_FREE, fields, NULL, 0);
    leave(saved);
}

/* ---- what a call names ---- */

static void name_word(void *arg, uint32_t offset, uint64_t word)
{
    (void)arg;
    (void)offset;
    ps_named_add(&named, &spans, word);
}

static void names_begin(void)
{
    named.n_live = named.n_dead = 0;
}

static void name_range(CUdeviceptr address, size_t bytes)
{
    if (bytes != 0) {
        ps_named_add(&named, &spans, address);
        ps_named_add(&named, &spans, address + bytes - 1);
    }
}

static void names_end(void)
{
    counts[PS_TAPE_N_TOUCHES] += named.n_live;
    counts[PS_TAPE_N_STALE_TOUCHES] += named.n_dead;
}

/* ---- launches ---- */

void ps_tape_purge(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}

static struct function **bucket_of(CUfunction f)
{
    return &functions[(((uintptr_t)f * UINT64_C(0x9e3779b97f4a7c15)) >> 52) % N_BUCKETS];
}

static struct function *find_function(CUfunction f)
{
    struct function *found = *bucket_of(f);

    while (found != NULL && found->handle != f) {
        found = found->next;
    }
    return found;
}

struct answer {
    bool known;
    uint32_t n;
    const char *name;
    struct ps_tape_param params[PARAMS_MAX];
};

static CUresult param_info(CUfunction f, bool kernel, size_t i, size_t *offset_p, size_t *size_p)
{
    return kernel ? ps_driver.cuKernelGetParamInfo((CUkernel)(void *)f, i, offset_p, size_p)
                  : ps_driver.cuFuncGetParamInfo(f, i, offset_p, size_p);
}

static void ask_params(CUfunction f, struct answer *a)
{
    size_t offset = 0, size = 0;
    bool kernel = false;

    if (ps_driver.cuFuncGetParamInfo == NULL || ps_driver.cuKernelGetParamInfo == NULL) {
        return;
    }
    CUresult r = param_info(f, false, 0, &offset, &size);

    if (r != CUDA_SUCCESS) {
        kernel = true;
        const CUresult second = param_info(f, true, 0, &offset, &size);

        /* One that has no parameters says so by either. */
        a->known = r == CUDA_ERROR_INVALID_VALUE || second == CUDA_ERROR_INVALID_VALUE;
        r = second;
    }
    while (r == CUDA_SUCCESS && a->n < PARAMS_MAX && offset + size <= PS_TAPE_PARAMS_MAX) {
        a->params[a->n++] = (struct ps_tape_param){(uint32_t)offset, (uint32_t)size};
        r = param_info(f, kernel, a->n, &offset, &size);
        a->known = r == CUDA_ERROR_INVALID_VALUE;
    }
    a->name = "";
    if (ps_driver.cuFuncGetName == NULL || ps_driver.cuKernelGetName == NULL ||
        ps_driver.cuFuncGetName(&a->name, f) == CUDA_SUCCESS ||
        ps_driver.cuKernelGetName(&a->name, (CUkernel)(void *)f) == CUDA_SUCCESS) {
        return;
    }
    a->name = "";
}

/* No lock held: asking may load the function. */
static void ask(CUfunction f, struct answer *a)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool swapped = ps_driver.cuThreadExchangeStreamCaptureMode != NULL &&
                         ps_driver.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;

    ask_params(f, a);
    if (swapped) {
        ps_driver.cuThreadExchangeStreamCaptureMode(&mode);
    }
}

static bool same_layout(const struct function *known, const struct answer *a)
{
    return known->known == a->known && known->layout.n == a->n &&
           memcmp(known->layout.params, a->params, a->n * sizeof(a->params[0])) == 0;
}

static void tell_function(const struct function *fn, const struct answer *a)
{
    uint8_t *bytes = malloc((size_t)a->n * 2 * PS_TAPE_VARINT_MAX + 1);
    const uint64_t fields[] = {fn->id, intern(a->name == NULL ? "" : a->name), a->n};
    size_t n = 0;

    if (bytes == NULL) {
        give_up("no memory for the tape");
        return;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        n += ps_tape_put_number(bytes + n, a->params[i].offset);
        n += ps_tape_put_number(bytes + n, a->params[i].size);
    }
    put(PS_TAPE_FUNCTION, fields, bytes, n);
    free(bytes);
}

/* The function's entry, made anew when its handle came back for another kernel. NULL: no memory. */
static struct function *learn(CUfunction f, const struct answer *a, unsigned seen)
{
    struct function *old = find_function(f);

    if (old != NULL && same_layout(old, a)) {
        old->generation = seen;
        return old;
    }
    struct function *fn = calloc(1, sizeof(*fn));
    struct ps_tape_param *params = calloc((size_t)a->n + 1, sizeof(*params));

    if (fn == NULL || params == NULL) {
        free(fn);
        free(params);
        return NULL;
    }
    memcpy(params, a->params, a->n * sizeof(*params));
    *fn = (struct function){.handle = f, .id = n_functions++, .generation = seen};
    fn->known = a->known;
    snprintf(fn->name, sizeof(fn->name), "%s", a->name == NULL ? "" : a->name);
    fn->layout.n = a->n;
    fn->layout.params = params;
    for (uint32_t i = 0; i < a->n; i++) {
        const uint32_t end = params[i].offset + params[i].size;

        fn->layout.bytes = end > fn->layout.bytes ? end : fn->layout.bytes;
    }
    fn->next = *bucket_of(f);
    *bucket_of(f) = fn;
    tell_function(fn, a);
    return fn;
}

/* The bytes of a launch, in one piece; *form_p what they are. */
static uint32_t gather(const struct function *fn, const struct ps_tape_launch *l, uint8_t *image,
                       unsigned *form_p)
{
    const void *packed = NULL;
    size_t bytes = 0;

    *form_p = PS_TAPE_LAUNCH_UNKNOWN;
    if (l->params != NULL && fn->known) {
        *form_p = PS_TAPE_LAUNCH_PARAMS;
        for (uint32_t i = 0; i < fn->layout.n; i++) {
            const struct ps_tape_param *p = &fn->layout.params[i];

            memcpy(image + p->offset, l->params[i], p->size);
        }
        return fn->layout.bytes;
    }
    for (void *const *e = l->extra; e != NULL && *e != CU_LAUNCH_PARAM_END; e += 2) {
        if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            packed = e[1];
        } else if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            memcpy(&bytes, e[1], sizeof(bytes));
        }
    }
    if (packed != NULL && bytes <= PS_TAPE_PARAMS_MAX) {
        *form_p = PS_TAPE_LAUNCH_PACKED;
        memcpy(image, packed, bytes);
        return (uint32_t)bytes;
    }
    return 0;
}

static bool grow_image(struct function *fn, uint32_t bytes)
{
    if (bytes > fn->room) {
        uint8_t *more = realloc(fn->image, bytes);

        if (more == NULL) {
            return false;
        }
        memset(more + fn->room, 0, bytes - fn->room);
        fn->image = more;
        fn->room = bytes;
    }
    return true;
}

static void put_launch(struct function *fn, const struct ps_tape_launch *l)
{
    static uint8_t image[PS_TAPE_PARAMS_MAX]; /* under the lock */
    static uint8_t changes[PS_TAPE_PARAMS_MAX * 2];
    unsigned form;

    memset(image, 0, fn->layout.bytes);
    const uint32_t bytes = gather(fn, l, image, &form);

    if (!grow_image(fn, bytes)) {
        give_up("no memory for the tape");
        return;
    }
    const size_t n = taping ? ps_tape_put_changes(changes, fn->image, image, bytes) : 0;
    const uint64_t fields[] = {
        fn->id,      (uint64_t)(uintptr_t)l->stream,
        form,        l->grid[0],
        l->grid[1],  l->grid[2],
        l->block[0], l->block[1],
        l->block[2], l->shared,
        bytes,
    };

    if (bytes != 0) {
        memcpy(fn->image, image, bytes);
    }
    put(PS_TAPE_LAUNCH, fields, changes, n);
    counts[PS_TAPE_N_LAUNCHES]++;
    names_begin();
    ps_tape_each_word(&fn->layout, form, image, bytes, name_word, NULL);
    names_end();
    ps_trace_launch(self->number, l->stream, &named, fn->name);
}

void ps_tape_put_launch(const struct ps_tape_launch *l)
{
    const int saved = errno;
    const unsigned seen = atomic_load_explicit(&generation, memory_order_relaxed);

    if (!enter_call()) {
        return;
    }
    struct function *fn = find_function(l->f);

    if (fn == NULL || fn->generation != seen) {
        pthread_mutex_unlock(&lock);
        struct answer *a = calloc(1, sizeof(*a));

        if (a != NULL) {
            ask(l->f, a);
        }
        if (!enter()) {
            free(a);
            errno = saved;
            return;
        }
        fn = a == NULL ? NULL : learn(l->f, a, seen);
        free(a);
    }
    if (fn == NULL) {
        give_up("no memory for the tape");
    } else {
        put_launch(fn, l);
    }
    leave(saved);
}

/* ---- copies and fills ---- */

static void interesting(void *arg, uint32_t offset, uint64_t word)
{
    (void)offset;
    if (ps_spans_live(&spans, word) != NULL || ps_spans_dead(&spans, word) != NULL) {
        *(bool *)arg = true;
    }
}

/* The host bytes of a copy, when an address may be among them. */
static size_t payload_of(const struct ps_tape_copy *c, const uint8_t **from_p)
{
    bool wanted = false;

    if ((c->form & PS_TAPE_SRC_HOST) == 0 || (c->form & PS_TAPE_DST_HOST) != 0 || c->height != 1 ||
        c->depth != 1 || c->width < 8 || c->width > PS_PAYLOAD_MAX || c->src == 0) {
        return 0;
    }
    *from_p = (const uint8_t *)(uintptr_t)c->src;
    const struct ps_tape_layout none = {.n = 0};

    ps_tape_each_word(&none, PS_TAPE_LAUNCH_PACKED, *from_p, (uint32_t)c->width, interesting,
                      &wanted);
    return wanted ? c->width : 0;
}

static size_t extent(size_t width, size_t height, size_t depth, size_t pitch, size_t layer)
{
    return width == 0 || height == 0 || depth == 0
               ? 0
               : (depth - 1) * layer + (height - 1) * pitch + width;
}

void ps_tape_put_copy(const struct ps_tape_copy *c)
{
    const int saved = errno;
    const uint8_t *payload = NULL;

    if (!enter_call()) {
        return;
    }
    const size_t n = payload_of(c, &payload);
    const uint64_t fields[] = {
        c->form,      (uint64_t)(uintptr_t)c->stream,
        c->dst,       c->src,
        c->width,     c->height,
        c->depth,     c->dst_pitch,
        c->dst_layer, c->src_pitch,
        c->src_layer,
    };

    put(PS_TAPE_COPY, fields, payload, n);
    counts[PS_TAPE_N_COPIES]++;
    names_begin();
    name_range(c->dst, extent(c->width, c->height, c->depth, c->dst_pitch, c->dst_layer));
    name_range(c->src, extent(c->width, c->height, c->depth, c->src_pitch, c->src_layer));
    names_end();
    ps_trace_copy(self->number, c, &named);
    leave(saved);
}

void ps_tape_put_fill(const struct ps_tape_fill *f)
{
    const int saved = errno;

    if (!enter_call()) {
        return;
    }
    const uint64_t fields[] = {
        f->form,  (uint64_t)(uintptr_t)f->stream, f->dst, f->element, f->value, f->width, f->height,
        f->pitch,
    };

    put(PS_TAPE_FILL, fields, NULL, 0);
    counts[PS_TAPE_N_FILLS]++;
    names_begin();
    name_range(f->dst, extent(f->width * f->element, f->height, 1, f->pitch, 0));
    names_end();
    ps_trace_fill(self->number, f, &named);
    leave(saved);
}

uint32_t ps_trace_number(uint64_t base)
{
    const int saved = errno;
    uint32_t number = PS_TRACE_NOBODY;

    if (ps_tape_on() && enter()) {
        const struct ps_span *span = ps_spans_live(&spans, base);

        number = span != NULL && span->tensor && span->base == base ? span->number : number;
        leave(saved);
    }
    return number;
}

void ps_trace_valid(uint32_t number, uint64_t bytes)
{
    const int saved = errno;

    if (number != PS_TRACE_NOBODY && ps_tape_on() && enter()) {
        ps_trace_tell_valid(self->number, number, bytes);
        leave(saved);
    }
}

/* ---- start and end ---- */

void ps_tape_start(void)
{
    ps_patterns_init(&patterns, ps_options.regions);
    taping = ps_options.tape[0] != '\0';
    if (ps_options.trace[0] != '\0') {
        ps_trace_start();
    }
    atomic_store_explicit(&ps_tape_flag, true, memory_order_relaxed);
}

void ps_tape_exit(void)
{
    if (!ps_tape_on() || !enter()) {
        return;
    }
    put(PS_TAPE_END, counts, NULL, 0);
    flush();
    if (fd >= 0) {
        close(fd);
    }
    if (ps_trace_flag && n_numbers != 0) {
        ps_trace_tell_small(self->number);
        ps_trace_mark(self->number, "end", NULL);
    }
    ps_trace_end();
    atomic_store_explicit(&ps_tape_flag, false, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

void ps_tape_forked(void)
{
    if (!taping && n_threads == 0) {
        pthread_mutex_init(&lock, NULL); /* nothing was recorded: like any other process */
        return;
    }
    atomic_store_explicit(&ps_tape_flag, false, memory_order_relaxed);
}
