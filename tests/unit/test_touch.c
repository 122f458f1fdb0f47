/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told from the window's map without the lock: words that name nothing take no lock and are counted, and no
 * thread misses what is alive while others come and go. The engine's own sources; no driver but for the reservation.
 */
#include <pthread.h>
#include <sched.h>

#include "shim/engine_int.h"
#include "tests/support/check_main.h"

#define BASE    UINT64_C(0x7f4000000000)
#define BYTES   ((uint64_t)1 << 30)
#define GRANULE ((uint64_t)4096)
#define TENSOR  (16 * GRANULE)
#define N_MADE  1000u

static const CUstream stream = (CUstream)(void *)&ps_lock;

static CUresult reserve(CUdeviceptr *ptr_p, size_t bytes, size_t alignment, CUdeviceptr hint,
                        unsigned long long flags)
{
    (void)bytes;
    (void)alignment;
    (void)hint;
    (void)flags;
    *ptr_p = BASE;
    return CUDA_SUCCESS;
}

/* In its place, with nothing to wait for; nothing is told of its use. */
static struct ps_engine engine = {.state = PS_ENGINE_MAKING};
static struct ps_group group = {.engine = &engine};
static struct ps_tensor tensor = {.engine = &engine, .group = &group, .state = PS_RESIDENT};

static void setup(void)
{
    ps_driver.cuMemAddressReserve = reserve;
    ck_assert_int_eq(ps_window_reserve(BYTES, GRANULE), PS_OK);
}

/* Its first address. */
static uint64_t make(void)
{
    pthread_mutex_lock(&ps_lock);
    ck_assert(ps_slot_take(TENSOR, &tensor.slot));
    ps_window_name(&tensor.slot, &tensor);
    pthread_mutex_unlock(&ps_lock);
    return tensor.slot.base;
}

static void end(void)
{
    pthread_mutex_lock(&ps_lock);
    ps_window_name(&tensor.slot, NULL);
    ps_slot_give(&tensor.slot);
    pthread_mutex_unlock(&ps_lock);
}

/* A call that names these. How many of them were listed. */
static unsigned call(const uint64_t *words, unsigned n)
{
    struct ps_touches t;

    ps_touches_init(&t);
    for (unsigned i = 0; i < n; i++) {
        ps_touches_add(&t, words[i]);
    }
    const unsigned listed = t.n;

    ck_assert_int_eq(ps_touch_enter(&t, stream), CUDA_SUCCESS);
    ck_assert_uint_eq(t.n, listed);
    ps_touch_leave(&t, stream);
    return listed;
}

START_TEST(a_call_of_stale_words_takes_no_lock)
{
    const uint64_t there = make();

    end();
    const uint64_t words[] = {there,    there, BASE + BYTES - 8, there + 8, BASE - 8,
                              BASE + 1, there, BASE + BYTES,     0};
    struct ps_touches t;

    pthread_mutex_lock(&ps_lock); /* who takes it now waits for ever */
    ck_assert_uint_eq(call(words, sizeof(words) / sizeof(words[0])), 0);
    ps_touches_init(&t);
    ps_touches_add_range(&t, there, TENSOR);
    ck_assert_int_eq(ps_touch_pin(&t, stream), CUDA_SUCCESS);
    pthread_mutex_unlock(&ps_lock);
    /* The second `there` repeats the one before it; a pin's words count like others. */
    ck_assert_uint_eq(ps_counter(stale_touches), 5 + 2);
    ck_assert_uint_eq(ps_counter(touches), 0);
}
END_TEST

START_TEST(stale_words_are_counted_once_beside_others)
{
    const uint64_t there = make();
    uint64_t words[3 * PS_TOUCH_INLINE];

    /* Beside it and past its end, as far as the gap goes: that is the tensor too. */
    ck_assert_uint_eq(call((uint64_t[]){there - 8, there + TENSOR, there + 8}, 3), 3);
    ck_assert_uint_eq(ps_counter(touches), 1);
    ck_assert_uint_eq(ps_counter(stale_touches), 0);
    /* By turns, in a list that outgrows what is on the stack. */
    for (unsigned i = 0; i < 3 * PS_TOUCH_INLINE; i++) {
        words[i] = i % 2 == 0 ? there + i : BASE + BYTES / 2 + i;
    }
    ck_assert_uint_eq(call(words, PS_TOUCH_INLINE), PS_TOUCH_INLINE / 2);
    ck_assert_uint_eq(ps_counter(touches), 2);
    ck_assert_uint_eq(ps_counter(stale_touches), PS_TOUCH_INLINE / 2);
    end();
    ck_assert_uint_eq(call(words, 1), 0);
    ck_assert_uint_eq(ps_counter(stale_touches), PS_TOUCH_INLINE / 2 + 1);
    ck_assert_uint_eq(tensor.pins, 0);
}
END_TEST

