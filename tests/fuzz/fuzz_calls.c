/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random driver calls under the stash, on the software driver with its checker: every byte read is the model's, every
 * answer a plain driver's, and the checker has nothing to say.
 *
 * Input: the scheduler's seed, the mode (one thread; one that does it all again and again, as steps of a job; three
 * that take turns; three at once with a job each), then operations. Each input has a context of its own, so a failure
 * needs nothing but its input; only the mode of three at once depends on the machine too.
 *
 * The program runs itself again with the stash preloaded (FUZZ_SHIM names it; empty: none, the model against the plain
 * driver). FUZZ_SIM adds options of the software driver, FUZZ_TALK=1 tells each step, FUZZ_COVERAGE=FILE writes which
 * wrappers were entered at exit: row, calls, calls with something named out, calls with zeros. FUZZ_PLAN=n: without
 * learned plans. FUZZ_LAST: see below.
 */
#include "tests/fuzz/calls.h"

#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void op_fn(struct fz_world *w);

static void op_alloc(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);
    const struct fz_use u = fz_lane_choose(w);

    (void)fz_tensor_alloc(w, 2048 * (size_t)(1 + b % 16) + b / 16, &u);
}

static void op_free(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);

    for (unsigned i = 0; i < FZ_TENSORS; i++) {
        struct fz_tensor *t = &w->tensor[(b + i) % FZ_TENSORS];

        if (t->live) {
            fz_tensor_free(w, t);
            return;
        }
    }
}

static void op_push(struct fz_world *w)
{
    fz_push(w, fz_u8(&w->in));
}

static void op_zeros(struct fz_world *w)
{
    fz_table_zeros(fz_u8(&w->in));
}

static op_fn *const ops[32] = {
    op_alloc,        op_free,       op_push,        fz_pop,         fz_op_layer,  fz_op_layer,
    fz_op_layer,     fz_op_layer,   fz_op_backward, fz_op_backward, fz_op_kernel, fz_op_kernel,
    fz_op_kernel,    fz_op_kernel,  fz_op_copy,     fz_op_copy,     fz_op_copy,   fz_op_box,
    fz_op_batch,     fz_op_fill,    fz_op_value,    fz_op_event,    fz_op_sync,   fz_lane_create,
    fz_lane_destroy, fz_op_capture, fz_op_graph,    fz_op_query,    fz_op_module, fz_op_pool,
    fz_op_pin,       op_zeros};

/* Rare ones share the values of others above. */
static void one_op(struct fz_world *w)
{
    const unsigned b = fz_u8(&w->in);

    if (b == 255) {
        fz_op_context(w);
    } else if (b == 254) {
        fz_op_mapping(w);
    } else if (b % 32 == 29 && b >= 160) {
        fz_op_refused(w);
    } else {
        ops[b % 32](w);
    }
}

/* ---- threads ---- */

struct crew {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    struct fz_world *world[FZ_WORKERS];
    int at_work; /* whose turn it is, -1: nobody's, -2: all are to go */
    CUcontext ctx;
};

struct member {
    struct crew *crew;
    unsigned number;
};

/* FUZZ_LAST=FUNCTION: one that ends paging, called once, from the middle of the first input on. */
static unsigned last_act = PS_N_HOOKS;
static bool ended;

static void run_alone(struct fz_world *w)
{
    const size_t half = w->in.left / 2;

    while (w->in.left > 0) {
        one_op(w);
        if (last_act < PS_N_HOOKS && w->alone && w->in.left <= half &&
            (w->in.left == 0 || fz_some_out(w))) {
            fz_last_act(w, last_act);
            last_act = PS_N_HOOKS;
            ended = true;
        }
    }
}

/* Ends what the thread has left open, so that the next input begins outside of all ranges. */
static void close_ranges(struct fz_world *w, unsigned worker)
{
    w->worker = worker;
    while (w->depth[worker] > 0) {
        fz_pop(w);
    }
}

#define STEPS 6 /* seen twice, planned, taken up, followed */

/* The same operations again and again, with everything freed in between: what a plan is made of. */
static void run_steps(struct fz_world *w)
{
    const struct fz_input whole = w->in;

    for (unsigned step = 0; step < STEPS; step++) {
        w->in = whole;
        w->last = 0;
        run_alone(w);
        close_ranges(w, 0);
        for (unsigned i = 0; i < FZ_TENSORS; i++) {
            if (w->tensor[i].live && !w->tensor[i].busy) {
                fz_tensor_free(w, &w->tensor[i]);
            }
        }
    }
}

