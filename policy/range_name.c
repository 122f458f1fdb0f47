/* SPDX-License-Identifier: Apache-2.0 */
/* See range_name.h. A range's name is the job's: it may hold anything, and be of any length. */
#include "policy/range_name.h"

#include <stddef.h>
#include <string.h>

#define BLOCK_SHIFT 5 /* of the rows that one scale factor serves */
#define BLOCK       (1u << BLOCK_SHIFT)

/* One value: what lies between '=' and the next semicolon or the end. */
struct text {
    const char *at;
    size_t n;
};

static bool equals(struct text t, const char *word)
{
    return t.n == strlen(word) && memcmp(t.at, word, t.n) == 0;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 16;
}

/* All of the text is a number from 1 to max. */
static bool read_number(struct text t, unsigned base, uint64_t max, uint64_t *n_p)
{
    uint64_t n = 0;

    for (size_t i = 0; i < t.n; i++) {
        const unsigned digit = (unsigned)digit_of(t.at[i]);

        if (digit >= base || n > (max - digit) / base) {
            return false;
        }
        n = n * base + digit;
    }
    *n_p = n;
    return n > 0;
}

static bool read_rows(struct text t, uint32_t *rows_p)
{
    uint64_t n;

    if (*rows_p != 0 || !read_number(t, 10, UINT32_MAX, &n)) {
        return false;
    }
    *rows_p = (uint32_t)n;
    return true;
}

static bool read_type(struct text t, bool *narrow_p)
{
    *narrow_p = equals(t, ":i32");
    return t.n == 0 || *narrow_p || equals(t, ":i64");
}

static bool read_counter(struct text t, struct ps_row_counter *counter_p)
{
    size_t n = 0;
    uint64_t address;
    bool narrow;

    while (n < t.n && t.at[n] != ':') {
        n++;
    }
    if (counter_p->address != 0 || n < 3 || t.at[0] != '0' || (t.at[1] != 'x' && t.at[1] != 'X') ||
        !read_number((struct text){t.at + 2, n - 2}, 16, UINT64_MAX, &address) ||
        !read_type((struct text){t.at + n, t.n - n}, &narrow) ||
        address % (narrow ? sizeof(int32_t) : sizeof(int64_t)) != 0) {
        return false;
    }
    *counter_p = (struct ps_row_counter){address, narrow};
    return true;
}

static bool read_field(struct text key, struct text value, struct ps_range_rows *rows)
{
    if (equals(key, "tokens")) {
        return read_counter(value, &rows->tokens);
    }
    if (equals(key, "need")) {
        return read_counter(value, &rows->need);
    }
    if (equals(key, "capacity")) {
        return read_rows(value, &rows->capacity);
    }
    if (equals(key, "balanced")) {
        return read_rows(value, &rows->balanced);
    }
    if (equals(key, "rows") && equals(value, "all")) {
        rows->all = true;
    }
    return true;
}

bool ps_range_rows_read(const char *range, struct ps_range_rows *rows_p, const char **wrong_p)
{
    struct ps_range_rows rows;
    const char *first = strchr(range, ';');

    memset(&rows, 0, sizeof(rows));
    memset(rows_p, 0, sizeof(*rows_p));
    for (const char *at = first; at != NULL; at = strchr(at + 1, ';')) {
        const size_t n = strcspn(at + 1, ";");
        const char *equal = memchr(at + 1, '=', n);

        if (equal == NULL) {
            continue;
        }
        const struct text key = {at + 1, (size_t)(equal - at) - 1};
        const struct text value = {equal + 1, n - key.n - 1};

        if (!read_field(key, value, &rows)) {
            *wrong_p = at + 1;
            return false;
        }
    }
    if ((rows.tokens.address != 0 || rows.need.address != 0) && rows.capacity == 0) {
        *wrong_p = first + 1;
        return false;
    }
    *rows_p = rows;
    return true;
}

bool ps_row_layout_of(uint64_t bytes, uint32_t capacity, uint64_t page_bytes,
                      struct ps_row_layout *layout_p)
{
    if (capacity == 0 || bytes == 0) {
        return false;
    }
    const bool blocks = capacity % BLOCK == 0;
    const bool whole = bytes % capacity == 0;
    const bool by_block = blocks && bytes % (capacity / BLOCK) == 0 &&
                          (!whole || bytes / (capacity / BLOCK) <= page_bytes / 8);
    const uint64_t unit_bytes = by_block ? bytes / (capacity / BLOCK) : bytes / capacity;

    if ((!whole && !by_block) || unit_bytes > UINT32_MAX) {
        return false;
    }
    *layout_p = (struct ps_row_layout){capacity, (uint32_t)unit_bytes, by_block ? BLOCK_SHIFT : 0};
    return true;
}

uint64_t ps_rows_factor_percent(uint64_t rows, uint32_t balanced)
{
    const uint64_t most = UINT64_MAX / 100 - balanced;

    return ((rows < most ? rows : most) * 100 + balanced - 1) / balanced;
}
