/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: modules, libraries, functions and kernels. Every image holds every registered host kernel: functions are
 * found by name, the image's bytes are not looked at. Under the big lock.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/simcuda/core.h"

extern const struct ps_sim_kernel __start_ps_sim_kernels[] __attribute__((visibility("hidden")));
extern const struct ps_sim_kernel __stop_ps_sim_kernels[] __attribute__((visibility("hidden")));

struct added { /* kernels of the program itself */
    struct added *next;
    const struct ps_sim_kernel *rows;
    size_t n;
};
static struct added *added;

SIM_API void simcuda_add_kernels(const struct ps_sim_kernel *rows, size_t n);
void simcuda_add_kernels(const struct ps_sim_kernel *rows, size_t n)
{
    sim_lock();
    struct added *a = sim_calloc(1, sizeof *a);
    a->rows = rows;
    a->n = n;
    a->next = added;
    added = a;
    sim_unlock();
}

static const struct ps_sim_kernel *find_row(const char *name)
{
    for (const struct added *a = added; a != NULL; a = a->next) {
        for (size_t i = 0; i < a->n; i++) {
            if (strcmp(a->rows[i].name, name) == 0) {
                return &a->rows[i];
            }
        }
    }
    for (const struct ps_sim_kernel *row = __start_ps_sim_kernels; row < __stop_ps_sim_kernels;
         row++) {
        if (strcmp(row->name, name) == 0) {
            return row;
        }
    }
    return NULL;
}

static struct sim_module *new_module(struct sim_ctx *ctx, bool is_library)
{
    struct sim_module *m = sim_calloc(1, sizeof *m);
    m->is_library = is_library;
    m->ctx = ctx;
    sim_handle_add(m, is_library ? SIM_K_LIBRARY : SIM_K_MODULE);
    return m;
}

static void free_module(struct sim_module *m)
{
    sim_handle_remove(m, m->is_library ? SIM_K_LIBRARY : SIM_K_MODULE);
    while (m->funcs != NULL) {
        struct sim_func *f = m->funcs;
        m->funcs = f->next;
        sim_handle_remove(f, SIM_K_FUNCTION);
        free(f);
    }
    free(m);
}

static CUresult get_function(struct sim_module *m, const char *name, struct sim_func **func_p)
{
    if (name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (struct sim_func *f = m->funcs; f != NULL; f = f->next) {
        if (strcmp(f->row->name, name) == 0) {
            *func_p = f;
            return CUDA_SUCCESS;
        }
    }
    const struct ps_sim_kernel *row = find_row(name);
    if (row == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    struct sim_func *f = sim_calloc(1, sizeof *f);
    f->row = row;
    f->module = m;
    f->is_kernel = m->is_library;
    f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    f->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
    f->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = 90;
    f->attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 90;
    f->next = m->funcs;
    m->funcs = f;
    sim_handle_add(f, SIM_K_FUNCTION);
    *func_p = f;
    return CUDA_SUCCESS;
}

CUresult sim_func_check(CUfunction handle, struct sim_func **func_p)
{
    if (!sim_handle_is(handle, SIM_K_FUNCTION)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *func_p = (struct sim_func *)handle;
    return CUDA_SUCCESS;
}

size_t sim_param_offset(const struct ps_sim_kernel *row, size_t index)
{
    size_t offset = 0;
    for (size_t i = 0; i <= index; i++) {
        offset = SIM_ROUND(offset, row->aligns[i]);
        if (i < index) {
            offset += row->sizes[i];
        }
    }
    return offset;
}

/* ---- modules ---- */

static CUresult load(struct sim_thread *t, CUmodule *module, const void *image)
{
    if (module == NULL || image == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *module = (CUmodule)new_module(sim_ctx_current(t), false);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    return sim_leave(load(t, module, image));
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                    CUjit_option *options, void **optionValues)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    if (numOptions > 0 && (options == NULL || optionValues == NULL)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(load(t, module, image));
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    return sim_leave(load(t, module, fatCubin));
}

CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *fname)
{
    SIM_ENTER(SIM_CTX | SIM_UNSAFE, t);
    return sim_leave(load(t, module, fname));
}

CUresult CUDAAPI cuModuleUnload(CUmodule hmod)
{
    SIM_ENTER(SIM_UNSAFE, t);
    if (!sim_handle_is(hmod, SIM_K_MODULE)) {
        return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    free_module((struct sim_module *)hmod); /* queued launches hold the rows, not the module */
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    SIM_ENTER(0, t);
    if (mode == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *mode = CU_MODULE_LAZY_LOADING;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    SIM_ENTER(0, t);
    struct sim_func *f;
    if (hfunc == NULL || !sim_handle_is(hmod, SIM_K_MODULE)) {
        return sim_leave(hfunc == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    }
    const CUresult result = get_function((struct sim_module *)hmod, name, &f);
    if (result == CUDA_SUCCESS) {
        *hfunc = (CUfunction)f;
    }
    return sim_leave(result);
}

/* Host kernels have no device globals. */
CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod,
                                      const char *name)
{
    SIM_ENTER(0, t);
    (void)dptr;
    (void)bytes;
    if (name == NULL || !sim_handle_is(hmod, SIM_K_MODULE)) {
        return sim_leave(name == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    }
    return sim_leave(CUDA_ERROR_NOT_FOUND);
}

/* ---- libraries ---- */

/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                   void **jitOptionsValues, unsigned int numJitOptions,
                                   CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                   unsigned int numLibraryOptions)
{
    SIM_ENTER(SIM_UNSAFE, t);
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    if (library == NULL || code == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *library = (CUlibrary)new_module(NULL, true);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    SIM_ENTER(SIM_UNSAFE, t);
    if (!sim_handle_is(library, SIM_K_LIBRARY)) {
        return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    free_module((struct sim_module *)library);
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    SIM_ENTER(0, t);
    struct sim_func *f;
    if (pKernel == NULL || !sim_handle_is(library, SIM_K_LIBRARY)) {
        return sim_leave(pKernel == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    }
    const CUresult result = get_function((struct sim_module *)library, name, &f);
    if (result == CUDA_SUCCESS) {
        *pKernel = (CUkernel)f;
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    SIM_ENTER(SIM_CTX, t);
    if (pMod == NULL || !sim_handle_is(library, SIM_K_LIBRARY)) {
        return sim_leave(pMod == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    }
    return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
}

/* A kernel is its own function in every context. */
CUresult CUDAAPI cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    SIM_ENTER(SIM_CTX, t);
    struct sim_func *f;
    const CUresult result = sim_func_check((CUfunction)kernel, &f);
    if (result == CUDA_SUCCESS && pFunc != NULL) {
        *pFunc = (CUfunction)f;
    }
    return sim_leave(pFunc == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    SIM_ENTER(0, t);
    struct sim_func *f;
    const CUresult result = sim_func_check((CUfunction)kernel, &f);
    if (result == CUDA_SUCCESS && pLib != NULL) {
        *pLib = (CUlibrary)f->module;
    }
    return sim_leave(pLib == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}
