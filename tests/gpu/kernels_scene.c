/* SPDX-License-Identifier: Apache-2.0 */
/* What the device must hold, computed on the host: see kernels_scene.h. */
#include "tests/gpu/kernels_scene.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES  512
#define GUARD        0xC3
#define COUNTS_BYTES (2 * sizeof(uint64_t)) /* of one tensor */
#define PIECE_SHIFT  3

struct ps_driver drv;
struct extra extra;
uint64_t rng;
int n_failures;
int n_checks;

void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "kernels_gpu: ");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(EXIT_FAILURE);
}

void must(CUresult result, const char *what)
{
    const char *name = NULL;

    if (result != CUDA_SUCCESS) {
        if (drv.cuGetErrorName != NULL) {
            (void)drv.cuGetErrorName(result, &name);
        }
        die("%s: %s (%d)", what, name != NULL ? name : "CUDA error", (int)result);
    }
}

/* False: it failed, and that is worth a line. */
static bool count_check(bool ok)
{
    n_checks++;
    n_failures += !ok;
    return ok || n_failures > 20;
}

void check(bool ok, const struct scene *s, const char *what)
{
    if (!count_check(ok)) {
        fprintf(stderr, "FAILED %s: %u tensors, page %u, %llu bytes\n", what, s->n, s->page_bytes,
                (unsigned long long)s->region_bytes);
    }
}

void check_pages(bool ok, uint64_t n_pages, uint32_t page_bytes, const char *what)
{
    if (!count_check(ok)) {
        fprintf(stderr, "FAILED %s: %llu pages of %u bytes\n", what, (unsigned long long)n_pages,
                page_bytes);
    }
}

uint64_t random_word(void)
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
    s->n_slots = 4;
    while (s->n_slots < s->capacity) {
        s->n_slots *= 2;
    }
}

static void fill_batch(struct scene *s)
{
    struct ps_batch *b = &s->batch;

    b->pool = s->pool;
    b->host_pieces = s->pieces;
    b->free_list = s->list[0];
    b->host_list = s->list[1];
    b->host_shift = PIECE_SHIFT;
    b->page_bytes = s->page_bytes;
    b->n_items = s->n;
    for (uint32_t i = 0; i < s->n; i++) {
        b->items[i].data = s->region + s->tensors[i].offset;
        b->items[i].bytes = s->tensors[i].bytes;
        b->items[i].table = s->table + s->tensors[i].first_entry * sizeof(struct ps_page_entry);
        b->items[i].counts = s->counts + i * COUNTS_BYTES;
        b->items[i].ledger = (uint64_t)(uintptr_t)&s->ledgers[i];
        b->items[i].flags = s->flags + s->tensors[i].first_entry;
    }
}

static void device_fill(CUdeviceptr at, uint64_t bytes, uint32_t word)
{
    MUST(drv.cuMemsetD32Async(at, word, bytes / 4, CU_STREAM_LEGACY));
}

static void create_list(struct scene *s, int part, const struct ps_kernels *k)
{
    struct ps_free_list list = {.n_slots = s->n_slots};
    const uint32_t bit = part == 0 ? 0 : PS_PAGE_HOST;
    const uint32_t half = (uint32_t)(s->capacity / 2);

    MUST(extra.cuMemAlloc(&s->list[part], sizeof(list)));
    MUST(extra.cuMemAlloc(&s->slots[part], round_up(s->n_slots * 8, 512)));
    MUST(drv.cuMemsetD32Async(s->slots[part], 0, round_up(s->n_slots * 8, 512) / 4,
                              CU_STREAM_LEGACY));
    memcpy(&list.slots, &s->slots[part], sizeof(list.slots));
    list.head = list.tail = s->n_taken[part] = random_word() >> 20;
    MUST(extra.cuMemcpyHtoD(s->list[part], &list, sizeof(list)));
    MUST(ps_kernels_grow(&drv, k, CU_STREAM_LEGACY, s->list[part], bit, half));
    MUST(ps_kernels_grow(&drv, k, CU_STREAM_LEGACY, s->list[part], bit | half,
                         (uint32_t)s->capacity - half));
}

