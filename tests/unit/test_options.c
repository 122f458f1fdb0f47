/* SPDX-License-Identifier: Apache-2.0 */
/* The option table, its types, and where settings come from. Forked: each test has its own environment. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "policy/base/option_types.h"
#include "policy/base/options.h"
#include "tests/support/check_main.h"

static char home[] = "/tmp/pagedstash-home-XXXXXX";

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

static void set_up(void)
{
    for (size_t i = 0; i < ps_n_options; i++) {
        unsetenv(ps_option_table[i].name);
    }
    ck_assert_ptr_nonnull(mkdtemp(home));
    setenv("HOME", home, 1);
}

static void tear_down(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r '%s'", home);
    ck_assert_int_eq(system(command), 0);
}

static void write_user_file(const char *text)
{
    char path[128];

    snprintf(path, sizeof(path), "mkdir -p '%s/.config'", home);
    ck_assert_int_eq(system(path), 0);
    snprintf(path, sizeof(path), "%s/.config/pagedstash.conf", home);
    write_file(path, text);
}

START_TEST(every_default_parses_and_prints_back_to_itself)
{
    const struct ps_option *opt = &ps_option_table[_i];
    struct ps_options o;
    char text[PS_OPT_TEXT_MAX];

    memset(&o, 0xa5, sizeof(o));
    ck_assert_msg(ps_option_set(&o, opt, opt->text), "row %d: '%s' refuses '%s'", _i, opt->name,
                  opt->text);
    ps_option_print(&o, opt, text, sizeof(text));
    ck_assert_str_eq(text, opt->text);
}
END_TEST

START_TEST(rows_are_complete_and_names_unique)
{
    for (size_t i = 0; i < ps_n_options; i++) {
        const struct ps_option *opt = &ps_option_table[i];
        const size_t n = strlen(opt->doc);

        ck_assert_msg(strncmp(opt->name, "PAGEDSTASH_", 11) == 0, "%s", opt->name);
        ck_assert_msg(n > 10 && opt->doc[n - 1] == '.', "%s: '%s'", opt->name, opt->doc);
        ck_assert_ptr_eq(ps_option_find(opt->name), opt);
    }
}
END_TEST

static const struct {
    const char *text;
    bool ok;
    uint64_t bytes;
} sizes[] = {
    {"0", true, 0},
    {"512", true, 512},
    {"32M", true, 32u << 20},
    {"1k", true, 1024},
    {"2GiB", true, UINT64_C(2) << 30},
    {"3tb", true, UINT64_C(3) << 40},
    {"7B", true, 7},
    {"18446744073709551615", true, UINT64_MAX},
    {"18446744073709551616", false, 0},
    {"16777216T", false, 0},
    {"", false, 0},
    {"M", false, 0},
    {"-1", false, 0},
    {"+1", false, 0},
    {" 1", false, 0},
    {"1 M", false, 0},
    {"1.5G", false, 0},
    {"1MM", false, 0},
    {"1Ki", false, 0},
    {"0x10", false, 0},
    {"nan", false, 0},
};

START_TEST(sizes_are_read_with_their_units)
{
    uint64_t bytes = 4711;

    ck_assert_msg(ps_size_parse(sizes[_i].text, &bytes) == sizes[_i].ok, "row %d: '%s'", _i,
                  sizes[_i].text);
    ck_assert_msg(bytes == (sizes[_i].ok ? sizes[_i].bytes : 4711), "row %d: '%s' gave %llu", _i,
                  sizes[_i].text, (unsigned long long)bytes);
}
END_TEST

static const struct {
    const char *name;
    const char *text;
    const char *printed; /* NULL: refused */
} values[] = {
    {"PAGEDSTASH_DISABLE", "On", "y"},
    {"PAGEDSTASH_DISABLE", "0", "n"},
    {"PAGEDSTASH_DISABLE", "TRUE", "y"},
    {"PAGEDSTASH_DISABLE", "maybe", NULL},
    {"PAGEDSTASH_DISABLE", "", NULL},
    {"PAGEDSTASH_PAGE_BYTES", "512", "512"},
    {"PAGEDSTASH_PAGE_BYTES", "256k", "256K"},
    {"PAGEDSTASH_PAGE_BYTES", "AUTO", "auto"},
    {"PAGEDSTASH_PAGE_BYTES", "256", NULL},
    {"PAGEDSTASH_PAGE_BYTES", "768", NULL},
    {"PAGEDSTASH_PAGE_BYTES", "1G", NULL},
    {"PAGEDSTASH_MIN_BYTES", "0", NULL},
    {"PAGEDSTASH_MIN_BYTES", "auto", NULL},
    {"PAGEDSTASH_MIN_BYTES", "1024", "1K"},
    {"PAGEDSTASH_WINDOW_BYTES", "1T", "1T"},
    {"PAGEDSTASH_LOG_LEVEL", "Debug", "debug"},
    {"PAGEDSTASH_LOG_LEVEL", "loud", NULL},
    {"PAGEDSTASH_LOG_LEVEL", "2", NULL},
    {"PAGEDSTASH_RANK", "17", "17"},
    {"PAGEDSTASH_RANK", "-1", NULL},
    {"PAGEDSTASH_RANK", "99999999999", NULL},
    {"PAGEDSTASH_REGIONS", "a*,b", "a*,b"},
    {"PAGEDSTASH_REGIONS", "a\nb", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "1.1", "1.10"},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "-2", "-2.00"},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "0.333333", "0.333333"},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "-0.125", "-0.125"},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "0", "0.00"},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "1000", "1000.00"},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "1000.01", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "99999999999999999999", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "0.3333333", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "1.", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", ".5", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "--1", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "1e1", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "nan", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "auto", NULL},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU", "AUTO", "auto"},
    {"PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU", "-1.5", "-1.50"},
    {"PAGEDSTASH_CAPACITY_FACTOR", "1.25", "1.25"},
    {"PAGEDSTASH_CAPACITY_FACTOR", "0.6", "0.60"},
    {"PAGEDSTASH_CAPACITY_FACTOR", "0", NULL},
    {"PAGEDSTASH_CAPACITY_FACTOR", "-1", NULL},
    {"PAGEDSTASH_PAGE_SIZE", "64", "64"},
    {"PAGEDSTASH_PAGE_SIZE", "0", NULL},
};

