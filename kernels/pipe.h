/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a block of one warp moves memory through a ring of slots in shared memory: loads run ahead by all slots but one,
 * stores drain behind. On sm_90 and later a bulk asynchronous copy does either, issued by lane 0; on sm_80 each lane
 * loads asynchronously and stores what it loaded; on the host a slot only notes where its data is.
 *
 * Order of use, by all lanes together: pipe_start; then for chunk 0, 1, 2, ...: pipe_load (up to n_slots - 1 chunks
 * ahead of the one waited for), pipe_wait, at most one of the stores or a fill, pipe_done; at the end pipe_end. Bytes
 * are a multiple of 16, addresses are aligned to 16.
 */
#ifndef PS_KERNELS_PIPE_H
#define PS_KERNELS_PIPE_H

#include "kernels/dual.h"
#include "kernels/layout.h"

struct pipe {
    const struct ps_ring *ring;    /* read where it is needed */
    uint32_t load_slot, take_slot; /* of the next chunk either way */
    uint32_t parity;               /* of take_slot's barrier */
#ifndef __CUDACC__
    struct ps_vec *at[PS_CHUNKS_MAX];
#endif
};

PS_DEVICE uint32_t pipe_next(const struct pipe *p, uint32_t slot)
{
    return slot + 1 == p->ring->n_slots ? 0 : slot + 1;
}

PS_DEVICE uint32_t pipe_chunk_bytes(const struct pipe *p)
{
    return 1u << p->ring->chunk_shift;
}

#ifdef __CUDACC__

extern __shared__ struct ps_vec pipe_memory[]; /* n_slots * chunk_bytes */

PS_DEVICE uint32_t pipe_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

PS_DEVICE struct ps_vec *pipe_slot(const struct pipe *p, uint32_t slot)
{
    return pipe_memory + ((slot << p->ring->chunk_shift) / 16);
}

/* The chunk waited for. */
PS_DEVICE const struct ps_vec *pipe_chunk(const struct pipe *p)
{
    return pipe_slot(p, p->take_slot);
}

/* As pipe_store, for memory that takes no bulk copies well: the host's. */
PS_DEVICE void pipe_store_lanes(const struct pipe *p, uint64_t to, uint32_t bytes)
{
    const struct ps_vec *const from = pipe_chunk(p);
    struct ps_vec *const target = (struct ps_vec *)ps_address(to);
    _Pragma("unroll 4") for (uint32_t at = PS_THREAD; at < bytes / 16; at += PS_LANES)
    {
        ps_store_stream(&target[at], from[at]);
    }
}

#    if __CUDA_ARCH__ >= 900

static __shared__ uint64_t pipe_full[PS_CHUNKS_MAX];

PS_DEVICE void pipe_init(struct pipe *p)
{
    if (PS_THREAD == 0) {
        PS_NO_UNROLL
        for (uint32_t i = 0; i < p->ring->n_slots; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(pipe_shared(&pipe_full[i]))
                         : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
}

/* from: 0 for a chunk without data. */
PS_DEVICE void pipe_load(struct pipe *p, uint64_t from, uint32_t bytes)
{
    if (PS_THREAD == 0) {
        const uint32_t bar = pipe_shared(&pipe_full[p->load_slot]);
        const uint32_t to = pipe_shared(pipe_slot(p, p->load_slot));
        if (from == 0) {
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
        } else {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                         "r"(bytes)
                         : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                         "[%0], [%1], %2, [%3];" ::"r"(to),
                         "l"(from), "r"(bytes), "r"(bar)
                         : "memory");
        }
    }
    p->load_slot = pipe_next(p, p->load_slot);
}

/* Keeps the ring in step where there is nothing left to load. */
PS_DEVICE void pipe_load_none(struct pipe *p)
{
    (void)p;
}

PS_DEVICE void pipe_wait(const struct pipe *p)
{
    asm volatile("{\n\t.reg .pred ok;\n"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 ok, [%0], %1;\n\t"
                 "@!ok bra again;\n\t}" ::"r"(pipe_shared(&pipe_full[p->take_slot])),
                 "r"(p->parity)
                 : "memory");
    __syncwarp();
}

PS_DEVICE void pipe_store(const struct pipe *p, uint64_t to, uint32_t bytes)
{
    if (PS_THREAD == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(pipe_shared(pipe_chunk(p))), "r"(bytes)
                     : "memory");
    }
}

