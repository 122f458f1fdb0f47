/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stash kernels on whatever device the driver offers (a GPU, or simcuda with small sizes):
 * random tensors go out to pages of both parts, are overwritten, come back and are compared bit for
 * bit, guards between them included; tables, ledgers, flags and the free lists are compared with
 * what the host computes. Pages in a row are shifted to the host and back. Prints one JSON object on
 * one line; exit 0 if all was right, 1 if not, 77 where there is no device. One thread.
 */
#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "tests/gpu/kernels_scene.h"
#include "tests/gpu/kernels_shift.h"

#define REPEATS_MAX  99
#define EXIT_SKIPPED 77 /* meson's */

static struct {
    uint64_t bytes; /* of the timed runs */
    uint64_t case_bytes;
    uint32_t page_bytes;
    uint32_t n_tensors;
    int repeats;
    uint64_t seed;
} options = {
    .bytes = UINT64_C(9) << 28,
    .case_bytes = UINT64_C(32) << 20,
    .page_bytes = 256u << 10,
    .n_tensors = 6,
    .repeats = 15,
};

/* ---- runs ---- */

struct streams {
    CUstream out, in;
    CUevent stashed, start, end;
};

/* The last restore's flags: what is not uniform goes. Then nothing is flagged: nothing is touched. */
static void check_clean(struct scene *s, const struct ps_kernels *k, const struct streams *st)
{
    expect_cleaned(s);
    MUST(ps_kernels_clean(&drv, k, st->in, &s->batch));
    MUST(drv.cuStreamSynchronize(st->in));
    check_region(s, "a clean zeroes the flagged pages, and no others");
    check_flags(s);
    poison(s, st->in);
    expect_poison(s);
    MUST(ps_kernels_clean(&drv, k, st->in, &s->batch));
    MUST(drv.cuStreamSynchronize(st->in));
    check_region(s, "a clean leaves pages alone that are not flagged");
}

static void set_kind(struct scene *s, uint32_t kind)
{
    for (uint32_t i = 0; i < s->n; i++) {
        s->batch.items[i].rows_kind = kind;
    }
}

/* Stashed, then cleaned: all is zero, and flagged so. Then poison under the same flags: only zeros are left out. */
static void check_known(struct scene *s, const struct ps_kernels *k, const struct streams *st)
{
    const struct ps_kernels shaped = any_shape(k);

    set_kind(s, PS_ITEM_KNOWN);
    MUST(ps_kernels_clean(&drv, k, st->in, &s->batch));
    MUST(ps_kernels_restore(&drv, &shaped, st->in, &s->batch, PS_FAST));
    MUST(drv.cuStreamSynchronize(st->in));
    check_region(s, "what is known to be zero need not be written");
    check_flags(s);
    poison(s, st->in);
    MUST(ps_kernels_restore(&drv, &shaped, st->in, &s->batch, PS_QUIET));
    MUST(drv.cuStreamSynchronize(st->in));
    check_flags(s);
    expect_zeros(s, true);
    check_region(s, "what is known to be zero is not written");
    set_kind(s, 0);
    expect_zeros(s, false);
    MUST(ps_kernels_restore(&drv, &shaped, st->in, &s->batch, PS_FAST));
    MUST(drv.cuStreamSynchronize(st->in));
    check_region(s, "what nobody knows is written");
    set_kind(s, PS_ITEM_COMPARE);
    MUST(ps_kernels_restore(&drv, &shaped, st->in, &s->batch, PS_QUIET));
    MUST(drv.cuStreamSynchronize(st->in));
    check_region(s, "what is right already stays so");
    poison_some(s, st->in);
    MUST(ps_kernels_restore(&drv, &shaped, st->in, &s->batch, PS_QUIET));
    MUST(drv.cuStreamSynchronize(st->in));
    check_region(s, "what differs is written");
    check_flags(s);
    set_kind(s, 0);
}

