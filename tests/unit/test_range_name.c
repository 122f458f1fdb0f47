/* SPDX-License-Identifier: Apache-2.0 */
/* What ranges say of their rows, and how rows lie in a tensor. */
#include <string.h>

#include "policy/range_name.h"
#include "tests/support/check_main.h"

static const struct {
    const char *range;
    uint64_t tokens, need; /* addresses */
    bool narrow, all;
    uint32_t capacity, balanced;
} good[] = {
    {"moe_experts", 0, 0, false, false, 0, 0},
    {"", 0, 0, false, false, 0, 0},
    {"x;", 0, 0, false, false, 0, 0},
    {"x;;;", 0, 0, false, false, 0, 0},
    {"x;tokens=0x7f0010:i64;capacity=4096", 0x7f0010, 0, false, false, 4096, 0},
    {"x;capacity=4096;tokens=0X7F0018", 0x7f0018, 0, false, false, 4096, 0},
    {"x;tokens=0xc:i32;capacity=1;rows=all", 12, 0, true, true, 1, 0},
    {"x;need=0x20;capacity=7;balanced=3", 0, 0x20, false, false, 7, 3},
    {"x;color=red;tokens=0x10;=;a=;capacity=4294967295;rows=some", 0x10, 0, false, false,
     UINT32_MAX, 0},
    {"x;tokens=0xfffffffffffffff8;capacity=9", UINT64_MAX - 7, 0, false, false, 9, 0},
    {"tokens=0x10;capacity=5", 0, 0, false, false, 5, 0},
    {";tokens=0x10;capacity=5", 0x10, 0, false, false, 5, 0},
    {"x;balanced=5;capacity", 0, 0, false, false, 0, 5},
};

/* The range, and where the field begins that is wrong. */
static const struct {
    const char *range;
    size_t wrong;
} bad[] = {
    {"x;tokens=0x10", 2},
    {"x;rows=all;need=0x10", 2},
    {"x;tokens=;capacity=5", 2},
    {"x;tokens=0x;capacity=5", 2},
    {"x;tokens=0;capacity=5", 2},
    {"x;tokens=0x0;capacity=5", 2},
    {"x;tokens=16;capacity=5", 2},
    {"x;tokens=0x1g;capacity=5", 2},
    {"x;tokens=0x14;capacity=5", 2},
    {"x;tokens=0x16:i32;capacity=5", 2},
    {"x;tokens=0x10:;capacity=5", 2},
    {"x;tokens=0x10:i16;capacity=5", 2},
    {"x;tokens=0x10:i64:i64;capacity=5", 2},
    {"x;tokens=0x10000000000000000;capacity=5", 2},
    {"x;tokens=0x10;capacity=5;tokens=0x20", 25},
    {"x;tokens=0x10;capacity=0", 14},
    {"x;tokens=0x10;capacity=-1", 14},
    {"x;tokens=0x10;capacity=4294967296", 14},
    {"x;tokens=0x10;capacity=99999999999999999999999", 14},
    {"x;tokens=0x10;capacity=5;capacity=5", 25},
    {"x;tokens=0x10;capacity=5 ", 14},
    {"x;balanced=1e3", 2},
    {"x;tokens=0x10;capacity=", 14},
    {"x;tokens", 0},
};

START_TEST(what_is_well_formed_is_read)
{
    struct ps_range_rows r;
    const char *wrong = NULL;

    ck_assert_msg(ps_range_rows_read(good[_i].range, &r, &wrong), "%s", good[_i].range);
    ck_assert_uint_eq(r.tokens.address, good[_i].tokens);
    ck_assert_uint_eq(r.need.address, good[_i].need);
    ck_assert_int_eq(r.tokens.narrow, good[_i].narrow);
    ck_assert_int_eq(r.all, good[_i].all);
    ck_assert_uint_eq(r.capacity, good[_i].capacity);
    ck_assert_uint_eq(r.balanced, good[_i].balanced);
}
END_TEST

START_TEST(what_is_written_wrong_does_not_count)
{
    struct ps_range_rows r;
    const char *wrong = NULL;

    memset(&r, 0xff, sizeof(r));
    if (bad[_i].wrong == 0) {
        ck_assert(ps_range_rows_read(bad[_i].range, &r, &wrong));
    } else {
        ck_assert_msg(!ps_range_rows_read(bad[_i].range, &r, &wrong), "%s", bad[_i].range);
        ck_assert_int_eq(wrong - bad[_i].range, (int)bad[_i].wrong);
    }
    ck_assert(r.tokens.address == 0 && r.need.address == 0 && r.capacity == 0 && r.balanced == 0 &&
              !r.all);
}
END_TEST

static const struct {
    uint64_t bytes;
    uint32_t capacity;
    uint64_t page_bytes;
    uint32_t unit_bytes, unit_shift; /* 0: they do not fit */
} layouts[] = {
    {4096 * 1000, 1000, 65536, 4096, 0},
    {4096 * 1024, 1024, 65536, 4096, 0},
    {1024 * 256, 1024, 65536, 8192, 5}, /* 32 rows are an eighth of a page */
    {1024 * 257, 1024, 65536, 257, 0},
    {1024, 1024, 65536, 32, 5},
    {1000 * 16, 1000, 65536, 16, 0}, /* no multiple of 32 rows */
    {1024 / 32 * 7, 1024, 65536, 7, 5},
    {1000 / 8, 1000, 65536, 0, 0},
    {1024 * 3 + 1, 1024, 65536, 0, 0},
    {0, 1024, 65536, 0, 0},
    {1024, 0, 65536, 0, 0},
    {UINT64_C(1) << 40, 16, 65536, 0, 0},
};

START_TEST(rows_lie_as_the_size_says)
{
    struct ps_row_layout l = {0};
    const bool fits =
        ps_row_layout_of(layouts[_i].bytes, layouts[_i].capacity, layouts[_i].page_bytes, &l);

    ck_assert_int_eq(fits, layouts[_i].unit_bytes != 0);
    ck_assert_uint_eq(l.unit_bytes, layouts[_i].unit_bytes);
    ck_assert_uint_eq(l.unit_shift, layouts[_i].unit_shift);
    ck_assert_uint_eq(l.capacity, fits ? layouts[_i].capacity : 0);
    if (fits) {
        ck_assert_uint_eq((l.capacity >> l.unit_shift) * (uint64_t)l.unit_bytes, layouts[_i].bytes);
    }
}
END_TEST

START_TEST(factors_are_rounded_up)
{
    ck_assert_uint_eq(ps_rows_factor_percent(100, 100), 100);
    ck_assert_uint_eq(ps_rows_factor_percent(101, 100), 101);
    ck_assert_uint_eq(ps_rows_factor_percent(1001, 1000), 101);
    ck_assert_uint_eq(ps_rows_factor_percent(2345, 1000), 235);
    ck_assert_uint_eq(ps_rows_factor_percent(0, 7), 0);
    ck_assert_uint_ge(ps_rows_factor_percent(UINT64_MAX, 1), UINT64_MAX / 100);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("range names");
    TCase *t = tcase_create("rows");

    tcase_add_loop_test(t, what_is_well_formed_is_read, 0, sizeof(good) / sizeof(good[0]));
    tcase_add_loop_test(t, what_is_written_wrong_does_not_count, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_loop_test(t, rows_lie_as_the_size_says, 0, sizeof(layouts) / sizeof(layouts[0]));
    tcase_add_test(t, factors_are_rounded_up);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
