/* SPDX-License-Identifier: Apache-2.0 */
/* What content.cu and the host agree on. */
#ifndef PS_TESTS_BENCH_CONTENT_H
#define PS_TESTS_BENCH_CONTENT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#    define CONTENT_FN static __host__ __device__ __forceinline__
#else
#    define CONTENT_FN static inline
#endif

struct content_params {
    uint64_t seed;
    uint32_t page_shift; /* log2 of the 16-byte words of a page */
    uint32_t uniform_permille;
};

/* Every page is drawn for itself. */
CONTENT_FN bool content_is_uniform(uint64_t seed, uint64_t page, uint32_t permille)
{
    uint64_t z = seed + (page + 1) * UINT64_C(0xd1342543de82ef95);

    z = (z ^ z >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 32) * UINT64_C(0x94d049bb133111eb);
    return (z >> 20) % 1000 < permille;
}

#endif
