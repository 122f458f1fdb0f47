/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stash kernels touch. The slots of a free list are plain memory (a stash must be ordered after the drop or
 * grow that gave the pages, and has as many at hand as its batch has pages); only its counters may be moved by two
 * kernels at once. Where there are host pages, a stash finds the device's pages by a counter that drop and grow
 * publish: that orders it behind them. Needs the big lock.
 */
#include "tools/simcuda/pagekernels.h"

#include <string.h>

#include "kernels/layout.h"
#include "tools/simcuda/core.h"
#include "tools/simcuda/fault.h"

enum pk_kind { PK_NONE, PK_STASH, PK_RESTORE, PK_DROP, PK_GROW, PK_CLEAN, PK_SHIFT };

static enum pk_kind kind_of(const struct sim_op *op)
{
    static const struct {
        const char *name;
        enum pk_kind kind;
        size_t n_params;
        size_t first_size;
    } rows[] = {
        {"ps_stash", PK_STASH, 1, sizeof(struct ps_batch)},
        {"ps_restore", PK_RESTORE, 1, sizeof(struct ps_batch)},
        {"ps_drop", PK_DROP, 1, sizeof(struct ps_batch)},
        {"ps_grow", PK_GROW, 3, sizeof(uint64_t)},
        {"ps_clean", PK_CLEAN, 1, sizeof(struct ps_batch)},
        {"ps_shift", PK_SHIFT, 1, sizeof(struct ps_shift)},
    };

    if (op->kind != SIM_OP_KERNEL) {
        return PK_NONE;
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct ps_sim_kernel *row = op->launch.row;

        if (strcmp(row->name, rows[i].name) == 0 && row->n_params == rows[i].n_params &&
            row->sizes[0] == rows[i].first_size) {
            return rows[i].kind;
        }
    }
    return PK_NONE;
}

bool sim_pk_known(const struct sim_op *op)
{
    return kind_of(op) != PK_NONE;
}

bool sim_pk_claims(const struct sim_op *op)
{
    const enum pk_kind kind = kind_of(op);

    return kind == PK_RESTORE || kind == PK_CLEAN;
}

static bool has_table(enum pk_kind kind)
{
    return kind == PK_STASH || kind == PK_RESTORE || kind == PK_DROP;
}

/* Copies device memory; false when it is not all there. */
static bool read_device(void *to, CUdeviceptr from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const size_t offset = (from + done) % SIM_PAGE;
        const size_t left = bytes - done;
        const size_t n = left < SIM_PAGE - offset ? left : SIM_PAGE - offset;
        uint64_t page;

        if (!sim_va_find(from + done, NULL, &page)) {
            return false;
        }
        memcpy((uint8_t *)to + done, sim_phys(page) + offset, n);
        done += n;
    }
    return true;
}

/* Where the count of an item's rows is, for a kernel that looks at it. */
static size_t rows_bytes(enum pk_kind kind, const struct ps_batch_item *item)
{
    const bool looks =
        kind == PK_STASH || (kind == PK_RESTORE && (item->rows_kind & PS_ROWS_OVERWRITE) != 0);

    if (item->rows == 0 || !looks) {
        return 0;
    }
    return (item->rows_kind & PS_ROWS_I32) != 0 ? sizeof(int32_t) : sizeof(int64_t);
}

/* What lay beyond the rows, where that is looked at. */
static CUdeviceptr outcome_of(const struct ps_batch *b, const struct ps_batch_item *item)
{
    return b->outcomes + item->outcome * sizeof(struct ps_row_outcome);
}

static size_t outcome_bytes(enum pk_kind kind, const struct ps_batch_item *item)
{
    const bool looks =
        kind == PK_STASH && item->rows != 0 && (item->rows_kind & PS_ROWS_TRUSTED) == 0;

    return looks ? sizeof(struct ps_row_outcome) : 0;
}

