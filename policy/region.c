/* SPDX-License-Identifier: Apache-2.0 */
/* Range names and nesting; see region.h. */
#include "policy/region.h"

#include <fnmatch.h>
#include <string.h>

static char *trim(char *s)
{
    s += strspn(s, " \t");
    size_t n = strlen(s);
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t')) {
        s[--n] = '\0';
    }
    return s;
}

bool ps_patterns_init(struct ps_patterns *p, const char *list)
{
    const size_t n = strlen(list);
    p->n = 0;
    if (n >= sizeof(p->text)) {
        return false;
    }
    memcpy(p->text, list, n + 1);
    char *rest = p->text;
    for (;;) {
        char *comma = strchr(rest, ',');
        if (comma != NULL) {
            *comma = '\0';
        }
        char *item = trim(rest);
        if (*item != '\0') {
            if (p->n == PS_PATTERNS_MAX) {
                return false;
            }
            p->item[p->n++] = item;
        }
        if (comma == NULL) {
            return true;
        }
        rest = comma + 1;
    }
}

bool ps_patterns_match(const struct ps_patterns *p, const char *range,
                       char name_p[PS_REGION_NAME_MAX])
{
    size_t n = 0;
    while (n < PS_REGION_NAME_MAX - 1 && range[n] != '\0' && range[n] != ';') {
        name_p[n] = range[n];
        n++;
    }
    name_p[n] = '\0';
    for (unsigned i = 0; i < p->n; i++) {
        if (fnmatch(p->item[i], name_p, 0) == 0) {
            return true;
        }
    }
    return false;
}

enum ps_region_act ps_region_stack_push(struct ps_region_stack *s, uint32_t name)
{
    s->depth++;
    if (name == 0) {
        return PS_REGION_NONE;
    }
    if (s->open_depth == 0) {
        s->open_depth = s->depth;
        s->open_name = name;
        return PS_REGION_OPEN;
    }
    if (s->open_name != name) {
        return PS_REGION_NONE;
    }
    s->open_depth = s->depth;
    return PS_REGION_CLOSE_OPEN;
}

enum ps_region_act ps_region_stack_pop(struct ps_region_stack *s)
{
    if (s->depth == 0) {
        return PS_REGION_NONE;
    }
    const bool closes = s->open_depth == s->depth;
    s->depth--;
    if (!closes) {
        return PS_REGION_NONE;
    }
    s->open_depth = 0;
    return PS_REGION_CLOSE;
}
