/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which look-up gets which wrapper: the table made of hooks.def, the answers to dlsym and
 * cuGetProcAddress, and the real pointer behind each wrapper. Any thread; the table is constant,
 * the pointers are atomics set once: no lock, no allocation, and no log line before the first cu*
 * look-up.
 */
#ifndef PS_SHIM_INTERCEPT_H
#define PS_SHIM_INTERCEPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shim/cuda_api.h"

enum ps_hook_id {
#define HOOK(_symbol, ...)      PS_HOOK_##_symbol,
#define HOOK_BODY(_symbol, ...) PS_HOOK_##_symbol,
#include "shim/hooks.def"
#undef HOOK
#undef HOOK_BODY
    PS_N_HOOKS
};

struct ps_hook_row {
    const char *name;   /* as cuGetProcAddress knows it */
    const char *symbol; /* as libcuda exports it */
    int version;
    bool ptds;    /* a per-thread-default-stream variant */
    bool touches; /* an unknown newer form ends paging when called */
    void *wrapper;
};

extern const struct ps_hook_row ps_hook_table[PS_N_HOOKS];

/*
 * What a wrapper calls: the next one in the chain (another preloaded tool's, or libcuda's). Set
 * once, from NULL.
 */
extern _Atomic(void *) ps_hook_next[PS_N_HOOKS];

/* First row of that name, or NULL; *n_p rows follow one another. */
const struct ps_hook_row *ps_hook_find_name(const char *name, unsigned *n_p);
/* The row of an exported name, or NULL. */
const struct ps_hook_row *ps_hook_find_symbol(const char *symbol);
/*
 * The pointer behind a wrapper, looked up now if no look-up of the job gave it. NULL without a
 * driver.
 */
void *ps_hook_resolve(enum ps_hook_id id);
/* libcuda's own function, past every other tool; NULL without a driver. */
void *ps_hook_driver_function(enum ps_hook_id id);

/* cuGetProcAddress of some version, asked for one function; the real pointer or NULL. */
struct ps_proc_source {
    void *(*query)(const struct ps_proc_source *src, const char *name, int version,
                   cuuint64_t flags);
    void *get_proc_address;
};
/* What the job gets for `real`, which the real cuGetProcAddress answered. */
void *ps_answer_proc(const struct ps_proc_source *src, const char *name, int version,
                     cuuint64_t flags, void *real);
/* What the job gets for `real`, which the real dlsym answered for that symbol. */
void *ps_answer_symbol(const char *symbol, void *real);

/* ---- stubs for functions that we do not know (dlsym.S) ---- */
#define PS_N_STUBS 64
/*
 * A function that ends paging when it is first called and goes on to `real`; the same for the same
 * `real`.
 */
void *ps_stub_for(void *real, const char *name, int version);
/* Called by the stub itself: returns the function to go on to. */
void *ps_stub_called(unsigned index);
/* How many unknown forms were handed out, and how many were called. */
unsigned ps_stubs_made(void);
unsigned ps_stubs_called(void);

#endif
