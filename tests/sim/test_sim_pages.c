/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stash kernels' host pages on the software driver, blocks in turns: every byte comes back whatever share of the
 * device's pages a stash may take, and host pages that are used without order are reported. The engine's streams: `out`
 * stashes, `in` restores and drops.
 */
#include "kernels/layout.h"
#include "tests/sim/driver_test.h"
#include "tests/sim/sim_kernels.h"
#include "tools/simcuda/access.h"
#include "tools/simcuda/hb.h"

#define N_SEEDS  8
#define PAGE     ((size_t)1024)
#define N_PAGES  24u /* of each part, and of both tensors together */
#define SHIFT    3u  /* pages of a piece: 8 */
#define N_PIECES (N_PAGES >> SHIFT)
#define BYTES    (N_PAGES / 2 * PAGE)
#define N_BLOCKS 5u

static struct ps_batch batch;
static CUstream out, in;
static CUevent event;

static CUdeviceptr make_list(void)
{
    struct ps_free_list list = {.n_slots = 32};
    const CUdeviceptr at = dt_alloc(sizeof list);

    list.slots =
        (uint32_t *)(uintptr_t)dt_alloc(2 * 32 * 4); /* NOLINT(performance-no-int-to-ptr) */
    ok(cuMemcpyHtoD(at, &list, sizeof list));
    return at;
}

static void grow(CUdeviceptr list, uint32_t first, uint32_t count)
{
    ok(cuLaunchKernel(dt_function("ps_grow"), 1, 1, 1, 1, 1, 1, 0, out,
                      (void *[]){&list, &first, &count}, NULL));
}

/* With so many device pages. */
static void start_with(int seed, uint32_t n_device)
{
    uint64_t pieces[N_PIECES];

    dt_start_seeded(seed, "check=1,check_exit=0");
    out = dt_stream(CU_STREAM_NON_BLOCKING);
    in = dt_stream(CU_STREAM_NON_BLOCKING);
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < N_PIECES; i++) {
        void *piece;

        ok(cuMemHostAlloc(&piece, PAGE << SHIFT, CU_MEMHOSTALLOC_DEVICEMAP));
        pieces[i] = (uint64_t)(uintptr_t)piece;
    }
    batch = (struct ps_batch){.pool = dt_alloc(N_PAGES * PAGE),
                              .host_pieces = dt_alloc(sizeof pieces),
                              .free_list = make_list(),
                              .host_list = make_list(),
                              .page_bytes = (uint32_t)PAGE,
                              .host_shift = SHIFT,
                              .unit_shift = (uint8_t)__builtin_ctz((unsigned)PAGE),
                              .ring = {(uint8_t)__builtin_ctz((unsigned)PAGE) - 1, 3},
                              .n_items = 2,
                              .n_pages = 2 * BYTES / PAGE};
    ok(cuMemcpyHtoD(batch.host_pieces, pieces, sizeof pieces));
    for (unsigned i = 0; i < 2; i++) {
        void *ledger;

        ok(cuMemHostAlloc(&ledger, 8, 0));
        batch.first_page[i] = (uint32_t)(i * (BYTES / PAGE));
        batch.items[i] = (struct ps_batch_item){
            .data = dt_alloc(BYTES),
            .bytes = BYTES,
            .table = dt_alloc(BYTES / PAGE * sizeof(struct ps_page_entry)),
            .counts = dt_alloc(16),
            .ledger = (uint64_t)(uintptr_t)ledger,
        };
    }
    ok(cuCtxSynchronize());
    grow(batch.free_list, 0, n_device);
    grow(batch.host_list, PS_PAGE_HOST, N_PAGES);
}

static void start(int seed)
{
    start_with(seed, N_PAGES);
}

static void run(CUstream stream, const char *name)
{
    const unsigned n_blocks = strcmp(name, "ps_drop") == 0 ? 1 : N_BLOCKS;

    ok(cuLaunchKernel(dt_function(name), n_blocks, 1, 1, 32, 1, 1, 0, stream, (void *[]){&batch},
                      NULL));
}

static void order(CUstream from, CUstream to)
{
    ok(cuEventRecord(event, from));
    ok(cuStreamWaitEvent(to, event, 0));
}

/* Every third page of a tensor is uniform. */
static void fill(CUstream stream, uint32_t value)
{
    for (unsigned i = 0; i < 2; i++) {
        for (size_t at = 0; at < BYTES; at += PAGE) {
            ok(cuMemsetD32Async(batch.items[i].data + at, value, PAGE / 4, stream));
            if (at / PAGE % 3 != 0) {
                ok(cuMemsetD32Async(batch.items[i].data + at, ~value, 1, stream));
            }
        }
    }
}

