/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of shapes.h for a GPU. Parameters beyond 4 KiB want CUDA 12.1. */
#include <stdint.h>

template <int words> struct bench_words {
    uint64_t word[words];
};

#define P8(_n)                                                                                     \
    uint64_t _n##0, uint64_t _n##1, uint64_t _n##2, uint64_t _n##3, uint64_t _n##4,                \
        uint64_t _n##5, uint64_t _n##6, uint64_t _n##7
#define P32(_n)  P8(_n##0), P8(_n##1), P8(_n##2), P8(_n##3)
#define P128(_n) P32(_n##0), P32(_n##1), P32(_n##2), P32(_n##3)
#define P512(_n) P128(_n##0), P128(_n##1), P128(_n##2), P128(_n##3)

extern "C" {
__global__ void bench_1x8(uint64_t)
{
}
__global__ void bench_32x8(P32(p))
{
}
__global__ void bench_1x256(const __grid_constant__ bench_words<32> p)
{
}
__global__ void bench_512x8(P512(p))
{
}
__global__ void bench_1x4096(const __grid_constant__ bench_words<512> p)
{
}
__global__ void bench_1x32760(const __grid_constant__ bench_words<4095> p)
{
}
}
