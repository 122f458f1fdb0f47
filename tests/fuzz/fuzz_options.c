/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Option values and configuration files. Input: a byte that tells what the rest is; then a value for one option, a
 * whole file, or a file and an environment of one name. One thread; the environment is the process's own.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "policy/base/conf_file.h"
#include "policy/base/option_types.h"
#include "policy/base/options.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    setenv("HOME", "/nonexistent", 1);
    return 0;
}

/* Values of 2^64 and more are refused: counted here in 128 bits. */
static bool size_by_the_book(const char *text, uint64_t *bytes_p)
{
    __extension__ unsigned __int128 value = 0;
    size_t n = 0;

    for (; text[n] >= '0' && text[n] <= '9'; n++) {
        value = value * 10 + (unsigned)(text[n] - '0');
        if (value >> 64 != 0) {
            return false;
        }
    }
    static const char *const suffixes[] = {"",    "b", "k",  "kb",  "kib", "m",  "mb",
                                           "mib", "g", "gb", "gib", "t",   "tb", "tib"};
    static const unsigned shifts[] = {0, 0, 10, 10, 10, 20, 20, 20, 30, 30, 30, 40, 40, 40};

    for (size_t i = 0; n > 0 && i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        if (strcasecmp(text + n, suffixes[i]) == 0) {
            value <<= shifts[i];
            *bytes_p = (uint64_t)value;
            return value >> 64 == 0;
        }
    }
    return false;
}

static void check_size(const char *text)
{
    uint64_t want = 0;
    uint64_t found = 0;
    const bool valid = size_by_the_book(text, &want);

    fz_require(ps_size_parse(text, &found) == valid, "'%s'", text);
    fz_require(!valid || found == want, "'%s' is %" PRIu64 ", not %" PRIu64, text, want, found);
}

/* All values as text are taken again and mean the same. */
static void check_printed(const struct ps_options *o)
{
    struct ps_options again;

    ps_options_init(&again);
    for (size_t i = 0; i < ps_n_options; i++) {
        char text[PS_OPT_TEXT_MAX];
        char twice[PS_OPT_TEXT_MAX];

        ps_option_print(o, &ps_option_table[i], text, sizeof(text));
        fz_require(ps_option_set(&again, &ps_option_table[i], text), "%s='%s'",
                   ps_option_table[i].name, text);
        ps_option_print(&again, &ps_option_table[i], twice, sizeof(twice));
        fz_require(strcmp(text, twice) == 0, "'%s' becomes '%s'", text, twice);
    }
}

static void check_value(struct fz_input *in)
{
    const struct ps_option *opt = &ps_option_table[fz_below(in, (unsigned)ps_n_options)];
    char *text = fz_line(in);
    static struct ps_options before;
    static struct ps_options after;

    check_size(text);
    ps_options_init(&before);
    after = before;
    if (!ps_option_set(&after, opt, text)) {
        /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): both were zeroed */
        fz_require(memcmp(&before, &after, sizeof(after)) == 0, "%s='%s' changed something",
                   opt->name, text);
    }
    check_printed(&after);
    free(text);
}

/* ---- files ---- */

struct lines {
    const uint8_t *at, *end;
    unsigned n;
};

static bool blank(uint8_t c)
{
    return c == ' ' || c == '\t';
}

/* A carriage return belongs to the line's end. */
static bool blank_end(uint8_t c)
{
    return blank(c) || c == '\r';
}

