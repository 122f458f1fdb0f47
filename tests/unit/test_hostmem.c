/* SPDX-License-Identifier: Apache-2.0 */
/* How much host memory may be taken, from files as kernels and containers write them. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/base/hostmem.h"
#include "tests/support/check_main.h"

#define MIB (UINT64_C(1) << 20)

static char root[64];

static void write_file(const char *path, const char *text)
{
    char whole[PATH_MAX];

    snprintf(whole, sizeof(whole), "%s%s", root, path);
    for (char *p = whole + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        (void)mkdir(whole, 0755);
        *p = '/';
    }
    FILE *f = fopen(whole, "we");

    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void set_up(void)
{
    snprintf(root, sizeof(root), "/tmp/pagedstash-hostmem-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    unsetenv("SLURM_NTASKS_PER_NODE");
}

static void tear_down(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", root);
    ck_assert_int_eq(system(command), 0); /* NOLINT(cert-env33-c): a folder of our own */
}

static const struct {
    const char *files[8]; /* path, text */
    uint64_t mib;
} cases[] = {
    {{NULL}, 0},
    {{"/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    1048576 kB\nBuffers: 1 kB\n"}, 1024},
    {{"/proc/meminfo", "MemTotal: 9 kB\n"}, 0},
    /* Version 2, its own group and those above it. */
    {{"/proc/meminfo", "MemAvailable: 1048576 kB\n", "/proc/self/cgroup", "0::/a/b\n",
      "/sys/fs/cgroup/a/b/memory.max", "max\n", "/sys/fs/cgroup/a/memory.max", "104857600\n"},
     100},
    {{"/proc/meminfo", "MemAvailable: 1048576 kB\n", "/proc/self/cgroup", "0::/\n",
      "/sys/fs/cgroup/memory.max", "2097152\n"},
     2},
    {{"/proc/meminfo", "MemAvailable: 1024 kB\n", "/proc/self/cgroup", "0::/\n",
      "/sys/fs/cgroup/memory.max", "2097152\n"},
     1},
    /* Version 1; a group that only the host's view of the tree has. */
    {{"/proc/meminfo", "MemAvailable: 1048576 kB\n", "/proc/self/cgroup",
      "12:cpu,cpuacct:/x\n4:memory:/docker/123\n1:name=systemd:/y\n",
      "/sys/fs/cgroup/memory/memory.limit_in_bytes", "3145728\n"},
     3},
    {{"/proc/meminfo", "MemAvailable: 2048 kB\n", "/proc/self/cgroup", "4:memory:/d\n",
      "/sys/fs/cgroup/memory/d/memory.limit_in_bytes", "9223372036854771712\n"},
     2},
    {{"/proc/meminfo", "MemAvailable: 2048 kB\n", "/proc/self/cgroup", "nonsense\n:\n::\n0:\n",
      "/sys/fs/cgroup/memory.max", "-\n"},
     2},
    {{"/proc/self/cgroup", "0::/\n", "/sys/fs/cgroup/memory.max", "2097152\n"}, 2},
};

START_TEST(the_least_limit_counts)
{
    for (size_t i = 0; i < 8 && cases[_i].files[i] != NULL; i += 2) {
        write_file(cases[_i].files[i], cases[_i].files[i + 1]);
    }
    write_file("/sys/x", "");
    ck_assert_uint_eq(ps_hostmem_available(root), cases[_i].mib * MIB);
}
END_TEST

START_TEST(each_process_has_its_share_of_half)
{
    write_file("/proc/meminfo", "MemAvailable: 1048576 kB\n");
    ck_assert_uint_eq(ps_hostmem_share(root), 512 * MIB);
    setenv("SLURM_NTASKS_PER_NODE", "2", 1);
    ck_assert_uint_eq(ps_hostmem_share(root), 256 * MIB);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
    ck_assert_uint_eq(ps_hostmem_share(root), 128 * MIB);
    setenv("LOCAL_WORLD_SIZE", "8", 1);
    ck_assert_uint_eq(ps_hostmem_share(root), 64 * MIB);
    setenv("LOCAL_WORLD_SIZE", "0", 1);
    ck_assert_uint_eq(ps_hostmem_share(root), 128 * MIB);
}
END_TEST

START_TEST(this_machine_has_some)
{
    ck_assert_uint_gt(ps_hostmem_available(""), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hostmem");
    TCase *t = tcase_create("hostmem");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_loop_test(t, the_least_limit_counts, 0, (int)(sizeof(cases) / sizeof(cases[0])));
    tcase_add_test(t, each_process_has_its_share_of_half);
    tcase_add_test(t, this_machine_has_some);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