/* So many bytes of the word, instead of the chunk, which has no data. */
PS_DEVICE void pipe_fill(const struct pipe *p, uint64_t to, uint32_t bytes, struct ps_vec word)
{
    struct ps_vec *const chunk = pipe_slot(p, p->take_slot);
    const uint32_t most = bytes < pipe_chunk_bytes(p) ? bytes : pipe_chunk_bytes(p);
    for (uint32_t at = PS_THREAD; at < most / 16; at += PS_LANES) {
        chunk[at] = word;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    PS_NO_UNROLL
    for (uint32_t at = 0; at < bytes; at += most) {
        pipe_store(p, to + at, bytes - at < most ? bytes - at : most);
    }
}

/* The chunk is done with; the slot of the one before it may be loaded again. */
PS_DEVICE void pipe_done(struct pipe *p)
{
    __syncwarp();
    if (PS_THREAD == 0) {
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    }
    p->take_slot = pipe_next(p, p->take_slot);
    p->parity ^= p->take_slot == 0;
}

/* The slots have been read; the end of the launch waits for what was written. */
PS_DEVICE void pipe_end(void)
{
    if (PS_THREAD == 0) {
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncwarp();
}

#    else /* sm_80: every lane moves its own share, one group a chunk */

PS_DEVICE void pipe_init(struct pipe *p)
{
    (void)p;
}

PS_DEVICE void pipe_load(struct pipe *p, uint64_t from, uint32_t bytes)
{
    if (from != 0) {
        const uint32_t to = pipe_shared(pipe_slot(p, p->load_slot));
        for (uint32_t at = PS_THREAD * 16; at < bytes; at += PS_LANES * 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(from + at)
                         : "memory");
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    p->load_slot = pipe_next(p, p->load_slot);
}

PS_DEVICE void pipe_load_none(struct pipe *p)
{
    pipe_load(p, 0, 0);
}

/* How many groups may be left must be known at compile time. */
PS_DEVICE void pipe_wait(const struct pipe *p)
{
    if (p->ring->n_slots >= 8) {
        asm volatile("cp.async.wait_group 6;" ::: "memory");
    } else if (p->ring->n_slots >= 4) {
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    } else {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncwarp();
}

PS_DEVICE void pipe_store(const struct pipe *p, uint64_t to, uint32_t bytes)
{
    pipe_store_lanes(p, to, bytes);
}

PS_DEVICE void pipe_fill(const struct pipe *p, uint64_t to, uint32_t bytes, struct ps_vec word)
{
    struct ps_vec *const target = (struct ps_vec *)ps_address(to);
    (void)p;
    for (uint32_t at = PS_THREAD; at < bytes / 16; at += PS_LANES) {
        ps_store(&target[at], word);
    }
}

PS_DEVICE void pipe_done(struct pipe *p)
{
    __syncwarp();
    p->take_slot = pipe_next(p, p->take_slot);
}

PS_DEVICE void pipe_end(void)
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
}

#    endif
#else /* the host */

PS_DEVICE const struct ps_vec *pipe_chunk(const struct pipe *p)
{
    return p->at[p->take_slot];
}

PS_DEVICE void pipe_init(struct pipe *p)
{
    (void)p;
}

PS_DEVICE void pipe_load(struct pipe *p, uint64_t from, uint32_t bytes)
{
    (void)bytes;
    p->at[p->load_slot] = (struct ps_vec *)ps_address(from);
    p->load_slot = pipe_next(p, p->load_slot);
}

PS_DEVICE void pipe_load_none(struct pipe *p)
{
    (void)p;
}

PS_DEVICE void pipe_wait(const struct pipe *p)
{
    (void)p;
}

PS_DEVICE void pipe_store_lanes(const struct pipe *p, uint64_t to, uint32_t bytes)
{
    struct ps_vec *const target = (struct ps_vec *)ps_address(to);
    for (uint32_t at = 0; at < bytes / 16; at++) {
        ps_store(&target[at], ps_load(&pipe_chunk(p)[at]));
    }
}

PS_DEVICE void pipe_store(const struct pipe *p, uint64_t to, uint32_t bytes)
{
    pipe_store_lanes(p, to, bytes);
}

PS_DEVICE void pipe_fill(const struct pipe *p, uint64_t to, uint32_t bytes, struct ps_vec word)
{
    struct ps_vec *const target = (struct ps_vec *)ps_address(to);
    (void)p;
    for (uint32_t at = 0; at < bytes / 16; at++) {
        ps_store(&target[at], word);
    }
}

PS_DEVICE void pipe_done(struct pipe *p)
{
    p->take_slot = pipe_next(p, p->take_slot);
}

PS_DEVICE void pipe_end(void)
{
}

#endif

PS_DEVICE void pipe_start(struct pipe *p, const struct ps_ring *ring)
{
    p->ring = ring;
    p->load_slot = 0;
    p->take_slot = 0;
    p->parity = 0;
    pipe_init(p);
}

#endif
