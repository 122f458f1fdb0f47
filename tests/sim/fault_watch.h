/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes driver calls of the stash fail in a job on the software driver, never calls of the job's own, and sees from
 * outside whether tensors were out: a live tensor at whose address nothing is mapped. Include in one file of a job that
 * names its tensors with fw_live and fw_dead, and calls fw_start. Scenarios include it with PS_FAULTS, and name none:
 * for them all rules are with '!'. Under a plan nothing is unmapped: calls count from fw_plan_in_force on.
 *
 * FAULT: rules NAME:N[+][:CODE] or NAME:~P[:CODE], separated by ';'. Counted are calls made while a tensor is out, or,
 * with '!' before NAME, all calls. N+: all calls from then on. ~P: in P of a hundred of the counted calls.
 * With the CODE 0 the call does not fail: two milliseconds pass before it, in which other threads get in front of it;
 * of P in a hundred, with '!' of all calls and otherwise of those since fw_plan_in_force.
 * At the end of the process a line for each rule says how many calls failed, and how many tensors were out at the
 * first of them. With FAULT_COUNTS=FILE every function called is counted there.
 *
 * The watcher runs under the driver's lock, so its own state needs none; live tensors are atomic.
 */
#ifndef PS_TESTS_FAULT_WATCH_H
#define PS_TESTS_FAULT_WATCH_H

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cuda.h>

#define FW_TENSORS   256
#define FW_FUNCTIONS 96
#define FW_RULES     4

/* The software driver's. */
typedef CUresult fw_watcher(const char *name, const void *caller);
void simcuda_watch(fw_watcher *fn);
typedef void fw_pauser(const char *name, const void *caller);
void simcuda_pause(fw_pauser *fn);
bool simcuda_mapped(CUdeviceptr address);

static _Atomic CUdeviceptr fw_tensors[FW_TENSORS];
/* Functions whose wrappers call the driver from a helper; the stash makes no such call inside of one. */
static const char *const fw_helped[] = {"cuEventDestroy", "cuMemPoolTrimTo", "cuStreamDestroy"};

static struct fw_function {
    char name[64];
    unsigned calls, with_out;
} fw_functions[FW_FUNCTIONS];

static struct fw_rule {
    char name[64];
    unsigned nth, percent, seen, failed, out_at_first;
    bool ever, always;
    CUresult code;
} fw_rules[FW_RULES];
static unsigned fw_n_rules;
static _Atomic bool fw_planned;
static uint64_t fw_random_state;

SC_UNUSED static void fw_live(CUdeviceptr p)
{
    for (unsigned i = 0; i < FW_TENSORS; i++) {
        CUdeviceptr none = 0;

        if (atomic_compare_exchange_strong(&fw_tensors[i], &none, p)) {
            return;
        }
    }
}

SC_UNUSED static void fw_dead(CUdeviceptr p)
{
    for (unsigned i = 0; i < FW_TENSORS; i++) {
        CUdeviceptr same = p;

        if (atomic_compare_exchange_strong(&fw_tensors[i], &same, 0)) {
            return;
        }
    }
}

/* From here on all calls count, as if a tensor were out. */
SC_UNUSED static void fw_plan_in_force(void)
{
    fprintf(stderr, "fault: a plan is in force\n");
    atomic_store(&fw_planned, true);
}

static unsigned fw_count_out(void)
{
    unsigned n = atomic_load(&fw_planned);

    for (unsigned i = 0; i < FW_TENSORS; i++) {
        const CUdeviceptr p = atomic_load(&fw_tensors[i]);

        n += p != 0 && !simcuda_mapped(p);
    }
    return n;
}

static bool fw_helped_call(const char *name)
{
    for (size_t i = 0; i < sizeof(fw_helped) / sizeof(fw_helped[0]); i++) {
        if (strcmp(fw_helped[i], name) == 0) {
            return strncmp(sc_call, name, strlen(name)) == 0;
        }
    }
    return false;
}

/* ---- the function a return address lies in: dynamic symbols lack the parts that gcc makes of one ---- */

static const ElfW(Sym) * fw_symbols;
static size_t fw_n_symbols;
static const char *fw_names;

static void fw_read_symbols(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    const char *file = MAP_FAILED;

    if (fd >= 0 && fstat(fd, &st) == 0) {
        file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    if (file == MAP_FAILED) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    const ElfW(Ehdr) *head = (const void *)file;
    const ElfW(Shdr) *sections = (const void *)(file + head->e_shoff);

    for (unsigned i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type == SHT_SYMTAB) {
            fw_symbols = (const void *)(file + sections[i].sh_offset);
            fw_n_symbols = sections[i].sh_size / sizeof(*fw_symbols);
            fw_names = file + sections[sections[i].sh_link].sh_offset;
        }
    }
    close(fd);
}

static bool fw_in_wrapper(const Dl_info *info, const void *caller)
{
    const uint64_t at = (uint64_t)((const char *)caller - (const char *)info->dli_fbase);

    if (fw_symbols == NULL) {
        fw_read_symbols(info->dli_fname);
    }
    for (size_t i = 0; fw_symbols != NULL && i < fw_n_symbols; i++) {
        const ElfW(Sym) *symbol = &fw_symbols[i];
        const char *name = fw_names + symbol->st_name;

        if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && at >= symbol->st_value &&
            at < symbol->st_value + symbol->st_size &&
            (strncmp(name, "cu", 2) == 0 || strncmp(name, "ps_wrap_", 8) == 0)) {
            return true;
        }
    }
    return false;
}

