/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stash kernels on whatever device the driver offers (a GPU, or simcuda with small sizes):
 * random tensors go out to pages, are overwritten, come back and are compared bit for bit, guards
 * between them included; tables, ledgers and the free list are compared with what the host
 * computes. Prints one JSON object on one line; exit 0 if all was right, 1 if not, 77 where there
 * is no device. One thread.
 */
#include <dlfcn.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/kernels.h"

#define GUARD_BYTES  512
#define GUARD        0xC3
#define POISON_WORD  0xA5A5A5A5u
#define REPEATS_MAX  99
#define COUNTS_BYTES (2 * sizeof(uint64_t)) /* of one tensor */
#define EXIT_SKIPPED 77                     /* meson's */

#define EXTRA_FNS(_fn)                                                                             \
    _fn(cuInit, 2000) _fn(cuDeviceGet, 2000) _fn(cuDeviceGetName, 2000)                            \
        _fn(cuDevicePrimaryCtxRetain, 7000) _fn(cuDevicePrimaryCtxRelease, 11000)                  \
            _fn(cuMemAlloc, 3020) _fn(cuMemFree, 3020) _fn(cuMemcpyHtoD, 3020)                     \
                _fn(cuMemcpyDtoH, 3020) _fn(cuMemcpyDtoDAsync, 3020) _fn(cuEventElapsedTime, 2000)

struct extra {
#define DECLARE(_name, _version) PFN_##_name##_v##_version _name;
    EXTRA_FNS(DECLARE)
#undef DECLARE
};

static struct ps_driver drv;
static struct extra extra;
static uint64_t rng;
static int n_failures;
static int n_checks;

static struct {
    uint64_t bytes; /* of the timed runs */
    uint64_t case_bytes;
    uint32_t page_bytes;
    uint32_t n_tensors;
    int repeats;
    uint64_t seed;
} options = {
    .bytes = UINT64_C(9) << 28,
    .case_bytes = UINT64_C(48) << 20,
    .page_bytes = 256u << 10,
    .n_tensors = 6,
    .repeats = 15,
};

struct tensor {
    uint64_t offset; /* in the region */
    uint64_t bytes;
    uint64_t n_pages;
    uint64_t n_uniform;
    uint64_t first_entry; /* in the table that all share */
};

/* Tensors in one region of device memory, guards between them, and a pool that holds them all. */
struct scene {
    uint32_t page_bytes;
    uint32_t n;
    struct tensor tensors[PS_BATCH_MAX];
    uint64_t region_bytes, n_entries, n_stored, capacity, n_slots;
    unsigned char *want, *got; /* the region on the host */
    CUdeviceptr region, pool, list, slots, table, counts;
    uint64_t *ledgers; /* pinned */
    uint64_t n_taken;  /* the free list's head as it must be */
    struct ps_batch batch;
};

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "kernels_gpu: ");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(EXIT_FAILURE);
}

static void must(CUresult result, const char *what)
{
    const char *name = NULL;

    if (result != CUDA_SUCCESS) {
        if (drv.cuGetErrorName != NULL) {
            (void)drv.cuGetErrorName(result, &name);
        }
        die("%s: %s (%d)", what, name != NULL ? name : "CUDA error", (int)result);
    }
}
#define MUST(_call) must((_call), #_call)

static void check(bool ok, const struct scene *s, const char *what)
{
    n_checks++;
    if (!ok) {
        n_failures++;
        if (n_failures <= 20) {
            fprintf(stderr, "FAILED %s: %u tensors, page %u, %llu bytes\n", what, s->n,
                    s->page_bytes, (unsigned long long)s->region_bytes);
        }
    }
}

static uint64_t random_word(void)
{
    uint64_t z = rng += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void *host_alloc(uint64_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);

    if (p == NULL) {
        die("no %llu bytes of host memory", (unsigned long long)bytes);
    }
    return p;
}

/* ---- content ---- */

static void make_random(unsigned char *at, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += 8) {
        const uint64_t v = random_word();

        memcpy(at + i, &v, 8);
    }
}