/* The pieces' addresses in reverse: they need not follow each other. */
static void create_pieces(struct scene *s)
{
    const uint64_t piece = (uint64_t)s->page_bytes << PIECE_SHIFT;
    const uint64_t n = (s->capacity >> PIECE_SHIFT) + 1;
    uint64_t *at = host_alloc(n * sizeof(*at));

    MUST(drv.cuMemHostAlloc((void **)&s->host_pool, n * piece, CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(extra.cuMemAlloc(&s->pieces, n * sizeof(*at)));
    for (uint64_t i = 0; i < n; i++) {
        at[i] = (uint64_t)(uintptr_t)(s->host_pool + (n - 1 - i) * piece);
    }
    MUST(extra.cuMemcpyHtoD(s->pieces, at, n * sizeof(*at)));
    free(at);
}

/* Poison, but for the state, which must begin as 0. */
static void create_table(const struct scene *s)
{
    struct ps_page_entry *table = host_alloc(s->n_entries * sizeof(*table));

    memset(table, (int)(POISON_WORD & 0xff), s->n_entries * sizeof(*table));
    for (uint64_t i = 0; i < s->n_entries; i++) {
        table[i].state = 0;
    }
    MUST(extra.cuMemcpyHtoD(s->table, table, s->n_entries * sizeof(*table)));
    free(table);
}

void scene_create(struct scene *s, const struct ps_kernels *k)
{
    MUST(extra.cuMemAlloc(&s->region, s->region_bytes));
    MUST(extra.cuMemAlloc(&s->pool, s->capacity * s->page_bytes));
    MUST(extra.cuMemAlloc(&s->table, s->n_entries * sizeof(struct ps_page_entry)));
    MUST(extra.cuMemAlloc(&s->counts, PS_BATCH_MAX * COUNTS_BYTES));
    MUST(extra.cuMemAlloc(&s->flags, round_up(s->n_entries, 4)));
    MUST(drv.cuMemHostAlloc((void **)&s->ledgers, PS_BATCH_MAX * sizeof(uint64_t), 0));
    device_fill(s->pool, s->capacity * s->page_bytes, POISON_WORD);
    create_table(s);
    device_fill(s->counts, PS_BATCH_MAX * COUNTS_BYTES, 0);
    device_fill(s->flags, round_up(s->n_entries, 4), POISON_WORD);
    MUST(extra.cuMemcpyHtoD(s->region, s->want, s->region_bytes));
    create_list(s, 0, k);
    create_list(s, 1, k);
    create_pieces(s);
    MUST(drv.cuCtxSynchronize());
    fill_batch(s);
    s->share = s->capacity;
}

void scene_share(struct scene *s, uint64_t device_pages)
{
    MUST(extra.cuMemcpyHtoD(s->list[0] + offsetof(struct ps_free_list, n_free), &device_pages,
                            sizeof(device_pages)));
    s->share = device_pages;
}

void scene_init(struct scene *s, uint32_t n, uint32_t page_bytes, uint64_t bytes,
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

void scene_fini(struct scene *s)
{
    MUST(drv.cuCtxSynchronize());
    const CUdeviceptr all[] = {s->region,  s->pool,    s->table,    s->counts,   s->flags,
                               s->list[0], s->list[1], s->slots[0], s->slots[1], s->pieces};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        MUST(extra.cuMemFree(all[i]));
    }
    MUST(drv.cuMemFreeHost(s->ledgers));
    MUST(drv.cuMemFreeHost(s->host_pool));
    free(s->want);
    free(s->got);
}

/* ---- checks; the device must be idle ---- */

static void check_list(const struct scene *s, int part, uint64_t n_free)
{
    struct ps_free_list list;
    uint32_t *slots = host_alloc(s->n_slots * 4);
    bool *seen = calloc(s->capacity, sizeof(bool));
    bool ok = seen != NULL;

    MUST(extra.cuMemcpyDtoH(&list, s->list[part], sizeof(list)));
    MUST(extra.cuMemcpyDtoH(slots, s->slots[part], s->n_slots * 4));
    const uint64_t hidden = part == 0 ? s->capacity - s->share : 0;

    ok = ok && list.done == 0 && list.n_spare == 0 && list.head == s->n_taken[part] &&
         list.tail - list.head == n_free && list.n_free == n_free - hidden;
    for (uint64_t at = list.head; ok && at < list.tail; at++) {
        const uint32_t page = slots[at % s->n_slots] ^ (part == 0 ? 0 : PS_PAGE_HOST);

        ok = page < s->capacity && !seen[page];
        if (ok) {
            seen[page] = true;
        }
    }
    check(ok, s,
          part == 0 ? "the free list of device pages holds each free page once"
                    : "the free list of host pages holds each free page once");
    free(seen);
    free(slots);
}

void check_all_free(const struct scene *s)
{
    check_list(s, 0, s->capacity);
    check_list(s, 1, s->capacity);
}

static uint64_t n_on_device(const struct scene *s, uint64_t n_stored)
{
    return n_stored < s->share ? n_stored : s->share;
}

void scene_took(struct scene *s, const struct ps_batch *b, uint64_t n_stored)
{
    uint64_t n[2] = {0, 0};

    for (uint32_t i = 0; i < b->n_items; i++) {
        const uint64_t word = *(const volatile uint64_t *)(uintptr_t)b->items[i].ledger;

        n[0] += PS_LEDGER_DEVICE(word);
        n[1] += PS_LEDGER_HOST(word);
    }
    check(n[0] + n[1] == n_stored, s, "a stash stores what is not uniform");
    s->n_taken[0] += n[0];
    s->n_taken[1] += n[1];
}

/* Says how many pages each tensor has on the host. */
static void check_table(const struct scene *s, uint64_t n_host[PS_BATCH_MAX])
{
    const uint64_t bytes = s->n_entries * sizeof(struct ps_page_entry);
    struct ps_page_entry *table = host_alloc(bytes);
    bool ok = true;

    MUST(extra.cuMemcpyDtoH(table, s->table, bytes));
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];

        n_host[i] = 0;
        for (uint64_t k = 0; k < t->n_pages; k++) {
            const struct ps_page_entry *e = &table[t->first_entry + k];
            const unsigned char *at = s->want + t->offset + k * s->page_bytes;

            if (is_uniform(at, page_length(s, t, k))) {
                ok = ok && e->page == PS_PAGE_UNIFORM && memcmp(e->word, at, 16) == 0;
            } else {
                ok = ok && e->state == 0 && (e->page & ~PS_PAGE_HOST) < s->capacity;
                n_host[i] += (e->page & PS_PAGE_HOST) != 0;
            }
        }
    }
    check(ok, s, "the table names uniform pages with their word, and no others");
    free(table);
}

