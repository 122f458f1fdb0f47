/* SPDX-License-Identifier: Apache-2.0 */
/* The model of pool, free list and tensors: see test_kernels_sim.h. */
#include "tests/unit/test_kernels_sim.h"

#include <stdlib.h>
#include <string.h>

#include <check.h>

#define GUARD_BYTES UINT64_C(512)
#define GUARD       0xC3
#define POISON      0xA5

static void *allocate(uint64_t bytes)
{
    void *p = aligned_alloc(512, (bytes + 511) / 512 * 512 + 512);

    ck_assert_ptr_nonnull(p);
    return p;
}

static uint64_t device(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

static uint32_t *slot(const struct part *part, uint64_t at)
{
    return &part->list->slots[at % part->n_slots];
}

static uint64_t n_free(const struct part *part)
{
    return part->tail - part->head;
}

uint64_t pool_n_free(const struct pool *p)
{
    return n_free(&p->device) + n_free(&p->host);
}

void pool_hide_rest(struct pool *p, uint64_t n_seen)
{
    ck_assert_uint_le(n_seen, n_free(&p->device));
    p->device.hidden = n_free(&p->device) - n_seen;
    p->device.list->n_free = n_seen;
}

static void shuffle(struct pool *p, struct part *part)
{
    for (uint64_t left = n_free(part); left > 1; left--) {
        uint32_t *a = slot(part, part->head + left - 1);
        uint32_t *b = slot(part, part->head + test_random(&p->rng) % left);
        const uint32_t page = *a;

        *a = *b;
        *b = page;
    }
}

static void init_part(struct pool *p, struct part *part, uint32_t n_first, uint64_t start)
{
    part->list = allocate(sizeof(*part->list));
    part->list->slots = allocate(2 * part->n_slots * sizeof(uint32_t));
    memset(part->list->slots, POISON, 2 * part->n_slots * sizeof(uint32_t));
    part->is_out = calloc(part->capacity, sizeof(bool));
    ck_assert_ptr_nonnull(part->is_out);
    part->head = start;
    part->tail = start + n_first;
    part->list->head = part->head;
    part->list->tail = part->tail;
    part->list->n_slots = part->n_slots;
    part->list->n_free = n_first;
    part->list->done = part->list->n_spare = 0;
    for (uint32_t i = 0; i < n_first; i++) {
        *slot(part, start + i) = part->bit | i;
    }
    for (uint32_t i = n_first; i < part->capacity; i++) {
        part->is_out[i] = true;
        part->n_out++;
    }
    shuffle(p, part);
}

static void init(struct pool *p, uint32_t n_first, uint64_t start)
{
    const uint64_t bytes = (uint64_t)p->device.capacity * p->page_bytes;

    p->pages = allocate(bytes);
    memset(p->pages, POISON, bytes);
    p->rng = p->page_bytes + start;
    init_part(p, &p->device, n_first, start);
    pool_check(p);
}

void pool_init(struct pool *p, uint32_t page_bytes, uint32_t capacity, uint64_t n_slots,
               uint64_t start)
{
    *p = (struct pool){.page_bytes = page_bytes,
                       .device = {.capacity = capacity, .n_slots = n_slots}};
    init(p, capacity, start);
}

void pool_init_part(struct pool *p, uint32_t page_bytes, uint32_t capacity, uint64_t n_slots,
                    uint32_t n_first)
{
    *p = (struct pool){.page_bytes = page_bytes,
                       .device = {.capacity = capacity, .n_slots = n_slots}};
    init(p, n_first, 0);
}

void pool_add_host(struct pool *p, uint32_t capacity, uint64_t n_slots, uint32_t shift)
{
    const uint64_t bytes = (uint64_t)p->page_bytes << shift;

    p->host = (struct part){.bit = PS_PAGE_HOST, .capacity = capacity, .n_slots = n_slots};
    p->host_shift = shift;
    p->n_pieces = (capacity + (1u << shift) - 1) >> shift;
    p->pieces = allocate(p->n_pieces * sizeof(uint64_t));
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        void *piece = allocate(bytes);

        memset(piece, POISON, bytes);
        p->pieces[i] = device(piece);
    }
    init_part(p, &p->host, capacity, test_random(&p->rng) >> 20);
    pool_check(p);
}

static void fini_part(struct part *part)
{
    if (part->list != NULL) {
        free(part->list->slots);
        free(part->list);
        free(part->is_out);
    }
}