static void make_uniform(unsigned char *at, uint64_t bytes)
{
    uint64_t word[2] = {0, 0};

    if (random_word() % 2 == 0) {
        word[0] = random_word();
        word[1] = random_word();
    }
    for (uint64_t i = 0; i < bytes; i += 16) {
        memcpy(at + i, word, 16);
    }
}

static bool is_uniform(const unsigned char *at, uint64_t bytes)
{
    return memcmp(at, at + 16, bytes - 16) == 0;
}

struct content {
    unsigned uniform_percent;
    unsigned almost_percent; /* of all pages: uniform but for one bit */
};

static uint64_t page_length(const struct scene *s, const struct tensor *t, uint64_t page)
{
    const uint64_t left = t->bytes - page * s->page_bytes;

    return left < s->page_bytes ? left : s->page_bytes;
}

static void make_tensor(struct scene *s, struct tensor *t, const struct content *c)
{
    for (uint64_t i = 0; i < t->n_pages; i++) {
        unsigned char *at = s->want + t->offset + i * s->page_bytes;
        const uint64_t bytes = page_length(s, t, i);
        const uint64_t kind = random_word() % 100;

        if (kind < c->uniform_percent + c->almost_percent) {
            make_uniform(at, bytes);
        } else {
            make_random(at, bytes);
        }
        if (kind < c->almost_percent && bytes > 0) {
            at[random_word() % bytes] ^= (unsigned char)(1u << random_word() % 8);
        }
        t->n_uniform += is_uniform(at, bytes) ? 1 : 0;
    }
    s->n_stored += t->n_pages - t->n_uniform;
}

/* ---- a scene ---- */

static uint64_t round_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

static void lay_out(struct scene *s, uint64_t bytes)
{
    uint64_t at = GUARD_BYTES;

    for (uint32_t i = 0; i < s->n; i++) {
        struct tensor *t = &s->tensors[i];
        const uint64_t less = random_word() % (s->page_bytes / 16) * 16;
        const uint64_t share = round_up(bytes / s->n, 16);

        t->offset = at;
        t->bytes = share > less ? share - less : 16;
        t->n_pages = (t->bytes + s->page_bytes - 1) / s->page_bytes;
        t->first_entry = s->n_entries;
        s->n_entries += t->n_pages;
        at += round_up(t->bytes, GUARD_BYTES) + GUARD_BYTES;
    }
    s->region_bytes = at;
    s->capacity = s->n_entries;
    s->n_slots = 1;
    while (s->n_slots < s->capacity) {
        s->n_slots *= 2;
    }
}

static void fill_batch(struct scene *s)
{
    struct ps_batch *b = &s->batch;

    b->pool = s->pool;
    b->free_list = s->list;
    b->page_bytes = s->page_bytes;
    b->n_items = s->n;
    for (uint32_t i = 0; i < s->n; i++) {
        b->items[i].data = s->region + s->tensors[i].offset;
        b->items[i].bytes = s->tensors[i].bytes;
        b->items[i].table = s->table + s->tensors[i].first_entry * sizeof(struct ps_page_entry);
        b->items[i].counts = s->counts + i * COUNTS_BYTES;
        b->items[i].ledger = (uint64_t)(uintptr_t)&s->ledgers[i];
    }
}

static void device_fill(CUdeviceptr at, uint64_t bytes, uint32_t word)
{
    MUST(drv.cuMemsetD32Async(at, word, bytes / 4, CU_STREAM_LEGACY));
}