/* Out on one stream, back on another, as the engine does. */
static void run_case(const struct ps_kernels *k, const struct streams *st, uint32_t n,
                     uint32_t page_bytes, const struct content *c)
{
    struct scene s;

    scene_init(&s, n, page_bytes, options.case_bytes, c);
    scene_create(&s, k);
    for (int round = 0; round < 5; round++) {
        const struct ps_kernels out = any_shape(k);
        const struct ps_kernels in = any_shape(k);

        next_seq(&s);
        /* All on the device, then some, then all on the host; then without host pages. */
        scene_host(&s, round < 3);
        scene_share(&s, round == 1   ? random_word() % (s.n_stored + 1)
                        : round == 2 ? 0
                                     : s.capacity);
        MUST(ps_kernels_stash(&drv, &out, st->out, &s.batch, PS_QUIET));
        MUST(drv.cuStreamSynchronize(st->out));
        check_stashed(&s);
        check_region(&s, "a stash leaves the tensors as they were");
        if (round == 4) {
            check_known(&s, k, st);
            MUST(ps_kernels_drop(&drv, k, st->in, &s.batch));
            MUST(drv.cuStreamSynchronize(st->in));
            check_all_free(&s);
            break;
        }
        poison(&s, st->out);
        MUST(drv.cuEventRecord(st->stashed, st->out));
        MUST(drv.cuStreamWaitEvent(st->in, st->stashed, 0));
        MUST(ps_kernels_restore(&drv, &in, st->in, &s.batch, PS_FAST));
        MUST(ps_kernels_drop(&drv, k, st->in, &s.batch));
        MUST(drv.cuStreamSynchronize(st->in));
        check_region(&s, "every byte came back and no other was written");
        check_flags(&s);
        check_all_free(&s);
    }
    check_clean(&s, k, st);
    scene_fini(&s);
}

static void run_cases(const struct ps_kernels *k, const struct streams *st)
{
    static const uint32_t pages[] = {512, 4096, 65536, 256u << 10, 2u << 20};
    static const uint32_t numbers[] = {1, 2, 7, PS_BATCH_MAX};
    static const struct content contents[] = {{0, 0}, {45, 15}, {100, 0}, {0, 100}};

    for (size_t p = 0; p < sizeof(pages) / sizeof(pages[0]); p++) {
        for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
            for (size_t c = 0; c < sizeof(contents) / sizeof(contents[0]); c++) {
                run_case(k, st, numbers[n], pages[p], &contents[c]);
            }
        }
    }
}

/*
 * Half of the tensors is stashed on one stream while the other half is restored and dropped on the
 * other: the two ends of the ring move at once, and the pages taken are those the last round gave.
 */
static void run_both_ends(const struct ps_kernels *k, const struct streams *st, bool with_host)
{
    static const struct content mixed = {25, 5};
    const uint64_t n_half = PS_BATCH_MAX / 2;
    struct scene s;

    scene_init(&s, PS_BATCH_MAX, 512, options.case_bytes / 4, &mixed);
    scene_create(&s, k);
    next_seq(&s);
    scene_host(&s, with_host);
    scene_share(&s, with_host ? s.n_stored / 4 : s.capacity);
    struct ps_batch half[2] = {s.batch, s.batch};

    half[0].n_items = half[1].n_items = PS_BATCH_MAX / 2;
    memcpy(half[1].items, &s.batch.items[n_half], n_half * sizeof(half[1].items[0]));
    for (int round = 0; round < 40; round++) {
        const struct ps_batch *to_stash = &half[round % 2];
        const struct ps_batch *to_drop = &half[1 - round % 2];

        const struct ps_kernels shaped = any_shape(k);

        MUST(ps_kernels_stash(&drv, &shaped, st->out, to_stash, PS_QUIET));
        if (round > 0) {
            MUST(ps_kernels_restore(&drv, k, st->in, to_drop, PS_FAST));
            MUST(ps_kernels_drop(&drv, k, st->in, to_drop));
        }
        uint64_t n_stored = 0;

        for (uint64_t i = 0; i < n_half; i++) {
            const uint64_t at = (uint64_t)(round % 2) * n_half + i;

            n_stored += s.tensors[at].n_pages - s.tensors[at].n_uniform;
        }
        MUST(drv.cuStreamSynchronize(st->out));
        MUST(drv.cuStreamSynchronize(st->in));
        scene_took(&s, to_stash, n_stored);
        for (uint64_t i = 0; i < n_half; i++) {
            MUST(drv.cuMemsetD32Async(to_stash->items[i].data, POISON_WORD,
                                      to_stash->items[i].bytes / 4, st->out));
        }
        MUST(drv.cuEventRecord(st->stashed, st->out));
        MUST(drv.cuStreamWaitEvent(st->in, st->stashed, 0));
    }
    MUST(drv.cuStreamSynchronize(st->out));
    MUST(ps_kernels_restore(&drv, k, st->in, &half[1], PS_QUIET));
    MUST(ps_kernels_drop(&drv, k, st->in, &half[1]));
    MUST(drv.cuStreamSynchronize(st->in));
    check_region(&s, "every byte came back when both ends of the list moved");
    check_all_free(&s);
    scene_fini(&s);
}