void pool_fini(struct pool *p)
{
    fini_part(&p->device);
    fini_part(&p->host);
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        free(pointer(p->pieces[i]));
    }
    free(p->pieces);
    free(p->pages);
}

static void check_part(const struct part *part)
{
    bool *seen = calloc(part->capacity, sizeof(bool));

    ck_assert_ptr_nonnull(seen);
    ck_assert_uint_eq(part->list->done, 0);
    ck_assert_uint_eq(part->list->n_spare, 0);
    ck_assert_uint_eq(part->list->n_slots, part->n_slots);
    ck_assert_uint_eq(part->list->head, part->head);
    ck_assert_uint_eq(part->list->tail, part->tail);
    ck_assert_uint_eq(part->list->n_free + part->hidden, part->tail - part->head);
    ck_assert_uint_eq(part->tail - part->head + part->n_out, part->capacity);
    for (uint64_t at = part->head; at < part->tail; at++) {
        const uint32_t page = *slot(part, at) ^ part->bit;

        ck_assert_uint_lt(page, part->capacity);
        ck_assert_msg(!part->is_out[page], "page %u is out, and free", page);
        ck_assert_msg(!seen[page], "page %u is free twice", page);
        seen[page] = true;
    }
    free(seen);
}

void pool_check(const struct pool *p)
{
    check_part(&p->device);
    if (p->host.list != NULL) {
        check_part(&p->host);
    }
}

static struct part *part_of(struct pool *p, uint32_t page)
{
    return (page & PS_PAGE_HOST) != 0 ? &p->host : &p->device;
}

static unsigned char *page_at(const struct pool *p, uint32_t page)
{
    const uint32_t at = page & ~PS_PAGE_HOST;

    if ((page & PS_PAGE_HOST) == 0) {
        return p->pages + (uint64_t)at * p->page_bytes;
    }
    return (unsigned char *)pointer(p->pieces[at >> p->host_shift]) +
           (uint64_t)(at & ((1u << p->host_shift) - 1)) * p->page_bytes;
}

/* One page of a tensor, `words` 16-byte words long, of a kind that is not uniform. */
static void make_data(unsigned char *at, uint64_t words, uint64_t *rng)
{
    const uint64_t kind = test_random(rng) % 4;

    for (uint64_t i = 0; i < words * 2; i++) {
        const uint64_t v = test_random(rng);

        memcpy(at + i * 8, &v, 8);
    }
    if (kind == 0 || words < 3) {
        return;
    }
    for (uint64_t i = 1; i < words; i++) {
        memcpy(at + i * 16, at, 16);
    }
    if (kind == 1) { /* uniform but for one bit */
        at[test_random(rng) % (words * 16)] ^= (unsigned char)(1u << test_random(rng) % 8);
    } else if (kind == 2) { /* the last bit */
        at[words * 16 - 1] ^= 0x80;
    } else { /* a period of 32 bytes: each 64-bit half is found, but not always */
        for (uint64_t i = 1; i < words; i += 2) {
            at[i * 16 + 15] ^= 1;
        }
    }
}

static void make_uniform(unsigned char *at, uint64_t words, uint64_t *rng)
{
    uint64_t word[2] = {0, 0};

    if (test_random(rng) % 2 == 0) {
        word[0] = test_random(rng);
        word[1] = test_random(rng);
    }
    for (uint64_t i = 0; i < words; i++) {
        memcpy(at + i * 16, word, 16);
    }
}

static uint64_t page_length(const struct tensor *t, const struct pool *p, uint64_t page)
{
    const uint64_t left = t->bytes - page * p->page_bytes;

    return left < p->page_bytes ? left : p->page_bytes;
}

static bool is_uniform(const unsigned char *at, uint64_t bytes)
{
    return memcmp(at, at + 16, bytes - 16) == 0;
}