/* Allocates, uploads, and has the grow kernel make the free list in two pieces. */
static void scene_create(struct scene *s, const struct ps_kernels *k)
{
    struct ps_free_list list = {.n_slots = s->n_slots};
    const uint32_t half = (uint32_t)(s->capacity / 2);

    MUST(extra.cuMemAlloc(&s->region, s->region_bytes));
    MUST(extra.cuMemAlloc(&s->pool, s->capacity * s->page_bytes));
    MUST(extra.cuMemAlloc(&s->list, sizeof(list)));
    MUST(extra.cuMemAlloc(&s->slots, round_up(s->n_slots * 4, 512)));
    MUST(extra.cuMemAlloc(&s->table, s->n_entries * sizeof(struct ps_page_entry)));
    MUST(extra.cuMemAlloc(&s->counts, PS_BATCH_MAX * COUNTS_BYTES));
    MUST(drv.cuMemHostAlloc((void **)&s->ledgers, PS_BATCH_MAX * sizeof(uint64_t), 0));
    device_fill(s->pool, s->capacity * s->page_bytes, POISON_WORD);
    device_fill(s->table, s->n_entries * sizeof(struct ps_page_entry), POISON_WORD);
    device_fill(s->counts, PS_BATCH_MAX * COUNTS_BYTES, 0);
    memcpy(&list.slots, &s->slots, sizeof(list.slots));
    list.head = list.tail = s->n_taken = random_word() >> 20;
    MUST(extra.cuMemcpyHtoD(s->list, &list, sizeof(list)));
    MUST(extra.cuMemcpyHtoD(s->region, s->want, s->region_bytes));
    MUST(ps_kernels_grow(&drv, k, CU_STREAM_LEGACY, s->list, 0, half));
    MUST(ps_kernels_grow(&drv, k, CU_STREAM_LEGACY, s->list, half, (uint32_t)s->capacity - half));
    MUST(drv.cuCtxSynchronize());
    fill_batch(s);
}

static void scene_init(struct scene *s, uint32_t n, uint32_t page_bytes, uint64_t bytes,
                       const struct content *c)
{
    memset(s, 0, sizeof(*s));
    s->n = n;
    s->page_bytes = page_bytes;
    lay_out(s, bytes);
    s->want = host_alloc(s->region_bytes);
    s->got = host_alloc(s->region_bytes);
    memset(s->want, GUARD, s->region_bytes);
    for (uint32_t i = 0; i < n; i++) {
        make_tensor(s, &s->tensors[i], c);
    }
}

static void scene_fini(struct scene *s)
{
    MUST(drv.cuCtxSynchronize());
    const CUdeviceptr all[] = {s->region, s->pool, s->list, s->slots, s->table, s->counts};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        MUST(extra.cuMemFree(all[i]));
    }
    MUST(drv.cuMemFreeHost(s->ledgers));
    free(s->want);
    free(s->got);
}

/* ---- checks; the device must be idle ---- */

static void check_list(const struct scene *s, uint64_t n_free)
{
    struct ps_free_list list;
    uint32_t *slots = host_alloc(s->n_slots * 4);
    bool *seen = calloc(s->capacity, sizeof(bool));
    bool ok = seen != NULL;

    MUST(extra.cuMemcpyDtoH(&list, s->list, sizeof(list)));
    MUST(extra.cuMemcpyDtoH(slots, s->slots, s->n_slots * 4));
    ok = ok && list.done == 0 && list.head == s->n_taken && list.tail - list.head == n_free;
    for (uint64_t at = list.head; ok && at < list.tail; at++) {
        const uint32_t page = slots[at % s->n_slots];

        ok = page < s->capacity && !seen[page];
        if (ok) {
            seen[page] = true;
        }
    }
    check(ok, s, "the free list holds each free page once");
    free(seen);
    free(slots);
}

static void check_table(const struct scene *s)
{
    const uint64_t bytes = s->n_entries * sizeof(struct ps_page_entry);
    struct ps_page_entry *table = host_alloc(bytes);
    bool ok = true;

    MUST(extra.cuMemcpyDtoH(table, s->table, bytes));
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];

        for (uint64_t k = 0; k < t->n_pages; k++) {
            const struct ps_page_entry *e = &table[t->first_entry + k];
            const unsigned char *at = s->want + t->offset + k * s->page_bytes;

            if (is_uniform(at, page_length(s, t, k))) {
                ok = ok && e->page == PS_PAGE_UNIFORM && memcmp(e->word, at, 16) == 0;
            } else {
                ok = ok && e->page < s->capacity;
            }
        }
    }
    check(ok, s, "the table names uniform pages with their word, and no others");
    free(table);
}

