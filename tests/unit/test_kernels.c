/* SPDX-License-Identifier: Apache-2.0 */
/* The host build of the stash kernels against a model of the pool: any grid, any order of blocks. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/support/check_main.h"
#include "tests/unit/test_kernels_sim.h"

static const uint32_t page_sizes[] = {512, 4096, 65536, 2u << 20};
static const uint64_t block_counts[] = {1, 2, 3, 7};

#define N_PAGE_SIZES   ((int)(sizeof(page_sizes) / sizeof(page_sizes[0])))
#define N_BLOCK_COUNTS ((int)(sizeof(block_counts) / sizeof(block_counts[0])))

/* Sizes that a page may meet: part of one, exactly some, some and one word more or less. */
static uint64_t random_bytes(struct pool *p, uint64_t max_pages)
{
    const uint64_t pages = 1 + test_random(&p->rng) % max_pages;
    const uint64_t whole = pages * p->page_bytes;

    switch (test_random(&p->rng) % 4) {
    case 0:
        return whole;
    case 1:
        return whole - 16;
    case 2:
        return whole - p->page_bytes + 16;
    default:
        return whole - test_random(&p->rng) % (p->page_bytes / 16) * 16;
    }
}

static void round_trip(struct pool *p, uint32_t n, unsigned uniform_percent, uint64_t n_blocks,
                       enum order order)
{
    struct tensor tensors[PS_BATCH_MAX];
    const uint64_t capacity = p->device.capacity;

    for (uint32_t i = 0; i < n; i++) {
        tensor_init(&tensors[i], p, random_bytes(p, capacity / n), uniform_percent);
        if (i % 3 != 1) {
            tensor_add_flags(&tensors[i]);
        }
    }
    pool_stash(p, tensors, n, n_blocks, order);
    pool_restore(p, tensors, n, n_blocks, order);
    pool_restore(p, tensors, n, BLOCKS_MAX, order);
    pool_drop(p, tensors, n);
    ck_assert_uint_eq(pool_n_free(p), capacity + p->host.capacity);
    for (uint32_t i = 0; i < n; i++) {
        tensor_fini(&tensors[i]);
    }
}

/* _i: page size, blocks and order of the blocks. */
START_TEST(every_byte_comes_back_for_any_grid_and_order)
{
    const uint32_t page_bytes = page_sizes[_i % N_PAGE_SIZES];
    const uint64_t n_blocks = block_counts[_i / N_PAGE_SIZES % N_BLOCK_COUNTS];
    const enum order order = (enum order)(_i / N_PAGE_SIZES / N_BLOCK_COUNTS);
    const bool large = page_bytes > 65536; /* the point is the pages' size, not their number */
    const uint32_t capacity = large ? 3 : 60;
    struct pool p;

    pool_init(&p, page_bytes, capacity, 64, 1000003);
    round_trip(&p, 1, 50, n_blocks, order);
    if (!large) {
        round_trip(&p, 5, 30, n_blocks, order);
        round_trip(&p, 1, 0, n_blocks, order);
        round_trip(&p, 2, 100, n_blocks, order);
    }
    pool_fini(&p);
}
END_TEST

START_TEST(a_batch_may_be_full)
{
    struct pool p;

    pool_init(&p, 512, 4 * PS_BATCH_MAX, 256, 0);
    round_trip(&p, PS_BATCH_MAX, 40, block_counts[_i % N_BLOCK_COUNTS],
               (enum order)(_i / N_BLOCK_COUNTS));
    pool_fini(&p);
}
END_TEST

/* _i: page size, blocks and order of the blocks. */
START_TEST(a_clean_touches_flagged_pages_only)
{
    const uint32_t page_bytes = page_sizes[_i % N_PAGE_SIZES];
    const uint64_t n_blocks = block_counts[_i / N_PAGE_SIZES % N_BLOCK_COUNTS];
    const enum order order = (enum order)(_i / N_PAGE_SIZES / N_BLOCK_COUNTS);
    const unsigned percents[] = {0, 3, 50, 100};
    struct tensor tensors[5];
    struct pool p;

    pool_init(&p, page_bytes, 5, 8, 0);
    for (int i = 0; i < 5; i++) {
        tensor_init(&tensors[i], &p, i == 1 ? 0 : random_bytes(&p, page_bytes > 65536 ? 2 : 40),
                    30);
        tensor_add_flags(&tensors[i]);
    }
    for (int i = 0; i < 4; i++) {
        pool_clean(&p, tensors, 5, percents[i], n_blocks, order);
    }
    for (int i = 0; i < 5; i++) {
        tensor_fini(&tensors[i]);
    }
    pool_fini(&p);
}
END_TEST