void tensor_init(struct tensor *t, struct pool *p, uint64_t bytes, unsigned uniform_percent)
{
    *t = (struct tensor){.bytes = bytes, .n_pages = (bytes + p->page_bytes - 1) / p->page_bytes};
    t->data = (unsigned char *)allocate(bytes + 2 * GUARD_BYTES) + GUARD_BYTES;
    t->copy = allocate(bytes);
    t->table = allocate(t->n_pages * sizeof(*t->table));
    memset(t->table, POISON, t->n_pages * sizeof(*t->table));
    for (uint64_t i = 0; i < t->n_pages; i++) {
        t->table[i].state = 0;
    }
    memset(t->data - GUARD_BYTES, GUARD, GUARD_BYTES);
    memset(t->data + bytes, GUARD, GUARD_BYTES);
    for (uint64_t i = 0; i < t->n_pages; i++) {
        unsigned char *at = t->data + i * p->page_bytes;
        const uint64_t length = page_length(t, p, i);

        if (test_random(&p->rng) % 100 < uniform_percent) {
            make_uniform(at, length / 16, &p->rng);
        } else {
            make_data(at, length / 16, &p->rng);
        }
        if (is_uniform(at, length)) {
            t->n_uniform++;
        } else {
            t->n_stored++;
        }
    }
    memcpy(t->copy, t->data, bytes);
}

void tensor_fini(struct tensor *t)
{
    free(t->data - GUARD_BYTES);
    free(t->copy);
    free(t->table);
    free(t->flags);
}

void tensor_add_flags(struct tensor *t)
{
    t->flags = allocate(t->n_pages + 1);
    memset(t->flags, POISON, t->n_pages);
    t->flags[t->n_pages] = GUARD;
}

static bool is_dead(const struct tensor *t, const struct pool *p, uint64_t page)
{
    return t->counted && (t->rows_kind & PS_ROWS_TRUSTED) != 0 && page * p->page_bytes >= t->valid;
}

/* What a stash must make of it. */
static void classify(struct tensor *t, const struct pool *p)
{
    t->n_stored = t->n_uniform = 0;
    for (uint64_t i = 0; i < t->n_pages; i++) {
        const bool uniform = is_uniform(t->copy + i * p->page_bytes, page_length(t, p, i));

        t->n_uniform += uniform && !is_dead(t, p, i);
        t->n_stored += !uniform && !is_dead(t, p, i);
    }
}

/* A number of rows that fill the tensor about as far as that, or one that has to be clamped. */
static void choose_count(struct tensor *t, struct pool *p, unsigned percent)
{
    const uint64_t unit_rows = UINT64_C(1) << t->unit_shift;
    uint64_t n = (t->before + t->bytes * percent / 100) / t->unit_bytes * unit_rows;

    n += test_random(&p->rng) % (unit_rows + 1);
    t->count = (int64_t)n;
    if (test_random(&p->rng) % 8 == 0) {
        t->count = (int64_t)(t->rows_max + test_random(&p->rng) % 1000);
    } else if (test_random(&p->rng) % 8 == 0) {
        t->count = -(int64_t)(test_random(&p->rng) % 1000);
    }
    t->count32 = (int32_t)t->count;
    const uint64_t rows = t->count < 0 ? 0 : (uint64_t)t->count;
    const uint64_t held = rows < t->rows_max ? rows : t->rows_max;
    uint64_t end = 0;

    for (uint64_t at = 0; at < held; at += unit_rows) {
        end += t->unit_bytes;
    }
    t->valid = end <= t->before ? 0 : end - t->before < t->bytes ? end - t->before : t->bytes;
}

static void fill_beyond(struct tensor *t, struct pool *p, uint64_t first)
{
    const int fill = (t->rows_kind & PS_ROWS_SECOND) != 0;
    const uint64_t word[2] = {test_random(&p->rng), test_random(&p->rng)};

    for (uint64_t at = first; at < t->bytes; at += sizeof(word)) {
        memcpy(t->data + at, word, sizeof(word));
    }
    t->outcome.seen[1 - fill] = test_random(&p->rng) % 2;
    memcpy(t->outcome.word[1 - fill], word, sizeof(word));
    switch (test_random(&p->rng) % 3) {
    case 0: /* 2 pages or more may be uniform, each with a word of its own */
        if (t->bytes - first >= 32) {
            t->data[first + test_random(&p->rng) % (t->bytes - first)] ^= 0x40;
        }
        break;
    case 1:
        t->outcome.word[1 - fill][test_random(&p->rng) % 2] ^= UINT64_C(1)
                                                               << test_random(&p->rng) % 64;
        break;
    default:
        break;
    }
    for (uint64_t at = first; at < t->bytes;) {
        const uint64_t left = p->page_bytes - at % p->page_bytes;
        const uint64_t n = left < t->bytes - at ? left : t->bytes - at;

        t->beyond = t->beyond || !is_uniform(t->data + at, n) ||
                    (t->outcome.seen[1 - fill] != 0 &&
                     memcmp(t->data + at, t->outcome.word[1 - fill], 16) == 0);
        at += n;
    }
}

