/* SPDX-License-Identifier: Apache-2.0 */
/* A launch of a version that nobody knows yet (simcuda's `version=14000`): its first call ends paging. */
#ifndef TESTS_SIM_FUTURE_H
#define TESTS_SIM_FUTURE_H

#include "tests/sim/scenario.h"

typedef CUresult(CUDAAPI *launch_fn)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                     unsigned, unsigned, CUstream, void **, void **);

static launch_fn future_launch;

static void look_up(void)
{
    CUdriverProcAddressQueryResult status;
    void *fn = NULL;

    sc_ok(cuGetProcAddress_v2("cuLaunchKernel", &fn, 14000, 0, &status));
    if (fn == NULL) {
        sc_fail();
    }
    memcpy(&future_launch, &fn, sizeof(fn));
}

#endif