static void expect_filled(uint32_t value)
{
    static uint32_t words[BYTES / 4];

    for (unsigned i = 0; i < 2; i++) {
        ok(cuMemcpyDtoHAsync(words, batch.items[i].data, BYTES, in));
        ok(cuStreamSynchronize(in));
        for (size_t k = 0; k < BYTES / 4; k++) {
            const bool odd = k % (PAGE / 4) == 0 && k / (PAGE / 4) % 3 != 0;

            ck_assert_uint_eq(words[k], odd ? ~value : value);
        }
    }
}

static void expect_silence(void)
{
    ok(cuCtxSynchronize());
    ck_assert_msg(simcuda_check_count() == 0, "%s", simcuda_check_text(0));
}

static void expect_all_free(CUdeviceptr at, uint64_t n)
{
    struct ps_free_list list;

    ok(cuMemcpyDtoH(&list, at, sizeof list));
    ck_assert_uint_eq(list.tail - list.head, n);
    ck_assert_uint_eq(list.done, 0);
    ck_assert_uint_eq(list.n_free, n);
}

/* The device is idle: stashes are told of so many of the device's pages, and of those given from now on. */
static void set_free(uint64_t n)
{
    ok(cuCtxSynchronize());
    ok(cuMemcpyHtoD(batch.free_list + offsetof(struct ps_free_list, n_free), &n, sizeof n));
}

START_TEST(every_byte_comes_back_from_both_parts)
{
    const uint32_t stored = 2 * (N_PAGES / 2 - N_PAGES / 2 / 3);

    start(_i);
    for (uint32_t share = 0; share <= N_PAGES; share++) {
        const uint32_t n_device = share < stored ? share : stored;
        uint64_t n[2] = {0, 0};

        set_free(share);
        fill(out, 1000 + share);
        run(out, "ps_stash");
        fill(out, 7);
        order(out, in);
        run(in, "ps_restore");
        run(in, "ps_drop");
        expect_filled(1000 + share);
        for (unsigned i = 0; i < 2; i++) {
            const uint64_t *word = (const uint64_t *)(uintptr_t)batch.items[i]
                                       .ledger; /* NOLINT(performance-no-int-to-ptr) */

            n[0] += PS_LEDGER_DEVICE(__atomic_load_n(word, __ATOMIC_ACQUIRE));
            n[1] += PS_LEDGER_HOST(__atomic_load_n(word, __ATOMIC_ACQUIRE));
        }
        ck_assert_uint_eq(n[0], n_device);
        ck_assert_uint_eq(n[1], stored - n_device);
    }
    expect_silence();
    expect_all_free(batch.free_list, N_PAGES);
    expect_all_free(batch.host_list, N_PAGES);
}
END_TEST

/* Odd indices: the drop does not wait for the restore, and a later stash writes the host pages that it still reads. */
START_TEST(a_drop_that_overtakes_the_restore_is_seen)
{
    const bool planted = _i % 2 == 1;
    struct ps_batch other;

    start_with(_i / 2, 0);
    other = batch;
    for (unsigned i = 0; i < 2; i++) {
        other.items[i].data = dt_alloc(BYTES);
        other.items[i].table = dt_alloc(BYTES / PAGE * sizeof(struct ps_page_entry));
    }
    fill(out, 1);
    run(out, "ps_stash");
    order(out, in);
    if (planted) {
        run(in, "ps_drop");
        order(in, out);
        run(in, "ps_restore");
    } else {
        run(in, "ps_restore");
        run(in, "ps_drop");
        order(in, out);
    }
    batch = other;
    for (int i = 0; i < 2; i++) { /* the ring has come round then */
        fill(out, 2);
        run(out, "ps_stash");
        run(out, "ps_drop");
    }
    ok(cuCtxSynchronize());
    if (!planted) {
        expect_silence();
        return;
    }
    bool found = false;

    for (uint64_t i = 0; i < simcuda_check_count(); i++) {
        const int kind = simcuda_check_kind(i, NULL, NULL);

        found |= (kind == HB_READ_WRITE || kind == HB_WRITE_READ) &&
                 strstr(simcuda_check_text(i), "pinned host memory") != NULL;
    }
    ck_assert_msg(found, "%s", simcuda_check_text(0));
}
END_TEST

/* Another batch of tensors beside: its pages come from the same lists. */
static struct ps_batch make_other(void)
{
    struct ps_batch other = batch;

