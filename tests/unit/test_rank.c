/* SPDX-License-Identifier: Apache-2.0 */
/* Which launcher's variables give the rank, and in which order. */
#include <stdlib.h>

#include "policy/base/rank.h"
#include "tests/support/check_main.h"

static const char *const names[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK",
    "PMI_RANK",
    "MPI_LOCALRANKID",
    "PMI_SIZE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
};

static const struct {
    const char *set[8];
    int64_t own, global, local, size;
} cases[] = {
    {{NULL}, -1, -1, -1, -1},
    {{"RANK", "5", "LOCAL_RANK", "1", "WORLD_SIZE", "8"}, -1, 5, 1, 8},
    {{"SLURM_PROCID", "1", "RANK", "5"}, -1, 5, -1, -1},
    {{"SLURM_PROCID", "3", "SLURM_LOCALID", "2", "SLURM_NTASKS", "4"}, -1, 3, 2, 4},
    {{"OMPI_COMM_WORLD_RANK", "2", "SLURM_PROCID", "0"}, -1, 2, -1, -1},
    {{"PMI_RANK", "4", "PMI_SIZE", "6", "MPI_LOCALRANKID", "0"}, -1, 4, 0, 6},
    {{"PMIX_RANK", "9", "PMI_RANK", "4"}, -1, 9, -1, -1},
    {{"RANK", "gold", "SLURM_PROCID", "3"}, -1, 3, -1, -1},
    {{"RANK", "", "SLURM_PROCID", "3"}, -1, 3, -1, -1},
    {{"RANK", "99999999999999999999"}, -1, -1, -1, -1},
    {{"RANK", "5", "LOCAL_RANK", "1"}, 7, 7, 1, -1},
};

static void set_up(void)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        unsetenv(names[i]);
    }
}

START_TEST(the_first_launcher_with_a_rank_counts)
{
    for (size_t i = 0; i + 1 < 8 && cases[_i].set[i] != NULL; i += 2) {
        setenv(cases[_i].set[i], cases[_i].set[i + 1], 1);
    }
    const struct ps_rank rank = ps_rank_read(cases[_i].own);

    ck_assert_msg(rank.global == cases[_i].global, "row %d", _i);
    ck_assert_msg(rank.local == cases[_i].local, "row %d", _i);
    ck_assert_msg(rank.size == cases[_i].size, "row %d", _i);
}
END_TEST

START_TEST(the_rank_is_kept_when_it_is_settled)
{
    ck_assert_int_eq(ps_rank_global(), -1);
    ck_assert(ps_rank_speaks());
    setenv("RANK", "1", 1);
    ps_rank_settle(-1);
    setenv("RANK", "0", 1);
    ps_rank_settle(-1);
    ck_assert_int_eq(ps_rank_global(), 1);
    ck_assert(!ps_rank_speaks());
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rank");
    TCase *tc = tcase_create("rank");

    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_loop_test(tc, the_first_launcher_with_a_rank_counts, 0,
                        (int)(sizeof(cases) / sizeof(cases[0])));
    tcase_add_test(tc, the_rank_is_kept_when_it_is_settled);
    suite_add_tcase(s, tc);
    return ps_check_main(s);
}