START_TEST(values_are_taken_or_refused)
{
    const struct ps_option *opt = ps_option_find(values[_i].name);
    struct ps_options o;
    char before[PS_OPT_TEXT_MAX];
    char after[PS_OPT_TEXT_MAX];

    ps_options_init(&o);
    ps_option_print(&o, opt, before, sizeof(before));
    const bool taken = ps_option_set(&o, opt, values[_i].text);

    ps_option_print(&o, opt, after, sizeof(after));
    ck_assert_msg(taken == (values[_i].printed != NULL), "row %d: %s='%s'", _i, values[_i].name,
                  values[_i].text);
    ck_assert_str_eq(after, taken ? values[_i].printed : before);
}
END_TEST

START_TEST(a_text_that_is_too_long_is_refused)
{
    struct ps_options o;
    char text[PS_OPT_TEXT_MAX + 1];

    ps_options_init(&o);
    memset(text, 'x', sizeof(text) - 1);
    text[PS_OPT_TEXT_MAX] = '\0';
    ck_assert(!ps_option_set(&o, ps_option_find("PAGEDSTASH_REGIONS"), text));
    ck_assert_str_eq(o.regions, "*experts*");
    text[PS_OPT_TEXT_MAX - 1] = '\0';
    ck_assert(ps_option_set(&o, ps_option_find("PAGEDSTASH_REGIONS"), text));
}
END_TEST

START_TEST(bad_values_keep_the_default_and_are_told_once)
{
    struct ps_options o;
    unsigned n_bad = 0;

    setenv("PAGEDSTASH_DISABLE", "maybe", 1);
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, 1);
    ck_assert(!o.disable);
    ck_assert_str_eq(ps_options_complaint(0),
                     "bad value 'maybe' for 'PAGEDSTASH_DISABLE' (want <y|n>); using 'n'");
    ck_assert_ptr_null(ps_options_complaint(1));
}
END_TEST