    for (unsigned i = 0; i < 2; i++) {
        void *ledger;

        ok(cuMemHostAlloc(&ledger, 8, 0));
        other.items[i].data = dt_alloc(BYTES);
        other.items[i].table = dt_alloc(BYTES / PAGE * sizeof(struct ps_page_entry));
        other.items[i].counts = dt_alloc(16);
        other.items[i].ledger = (uint64_t)(uintptr_t)ledger;
    }
    return other;
}

static void swap(struct ps_batch *other)
{
    const struct ps_batch b = batch;

    batch = *other;
    *other = b;
}

/* Device pages that the stash of the batch, which the host has seen, took. */
static uint64_t n_on_device(void)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < 2; i++) {
        const uint64_t *word = (const uint64_t *)(uintptr_t)batch.items[i]
                                   .ledger; /* NOLINT(performance-no-int-to-ptr) */

        n += PS_LEDGER_DEVICE(__atomic_load_n(word, __ATOMIC_ACQUIRE));
    }
    return n;
}

/*
 * One batch goes out while the other comes back and gives its pages, which nothing orders before the stash but what it
 * sees in n_free. One
 * of them can have all the device's pages, and the host's are enough.
 */
START_TEST(pages_given_beside_a_stash_may_be_taken_by_it)
{
    enum { ROUNDS = 100, DEVICE = 8 };
    uint64_t n_gifts = 0;
    uint64_t n_spilled = 0;

    start_with(_i, DEVICE);
    struct ps_batch other = make_other();

    fill(out, 500);
    run(out, "ps_stash");
    ok(cuStreamSynchronize(out));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const uint64_t n_free = DEVICE - n_on_device();

        if (i % 10 == 0) { /* with a new place among the streams */
            in = dt_stream(CU_STREAM_NON_BLOCKING);
        }
        order(out, in);
        for (int k = 0; k < 2; k++) { /* either is queued first */
            if (k == (int)(i % 2)) {
                run(in, "ps_restore");
                run(in, "ps_drop");
                continue;
            }
            swap(&other);
            fill(out, 501 + i);
            run(out, "ps_stash");
            swap(&other);
        }
        expect_filled(500 + i);
        ok(cuStreamSynchronize(out));
        swap(&other);
        n_gifts += n_on_device() - (n_on_device() < n_free ? n_on_device() : n_free);
        n_spilled += n_on_device() < DEVICE;
    }
    ck_assert_uint_gt(n_gifts, 0);
    ck_assert_uint_gt(n_spilled, 0);
    order(out, in);
    run(in, "ps_restore");
    run(in, "ps_drop");
    expect_silence();
    expect_all_free(batch.free_list, DEVICE);
    expect_all_free(batch.host_list, N_PAGES);
}
END_TEST

/* The same, but the drop is not ordered after the restore: whoever takes the pages writes what is still read. */
START_TEST(what_a_claim_sees_does_not_order_what_the_drop_did_not_wait_for)
{
    enum { ROUNDS = 60, DEVICE = 8 };
    bool found = false;

    start_with(_i, DEVICE);
    const CUstream aside = dt_stream(CU_STREAM_NON_BLOCKING);
    struct ps_batch other = make_other();

    for (uint32_t i = 0; i < ROUNDS && !found; i++) {
        fill(out, i);
        run(out, "ps_stash");
        order(out, in);
        order(out, aside);
        swap(&other);
        fill(out, i);
        run(out, "ps_stash");
        swap(&other);
        run(in, "ps_restore");
        run(aside, "ps_drop"); /* planted */
        ok(cuCtxSynchronize());
        swap(&other);
        run(out, "ps_drop");
        ok(cuCtxSynchronize());
        swap(&other);
        for (uint64_t k = 0; k < simcuda_check_count(); k++) {
            const char *first, *second;
            const int kind = simcuda_check_kind(k, &first, &second);

            ck_assert(kind == HB_READ_WRITE || kind == HB_WRITE_READ);
            ck_assert(strcmp(first, "ps_drop") != 0 && strcmp(second, "ps_drop") != 0);
            found = true;
        }
    }
    ck_assert(found);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pages");
    TCase *t = tcase_create("host pages");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, every_byte_comes_back_from_both_parts, 0, N_SEEDS);
    tcase_add_loop_test(t, a_drop_that_overtakes_the_restore_is_seen, 0, 2 * N_SEEDS);
    tcase_add_loop_test(t, pages_given_beside_a_stash_may_be_taken_by_it, 0, N_SEEDS);
    tcase_add_loop_test(t, what_a_claim_sees_does_not_order_what_the_drop_did_not_wait_for, 0,
                        N_SEEDS);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
