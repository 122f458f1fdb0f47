/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See nccl.h. Operations between ncclGroupStart and the outermost ncclGroupEnd begin at that end: their buffers are
 * noted, per thread, and touched there. Of a communicator that does not block the work may begin after the call has
 * returned (ncclInProgress): then the buffers stay resident until they are freed, as registered ones do.
 *
 * Any thread; no lock. `next` holds the real functions: each goes from NULL to its value once. `group` is its thread's.
 */
#include "shim/nccl.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "policy/base/log.h"
#include "shim/dlsym.h"
#include "shim/entry.h"
#include "shim/hooks.h"

/* ncclResult_t */
#define NCCL_SUCCESS              0
#define NCCL_UNHANDLED_CUDA_ERROR 1
#define NCCL_SYSTEM_ERROR         2
#define NCCL_IN_PROGRESS          7

enum function {
#define OPERATION(_name, ...) F_##_name,
#define REGISTER(_name, ...)  F_##_name,
#include "shim/nccl.def"
#undef OPERATION
#undef REGISTER
    F_ncclGroupStart,
    F_ncclGroupEnd,
    N_FUNCTIONS
};

static _Atomic(void *) next[N_FUNCTIONS];

static const char *const names[N_FUNCTIONS] = {
#define OPERATION(_name, ...) #_name,
#define REGISTER(_name, ...)  #_name,
#include "shim/nccl.def"
#undef OPERATION
#undef REGISTER
    "ncclGroupStart",
    "ncclGroupEnd",
};

/* A buffer of ours that an operation of the open group names. */
struct named {
    uint64_t address;
    CUstream stream;
};

struct group {
    unsigned depth;
    size_t n, room;
    struct named *named;
};

static __thread struct group *group __attribute__((tls_model("initial-exec")));

/* ---- the real functions ---- */

static unsigned index_of(const char *name)
{
    unsigned i = 0;
    while (i < N_FUNCTIONS && strcmp(names[i], name) != 0) {
        i++;
    }
    return i;
}

bool ps_nccl_knows(const char *name)
{
    return index_of(name) < N_FUNCTIONS;
}

/* In the scope of who called us, else behind us, else by its usual name. */
static void *find_real(const char *name, const void *caller)
{
    Dl_info info;
    void *p = NULL;
    void *scope = dladdr(caller, &info) != 0 && info.dli_fname != NULL
                      ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                      : NULL;
    if (scope != NULL) {
        p = ps_libc_dlsym(scope, name);
        dlclose(scope);
    }
    if (p == NULL || ps_in_us(p)) {
        p = ps_libc_dlsym(RTLD_NEXT, name);
    }
    if (p == NULL) {
        scope = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
        p = scope != NULL ? ps_libc_dlsym(scope, name) : NULL;
        if (scope != NULL) {
            dlclose(scope);
        }
    }
    return p != NULL && !ps_in_us(p) ? p : NULL;
}

static void *real_function(enum function f, const void *caller)
{
    void *p = atomic_load_explicit(&next[f], memory_order_relaxed);
    if (p == NULL) {
        p = find_real(names[f], caller);
        void *none = NULL;
        if (p == NULL) {
            ps_error_once("%s is called, and no NCCL is found in the process: the call fails",
                          names[f]);
        } else if (!atomic_compare_exchange_strong(&next[f], &none, p)) {
            p = none;
        }
    }
    return p;
}

/* ---- what a call names ---- */

static bool watched(void)
{
    return ps_entry_active() && ps_hook_depth == 0 && ps_window_live();
}

/* False: no memory for the note. */
static bool note(const void *buffer, CUstream stream)
{
    const uint64_t address = (uint64_t)(uintptr_t)buffer;
    struct group *g = group;
    if (!ps_in_window(address)) {
        return true;
    }
    if (g->n == g->room) {
        const size_t room = g->room != 0 ? 2 * g->room : 16;
        struct named *more = realloc(g->named, room * sizeof(*more));
        if (more == NULL) {
            return false;
        }
        g->named = more;
        g->room = room;
    }
    g->named[g->n++] = (struct named){address, stream};
    return true;
}

