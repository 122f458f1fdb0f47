/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every look-up that PyTorch and libcudart were seen to make, by every route, under the preloaded
 * object: each answer must be our function of exactly the symbol that a real driver would have
 * given, or that driver's function itself. Which symbol is right comes from cudaTypedefs.h by way
 * of the fake driver, not from hooks.def.
 */
#include "tests/support/check_main.h"

#include <string.h>

#include "tests/preload/preloaded.h"

typedef int (*any_fn)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                      uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
typedef int (*get_v1_fn)(const char *, void **, int, uint64_t);
typedef int (*get_v2_fn)(const char *, void **, int, uint64_t, int *);

static const char *const hooked[] = {
#define HOOK(_symbol, ...)      #_symbol,
#define HOOK_BODY(_symbol, ...) #_symbol,
#define CUDA_VERSION            99999
#include "shim/hooks.def"
#undef HOOK
#undef HOOK_BODY
#undef CUDA_VERSION
};

static void *cuda;
static struct fake_control *fake;
static get_v1_fn get_v1;
static get_v2_fn get_v2;

static bool is_hooked(const char *symbol)
{
    for (unsigned i = 0; i < sizeof(hooked) / sizeof(hooked[0]); i++) {
        if (strcmp(hooked[i], symbol) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_ours(const void *p, const char *symbol)
{
    Dl_info info;

    return dladdr(p, &info) != 0 && strstr(info.dli_fname, "libpagedstash") != NULL &&
           info.dli_saddr == p && info.dli_sname != NULL && strcmp(info.dli_sname, symbol) == 0;
}

static void check(void *p, const char *symbol, const char *route)
{
    if (is_hooked(symbol)) {
        ck_assert_msg(is_ours(p, symbol), "%s by %s is not our function", symbol, route);
    } else {
        ck_assert_msg(p == fake->pointer(symbol), "%s by %s is not the driver's", symbol, route);
    }
}

static void check_get(const char *name, int version, uint64_t flags)
{
    const char *symbol = fake->right(name, version, flags);
    void *p = NULL;
    int status = -1;

    if (name[0] == '\0') {
        ck_assert_int_eq(get_v2(name, &p, version, flags, NULL), 0);
        return;
    }
    if (symbol == NULL) {
        ck_assert_int_ne(get_v2(name, &p, version, flags, &status), 0);
        ck_assert_ptr_null(p);
        return;
    }
    ck_assert_int_eq(get_v2(name, &p, version, flags, &status), 0);
    ck_assert_int_eq(status, 0);
    check(p, symbol, "cuGetProcAddress_v2");
    p = NULL;
    ck_assert_int_eq(get_v2(name, &p, version, flags, NULL), 0);
    check(p, symbol, "cuGetProcAddress_v2 without status");
    p = NULL;
    ck_assert_int_eq(get_v1(name, &p, version, flags), 0);
    check(p, symbol, "cuGetProcAddress");
}

static void check_symbol(const char *symbol)
{
    if (fake->pointer(symbol) == NULL) {
        ck_assert_ptr_null(dlsym(cuda, symbol));
        return;
    }
    check(dlsym(cuda, symbol), symbol, "dlsym");
}

static FILE *open_data(const char *name)
{
    char path[1024];

    snprintf(path, sizeof(path), "%s/%s", PS_TEST_DATA, name);
    FILE *f = fopen(path, "r");

    ck_assert_msg(f != NULL, "cannot open '%s'", path);
    return f;
}

START_TEST(pytorch_look_ups_get_the_right_functions)
{
    FILE *f = open_data("pytorch_driver_lookups.tsv");
    char line[512];
    unsigned n = 0;

    while (fgets(line, sizeof(line), f) != NULL) {
        char route[64], name[128];
        int version;
        unsigned long long flags;

        if (sscanf(line, "cuGetProcAddress_v2 %127s %d %llu", name, &version, &flags) == 3) {
            check_get(strcmp(name, "\"\"") == 0 ? "" : name, version, flags);
            n++;
        } else if (sscanf(line, "%63s %127s - -", route, name) == 2 &&
                   strcmp(route, "dlsym") == 0) {
            check_symbol(name);
            n++;
        }
    }
    fclose(f);
    ck_assert_uint_eq(n, 653);
}
END_TEST

START_TEST(libcudart_look_ups_get_the_right_functions)
{
    FILE *f = open_data("libcudart13_getproc_sequence.txt");
    char line[512];
    unsigned n = 0;

    while (fgets(line, sizeof(line), f) != NULL) {
        char name[128] = "";
        int version;
        unsigned long long flags;

        if (sscanf(line, "GPA %127s ver=%d flags=%llu", name, &version, &flags) == 3) {
            check_get(name, version, flags);
        } else {
            ck_assert_int_eq(sscanf(line, "GPA  ver=%d flags=%llu", &version, &flags), 2);
            ck_assert_int_eq(get_v2("", NULL, version, flags, NULL), 0);
        }
        n++;
    }
    fclose(f);
    ck_assert_uint_eq(n, 440);
}
END_TEST

/* By each version that the headers know, and by each version at which any function changed. */
START_TEST(every_version_of_every_function_is_told_apart)
{
    static const int versions[] = {2000,  3020,  4000,  5050,  7000,  8000,  9000,  10000,
                                   10010, 11000, 11020, 11030, 11070, 12000, 12020, 12030,
                                   12040, 12050, 12060, 12080, 12090, 13000};

    for (unsigned i = 0; i < sizeof(hooked) / sizeof(hooked[0]); i++) {
        char name[128];

        snprintf(name, sizeof(name), "%s", hooked[i]);
        char *suffix = strstr(name, "_v");

        suffix = suffix != NULL ? suffix : strstr(name, "_pt");
        if (suffix != NULL) {
            *suffix = '\0';
        }
        for (unsigned v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
            for (uint64_t flags = 0; flags <= 2; flags++) {
                check_get(name, versions[v], flags);
            }
        }
    }
}
END_TEST

/* libcuda is opened for the program only at first: then this route finds nothing, as without us. */
START_TEST(exports_answer_by_the_default_handle)
{
    ck_assert_ptr_null(dlsym(RTLD_DEFAULT, "cuLaunchKernel"));
    ck_assert_ptr_nonnull(dlerror());
    ck_assert_ptr_null(dlsym(RTLD_DEFAULT, "cuInit"));
    ck_assert_ptr_nonnull(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL));
    for (unsigned i = 0; i < sizeof(hooked) / sizeof(hooked[0]); i++) {
        check(dlsym(RTLD_DEFAULT, hooked[i]), hooked[i], "RTLD_DEFAULT");
    }
    ck_assert_ptr_eq(dlsym(RTLD_DEFAULT, "cuInit"), fake->pointer("cuInit"));
    ck_assert_ptr_null(dlsym(RTLD_DEFAULT, "cuNoSuchFunction"));
}
END_TEST

static bool ends_paging(const char *symbol)
{
    return strcmp(symbol, "cuLaunch") == 0 || strncmp(symbol, "cuLaunchGrid", 12) == 0 ||
           strcmp(symbol, "cuCtxDetach") == 0;
}

/* Zeros and NULL for arguments: a wrapper must leave them to the driver. */
START_TEST(every_wrapper_ends_in_its_own_function)
{
    for (unsigned i = 0; i < sizeof(hooked) / sizeof(hooked[0]); i++) {
        if (strncmp(hooked[i], "cuGetProcAddress", 16) == 0 || ends_paging(hooked[i])) {
            continue;
        }
        any_fn f = (any_fn)dlsym(cuda, hooked[i]);

        fake->reset();
        f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        ck_assert_msg(fake->calls(hooked[i]) == 1, "%s called %d times", hooked[i],
                      fake->calls(hooked[i]));
    }
}
END_TEST

START_TEST(arguments_and_results_pass_unchanged)
{
    any_fn f = (any_fn)dlsym(cuda, "cuMemsetD2D32Async_ptsz");

    fake->reset();
    fake->fail_next("cuMemsetD2D32Async_ptsz", 719, 1);
    ck_assert_int_eq(f(11, 12, 13, 14, 15, 16, 0, 0, 0, 0, 0, 0), 719);
    for (unsigned i = 0; i < 6; i++) {
        ck_assert_uint_eq(fake->args[i], 11 + i);
    }
}
END_TEST

START_TEST(nothing_to_write_to_is_tolerated)
{
    ck_assert_int_eq(get_v2("", NULL, 0, 0, NULL), 0);
    ck_assert_int_ne(get_v2(NULL, NULL, 12000, 0, NULL), 0);
    ck_assert_int_ne(get_v2("cuMemAlloc", NULL, 12000, 0, NULL), 0);
    ck_assert_int_ne(get_v1("cuMemAlloc", NULL, 12000, 0), 0);
}
END_TEST

START_TEST(a_newer_version_with_the_same_function_keeps_its_wrapper)
{
    void *p = NULL;

    ck_assert_int_eq(get_v2("cuLaunchKernel", &p, 14000, 0, NULL), 0);
    check(p, "cuLaunchKernel", "a newer version");
    ck_assert_int_eq(get_v2("cuMemcpyBatchAsync", &p, 14000, 2, NULL), 0);
    check(p, "cuMemcpyBatchAsync_v2_ptsz", "a newer version");
}
END_TEST

/* Last, since paging does not come back. */
START_TEST(an_unknown_form_ends_paging_when_called)
{
    struct engine_double *d = load_double();
    void *safe = NULL, *launch = NULL, *again = NULL;

    fake->reset();
    d->log[0] = '\0';
    fake->future_name = "cuEventCreate";
    fake->future_symbol = "cuEventCreate_v9";
    ck_assert_int_eq(get_v2("cuEventCreate", &safe, 13010, 0, NULL), 0);
    ck_assert_ptr_eq(safe, fake->pointer("cuEventCreate_v9"));

    fake->future_name = "cuLaunchKernel";
    fake->future_symbol = "cuLaunchKernel_v9";
    ck_assert_int_eq(get_v2("cuLaunchKernel", &launch, 13010, 0, NULL), 0);
    ck_assert_int_eq(get_v1("cuLaunchKernel", &again, 13010, 0), 0);
    ck_assert_ptr_eq(launch, again);
    ck_assert_ptr_eq(dlsym(cuda, "cuLaunchKernel_v9"), launch);
    ck_assert_ptr_ne(launch, fake->pointer("cuLaunchKernel_v9"));
    void *other = dlsym(cuda, "cuMemcpyAsync_v9");

    ck_assert_ptr_ne(other, launch);
    ck_assert_ptr_ne(other, fake->pointer("cuMemcpyAsync_v9"));
    ck_assert_str_eq(d->log, "");

    fake->fail_next("cuLaunchKernel_v9", 700, 1);
    ck_assert_int_eq(((any_fn)launch)(1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0), 700);
    ck_assert_int_eq(fake->calls("cuLaunchKernel_v9"), 1);
    for (unsigned i = 0; i < 6; i++) {
        ck_assert_uint_eq(fake->args[i], 1 + i);
    }
    ck_assert_msg(strncmp(d->log, "end the job calls cuLaunchKernel", 32) == 0, "%s", d->log);
    d->log[0] = '\0';
    ((any_fn)launch)(1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0);
    ((any_fn)other)(1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0);
    ck_assert_str_eq(d->log, "");
    ck_assert_int_eq(fake->calls("cuMemcpyAsync_v9"), 1);
}
END_TEST

int main(void)
{
    cuda = load_cuda();
    fake = load_fake(cuda);
    fake->reset();
    get_v1 = (get_v1_fn)need(dlsym(cuda, "cuGetProcAddress"), "cuGetProcAddress");
    get_v2 = (get_v2_fn)need(dlsym(cuda, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
    Suite *s = suite_create("lookups");
    TCase *t = tcase_create("all");

    tcase_set_timeout(t, 60);
    tcase_add_test(t, pytorch_look_ups_get_the_right_functions);
    tcase_add_test(t, libcudart_look_ups_get_the_right_functions);
    tcase_add_test(t, every_version_of_every_function_is_told_apart);
    tcase_add_test(t, exports_answer_by_the_default_handle);
    tcase_add_test(t, every_wrapper_ends_in_its_own_function);
    tcase_add_test(t, arguments_and_results_pass_unchanged);
    tcase_add_test(t, nothing_to_write_to_is_tolerated);
    tcase_add_test(t, a_newer_version_with_the_same_function_keeps_its_wrapper);
    tcase_add_test(t, an_unknown_form_ends_paging_when_called);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
