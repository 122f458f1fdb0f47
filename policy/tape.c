/* SPDX-License-Identifier: Apache-2.0 */
/* Writing and reading tapes; see tape.h. Whatever a file holds, reading stays inside it. */
#include "policy/tape.h"

#include <string.h>

#define HEAD_STRING_MAX 255

int ps_tape_n_fields(uint32_t kind)
{
    static const int8_t n_fields[PS_TAPE_KINDS_END] = {
#define X(_kind, _number, _fields) [_number] = (_fields) + 1,
        PS_TAPE_KINDS(X)
#undef X
    };

    return kind < PS_TAPE_KINDS_END ? n_fields[kind] - 1 : -1;
}

const char *ps_tape_kind_name(uint32_t kind)
{
    static const char *const names[PS_TAPE_KINDS_END] = {
#define X(_kind, _number, _fields) [_number] = #_kind,
        PS_TAPE_KINDS(X)
#undef X
    };

    return kind < PS_TAPE_KINDS_END && names[kind] != NULL ? names[kind] : "unknown";
}

/* ---- writing ---- */

size_t ps_tape_put_number(uint8_t *to, uint64_t value)
{
    size_t n = 0;

    for (; value >= 0x80; value >>= 7) {
        to[n++] = (uint8_t)(value | 0x80);
    }
    to[n++] = (uint8_t)value;
    return n;
}

size_t ps_tape_put_head(uint8_t *to, const struct ps_tape_head *head)
{
    const size_t length = strnlen(head->regions, HEAD_STRING_MAX);
    size_t n = PS_TAPE_MAGIC_BYTES;

    /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): bytes in a file */
    memcpy(to, PS_TAPE_MAGIC, PS_TAPE_MAGIC_BYTES);
    n += ps_tape_put_number(to + n, PS_TAPE_VERSION);
    n += ps_tape_put_number(to + n, head->min_bytes);
    n += ps_tape_put_number(to + n, head->pid);
    n += ps_tape_put_number(to + n, head->unix_time);
    n += ps_tape_put_number(to + n, length);
    memcpy(to + n, head->regions, length);
    return n + length;
}

size_t ps_tape_put_record(uint8_t *to, const struct ps_tape_record *r, uint64_t since)
{
    uint8_t body[PS_TAPE_HEAD_MAX];
    const int n_fields = ps_tape_n_fields(r->kind);
    size_t n = ps_tape_put_number(body, r->thread);

    n += ps_tape_put_number(body + n, since);
    for (int i = 0; i < n_fields; i++) {
        n += ps_tape_put_number(body + n, r->field[i]);
    }
    size_t head = ps_tape_put_number(to, r->kind);

    head += ps_tape_put_number(to + head, n + r->n_bytes);
    memcpy(to + head, body, n);
    return head + n;
}

static bool same_word(const uint8_t *a, const uint8_t *b, size_t at, size_t bytes)
{
    const size_t n = bytes - at < 4 ? bytes - at : 4;

    return memcmp(a + at, b + at, n) == 0;
}

size_t ps_tape_put_changes(uint8_t *to, const uint8_t *before, const uint8_t *now, size_t bytes)
{
    size_t n = 0, at = 0;

    while (at < bytes) {
        size_t equal = 0;

        while (at + equal * 4 < bytes && same_word(before, now, at + equal * 4, bytes)) {
            equal++;
        }
        const size_t start = at + equal * 4;
        size_t changed = 0;

        while (start + changed * 4 < bytes && !same_word(before, now, start + changed * 4, bytes)) {
            changed++;
        }
        if (changed == 0) {
            break;
        }
        const size_t end = start + changed * 4 < bytes ? start + changed * 4 : bytes;

        n += ps_tape_put_number(to + n, equal);
        n += ps_tape_put_number(to + n, changed);
        memcpy(to + n, now + start, end - start);
        n += end - start;
        at = end;
    }
    return n;
}

/* ---- reading ---- */

bool ps_tape_get_number(const uint8_t **at_p, const uint8_t *end, uint64_t *value_p)
{
    const uint8_t *at = *at_p;
    uint64_t value = 0;

    for (unsigned shift = 0; at < end && shift < 64; shift += 7) {
        const uint8_t byte = *at++;

        if (shift == 63 && byte > 1) {
            return false;
        }
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *at_p = at;
            *value_p = value;
            return true;
        }
    }
    return false;
}

bool ps_tape_open(struct ps_tape_reader *r, const void *data, size_t size,
                  struct ps_tape_head *head_p)
{
    const uint8_t *at = data, *const end = at + size;
    struct ps_tape_head head = {.min_bytes = 0};
    uint64_t version = 0, length = 0;