/* What a stash reads of an item: all of it, or the pages that begin within the rows. */
static uint64_t read_bytes(const struct ps_batch *b, const struct ps_batch_item *item)
{
    int64_t n = 0;
    int32_t narrow = 0;
    const bool is_narrow = (item->rows_kind & PS_ROWS_I32) != 0;

    if (item->rows == 0 || (item->rows_kind & PS_ROWS_TRUSTED) == 0 ||
        !(is_narrow ? read_device(&narrow, item->rows, sizeof(narrow))
                    : read_device(&n, item->rows, sizeof(n)))) {
        return item->bytes;
    }
    const uint64_t valid = ps_batch_item_valid(item, is_narrow ? narrow : n);
    const uint64_t whole = (valid + b->page_bytes - 1) / b->page_bytes * b->page_bytes;

    return whole < item->bytes ? whole : item->bytes;
}

static const struct ps_batch *batch_of(const struct sim_op *op)
{
    return op->launch.params[0];
}

static const struct ps_shift *shift_of(const struct sim_op *op)
{
    return op->launch.params[0];
}

/* Where a page of the pool is, if not on the host: a restore may be told to find the device's there as well. */
static CUdeviceptr page_address(const struct ps_batch *b, uint32_t page)
{
    return b->pool + (uint64_t)page * b->page_bytes;
}

#define N_LISTS 2

/* The lists it may move, 0 where there is none. A grow moves one. */
static CUdeviceptr list_address(const struct sim_op *op, int which)
{
    const enum pk_kind kind = kind_of(op);

    if (kind == PK_GROW) {
        return which == 0 ? *(const uint64_t *)op->launch.params[0] : 0;
    }
    if (kind == PK_STASH || kind == PK_DROP) {
        return which == 0 ? batch_of(op)->free_list : batch_of(op)->host_list;
    }
    return 0;
}

static bool read_list(CUdeviceptr at, struct ps_free_list *list)
{
    return at != 0 && read_device(list, at, sizeof(*list)) && list->n_slots > 0;
}

static CUdeviceptr slots_address(const struct ps_free_list *list)
{
    return (CUdeviceptr)(uintptr_t)list->slots;
}

static void declare_shift(const struct ps_shift *s)
{
    const uint64_t skipped = (uint64_t)s->first * s->page_bytes;
    const CUdeviceptr device = s->to_host != 0 ? s->from : s->to;

    sim_fault_declare(s->count, sizeof(uint64_t));
    sim_fault_declare(s->note, s->note != 0 ? sizeof(uint64_t) : 0);
    sim_fault_declare(s->list, s->list != 0 ? sizeof(struct ps_free_list) : 0);
    if (s->n_pages > s->first) {
        sim_fault_declare(device + skipped, (uint64_t)s->n_pages * s->page_bytes - skipped);
    }
}

/* The pool is mapped in pieces, one behind the other: declares them. Where that ends. */
static CUdeviceptr declare_pool(const struct ps_batch *b)
{
    const struct sim_mapping *piece;
    CUdeviceptr at = b->pool;

    while (sim_va_find(at, &piece, NULL)) {
        const CUdeviceptr end = piece->base + piece->bytes;

        sim_fault_declare(at, end - at);
        at = end;
    }
    return at;
}

/* Pages that are no part of that: those that a table, or a list, names. There is room for few. */
static void declare_page(const struct ps_batch *b, CUdeviceptr pool_end, uint32_t page)
{
    const CUdeviceptr at = page_address(b, page);
    const bool is_there = at >= b->pool && at < pool_end;

    if ((page & PS_PAGE_HOST) == 0 && !is_there && sim_va_find(at, NULL, NULL)) {
        sim_fault_declare(at, b->page_bytes);
    }
}