void tensor_count(struct tensor *t, struct pool *p, unsigned kind, unsigned percent)
{
    t->counted = true;
    t->rows_kind = (unsigned char)kind;
    t->unit_shift = test_random(&p->rng) % 2 != 0 ? 5 : 0;
    t->unit_bytes = (uint32_t)(1 + test_random(&p->rng) % (2u * p->page_bytes));
    t->before = test_random(&p->rng) % 3 == 0 ? 0 : test_random(&p->rng) % 16 * p->page_bytes;
    t->rows_max = (uint32_t)(((t->before + t->bytes) / t->unit_bytes) << t->unit_shift);
    choose_count(t, p, percent);
    const uint64_t first = (t->valid + 15) / 16 * 16;

    if ((kind & PS_ROWS_TRUSTED) == 0 && first < t->bytes) {
        fill_beyond(t, p, first);
    }
    memcpy(t->copy, t->data, t->bytes);
    classify(t, p);
}

static bool is_zero(const struct tensor *t, const struct pool *p, uint64_t page)
{
    static const unsigned char zero[16];
    const unsigned char *at = t->copy + page * p->page_bytes;

    return memcmp(at, zero, sizeof(zero)) == 0 && is_uniform(at, page_length(t, p, page));
}

static void check_flags(const struct tensor *t, const struct pool *p)
{
    for (uint64_t i = 0; t->flags != NULL && i < t->n_pages; i++) {
        ck_assert_uint_eq(t->flags[i], is_dead(t, p, i) || !is_zero(t, p, i));
    }
    ck_assert(t->flags == NULL || t->flags[t->n_pages] == GUARD);
}

static void tensor_check(const struct tensor *t, uint64_t index)
{
    ck_assert_msg(memcmp(t->data, t->copy, t->bytes) == 0, "tensor %lu: bytes differ", index);
    for (uint64_t i = 0; i < GUARD_BYTES; i++) {
        ck_assert_msg(t->data[t->bytes + i] == GUARD, "tensor %lu: written past its end", index);
        ck_assert_msg(t->data[-1 - (int64_t)i] == GUARD, "tensor %lu: written before it", index);
    }
}

static struct ps_row_outcome outcomes[PS_BATCH_MAX]; /* of the batch's items */

static void fill_rows(struct ps_batch_item *item, const struct tensor *t, uint32_t i)
{
    item->rows_kind = 0;
    item->rows = 0;
    if (t->counted) {
        const bool narrow = (t->rows_kind & PS_ROWS_I32) != 0;

        item->rows = narrow ? device(&t->count32) : device(&t->count);
        item->before = t->before;
        item->rows_max = t->rows_max;
        item->unit_bytes = t->unit_bytes;
        item->unit_shift = t->unit_shift;
        item->rows_kind = t->rows_kind;
        item->outcome = i;
        outcomes[i] = t->outcome;
    }
    item->rows_kind |= t->known ? PS_ITEM_KNOWN : 0;
}

/* A stash that claims pages, or looks beyond rows, has units of a page. */
static bool by_the_page(const struct pool *p, const struct tensor *tensors, uint32_t n)
{
    bool is = p->host.list != NULL;

    for (uint32_t i = 0; i < n; i++) {
        is = is || (tensors[i].counted && (tensors[i].rows_kind & PS_ROWS_TRUSTED) == 0);
    }
    return is;
}

/* Units and chunks of any size. */
static void shape_batch(struct ps_batch *b, struct pool *p, bool whole)
{
    const uint32_t page_shift = (uint32_t)__builtin_ctz(p->page_bytes);
    const uint32_t parts_shift = whole ? 0 : (uint32_t)(test_random(&p->rng) % 6);
    uint32_t n_pages = 0;

    b->unit_shift = (uint8_t)(page_shift - parts_shift);
    b->ring.chunk_shift = (uint8_t)(b->unit_shift - test_random(&p->rng) % (b->unit_shift - 3));
    b->ring.n_slots = (uint8_t)(2 + test_random(&p->rng) % (PS_CHUNKS_MAX - 1));
    for (uint32_t i = 0; i < b->n_items; i++) {
        b->first_page[i] = n_pages;
        n_pages += (uint32_t)ps_batch_item_pages(b, &b->items[i]);
    }
    b->n_pages = n_pages;
}

