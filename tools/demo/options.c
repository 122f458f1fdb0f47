/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The demo's command line: one table, from which parsing, checking and --help are made. Main thread
 * only.
 */
#include "tools/demo/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo/args.h"

#define EXIT_USAGE 2

enum kind { COUNT, REAL, SEED, CHOICE };

struct option_row {
    const char *name;
    enum kind kind;
    size_t offset;
    double min, max;        /* COUNT and REAL */
    const char *choices[2]; /* CHOICE: false and true */
    const char *preset;     /* NULL: by the device */
    const char *doc;
};

#define AT(_field) offsetof(struct demo_options, _field)
static const struct option_row rows[] = {
    {"steps", COUNT, AT(steps), 1, 1e6, {0}, NULL, "training steps"},
    {"layers", COUNT, AT(layers), 1, 4096, {0}, "16", "layers of the model"},
    {"microbatches",
     COUNT,
     AT(microbatches),
     1,
     1024,
     {0},
     "2",
     "forward and backward passes a step"},
    {"tokens", COUNT, AT(tokens), 1, 1 << 24, {0}, NULL, "tokens of a microbatch"},
    {"hidden", COUNT, AT(hidden), 1, 1 << 16, {0}, NULL, "width of the model"},
    {"ffn", COUNT, AT(ffn), 1, 1 << 16, {0}, NULL, "width inside an expert"},
    {"experts", COUNT, AT(experts), 1, DEMO_MAX_EXPERTS, {0}, NULL, "experts of a layer"},
    {"topk", COUNT, AT(topk), 1, DEMO_MAX_EXPERTS, {0}, "2", "rows of a token at balanced routing"},
    {"seed", SEED, AT(seed), 0, 0, {0}, "1", "of weights, data and routing"},
    {"capacity",
     REAL,
     AT(capacity),
     0,
     64,
     {0},
     "4.0",
     "rows of an expert buffer over balanced rows; 0: exact"},
    {"skew", REAL, AT(skew), 0, 1, {0}, "0.15", "relative spread of the rows of a layer"},
    {"rate", REAL, AT(rate), 0, 100, {0}, "0.5", "learning rate"},
    {"padding",
     CHOICE,
     AT(padding_zeros),
     0,
     0,
     {"empty", "zeros"},
     "empty",
     "what unused rows hold"},
    {"activation",
     CHOICE,
     AT(relu),
     0,
     0,
     {"swiglu", "relu"},
     "swiglu",
     "between an expert's products"},
    {"backward-stream",
     CHOICE,
     AT(own_stream),
     0,
     0,
     {"same", "own"},
     "same",
     "stream of the backward pass"},
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static void print_help(void)
{
    printf("usage: pagedstash-demo [options]\n\n"
           "Trains a small mixture-of-experts model by the CUDA driver API and prints one JSON\n"
           "object a step and one at the end.\n\n");
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct option_row *row = &rows[i];
        const char *preset = row->preset != NULL ? row->preset : "by the device";
        printf("  --%-18s%s", row->name, row->doc);
        if (row->kind == CHOICE) {
            printf(" <%s|%s>", row->choices[0], row->choices[1]);
        }
        printf(" (%s)\n", preset);
    }
    printf("  --%-18s%s\n", "help", "print this and exit");
}

static bool set_number(struct demo_options *o, const struct option_row *row, const char *text)
{
    char *end = NULL;
    errno = 0;
    if (row->kind == SEED) {
        const uint64_t seed = strtoull(text, &end, 0);
        memcpy((char *)o + row->offset, &seed, sizeof(seed));
        return errno == 0 && end != text && *end == '\0' && text[0] != '-';
    }
    const double value = strtod(text, &end);
    const bool whole = row->kind != COUNT || value == floor(value);
    if (errno != 0 || end == text || *end != '\0' || !(value >= row->min && value <= row->max) ||
        !whole) {
        return false;
    }
    if (row->kind == COUNT) {
        const int64_t count = (int64_t)value;
        memcpy((char *)o + row->offset, &count, sizeof(count));
    } else {
        memcpy((char *)o + row->offset, &value, sizeof(value));
    }
    return true;
}

static bool set_option(struct demo_options *o, const struct option_row *row, const char *text)
{
    if (row->kind != CHOICE) {
        return set_number(o, row, text);
    }
    const bool second = strcmp(text, row->choices[1]) == 0;
    memcpy((char *)o + row->offset, &second, sizeof(second));
    return second || strcmp(text, row->choices[0]) == 0;
}

static void say_bad_value(const struct option_row *row, const char *text)
{
    fprintf(stderr, "pagedstash-demo: bad value '%s' for '--%s'", text, row->name);
    if (row->kind == CHOICE) {
        fprintf(stderr, " (want <%s|%s>)\n", row->choices[0], row->choices[1]);
    } else if (row->kind == SEED) {
        fprintf(stderr, " (want an unsigned number)\n");
    } else {
        fprintf(stderr, " (want %s from %g to %g)\n",
                row->kind == COUNT ? "a whole number" : "a number", row->min, row->max);
    }
    exit(EXIT_USAGE);
}

void demo_options_parse(struct demo_options *o, int argc, char **argv)
{
    struct option longs[N_ROWS + 2];
    memset(longs, 0, sizeof(longs));
    memset(o, 0, sizeof(*o));
    for (size_t i = 0; i < N_ROWS; i++) {
        longs[i] = (struct option){rows[i].name, required_argument, NULL, (int)i};
        if (rows[i].preset != NULL && !set_option(o, &rows[i], rows[i].preset)) {
            say_bad_value(&rows[i], rows[i].preset);
        }
    }
    longs[N_ROWS] = (struct option){"help", no_argument, NULL, (int)N_ROWS};
    for (int c = getopt_long(argc, argv, "", longs, NULL); c != -1;
         c = getopt_long(argc, argv, "", longs, NULL)) {
        if (c == '?') {
            exit(EXIT_USAGE);
        }
        if (c == (int)N_ROWS) {
            print_help();
            exit(EXIT_SUCCESS);
        }
        if (!set_option(o, &rows[c], optarg)) {
            say_bad_value(&rows[c], optarg);
        }
    }
    if (optind != argc) {
        fprintf(stderr, "pagedstash-demo: unexpected argument '%s'\n", argv[optind]);
        exit(EXIT_USAGE);
    }
}

static void preset(int64_t *value, bool simulated, int64_t small, int64_t large)
{
    if (*value == 0) {
        *value = simulated ? small : large;
    }
}

void demo_options_finish(struct demo_options *o, bool simulated)
{
    preset(&o->steps, simulated, 4, 10);
    preset(&o->tokens, simulated, 512, 8192);
    preset(&o->hidden, simulated, 32, 512);
    preset(&o->ffn, simulated, 32, 256);
    preset(&o->experts, simulated, 8, 16);
}