static void declare_pages(const struct sim_op *op, enum pk_kind kind)
{
    const struct ps_batch *b = batch_of(op);
    const bool moves = kind == PK_STASH || kind == PK_RESTORE;
    const CUdeviceptr pool_end = moves ? declare_pool(b) : b->pool;
    struct ps_free_list list;

    for (uint32_t i = 0; i < b->n_items && i < PS_BATCH_MAX && kind == PK_RESTORE; i++) {
        for (uint64_t p = 0; p < ps_batch_item_pages(b, &b->items[i]); p++) {
            struct ps_page_entry entry;

            if (read_device(&entry, b->items[i].table + p * sizeof(entry), sizeof(entry))) {
                declare_page(b, pool_end, entry.page);
            }
        }
    }
    if (kind == PK_STASH && read_list(b->free_list, &list)) {
        for (uint64_t at = list.head; at < list.tail && at - list.head < list.n_slots; at++) {
            uint32_t page;

            if (read_device(&page, slots_address(&list) + (at & (list.n_slots - 1)) * sizeof(page),
                            sizeof(page))) {
                declare_page(b, pool_end, page);
            }
        }
    }
}

void sim_pk_declare(const struct sim_op *op)
{
    const enum pk_kind kind = kind_of(op);
    struct ps_free_list list;

    for (int i = 0; i < N_LISTS; i++) {
        const CUdeviceptr at = list_address(op, i);

        if (read_list(at, &list)) {
            sim_fault_declare(at, sizeof(list));
            sim_fault_declare(slots_address(&list), 2 * list.n_slots * sizeof(uint32_t));
        }
    }
    if (kind == PK_GROW) {
        return;
    }
    if (kind == PK_SHIFT) {
        declare_shift(shift_of(op));
        return;
    }
    const struct ps_batch *b = batch_of(op);

    for (uint32_t i = 0; i < b->n_items && i < PS_BATCH_MAX; i++) {
        const struct ps_batch_item *item = &b->items[i];

        if (has_table(kind)) {
            sim_fault_declare(item->table,
                              ps_batch_item_pages(b, item) * sizeof(struct ps_page_entry));
        }
        if (kind != PK_DROP) {
            sim_fault_declare(item->data, item->bytes);
            sim_fault_declare(item->flags, item->flags != 0 ? ps_batch_item_pages(b, item) : 0);
        }
        if (kind == PK_STASH) {
            sim_fault_declare(item->counts, 2 * sizeof(uint64_t));
        }
        sim_fault_declare(item->rows, rows_bytes(kind, item));
        sim_fault_declare(outcome_of(b, item), outcome_bytes(kind, item));
    }
    declare_pages(op, kind);

    const struct sim_mapping *piece;

    if (b->host_list != 0 && sim_va_find(b->host_pieces, &piece, NULL)) {
        sim_fault_declare(b->host_pieces, piece->base + piece->bytes - b->host_pieces);
    }
}

size_t sim_pk_host_words(const struct sim_op *op, uint64_t *fields[SIM_PK_WORDS_MAX])
{
    struct ps_batch *b = op->launch.params[0];
    size_t n = 0;

    _Static_assert(PS_BATCH_MAX <= SIM_PK_WORDS_MAX, "a word an item");
    while (kind_of(op) == PK_STASH && n < b->n_items && n < PS_BATCH_MAX) {
        fields[n] = &b->items[n].ledger;
        n++;
    }
    return n;
}

static void tell_page(struct sim_op *op, uint32_t page, uint64_t bytes, bool write,
                      sim_pk_tell_fn tell)
{
    const struct ps_batch *b = batch_of(op);
    uint64_t piece;

    if ((page & PS_PAGE_HOST) == 0) {
        const CUdeviceptr at = page_address(b, page);
        const bool on_device = sim_va_find(at, NULL, NULL);

        tell(op, at, bytes, write ? SIM_PK_WRITE : on_device ? SIM_PK_READ : SIM_PK_HOST_READ);
        return;
    }
    const uint64_t at = page & ~PS_PAGE_HOST;
    const CUdeviceptr entry = b->host_pieces + (at >> b->host_shift) * sizeof(piece);

    tell(op, entry, sizeof(piece), SIM_PK_READ);
    if (read_device(&piece, entry, sizeof(piece))) {
        tell(op, piece + (at & ((UINT64_C(1) << b->host_shift) - 1)) * b->page_bytes, bytes,
             write ? SIM_PK_HOST_WRITE : SIM_PK_HOST_READ);
    }
}

