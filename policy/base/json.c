/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON writer. State is in the caller's struct; bytes that are not valid UTF-8 become U+FFFD. */
#include "policy/base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "policy/base/assert.h"

void ps_json_init(struct ps_json *j, char *buf, size_t size, int fd)
{
    *j = (struct ps_json){.buf = buf, .size = size, .fd = fd};
}

static void flush(struct ps_json *j)
{
    size_t done = 0;

    while (done < j->used && !j->failed) {
        const ssize_t n = write(j->fd, j->buf + done, j->used - done);

        if (n > 0) {
            done += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            j->failed = true;
        }
    }
    j->used = 0;
}

static void put(struct ps_json *j, const char *text, size_t bytes)
{
    while (bytes > 0 && !j->failed) {
        const size_t room = j->size - 1 - j->used;
        const size_t n = bytes < room ? bytes : room;

        memcpy(j->buf + j->used, text, n);
        j->used += n;
        text += n;
        bytes -= n;
        if (bytes > 0 && j->fd < 0) {
            j->failed = true;
        } else if (bytes > 0) {
            flush(j);
        }
    }
}

static void put_text(struct ps_json *j, const char *text)
{
    put(j, text, strlen(text));
}

/* Bytes of the UTF-8 sequence at s, or 0 if it is not one. */
static size_t utf8_bytes(const unsigned char *s)
{
    size_t n;

    if (s[0] < 0x80) {
        return 1;
    }
    if (s[0] >= 0xc2 && s[0] <= 0xdf) {
        n = 2;
    } else if (s[0] >= 0xe0 && s[0] <= 0xef) {
        n = 3;
    } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        n = 4;
    } else {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    const bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    const bool no_character = (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f);

    return overlong || no_character ? 0 : n;
}

static void put_string(struct ps_json *j, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;

    put_text(j, "\"");
    while (*s != '\0') {
        const size_t n = utf8_bytes(s);

        if (n == 0) {
            put_text(j, "\\ufffd");
            s++;
        } else if (*s == '"' || *s == '\\') {
            const char escaped[2] = {'\\', (char)*s};

            put(j, escaped, 2);
            s++;
        } else if (*s < 0x20 || *s == 0x7f) {
            char escaped[8];

            put(j, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)*s));
            s++;
        } else {
            put(j, (const char *)s, n);
            s += n;
        }
    }
    put_text(j, "\"");
}

static void put_key(struct ps_json *j, const char *key)
{
    const uint64_t bit = UINT64_C(1) << (j->depth % 64);

    if (j->depth > 0 && (j->some & bit) != 0) {
        put_text(j, ",");
    }
    j->some |= bit;
    if (key != NULL) {
        put_string(j, key);
        put_text(j, ":");
    }
}

void ps_json_open(struct ps_json *j, const char *key, char bracket)
{
    put_key(j, key);
    put(j, &bracket, 1);
    j->depth++;
    ps_assert(j->depth < 64);
    j->some &= ~(UINT64_C(1) << (j->depth % 64));
}

void ps_json_close(struct ps_json *j, char bracket)
{
    ps_assert(j->depth > 0);
    put(j, &bracket, 1);
    j->depth--;
}

void ps_json_string(struct ps_json *j, const char *key, const char *value)
{
    if (value == NULL) {
        ps_json_null(j, key);
        return;
    }
    put_key(j, key);
    put_string(j, value);
}

void ps_json_u64(struct ps_json *j, const char *key, uint64_t value)
{
    char text[24];

    put_key(j, key);
    put(j, text, (size_t)snprintf(text, sizeof(text), "%" PRIu64, value));
}

void ps_json_i64(struct ps_json *j, const char *key, int64_t value)
{
    char text[24];

    put_key(j, key);
    put(j, text, (size_t)snprintf(text, sizeof(text), "%" PRId64, value));
}

void ps_json_bool(struct ps_json *j, const char *key, bool value)
{
    put_key(j, key);
    put_text(j, value ? "true" : "false");
}

void ps_json_null(struct ps_json *j, const char *key)
{
    put_key(j, key);
    put_text(j, "null");
}

bool ps_json_finish(struct ps_json *j)
{
    ps_assert(j->depth == 0);
    put_text(j, "\n");
    if (j->fd >= 0) {
        flush(j);
    } else {
        j->buf[j->used] = '\0';
    }
    const bool ok = !j->failed;

    j->failed = false;
    j->some = 0;
    return ok;
}