static void check_stashed(struct scene *s)
{
    uint64_t counts[PS_BATCH_MAX][2];
    bool ledgers = true;
    bool zero = true;

    MUST(extra.cuMemcpyDtoH(counts, s->counts, sizeof(counts)));
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];

        ledgers = ledgers && s->ledgers[i] == PS_LEDGER(s->batch.items[i].seq,
                                                        t->n_pages - t->n_uniform, t->n_uniform);
        zero = zero && counts[i][0] == 0 && counts[i][1] == 0;
    }
    s->n_taken += s->n_stored;
    check(ledgers, s, "the ledgers say what was stored");
    check(zero, s, "the counts are zero again");
    check_table(s);
    check_list(s, s->capacity - s->n_stored);
}

static void check_region(const struct scene *s, const char *what)
{
    MUST(extra.cuMemcpyDtoH(s->got, s->region, s->region_bytes));
    check(memcmp(s->got, s->want, s->region_bytes) == 0, s, what);
}

/* ---- runs ---- */

struct streams {
    CUstream out, in;
    CUevent stashed, start, end;
};

static void poison(const struct scene *s, CUstream stream)
{
    for (uint32_t i = 0; i < s->n; i++) {
        MUST(drv.cuMemsetD32Async(s->region + s->tensors[i].offset, POISON_WORD,
                                  s->tensors[i].bytes / 4, stream));
    }
}

static void next_seq(struct scene *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        s->batch.items[i].seq = (uint16_t)random_word();
        s->ledgers[i] = ~UINT64_C(0);
    }
}

/* Out on one stream, back on another, as the engine does. */
static void run_case(const struct ps_kernels *k, const struct streams *st, uint32_t n,
                     uint32_t page_bytes, const struct content *c)
{
    struct scene s;

    scene_init(&s, n, page_bytes, options.case_bytes, c);
    scene_create(&s, k);
    for (int round = 0; round < 2; round++) {
        next_seq(&s);
        MUST(ps_kernels_stash(&drv, k, st->out, &s.batch));
        MUST(drv.cuStreamSynchronize(st->out));
        check_stashed(&s);
        check_region(&s, "a stash leaves the tensors as they were");
        poison(&s, st->out);
        MUST(drv.cuEventRecord(st->stashed, st->out));
        MUST(drv.cuStreamWaitEvent(st->in, st->stashed, 0));
        MUST(ps_kernels_restore(&drv, k, st->in, &s.batch));
        MUST(ps_kernels_drop(&drv, k, st->in, &s.batch));
        MUST(drv.cuStreamSynchronize(st->in));
        check_region(&s, "every byte came back and no other was written");
        check_list(&s, s.capacity);
    }
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
static void run_both_ends(const struct ps_kernels *k, const struct streams *st)
{
    static const struct content mixed = {25, 5};
    const uint64_t n_half = PS_BATCH_MAX / 2;
    struct scene s;

    scene_init(&s, PS_BATCH_MAX, 512, options.case_bytes / 4, &mixed);
    scene_create(&s, k);
    next_seq(&s);
    struct ps_batch half[2] = {s.batch, s.batch};

    half[0].n_items = half[1].n_items = PS_BATCH_MAX / 2;
    memcpy(half[1].items, &s.batch.items[n_half], n_half * sizeof(half[1].items[0]));
    for (int round = 0; round < 40; round++) {
        const struct ps_batch *to_stash = &half[round % 2];
        const struct ps_batch *to_drop = &half[1 - round % 2];

        MUST(ps_kernels_stash(&drv, k, st->out, to_stash));
        if (round > 0) {
            MUST(ps_kernels_restore(&drv, k, st->in, to_drop));
            MUST(ps_kernels_drop(&drv, k, st->in, to_drop));
        }
        for (uint64_t i = 0; i < n_half; i++) {
            const uint64_t at = (uint64_t)(round % 2) * n_half + i;

            s.n_taken += s.tensors[at].n_pages - s.tensors[at].n_uniform;
        }
        MUST(drv.cuStreamSynchronize(st->out));
        MUST(drv.cuStreamSynchronize(st->in));
        for (uint64_t i = 0; i < n_half; i++) {
            MUST(drv.cuMemsetD32Async(to_stash->items[i].data, POISON_WORD,
                                      to_stash->items[i].bytes / 4, st->out));
        }
    }
    MUST(drv.cuStreamSynchronize(st->out));
    MUST(ps_kernels_restore(&drv, k, st->in, &half[1]));
    MUST(ps_kernels_drop(&drv, k, st->in, &half[1]));
    MUST(drv.cuStreamSynchronize(st->in));
    check_region(&s, "every byte came back when both ends of the list moved");
    check_list(&s, s.capacity);
    scene_fini(&s);
}

/* ---- timed runs ---- */

enum timed { T_STASH, T_RESTORE, T_DROP, T_COPY, N_TIMED };

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
    MUST(ps_kernels_stash(&drv, k, st->out, &s->batch));
    t->ms[T_STASH][i] = end(st);
    check_stashed(s);
    poison(s, st->out);
    begin(st);
    MUST(ps_kernels_restore(&drv, k, st->out, &s->batch));
    t->ms[T_RESTORE][i] = end(st);
    begin(st);
    MUST(ps_kernels_drop(&drv, k, st->out, &s->batch));
    t->ms[T_DROP][i] = end(st);
}

