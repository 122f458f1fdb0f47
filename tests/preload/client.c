/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that a preloaded object must not disturb: `client SCENARIO [argument]`. Exit status 0:
 * as it should be. Linked with libcuda, so that its own calls take the route of direct linking.
 */
#include "shim/cuda_api.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/preloaded.h"
#include "tests/preload/tool.h"

#define WINDOW UINT64_C(0x7f3000000000)
#define SIZE   (UINT64_C(8) << 30)
#define A      (WINDOW + 0x1000)
#define S9     ((CUstream)(uintptr_t)9)

#define EXPECT(_condition)                                                                         \
    do {                                                                                           \
        if (!(_condition)) {                                                                       \
            fprintf(stderr, "client.c:%d: not so: %s\n", __LINE__, #_condition);                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char *argument;

static bool is_ours(const void *p)
{
    Dl_info info;

    return p != NULL && dladdr(p, &info) != 0 && strstr(info.dli_fname, "libpagedstash") != NULL;
}

static void expect_log(struct engine_double *d, const char *text)
{
    if (strcmp(d->log, text) != 0) {
        fprintf(stderr, "log is '%s', not '%s'\n", d->log, text);
        exit(1);
    }
    d->log[0] = '\0';
}

/* ---- one process ---- */

static void direct(void)
{
    struct engine_double *d = load_double();

    set_window(WINDOW, SIZE);
    EXPECT(cuMemsetD8Async(A, 0, 1, S9) == CUDA_SUCCESS);
    expect_log(d, "enter 7f3000001000 s9;leave s9;");
    EXPECT(cuMemFree_v2(A) == CUDA_SUCCESS);
    expect_log(d, "free_sync 7f3000001000;");
    EXPECT(is_ours((void *)cuLaunchKernel));
    EXPECT(is_ours(dlsym(RTLD_DEFAULT, "cuLaunchKernel")));
    void *program = dlopen(NULL, RTLD_NOW);

    EXPECT(is_ours(dlsym(program, "cuLaunchKernel")));
    EXPECT(!is_ours(dlsym(program, "cuInit")) && dlsym(program, "cuInit") != NULL);
}

static void forked(void)
{
    struct engine_double *d = load_double();

    set_window(WINDOW, SIZE);
    EXPECT(cuMemsetD8Async(A, 0, 1, S9) == CUDA_SUCCESS);
    expect_log(d, "enter 7f3000001000 s9;leave s9;");
    const pid_t child = fork();

    if (child == 0) {
        expect_log(d, "forked;");
        EXPECT(cuMemsetD8Async(A, 0, 1, S9) == CUDA_SUCCESS);
        CUdeviceptr p;

        EXPECT(cuMemAllocAsync(&p, 1, S9) == CUDA_SUCCESS);
        expect_log(d, "");
        _exit(0);
    }
    int status = 1;

    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(cuMemsetD8Async(A, 0, 1, S9) == CUDA_SUCCESS);
    expect_log(d, "enter 7f3000001000 s9;leave s9;");
}

static void executed(void)
{
    if (argument != NULL) { /* the second time round */
        direct();
        return;
    }
    EXPECT(is_ours((void *)cuLaunchKernel));
    execl("/proc/self/exe", "client", "exec", "again", (char *)NULL);
    EXPECT(!"exec failed");
}

static void plugin(void)
{
    struct engine_double *d = load_double();
    void *lib = need(dlopen(argument, RTLD_NOW | RTLD_LOCAL), argument);
    void *(*find)(void) = need(dlsym(lib, "plugin_find"), "plugin_find");
    int (*fill)(uint64_t) = need(dlsym(lib, "plugin_fill"), "plugin_fill");

    set_window(WINDOW, SIZE);
    EXPECT(is_ours(find()));
    EXPECT(fill(A) == 0);
    expect_log(d, "enter 7f3000001000 7f3000001003 s9;leave s9;");
}

/* ---- look-ups from many threads, the first ones of the process ---- */

#define N_THREADS 8

static pthread_barrier_t barrier;

static void *look_up(void *arg)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    void *last = NULL;

    (void)arg;
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < 200; i++) {
        PFN_cuGetProcAddress_v12000 get = dlsym(cuda, "cuGetProcAddress_v2");
        void *p = NULL;

        EXPECT(get("cuMemcpyAsync", &p, 13000, 2, NULL) == CUDA_SUCCESS);
        EXPECT(is_ours(p) && p == dlsym(cuda, "cuMemcpyAsync_ptsz"));
        EXPECT(last == NULL || last == p);
        last = p;
    }
    return last;
}

static void threads(void)
{
    pthread_t t[N_THREADS];
    void *results[N_THREADS];

    pthread_barrier_init(&barrier, NULL, N_THREADS);
    for (unsigned i = 0; i < N_THREADS; i++) {
        EXPECT(pthread_create(&t[i], NULL, look_up, NULL) == 0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        EXPECT(pthread_join(t[i], &results[i]) == 0);
        EXPECT(results[i] == results[0]);
    }
}

/* ---- another preloaded tool, before or after ---- */

static void check_route(struct engine_double *d, struct fake_control *fake,
                        PFN_cuMemsetD8Async_v3020 f, bool tool_sees_it)
{
    int (*calls)(void) = need(dlsym(RTLD_DEFAULT, "tool_calls"), "tool_calls");
    const int before = calls();

    fake->reset();
    EXPECT(f(A, 0, 1, S9) == CUDA_SUCCESS);
    EXPECT(fake->calls("cuMemsetD8Async") == 1);
    EXPECT(calls() - before == (tool_sees_it ? 1 : 0));
    expect_log(d, "enter 7f3000001000 s9;leave s9;");
}

/* One route a process: the first look-up decides what follows us. */
static void second_tool(void)
{
    struct engine_double *d = load_double();
    void *cuda = load_cuda();
    struct fake_control *fake = load_fake(cuda);
    PFN_cuMemsetD8Async_v3020 f = cuMemsetD8Async;

    set_window(WINDOW, SIZE);
    d->log[0] = '\0';
    if (strcmp(argument, "dlsym") == 0) {
        f = dlsym(cuda, "cuMemsetD8Async");
    } else if (strcmp(argument, "default") == 0) {
        f = dlsym(RTLD_DEFAULT, "cuMemsetD8Async");
    } else if (strcmp(argument, "get") == 0) {
        PFN_cuGetProcAddress_v12000 get = dlsym(cuda, "cuGetProcAddress_v2");
        void *p = NULL;

        EXPECT(get("cuMemsetD8Async", &p, 13000, 0, NULL) == CUDA_SUCCESS);
        f = (PFN_cuMemsetD8Async_v3020)p;
    }
    /* This tool leaves cuGetProcAddress alone. */
    check_route(d, fake, f, strcmp(argument, "get") != 0);
    check_route(d, fake, f, strcmp(argument, "get") != 0);
}

/* ---- switched off ---- */

static void disabled(void)
{
    struct engine_double *d = load_double();
    void *cuda = load_cuda();

    set_window(WINDOW, SIZE);
    EXPECT(!is_ours(dlsym(cuda, "cuLaunchKernel")));
    EXPECT(!is_ours(dlsym(RTLD_DEFAULT, "cuLaunchKernel")));
    EXPECT(cuMemsetD8Async(A, 0, 1, S9) == CUDA_SUCCESS);
    expect_log(d, "");
    EXPECT(getenv("NVTX_INJECTION64_PATH") == NULL && getenv("PYTORCH_ALLOC_CONF") == NULL);
}

static void old_driver(void)
{
    struct engine_double *d = load_double();

    set_window(WINDOW, SIZE);
    EXPECT(!is_ours(dlsym(load_cuda(), "cuLaunchKernel")));
    EXPECT(cuMemsetD8Async(A, 0, 1, S9) == CUDA_SUCCESS);
    expect_log(d, "");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {
        {"direct", direct},     {"fork", forked},           {"exec", executed},
        {"plugin", plugin},     {"threads", threads},       {"tool", second_tool},
        {"disabled", disabled}, {"old-driver", old_driver},
    };

    argument = argc > 2 ? argv[2] : NULL;
    for (unsigned i = 0; argc > 1 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run();
            return 0;
        }
    }
    fprintf(stderr, "usage: client SCENARIO [ARGUMENT]\n");
    return 2;
}