/* The pages that the tables of a restore, or of a stash that is over, name. */
static void tell_pages(struct sim_op *op, const struct ps_batch *b,
                       const struct ps_batch_item *item, bool write, sim_pk_tell_fn tell)
{
    for (uint64_t p = 0; p < ps_batch_item_pages(b, item); p++) {
        struct ps_page_entry entry;

        if (read_device(&entry, item->table + p * sizeof(entry), sizeof(entry)) &&
            entry.page != PS_PAGE_UNIFORM && entry.page != PS_PAGE_DEAD) {
            const uint64_t left = item->bytes - p * b->page_bytes;

            tell_page(op, entry.page, left < b->page_bytes ? left : b->page_bytes, write, tell);
        }
    }
}

static void tell_items(struct sim_op *op, enum pk_kind kind, sim_pk_tell_fn tell)
{
    const struct ps_batch *b = batch_of(op);

    for (uint32_t i = 0; i < b->n_items && i < PS_BATCH_MAX; i++) {
        const struct ps_batch_item *item = &b->items[i];
        const uint64_t n_pages = ps_batch_item_pages(b, item);

        if (has_table(kind)) {
            tell(op, item->table, n_pages * sizeof(struct ps_page_entry),
                 kind == PK_STASH ? SIM_PK_WRITE : SIM_PK_READ);
        }
        if (kind == PK_STASH) {
            tell(op, item->counts, 2 * sizeof(uint64_t), SIM_PK_WRITE);
        }
        if (kind != PK_DROP) {
            /* A clean stands for a fill of all of it, whatever the flags are this time. */
            const bool stash = kind == PK_STASH;

            tell(op, item->rows, rows_bytes(kind, item), SIM_PK_READ);
            tell(op, outcome_of(b, item), outcome_bytes(kind, item), SIM_PK_WRITE);
            tell(op, item->data, stash ? read_bytes(b, item) : item->bytes,
                 stash ? SIM_PK_READ : SIM_PK_WRITE);
            tell(op, item->flags, item->flags != 0 ? n_pages : 0, SIM_PK_WRITE);
        }
        if (kind == PK_RESTORE) {
            tell_pages(op, b, item, false, tell);
        }
    }
}

/* A stash without host pages owns the slots that it has at hand, and those where it gathers what it does not need. */
static bool at_hand(const struct sim_op *op)
{
    return kind_of(op) == PK_STASH && batch_of(op)->host_list == 0;
}

static void tell_at_hand(struct sim_op *op, const struct ps_free_list *list, sim_pk_tell_fn tell)
{
    const struct ps_batch *b = batch_of(op);
    uint64_t n = 0;

    for (uint32_t i = 0; i < b->n_items && i < PS_BATCH_MAX; i++) {
        n += ps_batch_item_pages(b, &b->items[i]);
    }
    for (uint64_t i = 0; i < n && i < list->n_slots; i++) {
        const uint64_t at = (list->head + i) & (list->n_slots - 1);

        tell(op, slots_address(list) + at * sizeof(uint32_t), sizeof(uint32_t), SIM_PK_WRITE);
        tell(op, slots_address(list) + (list->n_slots + i) * sizeof(uint32_t), sizeof(uint32_t),
             SIM_PK_WRITE);
    }
}

/* The head moves when all is stored. */
static void tell_stored(struct sim_op *op, uint64_t *head, sim_pk_tell_fn tell)
{
    const struct ps_batch *b = batch_of(op);
    struct ps_free_list list;

    if (!read_list(list_address(op, 0), &list) || list.head == *head) {
        return;
    }
    *head = list.head;
    for (uint32_t i = 0; i < b->n_items && i < PS_BATCH_MAX; i++) {
        tell_pages(op, b, &b->items[i], true, tell);
    }
}