static bool is_zero(const unsigned char *at, uint64_t bytes)
{
    static const unsigned char zero[16];

    return memcmp(at, zero, sizeof(zero)) == 0 && is_uniform(at, bytes);
}

/* Stash and restore leave the same ones. */
void check_flags(const struct scene *s)
{
    unsigned char *flags = host_alloc(s->n_entries);
    bool ok = true;

    MUST(extra.cuMemcpyDtoH(flags, s->flags, s->n_entries));
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];

        for (uint64_t k = 0; k < t->n_pages; k++) {
            const unsigned char *at = s->want + t->offset + k * s->page_bytes;

            ok = ok && flags[t->first_entry + k] == !is_zero(at, page_length(s, t, k));
        }
    }
    check(ok, s, "the flags tell which pages are not zero");
    free(flags);
}

void check_stashed(struct scene *s)
{
    uint64_t counts[PS_BATCH_MAX][2];
    uint64_t n_host[PS_BATCH_MAX];
    uint64_t all_host = 0;
    bool ledgers = true;
    bool zero = true;

    MUST(extra.cuMemcpyDtoH(counts, s->counts, sizeof(counts)));
    check_table(s, n_host);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];

        ledgers =
            ledgers && s->ledgers[i] == PS_LEDGER(s->batch.items[i].seq,
                                                  t->n_pages - t->n_uniform - n_host[i], n_host[i]);
        zero = zero && counts[i][0] == 0 && counts[i][1] == 0;
        all_host += n_host[i];
    }
    check(ledgers, s, "the ledgers say what was stored");
    check(zero, s, "the counts are zero again");
    check(all_host == s->n_stored - n_on_device(s, s->n_stored), s,
          "what is beyond the device's share is on the host");
    scene_took(s, &s->batch, s->n_stored);
    check_flags(s);
    check_list(s, 0, s->capacity - n_on_device(s, s->n_stored));
    check_list(s, 1, s->capacity - all_host);
}

