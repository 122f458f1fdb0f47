/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share: the entry points that libFuzzer (or replay.c) calls, a reader of the input, and a check
 * that ends the process, so that both see a failure. One thread.
 */
#ifndef PS_TESTS_FUZZ_H
#define PS_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define fz_require(_condition, ...)                                                                \
    do {                                                                                           \
        if (!(_condition)) {                                                                       \
            fprintf(stderr, "%s:%d: not so: %s: ", __FILE__, __LINE__, #_condition);               \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct fz_input {
    const uint8_t *at;
    size_t left;
};

/* Zeros behind the end. */
static inline uint8_t fz_u8(struct fz_input *in)
{
    if (in->left == 0) {
        return 0;
    }
    in->left--;
    return *in->at++;
}

static inline unsigned fz_below(struct fz_input *in, unsigned n)
{
    return fz_u8(in) % n;
}

/* The bytes up to the next line feed or the end, with a zero behind them; to be freed. */
static inline char *fz_line(struct fz_input *in)
{
    const uint8_t *end = in->left > 0 ? memchr(in->at, '\n', in->left) : NULL;
    const size_t n = end != NULL ? (size_t)(end - in->at) : in->left;
    char *text = malloc(n + 1);

    if (text == NULL) {
        abort();
    }
    if (n > 0) {
        memcpy(text, in->at, n);
    }
    text[n] = '\0';
    in->at += n + (end != NULL);
    in->left -= n + (end != NULL);
    return text;
}

#endif
