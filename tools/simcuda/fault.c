/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running device code under page protection. With the checker on, device memory is closed in the process's page
 * tables; the first read and the first write of each block of a mapping by an operation fault, are noted, and open
 * the block. A block is a page in small mappings and a thirty-second of larger ones, so that an operation costs at
 * most some sixty faults a mapping; what it notes is rounded out to blocks. Blocks stay open until another operation
 * runs. A fault at anything else while device code runs ends that code.
 *
 * All state is guarded by the big lock, which the thread that runs device code holds; the handler reads it only in
 * that thread. Faults of other threads and of the host's own code go to whoever handled them before.
 */
#include "tools/simcuda/fault.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "tools/simcuda/core.h"

#define BLOCKS_OF_A_MAPPING 32
#define TOUCHES_MAX                                                                                \
    4096 /* the handler cannot allocate; beyond this, a whole mapping is one touch */
#define OPENED_MAX   4096
#define DECLARED_MAX 512

struct span {
    CUdeviceptr start, end;
};

static __thread volatile sig_atomic_t running; /* this thread is inside fn of sim_fault_run */
static __thread volatile sig_atomic_t chaining;
static sigjmp_buf escape;                /* out of fn of sim_fault_run */
static sigjmp_buf *escape_now = &escape; /* out of the stack that runs */
static struct sim_fault fault;
static const struct sim_op *last_op; /* whose blocks are open */
static uint64_t last_serial;
static struct sim_touch touches[TOUCHES_MAX];
static size_t n_touches;
static struct span opened[OPENED_MAX];
static size_t n_opened;
static struct span declared[DECLARED_MAX];
static size_t n_declared;
static struct sigaction previous;

static CUdeviceptr round_down(CUdeviceptr address, CUdeviceptr from, uint64_t unit)
{
    return from + (address - from) / unit * unit;
}

/* The block around the address. */
static struct span block_of(const struct sim_mapping *m, CUdeviceptr address)
{
    const uint64_t unit =
        SIM_ROUND((m->bytes + BLOCKS_OF_A_MAPPING - 1) / BLOCKS_OF_A_MAPPING, SIM_PAGE);
    const CUdeviceptr start = round_down(address, m->base, unit);
    const CUdeviceptr end = m->base + m->bytes;

    return (struct span){start, end - start < unit ? end : start + unit};
}

static bool is_declared(CUdeviceptr address)
{
    for (size_t i = 0; i < n_declared; i++) {
        if (address >= declared[i].start && address < declared[i].end) {
            return true;
        }
    }
    return false;
}

/* Adds to one of the latest touches if it continues it: kernels walk several operands in turn. */
static bool extend_touch(struct span s, bool write)
{
    for (size_t back = 1; back <= 8 && back <= n_touches; back++) {
        struct sim_touch *t = &touches[n_touches - back];

        if (t->write == write && t->end == s.start) {
            t->end = s.end;
            return true;
        }
    }
    return false;
}

static void close_all(void)
{
    for (size_t i = 0; i < n_opened; i++) {
        (void)mprotect((void *)(uintptr_t)opened[i].start, opened[i].end - opened[i].start,
                       PROT_NONE);
    }
    n_opened = 0;
}

/* Spans that are opened may overlap. With no room left all are closed: the next access faults again. */
static void remember_open(struct span s)
{
    if (n_opened > 0 && opened[n_opened - 1].end == s.start) {
        opened[n_opened - 1].end = s.end;
        return;
    }
    if (n_opened == OPENED_MAX) {
        close_all();
    }
    opened[n_opened++] = s;
}

