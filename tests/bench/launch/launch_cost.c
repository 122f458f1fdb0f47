/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a launch costs the host more under the library than without it: the same launches, in blocks, by turns through
 * the preloaded library and past it, in one process that runs steps of a job in between. Launches that name a tensor,
 * and stale words, are counted by the library too, and must be as many as were made; and where a plan is said to be in
 * force, the library's metrics must say so.
 *
 * One thread. The program starts itself once more, with the library preloaded.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

#include "tests/bench/launch/metrics.h"
#include "tests/bench/launch/report.h"
#include "tests/bench/launch/rig.h"

#define REGION    "bench_experts"
#define N_LAYERS  6
#define STEPS_MAX 16 /* by then a plan must be in force */
#define CELLS_MAX 256
#define BLOCK     32 /* well below what a stream takes before a launch waits */
#define PAIRS_MAX 5000
#define STALE_AT                                                                                   \
    ((CUdeviceptr)8 << 30) /* beyond a tensor: in the window, and nothing is ever there */
#define MARK_CHILD  "PS_LAUNCH_COST_CHILD"
#define FACTOR_NONE 0

struct args {
    const char *library;
    const char *out;
    uint64_t mbytes; /* of a tensor */
    unsigned pairs;
    unsigned factor; /* fail where a limit is exceeded so many times; FACTOR_NONE: measure only */
};

struct bench {
    unsigned char params[BENCH_PARAM_BYTES] __attribute__((aligned(64)));
    struct bench_rig rig;
    struct bench_report report;
    struct bench_cell cells[CELLS_MAX];
    void *kernel_params[512];
    uint64_t hits;  /* launches through the library that named a tensor */
    uint64_t stale; /* stale words in those that were made through it */
    bool planless;  /* no plan was in force where one should be measured */
};

/* ---- one cell ---- */

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Every word an address, as in most kernels, but of memory that is the driver's. */
static void fill_params(struct bench *b, const struct bench_cell *c, CUdeviceptr tensor)
{
    const struct bench_shape *shape = &bench_shapes[c->shape];
    const size_t n_words = shape->n_params * shape->size / 8;
    uint64_t *const words = (uint64_t *)(void *)b->params;

    for (size_t i = 0; i < n_words; i++) {
        words[i] = b->rig.source + i % 512 * 8;
    }
    if (c->named == BENCH_TENSOR) {
        words[n_words - 1] = tensor;
    }
    for (size_t i = 0; c->named == BENCH_STALE && i < bench_stale_words(c->shape); i++) {
        words[n_words - 1 - i] = tensor + STALE_AT + i * 8;
    }
    for (size_t i = 0; i < shape->n_params; i++) {
        b->kernel_params[i] = b->params + i * shape->size;
    }
}

/* A block of launches, averaged: ns a launch. The stream is empty before it. */
static int64_t time_block(struct bench *b, const struct bench_cell *c, bool hooked, CUstream stream)
{
    const struct bench_rig *rig = &b->rig;
    const PFN_cuLaunchKernel_v4000 launch = hooked ? rig->launch : rig->bare_launch;
    size_t bytes = bench_shapes[c->shape].n_params * bench_shapes[c->shape].size;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, b->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    void **const by_pointers = c->extra ? NULL : b->kernel_params;
    void **const by_buffer = c->extra ? extra : NULL;
    const CUfunction f = rig->kernel[c->shape];
    CUresult r = CUDA_SUCCESS;

    OK(rig->bare_synchronize(stream));
    const int64_t from = now_ns();

    for (unsigned i = 0; i < BLOCK && r == CUDA_SUCCESS; i++) {
        r = launch(f, 1, 1, 1, 1, 1, 1, 0, stream, by_pointers, by_buffer);
    }
    const int64_t to = now_ns();

    bench_ok(r, bench_shapes[c->shape].name);
    b->hits += hooked && c->named == BENCH_TENSOR ? BLOCK : 0;
    b->stale += hooked && c->named == BENCH_STALE ? BLOCK * bench_stale_words(c->shape) : 0;
    return (to - from) / BLOCK;
}

static void measure_cell(struct bench *b, struct bench_cell *c, CUdeviceptr tensor, CUstream stream)
{
    static int64_t bare[PAIRS_MAX], hooked[PAIRS_MAX], more[PAIRS_MAX];
    const unsigned n = b->report.pairs;

    fill_params(b, c, tensor);
    time_block(b, c, false, stream);
    time_block(b, c, true, stream);
    for (unsigned i = 0; i < n; i++) {
        const bool first = i % 2 == 1;
        const int64_t one = time_block(b, c, first, stream);
        const int64_t other = time_block(b, c, !first, stream);

        bare[i] = first ? other : one;
        hooked[i] = first ? one : other;
        more[i] = hooked[i] - bare[i];
    }
    c->bare = bench_spread(bare, n);
    c->hooked = bench_spread(hooked, n);
    c->more = bench_spread(more, n);
}