static double gb_s(uint64_t bytes, double ms)
{
    return ms > 0 ? (double)bytes / ms * 1e-6 : 0;
}

/* Bytes moved: a stash reads all and writes what it stores; a restore the other way round. */
static void time_content(const char *name, const struct content *c, const struct ps_kernels *k,
                         const struct streams *st)
{
    struct scene s;
    struct times t;
    uint64_t bytes = 0;
    uint64_t uniform = 0;

    scene_init(&s, options.n_tensors, options.page_bytes, options.bytes, c);
    scene_create(&s, k);
    for (uint32_t i = 0; i < s.n; i++) {
        bytes += s.tensors[i].bytes;
        uniform += s.tensors[i].n_uniform;
    }
    for (int i = 0; i < options.repeats; i++) {
        time_once(&s, k, st, &t, i);
    }
    check_region(&s, "every byte came back from the timed runs");
    check_list(&s, s.capacity);
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
           "\"restore_ms\":%.4f,\"drop_ms\":%.4f,\"stash_gb_s\":%.1f,\"restore_gb_s\":%.1f,"
           "\"driver_copy_ms\":%.4f,\"driver_copy_gb_s\":%.1f}",
           name, (unsigned long long)bytes, (unsigned long long)s.n_entries,
           (unsigned long long)uniform, stash, restore, median(&t, T_DROP), gb_s(moved, stash),
           gb_s(moved, restore), median(&t, T_COPY), gb_s(2 * copied, median(&t, T_COPY)));
    scene_fini(&s);
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
    printf(",\"module_bytes\":%lld,\"load_ms\":%.2f,\"blocks\":%u",
           (long long)before - (long long)after,
           (double)(stop.tv_sec - start.tv_sec) * 1e3 +
               (double)(stop.tv_nsec - start.tv_nsec) * 1e-6,
           k->n_blocks);
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
    run_both_ends(&k, &st);
    time_content("random", &random_only, &k, &st);
    time_content("half_uniform", &half, &k, &st);
    time_content("uniform", &uniform, &k, &st);
    ps_kernels_unload(&drv, &k);
    MUST(extra.cuDevicePrimaryCtxRelease(device));
    printf(",\"checks\":%d,\"failures\":%d,\"passed\":%s}\n", n_checks, n_failures,
           n_failures == 0 ? "true" : "false");
    return n_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