/* _i: page size, blocks, order. Some flags are right, some lie, some tensors have rows, some no flags. */
START_TEST(zeros_that_are_known_are_not_written)
{
    const uint32_t page_bytes = page_sizes[_i % N_PAGE_SIZES];
    const uint64_t n_blocks = block_counts[_i / N_PAGE_SIZES % N_BLOCK_COUNTS];
    const enum order order = (enum order)(_i / N_PAGE_SIZES / N_BLOCK_COUNTS);
    const bool large = page_bytes >= 65536; /* the point is the pages' size, not their number */
    const uint32_t n = page_bytes > 65536 ? 1 : 5;
    struct tensor tensors[5];
    struct pool p;

    pool_init(&p, page_bytes, page_bytes > 65536 ? 3 : large ? 15 : 60, 64, 23);
    for (uint32_t i = 0; i < n; i++) {
        tensor_init(&tensors[i], &p, random_bytes(&p, p.device.capacity / n), 60);
        if (i == 3) {
            const unsigned kind = (unsigned)(test_random(&p.rng) % 8) | PS_ROWS_TRUSTED;

            tensor_count(&tensors[i], &p, kind, (unsigned)(test_random(&p.rng) % 101));
        }
        if (i != 1) {
            tensor_add_flags(&tensors[i]);
            tensors[i].known = i != 2;
            tensors[i].lied = i == 4;
        }
    }
    pool_stash(&p, tensors, n, n_blocks, order);
    pool_restore(&p, tensors, n, n_blocks, order);
    pool_drop(&p, tensors, n);
    for (uint32_t i = 0; i < n; i++) {
        tensor_fini(&tensors[i]);
    }
    pool_fini(&p);
}
END_TEST

/* _i: page size and order of the blocks. Trusted or not, overwritten or not, and beside them uncounted ones. */
START_TEST(rows_that_are_counted_come_back)
{
    const uint32_t page_bytes = page_sizes[_i % N_PAGE_SIZES];
    const enum order order = (enum order)(_i / N_PAGE_SIZES);
    const bool large = page_bytes >= 65536;
    const uint32_t n = large ? 2 : 6;
    struct tensor tensors[6];
    struct pool p;

    pool_init(&p, page_bytes, large ? 4 : 60, 64, 11);
    for (int round = 0; round < (large ? 3 : 12); round++) {
        const uint64_t n_blocks = block_counts[round % N_BLOCK_COUNTS];

        for (uint32_t i = 0; i < n; i++) {
            const unsigned kind = (unsigned)(test_random(&p.rng) % 16);
            const bool overwrite = (kind & PS_ROWS_TRUSTED) != 0;

            tensor_init(&tensors[i], &p, random_bytes(&p, large ? 2 : 10), 30);
            tensor_add_flags(&tensors[i]);
            if (i != 2) {
                tensor_count(&tensors[i], &p, overwrite ? kind : kind & ~PS_ROWS_OVERWRITE,
                             (unsigned)(test_random(&p.rng) % 101));
            }
        }
        pool_stash(&p, tensors, n, n_blocks, order);
        pool_restore(&p, tensors, n, n_blocks, order);
        pool_drop(&p, tensors, n);
        for (uint32_t i = 0; i < n; i++) {
            tensor_fini(&tensors[i]);
        }
    }
    ck_assert_uint_eq(pool_n_free(&p), p.device.capacity);
    pool_fini(&p);
}
END_TEST

