/* SPDX-License-Identifier: Apache-2.0 */
/* Reading traces of both forms; see trace.h. Whatever the bytes are, reading ends, and says at which line. */
#include "policy/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS_OLD 6
#define COLUMNS     7

struct span {
    const char *at;
    size_t n;
};

/* Numbers of the file to indices; open addressing, 0: empty, else index + 1. */
struct table {
    uint32_t *slots;
    uint32_t mask, n;
};

struct reading {
    struct ps_trace *t;
    uint32_t line;
    struct table ids, texts;
    uint32_t events_room, allocs_room, ids_room, texts_room;
};

/* ---- failing ---- */

static bool fail(struct reading *r, const char *what, struct span near)
{
    char text[48];
    size_t n = 0;

    for (; n < near.n && n < sizeof(text) - 1; n++) {
        const char c = near.at[n];

        if (c >= ' ' && c < 0x7f) {
            text[n] = c;
        } else {
            text[n] = '?';
        }
    }
    text[n] = '\0';
    if (r->t->error[0] == '\0') {
        snprintf(r->t->error, sizeof(r->t->error), n != 0 ? "line %u: %s '%s'" : "line %u: %s",
                 r->line, what, text);
    }
    return false;
}

static const struct span nothing = {"", 0};

static bool no_memory(struct reading *r)
{
    return fail(r, "no memory", nothing);
}

/* ---- growing ---- */

/* Room for `more` items behind n; array_p points to the array. */
static bool grow(struct reading *r, void *array_p, size_t item_bytes, uint64_t n, uint32_t *room)
{
    void *array;

    if (n <= *room) {
        return true;
    }
    uint64_t more = *room == 0 ? 1024 : *room;

    while (more < n) {
        more *= 2;
    }
    memcpy(&array, array_p, sizeof(array));
    array = more < UINT32_MAX ? realloc(array, more * item_bytes) : NULL;
    if (array == NULL) {
        return no_memory(r);
    }
    memcpy(array_p, &array, sizeof(array));
    *room = (uint32_t)more;
    return true;
}

typedef uint32_t (*hash_fn)(const struct reading *r, uint32_t index);

/* Makes the table twice as large when it is half full. */
static bool grow_table(struct reading *r, struct table *table, hash_fn hash)
{
    if (table->slots != NULL && table->n < table->mask / 2) {
        return true;
    }
    const uint32_t mask = table->slots == NULL ? 1023 : table->mask * 2 + 1;
    uint32_t *slots = calloc((size_t)mask + 1, sizeof(*slots));

    if (slots == NULL) {
        return no_memory(r);
    }
    for (uint32_t i = 0; table->slots != NULL && i <= table->mask; i++) {
        if (table->slots[i] != 0) {
            uint32_t at = hash(r, table->slots[i] - 1) & mask;

            while (slots[at] != 0) {
                at = (at + 1) & mask;
            }
            slots[at] = table->slots[i];
        }
    }
    free(table->slots);
    table->slots = slots;
    table->mask = mask;
    return true;
}

/* ---- allocations by their number ---- */

static uint32_t hash_number(uint32_t id)
{
    const uint64_t h = id * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(h >> 32);
}

static uint32_t hash_alloc(const struct reading *r, uint32_t index)
{
    return hash_number(r->t->allocs[index].id);
}

/* The slot of that number, or the empty one where it would be. */
static uint32_t *find_alloc(struct reading *r, uint32_t id)
{
    uint32_t at = hash_number(id) & r->ids.mask;

    while (r->ids.slots[at] != 0 && r->t->allocs[r->ids.slots[at] - 1].id != id) {
        at = (at + 1) & r->ids.mask;
    }
    return &r->ids.slots[at];
}

static bool add_alloc(struct reading *r, const struct ps_trace_alloc *alloc, uint32_t *index_p)
{
    struct ps_trace *t = r->t;

    if (!grow(r, &t->allocs, sizeof(*t->allocs), (uint64_t)t->n_allocs + 1, &r->allocs_room) ||
        !grow_table(r, &r->ids, hash_alloc)) {
        return false;
    }
    uint32_t *slot = find_alloc(r, alloc->id);

    if (*slot != 0) {
        return fail(r, "this number was allocated before", nothing);
    }
    t->allocs[t->n_allocs] = *alloc;
    *slot = ++t->n_allocs;
    r->ids.n++;
    *index_p = t->n_allocs - 1;
    return true;
}

