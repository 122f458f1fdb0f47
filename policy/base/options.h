/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every setting of pagedstash: one table, in options.c, from which parsing, `pagedstash config`, the
 * documentation and the check for unknown names are derived. The default stands there and nowhere else.
 * Options are read once (in the constructor, with secure_getenv semantics), copied, and never read again.
 */
#ifndef PS_BASE_OPTIONS_H
#define PS_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "policy/base/log.h"

#define PS_OPT_TEXT_MAX 1024
#define PS_AUTO UINT64_MAX /* the value of a size option left on "auto" */

struct ps_options {
    bool disable;                    /* PAGEDSTASH_DISABLE */
    char regions[PS_OPT_TEXT_MAX];   /* PAGEDSTASH_REGIONS: comma-separated fnmatch patterns */
    uint64_t min_bytes;              /* PAGEDSTASH_MIN_BYTES: smallest allocation taken over */
    uint64_t page_bytes;             /* PAGEDSTASH_PAGE_BYTES: power of two >= 512, or PS_AUTO (256 KiB) */
    uint64_t window_bytes;           /* PAGEDSTASH_WINDOW_BYTES: reserved addresses, or PS_AUTO */
    bool keep_allocator;             /* PAGEDSTASH_KEEP_ALLOCATOR: leave PyTorch's allocator setting alone */
    enum ps_log_level log_level;     /* PAGEDSTASH_LOG_LEVEL */
    char log_file[PS_OPT_TEXT_MAX];  /* PAGEDSTASH_LOG_FILE: empty = stderr; %h %p %r */
    char metrics[PS_OPT_TEXT_MAX];   /* PAGEDSTASH_METRICS: directory for JSON lines, empty = none */
    bool strict;                     /* PAGEDSTASH_STRICT: a bad or unknown setting stops `run` */
    int64_t rank;                    /* PAGEDSTASH_RANK: own override; -1 = take the launcher's */
    char config_file[PS_OPT_TEXT_MAX]; /* PAGEDSTASH_CONFIG_FILE */
};

#endif