static void *take_turns(void *arg)
{
    const struct member *m = arg;
    struct crew *c = m->crew;

    PLAIN(cuCtxSetCurrent(c->ctx));
    pthread_mutex_lock(&c->lock);
    while (c->at_work != -2) {
        if (c->at_work != (int)m->number) {
            pthread_cond_wait(&c->turn, &c->lock);
            continue;
        }
        c->world[0]->worker = m->number;
        one_op(c->world[0]);
        c->at_work = -1;
        pthread_cond_broadcast(&c->turn);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void give_turn(struct crew *c, int whose)
{
    pthread_mutex_lock(&c->lock);
    c->at_work = whose;
    pthread_cond_broadcast(&c->turn);
    while (whose >= 0 && c->at_work != -1) {
        pthread_cond_wait(&c->turn, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
}

static void *run_at_once(void *arg)
{
    const struct member *m = arg;
    struct fz_world *w = m->crew->world[m->number];

    PLAIN(cuCtxSetCurrent(m->crew->ctx));
    run_alone(w);
    close_ranges(w, m->number);
    return NULL;
}

static void run_crew(struct crew *c, void *(*fn)(void *), bool turns)
{
    pthread_t thread[FZ_WORKERS];
    struct member member[FZ_WORKERS];

    for (unsigned i = 0; i < FZ_WORKERS; i++) {
        member[i] = (struct member){c, i};
        if (pthread_create(&thread[i], NULL, fn, &member[i]) != 0) {
            abort();
        }
    }
    if (turns) {
        struct fz_world *w = c->world[0];

        for (unsigned whose = 0; w->in.left > 0;) {
            const unsigned b = fz_u8(&w->in);

            whose = b < 192 ? whose : b % FZ_WORKERS;
            give_turn(c, (int)whose);
        }
        for (unsigned i = 0; i < FZ_WORKERS; i++) {
            while (w->depth[i] > 0) {
                w->in = (struct fz_input){(const uint8_t *)"\x03", 1};
                give_turn(c, (int)i);
            }
        }
        give_turn(c, -2);
    }
    for (unsigned i = 0; i < FZ_WORKERS; i++) {
        pthread_join(thread[i], NULL);
    }
}

static struct fz_world *worlds; /* FZ_WORKERS of them */

static void run(const uint8_t *data, size_t size, CUcontext ctx)
{
    struct crew c = {.lock = PTHREAD_MUTEX_INITIALIZER,
                     .turn = PTHREAD_COND_INITIALIZER,
                     .at_work = -1,
                     .ctx = ctx};
    const unsigned mode = size > 0 ? data[0] % 8 : 0;
    const unsigned n = mode == 7 ? FZ_WORKERS : 1;
    const size_t share = size > 0 ? (size - 1) / n : 0;

    fz_watch = n == 1;
    memset(worlds, 0, n * sizeof(*worlds));
    for (unsigned i = 0; i < n; i++) {
        c.world[i] = &worlds[i];
        worlds[i].alone = n == 1;
        worlds[i].worker = i;
        fz_world_begin(&worlds[i], size > 0 ? data + 1 + i * share : data, share);
    }
    if (mode == 7) {
        run_crew(&c, run_at_once, false);
    } else if (mode == 6) {
        run_crew(&c, take_turns, true);
    } else if (mode == 5) {
        run_steps(&worlds[0]);
    } else {
        run_alone(&worlds[0]);
        close_ranges(&worlds[0], 0);
    }
    for (unsigned i = 0; i < n; i++) {
        worlds[i].worker = 0;
        worlds[i].in.left = 0;
        fz_world_end(&worlds[i]);
    }
}

/* ---- one input ---- */

#define LOG_FD 37 /* a file in memory that the stash writes its lines to */

/* Nothing that these programs do is worth a line, but the end of paging. */
static void check_log(void)
{
    char line[512];
    const ssize_t n = pread(LOG_FD, line, sizeof(line) - 1, 0);

    line[n > 0 ? n : 0] = '\0';
    fz_require(n <= 0 || (strstr(line, "paging ends here: cu") != NULL && ended &&
                          strstr(line, "everything is back in its place") != NULL &&
                          strchr(line, '\n') == line + n - 1),
               "the stash says: %s", line);
}

extern void simcuda_reseed(uint64_t seed);
extern uint64_t simcuda_check_count(void);

/* The driver refuses the first forms. */
static void end_context(uint64_t seed)
{
    CUresult r = CUDA_ERROR_NOT_SUPPORTED;

    if (seed % 8 == 4) {
        r = CALL(cuDevicePrimaryCtxReset, 0);
    } else if (seed % 8 == 5) {
        r = CALL(cuDevicePrimaryCtxRelease, 0);
    }
    fz_require(r == CUDA_ERROR_NOT_SUPPORTED, "a first form gives %d", (int)r);
    if (seed % 2 == 0) {
        OK(cuDevicePrimaryCtxReset_v2, 0);
    } else {
        OK(cuDevicePrimaryCtxRelease_v2, 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CUcontext ctx;
    const uint64_t seed = size > 1 ? data[0] + 256u * data[1] : 0;

    if (size > 4096) {
        return 0;
    }
    simcuda_reseed(seed);
    OK(cuDevicePrimaryCtxRetain, &ctx, 0);
    PLAIN(cuCtxSetCurrent(ctx));
    run(size > 1 ? data + 1 : data, size > 1 ? size - 1 : 0, ctx);
    OK(cuCtxSynchronize);
    fz_require(simcuda_check_count() == 0, "the checker");
    check_log();
    end_context(seed);
    return 0;
}

/* ---- the program ---- */

static void set(const char *name, const char *value)
{
    if (setenv(name, value, 1) != 0) {
        abort();
    }
}

static _Noreturn void run_again(char **argv)
{
    const char *shim = getenv("FUZZ_SHIM");
    const char *more = getenv("FUZZ_SIM");
    const char *plan = getenv("FUZZ_PLAN");
    char sim[512];
    char path[64];

    set("FUZZ_STARTED", "1");
    snprintf(sim, sizeof(sim), "mem=24M,va=2G,granularity=4K,devices=2,check=1,hang=30,%s",
             more == NULL || more[0] == '\0' ? "seed=1" : more);
    set("SIMCUDA", sim);
    if (shim == NULL) {
        shim = FUZZ_SHIM_DEFAULT;
    }
    const int fd = memfd_create("log", 0);

    if (fd < 0 || dup2(fd, LOG_FD) != LOG_FD) {
        abort();
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", LOG_FD);
    set("PAGEDSTASH_LOG_FILE", path);
    set("PAGEDSTASH_MIN_BYTES", "4K");
    set("PAGEDSTASH_PAGE_BYTES", "512");
    set("PAGEDSTASH_WINDOW_BYTES", "512M");
    set("PAGEDSTASH_PLAN", plan == NULL ? "y" : plan);
    if (shim[0] != '\0') {
        set("FUZZ_PRELOAD", shim);
    }
    execv("/proc/self/exe", argv);
    abort();
}

/* The plain driver's answers need its options, so it is asked in a run of its own. */
static _Noreturn void preload(char **argv)
{
    const char *shim = getenv("FUZZ_PRELOAD");

    fz_table_ask_plain();
    set("FUZZ_STARTED", "2");
    if (shim != NULL) {
        set("LD_PRELOAD", shim);
    }
    execv("/proc/self/exe", argv);
    abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *started = getenv("FUZZ_STARTED");

    (void)argc;
    if (started == NULL) {
        run_again(*argv);
    }
    if (started[0] == '1') {
        preload(*argv);
    }
    const char *(*version)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "pagedstash_version");

    fz_require((version != NULL) == (getenv("FUZZ_PRELOAD") != NULL), "%s",
               version != NULL ? "preloaded" : "not preloaded");
    fz_stash = version != NULL;
    unsetenv("LD_PRELOAD");
    fz_talk = getenv("FUZZ_TALK") != NULL;
    fz_table_init();
    if (getenv("FUZZ_LAST") != NULL) {
        last_act = fz_table_row(getenv("FUZZ_LAST"));
    }
    atexit(fz_table_report);
    nvtxMarkA("start");
    PLAIN(cuInit(0));
    worlds = calloc(FZ_WORKERS, sizeof(*worlds));
    return worlds == NULL;
}
