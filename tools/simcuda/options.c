/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: settings from the environment variable SIMCUDA, a comma-separated list of name=value. Read once, before the
 * first entry; the counters of the failure rules are guarded by the big lock. Sizes take K, M, G, T.
 *
 *   mem=8G           memory of each device
 *   others=0         what another process holds of it
 *   granularity=2M   of cuMemCreate and of a pool's growth: a power of two from 4K
 *   va=64G           device addresses; under the thread sanitizer less than 1T
 *   devices=1        0 to 16
 *   version=13000    what the driver says it is; newer functions are not found
 *   vmm=1            0: no virtual memory management
 *   seed=1           of every random choice
 *   eager=4          at most so many steps of device work at an ordinary call; 0: the device works only when waited for
 *   check=0          1: the happens-before checker
 *   check_exit=1     0: what the checker found does not end the process with 87
 *   numa=-1          the host's node that is said to be closest to each device; -1: there are none
 *   pin=0            milliseconds that pinning memory of the job's takes, at least
 *   hang=60          seconds without progress that are a deadlock, which ends the process with 86
 *   log=FILE         else stderr
 *   after_all=NAME   launches of that kernel, or what that entry point queues, wait for all streams of their context:
 *                    one wait too many, which a job of several ranks may answer with a deadlock. Several times.
 *   fail=F:N         the N-th call of driver function F (name without _v2 and the like) fails; F:N+ from then on;
 *                    F:~P% at random; then optionally :CUDA_ERROR_NAME. May be given several times.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"

struct sim_options sim_options = {
    .mem = 8ull << 30,
    .granularity = 2ull << 20,
    .va = 64ull << 30,
    .seed = 1,
    .devices = 1,
    .version = 13000,
    .vmm = true,
    .eager = 4,
    .check = false,
    .check_exit = true,
    .hang_s = 60,
    .numa = -1,
    .log = NULL,
};

/* fail=NAME:N, NAME:N+ (from the N-th on) or NAME:~P% (at random), then optionally :CUDA_ERROR_... */
struct sim_fail_rule {
    struct sim_fail_rule *next;
    char name[64];
    uint64_t nth;
    bool forever;
    unsigned percent;
    CUresult result;
    uint64_t seen;
};
static struct sim_fail_rule *fail_rules;

static void bad(const char *item, const char *want)
{
    fprintf(stderr, "simcuda: bad option '%s' in SIMCUDA (want %s)\n", item, want);
    exit(2);
}

static uint64_t parse_size(const char *item, const char *text)
{
    char *end;
    const uint64_t value = strtoull(text, &end, 10);
    if (end == text) {
        bad(item, "a size such as 4096, 64K, 512M or 8G");
    }
    static const char suffix[] = "KMGT";
    const char *hit = *end == '\0' ? NULL : strchr(suffix, *end);
    if (*end != '\0' && (hit == NULL || (end[1] != '\0' && strcmp(end + 1, "iB") != 0))) {
        bad(item, "a size such as 4096, 64K, 512M or 8G");
    }
    return hit == NULL ? value : value << (10 * (hit - suffix + 1));
}

static uint64_t parse_number(const char *item, const char *text, uint64_t low, uint64_t high)
{
    char *end;
    const uint64_t value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || value < low || value > high) {
        char want[80];
        snprintf(want, sizeof want, "a number from %llu to %llu", (unsigned long long)low,
                 (unsigned long long)high);
        bad(item, want);
    }
    return value;
}

static CUresult parse_code(const char *item, const char *text)
{
    for (size_t i = 0; i < sim_error_n_rows; i++) {
        if (strcmp(sim_error_rows[i].name, text) == 0) {
            return (CUresult)sim_error_rows[i].value;
        }
    }
    bad(item, "the name of a CUresult such as CUDA_ERROR_OUT_OF_MEMORY");
    return CUDA_ERROR_UNKNOWN;
}

static CUresult default_code(const char *name)
{
    static const char *const kinds[] = {"Alloc", "Create", "Map", "Reserve"};
    if (strncmp(name, "cuMem", 5) == 0) {
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            if (strstr(name, kinds[i]) != NULL) {
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
        }
    }
    return CUDA_ERROR_UNKNOWN;
}

static void parse_fail(const char *item, const char *text)
{
    static const char want[] =
        "fail=FUNCTION:N, FUNCTION:N+ or FUNCTION:~P%, then optionally :CUDA_ERROR_NAME";
    struct sim_fail_rule *rule = sim_calloc(1, sizeof *rule);
    const char *colon = strchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof rule->name) {
        bad(item, want);
    }
    memcpy(rule->name, text, (size_t)(colon - text));
    if (!sim_api_known(rule->name)) {
        bad(item, "the name of a driver function, without suffix");
    }
    rule->result = default_code(rule->name);
    const bool random = colon[1] == '~';
    char *end;
    const char *number = colon + 1 + random;
    const uint64_t value = strtoull(number, &end, 10);
    if (end == number || value == 0 || (random && (*end != '%' || value > 100))) {
        bad(item, want);
    }
    rule->percent = random ? (unsigned)value : 0;
    rule->nth = random ? 0 : value;
    rule->forever = !random && *end == '+';
    end += random || rule->forever;
    if (*end == ':') {
        rule->result = parse_code(item, end + 1);
    } else if (*end != '\0') {
        bad(item, want);
    }
    rule->next = fail_rules;
    fail_rules = rule;
}

