/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tapes as pagedstash-tape reads them: whatever the bytes are, reading ends, and what was read can be played: numbers
 * name what is there, words and extents lie inside. One thread.
 */
#include "tests/fuzz/fuzz.h"
#include "tools/tape/args.h"
#include "tools/tape/tape.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    return 0;
}

static void check_extent(const struct tape *t, const struct tape_extent *x)
{
    if (x->alloc != TAPE_NONE) {
        fz_require(x->alloc < t->n_allocs, "allocation %u of %u", x->alloc, t->n_allocs);
        fz_require(x->bytes > 0 && x->delta < t->allocs[x->alloc].bytes &&
                       x->bytes <= t->allocs[x->alloc].bytes - x->delta,
                   "%llu bytes at %llu of %llu", (unsigned long long)x->bytes,
                   (unsigned long long)x->delta, (unsigned long long)t->allocs[x->alloc].bytes);
    }
}

static void check_event(const struct tape *t, const struct tape_event *e)
{
    fz_require(e->thread < t->n_threads, "thread %u of %u", e->thread, t->n_threads);
    fz_require(e->stream == 0 || e->stream < t->n_streams, "stream %u of %u", e->stream,
               t->n_streams);
    fz_require(e->n_raw <= TAPE_RAW_MAX || e->kind == PS_TAPE_COPY, "%u bytes", e->n_raw);
    for (uint32_t i = 0; i < e->n_access; i++) {
        fz_require(e->access[i].alloc < t->n_allocs && t->allocs[e->access[i].alloc].tensor &&
                       e->access[i].mode <= TAPE_WRITE,
                   "access of %u", e->access[i].alloc);
    }
    for (uint32_t i = 0; i < e->n_words; i++) {
        fz_require(e->words[i].alloc < t->n_allocs && e->words[i].at + 8 <= e->n_raw &&
                       e->words[i].delta < t->allocs[e->words[i].alloc].bytes,
                   "word %u of %u bytes", e->words[i].at, e->n_raw);
    }
    check_extent(t, &e->dst);
    check_extent(t, &e->src);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t scales[] = {1, 1024};
    struct tape t;

    for (unsigned i = 0; i < 2; i++) {
        if (tape_load(&t, data, size, scales[i])) {
            fz_require(tape_order(&t), "no memory for %zu records", t.n_events);
            for (size_t k = 0; k < t.n_events; k++) {
                check_event(&t, &t.events[k]);
            }
        } else {
            fz_require(t.error[0] != '\0', "nothing is said of %zu bytes", size);
        }
        tape_fini(&t);
    }
    return 0;
}
