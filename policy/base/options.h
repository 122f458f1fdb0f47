/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every setting of pagedstash: one table, in options.c, from which parsing, `pagedstash config`, the flags of
 * `pagedstash run`, the documentation and the check for unknown names are derived. The default stands there and
 * nowhere else. Options are read once (in the constructor, with secure_getenv semantics), copied, and never read again.
 */
#ifndef PS_BASE_OPTIONS_H
#define PS_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/base/log.h"

#define PS_OPT_TEXT_MAX 1024
#define PS_AUTO         UINT64_MAX /* the value of a size option left on "auto" */
/* Factors are kept in millionths. */
#define PS_FACTOR_ONE  1000000
#define PS_FACTOR_MOST (INT64_C(1000) * PS_FACTOR_ONE)
#define PS_FACTOR_AUTO INT64_MIN /* of a factor left on "auto" */
#define PS_OPTIONS_MAX 64

/* Where a value was found; the later goes before. */
enum ps_option_source {
    PS_FROM_DEFAULT,
    PS_FROM_SYSTEM_FILE,
    PS_FROM_USER_FILE,
    PS_FROM_NAMED_FILE,
    PS_FROM_ENVIRONMENT, /* flags of `run` too */
};

/* How the library checks itself and what it is told. */
enum ps_verify { PS_VERIFY_OFF, PS_VERIFY_POISON };

struct ps_options {
    bool disable;                   /* PAGEDSTASH_DISABLE */
    char regions[PS_OPT_TEXT_MAX];  /* PAGEDSTASH_REGIONS: comma-separated fnmatch patterns */
    char step[PS_OPT_TEXT_MAX];     /* PAGEDSTASH_STEP: a pattern, empty = steps are found */
    uint64_t min_bytes;             /* PAGEDSTASH_MIN_BYTES: smallest allocation taken over */
    uint64_t page_bytes;            /* PAGEDSTASH_PAGE_BYTES: power of two >= 512, or PS_AUTO */
    uint64_t page_size;             /* PAGEDSTASH_PAGE_SIZE: rows of a page */
    uint64_t window_bytes;          /* PAGEDSTASH_WINDOW_BYTES: reserved addresses, or PS_AUTO */
    uint64_t host_budget;           /* PAGEDSTASH_HOST_BUDGET: bytes, 0 for none, or PS_AUTO */
    uint64_t cuda_budget;           /* PAGEDSTASH_CUDA_BUDGET: bytes, or PS_AUTO */
    int64_t factor_cuda;            /* PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA */
    int64_t factor_cpu;             /* PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU, or PS_FACTOR_AUTO */
    int64_t capacity_factor;        /* PAGEDSTASH_CAPACITY_FACTOR, or PS_FACTOR_AUTO */
    bool plan;                      /* PAGEDSTASH_PLAN: learn the steps and follow a plan */
    bool compress;                  /* PAGEDSTASH_COMPRESS: lanes are compressible memory */
    bool keep_allocator;            /* PAGEDSTASH_KEEP_ALLOCATOR: leave PyTorch's setting alone */
    enum ps_log_level log_level;    /* PAGEDSTASH_LOG_LEVEL */
    char log_file[PS_OPT_TEXT_MAX]; /* PAGEDSTASH_LOG_FILE: empty = stderr; %h %p %r */
    char metrics[PS_OPT_TEXT_MAX];  /* PAGEDSTASH_METRICS: directory for JSON lines, empty = none */
    char metrics_ranges[PS_OPT_TEXT_MAX]; /* PAGEDSTASH_METRICS_RANGES: patterns, empty = none */
    char tape[PS_OPT_TEXT_MAX];           /* PAGEDSTASH_TAPE: directory for a tape, empty = none */
    char trace[PS_OPT_TEXT_MAX];       /* PAGEDSTASH_TRACE: directory for a trace, empty = none */
    enum ps_verify verify;             /* PAGEDSTASH_VERIFY */
    bool strict;                       /* PAGEDSTASH_STRICT: a bad or unknown setting stops `run` */
    int64_t rank;                      /* PAGEDSTASH_RANK: own override; -1 = take the launcher's */
    char config_file[PS_OPT_TEXT_MAX]; /* PAGEDSTASH_CONFIG_FILE */
    uint8_t source[PS_OPTIONS_MAX];    /* of each row: enum ps_option_source */
};

struct ps_option;

/* How the values of one kind are written. parse sets the field only when it returns true. */
struct ps_option_type {
    const char *syntax; /* as in "want <y|n>", without the brackets and the range */
    bool automatic;     /* "auto" is a value */
    bool (*parse)(const struct ps_option *opt, const char *text, void *field);
    void (*print)(const struct ps_option *opt, const void *field, char *buf, size_t size);
};

struct ps_option {
    const char *name;         /* with the prefix PAGEDSTASH_ */
    const char *text;         /* the default, as a user would write it */
    const char *doc;          /* one sentence */
    const char *const *names; /* of an enum's values, NULL-terminated; else NULL */
    size_t offset;            /* in struct ps_options */
    const struct ps_option_type *type;
    uint64_t min, max; /* of a number; both 0: no range */
};

extern const struct ps_option ps_option_table[];
extern const size_t ps_n_options;

/* Sets every field to its default. No allocation; may be called in a constructor. */
void ps_options_init(struct ps_options *o);
/*
 * Defaults, then /etc/pagedstash.conf, ~/.config/pagedstash.conf, $PAGEDSTASH_CONFIG_FILE, then the environment; later
 * ones win. A bad value leaves what was there before. *n_bad_p (may be NULL) counts bad values and unknown names.
 * The warnings are kept; with quiet false they are also written at once. No allocation, no stream; errno is kept.
 * Not thread-safe: called from the constructor, or by a tool.
 */
void ps_options_load(struct ps_options *o, bool quiet, unsigned *n_bad_p);
/*
 * How many of the warnings are of settings that contradict each other; one of each has been left out of *o. A setting
 * goes before one that contradicts it and was found in an earlier place, without a warning.
 */
unsigned ps_options_contradictions(void);
/* Was it set, in a file or the environment? name: with the prefix. */
bool ps_option_given(const struct ps_options *o, const char *name);
/* Writes the warnings that ps_options_load kept, once. The shim calls it in rank 0 when the rank is known. */
void ps_options_complain(void);
/* The kept warnings one by one; NULL past the last. */
const char *ps_options_complaint(unsigned i);

/* NULL when there is no such option. The name has the prefix. */
const struct ps_option *ps_option_find(const char *name);
/* An option, or one of the names that Kubernetes adds for a service called pagedstash. */
bool ps_option_known(const char *name);
/* The option with the nearest name, at most three edits away, or NULL. */
const struct ps_option *ps_option_nearest(const char *name);
/* False, and nothing changed, when the text is malformed or out of range. */
bool ps_option_set(struct ps_options *o, const struct ps_option *opt, const char *text);
/* The value as text that ps_option_set takes. */
void ps_option_print(const struct ps_options *o, const struct ps_option *opt, char *buf,
                     size_t size);
/* What a value looks like, for messages and help: "y|n", "power of two from 512 to 256M|auto". */
void ps_option_syntax(const struct ps_option *opt, char *buf, size_t size);

#endif
