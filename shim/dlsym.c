/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C side of the dlsym hook. It runs for every dlsym of the process, in any thread, before
 * constructors and before a sanitizer's run-time is up: so nothing is called until the name is one
 * of ours, and those parts are not instrumented.
 *
 * Two dlsyms are told apart. The *next* one may be another preloaded tool's, and is what the job's
 * look-up goes on to. libc's own is used for ours. They are found once; the atomics below go from
 * NULL to their value.
 */
#include "shim/cuda_api.h"

#include "shim/dlsym.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "shim/driver.h"
#include "shim/entry.h"
#include "shim/intercept.h"
#include "shim/nccl.h"
#include "shim/nvtx.h"

#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

typedef void *(*dlsym_fn)(void *, const char *);

/* Read by dlsym.S. */
extern _Atomic(dlsym_fn) ps_dlsym_next __attribute__((visibility("hidden")));
_Atomic(dlsym_fn) ps_dlsym_next;
static _Atomic(dlsym_fn) libc_dlsym;

static _Atomic uintptr_t
    cuda_base; /* stored before cuda_bytes, whose release pairs with the acquire of readers */
static _Atomic uintptr_t cuda_bytes;
static _Atomic(void *) cuda_handle;

extern const char ps_self_start __asm__("__ehdr_start") __attribute__((visibility("hidden")));
extern const char ps_self_end __asm__("_end") __attribute__((visibility("hidden")));

static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.27"};

static EARLY void *find_nothing(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}

static EARLY dlsym_fn find_version(void *handle)
{
    for (unsigned i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        const dlsym_fn f = (dlsym_fn)dlvsym(handle, "dlsym", versions[i]);

        if (f != NULL) {
            return f;
        }
    }
    return NULL;
}

static EARLY bool is_libc_name(const char *path)
{
    const char *name = path;

    for (const char *p = path; *p != '\0'; p++) {
        name = *p == '/' ? p + 1 : name;
    }
    return name[0] == 'l' && name[1] == 'i' && name[2] == 'b' &&
           ((name[3] == 'c' && (name[4] == '.' || name[4] == '-')) ||
            (name[3] == 'd' && name[4] == 'l' && (name[5] == '.' || name[5] == '-')));
}

/* dlvsym passes over a tool whose dlsym has no version; libc's dlsym does not. */
static EARLY dlsym_fn find_unversioned(dlsym_fn found)
{
    Dl_info info;

    if (dladdr((const void *)found, &info) == 0 || info.dli_fname == NULL ||
        !is_libc_name(info.dli_fname)) {
        return found;
    }
    void *volatile p = found(RTLD_NEXT, "dlsym"); /* not a jump: RTLD_NEXT must mean after us */

    return p == NULL ? found : (dlsym_fn)p;
}

EARLY void *ps_dlsym_find_next(void)
{
    dlsym_fn f = atomic_load_explicit(&ps_dlsym_next, memory_order_relaxed);

    if (f == NULL) {
        f = find_version(RTLD_NEXT);
        f = f == NULL ? find_nothing : find_unversioned(f);
        atomic_store_explicit(&ps_dlsym_next, f, memory_order_relaxed);
    }
    return (void *)f;
}

/* The handles stay open: libc and libdl are never unloaded. */
static dlsym_fn find_libc(void)
{
    static const char *const libs[] = {"libc.so.6", "libdl.so.2"};

    for (unsigned i = 0; i < 2; i++) {
        void *lib = dlopen(libs[i], RTLD_LAZY | RTLD_NOLOAD);
        const dlsym_fn f = lib == NULL ? NULL : find_version(lib);

        if (f != NULL) {
            return f;
        }
    }
    return (dlsym_fn)ps_dlsym_find_next();
}

void *ps_libc_dlsym(void *handle, const char *name)
{
    dlsym_fn f = atomic_load_explicit(&libc_dlsym, memory_order_relaxed);

    if (f == NULL) {
        f = find_libc();
        atomic_store_explicit(&libc_dlsym, f, memory_order_relaxed);
    }
    void *volatile p = f(handle, name); /* not a jump: RTLD_NEXT must mean after us */

    return p;
}

bool ps_in_us(const void *p)
{
    return (const char *)p >= &ps_self_start && (const char *)p < &ps_self_end;
}

/* ---- libcuda ---- */

EARLY bool ps_in_libcuda(const void *p)
{
    const uintptr_t bytes = atomic_load_explicit(&cuda_bytes, memory_order_acquire);

    return (uintptr_t)p - atomic_load_explicit(&cuda_base, memory_order_relaxed) < bytes;
}

struct extent {
    uintptr_t inside; /* an address of the object looked for */
    uintptr_t base, end;
};

static int find_extent(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct extent *e = arg;
    uintptr_t low = UINTPTR_MAX, high = 0;

    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];

        if (ph->p_type == PT_LOAD) {
            const uintptr_t from = info->dlpi_addr + ph->p_vaddr;

            low = from < low ? from : low;
            high = from + ph->p_memsz > high ? from + ph->p_memsz : high;
        }
    }
    if (e->inside < low || e->inside >= high) {
        return 0;
    }
    e->base = low;
    e->end = high;
    return 1;
}

static bool is_libcuda_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return strncmp(slash == NULL ? path : slash + 1, "libcuda.so", 10) == 0;
}

static void publish_extent(const void *p)
{
    struct extent e = {.inside = (uintptr_t)p};

    if (dl_iterate_phdr(find_extent, &e) == 1 &&
        atomic_load_explicit(&cuda_bytes, memory_order_acquire) == 0) {
        /* Threads that race here store the same values: a process loads one libcuda. */
        atomic_store_explicit(&cuda_base, e.base, memory_order_relaxed);
        atomic_store_explicit(&cuda_bytes, e.end - e.base, memory_order_release);
    }
}