/* True when the access is allowed and the block is open now. */
static bool open_block(CUdeviceptr address, bool write)
{
    const struct sim_mapping *m;
    const int need = write ? PROT_READ | PROT_WRITE : PROT_READ;

    if (!sim_options.check || !sim_va_find(address, &m, NULL) || m->owner == SIM_OWNER_MANAGED ||
        (m->prot & need) != need) {
        return false;
    }
    const bool told = is_declared(address);
    const bool whole = told || n_touches + 1 >= TOUCHES_MAX;
    const struct span s = whole ? (struct span){m->base, m->base + m->bytes} : block_of(m, address);

    remember_open(s);
    if (mprotect((void *)(uintptr_t)s.start, s.end - s.start, told ? m->prot : need) != 0) {
        return false;
    }
    if (!told && !extend_touch(s, write) && n_touches < TOUCHES_MAX) {
        touches[n_touches++] = (struct sim_touch){s.start, s.end, write};
    }
    return true;
}

static void chain(int signal, siginfo_t *info, void *context)
{
    if (chaining || previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
        const struct sigaction by_default = {.sa_handler = SIG_DFL};

        (void)sigaction(signal, &by_default,
                        NULL); /* the instruction faults again and ends the process */
        return;
    }
    chaining = 1;
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(signal, info, context);
    } else {
        previous.sa_handler(signal);
    }
    chaining = 0;
}

/* Whether the access that faulted was a write; where the machine does not say: the second fault of an open block is. */
static bool fault_writes(const void *context, CUdeviceptr address)
{
#if defined(__x86_64__)
    const ucontext_t *c = context;

    (void)address;
    return (c->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
    for (size_t i = n_opened; i > 0; i--) {
        if (address >= opened[i - 1].start && address < opened[i - 1].end) {
            return true;
        }
    }
    return false;
#endif
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    const int saved = errno;
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)info->si_addr;

    if (!running) {
        chain(signal, info, context);
        errno = saved;
        return;
    }
    const bool write = fault_writes(context, address);

    if (open_block(address, write)) {
        errno = saved;
        return;
    }
    fault = (struct sim_fault){address, write};
    siglongjmp(*escape_now, 1);
}

/* Looked at before each run: the program or its libraries may have put a handler of theirs in front. */
static void install(void)
{
    struct sigaction now;

    (void)sigaction(SIGSEGV, NULL, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) {
        return;
    }
    previous = now;
    struct sigaction ours = {.sa_sigaction = on_fault};

    /* No mask is set while it runs, so that leaving by siglongjmp need not restore one. */
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | (now.sa_flags & SA_ONSTACK);
    (void)sigemptyset(&ours.sa_mask);
    (void)sigaction(SIGSEGV, &ours, NULL);
}

void sim_fault_declare(CUdeviceptr base, uint64_t bytes)
{
    const struct span s = {base, base + bytes};

    if (bytes > 0 && n_declared < DECLARED_MAX) {
        declared[n_declared++] = s;
    }
}

const struct sim_touch *sim_fault_touches(size_t *n_p)
{
    *n_p = n_touches;
    return touches;
}

void sim_fault_forget(void)
{
    n_touches = 0;
}

void sim_fault_close(CUdeviceptr base, uint64_t bytes)
{
    for (size_t i = 0; i < n_opened; i++) {
        if (opened[i].start < base + bytes && base < opened[i].end) {
            close_all();
            last_op = NULL;
            return;
        }
    }
}

bool sim_fault_begin(const struct sim_op *op)
{
    if (last_op == op && last_serial == op->serial) {
        return false;
    }
    close_all();
    n_declared = 0;
    last_op = op;
    last_serial = op->serial;
    return true;
}

sigjmp_buf *sim_fault_escape(sigjmp_buf *to)
{
    sigjmp_buf *before = escape_now;

    escape_now = to;
    return before;
}

void sim_fault_end(void)
{
    siglongjmp(escape, 1);
}

bool sim_fault_run(void (*fn)(void *), void *arg, struct sim_fault *fault_p)
{
    install();
    if (sigsetjmp(escape, 0) == 0) {
        running = 1;
        fn(arg);
        running = 0;
        return true;
    }
    running = 0;
    *fault_p = fault;
    return false;
}