static void tell_shift(struct sim_op *op, sim_pk_tell_fn tell)
{
    const struct ps_shift *s = shift_of(op);
    const uint64_t skipped = (uint64_t)s->first * s->page_bytes;
    uint64_t n = 0;

    tell(op, s->count, sizeof(n), SIM_PK_READ);
    if (s->note != 0) {
        tell(op, s->note, sizeof(n), SIM_PK_WRITE);
    }
    if (s->list != 0) {
        tell(op, s->list, sizeof(struct ps_free_list), SIM_PK_WRITE);
    }
    if (!read_device(&n, s->count, sizeof(n)) || n <= s->first || s->n_pages <= s->first) {
        return;
    }
    const uint64_t bytes = (n < s->n_pages ? n : s->n_pages) * s->page_bytes - skipped;

    tell(op, s->from + skipped, bytes, s->to_host != 0 ? SIM_PK_READ : SIM_PK_HOST_READ);
    tell(op, s->to + skipped, bytes, s->to_host != 0 ? SIM_PK_HOST_WRITE : SIM_PK_WRITE);
}

void sim_pk_before(struct sim_op *op, struct sim_pk_state *state, sim_pk_tell_fn tell)
{
    const enum pk_kind kind = kind_of(op);
    struct ps_free_list list = {0};

    if (state->begun) {
        return;
    }
    state->begun = true;
    for (int i = 0; i < N_LISTS; i++) {
        const CUdeviceptr at = list_address(op, i);

        if (at != 0) {
            tell(op, at, sizeof(list), SIM_PK_LIST);
            state->head[i] = !read_list(at, &list) ? 0 : kind == PK_STASH ? list.head : list.tail;
        }
    }
    if (at_hand(op) && read_list(list_address(op, 0), &list)) {
        tell_at_hand(op, &list, tell);
    }
    if (kind == PK_SHIFT) {
        tell_shift(op, tell);
    } else if (kind != PK_GROW) {
        tell_items(op, kind, tell);
    }
}

static enum sim_pk_mode slot_mode(const struct sim_op *op, int which)
{
    if (kind_of(op) != PK_STASH) {
        return SIM_PK_GIVE;
    }
    return which == 0 && batch_of(op)->host_list != 0 ? SIM_PK_CLAIM : SIM_PK_READ;
}

static void tell_slots(struct sim_op *op, int which, uint64_t *head, sim_pk_tell_fn tell)
{
    const CUdeviceptr list_at = list_address(op, which);
    const enum pk_kind kind = kind_of(op);
    struct ps_free_list list;

    if (!read_list(list_at, &list)) {
        return;
    }
    uint64_t end = kind == PK_STASH ? list.head : list.tail;

    if (end - *head > list.n_slots) {
        end = *head; /* not a list */
    }
    for (; *head < end; (*head)++) {
        const CUdeviceptr slot =
            slots_address(&list) + (*head & (list.n_slots - 1)) * sizeof(uint32_t);
        uint32_t page;

        tell(op, slot, sizeof(page), slot_mode(op, which));
        if (kind == PK_STASH && read_device(&page, slot, sizeof(page))) {
            tell_page(op, page, batch_of(op)->page_bytes, true, tell);
        }
    }
}

/* Slots and pages that the step took from the lists (stash) or slots it gave to them (drop, grow). */
void sim_pk_after(struct sim_op *op, struct sim_pk_state *state, sim_pk_tell_fn tell)
{
    if (at_hand(op)) {
        tell_stored(op, &state->head[0], tell);
        return;
    }
    for (int i = 0; i < N_LISTS; i++) {
        tell_slots(op, i, &state->head[i], tell);
    }
}
