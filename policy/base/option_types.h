/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of option values: how each is parsed and printed. No state, no locale, any thread. */
#ifndef PS_BASE_OPTION_TYPES_H
#define PS_BASE_OPTION_TYPES_H

#include "policy/base/options.h"

extern const struct ps_option_type ps_option_bool;
extern const struct ps_option_type ps_option_text;
extern const struct ps_option_type ps_option_enum;
extern const struct ps_option_type ps_option_size;
extern const struct ps_option_type ps_option_size_or_auto;
extern const struct ps_option_type ps_option_page;
extern const struct ps_option_type ps_option_rank;
extern const struct ps_option_type ps_option_factor;         /* int64_t, in millionths */
extern const struct ps_option_type ps_option_factor_or_auto; /* auto is PS_FACTOR_AUTO */
extern const struct ps_option_type ps_option_ratio_or_auto;  /* likewise, above 0 */

/* "32M", "1073741824", "2GiB": digits, then K, M, G or T (1,024) in any case, then B or iB or nothing. */
bool ps_size_parse(const char *text, uint64_t *bytes_p);
/* "1.10", "-2", "0.333333" in millionths; at most six decimals, from -PS_FACTOR_MOST to PS_FACTOR_MOST. */
bool ps_factor_parse(const char *text, int64_t *millionths_p);
/* With two decimals at least. */
void ps_factor_print(int64_t millionths, char *buf, size_t size);
/* With the largest unit that divides it. */
void ps_size_print(uint64_t bytes, char *buf, size_t size);

#endif
