/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: small kernels for tests of the driver and of what runs on it: copying, adding and hashing bytes, gathering
 * through arrays of pointers, a product whose operands only a preparing kernel names, flags to spin on, and structures
 * with packed pointers.
 */
#include <string.h>

#include "kernels/dual.h"
#include "tools/simcuda/sim.h"
#include "tools/simcuda/testkernels.h"

PS_KERNEL3(sim_copy, uint64_t, dst, uint64_t, src, uint64_t, bytes)
{
    for (uint64_t i = PS_BLOCK; i < bytes; i += PS_N_BLOCKS) {
        ((uint8_t *)dst)[i] = ((const uint8_t *)src)[i];
    }
}

PS_KERNEL3(sim_add, uint64_t, words, uint32_t, value, uint64_t, n)
{
    for (uint64_t i = PS_BLOCK; i < n; i += PS_N_BLOCKS) {
        ((uint32_t *)words)[i] += value;
    }
}

PS_KERNEL3(sim_fill, uint64_t, words, uint32_t, value, uint64_t, n)
{
    for (uint64_t i = PS_BLOCK; i < n; i += PS_N_BLOCKS) {
        ((uint32_t *)words)[i] = value;
    }
}

static uint64_t hash(const uint8_t *p, uint64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}

/* The hash of bytes into one word. */
PS_KERNEL3(sim_hash, uint64_t, out, uint64_t, src, uint64_t, bytes)
{
    if (PS_BLOCK == 0) {
        *(uint64_t *)out = hash((const uint8_t *)src, bytes);
    }
}

/* out[i] = *(uint32_t *)pointers[i]; the array of pointers is in device memory. */
PS_KERNEL3(sim_gather, uint64_t, out, uint64_t, pointers, uint64_t, n)
{
    for (uint64_t i = PS_BLOCK; i < n; i += PS_N_BLOCKS) {
        ((uint32_t *)out)[i] = *(const uint32_t *)((const uint64_t *)pointers)[i];
    }
}

/* Stores the addresses of a product's operands in device memory. */
PS_KERNEL2(sim_prepare, uint64_t, slots, struct sim_operands, operands)
{
    if (PS_BLOCK == 0) {
        memcpy((void *)slots, &operands, sizeof operands);
    }
}

/* out[i] = a[i] * b[i], with all three addresses read from device memory. */
PS_KERNEL2(sim_product, uint64_t, slots, uint64_t, n)
{
    struct sim_operands operands;
    memcpy(&operands, (const void *)slots, sizeof operands);
    for (uint64_t i = PS_BLOCK; i < n; i += PS_N_BLOCKS) {
        ((uint32_t *)operands.out)[i] =
            ((const uint32_t *)operands.a)[i] * ((const uint32_t *)operands.b)[i];
    }
}

PS_KERNEL2(sim_set_flag, uint64_t, flag, uint32_t, value)
{
    __atomic_store_n((uint32_t *)flag, value, __ATOMIC_RELEASE);
}

/* Occupies its stream until the flag has the value. */
PS_KERNEL2(sim_spin, uint64_t, flag, uint32_t, value)
{
    if (__atomic_load_n((const uint32_t *)flag, __ATOMIC_ACQUIRE) != value) {
        simcuda_again();
    }
}

/* Two ranks meet: each tells its own count and occupies its stream until the other's is as high. */
PS_KERNEL3(sim_match, uint64_t, mine, uint64_t, theirs, uint32_t, count)
{
    __atomic_store_n((uint32_t *)mine, count, __ATOMIC_RELEASE);
    if (__atomic_load_n((const uint32_t *)theirs, __ATOMIC_ACQUIRE) < count) {
        simcuda_again();
    }
}

/* A structure whose pointers lie at any alignment and that is mostly unused. */
PS_KERNEL1(sim_packed, struct sim_packed_args, args)
{
    for (uint64_t i = PS_BLOCK; i < args.n; i += PS_N_BLOCKS) {
        ((uint8_t *)args.dst)[i] = ((const uint8_t *)args.src)[i];
    }
}
