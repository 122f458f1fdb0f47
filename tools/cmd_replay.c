/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pagedstash replay`: reads a trace, cuts it into steps as the engine would, plans, and prints what the plan comes
 * to. No CUDA. One thread.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/base/option_types.h"
#include "policy/base/options.h"
#include "tools/cmd.h"
#include "tools/replay.h"

#define MILLION 1000000u

enum flag {
    FLAG_BUDGET = 256,
    FLAG_CAPACITY,
    FLAG_CONTEXT,
    FLAG_GRANULARITY,
    FLAG_JSON,
    FLAG_KIND,
    FLAG_LINK,
    FLAG_MIN_BYTES,
    FLAG_MOVED,
    FLAG_PAGE,
    FLAG_POOL,
    FLAG_REGIONS,
    FLAG_STEP,
    FLAG_SVG,
    FLAG_VALID,
};

static const struct option flags[] = {
    {"budget", required_argument, NULL, FLAG_BUDGET},
    {"capacity", required_argument, NULL, FLAG_CAPACITY},
    {"context", required_argument, NULL, FLAG_CONTEXT},
    {"granularity", required_argument, NULL, FLAG_GRANULARITY},
    {"json", no_argument, NULL, FLAG_JSON},
    {"kind", required_argument, NULL, FLAG_KIND},
    {"link-rate", required_argument, NULL, FLAG_LINK},
    {"min-bytes", required_argument, NULL, FLAG_MIN_BYTES},
    {"moved-percent", required_argument, NULL, FLAG_MOVED},
    {"page-bytes", required_argument, NULL, FLAG_PAGE},
    {"pool-percent", required_argument, NULL, FLAG_POOL},
    {"regions", required_argument, NULL, FLAG_REGIONS},
    {"step", required_argument, NULL, FLAG_STEP},
    {"svg", required_argument, NULL, FLAG_SVG},
    {"valid-fraction", required_argument, NULL, FLAG_VALID},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void print_help(void)
{
    puts(
        "Usage: pagedstash replay [OPTION...] TRACE\n\n"
        "Makes the plan for the steps in TRACE (of `pagedstash run --trace=DIR`) and prints its\n"
        "memory, the bytes it moves in a step, and the lower bounds of both; then the least memory\n"
        "that the step needs, and what spills with less than the plan asks for. Needs no CUDA.\n\n"
        "  --capacity=<number>        rows of a buffer over the rows in it on average: where valid\n"
        "                             bytes are not told, 1/CAPACITY of each tensor is taken for valid\n"
        "  --valid-fraction=<number>  the same as a fraction, from 0 to 1\n"
        "  --budget=<size>            of homes and device pages: what spills then, and waits; unset:\n"
        "                             several are tried\n"
        "  --link-rate=<number>       to the host and back, GB/s each way, default '55'\n"
        "  --granularity=<size>       of mappings, default '2M'\n"
        "  --page-bytes=<size>        of a page, default '256K'\n"
        "  --moved-percent=<0..100>   of the valid bytes that may move, default '10'\n"
        "  --pool-percent=<0..1000>   pages beyond the most seen, default '10'\n"
        "  --regions=<patterns>       other regions than when it was recorded\n"
        "  --min-bytes=<size>         other smallest tensor (not below the recorded one)\n"
        "  --step=<pattern>           range that begins a step; unset: steps are found\n"
        "  --context=<number>         of the trace; unset: the one with the most tensors\n"
        "  --kind=<number>            kind of step for the picture; unset: the largest\n"
        "  --svg=<file>               draw the step: time across, memory down\n"
        "  --json                     one JSON object\n"
        "  --help                     this text\n\n"
        "Examples:\n"
        "  pagedstash run --trace=/tmp/t -- python train.py\n"
        "  pagedstash replay --svg=plan.svg /tmp/t/*.trace.tsv\n"
        "  pagedstash replay --capacity=2 --moved-percent=5 tests/data/trace_padded.tsv");
}

static int usage(const char *what, const char *of)
{
    fprintf(stderr, "pagedstash replay: %s '%s'; see pagedstash replay --help\n", what, of);
    return PS_EXIT_USAGE;
}

/* ---- values ---- */

/* "1.25" in millionths; more digits are dropped. */
static bool parse_decimal(const char *text, uint64_t *millionths_p)
{
    uint64_t value = 0, unit = MILLION;
    const char *p = text;

    for (; *p >= '0' && *p <= '9' && value < UINT64_C(1000000); p++) {
        value = value * 10 + (uint64_t)(*p - '0');
    }
    value *= MILLION;
    if (*p == '.' && p[1] != '\0') {
        for (p++; *p >= '0' && *p <= '9'; p++) {
            unit /= 10;
            value += unit * (uint64_t)(*p - '0');
        }
    }
    *millionths_p = value;
    return p != text && *p == '\0';
}

static bool parse_count(const char *text, uint64_t max, uint64_t *value_p)
{
    char *end;

    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value > max) {
        return false;
    }
    *value_p = value;
    return true;
}

static bool parse_power(const char *text, uint64_t min, uint64_t *bytes_p)
{
    uint64_t bytes;

    if (!ps_size_parse(text, &bytes) || bytes < min || bytes > UINT64_C(1) << 40 ||
        (bytes & (bytes - 1)) != 0) {
        return false;
    }
    *bytes_p = bytes;
    return true;
}

static bool set_fraction(struct ps_replay_args *a, int code, const char *text)
{
    uint64_t value;

    if (!parse_decimal(text, &value) || value == 0) {
        return false;
    }
    if (code == FLAG_CAPACITY) {
        if (value < MILLION) {
            return false;
        }
        a->trace.valid_parts = (uint32_t)((UINT64_C(1000000000000) + value - 1) / value);
        a->assumed = "--capacity";
        return true;
    }
    if (value > MILLION) {
        return false;
    }
    a->trace.valid_parts = (uint32_t)value;
    a->assumed = "--valid-fraction";
    return true;
}

/* GB/s, up to a thousand. */
static bool set_link(struct ps_replay_args *a, const char *text)
{
    uint64_t value;

    if (!parse_decimal(text, &value) || value == 0 || value > 1000 * (uint64_t)MILLION) {
        return false;
    }
    a->link_rate = value * 1000;
    return true;
}

static bool set_count(struct ps_replay_args *a, int code, const char *text)
{
    uint64_t value;

    switch (code) {
    case FLAG_MOVED:
        if (!parse_count(text, 100, &value)) {
            return false;
        }
        a->plan.moved_percent = (uint32_t)value;
        return true;
    case FLAG_POOL:
        if (!parse_count(text, 1000, &value)) {
            return false;
        }
        a->plan.pool_percent = (uint32_t)value;
        return true;
    case FLAG_KIND:
        if (!parse_count(text, PS_KINDS_MAX - 1, &value)) {
            return false;
        }
        a->kind = (uint32_t)value;
        return true;
    default:
        return parse_count(text, UINT64_MAX - 1, &a->context);
    }
}

/* False: the value is malformed. */
static bool set_flag(struct ps_replay_args *a, int code, const char *text)
{
    switch (code) {
    case FLAG_CAPACITY:
    case FLAG_VALID:
        return set_fraction(a, code, text);
    case FLAG_GRANULARITY:
        return parse_power(text, 4096, &a->plan.granularity);
    case FLAG_PAGE:
        return parse_power(text, 512, &a->plan.page_bytes);
    case FLAG_MIN_BYTES:
        return ps_size_parse(text, &a->trace.min_bytes) && a->trace.min_bytes > 0;
    case FLAG_BUDGET:
        return ps_size_parse(text, &a->budget) && a->budget < UINT64_C(1) << 50;
    case FLAG_LINK:
        return set_link(a, text);
    case FLAG_REGIONS:
        a->trace.regions = text;
        return true;
    case FLAG_STEP:
        a->trace.step = text;
        return true;
    case FLAG_SVG:
        a->svg = text;
        return *text != '\0';
    case FLAG_JSON:
        a->json = true;
        return true;
    default:
        return set_count(a, code, text);
    }
}

/* -1: go on; else the exit status. */
static int parse_args(int argc, char **argv, struct ps_replay_args *a)
{
    int code;

    opterr = 0;
    optind = 1;
    while ((code = getopt_long(argc, argv, ":h", flags, NULL)) != -1) {
        if (code == 'h') {
            print_help();
            return 0;
        }
        if (code == ':') {
            return usage("a value is missing after", argv[optind - 1]);
        }
        if (code == '?') {
            return usage("unknown option", argv[optind - 1]);
        }
        if (!set_flag(a, code, optarg)) {
            char what[64];

            snprintf(what, sizeof(what), "bad value for '--%s':", flags[code - FLAG_BUDGET].name);
            return usage(what, optarg);
        }
    }
    if (optind + 1 != argc) {
        return optind == argc ? usage("one trace is wanted after", "replay")
                              : usage("unexpected", argv[optind + 1]);
    }
    a->file = argv[optind];
    return -1;
}

/* ---- the trace ---- */

static char *read_file(const char *path, size_t *size_p)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    char *data = NULL;
    size_t room = 0, size = 0, n;

    if (f == NULL) {
        fprintf(stderr, "pagedstash replay: cannot open '%s': %s\n", path, strerror(errno));
        return NULL;
    }
    do {
        if (size == room) {
            room = room == 0 ? (size_t)1 << 20 : room * 2;
            char *more = realloc(data, room);

            if (more == NULL) {
                fprintf(stderr, "pagedstash replay: no memory for '%s'\n", path);
                goto err;
            }
            data = more;
        }
        n = fread(data + size, 1, room - size, f);
        size += n;
    } while (n != 0);
    if (ferror(f)) {
        fprintf(stderr, "pagedstash replay: cannot read '%s': %s\n", path, strerror(errno));
        goto err;
    }
    if (f != stdin) {
        fclose(f);
    }
    *size_p = size;
    return data;
err:
    free(data);
    if (f != stdin) {
        fclose(f);
    }
    return NULL;
}

/* What was not said is as recorded, or as the library's default. */
static bool complete_args(struct ps_replay_args *a, const struct ps_trace *t,
                          const struct ps_options *defaults)
{
    const uint64_t recorded = t->min_bytes;

    if (a->trace.min_bytes == 0) {
        a->trace.min_bytes = recorded != 0 ? recorded : defaults->min_bytes;
    } else if (a->trace.min_bytes < recorded) {
        fprintf(stderr,
                "pagedstash replay: '--min-bytes' is below what was recorded (%llu bytes): uses of "
                "smaller tensors are not in the trace\n",
                (unsigned long long)recorded);
        return false;
    }
    if (a->trace.regions == NULL) {
        a->trace.regions = t->regions[0] != '\0' ? t->regions : defaults->regions;
    }
    if (a->trace.step == NULL) {
        a->trace.step = t->step;
    }
    return true;
}

static struct ps_trace_context *choose_context(struct ps_replay *r)
{
    for (uint32_t i = 0; i < r->play.n_contexts; i++) {
        if (r->play.contexts[i].number == r->args->context) {
            return &r->play.contexts[i];
        }
    }
    return r->args->context == UINT64_MAX ? ps_trace_busiest(&r->play) : NULL;
}

/* ---- the plan ---- */

/* Steps seen twice and, when there are none, those seen once. Groups leave at a push, so one alone cannot. */
static enum ps_status choose_steps(struct ps_replay *r)
{
    for (uint64_t least = 2; least > 0 && r->n_steps == 0; least--) {
        for (uint32_t k = 0; k < PS_KINDS_MAX; k++) {
            const struct ps_kind *kind = &r->context->segment.kinds[k];
            bool same;

            if (kind->id == 0 || kind->count < least || kind->record[0].n_groups < 2) {
                continue;
            }
            const enum ps_status s = ps_kind_merge(kind, &r->steps[r->n_steps], &same);

            if (s != PS_OK) {
                return s;
            }
            r->kinds[r->n_steps++] = k;
        }
    }
    return PS_OK;
}

static uint32_t largest_step(const struct ps_replay *r)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < r->n_steps; i++) {
        if (r->kinds[i] == r->args->kind) {
            return i;
        }
        best = r->steps[i].n_tensors > r->steps[best].n_tensors ? i : best;
    }
    return best;
}

static int fail(const char *what)
{
    fprintf(stderr, "pagedstash replay: %s\n", what);
    return 1;
}

static int plan_it(struct ps_replay *r)
{
    r->context = choose_context(r);
    if (r->context == NULL || r->context->n_tensors == 0) {
        return fail(r->args->context != UINT64_MAX
                        ? "no tensors in that context"
                        : "no tensors in the trace: no range matches the patterns, or nothing in "
                          "one is large enough");
    }
    if (choose_steps(r) != PS_OK) {
        return fail("no memory for the steps");
    }
    if (r->n_steps == 0) {
        return fail("no step of more than one group in the trace");
    }
    switch (ps_plan_make(r->steps, r->n_steps, &r->args->plan, &r->plan)) {
    case PS_OK:
        break;
    case PS_ERR_MEMORY:
        return fail("no memory for the plan");
    case PS_ERR_DEVICE:
    case PS_ERR_INVALID:
    case PS_ERR_UNSUPPORTED:
    case PS_ERR_SYSTEM:
    default:
        return fail("the steps cannot be planned: their events do not go together");
    }
    struct ps_replay_spill spill;
    bool ok = ps_replay_bound(r, &r->moved_bound) && ps_replay_spill(r, largest_step(r), &spill);

    r->spill = &spill;
    if (!ok) {
        fail("no memory for the bounds");
    } else {
        ok = r->args->json ? ps_replay_print_json(r) : ps_replay_print(r);
        ok = (r->args->svg == NULL || ps_replay_draw(r, r->args->svg, largest_step(r))) && ok;
    }
    r->spill = NULL;
    ps_plan_fini(&r->plan);
    return ok ? 0 : 1;
}

static int replay(struct ps_replay *r, struct ps_replay_args *args,
                  const struct ps_options *defaults)
{
    int status = PS_EXIT_USAGE;

    if (complete_args(args, &r->trace, defaults)) {
        switch (ps_trace_play(&r->trace, &args->trace, &r->play)) {
        case PS_OK:
            status = plan_it(r);
            break;
        case PS_ERR_INVALID:
            status = usage("too many patterns:", args->trace.regions);
            break;
        case PS_ERR_MEMORY:
        case PS_ERR_DEVICE:
        case PS_ERR_UNSUPPORTED:
        case PS_ERR_SYSTEM:
        default:
            status = fail("no memory for the trace");
            break;
        }
        ps_trace_play_fini(&r->play);
    }
    while (r->n_steps > 0) {
        ps_plan_step_free(&r->steps[--r->n_steps]);
    }
    return status;
}

int cmd_replay(int argc, char **argv)
{
    struct ps_replay_args args = {
        .plan = {.granularity = UINT64_C(2) << 20,
                 .page_bytes = UINT64_C(256) << 10,
                 .moved_percent = 10,
                 .pool_percent = 10},
        .budget = UINT64_MAX,
        .link_rate = PS_LINK_RATE,
        .context = UINT64_MAX,
        .kind = PS_TRACE_NONE,
    };
    struct ps_options defaults;
    size_t size;
    int status = parse_args(argc, argv, &args);

    if (status >= 0) {
        return status;
    }
    struct ps_replay *r = calloc(1, sizeof(*r));
    char *data = r == NULL ? NULL : read_file(args.file, &size);

    status = 1;
    ps_options_init(&defaults);
    if (data != NULL) {
        r->args = &args;
        if (ps_trace_read(&r->trace, data, size)) {
            status = replay(r, &args, &defaults);
        } else {
            fprintf(stderr, "pagedstash replay: '%s': %s\n", args.file, r->trace.error);
        }
        ps_trace_fini(&r->trace);
    }
    free(data);
    free(r);
    return status;
}