/* Pages beyond the rows cannot be touched here at all. */
static void stash_beside_nothing(int64_t n)
{
    enum { N_PAGES = 10, BYTES = N_PAGES * 4096 };
    unsigned char *data = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ps_page_entry table[N_PAGES] = {0};
    unsigned char flags[N_PAGES];
    uint64_t counts[2] = {0, 0};
    uint64_t ledger = 0;
    struct ps_batch b = {.page_bytes = 4096,
                         .n_items = 1,
                         .unit_shift = 10,
                         .ring = {.chunk_shift = 9, .n_slots = 3},
                         .n_pages = N_PAGES};
    void *params[] = {&b};
    struct pool p;

    ck_assert(data != MAP_FAILED);
    memset(table, 0, sizeof(table));
    pool_init(&p, 4096, N_PAGES, 16, 0);
    /* Rows of 1,000 bytes, 3,000 of them in front of the item. */
    const uint64_t live = n <= 3 ? 0 : (uint64_t)((n < 43 ? n : 43) - 3) * 1000;
    const uint64_t n_live = (live + 4095) / 4096;

    ck_assert_int_eq(mprotect(data, n_live * 4096, PROT_READ | PROT_WRITE), 0);
    memset(data, 1, live);
    b.pool = (uint64_t)(uintptr_t)p.pages;
    b.free_list = (uint64_t)(uintptr_t)p.device.list;
    b.items[0] = (struct ps_batch_item){.data = (uint64_t)(uintptr_t)data,
                                        .bytes = BYTES,
                                        .table = (uint64_t)(uintptr_t)table,
                                        .counts = (uint64_t)(uintptr_t)counts,
                                        .ledger = (uint64_t)(uintptr_t)&ledger,
                                        .flags = (uint64_t)(uintptr_t)flags,
                                        .rows = (uint64_t)(uintptr_t)&n,
                                        .before = 3000,
                                        .rows_max = 43,
                                        .unit_bytes = 1000,
                                        .rows_kind = PS_ROWS_TRUSTED};
    kernels_launch("ps_stash", params, 3, ORDER_SHUFFLED, &p.rng);
    kernels_launch("ps_restore", params, 3, ORDER_SHUFFLED, &p.rng);
    for (uint64_t i = 0; i < N_PAGES; i++) {
        ck_assert_int_eq(table[i].page == PS_PAGE_DEAD, i >= n_live);
        ck_assert_uint_eq(flags[i], 1);
    }
    ck_assert_uint_eq(PS_LEDGER_DEVICE(ledger), live % 4096 != 0 && live < BYTES);
    ck_assert_uint_eq(ledger & PS_LEDGER_BEYOND, 0);
    pool_fini(&p);
    munmap(data, BYTES);
}

START_TEST(dead_pages_are_not_touched)
{
    for (int64_t n = _i - 1; n < 46; n += 5) {
        stash_beside_nothing(n);
    }
}
END_TEST

START_TEST(rows_come_to_bytes)
{
    const struct ps_batch_item rows = {
        .bytes = 4000, .before = 0, .rows_max = 40, .unit_bytes = 100};
    const struct ps_batch_item units = {
        .bytes = 960, .before = 64, .rows_max = 1024, .unit_bytes = 32, .unit_shift = 5};
    const struct ps_batch_item huge = {
        .bytes = UINT64_C(1) << 62, .rows_max = UINT32_MAX, .unit_bytes = UINT32_MAX};

    ck_assert_uint_eq(ps_batch_item_valid(&rows, 0), 0);
    ck_assert_uint_eq(ps_batch_item_valid(&rows, -1), 0);
    ck_assert_uint_eq(ps_batch_item_valid(&rows, INT64_MIN), 0);
    ck_assert_uint_eq(ps_batch_item_valid(&rows, 17), 1700);
    ck_assert_uint_eq(ps_batch_item_valid(&rows, 40), 4000);
    ck_assert_uint_eq(ps_batch_item_valid(&rows, 41), 4000);
    ck_assert_uint_eq(ps_batch_item_valid(&rows, INT64_MAX), 4000);
    ck_assert_uint_eq(ps_batch_item_valid(&units, 64), 0);
    ck_assert_uint_eq(ps_batch_item_valid(&units, 65), 32);
    ck_assert_uint_eq(ps_batch_item_valid(&units, 96), 32);
    ck_assert_uint_eq(ps_batch_item_valid(&units, 97), 64);
    ck_assert_uint_eq(ps_batch_item_valid(&units, 1024), 960);
    ck_assert_uint_eq(ps_batch_item_valid(&huge, INT64_MAX), UINT64_C(1) << 62);
    ck_assert_uint_eq(ps_batch_item_valid(&huge, 2), 2 * (uint64_t)UINT32_MAX);
}
END_TEST