void check_region(const struct scene *s, const char *what)
{
    MUST(extra.cuMemcpyDtoH(s->got, s->region, s->region_bytes));
    check(memcmp(s->got, s->want, s->region_bytes) == 0, s, what);
}

/* ---- what is to come ---- */

void poison(const struct scene *s, CUstream stream)
{
    for (uint32_t i = 0; i < s->n; i++) {
        MUST(drv.cuMemsetD32Async(s->region + s->tensors[i].offset, POISON_WORD,
                                  s->tensors[i].bytes / 4, stream));
    }
}

void poison_some(const struct scene *s, CUstream stream)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const uint64_t bytes = s->tensors[i].bytes;

        for (int k = 0; k < 4; k++) {
            const uint64_t from = random_word() % (bytes / 16) * 16;
            const uint64_t most =
                bytes - from < 2 * s->page_bytes ? bytes - from : 2 * s->page_bytes;

            MUST(drv.cuMemsetD32Async(s->region + s->tensors[i].offset + from, POISON_WORD,
                                      (random_word() % (most / 16) + 1) * 4, stream));
        }
    }
}

void scene_host(struct scene *s, bool with)
{
    s->batch.host_list = with ? s->list[1] : 0;
    if (!with) {
        scene_share(s, s->capacity);
    }
}

struct ps_kernels any_shape(const struct ps_kernels *k)
{
    static const uint32_t blocks[] = {0, 3, 132, 1056};
    struct ps_kernels shaped = *k;
    const uint32_t chunk = 512u << random_word() % 6;
    const struct ps_shape shape = {
        blocks[random_word() % 4],
        512u << random_word() % 13,
        chunk,
        2 + (uint32_t)(random_word() % (chunk > 8192   ? 1
                                        : chunk > 2048 ? 2
                                                       : PS_CHUNKS_MAX - 1)),
    };

    if (random_word() % 4 != 0) {
        shaped.out = shaped.in = (struct ps_shapes){shape, shape, shape, shape};
    }
    return shaped;
}

void next_seq(struct scene *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        s->batch.items[i].seq = (uint16_t)(random_word() & PS_SEQ_MAX);
        s->ledgers[i] = ~UINT64_C(0);
    }
}

void expect_cleaned(struct scene *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];

        for (uint64_t p = 0; p < t->n_pages; p++) {
            unsigned char *at = s->want + t->offset + p * s->page_bytes;

            memset(at, 0, page_length(s, t, p));
        }
    }
}

/* Every word of the page is this one. */
static bool is_made_of(const unsigned char *at, uint64_t bytes, unsigned char value)
{
    return *at == value && memcmp(at, at + 1, bytes - 1) == 0;
}

void expect_zeros(struct scene *s, bool poisoned)
{
    const unsigned char poison_byte = (unsigned char)(POISON_WORD & 0xff);

    for (uint32_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];

        for (uint64_t p = 0; p < t->n_pages; p++) {
            unsigned char *at = s->want + t->offset + p * s->page_bytes;

            if (is_made_of(at, page_length(s, t, p), poisoned ? 0 : poison_byte)) {
                memset(at, poisoned ? poison_byte : 0, page_length(s, t, p));
            }
        }
    }
}

void expect_poison(struct scene *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        memset(s->want + s->tensors[i].offset, (int)(POISON_WORD & 0xff), s->tensors[i].bytes);
    }
}
