/* SPDX-License-Identifier: Apache-2.0 */
/* NVTX ranges for a Python program, as PyTorch's: the functions of NVTX are not to be had from a library. */
#include <nvtx3/nvToolsExt.h>

__attribute__((visibility("default"))) void range_push(const char *name);
__attribute__((visibility("default"))) void range_pop(void);

void range_push(const char *name)
{
    nvtxRangePushA(name);
}

void range_pop(void)
{
    nvtxRangePop();
}
