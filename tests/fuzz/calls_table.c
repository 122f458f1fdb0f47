/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every row of hooks.def: its function, found by dlsym as a job would, how often it was called, and what the plain
 * driver answers to a call with zeros. Set up by one thread; counters are atomics.
 */
#include "tests/fuzz/calls.h"

#include <dlfcn.h>

#define ANSWERS "FUZZ_PLAIN_ANSWERS"

extern bool simcuda_mapped(CUdeviceptr address);

void *fz_real[PS_N_HOOKS];
bool fz_watch;
static _Thread_local const struct fz_tensor *named[FZ_TENSORS];
static _Thread_local unsigned n_named;
bool fz_stash;
static _Atomic unsigned called[PS_N_HOOKS];
static _Atomic unsigned called_out[PS_N_HOOKS]; /* of those, with what they name out */
static _Atomic unsigned zero_calls[PS_N_HOOKS];
static int answers[PS_N_HOOKS];

static const char *const symbols[PS_N_HOOKS] = {
#define HOOK(_symbol, ...) #_symbol,
#define HOOK_BODY          HOOK
#include "shim/hooks.def"
#undef HOOK
#undef HOOK_BODY
};

void fz_count(unsigned row)
{
    called[row]++;
    for (unsigned i = 0; i < n_named; i++) {
        if (fz_is_out(named[i])) {
            called_out[row]++;
            return;
        }
    }
}

bool fz_is_out(const struct fz_tensor *t)
{
    return fz_watch && t->live && t->kind == FZ_POOL && !simcuda_mapped(t->at);
}

void fz_name(const struct fz_tensor *t)
{
    if (t == NULL) {
        n_named = 0;
    } else if (n_named < FZ_TENSORS) {
        named[n_named++] = t;
    }
}

/* Rows whose statements look at addresses, or bring everything back. */
static bool names_memory(unsigned row)
{
    static const char *const statements[PS_N_HOOKS] = {
#define TEXT(...) #__VA_ARGS__
#define HOOK(_symbol, _name, _version, _variant, _danger, _stream, _params, _args, ...)            \
    TEXT(__VA_ARGS__),
#define HOOK_BODY(...) "",
#include "shim/hooks.def"
#undef HOOK
#undef HOOK_BODY
    };

    return strstr(statements[row], "ps_scan_") != NULL ||
           strstr(statements[row], "REFUSE") != NULL ||
           strstr(statements[row], "ps_hook_unseen") != NULL;
}

void fz_ok(CUresult result, const char *call)
{
    fz_require(result == CUDA_SUCCESS, "%s gives %d", call, (int)result);
}

/* With zeros these end paging for the whole process, end the context, begin a capture, or answer now this, now that. */
static bool spared(unsigned row)
{
    if (strncmp(symbols[row], "cuStreamQuery", 13) == 0) {
        return true; /* answers what there is to do */
    }
    switch (row) {
    case PS_HOOK_cuCtxDetach:
    case PS_HOOK_cuLaunch:
    case PS_HOOK_cuLaunchGrid:
    case PS_HOOK_cuLaunchGridAsync:
    case PS_HOOK_cuDevicePrimaryCtxRelease:
    case PS_HOOK_cuDevicePrimaryCtxRelease_v2:
    case PS_HOOK_cuDevicePrimaryCtxReset:
    case PS_HOOK_cuDevicePrimaryCtxReset_v2:
    case PS_HOOK_cuStreamBeginCapture:
    case PS_HOOK_cuStreamBeginCapture_ptsz:
    case PS_HOOK_cuStreamBeginCapture_v2:
    case PS_HOOK_cuStreamBeginCapture_v2_ptsz:
    case PS_HOOK_cuStreamBeginCaptureToGraph:
    case PS_HOOK_cuStreamBeginCaptureToGraph_ptsz:
        return true;
    default:
        return false;
    }
}

/* Zeros enough for the longest list, and for structures by value. */
static int call_with_zeros(unsigned row)
{
    typedef CUresult any(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                         uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                         uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    any *const f = (any *)fz_real[row];

    return (int)f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

void fz_table_init(void)
{
    const char *text = getenv(ANSWERS);

    for (unsigned i = 0; i < PS_N_HOOKS; i++) {
        fz_real[i] = dlsym(RTLD_DEFAULT, symbols[i]);
        fz_require(fz_real[i] != NULL, "no %s", symbols[i]);
        answers[i] = -1;
        if (text != NULL) {
            char *end;

            answers[i] = (int)strtol(text, &end, 10);
            text = *end == ',' ? end + 1 : end;
        }
    }
}

void fz_table_ask_plain(void)
{
    static char text[PS_N_HOOKS * 8];
    CUcontext ctx;
    size_t n = 0;

    unsetenv(ANSWERS);
    fz_table_init();
    PLAIN(cuInit(0));
    PLAIN(cuDevicePrimaryCtxRetain(&ctx, 0));
    PLAIN(cuCtxSetCurrent(ctx));
    for (unsigned i = 0; i < PS_N_HOOKS; i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%d,",
                              spared(i) ? -1 : call_with_zeros(i));
    }
    setenv(ANSWERS, text, 1);
}

void fz_table_zeros(unsigned row)
{
    row %= PS_N_HOOKS;
    if (spared(row) || answers[row] < 0) {
        return;
    }
    FZ_SAY("zeros to %s\n", symbols[row]);
    const int found = call_with_zeros(row);

    zero_calls[row]++;
    fz_require(found == answers[row], "%s(0...) gives %d; plain, %d", symbols[row], found,
               answers[row]);
}

unsigned fz_table_row(const char *symbol)
{
    unsigned row = 0;

    while (row < PS_N_HOOKS && strcmp(symbols[row], symbol) != 0) {
        row++;
    }
    fz_require(row < PS_N_HOOKS, "no %s", symbol);
    return row;
}

void fz_table_report(void)
{
    const char *path = getenv("FUZZ_COVERAGE");
    FILE *f = path == NULL ? NULL : fopen(path, "w");

    if (f == NULL) {
        return;
    }
    for (unsigned i = 0; i < PS_N_HOOKS; i++) {
        fprintf(f, "%s %u %u %u %s\n", symbols[i], called[i], called_out[i], zero_calls[i],
                names_memory(i) ? "memory" : "-");
    }
    fclose(f);
}