/* Resident until they are freed. */
static CUresult pin(const struct named *named, size_t n)
{
    struct ps_touches t;
    ps_touches_init(&t);
    for (size_t i = 0; i < n; i++) {
        ps_scan_range(&t, named[i].address, 1);
    }
    return ps_touch_pin(&t, n > 0 ? named[0].stream : CU_STREAM_LEGACY);
}

/* The touches of one stream of what is named. */
struct on_stream {
    CUstream stream;
    struct ps_touches touch;
};

static bool is_first(const struct named *named, size_t i)
{
    size_t k = 0;
    while (named[k].stream != named[i].stream) {
        k++;
    }
    return k == i;
}

static size_t count_streams(const struct named *named, size_t n)
{
    size_t n_streams = 0;
    for (size_t i = 0; i < n; i++) {
        n_streams += is_first(named, i);
    }
    return n_streams;
}

static void leave(struct on_stream *streams, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (streams[i].touch.n != 0) {
            ps_touch_leave(&streams[i].touch, streams[i].stream);
        }
    }
}

/* All that is named becomes resident, each in the order of its stream. On failure nothing is held. */
static CUresult enter(const struct named *named, size_t n, struct on_stream *streams, size_t *n_p)
{
    CUresult r = CUDA_SUCCESS;
    *n_p = 0;
    for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++) {
        if (!is_first(named, i)) {
            continue;
        }
        struct on_stream *s = &streams[*n_p];
        struct ps_touches unused;
        s->stream = named[i].stream;
        ps_touches_init(&s->touch);
        ps_touches_init(&unused);
        for (size_t k = i; k < n; k++) {
            if (named[k].stream == s->stream) {
                ps_scan_range(&s->touch, named[k].address, 1);
            }
        }
        r = ps_hook_begin(&s->touch, &unused, s->stream);
        *n_p += r == CUDA_SUCCESS;
    }
    if (r != CUDA_SUCCESS) {
        leave(streams, *n_p);
    }
    return r;
}

/* ---- the wrappers ---- */

/* What surrounds the real call. */
struct call {
    struct named named[2];
    struct on_stream streams[1];
    size_t n, n_streams;
    int result; /* unless NCCL_SUCCESS: the call is not made */
};

static void before(struct call *c, CUstream stream, const void *a, const void *b)
{
    c->n = c->n_streams = 0;
    c->result = NCCL_SUCCESS;
    if (!watched()) {
        return;
    }
    if (group != NULL) {
        c->result =
            note(a, stream) && (a == b || note(b, stream)) ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
        return;
    }
    const void *const both[2] = {a, b};
    for (unsigned i = 0; i < (a == b ? 1 : 2); i++) {
        const uint64_t address = (uint64_t)(uintptr_t)both[i];
        if (ps_in_window(address)) {
            c->named[c->n++] = (struct named){address, stream};
        }
    }
    if (enter(c->named, c->n, c->streams, &c->n_streams) != CUDA_SUCCESS) {
        c->n = 0;
        c->result = NCCL_UNHANDLED_CUDA_ERROR;
    }
}

/* A failed pin leaves what is named out, with work that may yet begin: then the call is said to have failed. */
static int after(struct call *c, int result)
{
    if (c->n != 0 && result == NCCL_IN_PROGRESS && pin(c->named, c->n) != CUDA_SUCCESS) {
        result = NCCL_UNHANDLED_CUDA_ERROR;
    }
    leave(c->streams, c->n_streams);
    return result;
}