START_TEST(all_zero_and_all_pattern_take_no_page)
{
    struct pool p;
    struct tensor t;

    pool_init(&p, 4096, 101, 128, 0);
    tensor_init(&t, &p, UINT64_C(100) * 4096 + 32, 100);
    ck_assert_uint_eq(t.n_stored, 0);
    pool_stash(&p, &t, 1, 3, ORDER_SHUFFLED);
    ck_assert_uint_eq(p.device.list->head, 0);
    pool_restore(&p, &t, 1, 2, ORDER_SHUFFLED);
    pool_drop(&p, &t, 1);
    ck_assert_uint_eq(p.device.list->tail, 101);
    tensor_fini(&t);
    pool_fini(&p);
}
END_TEST

START_TEST(tensors_without_bytes_get_their_ledger_word)
{
    struct pool p;
    struct tensor tensors[4];

    pool_init(&p, 512, 8, 8, 0);
    for (int i = 0; i < 4; i++) {
        tensor_init(&tensors[i], &p, i == 2 ? 1024 : 0, 0);
    }
    pool_stash(&p, tensors, 4, 3, ORDER_SHUFFLED);
    pool_restore(&p, tensors, 4, 3, ORDER_SHUFFLED);
    pool_drop(&p, tensors, 4);
    for (int i = 0; i < 4; i++) {
        tensor_fini(&tensors[i]);
    }
    pool_fini(&p);
}
END_TEST

/* Every page is out at times, and the counters pass 2^32 and the ring's end again and again. */
START_TEST(the_ring_wraps_and_loses_no_page)
{
    enum { N = 6, ROUNDS = 400, CAPACITY = 32 };
    struct pool p;
    struct tensor tensors[N];
    bool is_out[N] = {false};

    pool_init(&p, 512, CAPACITY, CAPACITY, (UINT64_C(1) << 32) - 500 - (uint64_t)_i);
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t k = test_random(&p.rng) % N;
        const enum order order = (enum order)(test_random(&p.rng) % N_ORDERS);

        if (is_out[k]) {
            pool_restore(&p, &tensors[k], 1, 1 + test_random(&p.rng) % 3, order);
            pool_drop(&p, &tensors[k], 1);
            tensor_fini(&tensors[k]);
            is_out[k] = false;
        } else {
            tensor_init(&tensors[k], &p, random_bytes(&p, 10), 20);
            if (tensors[k].n_pages <= pool_n_free(&p)) {
                pool_stash(&p, &tensors[k], 1, 1 + test_random(&p.rng) % 3, order);
                is_out[k] = true;
            } else {
                tensor_fini(&tensors[k]);
            }
        }
    }
    for (int k = 0; k < N; k++) {
        if (is_out[k]) {
            pool_restore(&p, &tensors[k], 1, 1, ORDER_RISING);
            pool_drop(&p, &tensors[k], 1);
            tensor_fini(&tensors[k]);
        }
    }
    ck_assert_uint_eq(p.device.tail - p.device.head, CAPACITY);
    ck_assert_uint_gt(p.device.tail >> 32, 0);
    ck_assert_uint_gt(p.device.head, (UINT64_C(1) << 32));
    pool_fini(&p);
}
END_TEST

/* _i: page size, blocks and order of the blocks. None, some, enough and more than enough are free. */
START_TEST(pages_beyond_what_is_free_go_to_the_host)
{
    const uint32_t page_bytes = page_sizes[_i % N_PAGE_SIZES];
    const uint64_t n_blocks = block_counts[_i / N_PAGE_SIZES % N_BLOCK_COUNTS];
    const enum order order = (enum order)(_i / N_PAGE_SIZES / N_BLOCK_COUNTS);
    const bool large = page_bytes > 65536;
    const uint32_t capacity = large ? 3 : 40;
    struct pool p;

    pool_init(&p, page_bytes, capacity, 64, 77);
    pool_add_host(&p, capacity + 3, 64, (uint32_t)(test_random(&p.rng) % 6));
    for (int round = 0; round < (large ? 3 : 12); round++) {
        const unsigned percent = (unsigned)(test_random(&p.rng) % 101);
        const uint32_t n = large ? 1 : (uint32_t)(1 + test_random(&p.rng) % 6);

        pool_hide_rest(&p, round == 0 ? 0 : test_random(&p.rng) % (capacity + 1));
        round_trip(&p, n, percent, n_blocks, order);
    }
    pool_fini(&p);
}
END_TEST

