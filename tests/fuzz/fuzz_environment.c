/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What else comes from outside: PyTorch's allocator setting, launchers' ranks, names of log files, and any text that
 * ends up in JSON. Input: a byte that tells which, then lines. One thread.
 */
#include <json-c/json.h>
#include <json-c/json_object_iterator.h>
#include <limits.h>

#include "policy/base/json.h"
#include "policy/base/log.h"
#include "policy/base/rank.h"
#include "shim/alloc_conf.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    return 0;
}

/* Our backend comes first, it is the only one, and what a child inherits stays as it is. */
static void check_allocator(struct fz_input *in)
{
    static const char ours[] = "backend:cudaMallocAsync";
    char *user = fz_line(in);
    char merged[PS_ALLOC_CONF_MAX];
    char again[PS_ALLOC_CONF_MAX];
    const enum ps_alloc_conf_result r = ps_alloc_conf_merge(user, merged);

    if (r != PS_ALLOC_CONF_TOO_LONG) {
        fz_require(strlen(merged) < sizeof(merged), "too long");
        fz_require(strncmp(merged, ours, sizeof(ours) - 1) == 0, "'%s'", merged);
        fz_require(merged[sizeof(ours) - 1] == '\0' || merged[sizeof(ours) - 1] == ',', "'%s'",
                   merged);
        (void)ps_alloc_conf_merge(merged, again);
        fz_require(strcmp(merged, again) == 0, "'%s' becomes '%s'", merged, again);
    } else {
        fz_require(strlen(user) + sizeof(ours) >= PS_ALLOC_CONF_MAX, "'%s' would fit", user);
    }
    free(user);
}

static int64_t rank_by_the_book(const char *text)
{
    char *end;

    if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text)) {
        return -1;
    }
    const unsigned long long value = strtoull(text, &end, 10);

    return value <= INT32_MAX ? (int64_t)value : -1;
}

static void check_rank(struct fz_input *in)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    int64_t want = -1;

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char *text = fz_line(in);

        setenv(names[i], text, 1);
        want = want < 0 ? rank_by_the_book(text) : want;
        free(text);
    }
    fz_require(ps_rank_read(-1).global == want, "%lld", (long long)want);
    fz_require(ps_rank_read(7).global == 7, "an own rank goes first");
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        unsetenv(names[i]);
    }
}

static void check_path(struct fz_input *in)
{
    const size_t size = 1 + (size_t)fz_u8(in);
    char *pattern = fz_line(in);
    char *path = malloc(size);

    if (path == NULL) {
        abort();
    }
    memset(path, 0x5a, size);
    ps_log_expand_path(pattern, path, size);
    fz_require(memchr(path, 0, size) != NULL, "'%s' has no end", pattern);
    if (strchr(pattern, '%') == NULL && strlen(pattern) < size) {
        fz_require(strcmp(path, pattern) == 0, "'%s' becomes '%s'", pattern, path);
    }
    free(path);
    free(pattern);
}

/* Another reader takes what we write, and text that is UTF-8 already comes back. */
static void check_json(struct fz_input *in)
{
    char *key = fz_line(in);
    char *value = fz_line(in);
    const size_t size = 64 + 6 * (strlen(key) + strlen(value));
    char *buf = malloc(size);
    struct ps_json j;

    if (buf == NULL) {
        abort();
    }
    ps_json_init(&j, buf, size, -1);
    ps_json_open(&j, NULL, '{');
    ps_json_string(&j, key, value);
    ps_json_close(&j, '}');
    fz_require(ps_json_finish(&j), "it would fit");
    struct json_tokener *tokener = json_tokener_new();

    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    struct json_object *object = json_tokener_parse_ex(tokener, buf, (int)strlen(buf));

    fz_require(object != NULL, "%s: %s", json_tokener_error_desc(json_tokener_get_error(tokener)),
               buf);
    const struct json_object_iterator end = json_object_iter_end(object);
    for (struct json_object_iterator at = json_object_iter_begin(object);
         !json_object_iter_equal(&at, &end); json_object_iter_next(&at)) {
        const char *found_key = json_object_iter_peek_name(&at);
        struct json_object *found = json_object_iter_peek_value(&at);
        const bool replaced = strstr(json_object_get_string(found), "\xef\xbf\xbd") != NULL ||
                              strstr(found_key, "\xef\xbf\xbd") != NULL;

        fz_require(replaced || (strcmp(found_key, key) == 0 &&
                                strcmp(json_object_get_string(found), value) == 0),
                   "%s", buf);
    }
    json_object_put(object);
    json_tokener_free(tokener);
    free(buf);
    free(key);
    free(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fz_input in = {data, size};
    static void (*const checks[])(struct fz_input *) = {check_allocator, check_rank, check_path,
                                                        check_json};

    checks[fz_below(&in, 4)](&in);
    return 0;
}