static void fill_batch(struct ps_batch *b, struct pool *p, struct tensor *tensors, uint32_t n)
{
    memset(b, POISON, sizeof(*b));
    b->pool = device(p->pages);
    b->free_list = device(p->device.list);
    b->host_list = device(p->host.list);
    b->host_pieces = device(p->pieces);
    b->host_shift = p->host_shift;
    b->page_bytes = p->page_bytes;
    b->n_items = n;
    b->outcomes = device(outcomes);
    for (uint32_t i = 0; i < n; i++) {
        struct tensor *t = &tensors[i];

        b->items[i].data = device(t->data);
        b->items[i].bytes = t->bytes;
        b->items[i].table = device(t->table);
        b->items[i].counts = device(t->counts);
        b->items[i].ledger = device(&t->ledger);
        b->items[i].flags = device(t->flags);
        b->items[i].seq = t->seq;
        fill_rows(&b->items[i], t, i);
    }
}

/* What a stash of n_stored pages must take of each part. */
struct taken {
    uint64_t n_device, n_host;
    bool *device, *host; /* by page: may be taken, and was not seen in a table yet */
};

static bool *note_taken(const struct part *part, uint64_t n)
{
    bool *taken = calloc(part->capacity + 1, sizeof(bool));

    ck_assert_ptr_nonnull(taken);
    ck_assert_uint_le(n, n_free(part));
    for (uint64_t at = part->head; at < part->head + n; at++) {
        taken[*slot(part, at) ^ part->bit] = true;
    }
    return taken;
}

/* Where there is no host's part, it has a page at hand for each page of the batch. */
static struct taken foresee(const struct pool *p, uint64_t n_stored, uint64_t n_pages)
{
    const uint64_t n_seen = n_free(&p->device) - p->device.hidden;
    const bool has_host = p->host.list != NULL;
    const uint64_t n_device = has_host && n_stored > n_seen ? n_seen : n_stored;

    return (struct taken){n_device, n_stored - n_device,
                          note_taken(&p->device, has_host ? n_device : n_pages),
                          note_taken(&p->host, n_stored - n_device)};
}

/* The page must be one of those the model saw at the head of its list, and now leaves them. */
static void check_stored(struct pool *p, const struct tensor *t, uint64_t i,
                         const struct taken *taken)
{
    const uint32_t page = t->table[i].page;
    struct part *part = part_of(p, page);
    bool *of_part = part == &p->host ? taken->host : taken->device;

    ck_assert_uint_lt(page ^ part->bit, part->capacity);
    ck_assert_msg(of_part[page ^ part->bit],
                  "page %x was not at the head of its list, or was taken twice", page);
    of_part[page ^ part->bit] = false;
    part->is_out[page ^ part->bit] = true;
    part->n_out++;
    ck_assert_msg(memcmp(page_at(p, page), t->copy + i * p->page_bytes, page_length(t, p, i)) == 0,
                  "page %x does not hold page %lu of the tensor", page, i);
}

static void check_table(struct pool *p, const struct tensor *t, const struct taken *taken)
{
    uint64_t n_host = 0;

    for (uint64_t i = 0; i < t->n_pages; i++) {
        const unsigned char *at = t->copy + i * p->page_bytes;

        if (is_dead(t, p, i)) {
            ck_assert_uint_eq(t->table[i].page, PS_PAGE_DEAD);
        } else if (is_uniform(at, page_length(t, p, i))) {
            ck_assert_uint_eq(t->table[i].page, PS_PAGE_UNIFORM);
            ck_assert(memcmp(t->table[i].word, at, 16) == 0);
        } else {
            check_stored(p, t, i, taken);
            n_host += (t->table[i].page & PS_PAGE_HOST) != 0;
        }
    }
    ck_assert_uint_eq(t->ledger, PS_LEDGER(t->seq, t->n_stored - n_host, n_host) |
                                     (t->beyond ? PS_LEDGER_BEYOND : 0));
}