/* Each part's pages are out at times and each ring passes its end. */
START_TEST(both_rings_wrap_and_lose_no_page)
{
    enum { N = 8, ROUNDS = 600, CAPACITY = 16 };
    struct pool p;
    struct tensor tensors[N];
    bool is_out[N] = {false};

    pool_init(&p, 512, CAPACITY, CAPACITY, (UINT64_C(1) << 32) - 300 - (uint64_t)_i);
    pool_add_host(&p, 2 * CAPACITY, 2 * CAPACITY, 3);
    const uint64_t host_start = p.host.head;

    for (int round = 0; round < ROUNDS + N; round++) {
        const uint64_t k = round < ROUNDS ? test_random(&p.rng) % N : (uint64_t)(round - ROUNDS);
        const enum order order = (enum order)(test_random(&p.rng) % N_ORDERS);
        const uint64_t n_blocks = 1 + test_random(&p.rng) % 4;

        if (is_out[k]) {
            pool_restore(&p, &tensors[k], 1, n_blocks, order);
            pool_drop(&p, &tensors[k], 1);
            tensor_fini(&tensors[k]);
            is_out[k] = false;
            continue;
        }
        tensor_init(&tensors[k], &p, random_bytes(&p, 10), 30);
        const uint64_t n_device = p.device.tail - p.device.head;
        const uint64_t n_host = p.host.tail - p.host.head;

        if (round < ROUNDS && tensors[k].n_pages <= n_device + n_host) {
            pool_stash(&p, &tensors[k], 1, n_blocks, order);
            is_out[k] = true;
        } else {
            tensor_fini(&tensors[k]);
        }
    }
    ck_assert_uint_eq(p.device.tail - p.device.head, CAPACITY);
    ck_assert_uint_eq(p.host.tail - p.host.head, 2 * CAPACITY);
    ck_assert_uint_gt(p.host.head, host_start + UINT64_C(4) * CAPACITY);
    ck_assert_uint_gt(p.device.head, UINT64_C(1) << 32);
    pool_fini(&p);
}
END_TEST

START_TEST(host_pages_come_by_grow_too)
{
    struct pool p;
    struct tensor t;

    pool_init(&p, 512, 2, 4, 0);
    pool_add_host(&p, 8, 8, 2);
    tensor_init(&t, &p, UINT64_C(10) * 512, 0);
    pool_stash(&p, &t, 1, 3, ORDER_INTERLEAVED);
    ck_assert_uint_eq(pool_n_free(&p), 0);
    /* The host's eight are out; as if they were new, they come a second time once the first are back. */
    pool_drop(&p, &t, 1);
    pool_stash(&p, &t, 1, 3, ORDER_SHUFFLED);
    ck_assert_uint_eq(PS_LEDGER_HOST(t.ledger), 8);
    memset(t.table, 0xff, 10 * sizeof(*t.table));
    pool_grow(&p, &p.host, 0, 5);
    pool_grow(&p, &p.host, 5, 3);
    pool_grow(&p, &p.device, 0, 2);
    pool_stash(&p, &t, 1, 3, ORDER_SHUFFLED);
    pool_restore(&p, &t, 1, 2, ORDER_SHUFFLED);
    tensor_fini(&t);
    pool_fini(&p);
}
END_TEST

START_TEST(a_pool_grows_while_pages_are_out)
{
    struct pool p;
    struct tensor tensors[2];

    pool_init_part(&p, 512, 40, 64, 0);
    ck_assert_uint_eq(pool_n_free(&p), 0);
    pool_grow(&p, &p.device, 0, 0);
    pool_grow(&p, &p.device, 0, 9);
    tensor_init(&tensors[0], &p, 4608, 0);
    pool_stash(&p, &tensors[0], 1, 2, ORDER_INTERLEAVED);
    pool_grow(&p, &p.device, 9, 31);
    tensor_init(&tensors[1], &p, 15824, 0);
    pool_stash(&p, &tensors[1], 1, 3, ORDER_INTERLEAVED);
    ck_assert_uint_eq(pool_n_free(&p), 0);
    pool_restore(&p, tensors, 2, 2, ORDER_INTERLEAVED);
    pool_drop(&p, tensors, 2);
    ck_assert_uint_eq(pool_n_free(&p), 40);
    tensor_fini(&tensors[0]);
    tensor_fini(&tensors[1]);
    pool_fini(&p);
}
END_TEST