#define EXPORT(_name)                                                                              \
    extern __typeof__(ps_nccl_##_name)(_name)                                                      \
        __attribute__((alias("ps_nccl_" #_name), visibility("default")));

#define OPERATION(_name, _params, _args, _stream, _a, _b)                                          \
    int ps_nccl_##_name _params;                                                                   \
    int ps_nccl_##_name _params                                                                    \
    {                                                                                              \
        __typeof__(&ps_nccl_##_name) real =                                                        \
            (__typeof__(&ps_nccl_##_name))real_function(F_##_name, __builtin_return_address(0));   \
        struct call c;                                                                             \
        if (real == NULL) {                                                                        \
            return NCCL_SYSTEM_ERROR;                                                              \
        }                                                                                          \
        before(&c, _stream, _a, _b);                                                               \
        return c.result != NCCL_SUCCESS ? c.result : after(&c, real _args);                        \
    }                                                                                              \
    EXPORT(_name)

#define REGISTER(_name, _params, _args, _buffer, _bytes)                                           \
    int ps_nccl_##_name _params;                                                                   \
    int ps_nccl_##_name _params                                                                    \
    {                                                                                              \
        __typeof__(&ps_nccl_##_name) real =                                                        \
            (__typeof__(&ps_nccl_##_name))real_function(F_##_name, __builtin_return_address(0));   \
        if (real == NULL) {                                                                        \
            return NCCL_SYSTEM_ERROR;                                                              \
        }                                                                                          \
        return register_buffer(_buffer, _bytes) ? real _args : NCCL_UNHANDLED_CUDA_ERROR;          \
    }                                                                                              \
    EXPORT(_name)

static bool register_buffer(const void *buffer, size_t bytes)
{
    struct ps_touches t;
    ps_touches_init(&t);
    if (watched()) {
        ps_scan_range(&t, (uint64_t)(uintptr_t)buffer, bytes);
    }
    return ps_touch_pin(&t, CU_STREAM_LEGACY) == CUDA_SUCCESS;
}

#include "shim/nccl.def"

static void close_group(void)
{
    free(group->named);
    free(group);
    group = NULL;
}

int ps_nccl_ncclGroupStart(void);
int ps_nccl_ncclGroupStart(void)
{
    int (*real)(void) = (int (*)(void))real_function(F_ncclGroupStart, __builtin_return_address(0));
    if (real == NULL) {
        return NCCL_SYSTEM_ERROR;
    }
    if (group == NULL) {
        group = calloc(1, sizeof(*group));
        if (group == NULL) {
            return NCCL_SYSTEM_ERROR;
        }
    }
    group->depth++;
    const int result = real();
    if (result != NCCL_SUCCESS && --group->depth == 0) {
        close_group();
    }
    return result;
}
EXPORT(ncclGroupStart)

/* The outermost end: the operations begin. */
static int end_group(int (*real)(void))
{
    const size_t n_streams = count_streams(group->named, group->n);
    struct on_stream *streams = n_streams != 0 ? malloc(n_streams * sizeof(*streams)) : NULL;
    size_t n_entered = 0;
    int result = NCCL_SYSTEM_ERROR;

    if (n_streams == 0) {
        result = real();
    } else if (streams != NULL) {
        result = NCCL_UNHANDLED_CUDA_ERROR;
        if (enter(group->named, group->n, streams, &n_entered) == CUDA_SUCCESS) {
            result = real();
            if (result == NCCL_IN_PROGRESS && pin(group->named, group->n) != CUDA_SUCCESS) {
                result = NCCL_UNHANDLED_CUDA_ERROR;
            }
            leave(streams, n_entered);
        }
    }
    free(streams);
    close_group();
    return result;
}

int ps_nccl_ncclGroupEnd(void);
int ps_nccl_ncclGroupEnd(void)
{
    int (*real)(void) = (int (*)(void))real_function(F_ncclGroupEnd, __builtin_return_address(0));
    if (real == NULL) {
        return NCCL_SYSTEM_ERROR;
    }
    if (group == NULL || --group->depth > 0) {
        return real();
    }
    return end_group(real);
}
EXPORT(ncclGroupEnd)

/* ---- look-ups ---- */

static void *const wrappers[N_FUNCTIONS] = {
#undef OPERATION
#undef REGISTER
#define OPERATION(_name, ...) (void *)ps_nccl_##_name,
#define REGISTER(_name, ...)  (void *)ps_nccl_##_name,
#include "shim/nccl.def"
#undef OPERATION
#undef REGISTER
    (void *)ps_nccl_ncclGroupStart,
    (void *)ps_nccl_ncclGroupEnd,
};

void *ps_nccl_answer(const char *name, void *real)
{
    const unsigned i = index_of(name);
    void *known = NULL;
    if (i == N_FUNCTIONS || ps_in_us(real)) {
        return real;
    }
    if (atomic_compare_exchange_strong(&next[i], &known, real) || known == real) {
        return wrappers[i];
    }
    ps_warn_once("a second NCCL in the process: its %s is not watched", name);
    return real;
}
