/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines, their limit, their file; and ps_bug. Forked, since the logger's state is the process's. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/base/bug.h"
#include "policy/base/log.h"
#include "policy/base/rank.h"
#include "tests/support/check_main.h"

static char folder[] = "/tmp/pagedstash-log-XXXXXX";
static char path[64];
static char text[65536];

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/log", folder);
    unsetenv("RANK");
}

static void tear_down(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

static const char *written(const char *file)
{
    FILE *f = fopen(file, "r");

    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    return text;
}

static unsigned n_lines(const char *s)
{
    unsigned n = 0;

    for (; *s != '\0'; s++) {
        n += *s == '\n' ? 1 : 0;
    }
    return n;
}

START_TEST(a_line_holds_rank_host_process_level_and_place)
{
    char want[256];
    char host[128];

    ps_log_init(PS_LOG_WARN, path);
    setenv("RANK", "3", 1);
    ps_rank_settle(-1);
    errno = ENOENT;
    ps_warn("cannot map '%s': %s", "x", strerrordesc_np(errno));
    ck_assert_int_eq(errno, ENOENT);
    ps_log_expand_path("%h", host, sizeof(host));
    snprintf(want, sizeof(want), "pagedstash: r3 %s:%d WARN tests/unit/test_log.c:", host,
             (int)getpid());
    ck_assert_msg(strncmp(written(path), want, strlen(want)) == 0, "'%s' against '%s'", text, want);
    ck_assert_ptr_nonnull(strstr(text, ": cannot map 'x': No such file or directory\n"));
}
END_TEST

START_TEST(below_the_level_nothing_is_written_and_no_file_made)
{
    struct stat st;

    ps_log_init(PS_LOG_WARN, path);
    ps_info("not worth it");
    ps_log_fini();
    ck_assert_int_ne(stat(path, &st), 0);
}
END_TEST

START_TEST(one_place_is_silent_after_sixteen_lines_and_counted)
{
    ps_log_init(PS_LOG_WARN, path);
    for (int i = 0; i < 100; i++) {
        ps_warn("line %d", i);
    }
    ck_assert_uint_eq(n_lines(written(path)), 16);
    ps_log_fini();
    ck_assert_ptr_nonnull(strstr(written(path), "84 more lines"));
    ck_assert_uint_eq(n_lines(text), 17);
}
END_TEST

START_TEST(once_is_once)
{
    ps_log_init(PS_LOG_WARN, path);
    for (int i = 0; i < 5; i++) {
        ps_warn_once("only this");
    }
    ps_log_fini();
    ck_assert_uint_eq(n_lines(written(path)), 1);
}
END_TEST

START_TEST(long_lines_are_cut_and_still_end)
{
    char big[4096];

    memset(big, 'b', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    ps_log_init(PS_LOG_WARN, path);
    ps_warn("%s", big);
    ck_assert_uint_eq(n_lines(written(path)), 1);
    ck_assert_uint_eq(strlen(text), 1024);
}
END_TEST

START_TEST(file_names_hold_host_process_and_rank)
{
    char pattern[128];
    char name[128];

    snprintf(pattern, sizeof(pattern), "%s/%%r-%%p%%", folder);
    ps_log_init(PS_LOG_WARN, pattern);
    ps_warn("here");
    snprintf(name, sizeof(name), "%s/--%d%%", folder, (int)getpid());
    ck_assert_uint_eq(n_lines(written(name)), 1);
}
END_TEST

START_TEST(a_descriptor_that_the_program_took_over_is_not_written_to)
{
    char other[64];

    ps_log_init(PS_LOG_WARN, path);
    ps_warn("first");
    snprintf(other, sizeof(other), "%s/other", folder);
    for (int fd = 3; fd < 64; fd++) {
        close(fd);
    }
    for (int i = 0; i < 8; i++) {
        ck_assert_int_ge(open(other, O_WRONLY | O_CREAT, 0600), 0);
    }
    ps_warn("second");
    ck_assert_str_eq(written(other), "");
    ck_assert_uint_eq(n_lines(written(path)), 2);
}
END_TEST

static int n_handled;

static void handle(void)
{
    n_handled++;
}

START_TEST(a_bug_is_told_once_and_handled_each_time)
{
    ps_log_init(PS_LOG_WARN, path);
    ps_bug_set_handler(handle);
    ps_bug("page %d is on the list twice", 7);
    ps_bug("another");
    ck_assert_int_eq(n_handled, 2);
    ck_assert_ptr_nonnull(strstr(written(path), "BUG: page 7 is on the list twice"));
    ck_assert_uint_eq(n_lines(text), 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("log");
    TCase *tc = tcase_create("log");

    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_line_holds_rank_host_process_level_and_place);
    tcase_add_test(tc, below_the_level_nothing_is_written_and_no_file_made);
    tcase_add_test(tc, one_place_is_silent_after_sixteen_lines_and_counted);
    tcase_add_test(tc, once_is_once);
    tcase_add_test(tc, long_lines_are_cut_and_still_end);
    tcase_add_test(tc, file_names_hold_host_process_and_rank);
    tcase_add_test(tc, a_descriptor_that_the_program_took_over_is_not_written_to);
    tcase_add_test(tc, a_bug_is_told_once_and_handled_each_time);
    suite_add_tcase(s, tc);
    return ps_check_main(s);
}
