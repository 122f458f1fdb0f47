/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Range names and nesting. A region is a range whose name, up to the first semicolon, matches one of the patterns;
 * an instance is one push/pop of it on one thread. A deeper push of the same name closes an instance that an
 * exception left open; other matches inside an open instance are ignored. Pure; a stack belongs to one thread.
 */
#ifndef PS_POLICY_REGION_H
#define PS_POLICY_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_PATTERNS_MAX    32
#define PS_REGION_NAME_MAX 128 /* bytes of a name that are looked at, the zero included */

struct ps_patterns {
    char text[1024]; /* the setting, commas replaced by zeros */
    const char *item[PS_PATTERNS_MAX];
    unsigned n;
};

/* Splits a comma-separated list; spaces around items are dropped. False when there are too many or it is too long. */
bool ps_patterns_init(struct ps_patterns *p, const char *list);
/* Copies the name up to the first semicolon (cut at PS_REGION_NAME_MAX); false when no pattern matches. */
bool ps_patterns_match(const struct ps_patterns *p, const char *range,
                       char name_p[PS_REGION_NAME_MAX]);

struct ps_region_stack {
    uint32_t depth;      /* ranges open on this thread, matching or not */
    uint32_t open_depth; /* depth of the open instance, 0 when none is */
    uint32_t open_name;  /* its name's number */
};

enum ps_region_act {
    PS_REGION_NONE,
    PS_REGION_OPEN,       /* an instance begins */
    PS_REGION_CLOSE,      /* the open instance ends */
    PS_REGION_CLOSE_OPEN, /* it ends and another begins */
};

/* name: number of a matching name, or 0 for a range that does not match. */
enum ps_region_act ps_region_stack_push(struct ps_region_stack *s, uint32_t name);
enum ps_region_act ps_region_stack_pop(struct ps_region_stack *s);

#endif
