/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Region patterns, range names and nesting. Input: two lines, a setting and a range's name; then a byte a push (the
 * name's number, 0: not a region) or a pop (above 0xbf). Both lines are also read for what they say of rows. A model
 * that keeps every open range in a list says when instances begin and end. One thread.
 */
#include <fnmatch.h>

#include "policy/range_name.h"
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

static void put_counter(char *text, size_t size, const char *key, struct ps_row_counter c)
{
    const size_t n = strlen(text);

    if (c.address != 0) {
        snprintf(text + n, size - n, ";%s=0x%llX%s", key, (unsigned long long)c.address,
                 c.narrow ? ":i32" : "");
    }
}

/* What was read is read again from what it says; what is wrong lies within the name, and nothing of it counts. */
static void check_rows(const char *range)
{
    struct ps_range_rows rows;
    struct ps_range_rows again;
    const char *wrong = NULL;
    char text[256] = "x";

    if (!ps_range_rows_read(range, &rows, &wrong)) {
        fz_require(wrong > range && wrong <= range + strlen(range) && wrong[-1] == ';', "'%s'",
                   range);
        fz_require(rows.tokens.address == 0 && rows.need.address == 0 && rows.capacity == 0 &&
                       rows.balanced == 0 && !rows.all,
                   "'%s'", range);
        return;
    }
    put_counter(text, sizeof(text), "tokens", rows.tokens);
    put_counter(text, sizeof(text), "need", rows.need);
    const size_t n = strlen(text);

    if (rows.capacity != 0) {
        snprintf(text + n, sizeof(text) - n, ";capacity=%u", rows.capacity);
    }
    const size_t n2 = strlen(text);

    if (rows.balanced != 0) {
        snprintf(text + n2, sizeof(text) - n2, ";balanced=%u", rows.balanced);
    }
    const size_t n3 = strlen(text);

    snprintf(text + n3, sizeof(text) - n3, "%s", rows.all ? ";rows=all" : "");
    fz_require(ps_range_rows_read(text, &again, &wrong), "'%s' of '%s'", text, range);
    fz_require(again.tokens.address == rows.tokens.address &&
                   again.need.address == rows.need.address &&
                   again.tokens.narrow == rows.tokens.narrow &&
                   again.need.narrow == rows.need.narrow && again.capacity == rows.capacity &&
                   again.balanced == rows.balanced && again.all == rows.all,
               "'%s' of '%s'", text, range);
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
    check_rows(list);
    check_rows(range);
    check_nesting(&in);
    free(list);
    free(range);
    return 0;
}
