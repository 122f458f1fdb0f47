/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: coroutines by ucontext. The sanitizers are told of every switch, since they keep a stack of their own for
 * each. Those that have ended are kept and used again. Under the big lock.
 *
 * Nothing here may hold the address of a thread-local variable across a switch: the other side may be another thread.
 */
#include "tools/simcuda/coro.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "tools/simcuda/core.h"
#include "tools/simcuda/fault.h"

#if defined(__SANITIZE_ADDRESS__)
#    define WITH_ASAN 1
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer)
#        define WITH_ASAN 1
#    endif
#endif
#if defined(__SANITIZE_THREAD__)
#    define WITH_TSAN 1
#elif defined(__has_feature)
#    if __has_feature(thread_sanitizer)
#        define WITH_TSAN 1
#    endif
#endif

#ifdef WITH_ASAN
#    include <sanitizer/asan_interface.h>
#    include <sanitizer/common_interface_defs.h>
#endif
#ifdef WITH_TSAN
#    include <sanitizer/tsan_interface.h>
#endif

#define STACK_BYTES ((size_t)256 << 10)
#define GUARD_BYTES ((size_t)SIM_PAGE)

struct sim_coro {
    struct sim_coro *next; /* among those kept */
    void (*fn)(void *);
    void *arg;
    ucontext_t own, resumer;
    sigjmp_buf escape; /* where a fault leads */
    enum sim_coro_end end;
    uint8_t *memory;             /* a page nobody may touch, then the stack */
    void *fiber, *resumer_fiber; /* TSan */
    void *fake;                  /* ASan: the part of its own stack that lies elsewhere */
    const void *resumer_stack;
    size_t resumer_bytes;
};

static struct sim_coro *kept;

/* ---- switches ---- */

static void to_coro(struct sim_coro *c)
{
#ifdef WITH_TSAN
    c->resumer_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(c->fiber, 0);
#endif
#ifdef WITH_ASAN
    void *fake = NULL;

    __sanitizer_start_switch_fiber(&fake, c->memory + GUARD_BYTES, STACK_BYTES);
#endif
    (void)swapcontext(&c->resumer, &c->own);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

/* What the coroutine does first after a switch to it. */
static void arrived(struct sim_coro *c)
{
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(c->fake, &c->resumer_stack, &c->resumer_bytes);
#else
    (void)c;
#endif
}

static void to_resumer(struct sim_coro *c, enum sim_coro_end end)
{
    c->end = end;
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(c->resumer_fiber, 0);
#endif
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&c->fake, c->resumer_stack, c->resumer_bytes);
#endif
    (void)swapcontext(&c->own, &c->resumer);
    arrived(c);
}

/* Each round runs one function; a context's arguments are ints, so the pointer comes in halves. */
static void enter(unsigned low, unsigned high)
{
    struct sim_coro *c = (struct sim_coro *)((uintptr_t)high << 32 | low); /* NOLINT */

    arrived(c);
    while (sigsetjmp(c->escape, 0) == 0) {
        c->fn(c->arg);
        to_resumer(c, SIM_CORO_ENDED);
    }
    to_resumer(c, SIM_CORO_FAULTED);
    abort(); /* it is never resumed */
}

/* ---- life ---- */

static struct sim_coro *make(void)
{
    struct sim_coro *c = sim_calloc(1, sizeof *c);
    const uintptr_t self = (uintptr_t)c;

    c->memory = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (c->memory == MAP_FAILED || getcontext(&c->own) != 0) {
        sim_no_memory();
    }
    (void)mprotect(c->memory, GUARD_BYTES, PROT_NONE);
    c->own.uc_stack.ss_sp = c->memory + GUARD_BYTES;
    c->own.uc_stack.ss_size = STACK_BYTES;
    c->own.uc_link = NULL;
    makecontext(&c->own, (void (*)(void))(uintptr_t)enter, 2, (unsigned)self,
                (unsigned)((uint64_t)self >> 32));
#ifdef WITH_TSAN
    c->fiber = __tsan_create_fiber(0);
#endif
    return c;
}

struct sim_coro *sim_coro_new(void (*fn)(void *), void *arg)
{
    struct sim_coro *c = kept;

    if (c != NULL) {
        kept = c->next;
    } else {
        c = make();
    }
    c->fn = fn;
    c->arg = arg;
    c->end = SIM_CORO_ENDED;
    return c;
}

enum sim_coro_end sim_coro_resume(struct sim_coro *c)
{
    sigjmp_buf *before = sim_fault_escape(&c->escape);

    c->end = SIM_CORO_GAVE_WAY;
    to_coro(c);
    (void)sim_fault_escape(before);
    return c->end;
}

void sim_coro_give_way(struct sim_coro *c)
{
    to_resumer(c, SIM_CORO_GAVE_WAY);
}

void sim_coro_drop(struct sim_coro *c)
{
    if (c->end == SIM_CORO_ENDED) { /* not one that a signal handler was left from */
        c->next = kept;
        kept = c;
        return;
    }
#ifdef WITH_TSAN
    __tsan_destroy_fiber(c->fiber);
#endif
#ifdef WITH_ASAN
    __asan_unpoison_memory_region(c->memory, GUARD_BYTES + STACK_BYTES);
#endif
    (void)munmap(c->memory, GUARD_BYTES + STACK_BYTES);
    free(c);
}