/* ---- rows ---- */

/* Counts at random, some below 0 and beyond the most. How many pages are stored; dead ones come back as poison. */
static uint64_t count_rows(struct scene *s, CUdeviceptr counts, bool trusted)
{
    int64_t n[PS_BATCH_MAX];
    uint64_t n_live = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];
        struct ps_batch_item *item = &s->batch.items[i];

        n[i] = (int64_t)(random_word() % 1300) - 100;
        item->rows = counts + i * sizeof(n[0]);
        item->before = i % 2 == 0 ? 0 : random_word() % t->bytes;
        item->rows_max = 1024;
        item->unit_shift = i % 3 == 0 ? 5 : 0;
        item->unit_bytes = (uint32_t)((item->before + t->bytes) >> (10 - item->unit_shift)) + 1;
        item->outcome = i;
        item->rows_kind = (i % 4 < 2 ? PS_ROWS_I32 : 0) | (trusted ? PS_ROWS_TRUSTED : 0);
        const uint64_t valid = ps_batch_item_valid(item, n[i]);
        const uint64_t whole = (valid + s->page_bytes - 1) / s->page_bytes * s->page_bytes;

        n_live += trusted ? whole / s->page_bytes : t->n_pages;
        if (!trusted || whole >= t->bytes) {
            n_live -= t->n_uniform; /* at most the last one: 16 bytes are uniform */
        }
        if (trusted && whole < t->bytes) {
            memset(s->want + t->offset + whole, (int)(POISON_WORD & 0xff), t->bytes - whole);
        }
    }
    MUST(extra.cuMemcpyHtoD(counts, n, s->n * sizeof(n[0])));
    return n_live;
}

/* Not trusted, random data lies behind the rows, and the ledgers say so, where there is room for it. */
static void check_beyond(const struct scene *s, bool trusted)
{
    int64_t n[PS_BATCH_MAX];
    bool ok = true;

    MUST(extra.cuMemcpyDtoH(n, s->batch.items[0].rows, s->n * sizeof(n[0])));
    for (uint32_t i = 0; i < s->n; i++) {
        const uint64_t valid = ps_batch_item_valid(&s->batch.items[i], n[i]);
        const bool room = s->tensors[i].bytes >= valid + 48; /* two words that are not alike */
        const bool told = (s->ledgers[i] & PS_LEDGER_BEYOND) != 0;

        ok = ok && (trusted ? !told : told || !room);
    }
    check(ok, s, "the ledgers tell of data behind the rows");
}

