/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One kernel source for nvcc and for the host compiler. Under nvcc PS_KERNELn makes an extern "C"
 * __global__ function of n by-value parameters, read where the driver put them (__grid_constant__).
 * Under a host C compiler it makes a function that runs ONE BLOCK with ONE THREAD, and a row for
 * simcuda's registry (an ELF section, so linking the object is enough). Kernels are therefore
 * written with block-strided and thread-strided loops and must be right for any grid and block.
 *
 * A host kernel touches device memory through plain pointers: simcuda maps it at its device
 * addresses. Blocks of one launch may run on several host threads, or take turns at PS_YIELD.
 * PS_BLOCK, PS_N_BLOCKS and PS_YIELD can be used in a kernel's own body only.
 */
#ifndef PS_KERNELS_DUAL_H
#define PS_KERNELS_DUAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What one load or store of a thread moves. */
struct ps_vec {
    uint64_t x, y;
}
#ifdef __CUDACC__
__attribute__((aligned(16)));
#else
__attribute__((aligned(16), may_alias));
#endif

#ifdef __CUDACC__

#    define PS_DEVICE         static __device__ __forceinline__
#    define PS_BLOCK          ((uint64_t)blockIdx.x)
#    define PS_N_BLOCKS       ((uint64_t)gridDim.x)
#    define PS_THREAD         ((uint32_t)threadIdx.x)
#    define PS_N_THREADS      ((uint32_t)blockDim.x)
#    define PS_SYNC()         __syncthreads()
#    define PS_SHARED         __shared__
#    define PS_FENCE()        __threadfence()
#    define PS_FENCE_SYSTEM() __threadfence_system()
/* Logical OR over the block's threads, seen by all; also a barrier. */
#    define PS_BLOCK_ANY(_x) (__syncthreads_or((_x) ? 1 : 0) != 0)
#    define PS_UNROLL        _Pragma("unroll")
#    define PS_NO_UNROLL     _Pragma("unroll 1")
/* For blocks of one warp, all lanes together. */
#    define PS_LANES       32u
#    define PS_SYNC_WARP() __syncwarp()
#    define PS_ANY(_x)     (__any_sync(~0u, (_x)) != 0)
#    define PS_BALLOT(_x)  __ballot_sync(~0u, (_x))
/* That of lane 0. */
#    define PS_FIRST(_x) __shfl_sync(~0u, (_x), 0)
/* How many of the lanes below are in the ballot. */
#    define PS_RANK(_ballot)  ((uint32_t)__popc((_ballot) & ((1u << threadIdx.x) - 1)))
#    define PS_COUNT(_ballot) ((uint32_t)__popc(_ballot))
/* One after the other, by all together: those lanes that say so. */
#    define PS_EACH_LANE(_lane, _x)                                                                \
        for (uint32_t left_ = PS_BALLOT(_x), _lane = __ffs((int)left_) - 1; left_ != 0;            \
             left_ &= left_ - 1, _lane = __ffs((int)left_) - 1)
#    define PS_OF_LANE(_x, _lane) __shfl_sync(~0u, (_x), (int)(_lane))
#    define PS_YIELD()            ((void)0)

/* Returns the value before. */
PS_DEVICE uint64_t ps_atomic_add(uint64_t *p, uint64_t v)
{
    return atomicAdd((unsigned long long *)p, (unsigned long long)v);
}

/* The value after. */
PS_DEVICE uint64_t ps_atomic_sum(uint64_t *p, uint64_t v)
{
    return ps_atomic_add(p, v) + v;
}

/* As ps_atomic_add; whoever adds later sees all that this thread did or saw before, if both add in this way. */
PS_DEVICE uint64_t ps_atomic_add_ordered(uint64_t *p, uint64_t v)
{
    unsigned long long before;
    asm volatile("atom.acq_rel.gpu.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(p), "l"((unsigned long long)v)
                 : "memory");
    return before;
}

/* Whole and past the first-level cache, but in no order with other accesses. */
PS_DEVICE uint32_t ps_load_u32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