    *r = (struct ps_tape_reader){.data = data, .size = size};
    if (size < PS_TAPE_MAGIC_BYTES || memcmp(at, PS_TAPE_MAGIC, PS_TAPE_MAGIC_BYTES) != 0) {
        r->error = "not a tape";
        return false;
    }
    at += PS_TAPE_MAGIC_BYTES;
    if (ps_tape_get_number(&at, end, &version) && version != PS_TAPE_VERSION) {
        r->error = "a tape of another version";
        return false;
    }
    if (version == 0 || !ps_tape_get_number(&at, end, &head.min_bytes) ||
        !ps_tape_get_number(&at, end, &head.pid) ||
        !ps_tape_get_number(&at, end, &head.unix_time) || !ps_tape_get_number(&at, end, &length) ||
        length > HEAD_STRING_MAX || length > (size_t)(end - at)) {
        r->error = "the header is not whole";
        return false;
    }
    memcpy(head.regions, at, length);
    r->at = (size_t)(at - r->data) + length;
    *head_p = head;
    return true;
}

static bool fail(struct ps_tape_reader *r, const char *what)
{
    r->error = what;
    return false;
}

/* What follows the length; `bytes` is whole. */
static bool get_body(struct ps_tape_reader *r, struct ps_tape_record *record, int n_fields,
                     const uint8_t *at, const uint8_t *end)
{
    uint64_t thread, since;

    if (!ps_tape_get_number(&at, end, &thread) || thread > UINT32_MAX ||
        !ps_tape_get_number(&at, end, &since)) {
        return fail(r, "a record without thread or time");
    }
    for (int i = 0; i < n_fields; i++) {
        if (!ps_tape_get_number(&at, end, &record->field[i])) {
            return fail(r, "a record that is too short for its kind");
        }
    }
    r->time += since;
    record->thread = (uint32_t)thread;
    record->time = r->time;
    record->bytes = at;
    record->n_bytes = (size_t)(end - at);
    return true;
}

bool ps_tape_next(struct ps_tape_reader *r, struct ps_tape_record *record_p)
{
    const uint8_t *const end = r->data + r->size;

    while (r->error == NULL && !r->cut && r->at < r->size) {
        struct ps_tape_record record = {.kind = 0};
        const uint8_t *at = r->data + r->at;
        uint64_t kind, length;

        if (!ps_tape_get_number(&at, end, &kind) || !ps_tape_get_number(&at, end, &length) ||
            length > (size_t)(end - at)) {
            r->cut = true;
            return false;
        }
        if (kind == 0 || kind > UINT32_MAX) {
            return fail(r, "a record of no kind");
        }
        record.kind = (uint32_t)kind;
        const int n_fields = ps_tape_n_fields(record.kind);

        if (!get_body(r, &record, n_fields < 0 ? 0 : n_fields, at, at + length)) {
            return false;
        }
        r->at = (size_t)(at - r->data) + length;
        if (n_fields >= 0) {
            *record_p = record;
            return true;
        }
    }
    return false;
}

bool ps_tape_get_changes(const uint8_t *from, size_t n, uint8_t *image, size_t bytes)
{
    const uint8_t *const end = from + n;
    size_t at = 0;

    while (from < end) {
        uint64_t equal, changed;

        if (!ps_tape_get_number(&from, end, &equal) || !ps_tape_get_number(&from, end, &changed) ||
            changed == 0 || equal > bytes / 4 || changed > bytes / 4 + 1 ||
            at + equal * 4 >= bytes) {
            return false;
        }
        at += equal * 4;
        const size_t length = changed * 4 < bytes - at ? changed * 4 : bytes - at;

        if (changed * 4 > length + 3 || length > (size_t)(end - from)) {
            return false;
        }
        memcpy(image + at, from, length);
        from += length;
        at += length;
    }
    return true;
}

/* ---- words ---- */

static void each_word(const uint8_t *image, uint32_t from, uint32_t end, ps_tape_word_fn fn,
                      void *arg)
{
    for (uint64_t at = from; at + 8 <= end; at += 4) {
        uint64_t word;

        memcpy(&word, image + at, sizeof(word));
        fn(arg, (uint32_t)at, word);
    }
}

void ps_tape_each_word(const struct ps_tape_layout *layout, unsigned form, const uint8_t *image,
                       uint32_t bytes, ps_tape_word_fn fn, void *arg)
{
    if (form == PS_TAPE_LAUNCH_PACKED) {
        each_word(image, 0, bytes, fn, arg);
        return;
    }
    for (uint32_t i = 0; form == PS_TAPE_LAUNCH_PARAMS && i < layout->n; i++) {
        const struct ps_tape_param *p = &layout->params[i];

        if (p->size >= 8 && p->offset <= bytes && p->size <= bytes - p->offset) {
            each_word(image, p->offset, p->offset + p->size, fn, arg);
        }
    }
}
