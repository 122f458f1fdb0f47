/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON writer: nesting, escapes, a buffer too small, and writing through a descriptor. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "policy/base/json.h"
#include "tests/support/check_main.h"

START_TEST(values_nest_and_are_separated)
{
    struct ps_json j;
    char buf[256];

    ps_json_init(&j, buf, sizeof(buf), -1);
    ps_json_open(&j, NULL, '{');
    ps_json_u64(&j, "a", UINT64_MAX);
    ps_json_open(&j, "b", '[');
    ps_json_i64(&j, NULL, -1);
    ps_json_bool(&j, NULL, true);
    ps_json_open(&j, NULL, '{');
    ps_json_close(&j, '}');
    ps_json_close(&j, ']');
    ps_json_null(&j, "c");
    ps_json_string(&j, "d", NULL);
    ps_json_close(&j, '}');
    ck_assert(ps_json_finish(&j));
    ck_assert_str_eq(buf,
                     "{\"a\":18446744073709551615,\"b\":[-1,true,{}],\"c\":null,\"d\":null}\n");
}
END_TEST

static const struct {
    const char *in;
    const char *out;
} strings[] = {
    {"", "\"\"\n"},
    {"a\"b\\c", "\"a\\\"b\\\\c\"\n"},
    {"\n\x01\x7f", "\"\\u000a\\u0001\\u007f\"\n"},
    {"gr\xc3\xbc\xc3\x9f", "\"gr\xc3\xbc\xc3\x9f\"\n"},
    {"\xff\xc3", "\"\\ufffd\\ufffd\"\n"},
    {"\xc0\x80", "\"\\ufffd\\ufffd\"\n"},
    {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"\n"},
    {"\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\"\n"},
};

START_TEST(strings_are_escaped)
{
    struct ps_json j;
    char buf[64];

    ps_json_init(&j, buf, sizeof(buf), -1);
    ps_json_string(&j, NULL, strings[_i].in);
    ck_assert(ps_json_finish(&j));
    ck_assert_str_eq(buf, strings[_i].out);
}
END_TEST

START_TEST(a_full_buffer_is_told_at_every_size)
{
    static const char want[] = "{\"key\":\"value\"}\n";

    for (size_t size = 1; size <= sizeof(want) + 1; size++) {
        struct ps_json j;
        char buf[64];

        memset(buf, 'z', sizeof(buf));
        ps_json_init(&j, buf, size, -1);
        ps_json_open(&j, NULL, '{');
        ps_json_string(&j, "key", "value");
        ps_json_close(&j, '}');
        ck_assert_int_eq(ps_json_finish(&j), size >= sizeof(want));
        ck_assert_msg(buf[size] == 'z', "size %zu", size);
    }
}
END_TEST

START_TEST(a_small_buffer_goes_through_a_descriptor_line_by_line)
{
    struct ps_json j;
    char buf[8];
    char text[128];
    int fds[2];

    ck_assert_int_eq(pipe(fds), 0);
    ps_json_init(&j, buf, sizeof(buf), fds[1]);
    for (int i = 0; i < 2; i++) {
        ps_json_open(&j, NULL, '[');
        ps_json_string(&j, NULL, "longer than the buffer");
        ps_json_i64(&j, NULL, i);
        ps_json_close(&j, ']');
        ck_assert(ps_json_finish(&j));
    }
    close(fds[1]);
    const ssize_t n = read(fds[0], text, sizeof(text) - 1);

    ck_assert_int_gt(n, 0);
    text[n] = '\0';
    ck_assert_str_eq(text, "[\"longer than the buffer\",0]\n[\"longer than the buffer\",1]\n");
    close(fds[0]);
}
END_TEST

START_TEST(a_failed_write_is_told)
{
    struct ps_json j;
    char buf[16];

    ps_json_init(&j, buf, sizeof(buf), 1000);
    ps_json_u64(&j, NULL, 1);
    ck_assert(!ps_json_finish(&j));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("json");
    TCase *tc = tcase_create("json");

    tcase_add_test(tc, values_nest_and_are_separated);
    tcase_add_loop_test(tc, strings_are_escaped, 0, (int)(sizeof(strings) / sizeof(strings[0])));
    tcase_add_test(tc, a_full_buffer_is_told_at_every_size);
    tcase_add_test(tc, a_small_buffer_goes_through_a_descriptor_line_by_line);
    tcase_add_test(tc, a_failed_write_is_told);
    suite_add_tcase(s, tc);
    return ps_check_main(s);
}