static void run_rows(const struct ps_kernels *k, const struct streams *st)
{
    static const struct content random_only = {0, 0};
    CUdeviceptr memory = 0;

    MUST(extra.cuMemAlloc(&memory, PS_BATCH_MAX * (8 + sizeof(struct ps_row_outcome))));
    MUST(drv.cuMemsetD32Async(memory, 0, PS_BATCH_MAX * (8 + sizeof(struct ps_row_outcome)) / 4,
                              CU_STREAM_LEGACY));
    for (int round = 0; round < 8; round++) {
        const bool trusted = round % 4 != 3;
        struct scene s;

        scene_init(&s, 1u << round % 4 << round % 3, 512u << 3 * (round % 4), options.case_bytes,
                   &random_only);
        scene_create(&s, k);
        next_seq(&s);
        scene_host(&s, round % 2 == 0);
        s.batch.outcomes = memory + PS_BATCH_MAX * 8;
        const uint64_t n_live = count_rows(&s, memory, trusted);
        const struct ps_kernels shaped = any_shape(k);
        MUST(ps_kernels_stash(&drv, &shaped, st->out, &s.batch, PS_QUIET));
        MUST(drv.cuStreamSynchronize(st->out));
        scene_took(&s, &s.batch, n_live);
        check_beyond(&s, trusted);
        poison(&s, st->out);
        MUST(drv.cuStreamSynchronize(st->out));
        MUST(ps_kernels_restore(&drv, &shaped, st->in, &s.batch, PS_FAST));
        MUST(ps_kernels_drop(&drv, k, st->in, &s.batch));
        MUST(drv.cuStreamSynchronize(st->in));
        check_region(&s, "rows come back, and nothing else");
        check_all_free(&s);
        scene_fini(&s);
    }
    MUST(extra.cuMemFree(memory));
}

/* ---- timed runs ---- */

enum timed {
    T_STASH,
    T_RESTORE,
    T_DROP,
    T_CLEAN,
    T_CLEAN_NONE,
    T_COPY,
    T_OUT, /* shifts */
    T_IN,
    T_DRIVER_OUT, /* the driver's copies of as much */
    T_DRIVER_IN,
    N_TIMED
};

struct times {
    float ms[N_TIMED][REPEATS_MAX];
};

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a;
    const float y = *(const float *)b;

    return (x > y) - (x < y);
}

static double median(struct times *t, enum timed what)
{
    qsort(t->ms[what], (size_t)options.repeats, sizeof(float), compare_floats);
    return (double)t->ms[what][options.repeats / 2];
}

static void begin(const struct streams *st)
{
    MUST(drv.cuEventRecord(st->start, st->out));
}

static float end(const struct streams *st)
{
    float ms = 0;

    MUST(drv.cuEventRecord(st->end, st->out));
    MUST(drv.cuStreamSynchronize(st->out));
    MUST(extra.cuEventElapsedTime(&ms, st->start, st->end));
    return ms;
}

static void time_once(struct scene *s, const struct ps_kernels *k, const struct streams *st,
                      struct times *t, int i)
{
    next_seq(s);
    begin(st);
    MUST(ps_kernels_stash(&drv, k, st->out, &s->batch, PS_FAST));
    t->ms[T_STASH][i] = end(st);
    check_stashed(s);
    poison(s, st->out);
    begin(st);
    MUST(ps_kernels_restore(&drv, k, st->out, &s->batch, PS_FAST));
    t->ms[T_RESTORE][i] = end(st);
    begin(st);
    MUST(ps_kernels_drop(&drv, k, st->out, &s->batch));
    t->ms[T_DROP][i] = end(st);
}

/* Of what the last restore flagged, then of nothing. The region is no longer what it was. */
static void time_clean(struct scene *s, const struct ps_kernels *k, const struct streams *st,
                       struct times *t, int i)
{
    /* The flags are as they were: the tables still are. */
    MUST(ps_kernels_restore(&drv, k, st->out, &s->batch, PS_FAST));
    begin(st);
    MUST(ps_kernels_clean(&drv, k, st->out, &s->batch));
    t->ms[T_CLEAN][i] = end(st);
    begin(st);
    MUST(ps_kernels_clean(&drv, k, st->out, &s->batch));
    t->ms[T_CLEAN_NONE][i] = end(st);
}