/* What lies there after this fill is noted, and what lay there after the other stands. */
static void check_outcome(const struct tensor *t, uint32_t i)
{
    const int fill = (t->rows_kind & PS_ROWS_SECOND) != 0;
    const uint64_t first = (t->valid + 15) / 16 * 16;

    if (!t->counted || (t->rows_kind & PS_ROWS_TRUSTED) != 0 || first >= t->bytes) {
        return;
    }
    ck_assert_uint_eq(outcomes[i].seen[1 - fill], t->outcome.seen[1 - fill]);
    ck_assert(memcmp(outcomes[i].word[1 - fill], t->outcome.word[1 - fill], 16) == 0);
    if (is_uniform(t->copy + first, t->bytes - first)) {
        ck_assert_uint_eq(outcomes[i].seen[fill], 1);
        ck_assert(memcmp(outcomes[i].word[fill], t->copy + first, 16) == 0);
    }
}

void pool_stash(struct pool *p, struct tensor *tensors, uint32_t n, uint64_t n_blocks,
                enum order order)
{
    struct ps_batch b;
    void *params[] = {&b};
    uint64_t n_stored = 0;
    uint64_t n_pages = 0;

    for (uint32_t i = 0; i < n; i++) {
        tensors[i].seq = (uint16_t)(test_random(&p->rng) & PS_SEQ_MAX);
        n_stored += tensors[i].n_stored;
        n_pages += tensors[i].n_pages;
    }
    const struct taken taken = foresee(p, n_stored, n_pages);

    fill_batch(&b, p, tensors, n);
    shape_batch(&b, p, by_the_page(p, tensors, n));
    kernels_launch("ps_stash", params, n_blocks, order, &p->rng);

    p->device.head += taken.n_device;
    p->host.head += taken.n_host;
    for (uint32_t i = 0; i < n; i++) {
        const struct tensor *t = &tensors[i];

        tensor_check(t, i);
        check_table(p, t, &taken);
        check_flags(t, p);
        check_outcome(t, i);
        ck_assert_uint_eq(t->counts[0], 0);
        ck_assert_uint_eq(t->counts[1], 0);
        for (uint64_t k = 0; k < t->n_pages && p->host.list == NULL; k++) {
            ck_assert_uint_eq(t->table[k].state, 0);
        }
    }
    free(taken.device);
    free(taken.host);
    pool_check(p);
}

/* Dead pages are left alone, or all that is beyond the rows is overwritten. */
static void expect_dead(struct tensor *t, const struct pool *p)
{
    const uint64_t first = (t->valid + 15) / 16 * 16;

    if ((t->rows_kind & PS_ROWS_OVERWRITE) != 0 && first < t->bytes) {
        memset(t->copy + first, 0xff, t->bytes - first);
        t->poisoned = true;
        return;
    }
    for (uint64_t i = 0; i < t->n_pages; i++) {
        if (is_dead(t, p, i)) {
            memset(t->copy + i * p->page_bytes, POISON, page_length(t, p, i));
        }
    }
}

/* Flags for a restore, and what they promise. */
static void make_flags(struct tensor *t, struct pool *p)
{
    memset(t->flags, POISON, t->n_pages);
    for (uint64_t i = 0; t->known && i < t->n_pages; i++) {
        const bool zero = test_random(&p->rng) % 2 == 0;
        unsigned char *at = t->data + i * p->page_bytes;

        t->flags[i] = zero ? 0 : (unsigned char)(1 + test_random(&p->rng) % 255);
        if (zero && !t->lied) {
            memset(at, 0, page_length(t, p, i));
            if (is_dead(t, p, i) && (t->rows_kind & PS_ROWS_OVERWRITE) == 0) {
                memset(t->copy + i * p->page_bytes, 0, page_length(t, p, i));
            }
        }
    }
}

/* Some pages, or parts of them, hold already what belongs there. */
static void make_right(struct tensor *t, struct pool *p)
{
    for (uint64_t i = 0; i < t->n_pages; i++) {
        const uint64_t at = i * p->page_bytes;
        const uint64_t bytes = page_length(t, p, i);

        if (!(t->known && t->flags != NULL && t->flags[i] == 0)) {
            memcpy(t->data + at, t->copy + at, test_random(&p->rng) % 3 * bytes / 2);
        }
    }
}