/* ---- names, each once ---- */

static uint32_t hash_bytes(const char *text, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < n; i++) {
        h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    }
    return (uint32_t)(h >> 32);
}

static uint32_t hash_text(const struct reading *r, uint32_t at)
{
    return hash_bytes(r->t->texts + at, strlen(r->t->texts + at));
}

static bool intern(struct reading *r, struct span text, uint32_t *at_p)
{
    struct ps_trace *t = r->t;

    text.n = strnlen(text.at, text.n);
    if (!grow_table(r, &r->texts, hash_text) ||
        !grow(r, &t->texts, 1, t->n_texts + (uint64_t)text.n + 1, &r->texts_room)) {
        return false;
    }
    uint32_t at = hash_bytes(text.at, text.n) & r->texts.mask;

    for (; r->texts.slots[at] != 0; at = (at + 1) & r->texts.mask) {
        const char *known = t->texts + r->texts.slots[at] - 1;

        if (strlen(known) == text.n && memcmp(known, text.at, text.n) == 0) {
            *at_p = r->texts.slots[at] - 1;
            return true;
        }
    }
    memcpy(t->texts + t->n_texts, text.at, text.n);
    t->texts[t->n_texts + text.n] = '\0';
    *at_p = t->n_texts;
    r->texts.slots[at] = t->n_texts + 1;
    r->texts.n++;
    t->n_texts += (uint32_t)text.n + 1;
    return true;
}

/* ---- columns ---- */

static bool is(struct span s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.at, text, s.n) == 0;
}