static double gb_s(uint64_t bytes, double ms)
{
    return ms > 0 ? (double)bytes / ms * 1e-6 : 0;
}

/* Bytes moved: a stash reads all and writes what it stores; a restore the other way round. */
static void time_content(const char *name, const struct content *c, const struct ps_kernels *k,
                         const struct streams *st, bool on_host)
{
    struct scene s;
    struct times t;
    uint64_t bytes = 0;
    uint64_t uniform = 0;

    scene_init(&s, options.n_tensors, options.page_bytes, options.bytes, c);
    scene_create(&s, k);
    scene_host(&s, on_host);
    if (on_host) {
        scene_share(&s, 0);
    }
    for (uint32_t i = 0; i < s.n; i++) {
        bytes += s.tensors[i].bytes;
        uniform += s.tensors[i].n_uniform;
    }
    for (int i = 0; i < options.repeats; i++) {
        time_once(&s, k, st, &t, i);
    }
    check_region(&s, "every byte came back from the timed runs");
    check_all_free(&s);
    for (int i = 0; i < options.repeats; i++) {
        time_clean(&s, k, st, &t, i);
    }
    const uint64_t pool_bytes = s.capacity * s.page_bytes;
    const uint64_t copied = pool_bytes < s.region_bytes ? pool_bytes : s.region_bytes;
    const uint64_t moved = 2 * bytes - uniform * s.page_bytes;

    for (int i = 0; i < options.repeats; i++) {
        begin(st);
        MUST(extra.cuMemcpyDtoDAsync(s.pool, s.region, copied, st->out));
        t.ms[T_COPY][i] = end(st);
    }
    const double stash = median(&t, T_STASH);
    const double restore = median(&t, T_RESTORE);

    printf(",\"%s\":{\"bytes\":%llu,\"pages\":%llu,\"uniform_pages\":%llu,\"stash_ms\":%.4f,"
           "\"restore_ms\":%.4f,\"drop_ms\":%.4f,\"clean_ms\":%.4f,\"clean_none_ms\":%.4f,"
           "\"stash_gb_s\":%.1f,\"restore_gb_s\":%.1f,"
           "\"driver_copy_ms\":%.4f,\"driver_copy_gb_s\":%.1f}",
           name, (unsigned long long)bytes, (unsigned long long)s.n_entries,
           (unsigned long long)uniform, stash, restore, median(&t, T_DROP), median(&t, T_CLEAN),
           median(&t, T_CLEAN_NONE), gb_s(moved, stash), gb_s(moved, restore), median(&t, T_COPY),
           gb_s(2 * copied, median(&t, T_COPY)));
    scene_fini(&s);
}

/* All pages one way, then as the driver copies them. */
static void time_way(const struct shift_scene *s, const struct ps_kernels *k,
                     const struct streams *st, bool to_host, struct times *t)
{
    const struct ps_shift shift = shift_of(s, to_host, 0);
    const uint64_t bytes = (uint64_t)s->n_pages * s->page_bytes;
    unsigned char *const host = s->host + s->page_bytes;
    const CUdeviceptr device = s->device + s->page_bytes;

    shift_fill(s, to_host, s->n_pages);
    for (int i = 0; i < options.repeats; i++) {
        begin(st);
        MUST(ps_kernels_shift(&drv, k, st->out, &shift));
        t->ms[to_host ? T_OUT : T_IN][i] = end(st);
    }
    shift_check(s, &shift, s->n_pages);
    for (int i = 0; i < options.repeats; i++) {
        begin(st);
        MUST(to_host ? drv.cuMemcpyDtoHAsync(host, device, bytes, st->out)
                     : drv.cuMemcpyHtoDAsync(device, host, bytes, st->out));
        t->ms[to_host ? T_DRIVER_OUT : T_DRIVER_IN][i] = end(st);
    }
}