/* After a restore that trusts them no flag is lowered, and what is not zero is flagged. */
static void check_known(struct tensor *t, const struct pool *p, const unsigned char *before)
{
    for (uint64_t i = 0; i < t->n_pages; i++) {
        const bool zero = !is_dead(t, p, i) && is_zero(t, p, i);

        ck_assert_uint_eq(t->flags[i], zero ? before[i] : 1);
        if (zero && t->lied && before[i] == 0) {
            memset(t->copy + i * p->page_bytes, POISON, page_length(t, p, i));
        }
    }
    ck_assert(t->flags[t->n_pages] == GUARD);
}

void pool_restore(struct pool *p, struct tensor *tensors, uint32_t n, uint64_t n_blocks,
                  enum order order)
{
    struct ps_batch b;
    void *params[] = {&b};
    unsigned char *before[PS_BATCH_MAX] = {NULL};

    for (uint32_t i = 0; i < n; i++) {
        memset(tensors[i].data, POISON, tensors[i].bytes);
        expect_dead(&tensors[i], p);
        if (tensors[i].flags != NULL) {
            make_flags(&tensors[i], p);
            before[i] = allocate(tensors[i].n_pages);
            memcpy(before[i], tensors[i].flags, tensors[i].n_pages);
        }
    }
    fill_batch(&b, p, tensors, n);
    for (uint32_t i = 0; i < n; i++) {
        if (test_random(&p->rng) % 2 == 0) {
            b.items[i].rows_kind |= PS_ITEM_COMPARE;
            make_right(&tensors[i], p);
        }
    }
    shape_batch(&b, p, false);
    kernels_launch("ps_restore", params, n_blocks, order, &p->rng);
    for (uint32_t i = 0; i < n; i++) {
        if (tensors[i].known && before[i] != NULL) {
            check_known(&tensors[i], p, before[i]);
        } else {
            check_flags(&tensors[i], p);
        }
        tensor_check(&tensors[i], i);
        free(before[i]);
    }
    pool_check(p);
}

void pool_clean(struct pool *p, struct tensor *tensors, uint32_t n, unsigned flag_percent,
                uint64_t n_blocks, enum order order)
{
    struct ps_batch b;
    void *params[] = {&b};

    fill_batch(&b, p, tensors, n);
    b.pool = b.free_list = b.host_list = b.host_pieces = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct tensor *t = &tensors[i];

        b.items[i].table = b.items[i].counts = b.items[i].ledger = 0;
        for (uint64_t k = 0; k < t->n_pages; k++) {
            const bool set = test_random(&p->rng) % 100 < flag_percent;

            t->flags[k] = set ? (unsigned char)(1 + test_random(&p->rng) % 255) : 0;
            if (set) {
                memset(t->copy + k * p->page_bytes, 0, page_length(t, p, k));
            }
        }
    }
    kernels_launch("ps_clean", params, n_blocks, order, &p->rng);
    for (uint32_t i = 0; i < n; i++) {
        tensor_check(&tensors[i], i);
        for (uint64_t k = 0; k < tensors[i].n_pages; k++) {
            ck_assert_uint_eq(tensors[i].flags[k], 0);
        }
        ck_assert_uint_eq(tensors[i].flags[tensors[i].n_pages], GUARD);
    }
    pool_check(p);
}

void pool_drop(struct pool *p, struct tensor *tensors, uint32_t n)
{
    struct ps_batch b;
    void *params[] = {&b};

    fill_batch(&b, p, tensors, n);
    kernels_launch("ps_drop", params, 1, ORDER_RISING, &p->rng);
    for (uint32_t i = 0; i < n; i++) {
        for (uint64_t k = 0; k < tensors[i].n_pages; k++) {
            const uint32_t page = tensors[i].table[k].page;

            if (page != PS_PAGE_UNIFORM && page != PS_PAGE_DEAD) {
                struct part *part = part_of(p, page);

                ck_assert(part->is_out[page ^ part->bit]);
                part->is_out[page ^ part->bit] = false;
                part->n_out--;
                part->tail++;
                memset(page_at(p, page), POISON, p->page_bytes);
            }
        }
    }
    pool_check(p);
}

void pool_grow(struct pool *p, struct part *part, uint32_t first, uint32_t count)
{
    uint64_t list = device(part->list);
    uint32_t number = part->bit | first;
    void *params[] = {&list, &number, &count};

    kernels_launch("ps_grow", params, 1, ORDER_RISING, &p->rng);
    for (uint32_t i = 0; i < count; i++) {
        part->is_out[first + i] = false;
        part->n_out--;
        part->tail++;
    }
    pool_check(p);
}