/* The next line that is neither empty nor a comment, cut at a zero byte and without blanks around it. */
static bool next_line(struct lines *l, const uint8_t **text_p, size_t *n_p, bool *long_p)
{
    while (l->at < l->end) {
        const uint8_t *stop = memchr(l->at, '\n', (size_t)(l->end - l->at));
        const size_t whole = (size_t)((stop == NULL ? l->end : stop) - l->at);
        const size_t kept = whole < 2047 ? whole : 2047;
        const uint8_t *text = l->at;
        const uint8_t *zero = kept > 0 ? memchr(text, 0, kept) : NULL;
        size_t n = zero == NULL ? kept : (size_t)(zero - text);

        l->at += whole + (stop != NULL);
        while (n > 0 && blank_end(text[n - 1])) {
            n--;
        }
        while (n > 0 && blank(text[0])) {
            text++;
            n--;
        }
        if (n > 0 && text[0] != '#') {
            *text_p = text;
            *n_p = n;
            *long_p = whole > 2047;
            return true;
        }
    }
    return false;
}

static void check_line(void *arg, const char *name, const char *value)
{
    struct lines *l = arg;
    const uint8_t *text = NULL;
    size_t n = 0;
    bool too_long = false;

    fz_require(next_line(l, &text, &n, &too_long), "a line too many: '%s'", name);
    const uint8_t *equals = memchr(text, '=', n);

    fz_require((value == NULL) == (equals == NULL || too_long), "'%s'", name);
    size_t n_name = value == NULL ? n : (size_t)(equals - text);

    while (value != NULL && n_name > 0 && blank_end(text[n_name - 1])) {
        n_name--;
    }
    fz_require(strlen(name) == n_name && memcmp(name, text, n_name) == 0, "name '%s'", name);
    if (value != NULL) {
        const uint8_t *v = equals + 1;

        while (v < text + n && blank(*v)) {
            v++;
        }
        fz_require(strlen(value) == (size_t)(text + n - v) && memcmp(value, v, strlen(value)) == 0,
                   "value '%s'", value);
    }
    l->n++;
}

/* A file of these bytes; its name is written to path. */
static int make_file(const struct fz_input *in, char *path, size_t size)
{
    const int fd = memfd_create("options", MFD_CLOEXEC);

    if (fd < 0 || write(fd, in->at, in->left) != (ssize_t)in->left) {
        abort();
    }
    snprintf(path, size, "/proc/self/fd/%d", fd);
    return fd;
}

static void check_file(const struct fz_input *in)
{
    struct lines l = {in->at, in->at + in->left, 0};
    const uint8_t *text;
    size_t n;
    bool too_long;
    char path[64];
    const int fd = make_file(in, path, sizeof(path));

    fz_require(ps_conf_file_read(path, check_line, &l), "%s", path);
    fz_require(!next_line(&l, &text, &n, &too_long), "a line was left out");
    close(fd);
}

/* Whatever stands there, what is in force can be printed, and each thing said is a line of text. */
static void check_load(struct fz_input *in)
{
    static struct ps_options o;
    const struct ps_option *opt = &ps_option_table[fz_below(in, (unsigned)ps_n_options)];
    char *value = fz_line(in);
    char *name = fz_line(in);
    char path[64];
    unsigned n_bad = 0;
    const int fd = make_file(in, path, sizeof(path));

    (void)ps_option_nearest(name);
    (void)ps_option_known(name);
    setenv(opt->name, value, 1);
    setenv("PAGEDSTASH_CONFIG_FILE", path, 1);
    ps_options_load(&o, true, &n_bad);
    check_printed(&o);
    unsigned n_said = 0;

    while (ps_options_complaint(n_said) != NULL) {
        fz_require(strlen(ps_options_complaint(n_said)) < 320, "a long complaint");
        n_said++;
    }
    fz_require((n_said > 0) == (n_bad > 0) && n_said <= n_bad, "%u bad, %u said", n_bad, n_said);
    unsetenv(opt->name);
    unsetenv("PAGEDSTASH_CONFIG_FILE");
    close(fd);
    free(value);
    free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fz_input in = {data, size};

    switch (fz_below(&in, 3)) {
    case 0:
        check_value(&in);
        break;
    case 1:
        check_file(&in);
        break;
    default:
        check_load(&in);
        break;
    }
    return 0;
}
