/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler's campaign: many small jobs of cheap kernels, each in a process of its own with a seed of its own, so
 * that any of them can be run again alone. campaign.sh runs it.
 *
 *   campaign_job print            prints what each variant of the job computes
 *   campaign_job FIRST N WORD...  runs seeds FIRST to FIRST + N - 1; each must compute its variant's WORD
 *   campaign_job one VARIANT WORD one of them, with SIMCUDA as it is
 *
 * A job: two threads, forward and backward of batches, streams that are and are not ordered, residual reads, stale
 * words in parameters, evaluation, frees elsewhere; the variant says which. Half of them run several steps, so that a
 * plan is taken up. Seed S runs variant S % N_VARIANTS.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

#include "tests/sim/scenario.h"

#define N_LAYERS   4u
#define N_BATCHES  3u
#define N_STEPS    7u
#define N_VARIANTS 32u
#define BYTES      ((size_t)0x6000)
#define WORDS      (BYTES / 8)

static struct variant {
    bool threads; /* backward runs on another thread */
    bool streams; /* and on another stream */
    bool aside;   /* a third stream reads what is saved, and frees it */
    bool stale;   /* parameters are full of old addresses */
    bool steps;   /* more than one: where others have two streams, each step has one of them */
} v;

static struct batch {
    CUdeviceptr x[N_LAYERS], y[N_LAYERS];
    uint64_t valid[N_LAYERS];
    CUevent ready;
} batches[N_STEPS * N_BATCHES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static unsigned n_filled;
static CUstream first, second, side;
static CUstream forward_stream, backward_stream; /* of this step */

/* Words of earlier calls' parameters; each thread's stack has its own. */
static __thread struct test_operands stale;

static void multiply(CUdeviceptr a, CUdeviceptr b, CUdeviceptr to, uint64_t n, CUstream s)
{
    if (!v.stale) {
        sc_mix(a, b, to, n, s);
        return;
    }
    struct test_operands o = stale;

    o.n_used = 1;
    o.product[0] = (struct test_product){a, b, to, n};
    sc_launch(s, "test_by_value", (void *[]){&o});
    memmove(&stale.product[1], &o.product[0], sizeof(o.product) - sizeof(o.product[0]));
    stale.scratch[n % 8] = to + 64;
}

/* Each result has its own word; what streams of no order write lies in pages of its own. */
static void digest(CUdeviceptr p, size_t at, CUstream s)
{
    const size_t other = v.steps && s == second ? (size_t)3 * 512 : 0;

    sc_digest_at(p, WORDS, at + (s == side ? SC_RESULTS / 2 : other), s);
}

static void forward(unsigned number)
{
    struct batch *b = &batches[number];
    const CUstream s = forward_stream;

    for (unsigned i = 0; i < N_LAYERS; i++) {
        b->valid[i] = WORDS / 4 + 64 * ((number + 3 * i) % 5);
        nvtxRangePushA("moe_experts");
        b->x[i] = sc_alloc(BYTES, s);
        b->y[i] = sc_alloc(BYTES, s);
        sc_produce(b->x[i], b->valid[i], WORDS, 100 * number + i, s);
        sc_produce(b->y[i], 0, WORDS, 0, s);
        /* Now and then a layer reads one that may be out by now. */
        multiply(b->x[i], i == 3 ? b->x[1] : b->x[i], b->y[i], b->valid[i], s);
        nvtxRangePop();
    }
    sc_ok(cuEventCreate(&b->ready, CU_EVENT_DISABLE_TIMING));
    sc_ok(cuEventRecord(b->ready, s));
}

static void backward(unsigned number)
{
    struct batch *b = &batches[number];
    const CUstream s = backward_stream;

    sc_ok(cuStreamWaitEvent(s, b->ready, 0));
    for (unsigned i = N_LAYERS; i > 0; i--) {
        const unsigned l = i - 1;
        const size_t at = 4 * (number * N_LAYERS + l);
        /* Tensors that are often named elsewhere are left alone. */
        const bool aside = v.aside && l == 2 && (!v.steps || number % 2 == 0);
        const CUdeviceptr grad = sc_alloc(BYTES, s);

        sc_produce(grad, 0, WORDS, 0, s);
        multiply(b->y[l], b->x[l], grad, WORDS / 2, s);
        digest(grad, at, s);
        sc_free(grad, s);
        digest(b->y[l], at + 1, s);
        if (aside) {
            sc_order(s, side);
            digest(b->x[l], at, side);
        }
        digest(b->x[l], at + 2, s);
        if (aside) {
            sc_order(s, side);
        }
        sc_free(b->y[l], s);
        sc_free(b->x[l], aside ? side : s);
    }
}

/* Nothing is saved; on the forward's stream, between batches. */
static void evaluate(unsigned number)
{
    nvtxRangePushA("moe_experts");
    const CUdeviceptr p = sc_alloc(BYTES, forward_stream);

    sc_produce(p, WORDS / 3, WORDS, 7000 + number, forward_stream);
    digest(p, 1024 + number, forward_stream);
    sc_free(p, forward_stream);
    nvtxRangePop();
}

static void *backward_thread(void *arg)
{
    const unsigned from = *(const unsigned *)arg;

    sc_ok(cuCtxSetCurrent(sc_ctx));
    for (unsigned n = from; n < from + N_BATCHES; n++) {
        pthread_mutex_lock(&lock);
        while (n_filled <= n) {
            pthread_cond_wait(&filled, &lock);
        }
        pthread_mutex_unlock(&lock);
        backward(n);
    }
    return NULL;
}

static void run_step(unsigned from)
{
    pthread_t thread;

    if (v.threads && pthread_create(&thread, NULL, backward_thread, &from) != 0) {
        sc_fail();
    }
    for (unsigned n = from; n < from + N_BATCHES; n++) {
        forward(n);
        pthread_mutex_lock(&lock);
        n_filled++;
        pthread_cond_signal(&filled);
        pthread_mutex_unlock(&lock);
        if (!v.threads && n > from) {
            backward(n - 1);
        }
        evaluate(n);
    }
    if (v.threads) {
        pthread_join(thread, NULL);
    } else {
        backward(from + N_BATCHES - 1);
    }
}

static void run_steps(void)
{
    for (unsigned step = 0; step < (v.steps ? N_STEPS : 1); step++) {
        forward_stream = v.steps && v.streams && step % 2 == 1 ? second : first;
        backward_stream = v.streams && !v.steps ? second : forward_stream;
        run_step(step * N_BATCHES);
    }
}

/* The hash of everything the job computed. */
static uint64_t job(unsigned variant)
{
    static uint64_t host[SC_RESULTS];
    uint64_t hash = variant;

    v = (struct variant){variant & 1, variant >> 1 & 1, variant >> 2 & 1, variant >> 3 & 1,
                         variant >> 4 & 1};
    sc_start();
    first = sc_stream();
    second = sc_stream();
    side = sc_stream();
    run_steps();
    sc_ok(cuCtxSynchronize());
    sc_ok(cuMemcpyDtoH(host, sc_results, sizeof(host)));
    for (size_t i = 0; i < SC_RESULTS; i++) {
        hash = test_mix(hash ^ host[i]);
    }
    return hash;
}

/* SIMCUDA as given, with a seed; before the first call of the driver. */
static void set_seed(uint64_t seed)
{
    const char *options = getenv("SIMCUDA");
    char text[512];

    snprintf(text, sizeof(text), "%s,seed=%" PRIu64, options != NULL ? options : "hang=60", seed);
    setenv("SIMCUDA", text, 1);
}

static int wait_for(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return 255;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* 0: as expected. Checker, deadlock and failed calls have codes of their own. */
static int run_seed(uint64_t seed, const char *expected)
{
    const unsigned variant = (unsigned)(seed % N_VARIANTS);
    const pid_t child = fork();

    if (child == 0) {
        char text[16];

        set_seed(seed);
        snprintf(text, sizeof(text), "%u", variant);
        /* Begun anew: what is preloaded does nothing in a child that was merely forked. */
        execl("/proc/self/exe", "campaign_job", "one", text, expected, (char *)NULL);
        _exit(127);
    }
    const int code = child < 0 ? 255 : wait_for(child);

    if (code != 0) {
        fprintf(stderr, "seed %" PRIu64 " (variant %u): %s (%d)\n", seed, variant,
                code == 3    ? "other results"
                : code == 86 ? "a deadlock"
                : code == 87 ? "the checker reports"
                             : "it failed",
                code);
    }
    return code;
}

static int print_variants(void)
{
    for (unsigned i = 0; i < N_VARIANTS; i++) {
        fflush(stdout);
        const pid_t child = fork();

        if (child == 0) {
            set_seed(0);
            printf("%016" PRIx64 "\n", job(i));
            exit(0);
        }
        if (child < 0 || wait_for(child) != 0) {
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    unsigned n_failed = 0;

    if (argc == 2 && strcmp(argv[1], "print") == 0) {
        return print_variants();
    }
    if (argc == 4 && strcmp(argv[1], "one") == 0) {
        return job((unsigned)strtoul(argv[2], NULL, 10)) == strtoull(argv[3], NULL, 16) ? 0 : 3;
    }
    if (argc != 3 + (int)N_VARIANTS) {
        fprintf(stderr, "usage: campaign_job print | FIRST N WORD...\n");
        return 2;
    }
    const uint64_t from = strtoull(argv[1], NULL, 10), n = strtoull(argv[2], NULL, 10);

    for (uint64_t seed = from; seed < from + n; seed++) {
        n_failed += run_seed(seed, argv[3 + seed % N_VARIANTS]) != 0;
    }
    return n_failed == 0 ? 0 : 1;
}