bool ps_libcuda_learn(const void *p)
{
    Dl_info info;

    if (ps_in_libcuda(p)) {
        return true;
    }
    if (atomic_load_explicit(&cuda_bytes, memory_order_acquire) != 0) {
        return false;
    }
    if (dladdr(p, &info) == 0 || info.dli_fname == NULL || !is_libcuda_name(info.dli_fname)) {
        return false;
    }
    publish_extent(p);
    /* Loaded by a path, it may not be found by its soname. */
    if (atomic_load_explicit(&cuda_handle, memory_order_relaxed) == NULL) {
        atomic_store_explicit(&cuda_handle, dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD),
                              memory_order_relaxed);
    }
    return true;
}

/* The reference is kept: a job that unloads libcuda would leave our pointers dangling. */
void *ps_libcuda_handle(void)
{
    void *lib = atomic_load_explicit(&cuda_handle, memory_order_relaxed);

    if (lib != NULL) {
        return lib;
    }
    lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (lib == NULL) {
        return NULL;
    }
    const void *p = ps_libc_dlsym(lib, "cuInit");

    if (p != NULL) {
        publish_extent(p);
    }
    atomic_store_explicit(&cuda_handle, lib, memory_order_relaxed);
    return lib;
}

/* ---- the decision ---- */

static const struct ps_dlsym_answer go_on = {NULL, 0};

static struct ps_dlsym_answer answer(void *value)
{
    return (struct ps_dlsym_answer){value, 1};
}

/*
 * What RTLD_DEFAULT would find if we exported nothing: after us in the global scope, else in the
 * caller's own scope.
 */
static void *find_default(const char *name, const void *caller)
{
    Dl_info info;
    void *p = ps_libc_dlsym(RTLD_NEXT, name);

    if (p != NULL || dladdr(caller, &info) == 0 || info.dli_fname == NULL) {
        return p;
    }
    void *scope = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);

    if (scope != NULL) {
        p = ps_libc_dlsym(scope, name);
        dlclose(scope);
    }
    return p != NULL && !ps_in_us(p) ? p : ps_libc_dlsym(RTLD_NEXT, name); /* leaves its dlerror */
}

static struct ps_dlsym_answer decide_default(const char *name, const void *caller)
{
    void *p = find_default(name, caller);

    if (p == NULL || ps_hook_find_symbol(name) == NULL) {
        return answer(p);
    }
    /*
     * Of another tool that stands before libcuda, or libcuda's. Without libcuda it is none of our
     * business.
     */
    if (!ps_libcuda_learn(p) && ps_libcuda_handle() == NULL) {
        return answer(p);
    }
    return answer(ps_driver_init() ? ps_answer_symbol(name, p) : p);
}

static struct ps_dlsym_answer decide_cuda(void *handle, const char *name, const void *caller)
{
    if (handle == RTLD_DEFAULT) {
        return decide_default(name, caller);
    }
    const dlsym_fn next = (dlsym_fn)ps_dlsym_find_next();
    void *p = next(handle, name);

    if (p == NULL) {
        return go_on; /* once more, so that dlerror is the caller's */
    }
    if (ps_in_us(p)) {
        return decide_default(name, caller); /* the main program's handle */
    }
    if (!ps_libcuda_learn(p)) {
        const void *own = ps_libc_dlsym(handle, name);

        if (own == p || own == NULL || !ps_libcuda_learn(own)) {
            return go_on; /* the program's own function of such a name */
        }
    }
    return ps_driver_init() ? answer(ps_answer_symbol(name, p)) : go_on;
}

static EARLY bool is_cuda_name(const char *name)
{
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

static EARLY bool is_nccl_name(const char *name)
{
    return name[0] == 'n' && name[1] == 'c' && name[2] == 'c' && name[3] == 'l' && name[4] >= 'A' &&
           name[4] <= 'Z';
}

/* Our exports must not make a probe for NCCL succeed, and a function of NCCL's that is found is watched. */
static struct ps_dlsym_answer decide_nccl(void *handle, const char *name, const void *caller)
{
    const dlsym_fn next = (dlsym_fn)ps_dlsym_find_next();
    void *p = handle == RTLD_DEFAULT ? NULL : next(handle, name);

    if (handle == RTLD_DEFAULT || (p != NULL && ps_in_us(p))) {
        p = find_default(name, caller);
        if (p == NULL) {
            return answer(NULL);
        }
    }
    return p == NULL ? go_on : answer(ps_nccl_answer(name, p));
}

static EARLY bool is_nvtx_name(const char *name)
{
    static const char want[] = "InitializeInjectionNvtx2";
    unsigned i = 0;

    while (want[i] != '\0' && want[i] == name[i]) {
        i++;
    }
    return want[i] == '\0' && name[i] == '\0';
}

EARLY struct ps_dlsym_answer ps_dlsym_decide(void *handle, const char *name, const void *caller)
{
    if (name == NULL) {
        return go_on;
    }
    if (is_cuda_name(name)) {
        /*
         * Our own exports must not make a probe for the driver succeed: also when we are switched
         * off.
         */
        return ps_in_libcuda(caller) || ps_in_us(caller) ? go_on
                                                         : decide_cuda(handle, name, caller);
    }
    if (is_nccl_name(name) && !ps_in_us(caller) && ps_nccl_knows(name)) {
        return decide_nccl(handle, name, caller);
    }
    if (is_nvtx_name(name) && !ps_in_us(caller)) {
        void *const init = ps_nvtx_answer(handle);

        return init == NULL ? go_on : answer(init);
    }
    return go_on;
}
