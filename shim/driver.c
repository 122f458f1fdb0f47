/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds libcuda once, when the first cu* look-up or call shows that the job uses it. Threads that
 * come at the same time each fill a table of their own; the first to finish publishes its own, the
 * others wait for that copy only, so no lock of ours is held over a dl* or driver call.
 */
#include "shim/cuda_api.h"

#include "shim/driver.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "policy/base/log.h"
#include "policy/base/rank.h"
#include "shim/dlsym.h"
#include "shim/entry.h"

/* Parameter layouts come with this one (cuFuncGetParamInfo). */
#define OLDEST_DRIVER 12040

enum { UNKNOWN, PUBLISHING, USABLE, UNUSABLE };
enum { NOT_YET, ON, OFF };

struct ps_driver ps_driver;
struct ps_options ps_options;

static _Atomic int state;  /* release when `ps_driver` is whole, acquire in ps_driver_init */
static _Atomic int paging; /* NOT_YET -> ON by the driver's discovery; OFF is final */

const char *ps_driver_error_name(const struct ps_driver *drv, CUresult result)
{
    const char *name = NULL;

    if (drv->cuGetErrorName == NULL || drv->cuGetErrorName(result, &name) != CUDA_SUCCESS ||
        name == NULL) {
        return "CUDA error";
    }
    return name;
}

void *ps_driver_symbol(const char *symbol)
{
    void *lib = ps_libcuda_handle();

    return lib == NULL ? NULL : ps_libc_dlsym(lib, symbol);
}

bool ps_paging(void)
{
    return atomic_load_explicit(&paging, memory_order_relaxed) == ON;
}

bool ps_paging_over(void)
{
    return atomic_load_explicit(&paging, memory_order_relaxed) == OFF;
}

void ps_paging_off(void)
{
    atomic_store_explicit(&paging, OFF, memory_order_relaxed);
}

struct getter {
    PFN_cuGetProcAddress_v11030 v1;
    PFN_cuGetProcAddress_v12000 v2;
};

/* A libcuda not linked symbolically may hand out our exports in place of its own functions. */
static void *past_us(void *p)
{
    Dl_info info;

    if (!ps_in_us(p) || dladdr(p, &info) == 0 || info.dli_sname == NULL) {
        return p;
    }
    return ps_driver_symbol(info.dli_sname);
}

static void *get_function(const struct getter *get, const char *name, int version)
{
    const cuuint64_t flags = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void *p = NULL;
    const CUresult r = get->v2 != NULL ? get->v2(name, &p, version, flags, NULL)
                                       : get->v1(name, &p, version, flags);

    return r == CUDA_SUCCESS ? past_us(p) : NULL;
}

/* The name of a needed function that is missing, or NULL. */
static const char *fill(struct ps_driver *drv, const struct getter *get)
{
    const char *missing = NULL;

#define PS_DRIVER_FN(_name, _version, _needed)                                                     \
    drv->_name = (PFN_##_name##_v##_version)get_function(get, #_name, _version);                   \
    if ((_needed) && drv->_name == NULL && missing == NULL) {                                      \
        missing = #_name;                                                                          \
    }
#include "kernels/driver_fns.def"
#undef PS_DRIVER_FN
    return missing;
}

/* Why nothing can be paged, or an empty text. */
static bool discover(struct ps_driver *drv, char *why, size_t size)
{
    const struct getter get = {
        .v1 = (PFN_cuGetProcAddress_v11030)ps_driver_symbol("cuGetProcAddress"),
        .v2 = (PFN_cuGetProcAddress_v12000)ps_driver_symbol("cuGetProcAddress_v2"),
    };
    int version = 0;

    if (get.v1 == NULL && get.v2 == NULL) {
        snprintf(why, size, "the driver is older than 11.3");
        return false;
    }
    const char *missing = fill(drv, &get);

    if (drv->cuDriverGetVersion != NULL && drv->cuDriverGetVersion(&version) == CUDA_SUCCESS &&
        version < OLDEST_DRIVER) {
        snprintf(why, size, "the driver's CUDA version is %d.%d, older than 12.4", version / 1000,
                 version % 1000 / 10);
        return false;
    }
    if (missing == NULL && drv->cuFuncGetParamInfo == NULL) {
        missing = "cuFuncGetParamInfo";
    }
    if (missing == NULL && drv->cuKernelGetParamInfo == NULL) {
        missing = "cuKernelGetParamInfo";
    }
    if (missing != NULL) {
        snprintf(why, size, "the driver lacks %s", missing);
        return false;
    }
    return true;
}

static void publish(const struct ps_driver *found, bool usable, const char *why)
{
    int expected = UNKNOWN;

    if (!atomic_compare_exchange_strong(&state, &expected, PUBLISHING)) {
        while (atomic_load_explicit(&state, memory_order_acquire) == PUBLISHING) {
            sched_yield();
        }
        return;
    }
    ps_driver = *found;
    if (usable) {
        expected = NOT_YET;
        atomic_compare_exchange_strong(&paging, &expected, ON);
    }
    atomic_store_explicit(&state, usable ? USABLE : UNUSABLE, memory_order_release);
    ps_entry_announce();
    if (!usable) {
        ps_warn_once("%s: nothing is paged", why);
    }
}

bool ps_driver_init(void)
{
    const int now = atomic_load_explicit(&state, memory_order_acquire);

    if (now == USABLE || now == UNUSABLE) {
        return now == USABLE;
    }
    if (!ps_entry_active() || ps_libcuda_handle() == NULL) {
        return false;
    }
    struct ps_driver found;
    char why[128] = "";

    memset(&found, 0, sizeof(found));
    const bool usable = discover(&found, why, sizeof(why));

    publish(&found, usable, why);
    return atomic_load_explicit(&state, memory_order_acquire) == USABLE;
}

bool ps_driver_known(void)
{
    return atomic_load_explicit(&state, memory_order_acquire) >= USABLE;
}
