/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For kernel_bench: fills memory with what a seed says, and compares it with that again, at the memory's speed. None of
 * it uses the kernels that are measured.
 */
#include "tests/bench/kernels/content.h"

typedef unsigned long long u64;

static __device__ __forceinline__ u64 mix(u64 z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* 16 bytes of the content; host and device agree on which pages are uniform (content.h). */
static __device__ __forceinline__ ulonglong2 content_at(const struct content_params &c, u64 i)
{
    const u64 page = i >> c.page_shift;
    if (content_is_uniform(c.seed, page, c.uniform_permille)) {
        const u64 h = mix(c.seed + page * 3);
        return h % 2 == 0 ? make_ulonglong2(0, 0) : make_ulonglong2(h, mix(h));
    }
    const u64 h = mix(c.seed ^ (i + 1) * 0x9e3779b97f4a7c15ull);
    return make_ulonglong2(h, mix(h + 1));
}

extern "C" __global__ void bench_fill(u64 at, u64 n, struct content_params c)
{
    ulonglong2 *const p = (ulonglong2 *)at;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
         i += (u64)gridDim.x * blockDim.x) {
        p[i] = content_at(c, i);
    }
}

extern "C" __global__ void bench_check(u64 at, u64 n, struct content_params c, u64 errors)
{
    const ulonglong2 *const p = (const ulonglong2 *)at;
    u64 wrong = 0;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
         i += (u64)gridDim.x * blockDim.x) {
        const ulonglong2 want = content_at(c, i);
        wrong += p[i].x != want.x || p[i].y != want.y;
    }
    if (wrong != 0) {
        atomicAdd((u64 *)errors, wrong);
    }
}

/* Numbers between -2 and 2, in bfloat16, 8 to 16 bytes. */
extern "C" __global__ void bench_numbers(u64 at, u64 n, u64 seed)
{
    ulonglong2 *const p = (ulonglong2 *)at;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
         i += (u64)gridDim.x * blockDim.x) {
        const u64 h = mix(seed ^ (i + 1) * 0x9e3779b97f4a7c15ull);
        const u64 keep = 0x83ff83ff83ff83ffull;
        p[i] = make_ulonglong2((h & keep) | 0x3c003c003c003c00ull,
                               (mix(h) & keep) | 0x3c003c003c003c00ull);
    }
}

extern "C" __global__ void bench_same(u64 a, u64 b, u64 n, u64 errors)
{
    const ulonglong2 *const p = (const ulonglong2 *)a;
    const ulonglong2 *const q = (const ulonglong2 *)b;
    u64 wrong = 0;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
         i += (u64)gridDim.x * blockDim.x) {
        wrong += p[i].x != q[i].x || p[i].y != q[i].y;
    }
    if (wrong != 0) {
        atomicAdd((u64 *)errors, wrong);
    }
}

/* Reads it all, so that nothing else is left in the caches, and nothing there is dirty. */
extern "C" __global__ void bench_read(u64 at, u64 n, u64 never)
{
    const ulonglong2 *const p = (const ulonglong2 *)at;
    u64 sum = 0;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
         i += (u64)gridDim.x * blockDim.x) {
        sum ^= p[i].x ^ p[i].y;
    }
    if (never != 0) {
        *(u64 *)never = sum;
    }
}

extern "C" __global__ void bench_empty(void)
{
}

struct large {
    u64 words[511];
};

/* As many parameters as a batch has. */
extern "C" __global__ void bench_large(const __grid_constant__ struct large l)
{
    if (l.words[0] == 1) {
        *(u64 *)l.words[510] = 1;
    }
}