/*
 * Every shape and form. Of each, those that name a tensor come first: what these leave behind is there for the others.
 * One buffer of very many parameters is like one of one, to the library.
 */
static void measure(struct bench *b, const char *situation, CUdeviceptr tensor, CUstream stream)
{
    static const enum bench_named order[BENCH_N_NAMED] = {BENCH_TENSOR, BENCH_NOTHING, BENCH_STALE};

    for (unsigned k = 0; k < BENCH_N_SHAPES * 2 * BENCH_N_NAMED; k++) {
        const enum bench_shape_id shape = (enum bench_shape_id)(k / (2 * BENCH_N_NAMED));
        const bool extra = k / BENCH_N_NAMED % 2 == 1;

        if (extra && bench_shapes[shape].n_params > 32) {
            continue;
        }
        struct bench_cell *const c = &b->cells[b->report.n++];

        *c = (struct bench_cell){.situation = situation,
                                 .shape = shape,
                                 .extra = extra,
                                 .named = order[k % BENCH_N_NAMED]};
        measure_cell(b, c, tensor, stream);
    }
}

/* ---- the job around it ---- */

typedef void (*inside_fn)(struct bench *b, CUdeviceptr tensor, CUstream stream);

static void forward(struct bench *b, CUdeviceptr *tensor_p, CUstream stream, inside_fn inside)
{
    const struct bench_rig *rig = &b->rig;

    nvtxRangePushA(REGION);
    OK(rig->alloc(tensor_p, rig->bytes, stream));
    OK(rig->copy(*tensor_p, rig->source, rig->bytes / 2, stream)); /* the rest is padding */
    if (inside != NULL) {
        inside(b, *tensor_p, stream);
    }
    nvtxRangePop();
}

/* The launches of `inside`, if any, are made in the last layer's region. */
static void run_step(struct bench *b, CUstream stream, inside_fn inside)
{
    const struct bench_rig *rig = &b->rig;
    CUdeviceptr tensor[N_LAYERS];
    CUdeviceptr scratch;

    OK(rig->alloc(&scratch, rig->bytes, stream));
    for (unsigned i = 0; i < N_LAYERS; i++) {
        forward(b, &tensor[i], stream, i == N_LAYERS - 1 ? inside : NULL);
    }
    for (unsigned i = N_LAYERS; i-- > 0;) {
        OK(rig->copy(scratch, tensor[i], rig->bytes, stream));
        OK(rig->free(tensor[i], stream));
    }
    OK(rig->free(scratch, stream));
    OK(rig->bare_synchronize(stream));
}

/* False: there is none. */
static bool run_until_captured(struct bench *b, CUstream stream)
{
    for (unsigned i = 0; i < STEPS_MAX; i++) {
        run_step(b, stream, NULL);
        bench_metrics_read();
        if (i > 1 && bench_metrics_captured()) {
            return true;
        }
    }
    fprintf(stderr, "launch_cost: no plan after %d steps\n", STEPS_MAX);
    return false;
}

static void in_learning(struct bench *b, CUdeviceptr tensor, CUstream stream)
{
    measure(b, "learning, own stream", tensor, stream);
}

static void in_learning_legacy(struct bench *b, CUdeviceptr tensor, CUstream stream)
{
    measure(b, "learning, legacy", tensor, stream);
}

static void in_plan(struct bench *b, CUdeviceptr tensor, CUstream stream)
{
    bench_metrics_read();
    b->planless = b->planless || !bench_metrics_captured();
    measure(b, stream == NULL ? "plan, legacy" : "plan, own stream", tensor, stream);
}

/* With a blocking stream uses in the legacy stream are told at once, and followed. */
static void in_blocking(struct bench *b, CUdeviceptr tensor, CUstream stream)
{
    CUstream blocking;

    OK(b->rig.stream_create(&blocking, CU_STREAM_DEFAULT));
    measure(b, "blocking, legacy", tensor, stream);
    OK(b->rig.stream_destroy(blocking));
}

static void run_planned(struct bench *b, CUstream stream, inside_fn inside)
{
    if (run_until_captured(b, stream)) {
        run_step(b, stream, inside);
    } else {
        b->planless = true;
    }
}

static void run_all(struct bench *b)
{
    CUstream own;

    OK(b->rig.stream_create(&own, CU_STREAM_NON_BLOCKING));
    run_step(b, own, in_learning);
    run_step(b, NULL, in_learning_legacy);
    run_planned(b, NULL, in_plan);
    run_step(b, NULL, in_blocking);
    run_planned(b, own, in_plan);
    OK(b->rig.stream_destroy(own));
}

