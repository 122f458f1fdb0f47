/* SPDX-License-Identifier: Apache-2.0 */
/* What is written to a tape is read from it; what is no tape is told as such; spans by address. */
#include <string.h>

#include "policy/spans.h"
#include "policy/tape.h"
#include "tests/support/check_main.h"

static uint8_t tape[8192];
static size_t n_tape;

static void put_head(void)
{
    const struct ps_tape_head head = {.min_bytes = 4096, .pid = 7, .regions = "*experts*"};

    n_tape = ps_tape_put_head(tape, &head);
}

static void put(enum ps_tape_kind kind, const uint64_t *fields, const char *bytes)
{
    struct ps_tape_record r = {.kind = (uint32_t)kind, .thread = 3, .n_bytes = strlen(bytes)};

    for (int i = 0; i < ps_tape_n_fields(r.kind); i++) {
        r.field[i] = fields[i];
    }
    n_tape += ps_tape_put_record(tape + n_tape, &r, 1000);
    memcpy(tape + n_tape, bytes, r.n_bytes);
    n_tape += r.n_bytes;
}

static const uint64_t largest[PS_TAPE_FIELDS_MAX] = {0, 1, 127,        128, UINT64_MAX, UINT32_MAX,
                                                     1, 2, UINT64_MAX, 4,   5,          6};

START_TEST(every_kind_is_read_as_it_was_written)
{
    struct ps_tape_reader reader;
    struct ps_tape_record r;
    struct ps_tape_head head;
    uint64_t time = 0;

    put_head();
    for (uint32_t kind = 1; kind < PS_TAPE_KINDS_END; kind++) {
        put((enum ps_tape_kind)kind, largest, "some bytes");
    }
    ck_assert(ps_tape_open(&reader, tape, n_tape, &head));
    ck_assert_uint_eq(head.min_bytes, 4096);
    ck_assert_uint_eq(head.pid, 7);
    ck_assert_str_eq(head.regions, "*experts*");
    for (uint32_t kind = 1; kind < PS_TAPE_KINDS_END; kind++) {
        ck_assert(ps_tape_next(&reader, &r));
        ck_assert_uint_eq(r.kind, kind);
        ck_assert_uint_eq(r.thread, 3);
        time += 1000;
        ck_assert_uint_eq(r.time, time);
        for (int i = 0; i < ps_tape_n_fields(kind); i++) {
            ck_assert_uint_eq(r.field[i], largest[i]);
        }
        ck_assert_uint_eq(r.n_bytes, 10);
        ck_assert_mem_eq(r.bytes, "some bytes", 10);
        ck_assert_str_ne(ps_tape_kind_name(kind), "unknown");
    }
    ck_assert(!ps_tape_next(&reader, &r));
    ck_assert_ptr_null(reader.error);
    ck_assert(!reader.cut);
}
END_TEST

START_TEST(kinds_of_tomorrow_are_passed_over)
{
    struct ps_tape_reader reader;
    struct ps_tape_record r;
    struct ps_tape_head head;

    put_head();
    tape[n_tape++] = 200; /* kind 200 + 128 * 1 of 3 bytes */
    tape[n_tape++] = 1;
    memcpy(tape + n_tape, (const uint8_t[]){3, 0, 5, 77}, 4);
    n_tape += 4;
    put(PS_TAPE_POP, NULL, "");
    ck_assert(ps_tape_open(&reader, tape, n_tape, &head));
    ck_assert(ps_tape_next(&reader, &r));
    ck_assert_uint_eq(r.kind, PS_TAPE_POP);
    ck_assert_uint_eq(r.time, 1005);
    ck_assert(!ps_tape_next(&reader, &r));
    ck_assert_ptr_null(reader.error);
}
END_TEST

/* Copies of exact sizes, so that a read beyond the end shows under a sanitizer. */
START_TEST(a_tape_may_end_anywhere)
{
    put_head();
    const size_t n_head = n_tape;

    put(PS_TAPE_ALLOC, largest, "");
    put(PS_TAPE_STRING, largest, "text");
    for (size_t n = 0; n < n_tape; n++) {
        uint8_t *part = malloc(n + 1);
        struct ps_tape_reader reader;
        struct ps_tape_record r;
        struct ps_tape_head head;
        unsigned n_records = 0;

        memcpy(part, tape, n);
        const bool opened = ps_tape_open(&reader, part, n, &head);

        ck_assert_int_eq(opened, n >= n_head);
        while (opened && ps_tape_next(&reader, &r)) {
            n_records++;
        }
        ck_assert_int_eq(reader.error != NULL, !opened);
        ck_assert_uint_le(n_records, 1);
        free(part);
    }
}
END_TEST

