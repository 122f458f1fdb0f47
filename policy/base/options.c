/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The option table, and how a set of options is put together from files and the environment. Runs in the preloaded
 * constructor of any program: no allocation, no stream, no locale. One thread; the kept warnings are the only state.
 */
#include "policy/base/options.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "policy/base/conf_file.h"
#include "policy/base/contradictions.h"
#include "policy/base/option_types.h"

#define PREFIX          "PAGEDSTASH_"
#define PREFIX_LEN      (sizeof(PREFIX) - 1)
#define COMPLAINTS_MAX  16
#define COMPLAINT_BYTES 320
#define NAME_MAX_LEN    64 /* longer names have no near ones */
#define NEAR_EDITS      3

#define K UINT64_C(1024)
#define M (K * 1024)
#define T (M * 1024 * 1024)

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace", NULL};
static const char *const verify_names[] = {"off", "poison", NULL};

#define ROW(_name, _field, _type, _text, _names, _min, _max, _doc)                                 \
    {                                                                                              \
        PREFIX _name, _text, _doc, _names, offsetof(struct ps_options, _field),                    \
            &ps_option_##_type, _min, _max                                                         \
    }

const struct ps_option ps_option_table[] = {
    ROW("DISABLE", disable, bool, "n", NULL, 0, 0, "Pass everything through."),
    ROW("REGIONS", regions, text, "*experts*", NULL, 0, 0,
        "Comma-separated patterns (as in file names) of the NVTX ranges whose tensors are paged."),
    ROW("STEP", step, text, "", NULL, 0, 0,
        "Pattern of the NVTX range that begins a step; unset: steps are found."),
    ROW("MIN_BYTES", min_bytes, size, "32M", NULL, 1, T,
        "Smallest allocation in a region that is taken over."),
    ROW("PAGE_BYTES", page_bytes, page, "auto", NULL, 512, 256 * M,
        "Size of a page of the pool; auto is 256K."),
    ROW("PAGE_SIZE", page_size, size, "64", NULL, 1, M,
        "Rows of a page, of the widest tensor, where ranges tell their capacity; as a power of two of bytes."),
    ROW("WINDOW_BYTES", window_bytes, size_or_auto, "auto", NULL, M, 64 * T,
        "Addresses reserved for the tensors of a device."),
    ROW("HOST_BUDGET", host_budget, size_or_auto, "auto", NULL, 0, 64 * T,
        "Host memory that pages may spill to; auto is this process's share of half of what there is."),
    ROW("CUDA_BUDGET", cuda_budget, size_or_auto, "auto", NULL, 0, 64 * T,
        "Device memory for homes and pages of a plan; auto is what the factor comes to."),
    ROW("BUFFER_SIZE_FACTOR_CUDA", factor_cuda, factor, "1.10", NULL, 0, 0,
        "Device memory for homes and pages of a plan: of the balanced bytes; below 0: of the largest seen."),
    ROW("BUFFER_SIZE_FACTOR_CPU", factor_cpu, factor_or_auto, "auto", NULL, 0, 0,
        "Host memory for pages, likewise; 0: none; auto: what the host budget allows."),
    ROW("CAPACITY_FACTOR", capacity_factor, ratio_or_auto, "auto", NULL, 0, 0,
        "Rows that the job's buffers have room for over balanced rows, where ranges do not tell."),
    ROW("PLAN", plan, bool, "y", NULL, 0, 0,
        "Learn the steps of the job and follow a plan; n: stash by fixed rules, as in the first steps."),
    ROW("COMPRESS", compress, bool, "y", NULL, 0, 0,
        "Let the device keep what tensors of a plan share compressed on the way to its memory, where it can."),
    ROW("KEEP_ALLOCATOR", keep_allocator, bool, "n", NULL, 0, 0,
        "Leave PyTorch's allocator setting alone; its own allocator hides tensors from us."),
    ROW("LOG_LEVEL", log_level, enum, "warn", level_names, 0, 0, "What is worth a line."),
    ROW("LOG_FILE", log_file, text, "", NULL, 0, 0,
        "File for the lines, instead of stderr; %h, %p and %r become host, process and rank."),
    ROW("METRICS", metrics, text, "", NULL, 0, 0,
        "Folder for JSON lines with counters, one file a process."),
    ROW("METRICS_RANGES", metrics_ranges, text, "", NULL, 0, 0,
        "Comma-separated patterns of NVTX ranges (no regions) at whose push a line is written too."),
    ROW("TAPE", tape, text, "", NULL, 0, 0,
        "Folder for a tape of the job's driver calls; then nothing is paged."),
    ROW("TRACE", trace, text, "", NULL, 0, 0,
        "Folder for a trace of ranges, allocations and uses, for `pagedstash replay`."),
    ROW("VERIFY", verify, enum, "off", verify_names, 0, 0,
        "Checks that cost time; poison: what lies behind rows that a range counts is overwritten when it comes back."),
    ROW("STRICT", strict, bool, "n", NULL, 0, 0,
        "Let a bad or unknown setting stop `pagedstash run` instead of being warned of."),
    ROW("RANK", rank, rank, "auto", NULL, 0, INT32_MAX,
        "Rank of this process; auto takes the launcher's."),
    ROW("CONFIG_FILE", config_file, text, "", NULL, 0, 0,
        "File of NAME=value lines, read after the user's and the system's."),
};
const size_t ps_n_options = sizeof(ps_option_table) / sizeof(ps_option_table[0]);
static_assert(sizeof(ps_option_table) / sizeof(ps_option_table[0]) <= PS_OPTIONS_MAX,
              "each row has its source");