PS_DEVICE uint64_t ps_load_u64(const uint64_t *p)
{
    unsigned long long v;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

/* Whoever reads v, host included, sees all that this thread did or saw before. */
PS_DEVICE void ps_publish_u64(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"((unsigned long long)v) : "memory");
}

/* These five: device memory, not shared memory. */
PS_DEVICE struct ps_vec ps_load(const struct ps_vec *p)
{
    const ulonglong2 v = __ldca((const ulonglong2 *)p);
    const struct ps_vec w = {v.x, v.y};
    return w;
}

/* Past the first-level cache. */
PS_DEVICE struct ps_vec ps_load_fresh(const struct ps_vec *p)
{
    unsigned long long x, y;
    asm volatile("ld.relaxed.gpu.v2.u64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "l"(p) : "memory");
    const struct ps_vec v = {x, y};
    return v;
}

/* Data that nobody reads again soon. */
PS_DEVICE struct ps_vec ps_load_stream(const struct ps_vec *p)
{
    const ulonglong2 v = __ldcs((const ulonglong2 *)p);
    const struct ps_vec w = {v.x, v.y};
    return w;
}

PS_DEVICE void ps_store(struct ps_vec *p, struct ps_vec v)
{
    __stwb((ulonglong2 *)p, make_ulonglong2(v.x, v.y));
}

PS_DEVICE void ps_store_stream(struct ps_vec *p, struct ps_vec v)
{
    __stcs((ulonglong2 *)p, make_ulonglong2(v.x, v.y));
}

/* log2 of a power of two. */
PS_DEVICE uint32_t ps_log2(uint32_t v)
{
    return (uint32_t)(__ffs((int)v) - 1);
}

/* One warp a block, and so few registers that it runs beside a kernel that takes nearly all of them. */
#    if __CUDACC_VER_MAJOR__ < 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ < 4)
#        define PS_THIN __launch_bounds__(32)
#    elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#        define PS_THIN __maxnreg__(40)
#    else
#        define PS_THIN __maxnreg__(32)
#    endif

#    define PS_KERNEL1(_name, _t1, _a1)                                                            \
        extern "C" __global__ void _name(const __grid_constant__ _t1 _a1)
#    define PS_THIN_KERNEL1(_name, _t1, _a1)                                                       \
        extern "C" __global__ void PS_THIN _name(const __grid_constant__ _t1 _a1)
#    define PS_KERNEL2(_name, _t1, _a1, _t2, _a2)                                                  \
        extern "C" __global__ void _name(const __grid_constant__ _t1 _a1,                          \
                                         const __grid_constant__ _t2 _a2)
#    define PS_KERNEL3(_name, _t1, _a1, _t2, _a2, _t3, _a3)                                        \
        extern "C" __global__ void _name(const __grid_constant__ _t1 _a1,                          \
                                         const __grid_constant__ _t2 _a2,                          \
                                         const __grid_constant__ _t3 _a3)
#    define PS_KERNEL4(_name, _t1, _a1, _t2, _a2, _t3, _a3, _t4, _a4)                              \
        extern "C" __global__ void _name(                                                          \
            const __grid_constant__ _t1 _a1, const __grid_constant__ _t2 _a2,                      \
            const __grid_constant__ _t3 _a3, const __grid_constant__ _t4 _a4)

#else /* host: one thread a block */

#    include "kernels/simkernel.h"

#    define PS_DEVICE    static inline __attribute__((unused))
#    define PS_BLOCK     ((uint64_t)ps_sim_block_->block)
#    define PS_N_BLOCKS  ((uint64_t)ps_sim_block_->n_blocks)
#    define PS_THREAD    0u
#    define PS_N_THREADS 1u
#    define PS_SYNC()    ((void)0)
#    define PS_SHARED
/* The host's atomics below order everything by themselves (and TSan knows no fences). */
#    define PS_FENCE()        ((void)0)
#    define PS_FENCE_SYSTEM() ((void)0)
#    define PS_BLOCK_ANY(_x)  (_x)
#    define PS_UNROLL
#    define PS_NO_UNROLL
#    define PS_LANES          1u
#    define PS_SYNC_WARP()    ((void)0)
#    define PS_ANY(_x)        (_x)
#    define PS_BALLOT(_x)     ((_x) ? 1u : 0u)
#    define PS_FIRST(_x)      ((_x) + 0) /* what a thread gives itself */
#    define PS_RANK(_ballot)  ((void)(_ballot), 0u)
#    define PS_COUNT(_ballot) (_ballot)
#    define PS_EACH_LANE(_lane, _x)                                                                \
        for (uint32_t left_ = PS_BALLOT(_x), _lane = 0; left_ != 0; left_ = 0)
#    define PS_OF_LANE(_x, _lane) ((void)(_lane), (_x))
/* Another block of this launch may run here. */
#    define PS_YIELD()                                                                             \
        (ps_sim_block_->yield != NULL ? ps_sim_block_->yield(ps_sim_block_) : (void)0)

/* Pairs with itself and with the loads below. */
PS_DEVICE uint64_t ps_atomic_add(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

/* GCC 12.2 at -O2 takes v for the value before, once it has added it (pass forward-propagate): v is hidden from it. */
PS_DEVICE uint64_t ps_atomic_sum(uint64_t *p, uint64_t v)
{
    uint64_t added = v;
    __asm__("" : "+r"(added));
    return ps_atomic_add(p, v) + added;
}

PS_DEVICE uint64_t ps_atomic_add_ordered(uint64_t *p, uint64_t v)
{
    return ps_atomic_add(p, v);
}

PS_DEVICE uint32_t ps_load_u32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

PS_DEVICE uint64_t ps_load_u64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

PS_DEVICE void ps_publish_u64(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

PS_DEVICE struct ps_vec ps_load(const struct ps_vec *p)
{
    return *p;
}

PS_DEVICE struct ps_vec ps_load_fresh(const struct ps_vec *p)
{
    return *p;
}

PS_DEVICE struct ps_vec ps_load_stream(const struct ps_vec *p)
{
    return *p;
}

PS_DEVICE void ps_store(struct ps_vec *p, struct ps_vec v)
{
    *p = v;
}

PS_DEVICE void ps_store_stream(struct ps_vec *p, struct ps_vec v)
{
    *p = v;
}

PS_DEVICE uint32_t ps_log2(uint32_t v)
{
    return (uint32_t)__builtin_ctz(v);
}

#    define PS_SIM_UNWRAP_(...) __VA_ARGS__
/* The row's alignment is given so that the compiler cannot widen it: the section is an array. */
#    define PS_SIM_KERNEL_(_name, _n, _param_list, _arg_list, _size_list, _align_list)             \
        static void _name##_body(const struct ps_sim_block *ps_sim_block_,                         \
                                 PS_SIM_UNWRAP_ _param_list);                                      \
        static void _name##_run(const struct ps_sim_block *b_, void *const *p_)                    \
        {                                                                                          \
            _name##_body(b_, PS_SIM_UNWRAP_ _arg_list);                                            \
        }                                                                                          \
        static const size_t _name##_sizes[] = {PS_SIM_UNWRAP_ _size_list};                         \
        static const size_t _name##_aligns[] = {PS_SIM_UNWRAP_ _align_list};                       \
        static const struct ps_sim_kernel ps_sim_row_##_name                                       \
            __attribute__((section("ps_sim_kernels"), used, aligned(sizeof(void *)))) = {          \
                #_name, _name##_run, (_n), _name##_sizes, _name##_aligns};                         \
        static void _name##_body(const struct ps_sim_block *ps_sim_block_ __attribute__((unused)), \
                                 PS_SIM_UNWRAP_ _param_list)

#    define PS_KERNEL1(_name, _t1, _a1)                                                            \
        PS_SIM_KERNEL_(_name, 1, (const _t1 _a1), (*(const _t1 *)p_[0]), (sizeof(_t1)),            \
                       (_Alignof(_t1)))
#    define PS_THIN_KERNEL1 PS_KERNEL1
#    define PS_KERNEL2(_name, _t1, _a1, _t2, _a2)                                                  \
        PS_SIM_KERNEL_(_name, 2, (const _t1 _a1, const _t2 _a2),                                   \
                       (*(const _t1 *)p_[0], *(const _t2 *)p_[1]), (sizeof(_t1), sizeof(_t2)),     \
                       (_Alignof(_t1), _Alignof(_t2)))
#    define PS_KERNEL3(_name, _t1, _a1, _t2, _a2, _t3, _a3)                                        \
        PS_SIM_KERNEL_(_name, 3, (const _t1 _a1, const _t2 _a2, const _t3 _a3),                    \
                       (*(const _t1 *)p_[0], *(const _t2 *)p_[1], *(const _t3 *)p_[2]),            \
                       (sizeof(_t1), sizeof(_t2), sizeof(_t3)),                                    \
                       (_Alignof(_t1), _Alignof(_t2), _Alignof(_t3)))
#    define PS_KERNEL4(_name, _t1, _a1, _t2, _a2, _t3, _a3, _t4, _a4)                              \
        PS_SIM_KERNEL_(                                                                            \
            _name, 4, (const _t1 _a1, const _t2 _a2, const _t3 _a3, const _t4 _a4),                \
            (*(const _t1 *)p_[0], *(const _t2 *)p_[1], *(const _t3 *)p_[2], *(const _t4 *)p_[3]),  \
            (sizeof(_t1), sizeof(_t2), sizeof(_t3), sizeof(_t4)),                                  \
            (_Alignof(_t1), _Alignof(_t2), _Alignof(_t3), _Alignof(_t4)))

#endif

/* A kernel gets addresses as numbers. */
PS_DEVICE void *ps_address(uint64_t address)
{
    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

#endif