START_TEST(what_is_no_tape_is_told)
{
    struct ps_tape_reader reader;
    struct ps_tape_record r;
    struct ps_tape_head head;

    ck_assert(!ps_tape_open(&reader, "something else", 14, &head));
    ck_assert_str_eq(reader.error, "not a tape");
    put_head();
    tape[PS_TAPE_MAGIC_BYTES] = 2;
    ck_assert(!ps_tape_open(&reader, tape, n_tape, &head));
    ck_assert_str_eq(reader.error, "a tape of another version");
    put_head();
    memcpy(tape + n_tape, (const uint8_t[]){PS_TAPE_ALLOC, 3, 0, 0, 1}, 5);
    ck_assert(ps_tape_open(&reader, tape, n_tape + 5, &head));
    ck_assert(!ps_tape_next(&reader, &r));
    ck_assert_str_eq(reader.error, "a record that is too short for its kind");
    memcpy(tape + n_tape, (const uint8_t[]){0, 2, 0, 0}, 4);
    ck_assert(ps_tape_open(&reader, tape, n_tape + 4, &head));
    ck_assert(!ps_tape_next(&reader, &r));
    ck_assert_str_eq(reader.error, "a record of no kind");
}
END_TEST

START_TEST(numbers_end)
{
    const uint8_t endless[] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};
    const uint8_t too_large[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02};
    const uint8_t *at = endless;
    uint64_t v;

    ck_assert(!ps_tape_get_number(&at, endless + sizeof(endless), &v));
    at = too_large;
    ck_assert(!ps_tape_get_number(&at, too_large + sizeof(too_large), &v));
    ck_assert_int_eq(ps_tape_unzigzag(ps_tape_zigzag(INT64_MIN)), INT64_MIN);
    ck_assert_int_eq(ps_tape_unzigzag(ps_tape_zigzag(-1)), -1);
}
END_TEST

/* All ways in which up to 13 bytes can differ, words of 4 and the rest of 1. */
START_TEST(changes_make_the_new_from_the_old)
{
    uint8_t before[13], now[13], image[13], changes[256];

    for (unsigned set = 0; set < 1u << 13; set++) {
        for (size_t i = 0; i < 13; i++) {
            before[i] = (uint8_t)i;
            now[i] = (uint8_t)(i + ((set >> i & 1) != 0 ? 100 : 0));
        }
        const size_t n = ps_tape_put_changes(changes, before, now, 13);

        ck_assert_uint_le(n, ps_tape_changes_max(13));
        memcpy(image, before, 13);
        ck_assert(ps_tape_get_changes(changes, n, image, 13));
        ck_assert_mem_eq(image, now, 13);
        if (set == 0) {
            ck_assert_uint_eq(n, 0);
        }
    }
}
END_TEST

START_TEST(changes_that_do_not_fit_are_refused)
{
    uint8_t image[8] = {0};

    ck_assert(!ps_tape_get_changes((const uint8_t[]){0, 0}, 2, image, 8));
    ck_assert(!ps_tape_get_changes((const uint8_t[]){2, 1, 1, 2, 3, 4}, 6, image, 8));
    ck_assert(!ps_tape_get_changes((const uint8_t[]){1, 2, 1, 2, 3, 4, 5, 6, 7, 8}, 10, image, 8));
    ck_assert(!ps_tape_get_changes((const uint8_t[]){1, 1, 1, 2, 3}, 5, image, 8));
    ck_assert(ps_tape_get_changes((const uint8_t[]){1, 1, 1, 2, 3, 4}, 6, image, 8));
}
END_TEST

static uint64_t words[16];
static unsigned n_words;

static void note_word(void *arg, uint32_t offset, uint64_t word)
{
    (void)arg;
    (void)offset;
    words[n_words++] = word;
}

