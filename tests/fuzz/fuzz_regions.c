/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Region patterns, range names and nesting. Input: two lines, a setting and a range's name; then a byte a push (the
 * name's number, 0: not a region) or a pop (above 0xbf). A model that keeps every open range in a list says when
 * instances begin and end. One thread.
 */
#include <fnmatch.h>

#include "policy/region.h"
#include "tests/fuzz/fuzz.h"

#define RANGES_MAX 512

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    return 0;
}

/* The n-th item of a comma-separated list without the blanks around it; items of blanks do not count. */
static bool item_of(const char *list, unsigned n, char item[1024])
{
    for (const char *at = list;; at++) {
        const size_t whole = strcspn(at, ",");
        const size_t skip = strspn(at, " \t");
        size_t size = whole;

        if (skip < whole) {
            while (at[size - 1] == ' ' || at[size - 1] == '\t') {
                size--;
            }
            if (n-- == 0) {
                memcpy(item, at + skip, size - skip);
                item[size - skip] = '\0';
                return true;
            }
        }
        at += whole;
        if (*at == '\0') {
            return false;
        }
    }
}

static void check_patterns(const char *list, const char *range)
{
    static struct ps_patterns p;
    char name[PS_REGION_NAME_MAX];
    char want[PS_REGION_NAME_MAX];
    char item[1024];
    unsigned n = 0;
    bool matches = false;
    const bool fits = strlen(list) < sizeof(item);

    snprintf(want, sizeof(want), "%.*s", (int)strcspn(range, ";"), range);
    while (fits && item_of(list, n, item)) {
        matches = matches || (n < PS_PATTERNS_MAX && fnmatch(item, want, 0) == 0);
        n++;
    }
    fz_require(ps_patterns_init(&p, list) == (fits && n <= PS_PATTERNS_MAX), "'%s'", list);
    if (!fits || n > PS_PATTERNS_MAX) {
        return;
    }
    fz_require(p.n == n, "%u patterns in '%s', not %u", p.n, list, n);
    fz_require(ps_patterns_match(&p, range, name) == matches, "'%s' and '%s'", list, range);
    fz_require(!matches || strcmp(name, want) == 0, "'%s', not '%s'", name, want);
}

struct model {
    uint32_t name[RANGES_MAX]; /* of each open range */
    unsigned depth;
    int instance; /* index of the range that the instance belongs to, -1: none is open */
};

static enum ps_region_act model_push(struct model *m, uint32_t name)
{
    const int here = (int)m->depth;
    const int open = m->instance;

    m->name[m->depth++] = name;
    if (name == 0 || (open >= 0 && m->name[open] != name)) {
        return PS_REGION_NONE;
    }
    m->instance = here;
    return open < 0 ? PS_REGION_OPEN : PS_REGION_CLOSE_OPEN;
}

static enum ps_region_act model_pop(struct model *m)
{
    if (m->depth == 0) {
        return PS_REGION_NONE;
    }
    m->depth--;
    if (m->instance != (int)m->depth) {
        return PS_REGION_NONE;
    }
    m->instance = -1;
    return PS_REGION_CLOSE;
}

static void check_nesting(struct fz_input *in)
{
    struct ps_region_stack stack = {0};
    static struct model m;

    m.depth = 0;
    m.instance = -1;
    while (in->left > 0) {
        const uint8_t op = fz_u8(in);
        const bool pop = op >= 0xc0;

        if (!pop && m.depth == RANGES_MAX) {
            return;
        }
        const enum ps_region_act want = pop ? model_pop(&m) : model_push(&m, op % 4);
        const enum ps_region_act found =
            pop ? ps_region_stack_pop(&stack) : ps_region_stack_push(&stack, op % 4);

        fz_require(found == want, "%s at depth %u: %d, not %d", pop ? "pop" : "push", m.depth,
                   (int)found, (int)want);
        fz_require(stack.depth == m.depth && stack.open_depth == (unsigned)(m.instance + 1),
                   "depth %u, open %u", stack.depth, stack.open_depth);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fz_input in = {data, size};
    char *list = fz_line(&in);
    char *range = fz_line(&in);

    /* fnmatch takes time that is exponential in the stars of one pattern. */
    unsigned n_stars = 0;

    for (const char *p = list; *p != '\0'; p++) {
        n_stars += *p == '*';
    }
    if (n_stars <= 8) {
        check_patterns(list, range);
    }
    check_nesting(&in);
    free(list);
    free(range);
    return 0;
}