/* A launch that names a tensor and is not counted has cost nothing, and was not measured. */
static bool count_agrees(const char *counter, uint64_t made)
{
    const uint64_t counted = bench_metrics_counter(counter);

    if (counted != made) {
        fprintf(stderr, "launch_cost: %llu %s where %llu were made\n", (unsigned long long)counted,
                counter, (unsigned long long)made);
    }
    return counted == made;
}

static int judge(const struct bench_report *r, unsigned factor)
{
    int status = EXIT_SUCCESS;

    for (unsigned i = 0; i < r->n && factor != FACTOR_NONE; i++) {
        const struct bench_cell *c = &r->cells[i];

        if (bench_limit(c) != INT64_MAX && c->more.p50 > bench_limit(c) * (int64_t)factor) {
            fprintf(stderr, "launch_cost: %s, %s: %lld ns more, beyond %u times %lld\n",
                    c->situation, bench_shapes[c->shape].name, (long long)c->more.p50, factor,
                    (long long)bench_limit(c));
            status = EXIT_FAILURE;
        }
    }
    return status;
}

static int run_child(const struct args *args)
{
    static struct bench b;

    bench_rig_open(&b.rig, args->mbytes << 20);
    b.report = (struct bench_report){.rig = &b.rig,
                                     .library = args->library,
                                     .pairs = args->pairs,
                                     .block = BLOCK,
                                     .cells = b.cells};
    bench_metrics_read();
    run_all(&b);
    bench_metrics_read();
    if (args->out != NULL) {
        bench_report_json(&b.report, args->out);
    }
    bench_report_table(&b.report);
    bench_report_worst(&b.report);
    if (b.planless) {
        fprintf(stderr, "launch_cost: no plan was in force where one should be measured\n");
    }
    /* The job itself copies into each tensor once, and once out of it. */
    const bool touches = count_agrees("touches", b.hits + 2 * bench_metrics_counter("tensors"));
    const bool stale = count_agrees("stale_touches", b.stale);

    return b.planless || !touches || !stale ? EXIT_FAILURE : judge(&b.report, args->factor);
}

/* ---- the program ---- */

static int usage(void)
{
    fputs(
        "usage: launch_cost --library=LIBPAGEDSTASH.SO [--out=FILE] [--mbytes=64] [--blocks=200] [--fail-beyond=N]\n"
        "  --mbytes       of a tensor\n"
        "  --blocks       of launches, with the library and without it\n"
        "  --fail-beyond  end with 1 where a limit is exceeded N times\n",
        stderr);
    return 2;
}

static bool parse(int argc, char **argv, struct args *args)
{
    static const struct option options[] = {
        {"library", required_argument, NULL, 'l'},     {"out", required_argument, NULL, 'o'},
        {"mbytes", required_argument, NULL, 'm'},      {"blocks", required_argument, NULL, 'b'},
        {"fail-beyond", required_argument, NULL, 'f'}, {NULL, 0, NULL, 0}};
    int c;

    *args = (struct args){.mbytes = 64, .pairs = 200};
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'l':
            args->library = optarg;
            break;
        case 'o':
            args->out = optarg;
            break;
        case 'm':
            args->mbytes = strtoull(optarg, NULL, 10);
            break;
        case 'b':
            args->pairs = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'f':
            args->factor = (unsigned)strtoul(optarg, NULL, 10);
            break;
        default:
            return false;
        }
    }
    return args->library != NULL && optind == argc && args->pairs > 0 && args->pairs <= PAIRS_MAX &&
           args->mbytes > 0 && args->mbytes < 65536;
}

static void become_child(char **argv, const struct args *args)
{
    char min_bytes[32];

    snprintf(min_bytes, sizeof(min_bytes), "%" PRIu64 "M", args->mbytes);
    setenv("PAGEDSTASH_MIN_BYTES", min_bytes, 1);
    setenv("PAGEDSTASH_REGIONS", REGION, 1);
    setenv("LD_PRELOAD", args->library, 1);
    setenv(MARK_CHILD, "1", 1);
    execv("/proc/self/exe", argv);
    _exit(127);
}

int main(int argc, char **argv)
{
    struct args args;
    int status = 0;

    if (!parse(argc, argv, &args)) {
        return usage();
    }
    if (getenv(MARK_CHILD) != NULL) {
        return run_child(&args);
    }
    bench_metrics_prepare();
    const pid_t pid = fork();

    if (pid == 0) {
        become_child(argv, &args);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        perror("launch_cost");
        return EXIT_FAILURE;
    }
    bench_metrics_remove(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}