START_TEST(the_range_stands_in_the_message)
{
    struct ps_options o;

    setenv("PAGEDSTASH_PAGE_BYTES", "700", 1);
    ps_options_load(&o, true, NULL);
    ck_assert_str_eq(ps_options_complaint(0),
                     "bad value '700' for 'PAGEDSTASH_PAGE_BYTES' (want <power of two from 512 to "
                     "256M|auto>); using 'auto'");
}
END_TEST

START_TEST(unknown_names_get_the_nearest_one)
{
    struct ps_options o;
    unsigned n_bad = 0;

    setenv("PAGEDSTASH_LOG_LVEL", "info", 1);
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, 1);
    ck_assert_str_eq(
        ps_options_complaint(0),
        "unknown variable 'PAGEDSTASH_LOG_LVEL' (did you mean 'PAGEDSTASH_LOG_LEVEL'?)");
}
END_TEST

/* Names and values of a pair, and which of the two is left out: 0 or 1; -1: they go together. */
static const struct {
    const char *name[2];
    const char *text[2];
    int out;
} pairs[] = {
    {{"PAGEDSTASH_CUDA_BUDGET", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA"}, {"1G", "1.10"}, 1},
    {{"PAGEDSTASH_CUDA_BUDGET", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA"}, {"auto", "1.10"}, -1},
    {{"PAGEDSTASH_CUDA_BUDGET", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU"}, {"1G", "1.5"}, -1},
    {{"PAGEDSTASH_HOST_BUDGET", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU"}, {"1G", "-1"}, 1},
    {{"PAGEDSTASH_HOST_BUDGET", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU"}, {"1G", "auto"}, -1},
    {{"PAGEDSTASH_HOST_BUDGET", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU"}, {"0", "0"}, 1},
    {{"PAGEDSTASH_PAGE_BYTES", "PAGEDSTASH_PAGE_SIZE"}, {"1M", "64"}, 1},
    {{"PAGEDSTASH_PAGE_BYTES", "PAGEDSTASH_PAGE_SIZE"}, {"auto", "32"}, -1},
    {{"PAGEDSTASH_HOST_BUDGET", "PAGEDSTASH_CUDA_BUDGET"}, {"0", "0"}, 1},
    {{"PAGEDSTASH_HOST_BUDGET", "PAGEDSTASH_CUDA_BUDGET"}, {"0", "1M"}, -1},
    {{"PAGEDSTASH_HOST_BUDGET", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA"}, {"0", "0"}, 1},
    {{"PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU", "PAGEDSTASH_CUDA_BUDGET"}, {"0", "0"}, 1},
    {{"PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA"}, {"0", "0"}, 1},
    {{"PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA"}, {"0", "1"}, -1},
    {{"PAGEDSTASH_PLAN", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA"}, {"n", "1.10"}, 1},
    {{"PAGEDSTASH_PLAN", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU"}, {"n", "1"}, 1},
    {{"PAGEDSTASH_PLAN", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU"}, {"n", "0"}, -1},
    {{"PAGEDSTASH_PLAN", "PAGEDSTASH_CUDA_BUDGET"}, {"n", "1G"}, -1},
    {{"PAGEDSTASH_MIN_BYTES", "PAGEDSTASH_WINDOW_BYTES"}, {"2M", "1M"}, 1},
    {{"PAGEDSTASH_MIN_BYTES", "PAGEDSTASH_WINDOW_BYTES"}, {"1M", "1M"}, -1},
};

static void value_of(const struct ps_options *o, const char *name, char text[PS_OPT_TEXT_MAX])
{
    ps_option_print(o, ps_option_find(name), text, PS_OPT_TEXT_MAX);
}

START_TEST(of_two_that_contradict_each_other_one_is_left_out)
{
    struct ps_options o, alone;
    unsigned n_bad = 0;

    ps_options_init(&alone);
    for (int i = 0; i < 2; i++) {
        setenv(pairs[_i].name[i], pairs[_i].text[i], 1);
    }
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, pairs[_i].out >= 0);
    ck_assert_uint_eq(ps_options_contradictions(), pairs[_i].out >= 0);
    for (int i = 0; i < 2; i++) {
        char text[PS_OPT_TEXT_MAX], want[PS_OPT_TEXT_MAX];

        ck_assert(ps_option_set(&alone, ps_option_find(pairs[_i].name[i]), pairs[_i].text[i]));
        if (pairs[_i].out == i) {
            ps_options_init(&alone);
            ck_assert_ptr_nonnull(strstr(ps_options_complaint(0), pairs[_i].name[i]));
        }
        value_of(&o, pairs[_i].name[i], text);
        value_of(&alone, pairs[_i].name[i], want);
        ck_assert_str_eq(text, want);
        ck_assert_int_eq(ps_option_given(&o, pairs[_i].name[i]), pairs[_i].out != i);
    }
}
END_TEST

/* _i: which of the two stands in the user's file. */
START_TEST(of_two_from_different_places_the_later_goes)
{
    static const char *const lines[] = {"PAGEDSTASH_CUDA_BUDGET=1G",
                                        "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA=2"};
    struct ps_options o;
    unsigned n_bad = 1;

    write_user_file(lines[_i]);
    if (_i == 0) {
        setenv("PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA", "2", 1);
    } else {
        setenv("PAGEDSTASH_CUDA_BUDGET", "1G", 1);
    }
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, 0);
    ck_assert_int_eq(ps_option_given(&o, "PAGEDSTASH_CUDA_BUDGET"), _i == 1);
    ck_assert_int_eq(ps_option_given(&o, "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA"), _i == 0);
    ck_assert_int_eq(o.factor_cuda, _i == 0 ? 2 * PS_FACTOR_ONE : 1100000);
}
END_TEST

START_TEST(names_far_from_all_get_no_hint)
{
    struct ps_options o;

    setenv("PAGEDSTASH_SOMETHING_ELSE", "1", 1);
    ps_options_load(&o, true, NULL);
    ck_assert_str_eq(ps_options_complaint(0), "unknown variable 'PAGEDSTASH_SOMETHING_ELSE'");
}
END_TEST

START_TEST(kubernetes_variables_are_left_out)
{
    struct ps_options o;
    unsigned n_bad = 1;

    setenv("PAGEDSTASH_SERVICE_HOST", "10.0.0.1", 1);
    setenv("PAGEDSTASH_SERVICE_PORT", "80", 1);
    setenv("PAGEDSTASH_SERVICE_PORT_HTTP", "80", 1);
    setenv("PAGEDSTASH_PORT", "tcp://10.0.0.1:80", 1);
    setenv("PAGEDSTASH_PORT_80_TCP_ADDR", "10.0.0.1", 1);
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, 0);
}
END_TEST

START_TEST(the_environment_goes_before_files_and_the_named_file_before_the_users)
{
    struct ps_options o;
    char path[128];
    unsigned n_bad = 1;

    write_user_file("# mine\n\nPAGEDSTASH_REGIONS = user\nPAGEDSTASH_MIN_BYTES=1M\r\n"
                    "PAGEDSTASH_LOG_LEVEL=debug");
    snprintf(path, sizeof(path), "%s/named", home);
    write_file(path, "PAGEDSTASH_REGIONS=named\nPAGEDSTASH_MIN_BYTES=2M\n");
    setenv("PAGEDSTASH_CONFIG_FILE", path, 1);
    setenv("PAGEDSTASH_REGIONS", "environment", 1);
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, 0);
    ck_assert_str_eq(o.regions, "environment");
    ck_assert_uint_eq(o.min_bytes, 2u << 20);
    ck_assert_int_eq(o.log_level, PS_LOG_DEBUG);
    ck_assert_str_eq(o.config_file, path);
}
END_TEST

START_TEST(bad_lines_of_a_file_are_told_with_its_name)
{
    struct ps_options o;
    char want[256];
    unsigned n_bad = 0;

    write_user_file("PAGEDSTASH_RANK=x\nnonsense\nPAGEDSTASH_RNAK=1\nPAGEDSTASH_CONFIG_FILE=/x\n");
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, 4);
    snprintf(want, sizeof(want),
             "bad value 'x' for 'PAGEDSTASH_RANK' in %s/.config/pagedstash.conf (want <number from "
             "0 to 2147483647|auto>); using 'auto'",
             home);
    ck_assert_str_eq(ps_options_complaint(0), want);
    ck_assert_ptr_nonnull(strstr(ps_options_complaint(1), "not a NAME=value line"));
    ck_assert_ptr_nonnull(strstr(ps_options_complaint(2), "did you mean 'PAGEDSTASH_RANK'?"));
    ck_assert_ptr_nonnull(strstr(ps_options_complaint(3), "has no effect"));
}
END_TEST

START_TEST(a_named_file_that_is_missing_or_not_a_file_is_told)
{
    struct ps_options o;
    unsigned n_bad = 0;

    setenv("PAGEDSTASH_CONFIG_FILE", "/nonexistent/file", 1);
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, 1);
    ck_assert_str_eq(ps_options_complaint(0),
                     "cannot read '/nonexistent/file': No such file or directory");
    setenv("PAGEDSTASH_CONFIG_FILE", home, 1);
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, 1);
}
END_TEST

START_TEST(a_line_of_any_length_is_survived)
{
    struct ps_options o;
    char line[8192];
    unsigned n_bad = 0;

    char value[8000];

    memset(value, 'y', sizeof(value) - 1);
    value[sizeof(value) - 1] = '\0';
    snprintf(line, sizeof(line), "PAGEDSTASH_REGIONS=%s\nPAGEDSTASH_RANK=3\n", value);
    write_user_file(line);
    ps_options_load(&o, true, &n_bad);
    ck_assert_uint_eq(n_bad, 1);
    ck_assert_int_eq(o.rank, 3);
    ck_assert_str_eq(o.regions, "*experts*");
}
END_TEST

START_TEST(a_file_in_the_current_folder_is_not_read)
{
    struct ps_options o;

    ck_assert_int_eq(chdir(home), 0);
    write_file("pagedstash.conf", "PAGEDSTASH_DISABLE=y\n");
    ps_options_load(&o, true, NULL);
    ck_assert(!o.disable);
    ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

START_TEST(loading_keeps_errno)
{
    struct ps_options o;

    errno = EDOM;
    ps_options_load(&o, true, NULL);
    ck_assert_int_eq(errno, EDOM);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("options");
    TCase *tc = tcase_create("options");

    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_loop_test(tc, every_default_parses_and_prints_back_to_itself, 0, (int)ps_n_options);
    tcase_add_test(tc, rows_are_complete_and_names_unique);
    tcase_add_loop_test(tc, sizes_are_read_with_their_units, 0,
                        (int)(sizeof(sizes) / sizeof(sizes[0])));
    tcase_add_loop_test(tc, values_are_taken_or_refused, 0,
                        (int)(sizeof(values) / sizeof(values[0])));
    tcase_add_test(tc, a_text_that_is_too_long_is_refused);
    tcase_add_test(tc, bad_values_keep_the_default_and_are_told_once);
    tcase_add_test(tc, the_range_stands_in_the_message);
    tcase_add_test(tc, unknown_names_get_the_nearest_one);
    tcase_add_loop_test(tc, of_two_that_contradict_each_other_one_is_left_out, 0,
                        (int)(sizeof(pairs) / sizeof(pairs[0])));
    tcase_add_loop_test(tc, of_two_from_different_places_the_later_goes, 0, 2);
    tcase_add_test(tc, names_far_from_all_get_no_hint);
    tcase_add_test(tc, kubernetes_variables_are_left_out);
    tcase_add_test(tc, the_environment_goes_before_files_and_the_named_file_before_the_users);
    tcase_add_test(tc, bad_lines_of_a_file_are_told_with_its_name);
    tcase_add_test(tc, a_named_file_that_is_missing_or_not_a_file_is_told);
    tcase_add_test(tc, a_line_of_any_length_is_survived);
    tcase_add_test(tc, a_file_in_the_current_folder_is_not_read);
    tcase_add_test(tc, loading_keeps_errno);
    suite_add_tcase(s, tc);
    return ps_check_main(s);
}
