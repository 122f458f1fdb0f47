/* SPDX-License-Identifier: Apache-2.0 */
/* A library with an NVTX of its own. */
#include <nvtx3/nvToolsExt.h>

__attribute__((visibility("default"))) int part_push(const char *name);
__attribute__((visibility("default"))) int part_pop(void);

int part_push(const char *name)
{
    return nvtxRangePushA(name);
}

int part_pop(void)
{
    return nvtxRangePop();
}