static bool number(struct span s, uint64_t *value_p)
{
    uint64_t value = 0;

    for (size_t i = 0; i < s.n; i++) {
        const unsigned digit = (unsigned)(unsigned char)s.at[i] - '0';

        if (digit > 9 || value > (UINT64_MAX - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    *value_p = value;
    return s.n != 0;
}

static uint32_t split(struct span line, struct span *column)
{
    uint32_t n = 0;

    for (;;) {
        const char *tab = line.n == 0 ? NULL : memchr(line.at, '\t', line.n);
        const size_t length = tab == NULL ? line.n : (size_t)(tab - line.at);

        if (n == COLUMNS) {
            return COLUMNS + 1;
        }
        column[n++] = (struct span){line.at, length};
        if (tab == NULL) {
            return n;
        }
        line.at = tab + 1;
        line.n -= length + 1;
    }
}

static const char *const kinds[] = {
    [PS_TRACE_CONTEXT] = "context", [PS_TRACE_PUSH] = "push", [PS_TRACE_POP] = "pop",
    [PS_TRACE_ALLOC] = "alloc",     [PS_TRACE_FREE] = "free", [PS_TRACE_LAUNCH] = "launch",
    [PS_TRACE_COPY] = "copy",       [PS_TRACE_FILL] = "fill", [PS_TRACE_VALID] = "valid",
    [PS_TRACE_SMALL] = "small",     [PS_TRACE_CUT] = "cut",   [PS_TRACE_END] = "end",
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* "tensor 3", "async", "sync": what an allocation is. Of the old form all are in a region. */
static void describe(struct reading *r, struct span detail, struct ps_trace_alloc *alloc)
{
    const char *space = detail.n == 0 ? NULL : memchr(detail.at, ' ', detail.n);
    const size_t n = space == NULL ? detail.n : (size_t)(space - detail.at);
    const struct span word = {detail.at, n};
    uint64_t ordinal;

    alloc->ordered = r->t->old || is(word, "tensor") || is(word, "async") || is(word, "pool");
    alloc->ordinal = PS_TRACE_NONE;
    if (!r->t->old && space != NULL &&
        number((struct span){space + 1, detail.n - n - 1}, &ordinal) && ordinal < PS_TRACE_NONE) {
        alloc->ordinal = (uint32_t)ordinal;
    }
}

static bool add_id(struct reading *r, struct ps_trace_event *e, struct span text)
{
    struct ps_trace *t = r->t;
    uint64_t id;

    if (!number(text, &id) || id >= PS_TRACE_NONE) {
        return fail(r, "not a tensor's number:", text);
    }
    if (r->ids.slots == NULL || *find_alloc(r, (uint32_t)id) == 0) {
        return fail(r, "never allocated:", text);
    }
    if (!grow(r, &t->ids, sizeof(*t->ids), (uint64_t)t->n_ids + 1, &r->ids_room)) {
        return false;
    }
    t->ids[t->n_ids++] = *find_alloc(r, (uint32_t)id) - 1;
    e->n_ids++;
    return true;
}

static bool add_ids(struct reading *r, struct ps_trace_event *e, struct span list)
{
    while (!is(list, "-")) {
        const char *comma = list.n == 0 ? NULL : memchr(list.at, ',', list.n);
        const size_t n = comma == NULL ? list.n : (size_t)(comma - list.at);

        if (!add_id(r, e, (struct span){list.at, n})) {
            return false;
        }
        if (comma == NULL) {
            break;
        }
        list.at = comma + 1;
        list.n -= n + 1;
    }
    return true;
}

static bool read_alloc(struct reading *r, struct ps_trace_event *e, struct span ids,
                       struct span detail)
{
    struct ps_trace_alloc alloc = {.live = true, .bytes = e->bytes};
    uint64_t id;
    uint32_t index;

    if (!number(ids, &id) || id >= PS_TRACE_NONE) {
        return fail(r, "not an allocation's number:", ids);
    }
    alloc.id = (uint32_t)id;
    describe(r, detail, &alloc);
    return add_alloc(r, &alloc, &index) && add_id(r, e, ids);
}

/* What each kind of event must have. */
static bool read_rest(struct reading *r, struct ps_trace_event *e, const struct span *ids)
{
    const struct span bytes = ids[1], detail = ids[2];
    const bool sized = number(bytes, &e->bytes);

    if (!sized && (!is(bytes, "-") || e->kind == PS_TRACE_ALLOC || e->kind == PS_TRACE_VALID ||
                   e->kind == PS_TRACE_SMALL || e->kind == PS_TRACE_CONTEXT)) {
        return fail(r, "not a number of bytes:", bytes);
    }
    if (e->bytes > (UINT64_C(1) << 50) && e->kind != PS_TRACE_CONTEXT) {
        return fail(r, "more bytes than there are:", bytes);
    }
    switch ((enum ps_trace_kind)e->kind) {
    case PS_TRACE_PUSH:
        return intern(r, detail, &e->text);
    case PS_TRACE_ALLOC:
        return read_alloc(r, e, ids[0], detail);
    case PS_TRACE_FREE:
    case PS_TRACE_VALID:
        if (!add_id(r, e, ids[0])) {
            return false;
        }
        if (e->kind == PS_TRACE_FREE) {
            bool *live = &r->t->allocs[r->t->ids[e->first]].live;

            if (!*live) {
                return fail(r, "freed before:", ids[0]);
            }
            *live = false;
        }
        if (e->kind == PS_TRACE_VALID) {
            r->t->allocs[r->t->ids[e->first]].told = true;
            r->t->n_valid++;
        }
        return true;
    case PS_TRACE_LAUNCH:
    case PS_TRACE_COPY:
    case PS_TRACE_FILL:
        return add_ids(r, e, ids[0]);
    case PS_TRACE_CUT:
        r->t->cut = true;
        return true;
    case PS_TRACE_CONTEXT:
    case PS_TRACE_POP:
    case PS_TRACE_SMALL:
    case PS_TRACE_END:
    default:
        return true;
    }
}

static bool read_event(struct reading *r, struct span line)
{
    struct ps_trace *t = r->t;
    const uint32_t columns = t->old ? COLUMNS_OLD : COLUMNS;
    struct span column[COLUMNS];
    struct ps_trace_event e = {.first = t->n_ids, .text = 0};
    uint64_t thread, first;

    if (split(line, column) != columns) {
        return fail(r, t->old ? "not six columns" : "not seven columns", nothing);
    }
    if (!number(column[0], &first)) {
        return fail(r, "not a number:", column[0]);
    }
    while (e.kind < N_KINDS && !is(column[1], kinds[e.kind])) {
        e.kind++;
    }
    if (e.kind == N_KINDS) {
        return fail(r, "unknown event", column[1]);
    }
    if (!number(column[2], &thread) || thread >= PS_TRACE_THREADS_MAX) {
        return fail(r, "not a thread's number:", column[2]);
    }
    e.time_ns = t->old ? 0 : first;
    e.thread = (uint16_t)thread;
    t->n_threads = thread >= t->n_threads ? (uint32_t)thread + 1 : t->n_threads;
    if (!read_rest(r, &e, &column[columns - 3]) ||
        !grow(r, &t->events, sizeof(*t->events), (uint64_t)t->n_events + 1, &r->events_room)) {
        return false;
    }
    t->events[t->n_events++] = e;
    return true;
}

/* ---- the head ---- */

static void set_text(char *to, size_t size, struct span value)
{
    const size_t n = is(value, "-") ? 0 : strnlen(value.at, value.n);

    snprintf(to, size, "%.*s", (int)(n < size ? n : size - 1), value.at);
}

static bool read_setting(struct reading *r, struct span line)
{
    const char *tab = memchr(line.at, '\t', line.n);

    if (tab == NULL || r->t->old) {
        return true; /* a comment */
    }
    const struct span name = {line.at, (size_t)(tab - line.at)};
    const struct span value = {tab + 1, line.n - name.n - 1};

    if (is(name, "#min_bytes") && !number(value, &r->t->min_bytes)) {
        return fail(r, "not a number of bytes:", value);
    }
    if (is(name, "#regions")) {
        set_text(r->t->regions, sizeof(r->t->regions), value);
    } else if (is(name, "#step")) {
        set_text(r->t->step, sizeof(r->t->step), value);
    }
    return true;
}

static bool read_version(struct reading *r, struct span line)
{
    const size_t n = strlen(PS_TRACE_MAGIC);
    uint64_t version;

    r->t->old = line.n < n || memcmp(line.at, PS_TRACE_MAGIC, n) != 0;
    if (r->t->old) {
        return true;
    }
    if (line.n < n + 2 || !number((struct span){line.at + n + 1, line.n - n - 1}, &version)) {
        return fail(r, "no version", nothing);
    }
    return version == PS_TRACE_VERSION ||
           fail(r, "this version is not known:", (struct span){line.at + n + 1, line.n - n - 1});
}

static bool read_line(struct reading *r, struct span line)
{
    if (line.n > 0 && line.at[line.n - 1] == '\r') {
        line.n--;
    }
    if (r->line == 1 && !read_version(r, line)) {
        return false;
    }
    if (line.n == 0) {
        return true;
    }
    return line.at[0] == '#' ? read_setting(r, line) : read_event(r, line);
}

bool ps_trace_read(struct ps_trace *t, const char *data, size_t size)
{
    struct reading r = {.t = t};
    const char *end = data + size;
    bool ok = true;

    *t = (struct ps_trace){0};
    while (ok && data < end) {
        const char *newline = memchr(data, '\n', (size_t)(end - data));

        r.line++;
        if (newline == NULL && !t->old && r.line > 1) {
            t->cut = true; /* its process was killed */
            break;
        }
        const char *to = newline == NULL ? end : newline;

        ok = read_line(&r, (struct span){data, (size_t)(to - data)});
        data = newline == NULL ? end : newline + 1;
    }
    if (ok && t->n_events == 0) {
        ok = fail(&r, "no events", nothing);
    }
    free(r.ids.slots);
    free(r.texts.slots);
    return ok;
}

void ps_trace_fini(struct ps_trace *t)
{
    free(t->events);
    free(t->allocs);
    free(t->ids);
    free(t->texts);
    t->events = NULL;
    t->allocs = NULL;
    t->ids = NULL;
    t->texts = NULL;
    t->n_events = t->n_allocs = t->n_ids = t->n_texts = 0;
}
