/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page pool's part in host memory, on the software driver: it is pinned when it is wanted, in the background; pages
 * of both parts hold every byte; it goes back when nobody wants it, and its thread ends with the context, the process
 * and in a forked child. The engine's own sources are linked in; nothing is hooked.
 */
#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim/engine_int.h"
#include "shim/numa.h"
#include "tests/sim/driver_test.h"
#include "tools/simcuda/access.h"

#define PAGE     ((uint64_t)2048)
#define PIECE    ((uint64_t)256 << 10) /* a 64th of the device */
#define PAGES    (PIECE / PAGE)        /* of a piece */
#define BYTES    (40 * PAGE)           /* of a tensor */
#define N        5u                    /* tensors of a stash */
#define PATIENCE 20000                 /* milliseconds */

static struct ps_engine *engine;

/* We are not preloaded, so nobody has looked for the driver. */
static void find_driver(void)
{
    CUdriverProcAddressQueryResult status;

#define PS_DRIVER_FN(_name, _version, _needed)                                                     \
    ok(cuGetProcAddress(#_name, (void **)&ps_driver._name, _version,                               \
                        CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
#include "kernels/driver_fns.def"
#undef PS_DRIVER_FN
}

static void start(int seed, const char *more, uint64_t budget)
{
    char text[200];

    snprintf(text, sizeof text, "seed=%d,mem=16M,va=8G,check=1,check_exit=0%s%s", seed + 1,
             more[0] == '\0' ? "" : ",", more);
    dt_start(text);
    find_driver();
    ps_options.page_bytes = PAGE;
    ps_options.host_budget = budget;
    ps_options.window_bytes = (uint64_t)1 << 30;
    engine = ps_engine_make(dt_ctx);
    ck_assert_ptr_nonnull(engine);
}

static void want(uint64_t device_bytes, uint64_t host_bytes)
{
    pthread_mutex_lock(&ps_lock);
    ps_pool_want(engine, device_bytes, host_bytes);
    pthread_mutex_unlock(&ps_lock);
}

static void pause_ms(long ms)
{
    const struct timespec pause = {0, ms * 1000000};

    nanosleep(&pause, NULL);
}

static void until_ready(void)
{
    bool ready = false;

    for (int i = 0; i < PATIENCE && !ready; i++) {
        pthread_mutex_lock(&ps_lock);
        ps_engine_poll(engine);
        ready = ps_pool_ready(engine);
        pthread_mutex_unlock(&ps_lock);
        pause_ms(ready ? 0 : 1);
    }
    ck_assert(ready);
}

/* Nothing is wanted: nothing stays. */
static void until_shrunk(void)
{
    for (int i = 0; i < PATIENCE && ps_counter(host_pages_bytes) > 0; i++) {
        pthread_mutex_lock(&ps_lock);
        ps_pool_shrink(engine);
        pthread_mutex_unlock(&ps_lock);
        pause_ms(1);
    }
    ck_assert_uint_eq(ps_counter(host_pages_bytes), 0);
}

static void expect_silence(void)
{
    ok(cuCtxSynchronize());
    ck_assert_msg(simcuda_check_count() == 0, "%s", simcuda_check_text(0));
    ck_assert_uint_eq(ps_counter(errors), 0);
}

/* ---- copies, as the engine makes them ---- */

static CUdeviceptr data[N];
static struct ps_tensor tensors[N];

/* Two of three pages differ from a uniform one. */
static void fill(uint32_t value)
{
    for (unsigned i = 0; i < N; i++) {
        ok(cuMemsetD32Async(data[i], value + i, BYTES / 4, engine->stash_stream));
        for (uint64_t at = 0; at < BYTES; at += PAGE) {
            if (at / PAGE % 3 != 0) {
                ok(cuMemsetD32Async(data[i] + at + 16, ~value, 1, engine->stash_stream));
            }
        }
    }
}

static void expect_filled(uint32_t value)
{
    static uint32_t words[BYTES / 4];

    for (unsigned i = 0; i < N; i++) {
        ok(cuMemcpyDtoHAsync(words, data[i], BYTES, engine->restore_stream));
        ok(cuStreamSynchronize(engine->restore_stream));
        for (uint64_t k = 0; k < BYTES / 4; k++) {
            const bool odd = k % (PAGE / 4) == 4 && k / (PAGE / 4) % 3 != 0;

            ck_assert_uint_eq(words[k], odd ? ~value : value + i);
        }
    }
}

/* Lock held. False: not all are certain to find their pages. */
static bool stash(struct ps_batch *b)
{
    ps_pool_batch(engine, b);
    for (unsigned i = 0; i < N; i++) {
        struct ps_copy *c =
            ps_copy_make(engine, (uint32_t)(BYTES / PAGE), (uint32_t)(BYTES / PAGE));

        if (c == NULL) {
            for (; i > 0; i--) {
                ps_copy_free(engine, tensors[i - 1].copy);
            }
            return false;
        }
        tensors[i].copy = c;
        ps_copy_item(engine, c, data[i], BYTES, &b->items[i]);
    }
    b->n_items = N;
    ok(ps_kernels_stash(&ps_driver, &engine->kernels, engine->stash_stream, b, PS_QUIET));
    CUresult r;
    struct ps_fence *f = ps_fence_record(&engine->fences, engine->ctx, engine->stash_stream, &r);

    ck_assert_ptr_nonnull(f);
    for (unsigned i = 0; i < N; i++) {
        tensors[i].copy->stash = ps_fence_ref(f);
    }
    ok(cuEventSynchronize(f->event));
    ps_fence_unref(&engine->fences, f);
    for (unsigned i = 0; i < N; i++) {
        ps_copy_settle(engine, tensors[i].copy);
    }
    return true;
}

/* Out, overwritten and back. The pages it took on the host, or -1 when there was no room. */
static int64_t round_trip(uint32_t value)
{
    struct ps_batch b;
    struct ps_tensor *all[N];
    int64_t spilled = 0;

    fill(value);
    pthread_mutex_lock(&ps_lock);
    const bool went = stash(&b);

    pthread_mutex_unlock(&ps_lock);
    if (!went) {
        return -1;
    }
    fill(77);
    ok(cuStreamSynchronize(engine->stash_stream));
    ok(ps_kernels_restore(&ps_driver, &engine->kernels, engine->restore_stream, &b, PS_FAST));
    CUresult r;

    pthread_mutex_lock(&ps_lock);
    struct ps_fence *f = ps_fence_record(&engine->fences, engine->ctx, engine->restore_stream, &r);

    for (unsigned i = 0; i < N; i++) {
        spilled += tensors[i].copy->spilled;
        all[i] = &tensors[i];
    }
    /* So the next stash is launched for the link. */
    ck_assert(engine->pool.spilling ==
              (2 * tensors[N - 1].copy->spilled > tensors[N - 1].copy->stored));
    ok(ps_copies_drop(engine, all, N, f));
    ps_fence_unref(&engine->fences, f);
    pthread_mutex_unlock(&ps_lock);
    expect_filled(value);
    ok(cuStreamSynchronize(engine->drop_stream));
    pthread_mutex_lock(&ps_lock);
    ps_engine_poll(engine);
    ck_assert(ps_budget_idle(&engine->pool.budget));
    pthread_mutex_unlock(&ps_lock);
    return spilled;
}

static void make_tensors(void)
{
    for (unsigned i = 0; i < N; i++) {
        data[i] = dt_alloc(BYTES);
    }
    pthread_mutex_lock(&ps_lock);
    ps_pool_ensure(engine, 1); /* page tables */
    pthread_mutex_unlock(&ps_lock);
}

START_TEST(pages_of_both_parts_hold_every_byte)
{
    const uint64_t stored = N * (BYTES / PAGE - (BYTES / PAGE + 2) / 3);

    start(_i, "", UINT64_C(8) * PIECE + 1);
    make_tensors();
    ck_assert_uint_eq(ps_pool_host_most(engine), 8 * PIECE);
    const uint64_t n_device = engine->pool.budget.capacity.device;

    ck_assert_uint_lt(n_device, stored); /* so that some spill */
    ck_assert(!engine->pool.host.running);
    ck_assert_int_eq(round_trip(1), -1);
    want(0, PIECE + 1);
    until_ready();
    ck_assert_uint_eq(engine->pool.budget.capacity.host, 2 * PAGES);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_int_eq(round_trip(2 + i), (int64_t)(stored - n_device));
    }
    ck_assert_uint_eq(ps_counter(bytes_spilled), 4 * (stored - n_device) * PAGE);
    want(0, 3 * PIECE);
    until_ready();
    ck_assert_uint_eq(engine->pool.budget.capacity.host, 3 * PAGES);
    ck_assert_int_eq(round_trip(9), (int64_t)(stored - n_device));
    want(N * BYTES, 3 * PIECE);
    until_ready();
    ck_assert_uint_ge(engine->pool.mapped, N * BYTES);
    ck_assert_int_eq(round_trip(10), 0);
    expect_silence();
}
END_TEST

START_TEST(what_nobody_wants_goes_back_and_may_come_again)
{
    start(_i, "", 8 * PIECE);
    make_tensors();
    for (uint32_t i = 0; i < 3; i++) {
        want(0, 2 * PIECE);
        until_ready();
        ck_assert_int_gt(round_trip(100 + i), 0);
        pthread_mutex_lock(&ps_lock);
        ps_pool_shrink(engine); /* the device's part alone: the host's is wanted */
        ck_assert_uint_eq(engine->pool.mapped, 0);
        ck_assert_uint_eq(engine->pool.budget.capacity.host, 2 * PAGES);
        ps_pool_unwant(engine);
        pthread_mutex_unlock(&ps_lock);
        until_shrunk();
        ck_assert_uint_eq(ps_pool_available(engine), 0);
        pthread_mutex_lock(&ps_lock);
        ps_pool_ensure(engine, 1);
        pthread_mutex_unlock(&ps_lock);
    }
    /* Given back while it is being pinned. */
    want(0, 8 * PIECE);
    want(0, 0);
    pthread_mutex_lock(&ps_lock);
    ps_pool_unwant(engine);
    pthread_mutex_unlock(&ps_lock);
    until_shrunk();
    expect_silence();
}
END_TEST

/* _i: 0: the driver names node 0, 1: a node that is not there, 2: none. */
START_TEST(host_pages_lie_near_the_device)
{
    static const char *const nodes[] = {"numa=0", "numa=1023", ""};
    static const int wanted[] = {0, 1023, -1};
    unsigned long mask[1025 / 64 + 1] = {0};
    int mode = -1;

    start(_i, nodes[_i], 8 * PIECE);
    want(0, PIECE);
    until_ready();
    ck_assert_uint_eq(engine->pool.budget.capacity.host, PAGES);
    ck_assert_int_eq(ps_numa_node(engine->device), wanted[_i]);
    if (syscall(SYS_get_mempolicy, &mode, mask, 1025, engine->pool.host.pieces->base,
                MPOL_F_ADDR) != 0) {
        ck_assert(errno == ENOSYS || errno == EPERM); /* no nodes, or a container's rule */
        return;
    }
    ck_assert_int_eq(mode, _i == 0 ? MPOL_PREFERRED : MPOL_DEFAULT);
    ck_assert_uint_eq(mask[0], _i == 0);
    expect_silence();
}
END_TEST

START_TEST(without_a_budget_there_is_no_thread)
{
    start(_i, "", 0);
    want(PIECE, PIECE);
    ck_assert(!engine->pool.host.running);
    until_ready();
    ck_assert_uint_eq(engine->pool.budget.capacity.host, 0);
    ck_assert_uint_ge(engine->pool.mapped, PIECE);
    expect_silence();
}
END_TEST

/* Each piece is one call. */
START_TEST(what_can_be_pinned_serves)
{
    char text[40];

    snprintf(text, sizeof text, "fail=cuMemHostRegister:%d+", 1 + _i);
    start(_i, text, 8 * PIECE);
    make_tensors();
    want(0, 4 * PIECE);
    until_ready();
    ck_assert_uint_eq(engine->pool.budget.capacity.host, (uint64_t)_i * PAGES);
    ck_assert_uint_eq(ps_counter(errors), 1);
    ck_assert_int_eq(round_trip(5) >= 0, _i > 0);
}
END_TEST

START_TEST(a_context_may_end_while_memory_is_pinned)
{
    start(_i, "", 32 * PIECE);
    want(0, 32 * PIECE);
    if (_i % 2 == 1) {
        until_ready();
    }
    struct ps_engine *ending = ps_engine_primary_ending(0);

    ck_assert_ptr_eq(ending, engine);
    ck_assert(!engine->pool.host.running);
    if (_i / 2 == 1) { /* the driver refused */
        ps_engine_ended(ending, false);
        until_ready();
        ck_assert_uint_eq(engine->pool.budget.capacity.host, 32 * PAGES);
        expect_silence();
        return;
    }
    ok(cuDevicePrimaryCtxReset(0));
    ps_engine_ended(ending, true);
    ck_assert_uint_eq(ps_counter(host_pages_bytes), 0);
    ck_assert_uint_eq(ps_counter(errors), 0);
    ck_assert_msg(simcuda_check_count() == 0, "%s", simcuda_check_text(0));
}
END_TEST

#ifndef PS_SANITIZED
START_TEST(a_child_goes_its_way_while_memory_is_pinned)
{
    int status;

    start(_i, "", 32 * PIECE);
    want(0, 32 * PIECE);
    const pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        ps_engine_forked();
        exit(7); /* with what is done at exit */
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    until_ready();
    ck_assert_uint_eq(engine->pool.budget.capacity.host, 32 * PAGES);
}
END_TEST
#endif

START_TEST(the_process_may_end_while_memory_is_pinned)
{
    start(_i, "", 32 * PIECE);
    want(0, 32 * PIECE);
    exit(3);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("host pages");
    TCase *t = tcase_create("host pages");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, pages_of_both_parts_hold_every_byte, 0, 4);
    tcase_add_loop_test(t, what_nobody_wants_goes_back_and_may_come_again, 0, 4);
    tcase_add_loop_test(t, host_pages_lie_near_the_device, 0, 3);
    tcase_add_test(t, without_a_budget_there_is_no_thread);
    tcase_add_loop_test(t, what_can_be_pinned_serves, 0, 4);
    tcase_add_loop_test(t, a_context_may_end_while_memory_is_pinned, 0, 4);
#ifndef PS_SANITIZED /* a child may find the sanitizer's locks held by a thread that it does not have */
    tcase_add_loop_test(t, a_child_goes_its_way_while_memory_is_pinned, 0, 2);
#endif
    tcase_add_loop_exit_test(t, the_process_may_end_while_memory_is_pinned, 3, 0, 2);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
