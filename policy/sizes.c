/* SPDX-License-Identifier: Apache-2.0 */
/* Size classes; see sizes.h. */
#include "policy/sizes.h"

#include "policy/base/assert.h"

uint64_t ps_size_round(uint64_t bytes, uint64_t granularity)
{
    uint64_t unit = granularity;
    while (unit * 32 <= bytes) {
        unit *= 2;
    }
    const uint64_t largest = granularity << (PS_N_CLASSES - 1);
    if (unit > largest) {
        unit = largest;
    }
    return (bytes + unit - 1) / unit * unit;
}

void ps_size_split(uint64_t rounded, uint64_t granularity, uint32_t n_p[PS_N_CLASSES])
{
    ps_assert(rounded % granularity == 0);
    for (int k = PS_N_CLASSES - 1; k >= 0; k--) {
        const uint64_t size = granularity << k;
        n_p[k] = (uint32_t)(rounded / size);
        rounded -= (uint64_t)n_p[k] * size;
    }
}