/* A link carries each byte once. */
static void time_shift(const struct ps_kernels *k, const struct streams *st)
{
    static const char *const names[] = {"out", "in", "driver_out", "driver_in"};
    const uint64_t n = options.bytes / 4 / options.page_bytes;
    struct shift_scene s;
    struct times t;

    shift_init(&s, options.page_bytes, n < 1 ? 1 : (uint32_t)n);
    const uint64_t bytes = (uint64_t)s.n_pages * s.page_bytes;

    time_way(&s, k, st, true, &t);
    time_way(&s, k, st, false, &t);
    printf(",\"shift\":{\"bytes\":%llu,\"pages\":%u", (unsigned long long)bytes, s.n_pages);
    for (int i = 0; i < 4; i++) {
        const double ms = median(&t, (enum timed)(T_OUT + i));

        printf(",\"%s_ms\":%.4f,\"%s_gb_s\":%.1f", names[i], ms, names[i], gb_s(bytes, ms));
    }
    printf("}");
    shift_fini(&s);
}

/* ---- start ---- */

static void *find(PFN_cuGetProcAddress_v12000 get, const char *name, int version, bool needed)
{
    void *fn = NULL;
    const CUresult result = get(name, &fn, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL);

    if (needed && (result != CUDA_SUCCESS || fn == NULL)) {
        die("the driver has no %s", name);
    }
    return result == CUDA_SUCCESS ? fn : NULL;
}