static char complaints[COMPLAINTS_MAX][COMPLAINT_BYTES];
static unsigned n_complaints;
static unsigned n_contradictions;
static bool complained;

static void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void complain(const char *fmt, ...)
{
    if (n_complaints < COMPLAINTS_MAX) {
        va_list args;

        va_start(args, fmt);
        vsnprintf(complaints[n_complaints], COMPLAINT_BYTES, fmt, args);
        va_end(args);
        n_complaints++;
    }
}

static void *field_of(struct ps_options *o, const struct ps_option *opt)
{
    return (char *)o + opt->offset;
}

const struct ps_option *ps_option_find(const char *name)
{
    for (size_t i = 0; i < ps_n_options; i++) {
        if (strcmp(ps_option_table[i].name, name) == 0) {
            return &ps_option_table[i];
        }
    }
    return NULL;
}

/* A Kubernetes service called pagedstash puts these into every pod. */
static bool is_kubernetes(const char *name)
{
    return strcmp(name, PREFIX "SERVICE_HOST") == 0 || strcmp(name, PREFIX "PORT") == 0 ||
           strncmp(name, PREFIX "SERVICE_PORT", PREFIX_LEN + 12) == 0 ||
           strncmp(name, PREFIX "PORT_", PREFIX_LEN + 5) == 0;
}

bool ps_option_known(const char *name)
{
    return ps_option_find(name) != NULL || is_kubernetes(name);
}

/* Levenshtein distance; both shorter than NAME_MAX_LEN. */
static size_t edit_distance(const char *a, const char *b)
{
    const size_t n = strlen(b);
    size_t row[NAME_MAX_LEN];

    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            const size_t shorter = row[j] < row[j - 1] ? row[j] : row[j - 1];

            diagonal = row[j];
            row[j] = replaced < shorter + 1 ? replaced : shorter + 1;
        }
    }
    return row[n];
}

const struct ps_option *ps_option_nearest(const char *name)
{
    const struct ps_option *nearest = NULL;
    size_t least = NEAR_EDITS + 1;

    if (strlen(name) >= NAME_MAX_LEN) {
        return NULL;
    }
    for (size_t i = 0; i < ps_n_options; i++) {
        const size_t distance = edit_distance(name, ps_option_table[i].name);

        if (distance < least) {
            least = distance;
            nearest = &ps_option_table[i];
        }
    }
    return nearest;
}

bool ps_option_set(struct ps_options *o, const struct ps_option *opt, const char *text)
{
    return opt->type->parse(opt, text, field_of(o, opt));
}

void ps_option_print(const struct ps_options *o, const struct ps_option *opt, char *buf,
                     size_t size)
{
    opt->type->print(opt, (const char *)o + opt->offset, buf, size);
}

void ps_option_syntax(const struct ps_option *opt, char *buf, size_t size)
{
    if (opt->names != NULL) {
        size_t used = 0;

        for (size_t i = 0; opt->names[i] != NULL && used < size; i++) {
            used +=
                (size_t)snprintf(buf + used, size - used, "%s%s", i == 0 ? "" : "|", opt->names[i]);
        }
    } else if (opt->max != 0) {
        char min[32];
        char max[32];

        ps_size_print(opt->min, min, sizeof(min));
        ps_size_print(opt->max, max, sizeof(max));
        snprintf(buf, size, "%s from %s to %s%s", opt->type->syntax, min, max,
                 opt->type->automatic ? "|auto" : "");
    } else {
        snprintf(buf, size, "%s", opt->type->syntax);
    }
}

void ps_options_init(struct ps_options *o)
{
    memset(o, 0, sizeof(*o));
    for (size_t i = 0; i < ps_n_options; i++) {
        if (!ps_option_set(o, &ps_option_table[i], ps_option_table[i].text)) {
            complain("the default of '%s' is malformed", ps_option_table[i].name);
        }
    }
}

/* where: "" for the environment, else " in FILE". False when the value was refused. */
static bool set_or_complain(struct ps_options *o, const struct ps_option *opt, const char *text,
                            enum ps_option_source source, const char *where)
{
    char want[128];
    char used[64];

    if (ps_option_set(o, opt, text)) {
        o->source[opt - ps_option_table] = (uint8_t)source;
        return true;
    }
    ps_option_syntax(opt, want, sizeof(want));
    ps_option_print(o, opt, used, sizeof(used));
    complain("bad value '%.64s' for '%s'%s (want <%s>); using '%s'", text, opt->name, where, want,
             used);
    return false;
}