START_TEST(words_are_those_that_the_engine_looks_at)
{
    const struct ps_tape_param params[] = {{0, 8}, {8, 4}, {16, 12}};
    const struct ps_tape_layout layout = {.n = 3, .bytes = 28, .params = params};
    uint32_t image[7] = {1, 2, 3, 4, 5, 6, 7};

    n_words = 0;
    ps_tape_each_word(&layout, PS_TAPE_LAUNCH_PARAMS, (uint8_t *)image, 28, note_word, NULL);
    ck_assert_uint_eq(n_words, 3);
    ck_assert_uint_eq(words[0], UINT64_C(2) << 32 | 1);
    ck_assert_uint_eq(words[1], UINT64_C(6) << 32 | 5);
    ck_assert_uint_eq(words[2], UINT64_C(7) << 32 | 6);
    n_words = 0;
    ps_tape_each_word(&layout, PS_TAPE_LAUNCH_PACKED, (uint8_t *)image, 28, note_word, NULL);
    ck_assert_uint_eq(n_words, 6);
    n_words = 0;
    ps_tape_each_word(&layout, PS_TAPE_LAUNCH_UNKNOWN, (uint8_t *)image, 28, note_word, NULL);
    ck_assert_uint_eq(n_words, 0);
}
END_TEST

static struct ps_spans spans;

static bool add(uint64_t base, uint64_t bytes, uint32_t number, bool tensor)
{
    const struct ps_span s = {base, bytes, number, tensor};

    return ps_spans_add(&spans, &s);
}

START_TEST(spans_are_found_by_any_byte)
{
    struct ps_span s;

    for (uint32_t i = 0; i < 3000; i++) { /* grows, out of order */
        ck_assert(add(0x10000 + (uint64_t)(i * 7 % 3000) * 0x100, 0x80, i * 7 % 3000, false));
    }
    for (uint32_t i = 0; i < 3000; i++) {
        const uint64_t base = 0x10000 + (uint64_t)i * 0x100;

        ck_assert_uint_eq(ps_spans_live(&spans, base)->number, i);
        ck_assert_uint_eq(ps_spans_live(&spans, base + 0x7f)->number, i);
        ck_assert_ptr_null(ps_spans_live(&spans, base + 0x80));
    }
    ck_assert(!ps_spans_remove(&spans, 0x10001, &s));
    ck_assert(ps_spans_remove(&spans, 0x10100, &s));
    ck_assert_uint_eq(s.number, 1);
    ck_assert_ptr_null(ps_spans_live(&spans, 0x10100));
    ck_assert_ptr_null(ps_spans_dead(&spans, 0x10100)); /* it was no tensor */
    ps_spans_fini(&spans);
}
END_TEST

START_TEST(a_freed_tensor_is_stale_until_something_lives_there)
{
    static struct ps_named named;
    struct ps_span s;

    ck_assert(add(0x1000, 0x1000, 1, true));
    ck_assert(add(0x2000, 0x1000, 2, true));
    ck_assert(ps_spans_remove(&spans, 0x1000, &s));
    ps_named_add(&named, &spans, 0x1fff);
    ps_named_add(&named, &spans, 0x1000);
    ps_named_add(&named, &spans, 0x2000);
    ps_named_add(&named, &spans, 0x3000);
    ck_assert_uint_eq(named.n_dead, 1);
    ck_assert_uint_eq(named.n_live, 1);
    ck_assert_uint_eq(named.live[0], 2);
    ck_assert(add(0x1800, 0x100, 3, false));
    ck_assert_ptr_nonnull(ps_spans_dead(&spans, 0x17ff));
    ck_assert_ptr_null(ps_spans_dead(&spans, 0x1800));
    /* Whatever overlaps a new one has gone unseen. */
    ck_assert(add(0x1880, 0x1000, 4, true));
    ck_assert_uint_eq(ps_spans_live(&spans, 0x2000)->number, 4);
    ck_assert_uint_eq(spans.n_live, 1);
    ps_spans_fini(&spans);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tape");
    TCase *t = tcase_create("all");

    tcase_add_test(t, every_kind_is_read_as_it_was_written);
    tcase_add_test(t, kinds_of_tomorrow_are_passed_over);
    tcase_add_test(t, a_tape_may_end_anywhere);
    tcase_add_test(t, what_is_no_tape_is_told);
    tcase_add_test(t, numbers_end);
    tcase_add_test(t, changes_make_the_new_from_the_old);
    tcase_add_test(t, changes_that_do_not_fit_are_refused);
    tcase_add_test(t, words_are_those_that_the_engine_looks_at);
    tcase_add_test(t, spans_are_found_by_any_byte);
    tcase_add_test(t, a_freed_tensor_is_stale_until_something_lives_there);
    suite_add_tcase(suite, t);
    return ps_check_main(suite);
}