static void parse_sizes(const char *item, const char *name, const char *value)
{
    const uint64_t bytes = parse_size(item, value);
    if (strcmp(name, "granularity") == 0) {
        if (bytes < SIM_PAGE || (bytes & (bytes - 1)) != 0) {
            bad(item, "a power of two of at least 4K");
        }
        sim_options.granularity = bytes;
    } else if (strcmp(name, "mem") == 0) {
        if (bytes < (1u << 20) || bytes > (1ull << 42)) {
            bad(item, "1M to 4096G");
        }
        sim_options.mem = SIM_ROUND(bytes, SIM_PAGE);
    } else if (strcmp(name, "others") == 0) {
        sim_options.others = SIM_ROUND(bytes, SIM_PAGE);
    } else {
        if (bytes < (16u << 20) || bytes > (1ull << 40)) {
            bad(item, "16M to 1024G");
        }
        sim_options.va = SIM_ROUND(bytes, SIM_PAGE);
    }
}

static void add_after_all(const char *name)
{
    static size_t n;

    sim_options.after_all = sim_realloc(sim_options.after_all, (n + 2) * sizeof(char *));
    sim_options.after_all[n++] = strdup(name);
    sim_options.after_all[n] = NULL;
}

static void parse_item(char *item)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s", item);
    char *value = strchr(item, '=');
    if (value == NULL) {
        bad(whole, "name=value");
    }
    *value++ = '\0';
    if (strcmp(item, "mem") == 0 || strcmp(item, "others") == 0 ||
        strcmp(item, "granularity") == 0 || strcmp(item, "va") == 0) {
        parse_sizes(whole, item, value);
    } else if (strcmp(item, "seed") == 0) {
        sim_options.seed = parse_number(whole, value, 0, UINT64_MAX);
    } else if (strcmp(item, "devices") == 0) {
        sim_options.devices = (int)parse_number(whole, value, 0, 16);
    } else if (strcmp(item, "version") == 0) {
        sim_options.version = (int)parse_number(whole, value, 1000, 99999);
    } else if (strcmp(item, "vmm") == 0) {
        sim_options.vmm = parse_number(whole, value, 0, 1) == 1;
    } else if (strcmp(item, "eager") == 0) {
        sim_options.eager = (unsigned)parse_number(whole, value, 0, 1000);
    } else if (strcmp(item, "check") == 0) {
        sim_options.check = parse_number(whole, value, 0, 1) == 1;
    } else if (strcmp(item, "check_exit") == 0) {
        sim_options.check_exit = parse_number(whole, value, 0, 1) == 1;
    } else if (strcmp(item, "numa") == 0) {
        sim_options.numa = (int)parse_number(whole, value, 0, 1023);
    } else if (strcmp(item, "pin") == 0) {
        sim_options.pin_ms = (unsigned)parse_number(whole, value, 0, 60000);
    } else if (strcmp(item, "hang") == 0) {
        sim_options.hang_s = (unsigned)parse_number(whole, value, 1, 86400);
    } else if (strcmp(item, "log") == 0) {
        sim_options.log = strdup(value);
    } else if (strcmp(item, "after_all") == 0) {
        add_after_all(value);
    } else if (strcmp(item, "fail") == 0) {
        parse_fail(whole, value);
    } else {
        bad(whole,
            "mem, granularity, va, seed, devices, version, vmm, eager, check, check_exit, numa, pin, "
            "hang, log, after_all or fail");
    }
}

void sim_options_read(void)
{
    const char *env = getenv("SIMCUDA");
    if (env == NULL) {
        return;
    }
    char *copy = strdup(env);
    char *save = NULL;
    for (char *item = strtok_r(copy, ",", &save); item != NULL; item = strtok_r(NULL, ",", &save)) {
        parse_item(item);
    }
    free(copy);
}

CUresult sim_options_fail(const char *entry)
{
    CUresult result = CUDA_SUCCESS;
    for (struct sim_fail_rule *rule = fail_rules; rule != NULL; rule = rule->next) {
        if (strcmp(rule->name, entry) != 0) {
            continue;
        }
        rule->seen++;
        const bool hit = rule->percent > 0
                             ? sim_random() % 100 < rule->percent
                             : rule->seen == rule->nth || (rule->forever && rule->seen > rule->nth);
        if (hit) {
            result = rule->result;
        }
    }
    return result;
}
