/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host build of the shift: pages in a row go out and in, from the first on up to the number that the device knows,
 * for any grid and order of blocks; nothing else is written, and nothing beside them is looked at.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/support/check_main.h"
#include "tests/unit/test_kernels_sim.h"

#define POISON      0xA5
#define POISONED    UINT64_C(0xa5a5a5a5a5a5a5a5)
#define PAGES_MOST  24u
#define GUARD_PAGES 2u /* on either side */

static const uint32_t page_sizes[] = {512, 4096, 65536, 2u << 20};

#define N_PAGE_SIZES ((int)(sizeof(page_sizes) / sizeof(page_sizes[0])))

static uint64_t address(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

/* Pages with others before and behind; which side is the host's is the same to a host build. */
struct side {
    unsigned char *all, *copy;
    uint64_t bytes;
};

struct scene {
    uint32_t page_bytes, n_pages;
    struct side from, to;
    uint64_t count[3], note[3]; /* the middle one; beside it lies poison */
    uint64_t rng;
};

static unsigned char *pages_of(const struct side *side, const struct scene *s)
{
    return side->all + (uint64_t)GUARD_PAGES * s->page_bytes;
}

static void side_init(struct side *side, const struct scene *s)
{
    side->bytes = (uint64_t)(s->n_pages + 2 * GUARD_PAGES) * s->page_bytes;
    side->all = aligned_alloc(512, side->bytes);
    side->copy = malloc(side->bytes);
    ck_assert_ptr_nonnull(side->all);
    ck_assert_ptr_nonnull(side->copy);
    memset(side->all, POISON, side->bytes);
}

static void scene_init(struct scene *s, uint32_t page_bytes, uint32_t n_pages, uint64_t seed)
{
    *s = (struct scene){.page_bytes = page_bytes, .n_pages = n_pages, .rng = seed};
    side_init(&s->from, s);
    side_init(&s->to, s);
    for (uint64_t at = 0; at < s->from.bytes; at += 8) {
        const uint64_t v = test_random(&s->rng);

        memcpy(s->from.all + at, &v, sizeof(v));
    }
    memcpy(s->from.copy, s->from.all, s->from.bytes);
}

static void scene_fini(struct scene *s)
{
    struct side *const sides[] = {&s->from, &s->to};

    for (int i = 0; i < 2; i++) {
        free(sides[i]->all);
        free(sides[i]->copy);
    }
}

/* Runs it, and compares all that there is. */
static void shift(struct scene *s, uint64_t count, uint32_t first, bool with_note,
                  uint64_t n_blocks, enum order order)
{
    const struct ps_shift shift = {.to = address(pages_of(&s->to, s)),
                                   .from = address(pages_of(&s->from, s)),
                                   .count = address(&s->count[1]),
                                   .note = with_note ? address(&s->note[1]) : 0,
                                   .first = first,
                                   .n_pages = s->n_pages,
                                   .page_bytes = s->page_bytes,
                                   .to_host = test_random(&s->rng) % 2,
                                   .ring = {.chunk_shift = (uint8_t)(4 + test_random(&s->rng) % 12),
                                            .n_slots = (uint8_t)(2 + test_random(&s->rng) % 15)}};
    void *params[] = {(void *)&shift};
    const uint64_t end = count < s->n_pages ? count : s->n_pages;

    memset(s->count, POISON, sizeof(s->count));
    memset(s->note, POISON, sizeof(s->note));
    s->count[1] = count;
    memset(s->to.all, POISON, s->to.bytes);
    memset(s->to.copy, POISON, s->to.bytes);
    if (first < end) {
        const uint64_t at = (uint64_t)(GUARD_PAGES + first) * s->page_bytes;

        memcpy(s->to.copy + at, s->from.copy + at, (end - first) * s->page_bytes);
    }
    kernels_launch("ps_shift", params, n_blocks, order, &s->rng);
    ck_assert_msg(memcmp(s->to.all, s->to.copy, s->to.bytes) == 0,
                  "pages %u to %lu of %u, %lu blocks: other bytes than there should be", first,
                  (unsigned long)count, s->n_pages, (unsigned long)n_blocks);
    ck_assert(memcmp(s->from.all, s->from.copy, s->from.bytes) == 0);
    ck_assert_uint_eq(s->count[1], count);
    ck_assert_uint_eq(s->note[1], with_note ? count : POISONED);
    for (int i = 0; i < 3; i += 2) {
        ck_assert_uint_eq(s->count[i], POISONED);
        ck_assert_uint_eq(s->note[i], POISONED);
    }
}

/* _i: page size and order of the blocks. */
START_TEST(pages_from_the_first_to_the_last_go_and_no_others)
{
    const uint32_t page_bytes = page_sizes[_i % N_PAGE_SIZES];
    const enum order order = (enum order)(_i / N_PAGE_SIZES);
    const uint32_t n_pages = page_bytes > 65536 ? 3 : PAGES_MOST;
    struct scene s;

    scene_init(&s, page_bytes, n_pages, (uint64_t)_i + 1);
    for (int round = 0; round < (page_bytes > 65536 ? 5 : 60); round++) {
        const uint64_t count = test_random(&s.rng) % (n_pages + 1);
        const uint32_t first = (uint32_t)(test_random(&s.rng) % (count + 1));

        shift(&s, count, first, round % 2 == 0, 1 + test_random(&s.rng) % BLOCKS_MAX, order);
    }
    scene_fini(&s);
}
END_TEST

/* Pages that a stash took in order, so that the number is the head: all of them are free again, in order. */
START_TEST(a_list_is_full_again)
{
    enum { N = 8 };
    struct scene s;

    scene_init(&s, 512, N, (uint64_t)_i + 1);
    for (uint64_t taken = 0; taken <= N; taken++) {
        struct ps_free_list list = {
            .head = taken, .tail = N, .n_free = N - taken, .n_slots = N, .done = 0};
        const struct ps_shift shift = {.to = address(pages_of(&s.to, &s)),
                                       .from = address(pages_of(&s.from, &s)),
                                       .count = address(&list.head),
                                       .list = address(&list),
                                       .n_pages = N,
                                       .page_bytes = 512,
                                       .to_host = 1,
                                       .ring = {.chunk_shift = 6, .n_slots = 3}};
        void *params[] = {(void *)&shift};

        memset(s.to.all, POISON, s.to.bytes);
        kernels_launch("ps_shift", params, 1 + test_random(&s.rng) % BLOCKS_MAX, (enum order)_i,
                       &s.rng);
        ck_assert(memcmp(pages_of(&s.to, &s), pages_of(&s.from, &s), taken * 512) == 0);
        ck_assert_uint_eq(pages_of(&s.to, &s)[taken * 512], POISON);
        ck_assert_uint_eq(list.head, 0);
        ck_assert_uint_eq(list.tail, N);
        ck_assert_uint_eq(list.n_free, N);
        ck_assert_uint_eq(list.done, 0);
    }
    scene_fini(&s);
}
END_TEST

/* None, one, all; nothing left behind the first; more than there are, and far more than fit 32 bits. */
START_TEST(what_is_beyond_is_left_out)
{
    static const struct {
        uint64_t count;
        uint32_t first;
    } cases[] = {{0, 0},
                 {1, 0},
                 {8, 0},
                 {0, 3},
                 {3, 3},
                 {2, 5},
                 {7, 7},
                 {8, 7},
                 {8, 8},
                 {9, 0},
                 {9, 8},
                 {100, 9},
                 {9, 20},
                 {25, 20},
                 {UINT64_C(1) << 32, 4},
                 {UINT64_MAX, 0},
                 {UINT64_MAX, UINT32_MAX}};
    struct scene s;

    scene_init(&s, 512, 8, 99);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int order = 0; order < N_ORDERS; order++) {
            shift(&s, cases[i].count, cases[i].first, true, 3, (enum order)order);
            shift(&s, cases[i].count, cases[i].first, false, 2, (enum order)order);
        }
    }
    s.n_pages = 0;
    shift(&s, 5, 0, true, 3, ORDER_SHUFFLED);
    scene_fini(&s);
}
END_TEST

