/* SPDX-License-Identifier: Apache-2.0 */
/* See kernels_shift.h. */
#include "tests/gpu/kernels_shift.h"

#include <stdlib.h>
#include <string.h>

#define POISON    ((unsigned char)(POISON_WORD & 0xff))
#define N_WORDS   5
#define COUNT_AT  1
#define NOTE_AT   3
#define ALIGNMENT (UINT64_C(2) << 20)

static void *allocate(uint64_t bytes)
{
    void *p = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);

    if (p == NULL) {
        die("no %llu bytes of host memory", (unsigned long long)bytes);
    }
    return p;
}

/* Pinned as the pages of the pool are. */
void shift_init(struct shift_scene *s, uint32_t page_bytes, uint32_t n_pages)
{
    *s = (struct shift_scene){.page_bytes = page_bytes, .n_pages = n_pages};
    s->all_bytes = (n_pages + UINT64_C(2)) * page_bytes;
    s->bytes = allocate(s->all_bytes);
    s->got = allocate(s->all_bytes);
    s->host = allocate(s->all_bytes);
    MUST(drv.cuMemHostRegister(s->host, s->all_bytes,
                               CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    MUST(extra.cuMemAlloc(&s->device, s->all_bytes));
    MUST(extra.cuMemAlloc(&s->words, N_WORDS * sizeof(uint64_t)));
    for (uint64_t i = 0; i < s->all_bytes; i += sizeof(uint64_t)) {
        const uint64_t v = random_word();

        memcpy(s->bytes + i, &v, sizeof(v));
    }
}

void shift_fini(struct shift_scene *s)
{
    MUST(drv.cuMemHostUnregister(s->host));
    MUST(extra.cuMemFree(s->device));
    MUST(extra.cuMemFree(s->words));
    free(s->host);
    free(s->bytes);
    free(s->got);
}

void shift_fill(const struct shift_scene *s, bool to_host, uint64_t count)
{
    uint64_t words[N_WORDS];

    memset(words, POISON, sizeof(words));
    words[COUNT_AT] = count;
    MUST(extra.cuMemcpyHtoD(s->words, words, sizeof(words)));
    if (to_host) {
        MUST(extra.cuMemcpyHtoD(s->device, s->bytes, s->all_bytes));
        memset(s->host, POISON, s->all_bytes);
    } else {
        MUST(drv.cuMemsetD32Async(s->device, POISON_WORD, s->all_bytes / 4, CU_STREAM_LEGACY));
        memcpy(s->host, s->bytes, s->all_bytes);
    }
    MUST(drv.cuCtxSynchronize());
}

struct ps_shift shift_of(const struct shift_scene *s, bool to_host, uint32_t first)
{
    const uint64_t host = (uint64_t)(uintptr_t)s->host + s->page_bytes;
    const uint64_t device = s->device + s->page_bytes;

    return (struct ps_shift){.to = to_host ? host : device,
                             .from = to_host ? device : host,
                             .count = s->words + COUNT_AT * sizeof(uint64_t),
                             .note = s->words + NOTE_AT * sizeof(uint64_t),
                             .first = first,
                             .n_pages = s->n_pages,
                             .page_bytes = s->page_bytes,
                             .to_host = to_host};
}

static bool is_poison(const unsigned char *at, uint64_t bytes)
{
    return bytes == 0 || (at[0] == POISON && memcmp(at, at + 1, bytes - 1) == 0);
}

/* Pages from the first to the end, which count from the guard on. */
static bool is_copied(const struct shift_scene *s, const unsigned char *to, uint64_t first,
                      uint64_t end)
{
    const uint64_t at = first * s->page_bytes;
    const uint64_t behind = end * s->page_bytes;

    return is_poison(to, at) && memcmp(to + at, s->bytes + at, behind - at) == 0 &&
           is_poison(to + behind, s->all_bytes - behind);
}

static bool words_are_right(const struct shift_scene *s, bool noted, uint64_t count)
{
    uint64_t words[N_WORDS];
    uint64_t want[N_WORDS];

    memset(want, POISON, sizeof(want));
    want[COUNT_AT] = count;
    want[NOTE_AT] = noted ? count : want[NOTE_AT];
    MUST(extra.cuMemcpyDtoH(words, s->words, sizeof(words)));
    return memcmp(words, want, sizeof(words)) == 0;
}

void shift_check(const struct shift_scene *s, const struct ps_shift *shift, uint64_t count)
{
    const bool to_host = shift->to_host != 0;
    const uint64_t n = count < s->n_pages ? count : s->n_pages;
    const uint64_t first = 1 + (shift->first < n ? shift->first : n);

    MUST(extra.cuMemcpyDtoH(s->got, s->device, s->all_bytes));
    const unsigned char *const to = to_host ? s->host : s->got;
    const unsigned char *const from = to_host ? s->got : s->host;

    check_pages(is_copied(s, to, first, 1 + n), s->n_pages, s->page_bytes,
                to_host ? "pages go out, those that there are and no others"
                        : "pages come in, those that there are and no others");
    check_pages(memcmp(from, s->bytes, s->all_bytes) == 0, s->n_pages, s->page_bytes,
                "a shift leaves what it copies as it was");
    check_pages(words_are_right(s, shift->note != 0, count), s->n_pages, s->page_bytes,
                "a shift notes how many pages there are");
}

/* None, all, more than there are, nothing from the first on; then at random. */
static void choose(const struct shift_scene *s, int round, uint64_t *count_p, uint32_t *first_p)
{
    const uint32_t n = s->n_pages;
    const struct {
        uint64_t count;
        uint32_t first;
    } cases[] = {
        {n, 0}, {0, 0},    {n + UINT64_C(1), 1}, {UINT64_MAX, n - 1}, {n / 2, n / 2}, {1, n - 1},
        {1, 0}, {n, n + 7}};
    const int n_cases = (int)(sizeof(cases) / sizeof(cases[0]));

    if (round < n_cases) {
        *count_p = cases[round].count;
        *first_p = cases[round].first;
        return;
    }
    *count_p = random_word() % (n + n / 8 + 2);
    *first_p = (uint32_t)(random_word() % 4 == 0 ? 0 : random_word() % n);
}

void shift_run_cases(const struct ps_kernels *k, CUstream stream, uint64_t bytes)
{
    static const uint32_t pages[] = {4096, 256u << 10};

    for (int i = 0; i < 4; i++) {
        const bool to_host = i % 2 == 0;
        const uint64_t n = bytes / pages[i / 2];
        struct shift_scene s;

        shift_init(&s, pages[i / 2], n < 5 ? 5 : (uint32_t)n);
        for (int round = 0; round < 16; round++) {
            uint64_t count;
            uint32_t first;

            choose(&s, round, &count, &first);
            struct ps_shift shift = shift_of(&s, to_host, first);

            shift.note = round % 3 == 2 ? 0 : shift.note;
            shift_fill(&s, to_host, count);
            MUST(ps_kernels_shift(&drv, k, stream, &shift));
            MUST(drv.cuStreamSynchronize(stream));
            shift_check(&s, &shift, count);
        }
        shift_fini(&s);
    }
}
