/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: cuGetProcAddress. A name gives the newest form that is no newer than the version asked for; forms newer than
 * the driver do not exist. With the per-thread flag the variant comes first, if the function has one. No lock: the
 * table is constant.
 */
#include <string.h>

#include "tools/simcuda/core.h"

bool sim_api_known(const char *name)
{
    for (size_t i = 0; i < sim_api_n_rows; i++) {
        if (strcmp(sim_api_rows[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static void *find(const char *name, int version, bool ptds, bool *exists_p)
{
    void *fn = NULL;
    for (size_t i = 0; i < sim_api_n_rows; i++) {
        const struct sim_api_row *row = &sim_api_rows[i];
        if (row->ptds != ptds || row->version > sim_options.version ||
            strcmp(row->name, name) != 0) {
            continue;
        }
        *exists_p = true;
        if (row->version <= version) { /* rows of one name ascend */
            memcpy(&fn, &row->fn, sizeof fn);
        }
    }
    return fn;
}

#define FUTURE_VERSION 14000

/* A form that no header has yet: a driver of SIMCUDA=version=14000 and later gives it to those who ask for such. */
/* NOLINTNEXTLINE(readability-function-size): the driver's signature */
static CUresult CUDAAPI future_launch(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                      unsigned int gridDimZ, unsigned int blockDimX,
                                      unsigned int blockDimY, unsigned int blockDimZ,
                                      unsigned int sharedMemBytes, CUstream hStream,
                                      void **kernelParams, void **extra)
{
    return cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                          sharedMemBytes, hStream, kernelParams, extra);
}

static bool is_future(const char *name, int version)
{
    return sim_options.version >= FUTURE_VERSION && version >= FUTURE_VERSION &&
           strcmp(name, "cuLaunchKernel") == 0;
}

static CUresult look_up(const char *symbol, void **pfn, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    if (symbol != NULL &&
        symbol[0] == '\0') { /* a probe of the runtime's; driver 580 answers success */
        if (pfn != NULL) {
            *pfn = NULL;
        }
        return CUDA_SUCCESS;
    }
    if (symbol == NULL || pfn == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool known = (flags & ~(cuuint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                                              CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) == 0;
    if (!known) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool exists = false;
    void *fn = NULL;
    if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
        fn = find(symbol, version, true, &exists);
    }
    if (fn == NULL) {
        fn = find(symbol, version, false, &exists);
    }
    if (is_future(symbol, version)) {
        CUresult(CUDAAPI *const form)(CUfunction, unsigned int, unsigned int, unsigned int,
                                      unsigned int, unsigned int, unsigned int, unsigned int,
                                      CUstream, void **, void **) = future_launch;
        memcpy(&fn, &form, sizeof fn);
    }
    *pfn = fn;
    if (status != NULL) {
        *status = fn != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : exists   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                             : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    /* With a place for the status, a name that is not found is no error. */
    return fn != NULL || status != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    SIM_ENTER(SIM_ANYTIME, t);
    return sim_leave(look_up(symbol, pfn, cudaVersion, flags, NULL));
}

CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus)
{
    SIM_ENTER(SIM_ANYTIME, t);
    return sim_leave(look_up(symbol, pfn, cudaVersion, flags, symbolStatus));
}

/* No export table is known to us: each is an undocumented contract between NVIDIA's own libraries. */
CUresult CUDAAPI cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    SIM_ENTER(SIM_ANYTIME, t);
    if (ppExportTable == NULL || pExportTableId == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *ppExportTable = NULL;
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
}
