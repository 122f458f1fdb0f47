/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a range says of its rows, behind its name:
 *
 *   name;tokens=0xADDR[:i32|:i64];capacity=ROWS;need=0xADDR[:i32|:i64];balanced=ROWS;rows=all
 *
 * in any order; other keys are ignored. `tokens` is the device address of a counter: so many rows of each tensor that
 * is made in the range hold data when it is popped, packed at the front, of the `capacity` that it has room for. `need`
 * is the address of another, of the rows that were to be put there. A counter is an int64_t unless it says i32.
 * `balanced` is what there would be if all ranks got the same. `rows=all` vouches that every tensor of the range keeps
 * to the count; without it each has to be seen to. A tensor of S bytes, S a multiple of the capacity (or of a 32nd of
 * it: scale factors), holds ceil(S * tokens / capacity) bytes of data.
 *
 * Pure, no state, any thread.
 */
#ifndef PS_POLICY_RANGE_NAME_H
#define PS_POLICY_RANGE_NAME_H

#include <stdbool.h>
#include <stdint.h>

struct ps_row_counter {
    uint64_t address; /* of the device, aligned to the counter's size; 0: not given */
    bool narrow;      /* 4 bytes instead of 8 */
};

struct ps_range_rows {
    struct ps_row_counter tokens; /* never without a capacity */
    struct ps_row_counter need;   /* likewise */
    uint32_t capacity;            /* rows; 0: not given */
    uint32_t balanced;            /* rows; 0: not given */
    bool all;
};

/*
 * Reads what is behind the name's first semicolon; all zero when there is nothing. False: something known is written
 * wrong, given twice or lacks the capacity; then nothing of it counts (*rows_p is all zero) and *wrong_p points to the
 * field, within `range`.
 */
bool ps_range_rows_read(const char *range, struct ps_range_rows *rows_p, const char **wrong_p);

/* How rows lie in one tensor: 2^unit_shift of them are unit_bytes. */
struct ps_row_layout {
    uint32_t capacity; /* rows; 0: none are counted */
    uint32_t unit_bytes;
    uint8_t unit_shift;
};

/*
 * Of a tensor of so many bytes. False: its size does not fit the capacity, so nothing is known of it. Rows so narrow
 * that 32 of them are no more than an eighth of a page go by 32: they may be scale factors, of which one serves 32.
 */
bool ps_row_layout_of(uint64_t bytes, uint32_t capacity, uint64_t page_bytes,
                      struct ps_row_layout *layout_p);

/* 100 times rows / balanced, rounded up: the capacity factor that so many rows take. balanced > 0. */
uint64_t ps_rows_factor_percent(uint64_t rows, uint32_t balanced);

#endif
