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

#define CHOICES_MAX             6
#define MICROBATCHES_OF_A_STAGE 2

enum kind { COUNT, REAL, SEED, SWITCH, CHOICE, FLAG };

struct option_row {
    const char *name;
    enum kind kind;
    size_t offset;
    double min, max;                  /* COUNT and REAL */
    const char *choices[CHOICES_MAX]; /* SWITCH: false and true; CHOICE: by number */
    const char *preset;               /* NULL: by the device or the schedule */
    const char *doc;
};

#define AT(_field) offsetof(struct demo_options, _field)
static const struct option_row rows[] = {
    {"steps", COUNT, AT(steps), 1, 1e6, {0}, NULL, "training steps"},
    {"layers",
     COUNT,
     AT(layers),
     1,
     4096,
     {0},
     NULL,
     "layers of the model, or of this stage of it"},
    {"schedule",
     CHOICE,
     AT(schedule.kind),
     0,
     0,
     {"default", "1f1b", "interleaved"},
     "default",
     "order of the passes of a step"},
    {"stages", COUNT, AT(schedule.stages), 1, 1024, {0}, NULL, "of the pipeline"},
    {"stage", COUNT, AT(schedule.stage), 0, 1023, {0}, "0", "which one of them this is"},
    {"virtual", COUNT, AT(schedule.chunks), 1, 1024, {0}, NULL, "chunks of layers, if interleaved"},
    {"microbatches",
     COUNT,
     AT(schedule.microbatches),
     1,
     1024,
     {0},
     NULL,
     "forward and backward passes a step"},
    {"eval-layers", COUNT, AT(eval_layers), 0, 1e6, {0}, "0", "run forward only after each step"},
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
    {"spread", REAL, AT(spread), 0, 1, {0}, "0.15", "relative spread of the rows of a layer"},
    {"skew", REAL, AT(spread), 0, 1, {0}, "0.15", "older name of --spread"},
    {"routing",
     CHOICE,
     AT(routing),
     0,
     0,
     {"spread", "constant", "spikes", "one-rank", "zero", "alternating"},
     "spread",
     "rows that layers receive, up to the capacity"},
    {"rate", REAL, AT(rate), 0, 100, {0}, "0.5", "learning rate"},
    {"drift",
     CHOICE,
     AT(drift),
     0,
     0,
     {"none", "microbatches", "sizes", "zero", "skip", "rename"},
     "none",
     "what changes in the middle of the run"},
    {"padding",
     SWITCH,
     AT(padding_zeros),
     0,
     0,
     {"empty", "zeros"},
     "empty",
     "what unused rows hold"},
    {"mark-rows", FLAG, AT(mark_rows), 0, 0, {0}, NULL, "name a counter of the rows in the ranges"},
    {"activation",
     SWITCH,
     AT(relu),
     0,
     0,
     {"swiglu", "relu"},
     "swiglu",
     "between an expert's products"},
    {"backward-stream",
     SWITCH,
     AT(own_stream),
     0,
     0,
     {"same", "own"},
     "same",
     "stream of the backward pass"},
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

/* "a|b|c" between the given brackets; nothing for a row without choices. */
static void print_choices(FILE *to, const struct option_row *row, const char *left,
                          const char *right)
{
    for (int i = 0; i < CHOICES_MAX && row->choices[i] != NULL; i++) {
        fprintf(to, "%s%s", i == 0 ? left : "|", row->choices[i]);
    }
    fputs(row->choices[0] != NULL ? right : "", to);
}

static void print_help(void)
{
    printf("usage: pagedstash-demo [options]\n\n"
           "Trains a small mixture-of-experts model by the CUDA driver API and prints one JSON\n"
           "object a step and one at the end.\n\n");
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct option_row *row = &rows[i];
        printf("  --%-18s%s", row->name, row->doc);
        print_choices(stdout, row, " <", ">");
        if (row->kind != FLAG) {
            printf(" (%s)", row->preset != NULL ? row->preset : "by device and schedule");
        }
        putchar('\n');
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
    int choice = 0;
    if (row->kind == FLAG) {
        const bool set = true;
        memcpy((char *)o + row->offset, &set, sizeof(set));
        return true;
    }
    if (row->kind != CHOICE && row->kind != SWITCH) {
        return set_number(o, row, text);
    }
    while (choice < CHOICES_MAX && row->choices[choice] != NULL &&
           strcmp(text, row->choices[choice]) != 0) {
        choice++;
    }
    if (choice == CHOICES_MAX || row->choices[choice] == NULL) {
        return false;
    }
    const bool second = choice == 1;
    if (row->kind == SWITCH) {
        memcpy((char *)o + row->offset, &second, sizeof(second));
    } else {
        memcpy((char *)o + row->offset, &choice, sizeof(choice));
    }
    return true;
}

static void say_bad_value(const struct option_row *row, const char *text)
{
    fprintf(stderr, "pagedstash-demo: bad value '%s' for '--%s'", text, row->name);
    if (row->choices[0] != NULL) {
        print_choices(stderr, row, " (want <", ">)\n");
    } else if (row->kind == SEED) {
        fprintf(stderr, " (want an unsigned number)\n");
    } else {
        fprintf(stderr, " (want %s from %g to %g)\n",
                row->kind == COUNT ? "a whole number" : "a number", row->min, row->max);
    }
    exit(EXIT_USAGE);
}

static _Noreturn void refuse(const char *what)
{
    fprintf(stderr, "pagedstash-demo: %s\n", what);
    exit(EXIT_USAGE);
}

static void preset(int64_t *value, int64_t number)
{
    *value = *value == 0 ? number : *value;
}

/* What depends on the schedule alone. */
static void finish_schedule(struct demo_options *o)
{
    struct demo_schedule *s = &o->schedule;
    const bool pipeline = s->kind != DEMO_SCHEDULE_DEFAULT;
    const bool interleaved = s->kind == DEMO_SCHEDULE_INTERLEAVED;
    if (!pipeline && s->stages > 1) {
        refuse("'--stages' needs '--schedule 1f1b' or 'interleaved'");
    }
    if (!interleaved && s->chunks > 1) {
        refuse("'--virtual' needs '--schedule interleaved'");
    }
    preset(&s->stages, pipeline ? 4 : 1);
    preset(&s->chunks, interleaved ? 2 : 1);
    preset(&s->microbatches, MICROBATCHES_OF_A_STAGE * s->stages);
    preset(&o->layers, pipeline ? (8 + s->chunks - 1) / s->chunks * s->chunks : 16);
    if (s->stage >= s->stages) {
        refuse("'--stage' must be below '--stages'");
    }
    if (interleaved && (s->stages < 2 || s->chunks < 2)) {
        refuse("an interleaved schedule needs two stages and two chunks ('--virtual') or more");
    }
    if (interleaved && s->microbatches % s->stages != 0) {
        refuse("an interleaved schedule needs a multiple of '--stages' for '--microbatches'");
    }
    if (o->layers % s->chunks != 0) {
        refuse("'--layers' must be a multiple of '--virtual'");
    }
}

void demo_options_parse(struct demo_options *o, int argc, char **argv)
{
    struct option longs[N_ROWS + 2];
    memset(longs, 0, sizeof(longs));
    memset(o, 0, sizeof(*o));
    for (size_t i = 0; i < N_ROWS; i++) {
        longs[i] = (struct option){
            rows[i].name, rows[i].kind == FLAG ? no_argument : required_argument, NULL, (int)i};
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
    finish_schedule(o);
}

int64_t demo_options_in_flight(const struct demo_options *o)
{
    return demo_schedule_in_flight(&o->schedule) * (o->layers / o->schedule.chunks);
}

void demo_options_finish(struct demo_options *o, bool simulated)
{
    const int64_t full = simulated ? 512 : 8192;
    /* What is saved fits into 128 MiB of the software driver, 32 GiB of a GPU. */
    const int64_t most = simulated ? 30 * full : 64 * full;
    int64_t tokens = o->schedule.kind == DEMO_SCHEDULE_DEFAULT ? full : full / 2;
    while (tokens > full / 8 && tokens * demo_options_in_flight(o) > most) {
        tokens /= 2;
    }
    preset(&o->steps, simulated ? 6 : 10);
    preset(&o->tokens, tokens);
    preset(&o->hidden, simulated ? 32 : 512);
    preset(&o->ffn, simulated ? 32 : 256);
    preset(&o->experts, simulated ? 8 : 16);
}