/* ---- beside others ---- */

static _Atomic uint64_t
    told; /* what the maker tells: an address, plus 1 when it is freed; 0: it is over */
static _Atomic unsigned heard;     /* how often that was looked at */
static _Atomic uint64_t somewhere; /* where there was a tensor, told in no order */
static _Atomic bool over;

/* Uses what it is told of, as a second thread of a job would. */
static void *use(void *arg)
{
    unsigned *const wrong = arg;

    for (uint64_t last = 0, now; (now = atomic_load_explicit(&told, memory_order_acquire)) != 0;) {
        if (now != last) {
            const uint64_t address = now - now % 2;

            *wrong += call(&address, 1) != (now % 2 == 0);
            atomic_fetch_add_explicit(&heard, 1, memory_order_release);
        }
        last = now;
        sched_yield();
    }
    return NULL;
}

/* Has old words in its parameters, of whatever is there now. */
static void *stray(void *arg)
{
    unsigned *const n_calls = arg;

    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        const uint64_t address = atomic_load_explicit(&somewhere, memory_order_relaxed);

        call(&address, 1);
        ++*n_calls;
        sched_yield();
    }
    return NULL;
}

static void tell(uint64_t what, unsigned n)
{
    atomic_store_explicit(&told, what, memory_order_release);
    while (atomic_load_explicit(&heard, memory_order_acquire) != n) {
        sched_yield();
    }
}

START_TEST(what_is_alive_is_missed_by_nobody)
{
    pthread_t threads[2];
    unsigned n_wrong = 0, n_strays = 0;

    atomic_store(&told, BASE + 1); /* nothing is there */
    atomic_store(&somewhere, BASE);
    ck_assert_int_eq(pthread_create(&threads[0], NULL, use, &n_wrong), 0);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, stray, &n_strays), 0);
    tell(BASE + 1, 1);
    for (unsigned i = 0; i < N_MADE; i++) {
        const uint64_t there = make() + i % TENSOR / 2 * 2;

        atomic_store_explicit(&somewhere, there, memory_order_relaxed);
        tell(there, 2 * i + 2);
        end();
        tell(there + 1, 2 * i + 3);
    }
    atomic_store(&told, 0);
    atomic_store(&over, true);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert_uint_eq(ps_counter(touches) + ps_counter(stale_touches),
                      atomic_load(&heard) + n_strays);
    ck_assert_uint_ge(ps_counter(stale_touches), N_MADE);
    ck_assert_uint_eq(tensor.pins, 0);
}
END_TEST

/* Asks as soon as there is a window. */
static void *look(void *arg)
{
    bool *const named = arg;

    while (!ps_in_window(BASE + BYTES / 2)) {
        sched_yield();
    }
    *named = ps_window_names(BASE + BYTES / 2);
    return NULL;
}

START_TEST(a_window_is_whole_for_who_sees_it)
{
    pthread_t thread;
    bool named = true;

    ck_assert_int_eq(pthread_create(&thread, NULL, look, &named), 0);
    setup();
    pthread_join(thread, NULL);
    ck_assert(!named);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("touch");
    TCase *w = tcase_create("window");
    TCase *t = tcase_create("stale words");

    tcase_add_checked_fixture(t, setup, NULL);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_call_of_stale_words_takes_no_lock);
    tcase_add_test(t, stale_words_are_counted_once_beside_others);
    tcase_add_test(t, what_is_alive_is_missed_by_nobody);
    suite_add_tcase(s, t);
    tcase_add_test(w, a_window_is_whole_for_who_sees_it);
    suite_add_tcase(s, w);
    return ps_check_main(s);
}
