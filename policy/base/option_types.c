/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing and printing of option values. Pure functions; nothing here allocates or looks at the locale. */
#include "policy/base/option_types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool parse_digits(const char **text_p, uint64_t *value_p)
{
    const char *p = *text_p;
    uint64_t value = 0;

    if (*p < '0' || *p > '9') {
        return false;
    }
    for (; *p >= '0' && *p <= '9'; p++) {
        const uint64_t digit = (uint64_t)(*p - '0');

        if (value > (UINT64_MAX - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    *text_p = p;
    *value_p = value;
    return true;
}

bool ps_size_parse(const char *text, uint64_t *bytes_p)
{
    static const char units[] = "kmgt";
    uint64_t value;
    unsigned shift = 0;

    if (!parse_digits(&text, &value)) {
        return false;
    }
    const char *unit = *text == '\0' ? NULL : strchr(units, *text | 0x20);

    if (unit != NULL) {
        shift = 10 * ((unsigned)(unit - units) + 1);
        text++;
        if (strcasecmp(text, "iB") == 0) {
            text += 2;
        }
    }
    if (strcasecmp(text, "B") == 0) {
        text++;
    }
    if (*text != '\0' || value > UINT64_MAX >> shift) {
        return false;
    }
    *bytes_p = value << shift;
    return true;
}

void ps_size_print(uint64_t bytes, char *buf, size_t size)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    unsigned i = 0;

    while (bytes != 0 && bytes % 1024 == 0 && i < 4) {
        bytes /= 1024;
        i++;
    }
    snprintf(buf, size, "%" PRIu64 "%s", bytes, units[i]);
}

static bool bool_parse(const struct ps_option *opt, const char *text, void *field)
{
    static const char *const yes[] = {"y", "yes", "1", "on", "true"};
    static const char *const no[] = {"n", "no", "0", "off", "false"};

    (void)opt;
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
        if (strcasecmp(text, yes[i]) == 0) {
            *(bool *)field = true;
            return true;
        }
        if (strcasecmp(text, no[i]) == 0) {
            *(bool *)field = false;
            return true;
        }
    }
    return false;
}

static void bool_print(const struct ps_option *opt, const void *field, char *buf, size_t size)
{
    (void)opt;
    snprintf(buf, size, "%s", *(const bool *)field ? "y" : "n");
}

const struct ps_option_type ps_option_bool = {"y|n", false, bool_parse, bool_print};

static bool text_parse(const struct ps_option *opt, const char *text, void *field)
{
    (void)opt;
    /* A line feed could not be written to a configuration file. */
    if (strlen(text) >= PS_OPT_TEXT_MAX || strpbrk(text, "\r\n") != NULL) {
        return false;
    }
    memcpy(field, text, strlen(text) + 1);
    return true;
}

static void text_print(const struct ps_option *opt, const void *field, char *buf, size_t size)
{
    (void)opt;
    snprintf(buf, size, "%s", (const char *)field);
}

const struct ps_option_type ps_option_text = {"text of at most 1023 bytes", false, text_parse,
                                              text_print};

static bool enum_parse(const struct ps_option *opt, const char *text, void *field)
{
    for (unsigned i = 0; opt->names[i] != NULL; i++) {
        if (strcasecmp(text, opt->names[i]) == 0) {
            memcpy(field, &i, sizeof(i));
            return true;
        }
    }
    return false;
}

static void enum_print(const struct ps_option *opt, const void *field, char *buf, size_t size)
{
    unsigned i;

    memcpy(&i, field, sizeof(i));
    snprintf(buf, size, "%s", opt->names[i]);
}

const struct ps_option_type ps_option_enum = {"one of the names", false, enum_parse, enum_print};

static bool in_range(const struct ps_option *opt, uint64_t value)
{
    return opt->max == 0 || (value >= opt->min && value <= opt->max);
}

static bool size_parse(const struct ps_option *opt, const char *text, void *field)
{
    uint64_t value;

    if (!ps_size_parse(text, &value) || !in_range(opt, value)) {
        return false;
    }
    *(uint64_t *)field = value;
    return true;
}

static bool size_or_auto_parse(const struct ps_option *opt, const char *text, void *field)
{
    if (strcasecmp(text, "auto") == 0) {
        *(uint64_t *)field = PS_AUTO;
        return true;
    }
    return size_parse(opt, text, field);
}

static void size_print(const struct ps_option *opt, const void *field, char *buf, size_t size)
{
    const uint64_t value = *(const uint64_t *)field;

    (void)opt;
    if (value == PS_AUTO) {
        snprintf(buf, size, "auto");
    } else {
        ps_size_print(value, buf, size);
    }
}

const struct ps_option_type ps_option_size = {"size", false, size_parse, size_print};
const struct ps_option_type ps_option_size_or_auto = {"size", true, size_or_auto_parse, size_print};

static bool page_parse(const struct ps_option *opt, const char *text, void *field)
{
    uint64_t value;

    if (!size_or_auto_parse(opt, text, &value)) {
        return false;
    }
    if (value != PS_AUTO && (value & (value - 1)) != 0) {
        return false;
    }
    *(uint64_t *)field = value;
    return true;
}

const struct ps_option_type ps_option_page = {"power of two", true, page_parse, size_print};

static bool rank_parse(const struct ps_option *opt, const char *text, void *field)
{
    uint64_t value;

    if (strcasecmp(text, "auto") == 0) {
        *(int64_t *)field = -1;
        return true;
    }
    if (!parse_digits(&text, &value) || *text != '\0' || !in_range(opt, value)) {
        return false;
    }
    *(int64_t *)field = (int64_t)value;
    return true;
}

static void rank_print(const struct ps_option *opt, const void *field, char *buf, size_t size)
{
    const int64_t value = *(const int64_t *)field;

    (void)opt;
    if (value < 0) {
        snprintf(buf, size, "auto");
    } else {
        snprintf(buf, size, "%" PRId64, value);
    }
}

const struct ps_option_type ps_option_rank = {"number", true, rank_parse, rank_print};

bool ps_factor_parse(const char *text, int64_t *millionths_p)
{
    const bool below = *text == '-';
    uint64_t whole;
    uint64_t part = 0;
    uint64_t unit = PS_FACTOR_ONE;

    text += below;
    if (!parse_digits(&text, &whole) || whole > PS_FACTOR_MOST / PS_FACTOR_ONE) {
        return false;
    }
    if (*text == '.') {
        for (text++; *text >= '0' && *text <= '9' && unit > 1; text++) {
            unit /= 10;
            part += unit * (uint64_t)(*text - '0');
        }
        if (unit == PS_FACTOR_ONE) {
            return false;
        }
    }
    const uint64_t value = whole * PS_FACTOR_ONE + part;

    if (*text != '\0' || value > PS_FACTOR_MOST) {
        return false;
    }
    *millionths_p = below ? -(int64_t)value : (int64_t)value;
    return true;
}

void ps_factor_print(int64_t millionths, char *buf, size_t size)
{
    const uint64_t value = millionths < 0 ? -(uint64_t)millionths : (uint64_t)millionths;
    uint64_t part = value % PS_FACTOR_ONE;
    int digits = 6;

    while (digits > 2 && part % 10 == 0) {
        part /= 10;
        digits--;
    }
    snprintf(buf, size, "%s%" PRIu64 ".%0*" PRIu64, millionths < 0 ? "-" : "",
             value / PS_FACTOR_ONE, digits, part);
}

static bool factor_parse(const struct ps_option *opt, const char *text, void *field)
{
    (void)opt;
    return ps_factor_parse(text, field);
}

static bool factor_or_auto_parse(const struct ps_option *opt, const char *text, void *field)
{
    if (strcasecmp(text, "auto") == 0) {
        *(int64_t *)field = PS_FACTOR_AUTO;
        return true;
    }
    return factor_parse(opt, text, field);
}

static bool ratio_or_auto_parse(const struct ps_option *opt, const char *text, void *field)
{
    int64_t value;

    if (!factor_or_auto_parse(opt, text, &value) || (value <= 0 && value != PS_FACTOR_AUTO)) {
        return false;
    }
    *(int64_t *)field = value;
    return true;
}

static void factor_print(const struct ps_option *opt, const void *field, char *buf, size_t size)
{
    const int64_t value = *(const int64_t *)field;

    (void)opt;
    if (value == PS_FACTOR_AUTO) {
        snprintf(buf, size, "auto");
    } else {
        ps_factor_print(value, buf, size);
    }
}

const struct ps_option_type ps_option_factor = {"decimal number from -1000 to 1000", false,
                                                factor_parse, factor_print};
const struct ps_option_type ps_option_factor_or_auto = {"decimal number from -1000 to 1000|auto",
                                                        true, factor_or_auto_parse, factor_print};
const struct ps_option_type ps_option_ratio_or_auto = {"decimal number above 0|auto", true,
                                                       ratio_or_auto_parse, factor_print};
