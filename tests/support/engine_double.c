/* SPDX-License-Identifier: Apache-2.0 */
/* See engine_double.h. */
#include "tests/support/engine_double.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/driver.h"
#include "shim/engine.h"

#define VISIBLE __attribute__((visibility("default")))

_Atomic uint64_t ps_window_base;
_Atomic bool ps_coming_home;
_Atomic uint64_t ps_window_size;

static struct engine_double d = {.log = ""};

VISIBLE struct engine_double *engine_double(void)
{
    return &d;
}

VISIBLE void engine_double_window(uint64_t base, uint64_t size)
{
    atomic_store(&ps_window_base, base);
    atomic_store(&ps_window_size, size);
}

VISIBLE void engine_double_reset(void)
{
    memset(&d, 0, sizeof(d));
}

static __attribute__((format(printf, 1, 2))) void note(const char *fmt, ...)
{
    const size_t n = strlen(d.log);
    va_list args;

    va_start(args, fmt);
    vsnprintf(d.log + n, sizeof(d.log) - n, fmt, args);
    va_end(args);
}

void ps_touches_add(struct ps_touches *t, uint64_t address)
{
    if (ps_in_window(address) && t->n < PS_TOUCH_INLINE &&
        (t->n == 0 || t->inline_addr[t->n - 1] != address)) {
        t->inline_addr[t->n++] = address;
        t->last = address;
    }
}

void ps_touches_add_range(struct ps_touches *t, uint64_t address, uint64_t bytes)
{
    ps_touches_add(t, address);
    ps_touches_add(t, address + bytes - 1);
}

static CUresult named(const char *what, struct ps_touches *t, CUstream stream)
{
    if (t->n == 0) {
        return CUDA_SUCCESS;
    }
    note("%s", what);
    for (unsigned i = 0; i < t->n; i++) {
        note(" %llx", (unsigned long long)t->inline_addr[i]);
    }
    note(" s%llx;", (unsigned long long)(uintptr_t)stream);
    return (CUresult)d.enter_result;
}

CUresult ps_touch_enter(struct ps_touches *t, CUstream stream)
{
    return named("enter", t, stream);
}

void ps_touch_leave(struct ps_touches *t, CUstream stream)
{
    (void)t;
    note("leave s%llx;", (unsigned long long)(uintptr_t)stream);
}

_Atomic bool ps_following;

void ps_touch_follow(CUstream stream)
{
    note("follow s%llx;", (unsigned long long)(uintptr_t)stream);
}

CUresult ps_touch_pin(struct ps_touches *t, CUstream stream)
{
    return named("pin", t, stream);
}

bool ps_engine_alloc_again(void)
{
    return false;
}

void ps_engine_alloc_left(CUdeviceptr ptr, size_t bytes, CUstream stream)
{
    (void)ptr;
    (void)bytes;
    (void)stream;
}

bool ps_engine_alloc_concerns(void)
{
    return true;
}

bool ps_engine_alloc(CUdeviceptr *ptr_p, size_t bytes, CUstream stream)
{
    note("alloc %zu s%llx;", bytes, (unsigned long long)(uintptr_t)stream);
    if (d.alloc == 0) {
        return false;
    }
    *ptr_p = d.alloc;
    return true;
}

bool ps_engine_free_async(CUdeviceptr ptr, CUstream stream)
{
    note("free %llx s%llx;", ptr, (unsigned long long)(uintptr_t)stream);
    return d.owned != 0;
}

bool ps_engine_free_sync(CUdeviceptr ptr)
{
    note("free_sync %llx;", ptr);
    return d.owned != 0;
}

void ps_engine_note_alloc(size_t bytes)
{
    note("note %zu;", bytes);
}

bool ps_engine_give_back(void)
{
    note("give_back;");
    return d.give_back-- > 0;
}

void ps_engine_trim(CUmemoryPool pool)
{
    note("trim %llx;", (unsigned long long)(uintptr_t)pool);
}

void ps_region_push(const char *name)
{
    note("push %s;", name);
    d.depth++;
    d.n_pushes++;
}

void ps_region_pop(void)
{
    note("pop;");
    d.depth--;
}

void ps_engine_stream_created(CUstream stream, unsigned flags)
{
    note("created s%llx %u;", (unsigned long long)(uintptr_t)stream, flags);
}

bool ps_engine_stream_destroying(CUstream stream)
{
    note("destroying s%llx;", (unsigned long long)(uintptr_t)stream);
    return true;
}

void ps_engine_stream_destroyed(bool blocking)
{
    note("destroyed %d;", blocking);
}

void ps_engine_capture_beginning(CUstream stream)
{
    note("capture s%llx;", (unsigned long long)(uintptr_t)stream);
}

static struct ps_engine *const some_engine = (struct ps_engine *)&d;

struct ps_engine *ps_engine_context_ending(CUcontext ctx)
{
    note("context %llx;", (unsigned long long)(uintptr_t)ctx);
    return some_engine;
}

struct ps_engine *ps_engine_primary_ending(CUdevice device)
{
    note("primary %d;", device);
    return some_engine;
}

void ps_engine_ended(struct ps_engine *e, bool gone)
{
    if (e != NULL) {
        note("%s", gone ? "gone;" : "stays;");
    }
}

void ps_engine_peer_enabled(CUcontext peer)
{
    note("peer %llx;", (unsigned long long)(uintptr_t)peer);
}

void ps_engine_pool_access(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    (void)map;
    note("access %llx %zu;", (unsigned long long)(uintptr_t)pool, count);
}

void ps_engine_end_paging(const char *why)
{
    note("end %s;", why);
    ps_paging_off();
}

bool ps_engine_forked(void)
{
    note("forked;");
    return true;
}

void ps_engine_exit(void)
{
}

bool ps_engine_query(CUdeviceptr ptr, struct ps_tensor_info *info_p)
{
    if (d.owned == 0) {
        return false;
    }
    *info_p = (struct ps_tensor_info){
        .base = ptr & ~(CUdeviceptr)0xfffff, .bytes = 1 << 20, .serial = 7, .device = 0};
    return true;
}

void ps_engine_pool_bytes(CUmemoryPool pool, uint64_t *used_p, uint64_t *reserved_p)
{
    (void)pool;
    *used_p = d.used;
    *reserved_p = d.reserved;
}
