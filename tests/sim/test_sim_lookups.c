/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: cuGetProcAddress by versions and flags, and every look-up a real runtime and PyTorch have made. */
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/driver_test.h"

#define LEGACY CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define PTDS   CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

static const struct {
    const char *name;
    int version;
    unsigned flags;
    const char *export; /* NULL: not there */
    CUdriverProcAddressQueryResult status;
} rows[] = {
    /* NOLINT(clang-analyzer-optin.performance.Padding): in the order of reading */
    {"cuMemAlloc", 3020, LEGACY, "cuMemAlloc_v2", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuMemAlloc", 3010, LEGACY, "cuMemAlloc", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuMemAlloc", 1000, LEGACY, NULL, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT},
    {"cuMemAlloc", 99999, LEGACY, "cuMemAlloc_v2", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuMemAlloc", 12000, PTDS, "cuMemAlloc_v2", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuMemAlloc_v2", 12000, LEGACY, NULL, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND},
    {"cuLaunchKernel", 4000, LEGACY, "cuLaunchKernel", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuLaunchKernel", 7000, PTDS, "cuLaunchKernel_ptsz", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuMemcpyHtoD", 7000, PTDS, "cuMemcpyHtoD_v2_ptds", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuStreamBeginCapture", 10000, LEGACY, "cuStreamBeginCapture", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuStreamBeginCapture", 10010, PTDS, "cuStreamBeginCapture_v2_ptsz",
     CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuStreamGetCaptureInfo", 12030, LEGACY, "cuStreamGetCaptureInfo_v3",
     CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuMemcpyBatchAsync", 12080, LEGACY, "cuMemcpyBatchAsync", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuMemcpyBatchAsync", 13000, LEGACY, "cuMemcpyBatchAsync_v2", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuGetProcAddress", 11030, LEGACY, "cuGetProcAddress", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuGetProcAddress", 12000, LEGACY, "cuGetProcAddress_v2", CU_GET_PROC_ADDRESS_SUCCESS},
    {"cuNothing", 13000, LEGACY, NULL, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND},
};

START_TEST(the_newest_form_not_newer_than_asked_is_found)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *found = NULL;
    void *expected = rows[_i].export == NULL ? NULL : dlsym(RTLD_DEFAULT, rows[_i].export);

    dt_start("");
    ck_assert(rows[_i].export == NULL || expected != NULL);
    ok(cuGetProcAddress(rows[_i].name, &found, rows[_i].version, rows[_i].flags, &status));
    ck_assert_ptr_eq(found, expected);
    ck_assert_int_eq(status, rows[_i].status);
    fails(cuGetProcAddress(rows[_i].name, &found, rows[_i].version, rows[_i].flags, NULL),
          expected == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS);
}
END_TEST

START_TEST(an_older_driver_has_fewer_functions)
{
    CUdriverProcAddressQueryResult status;
    void *found;

    dt_start("version=12040");
    ok(cuGetProcAddress("cuMemcpyBatchAsync", &found, 13000, 0, &status));
    ck_assert_ptr_null(found);
    ck_assert_int_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    ok(cuGetProcAddress("cuFuncGetParamInfo", &found, 13000, 0, &status));
    ck_assert_ptr_nonnull(found);
}
END_TEST

START_TEST(odd_arguments_are_answered)
{
    void *found = &found;

    dt_start("");
    ok(cuGetProcAddress("", &found, 0, 0, NULL));
    ok(cuGetProcAddress("", NULL, 0, 0, NULL));
    fails(cuGetProcAddress(NULL, &found, 13000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    fails(cuGetProcAddress("cuInit", NULL, 13000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    fails(cuGetProcAddress("cuInit", &found, 13000, 1u << 10, NULL), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

static FILE *data(const char *name)
{
    char path[400];

    snprintf(path, sizeof path, "%s/%s", PS_TEST_DATA, name);
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s", path);
    return f;
}

START_TEST(what_libcudart_looks_up_is_there)
{
    char line[400], name[200];
    int version;
    unsigned long long flags;
    unsigned n = 0;
    FILE *f = data("libcudart13_getproc_sequence.txt");

    dt_start("");
    while (fgets(line, sizeof line, f) != NULL) {
        void *found = NULL;
        if (sscanf(line, "GPA %199s ver=%d flags=%llu", name, &version, &flags) == 3) {
            ck_assert_msg(cuGetProcAddress(name, &found, version, flags, NULL) == CUDA_SUCCESS &&
                              found != NULL,
                          "%s %d", name, version);
            n++;
        }
    }
    fclose(f);
    ck_assert_uint_ge(n, 439);
}
END_TEST

START_TEST(what_pytorch_looked_up_is_there)
{
    char line[400], route[40], name[200], asked[4][40];
    unsigned n = 0;
    FILE *f = data("pytorch_driver_lookups.tsv");

    dt_start("");
    while (fgets(line, sizeof line, f) != NULL) {
        void *found = NULL;
        const int fields = sscanf(line, "%39[^\t]\t%199[^\t]\t%39[^\t]\t%39[^\t]\t%39[^\t]", route,
                                  name, asked[0], asked[1], asked[2]);
        if (fields < 5 || name[0] != 'c') {
            continue;
        }
        if (strcmp(route, "dlsym") == 0) {
            found = dlsym(RTLD_DEFAULT, name);
            ck_assert_msg((found != NULL) == (strcmp(asked[2], "found") == 0), "%s", name);
        } else {
            const CUresult result =
                cuGetProcAddress(name, &found, atoi(asked[0]), strtoull(asked[1], NULL, 10), NULL);
            ck_assert_msg((int)result == atoi(asked[2]), "%s %s", name, asked[0]);
        }
        n++;
    }
    fclose(f);
    ck_assert_uint_gt(n, 400);
}
END_TEST

START_TEST(a_forked_child_has_no_driver)
{
    int status;

    dt_start("check=1");
    const CUdeviceptr x = dt_alloc(4096);
    dt_fill(NULL, x, 1, 1);
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr p;
        _exit(cuMemAlloc(&p, 64) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_uint_eq(dt_word(NULL, x), 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("look-ups");
    TCase *tc = tcase_create("look-ups");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, the_newest_form_not_newer_than_asked_is_found, 0,
                        (int)(sizeof rows / sizeof rows[0]));
    tcase_add_test(tc, an_older_driver_has_fewer_functions);
    tcase_add_test(tc, odd_arguments_are_answered);
    tcase_add_test(tc, what_libcudart_looks_up_is_there);
    tcase_add_test(tc, what_pytorch_looked_up_is_there);
    tcase_add_test(tc, a_forked_child_has_no_driver);
    suite_add_tcase(s, tc);
    return ps_check_main(s);
}
