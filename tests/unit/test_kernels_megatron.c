/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of Megatron-LM's own tests of its stash that carry over, with its numbers, against the host build of the
 * stash kernels and the real free list, whose pages are in random order. What differs by design: a page of padding
 * takes no page of the pool, a tensor may lie on both parts, and nothing ever overflows, since a stash that is not sure
 * of its pages is not launched.
 */
#include <string.h>

#include "policy/limits.h"
#include "tests/support/check_main.h"
#include "tests/unit/test_kernels_sim.h"

#define ANY_START ((UINT64_C(1) << 32) - 5)

static uint64_t n_free(const struct part *part)
{
    return part->list->tail - part->list->head;
}

/* rows of data in front, zeros behind them. */
static void init_rows(struct tensor *t, struct pool *p, uint64_t rows, uint64_t max_rows,
                      uint64_t row_bytes)
{
    tensor_init(t, p, max_rows * row_bytes, 0);
    memset(t->data + rows * row_bytes, 0, (max_rows - rows) * row_bytes);
    memcpy(t->copy, t->data, t->bytes);
    t->n_stored = ps_pages_for(rows * row_bytes, p->page_bytes);
    t->n_uniform = t->n_pages - t->n_stored;
}

/* Twenty-four rows of 16 floats at most, pages of 8 rows, one page on the device and three on the host. */
START_TEST(rows_3_17_8_and_23_replay_with_pages_of_8)
{
    static const uint64_t tokens[] = {3, 17, 8, 23};
    const uint64_t row_bytes = 16 * sizeof(float);
    const uint64_t page_bytes = ps_limits_page_bytes(8, row_bytes, true);
    struct pool p;

    ck_assert_uint_eq(page_bytes, 512);
    pool_init(&p, (uint32_t)page_bytes, 1, 4, ANY_START);
    pool_add_host(&p, 3, 4, 0);
    for (int i = 0; i < 12; i++) {
        const uint64_t n = tokens[i % 4];
        struct tensor t;

        init_rows(&t, &p, n, 24, row_bytes);
        pool_stash(&p, &t, 1, 1 + (uint64_t)i % 3, (enum order)(i % N_ORDERS));
        ck_assert_uint_eq(PS_LEDGER_DEVICE(t.ledger), 1);
        ck_assert_uint_eq(PS_LEDGER_HOST(t.ledger), ps_pages_for(n, 8) - 1);
        ck_assert_int_eq(PS_LEDGER_HOST(t.ledger) > 0, n > 8); /* spilled */
        pool_restore(&p, &t, 1, 1 + (uint64_t)i % 2, (enum order)(i % N_ORDERS));
        /* The prefix is what it was, the tail zero. */
        ck_assert_int_eq(memcmp(t.data, t.copy, n * row_bytes), 0);
        for (uint64_t at = n * row_bytes; at < t.bytes; at++) {
            ck_assert_uint_eq(t.data[at], 0);
        }
        pool_drop(&p, &t, 1);
        ck_assert_uint_eq(n_free(&p.device), 1);
        ck_assert_uint_eq(n_free(&p.host), 3);
        tensor_fini(&t);
    }
    pool_fini(&p);
}
END_TEST

/* Row bytes, rows of the tensor, of the device's and of the host's part: a sixteenth of theirs, four rows a page. */
static const struct {
    uint64_t row_bytes, rows, device_rows, host_rows;
} geometries[] = {
    {7168, 2048 / 16, 16384 / 16, 8192 / 16},
    {2048, 2048 / 16, 16384 / 16, 8192 / 16},
    {2048, 4096 / 16, 16384 / 16, 8192 / 16},
    {8192, 4096 / 16, 16384 / 16, 8192 / 16},
};
#define N_GEOMETRIES ((int)(sizeof(geometries) / sizeof(geometries[0])))

/* A pool of geometry g, of whose device pages only n_seen may be taken; the counters begin at `start`. */
static uint64_t init_geometry(struct pool *p, int g, uint64_t start, uint64_t n_seen)
{
    const uint64_t page_bytes = ps_limits_page_bytes(4, geometries[g].row_bytes, true);
    const uint64_t rows = page_bytes / geometries[g].row_bytes;
    const uint32_t device = (uint32_t)ps_pages_for(geometries[g].device_rows, rows);

    pool_init(p, (uint32_t)page_bytes, device, 512, start);
    pool_add_host(p, (uint32_t)ps_pages_for(geometries[g].host_rows, rows), 512, 2);
    pool_hide_rest(p, n_seen < device ? n_seen : device);
    return device;
}