START_TEST(a_tensor_may_return_to_another_place)
{
    struct pool p;
    struct tensor t;
    struct tensor moved;

    pool_init(&p, 4096, 8, 8, 5);
    tensor_init(&t, &p, 7 * 4096 + 16, 30);
    pool_stash(&p, &t, 1, 2, ORDER_SHUFFLED);
    tensor_init(&moved, &p, t.bytes, 0);
    memcpy(moved.copy, t.copy, t.bytes);
    free(moved.table);
    moved.table = t.table;
    pool_restore(&p, &moved, 1, 2, ORDER_SHUFFLED);
    pool_drop(&p, &t, 1);
    moved.table = NULL;
    tensor_fini(&moved);
    tensor_fini(&t);
    pool_fini(&p);
}
END_TEST

START_TEST(a_ledger_word_holds_three_numbers)
{
    const uint64_t w = PS_LEDGER(0x7edc, PS_PAGES_MAX, 0x123456) | PS_LEDGER_BEYOND;

    ck_assert_uint_eq(PS_LEDGER_SEQ(w), 0x7edc);
    ck_assert_uint_eq(PS_LEDGER_DEVICE(w), PS_PAGES_MAX);
    ck_assert_uint_eq(PS_LEDGER_HOST(w), 0x123456);
    ck_assert_uint_eq(PS_LEDGER_HOST(PS_LEDGER(0, 0, PS_PAGES_MAX)), PS_PAGES_MAX);
}
END_TEST

START_TEST(the_registry_knows_each_kernel_and_its_parameters)
{
    static const char *const one[] = {"ps_stash", "ps_restore", "ps_drop", "ps_clean"};

    for (int i = 0; i < 4; i++) {
        const struct ps_sim_kernel *k = kernels_find(one[i]);

        ck_assert_ptr_nonnull(k);
        ck_assert_uint_eq(k->n_params, 1);
        ck_assert_uint_eq(k->sizes[0], sizeof(struct ps_batch));
        ck_assert_uint_eq(k->aligns[0], 8);
    }
    const struct ps_sim_kernel *grow = kernels_find("ps_grow");

    ck_assert_ptr_nonnull(grow);
    ck_assert_uint_eq(grow->n_params, 3);
    ck_assert_uint_eq(grow->sizes[0], 8);
    ck_assert_uint_eq(grow->sizes[1], 4);
    ck_assert_uint_eq(grow->sizes[2], 4);
    ck_assert_ptr_null(kernels_find("ps_none"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels");
    TCase *t = tcase_create("host build");
#ifdef PS_SANITIZED
    const bool slow = true; /* one order of two numbers of blocks is enough */
#else
    const bool slow = getenv("PS_VALGRIND") != NULL;
#endif
    const int n_orders = slow ? 1 : N_ORDERS;
    const int n_counts = slow ? 2 : N_BLOCK_COUNTS;

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, every_byte_comes_back_for_any_grid_and_order, 0,
                        N_PAGE_SIZES * n_counts * n_orders);
    tcase_add_loop_test(t, a_batch_may_be_full, 0, n_counts * n_orders);
    tcase_add_loop_test(t, a_clean_touches_flagged_pages_only, 0,
                        N_PAGE_SIZES * n_counts * n_orders);
    tcase_add_loop_test(t, zeros_that_are_known_are_not_written, 0,
                        N_PAGE_SIZES * n_counts * n_orders);
    tcase_add_loop_test(t, rows_that_are_counted_come_back, 0, N_PAGE_SIZES * n_orders);
    tcase_add_loop_test(t, dead_pages_are_not_touched, 0, 5);
    tcase_add_test(t, rows_come_to_bytes);
    tcase_add_test(t, all_zero_and_all_pattern_take_no_page);
    tcase_add_test(t, tensors_without_bytes_get_their_ledger_word);
    tcase_add_loop_test(t, the_ring_wraps_and_loses_no_page, 0, slow ? 1 : 3);
    tcase_add_loop_test(t, pages_beyond_what_is_free_go_to_the_host, 0,
                        N_PAGE_SIZES * n_counts * n_orders);
    tcase_add_loop_test(t, both_rings_wrap_and_lose_no_page, 0, slow ? 1 : 3);
    tcase_add_test(t, host_pages_come_by_grow_too);
    tcase_add_test(t, a_pool_grows_while_pages_are_out);
    tcase_add_test(t, a_tensor_may_return_to_another_place);
    tcase_add_test(t, a_ledger_word_holds_three_numbers);
    tcase_add_test(t, the_registry_knows_each_kernel_and_its_parameters);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