static void find_driver(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    PFN_cuGetProcAddress_v12000 get = NULL;

    if (lib == NULL) {
        fprintf(stderr, "kernels_gpu: skipped, no driver: %s\n", dlerror());
        exit(EXIT_SKIPPED);
    }
    *(void **)&get = dlsym(lib, "cuGetProcAddress_v2");
    if (get == NULL) {
        die("the driver has no cuGetProcAddress_v2");
    }
#define PS_DRIVER_FN(_name, _version, _needed)                                                     \
    *(void **)&drv._name = find(get, #_name, _version, _needed);
#include "kernels/driver_fns.def"
#undef PS_DRIVER_FN
#define FIND(_name, _version) *(void **)&extra._name = find(get, #_name, _version, true);
    EXTRA_FNS(FIND)
#undef FIND
}

static uint64_t parse_size(const char *text)
{
    char *rest = NULL;
    uint64_t v = strtoull(text, &rest, 10);

    if (rest == text) {
        die("not a size: '%s'", text);
    }
    static const char units[] = "KMG";
    const char *unit = *rest != '\0' ? strchr(units, *rest) : NULL;

    if (unit != NULL) {
        v <<= 10 * (unit - units + 1);
        rest++;
    }
    if (*rest != '\0') {
        die("not a size: '%s'", text);
    }
    return v;
}

static void parse_options(int argc, char **argv)
{
    static const struct option table[] = {
        {"bytes", required_argument, NULL, 'b'},
        {"case-bytes", required_argument, NULL, 'c'},
        {"page", required_argument, NULL, 'p'},
        {"tensors", required_argument, NULL, 't'},
        {"repeats", required_argument, NULL, 'r'},
        {"seed", required_argument, NULL, 's'},
        {NULL, 0, NULL, 0},
    };
    int c;

    if (getrandom(&options.seed, sizeof(options.seed), 0) != sizeof(options.seed)) {
        options.seed = (uint64_t)time(NULL);
    }
    while ((c = getopt_long(argc, argv, "", table, NULL)) != -1) {
        const uint64_t v = c == '?' ? 0 : parse_size(optarg);

        switch (c) {
        case 'b':
            options.bytes = v;
            break;
        case 'c':
            options.case_bytes = v;
            break;
        case 'p':
            options.page_bytes = (uint32_t)v;
            break;
        case 't':
            options.n_tensors = (uint32_t)v;
            break;
        case 'r':
            options.repeats = (int)v;
            break;
        case 's':
            options.seed = v;
            break;
        default:
            die("usage: kernels_gpu [--bytes N] [--case-bytes N] [--page N] [--tensors N] "
                "[--repeats N] [--seed N]");
        }
    }
    if (options.n_tensors < 1 || options.n_tensors > PS_BATCH_MAX || options.repeats < 1 ||
        options.repeats > REPEATS_MAX || options.page_bytes < PS_PAGE_BYTES_MIN ||
        (options.page_bytes & (options.page_bytes - 1)) != 0 || options.bytes < 1024 ||
        options.case_bytes < 1024) {
        die("an option is out of range");
    }
}

/* What the module takes of the device's memory, and how long it took. */
static void load_kernels(struct ps_kernels *k)
{
    struct timespec start;
    struct timespec stop;
    size_t before = 0;
    size_t after = 0;
    size_t total = 0;

    MUST(drv.cuMemGetInfo(&before, &total));
    clock_gettime(CLOCK_MONOTONIC, &start);
    MUST(ps_kernels_load(&drv, k));
    clock_gettime(CLOCK_MONOTONIC, &stop);
    MUST(drv.cuMemGetInfo(&after, &total));
    printf(",\"module_bytes\":%lld,\"load_ms\":%.2f,\"multiprocessors\":%u",
           (long long)before - (long long)after,
           (double)(stop.tv_sec - start.tv_sec) * 1e3 +
               (double)(stop.tv_nsec - start.tv_nsec) * 1e-6,
           k->n_multiprocessors);
}

int main(int argc, char **argv)
{
    static const struct content random_only = {0, 0};
    static const struct content half = {50, 0};
    static const struct content uniform = {100, 0};
    char name[100] = "";
    CUdevice device = 0;
    CUcontext context = NULL;
    struct streams st;
    struct ps_kernels k;

    parse_options(argc, argv);
    rng = options.seed;
    find_driver();
    const CUresult started = extra.cuInit(0);

    if (started == CUDA_ERROR_NO_DEVICE) {
        fprintf(stderr, "kernels_gpu: skipped, no device\n");
        return EXIT_SKIPPED;
    }
    must(started, "cuInit");
    MUST(extra.cuDeviceGet(&device, 0));
    MUST(extra.cuDeviceGetName(name, sizeof(name), device));
    MUST(extra.cuDevicePrimaryCtxRetain(&context, device));
    MUST(drv.cuCtxSetCurrent(context));
    MUST(drv.cuStreamCreateWithPriority(&st.out, CU_STREAM_NON_BLOCKING, 0));
    MUST(drv.cuStreamCreateWithPriority(&st.in, CU_STREAM_NON_BLOCKING, 0));
    MUST(drv.cuEventCreate(&st.stashed, CU_EVENT_DISABLE_TIMING));
    MUST(drv.cuEventCreate(&st.start, CU_EVENT_DEFAULT));
    MUST(drv.cuEventCreate(&st.end, CU_EVENT_DEFAULT));
    printf("{\"device\":\"%s\",\"seed\":%llu,\"page_bytes\":%u,\"tensors\":%u", name,
           (unsigned long long)options.seed, options.page_bytes, options.n_tensors);
    load_kernels(&k);
    run_cases(&k, &st);
    run_both_ends(&k, &st, true);
    run_both_ends(&k, &st, false);
    run_rows(&k, &st);
    shift_run_cases(&k, st.out, options.case_bytes);
    time_content("random", &random_only, &k, &st, false);
    time_content("half_uniform", &half, &k, &st, false);
    time_content("uniform", &uniform, &k, &st, false);
    time_content("half_uniform_on_the_host", &half, &k, &st, true);
    time_shift(&k, &st);
    ps_kernels_unload(&drv, &k);
    MUST(extra.cuDevicePrimaryCtxRelease(device));
    printf(",\"checks\":%d,\"failures\":%d,\"passed\":%s}\n", n_checks, n_failures,
           n_failures == 0 ? "true" : "false");
    return n_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