static void there_and_back(struct pool *p, struct tensor *t, int g, uint64_t rows)
{
    init_rows(t, p, rows, geometries[g].rows, geometries[g].row_bytes);
    pool_stash(p, t, 1, 7, ORDER_SHUFFLED);
    pool_restore(p, t, 1, 3, ORDER_SHUFFLED);
}

/* _i: geometry. All rows; a ragged tail, as theirs of 64 + 7 rows less; no row. */
START_TEST(every_geometry_goes_out_and_comes_back)
{
    const uint64_t all = geometries[_i].rows;
    const uint64_t rows[] = {all, all - 64 - 7, all - 1, 1, 0};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct pool p;
        struct tensor t;
        const uint64_t device = init_geometry(&p, _i, 0, UINT64_MAX);

        there_and_back(&p, &t, _i, rows[i]);
        ck_assert_uint_eq(p.device.list->head,
                          ps_pages_for(rows[i] * geometries[_i].row_bytes, p.page_bytes));
        ck_assert_uint_eq(PS_LEDGER_HOST(t.ledger), 0);
        pool_drop(&p, &t, 1);
        ck_assert_uint_eq(n_free(&p.device), device);
        tensor_fini(&t);
        pool_fini(&p);
    }
}
END_TEST

/* The ring's end lies one page before the last that the tensor takes. */
START_TEST(a_permuted_list_wraps_in_the_midst_of_a_tensor)
{
    const uint64_t need = 1 + geometries[_i].rows * geometries[_i].row_bytes / 65536;

    for (uint64_t before_end = 1; before_end <= need; before_end += 3) {
        struct pool p;
        struct tensor t;
        const uint64_t start = 512 * UINT64_C(1000) - before_end;
        const uint64_t device = init_geometry(&p, _i, start, UINT64_MAX);

        there_and_back(&p, &t, _i, geometries[_i].rows);
        ck_assert_uint_ge(p.device.list->head / 512, 1000);
        pool_drop(&p, &t, 1);
        ck_assert_uint_eq(n_free(&p.device), device);
        ck_assert_uint_eq(p.device.list->tail, start + device + t.n_stored);
        tensor_fini(&t);
        pool_fini(&p);
    }
}
END_TEST

/* One page too few on the device: theirs goes to the host whole, ours by one page. */
START_TEST(one_page_too_few_spills_one_page)
{
    struct pool p;
    struct tensor t;

    init_geometry(&p, _i, ANY_START, UINT64_MAX);
    const uint64_t host = n_free(&p.host);
    const uint64_t need =
        ps_pages_for(geometries[_i].rows * geometries[_i].row_bytes, p.page_bytes);

    pool_hide_rest(&p, need - 1);
    there_and_back(&p, &t, _i, geometries[_i].rows);
    ck_assert_uint_eq(PS_LEDGER_DEVICE(t.ledger), need - 1);
    ck_assert_uint_eq(PS_LEDGER_HOST(t.ledger), 1);
    pool_drop(&p, &t, 1);
    ck_assert_uint_eq(n_free(&p.host), host);
    tensor_fini(&t);
    pool_fini(&p);
}
END_TEST

/* A pool of no device page: theirs overflows, ours is on the host. */
START_TEST(without_device_pages_all_is_on_the_host)
{
    struct pool p;
    struct tensor t;

    init_geometry(&p, _i, 0, 0);
    there_and_back(&p, &t, _i, geometries[_i].rows - 64 - 7);
    ck_assert_uint_eq(PS_LEDGER_DEVICE(t.ledger), 0);
    ck_assert_uint_eq(PS_LEDGER_HOST(t.ledger), t.n_stored);
    ck_assert_uint_eq(p.device.list->head, 0);
    pool_drop(&p, &t, 1);
    tensor_fini(&t);
    pool_fini(&p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("megatron");
    TCase *t = tcase_create("numbers");

    tcase_set_timeout(t, 60);
    tcase_add_test(t, rows_3_17_8_and_23_replay_with_pages_of_8);
    tcase_add_loop_test(t, every_geometry_goes_out_and_comes_back, 0, N_GEOMETRIES);
    tcase_add_loop_test(t, a_permuted_list_wraps_in_the_midst_of_a_tensor, 0, N_GEOMETRIES);
    tcase_add_loop_test(t, one_page_too_few_spills_one_page, 0, N_GEOMETRIES);
    tcase_add_loop_test(t, without_device_pages_all_is_on_the_host, 0, N_GEOMETRIES);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
