/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: what an operation does when it is its turn. Kernels run on device addresses, everything else through the
 * simulator's own view of the physical pages, piece by piece. Under the big lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/simcuda/blocks.h"
#include "tools/simcuda/core.h"
#include "tools/simcuda/fault.h"
#include "tools/simcuda/late.h"

static bool again; /* set by the kernel block that runs */

void simcuda_again(void)
{
    again = true;
}

static const char *owner_text(enum sim_owner owner)
{
    static const char *const texts[] = {"nothing", "cuMemAlloc", "a memory pool", "cuMemMap",
                                        "managed memory"};
    return texts[owner];
}

static void fault(struct sim_op *op, const struct sim_fault *f)
{
    char text[256], where[256];
    const struct sim_mapping *m;
    if (sim_va_find(f->address, &m, NULL)) {
        snprintf(where, sizeof where,
                 "%llu bytes into %llu bytes of %s at 0x%llx that it may not %s",
                 (unsigned long long)(f->address - m->base), (unsigned long long)m->bytes,
                 owner_text(m->owner), (unsigned long long)m->base, f->write ? "write" : "read");
    } else {
        CUdeviceptr base;
        uint64_t bytes;
        const bool reserved = sim_va_range(f->address, 1, &base, &bytes);
        snprintf(where, sizeof where, "%s, where nothing is mapped",
                 reserved ? "in a reserved range" : "outside of every range");
    }
    sim_report("ILLEGAL ADDRESS: %s %s 0x%llx: %s", sim_op_describe(op, text, sizeof text),
               f->write ? "writes" : "touches", (unsigned long long)f->address, where);
    sim_ctx_fail(op->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* ---- kernels ---- */

struct block_run {
    struct sim_op *op;
    uint64_t n;
};

static void run_blocks(void *arg)
{
    struct block_run *run = arg;
    struct sim_launch *l = &run->op->launch;
    for (uint64_t i = 0; i < run->n && !again; i++) {
        const struct ps_sim_block block = {.block = l->next_block, .n_blocks = l->n_blocks};
        l->row->run(&block, l->params);
        l->next_block += again ? 0 : 1;
    }
}

static void run_turns(void *arg)
{
    struct block_run *run = arg;

    if (!sim_blocks_turns(run->op, run->n)) {
        sim_fault_end();
    }
}

/* A step of a kernel whose blocks take turns. */
static enum sim_step step_turns(struct sim_op *op, uint64_t turns)
{
    struct block_run run = {op, turns};
    struct sim_fault f = {0, false};
    if (!sim_access_run(op, run_turns, &run, &f)) {
        sim_blocks_drop(&op->launch);
        fault(op, &f);
        return SIM_STEP_DONE;
    }
    return sim_blocks_over(op) ? SIM_STEP_DONE : SIM_STEP_MORE;
}

static enum sim_step step_kernel(struct sim_op *op)
{
    struct sim_launch *l = &op->launch;
    sim_late_begin(op);
    const uint64_t turns = l->gives_way ? sim_sched_turns() : 0;
    if (turns > 0) {
        return step_turns(op, turns);
    }
    const uint64_t before = l->next_block;
    struct block_run run = {op, sim_sched_blocks(op, l->n_blocks - before)};
    struct sim_fault f = {0, false};
    again = false;
    if (!sim_access_run(op, run_blocks, &run, &f)) {
        fault(op, &f);
        return SIM_STEP_DONE;
    }
    if (l->next_block == l->n_blocks) {
        return SIM_STEP_DONE;
    }
    return l->next_block == before ? SIM_STEP_AGAIN : SIM_STEP_MORE;
}

/* ---- copies ---- */

/* Piece of a device range that lies in one physical page. */
static uint8_t *piece(CUdeviceptr address, size_t left, size_t *n_p)
{
    uint64_t page = 0;
    (void)sim_va_find(address, NULL, &page);
    const size_t offset = address % SIM_PAGE;
    *n_p = left < SIM_PAGE - offset ? left : SIM_PAGE - offset;
    return sim_phys(page) + offset;
}

static bool may(struct sim_op *op, CUdeviceptr address, size_t bytes, bool write)
{
    struct sim_fault f = {0, write};
    if (!sim_va_usable(address, bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, &f.address)) {
        fault(op, &f);
        return false;
    }
    sim_check_range(op, address, bytes, write);
    return true;
}

static void copy_row(const struct sim_place *dst, size_t dst_at, const struct sim_place *src,
                     size_t src_at, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done;
        size_t part = n;
        uint8_t *to =
            dst->is_host ? dst->host + dst_at + done : piece(dst->device + dst_at + done, n, &part);
        n = part;
        const uint8_t *from =
            src->is_host ? src->host + src_at + done : piece(src->device + src_at + done, n, &part);
        n = part;
        memmove(to, from, n);
        done += n;
    }
}

static bool may_place(struct sim_op *op, const struct sim_place *p, size_t at, size_t width,
                      bool write)
{
    if (p->is_host) {
        sim_check_host_range(op, p->host + at, width, write);
        return true;
    }
    return may(op, p->device + at, width, write);
}

static void do_copy(struct sim_op *op)
{
    const struct sim_copy *c = &op->copy;
    for (size_t z = 0; z < c->depth; z++) {
        for (size_t y = 0; y < c->height; y++) {
            const size_t to = (z * c->dst.height + y) * c->dst.pitch;
            const size_t from = (z * c->src.height + y) * c->src.pitch;
            if (!may_place(op, &c->src, from, c->width, false) ||
                !may_place(op, &c->dst, to, c->width, true)) {
                return;
            }
            copy_row(&c->dst, to, &c->src, from, c->width);
        }
    }
}

static void fill_row(const struct sim_fill *f, CUdeviceptr row)
{
    const size_t bytes = f->width * f->unit;
    for (size_t done = 0; done < bytes;) {
        size_t n;
        uint8_t *to = piece(row + done, bytes - done, &n);
        if (f->unit == 1) {
            memset(to, (int)f->value, n);
        } else {
            for (size_t i = 0; i < n; i += f->unit) {
                memcpy(to + i, &f->value, f->unit);
            }
        }
        done += n;
    }
}

static void do_fill(struct sim_op *op)
{
    const struct sim_fill *f = &op->fill;
    for (size_t y = 0; y < f->height; y++) {
        const CUdeviceptr row = f->dst + y * f->pitch;
        if (!sim_va_is_device(row)) { /* pinned host memory */
            sim_check_host_range(op, (const void *)(uintptr_t)row, f->width * f->unit, true);
            for (size_t i = 0; i < f->width; i++) {
                memcpy((uint8_t *)(uintptr_t)row + i * f->unit, &f->value, f->unit);
            }
        } else if (may(op, row, f->width * f->unit, true)) {
            fill_row(f, row);
        } else {
            return;
        }
    }
}

/* ---- values ---- */

static uint8_t *value_at(const struct sim_value *v)
{
    if (!sim_va_is_device(v->address)) {
        return (uint8_t *)(uintptr_t)v->address;
    }
    size_t n;
    return sim_va_mapped(v->address, v->bytes) ? piece(v->address, v->bytes, &n) : NULL;
}

static uint64_t load_value(const uint8_t *p, unsigned bytes)
{
    return bytes == 4 ? __atomic_load_n((const uint32_t *)(const void *)p, __ATOMIC_ACQUIRE)
                      : __atomic_load_n((const uint64_t *)(const void *)p, __ATOMIC_ACQUIRE);
}

bool sim_value_holds(const struct sim_op *op)
{
    const struct sim_value *v = &op->value;
    const uint8_t *p = value_at(v);
    if (p == NULL) {
        return true; /* faults when it is its turn */
    }
    const uint64_t now = load_value(p, v->bytes);
    switch (v->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return v->bytes == 4 ? (int32_t)((uint32_t)now - (uint32_t)v->value) >= 0
                             : (int64_t)(now - v->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == v->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & v->value) != 0;
    default:
        return ~(now | v->value) != 0;
    }
}

static void do_value(struct sim_op *op)
{
    struct sim_value *v = &op->value;
    const bool write = op->kind == SIM_OP_WRITE_VALUE;
    if (sim_va_is_device(v->address) && !may(op, v->address, v->bytes, write)) {
        return;
    }
    if (write && v->bytes == 4) {
        __atomic_store_n((uint32_t *)(void *)value_at(v), (uint32_t)v->value, __ATOMIC_RELEASE);
    } else if (write) {
        __atomic_store_n((uint64_t *)(void *)value_at(v), v->value, __ATOMIC_RELEASE);
    }
    sim_check_value(op, v->address);
}

enum sim_step sim_exec_step(struct sim_op *op)
{
    const bool told = op->kind == SIM_OP_HOST && op->host.callback != NULL;
    if (op->ctx->error != CUDA_SUCCESS && op->kind != SIM_OP_FREE && !told) {
        return SIM_STEP_DONE; /* a broken context executes nothing more, but stream callbacks hear of it */
    }
    switch (op->kind) {
    case SIM_OP_KERNEL:
        return step_kernel(op);
    case SIM_OP_COPY:
        do_copy(op);
        return SIM_STEP_DONE;
    case SIM_OP_FILL:
        do_fill(op);
        return SIM_STEP_DONE;
    case SIM_OP_WRITE_VALUE:
    case SIM_OP_WAIT_VALUE:
        do_value(op);
        return SIM_STEP_DONE;
    case SIM_OP_HOST:
        sim_hostfn_post(op);
        return SIM_STEP_AWAY;
    case SIM_OP_ALLOC:
        sim_check_alloc(op, op->alloc.base, op->alloc.bytes);
        return SIM_STEP_DONE;
    case SIM_OP_FREE:
        sim_check_free(op, op->alloc.base, op->alloc.bytes);
        sim_pool_exec_free(op);
        return SIM_STEP_DONE;
    case SIM_OP_RECORD:
    case SIM_OP_WAIT:
    case SIM_OP_GRAPH:
    case SIM_OP_NOP:
        return SIM_STEP_DONE;
    }
    return SIM_STEP_DONE;
}

struct sim_op *sim_op_clone(const struct sim_op *op, struct sim_stream *s)
{
    struct sim_op *copy = sim_op_new(op->kind, s, op->name);
    switch (op->kind) {
    case SIM_OP_KERNEL:
        copy->launch = op->launch;
        copy->launch.blocks = NULL;
        copy->launch.late = NULL;
        copy->launch.params = sim_launch_copy_params(op->launch.row, op->launch.params, NULL);
        break;
    case SIM_OP_COPY:
        copy->copy = op->copy;
        if (op->copy.staging != NULL) {
            const size_t bytes = op->copy.width * op->copy.height * op->copy.depth;
            copy->copy.staging = sim_calloc(1, bytes);
            memcpy(copy->copy.staging, op->copy.staging, bytes);
            copy->copy.src.host = copy->copy.staging;
        }
        break;
    case SIM_OP_FILL:
        copy->fill = op->fill;
        break;
    case SIM_OP_WRITE_VALUE:
    case SIM_OP_WAIT_VALUE:
        copy->value = op->value;
        break;
    case SIM_OP_HOST:
        copy->host = op->host;
        break;
    case SIM_OP_ALLOC:
    case SIM_OP_FREE:
        copy->alloc = op->alloc;
        break;
    case SIM_OP_RECORD:
    case SIM_OP_WAIT:
    case SIM_OP_GRAPH:
    case SIM_OP_NOP:
        break;
    }
    return copy;
}

void sim_exec_free_payload(struct sim_op *op)
{
    if (op->kind == SIM_OP_KERNEL) {
        sim_blocks_drop(&op->launch);
        sim_late_drop(&op->launch);
        free(op->launch.params);
    } else if (op->kind == SIM_OP_COPY) {
        free(op->copy.staging);
    }
}