static void complain_unknown(const char *name, const char *where)
{
    const struct ps_option *near = ps_option_nearest(name);

    if (near != NULL) {
        complain("unknown variable '%.64s'%s (did you mean '%s'?)", name, where, near->name);
    } else {
        complain("unknown variable '%.64s'%s", name, where);
    }
}

struct file_reading {
    struct ps_options *o;
    enum ps_option_source source;
    char where[128];
    unsigned n_bad;
};

static void file_line(void *arg, const char *name, const char *value)
{
    struct file_reading *reading = arg;

    if (value == NULL) {
        complain("not a NAME=value line%s: '%.64s'", reading->where, name);
        reading->n_bad++;
        return;
    }
    const struct ps_option *opt = ps_option_find(name);

    if (opt == NULL) {
        complain_unknown(name, reading->where);
        reading->n_bad++;
    } else if (field_of(reading->o, opt) == reading->o->config_file) {
        /* Files do not name further files. */
        if (value[0] != '\0') {
            complain("'%s' has no effect%s", name, reading->where);
            reading->n_bad++;
        }
    } else if (!set_or_complain(reading->o, opt, value, reading->source, reading->where)) {
        reading->n_bad++;
    }
}

/* Returns the number of bad lines. That the named file cannot be read is said, whatever the reason. */
static unsigned load_file(struct ps_options *o, const char *path, enum ps_option_source source)
{
    struct file_reading reading = {.o = o, .source = source};
    const bool needed = source == PS_FROM_NAMED_FILE;

    snprintf(reading.where, sizeof(reading.where), " in %.100s", path);
    if (ps_conf_file_read(path, file_line, &reading)) {
        return reading.n_bad;
    }
    if (needed || (errno != ENOENT && errno != EACCES && errno != ENOTDIR)) {
        complain("cannot read '%.128s': %s", path, strerrordesc_np(errno));
        reading.n_bad++;
    }
    return reading.n_bad;
}

static unsigned check_names(void)
{
    unsigned n_unknown = 0;

    for (char **e = environ; e != NULL && *e != NULL; e++) {
        char name[128];
        const size_t n = strcspn(*e, "=");

        if (strncmp(*e, PREFIX, PREFIX_LEN) != 0) {
            continue;
        }
        snprintf(name, sizeof(name), "%.*s", (int)(n < sizeof(name) ? n : sizeof(name) - 1), *e);
        if (!ps_option_known(name)) {
            complain_unknown(name, "");
            n_unknown++;
        }
    }
    return n_unknown;
}

static unsigned load_environment(struct ps_options *o)
{
    unsigned n_bad = 0;

    for (size_t i = 0; i < ps_n_options; i++) {
        const struct ps_option *opt = &ps_option_table[i];
        const char *text = secure_getenv(opt->name);

        if (text != NULL && !set_or_complain(o, opt, text, PS_FROM_ENVIRONMENT, "")) {
            n_bad++;
        }
    }
    return n_bad;
}

static unsigned settle_contradictions(struct ps_options *o)
{
    char text[COMPLAINT_BYTES];
    unsigned rule = 0;

    n_contradictions = 0;
    while (ps_contradiction_next(o, &rule, text, sizeof(text))) {
        complain("%s", text);
        n_contradictions++;
    }
    return n_contradictions;
}

void ps_options_load(struct ps_options *o, bool quiet, unsigned *n_bad_p)
{
    const int saved_errno = errno;
    unsigned n_bad = 0;

    n_complaints = 0;
    complained = false;
    ps_options_init(o);
    n_bad += load_file(o, "/etc/pagedstash.conf", PS_FROM_SYSTEM_FILE);

    const char *home = secure_getenv("HOME");
    char path[PS_OPT_TEXT_MAX];

    if (home != NULL &&
        snprintf(path, sizeof(path), "%s/.config/pagedstash.conf", home) < (int)sizeof(path)) {
        n_bad += load_file(o, path, PS_FROM_USER_FILE);
    }
    const char *named = secure_getenv(PREFIX "CONFIG_FILE");

    if (named != NULL && named[0] != '\0') {
        n_bad += load_file(o, named, PS_FROM_NAMED_FILE);
    }
    n_bad += load_environment(o);
    n_bad += settle_contradictions(o);
    if (getauxval(AT_SECURE) == 0) {
        n_bad += check_names();
    }
    if (!quiet) {
        ps_options_complain();
    }
    if (n_bad_p != NULL) {
        *n_bad_p = n_bad;
    }
    errno = saved_errno;
}

unsigned ps_options_contradictions(void)
{
    return n_contradictions;
}

bool ps_option_given(const struct ps_options *o, const char *name)
{
    return o->source[ps_option_find(name) - ps_option_table] != PS_FROM_DEFAULT;
}

const char *ps_options_complaint(unsigned i)
{
    return i < n_complaints ? complaints[i] : NULL;
}

void ps_options_complain(void)
{
    if (complained) {
        return;
    }
    complained = true;
    for (unsigned i = 0; i < n_complaints; i++) {
        ps_warn("%s", complaints[i]);
    }
}