/* Pages that do not go cannot be touched here at all, on either side. */
START_TEST(pages_that_do_not_go_are_not_touched)
{
    enum { N = 10, PAGE = 4096 };
    const uint32_t first = (uint32_t)_i % N;
    uint64_t rng = (uint64_t)_i;

    for (uint64_t count = 0; count <= N; count++) {
        unsigned char *const all =
            mmap(NULL, 2 * N * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const uint64_t n = first < count ? count - first : 0;
        uint64_t note = UINT64_MAX;
        const struct ps_shift shift = {.to = address(all),
                                       .from = address(all) + UINT64_C(1) * N * PAGE,
                                       .count = address(&count),
                                       .note = address(&note),
                                       .first = first,
                                       .n_pages = N,
                                       .page_bytes = PAGE,
                                       .ring = {.chunk_shift = 9, .n_slots = 3}};
        void *params[] = {(void *)&shift};
        unsigned char *const to = all + (uint64_t)first * PAGE;
        unsigned char *const from = to + UINT64_C(1) * N * PAGE;

        ck_assert(all != MAP_FAILED);
        ck_assert_int_eq(mprotect(to, n * PAGE, PROT_READ | PROT_WRITE), 0);
        ck_assert_int_eq(mprotect(from, n * PAGE, PROT_READ | PROT_WRITE), 0);
        memset(from, (int)count, n * PAGE);
        ck_assert_int_eq(mprotect(from, n * PAGE, PROT_READ), 0);
        kernels_launch("ps_shift", params, 3, ORDER_SHUFFLED, &rng);
        ck_assert(memcmp(to, from, n * PAGE) == 0);
        ck_assert_uint_eq(note, count);
        munmap(all, 2 * N * PAGE);
    }
}
END_TEST

START_TEST(the_registry_knows_its_parameter)
{
    const struct ps_sim_kernel *k = kernels_find("ps_shift");

    ck_assert_ptr_nonnull(k);
    ck_assert_uint_eq(k->n_params, 1);
    ck_assert_uint_eq(k->sizes[0], sizeof(struct ps_shift));
    ck_assert_uint_eq(k->aligns[0], 8);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("shift");
    TCase *t = tcase_create("host build");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, pages_from_the_first_to_the_last_go_and_no_others, 0,
                        N_PAGE_SIZES * N_ORDERS);
    tcase_add_loop_test(t, a_list_is_full_again, 0, N_ORDERS);
    tcase_add_test(t, what_is_beyond_is_left_out);
    tcase_add_loop_test(t, pages_that_do_not_go_are_not_touched, 0, 10);
    tcase_add_test(t, the_registry_knows_its_parameter);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
