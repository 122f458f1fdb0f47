/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The object's constructor. It reads the options and sets three environment variables, and nothing
 * else: every shell, compiler and data loader that inherits LD_PRELOAD runs it. No thread, no
 * output, no file, no CUDA.
 *
 * A library's constructor may run before ours and look a driver function up: then the options are
 * read at that moment.
 */
#include "shim/cuda_api.h"

#include "shim/entry.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "policy/base/bug.h"
#include "policy/base/log.h"
#include "policy/base/rank.h"
#include "shim/alloc_conf.h"
#include "shim/dlsym.h"
#include "shim/driver.h"
#include "shim/engine.h"
#include "shim/pagedstash.h"
#include "shim/tape.h"

#define VISIBLE __attribute__((visibility("default")))

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool active;                        /* set under `once` */
static char overridden[PS_ALLOC_CONF_MAX]; /* what the user's allocator setting said; likewise */

/* `pagedstash doctor` looks for it in the process. */
VISIBLE const char *pagedstash_version(void)
{
    return PS_VERSION;
}

/*
 * NVTX loads the object by its path in children that inherit the environment but not the preload.
 */
static bool preloaded(void)
{
    void *program = dlopen(NULL, RTLD_LAZY);

    if (program == NULL) {
        return false;
    }
    const void *p = ps_libc_dlsym(program, "pagedstash_version");

    dlclose(program);
    return p == (const void *)pagedstash_version;
}

static void set_nvtx_path(void)
{
    Dl_info self;

    if (getenv("NVTX_INJECTION64_PATH") == NULL &&
        dladdr((const void *)pagedstash_version, &self) != 0 && self.dli_fname != NULL) {
        setenv("NVTX_INJECTION64_PATH", self.dli_fname, 1);
    }
}

static void set_allocator(void)
{
    const char *user = getenv("PYTORCH_ALLOC_CONF");
    char merged[PS_ALLOC_CONF_MAX];

    if (user == NULL) {
        user = getenv("PYTORCH_CUDA_ALLOC_CONF");
    }
    switch (ps_alloc_conf_merge(user == NULL ? "" : user, merged)) {
    case PS_ALLOC_CONF_TOO_LONG:
        snprintf(overridden, sizeof(overridden), "%s", "");
        return;
    case PS_ALLOC_CONF_OVERRIDDEN:
        snprintf(overridden, sizeof(overridden), "%s", user);
        break;
    case PS_ALLOC_CONF_MERGED:
        break;
    }
    /* Older PyTorch reads the second name only. */
    setenv("PYTORCH_ALLOC_CONF", merged, 1);
    setenv("PYTORCH_CUDA_ALLOC_CONF", merged, 1);
}

static void forked(void)
{
    ps_tape_forked();
    if (ps_engine_forked()) {
        ps_paging_off();
    }
}

static void start(void)
{
    ps_options_load(&ps_options, true, NULL);
    ps_log_init(ps_options.log_level, ps_options.log_file);
    ps_bug_set_handler(ps_paging_off);
    /* A privileged program may load us from a system folder; its environment is not its own. */
    if (ps_options.disable || getauxval(AT_SECURE) != 0 || !preloaded()) {
        ps_paging_off();
        return;
    }
    set_nvtx_path();
    if (!ps_options.keep_allocator) {
        set_allocator();
    }
    if (ps_options.tape[0] != '\0') {
        ps_paging_off();
    }
    if (ps_options.tape[0] != '\0' || ps_options.trace[0] != '\0') {
        ps_tape_start();
    }
    active = pthread_atfork(NULL, NULL, forked) == 0;
}

bool ps_entry_active(void)
{
    return pthread_once(&once, start) == 0 && active;
}

void ps_entry_announce(void)
{
    ps_rank_settle(ps_options.rank);
    if (!ps_rank_speaks()) {
        return;
    }
    ps_options_complain();
    if (overridden[0] != '\0') {
        ps_warn_once("PyTorch's allocator setting '%s' is used with backend:cudaMallocAsync; "
                     "--keep-allocator leaves it (and us) out",
                     overridden);
    }
}

static __attribute__((constructor)) void construct(void)
{
    pthread_once(&once, start);
}

static __attribute__((destructor)) void destroy(void)
{
    if (ps_driver_known()) {
        ps_tape_exit();
        ps_engine_exit();
        ps_log_fini();
    }
}