/* A wrapper's call of the driver is the job's. */
static bool fw_by_stash(const char *name, const void *caller)
{
    Dl_info info;

    if (dladdr(caller, &info) == 0 || strstr(info.dli_fname, "/libpagedstash.so") == NULL) {
        return false;
    }
    return !fw_in_wrapper(&info, caller) && !fw_helped_call(name);
}

static void fw_tally(const char *name, unsigned n_out)
{
    unsigned i = 0;

    while (i < FW_FUNCTIONS - 1 && fw_functions[i].name[0] != '\0' &&
           strcmp(fw_functions[i].name, name) != 0) {
        i++;
    }
    snprintf(fw_functions[i].name, sizeof(fw_functions[i].name), "%s", name);
    fw_functions[i].calls++;
    fw_functions[i].with_out += n_out > 0;
}

static bool fw_hit(struct fw_rule *rule, unsigned n_out)
{
    const bool begun = rule->ever && rule->failed > 0;

    if (!begun && !rule->always && n_out == 0) {
        return false;
    }
    rule->seen++;
    if (rule->percent > 0) {
        fw_random_state = fw_random_state * 6364136223846793005u + 1442695040888963407u;
        return (fw_random_state >> 33) % 100 < rule->percent;
    }
    return rule->seen == rule->nth || begun;
}

static CUresult fw_watch(const char *name, const void *caller)
{
    if (!fw_by_stash(name, caller)) {
        return CUDA_SUCCESS;
    }
    const unsigned n_out = fw_count_out();

    fw_tally(name, n_out);
    for (unsigned i = 0; i < fw_n_rules; i++) {
        struct fw_rule *rule = &fw_rules[i];

        if (rule->code != CUDA_SUCCESS && strcmp(rule->name, name) == 0 && fw_hit(rule, n_out)) {
            rule->out_at_first = rule->failed++ == 0 ? n_out : rule->out_at_first;
            return rule->code;
        }
    }
    return CUDA_SUCCESS;
}

/* Outside of all locks. */
static void fw_pause(const char *name, const void *caller)
{
    static _Atomic uint64_t turns;
    Dl_info info;

    for (unsigned i = 0; i < fw_n_rules; i++) {
        const struct fw_rule *rule = &fw_rules[i];

        if (rule->code == CUDA_SUCCESS && strcmp(rule->name, name) == 0 &&
            (rule->always || atomic_load(&fw_planned)) &&
            test_mix(atomic_fetch_add(&turns, 1)) % 100 < rule->percent &&
            dladdr(caller, &info) != 0 && strstr(info.dli_fname, "/libpagedstash.so") != NULL) {
            usleep(2000);
            return;
        }
    }
}

static void fw_parse(const char *text)
{
    struct fw_rule *rule = &fw_rules[fw_n_rules++];
    const char *colon = strchr(text, ':');
    char *end;

    rule->always = *text == '!';
    text += rule->always;
    if (colon == NULL || (size_t)(colon - text) >= sizeof(rule->name)) {
        fprintf(stderr, "bad FAULT '%s'\n", text);
        exit(2);
    }
    memcpy(rule->name, text, (size_t)(colon - text));
    if (colon[1] == '~') {
        rule->percent = (unsigned)strtoul(colon + 2, &end, 10);
    } else {
        rule->nth = (unsigned)strtoul(colon + 1, &end, 10);
    }
    rule->ever = *end == '+';
    end += rule->ever;
    rule->code = *end == ':' ? (CUresult)strtoul(end + 1, NULL, 10) : CUDA_ERROR_UNKNOWN;
}

static void fw_report(void)
{
    const char *counts = getenv("FAULT_COUNTS");
    FILE *f = counts != NULL ? fopen(counts, "w") : NULL;

    simcuda_watch(NULL);
    simcuda_pause(NULL);
    for (unsigned i = 0; i < fw_n_rules; i++) {
        fprintf(stderr, "fault: %s failed %u of %u, %u out\n", fw_rules[i].name, fw_rules[i].failed,
                fw_rules[i].seen, fw_rules[i].out_at_first);
    }
    for (unsigned i = 0; f != NULL && i < FW_FUNCTIONS && fw_functions[i].name[0] != '\0'; i++) {
        fprintf(f, "%s %u %u\n", fw_functions[i].name, fw_functions[i].calls,
                fw_functions[i].with_out);
    }
    if (f != NULL) {
        fclose(f);
    }
}

static void fw_start(void)
{
    const char *rules = getenv("FAULT");
    const char *seed = getenv("FAULT_SEED");
    char *copy = strdup(rules != NULL ? rules : "");
    char *save = NULL;

    for (char *rule = strtok_r(copy, ";", &save); rule != NULL && fw_n_rules < FW_RULES;
         rule = strtok_r(NULL, ";", &save)) {
        fw_parse(rule);
    }
    free(copy);
    fw_random_state = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    atexit(fw_report);
    simcuda_watch(fw_watch);
    simcuda_pause(fw_pause);
}

#endif
