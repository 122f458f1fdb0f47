/* SPDX-License-Identifier: Apache-2.0 */
/* An NVTX tool such as a profiler: takes three callbacks and counts. */
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#define VISIBLE __attribute__((visibility("default")))

VISIBLE int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);
VISIBLE int nvtx_tool_count(void);

static int level, count;

VISIBLE int nvtx_tool_count(void)
{
    return count;
}

static int NVTX_API on_push(const char *message)
{
    (void)message;
    count++;
    return level++;
}

static int NVTX_API on_pop(void)
{
    count++;
    return --level;
}

static nvtxStringHandle_t NVTX_API on_register(nvtxDomainHandle_t domain, const char *text)
{
    (void)domain;
    (void)text;
    count++;
    return (nvtxStringHandle_t)(void *)&count;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
    const NvtxExportTableCallbacks *table = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable core = NULL, core2 = NULL;
    unsigned size = 0;

    table->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &size);
    *core[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)on_push;
    *core[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)on_pop;
    table->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &core2, &size);
    *core2[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)on_register;
    return 1;
}
