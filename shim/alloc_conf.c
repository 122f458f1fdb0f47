/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See alloc_conf.h. Keys that cudaMallocAsync has no use for are kept: PyTorch ignores them, and a
 * child may not.
 */
#include "shim/alloc_conf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define BACKEND "cudaMallocAsync"

struct span {
    const char *at;
    size_t n;
};

static struct span trim(struct span s)
{
    while (s.n > 0 && (s.at[0] == ' ' || s.at[0] == '\t')) {
        s.at++;
        s.n--;
    }
    while (s.n > 0 && (s.at[s.n - 1] == ' ' || s.at[s.n - 1] == '\t')) {
        s.n--;
    }
    return s;
}

/* The next entry: up to a comma outside of brackets. */
static struct span next_entry(const char **rest_p)
{
    struct span s = {*rest_p, 0};
    int depth = 0;

    for (; s.at[s.n] != '\0' && (s.at[s.n] != ',' || depth > 0); s.n++) {
        depth += (s.at[s.n] == '[') - (s.at[s.n] == ']');
    }
    *rest_p = s.at + s.n + (s.at[s.n] == ',');
    return trim(s);
}

/* Splits at the first colon; false if the key is another one. */
static bool has_key(struct span entry, const char *key, struct span *value_p)
{
    const char *colon = memchr(entry.at, ':', entry.n);

    if (colon == NULL) {
        return false;
    }
    const struct span k = trim((struct span){entry.at, (size_t)(colon - entry.at)});

    *value_p = trim((struct span){colon + 1, entry.n - (size_t)(colon - entry.at) - 1});
    return k.n == strlen(key) && strncmp(k.at, key, k.n) == 0;
}

static bool is(struct span value, const char *text)
{
    return value.n == strlen(text) && strncasecmp(value.at, text, value.n) == 0;
}

enum ps_alloc_conf_result ps_alloc_conf_merge(const char *user, char merged[PS_ALLOC_CONF_MAX])
{
    size_t n = (size_t)snprintf(merged, PS_ALLOC_CONF_MAX, "backend:%s", BACKEND);
    bool overridden = false;

    while (*user != '\0') {
        const struct span entry = next_entry(&user);
        struct span value;

        if (entry.n == 0) {
            continue;
        }
        if (has_key(entry, "backend", &value)) {
            overridden = overridden || !is(value, BACKEND);
            continue;
        }
        if (has_key(entry, "expandable_segments", &value) && is(value, "true")) {
            overridden = true;
        }
        if (n + 1 + entry.n + 1 > PS_ALLOC_CONF_MAX) {
            return PS_ALLOC_CONF_TOO_LONG;
        }
        merged[n] = ',';
        memcpy(merged + n + 1, entry.at, entry.n);
        n += 1 + entry.n;
        merged[n] = '\0';
    }
    return overridden ? PS_ALLOC_CONF_OVERRIDDEN : PS_ALLOC_CONF_MERGED;
}
