/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: life of an operation: made, ordered after others, queued, picked, stepped, done; and how host threads wait
 * for it. Everything under the big lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/simcuda/core.h"
#include "tools/simcuda/late.h"
#include "tools/simcuda/match.h"

static uint64_t n_serials;
static uint64_t spin_epoch =
    1; /* operations that made no progress in this epoch are not tried again */
static uint64_t last_progress_ns; /* anything queued or done */
static unsigned n_blocked;

struct sim_op *sim_op_new(enum sim_op_kind kind, struct sim_stream *s, const char *name)
{
    struct sim_op *op = sim_calloc(1, sizeof *op);
    op->refs = 1;
    op->kind = kind;
    op->stream = s;
    op->ctx = s->ctx;
    op->name = name;
    return op;
}

struct sim_op *sim_op_ref(struct sim_op *op)
{
    op->refs++;
    return op;
}

static void drop_order(struct sim_op *op)
{
    struct sim_op *prev = op->prev;
    struct sim_op **deps = op->deps;
    const size_t n = op->n_deps;
    op->prev = NULL;
    op->deps = NULL;
    op->n_deps = 0;
    sim_op_unref(prev);
    for (size_t i = 0; i < n; i++) {
        sim_op_unref(deps[i]);
    }
    free(deps);
}

void sim_op_unref(struct sim_op *op)
{
    if (op == NULL || --op->refs > 0) {
        return;
    }
    drop_order(op);
    sim_check_op_gone(op);
    sim_sched_op_gone(op);
    sim_exec_free_payload(op);
    if (op->event != NULL) {
        sim_event_unref(op->event);
    }
    free(op);
}

void sim_op_dep(struct sim_op *op, struct sim_op *dep)
{
    if (dep != NULL) {
        sim_push(&op->deps, &op->n_deps, sim_op_ref(dep));
    }
}

/* The legacy stream waits for all blocking streams, and they wait for it. */
static void implicit_barriers(struct sim_op *op)
{
    struct sim_stream *s = op->stream;
    if (s->kind == SIM_STREAM_LEGACY) {
        for (struct sim_stream *x = s->ctx->streams; x != NULL; x = x->next) {
            if (x != s && x->blocking) {
                sim_op_dep(op, x->tail);
            }
        }
    } else if (s->blocking) {
        sim_op_dep(op, s->ctx->legacy->tail);
    }
}

/* SIMCUDA=after_all=NAME */
static void planted_wait(struct sim_op *op)
{
    for (const char **name = sim_options.after_all; name != NULL && *name != NULL; name++) {
        if (strcmp(*name, op->name) != 0) {
            continue;
        }
        for (struct sim_stream *x = op->ctx->streams; x != NULL; x = x->next) {
            if (x != op->stream) {
                sim_op_dep(op, x->tail);
            }
        }
        return;
    }
}

static void prune_done(struct sim_op *op)
{
    size_t kept = 0;
    for (size_t i = 0; i < op->n_deps; i++) {
        if (op->deps[i]->state == SIM_OP_DONE) {
            sim_op_unref(op->deps[i]);
        } else {
            op->deps[kept++] = op->deps[i];
        }
    }
    if (kept == 0) {
        free(op->deps);
        op->deps = NULL;
    } else {
        size_t capacity = 1; /* sim_push counts on it */
        while (capacity < kept) {
            capacity *= 2;
        }
        op->deps = sim_realloc(op->deps, capacity * sizeof(struct sim_op *));
    }
    op->n_deps = kept;
    if (op->prev != NULL && op->prev->state == SIM_OP_DONE) {
        sim_op_unref(op->prev);
        op->prev = NULL;
    }
}

void sim_op_queue(struct sim_thread *t, struct sim_op *op)
{
    struct sim_stream *s = op->stream;
    op->serial = ++n_serials;
    op->thread = t->id;
    implicit_barriers(op);
    planted_wait(op);
    if (s->tail != NULL) {
        op->prev = sim_op_ref(s->tail);
    }
    sim_check_op_queued(op, t);
    prune_done(op);
    struct sim_op *last = s->tail;
    if (s->head == NULL || last == NULL) {
        s->head = op;
    } else {
        last->next = op;
    }
    s->tail = sim_op_ref(op);
    sim_op_unref(last);
    last_progress_ns = sim_now_ns();
    spin_epoch++;
    sim_cond_wake();
}

CUresult sim_submit(struct sim_thread *t, struct sim_op *op)
{
    struct sim_stream *s = op->stream;
    if (s->capture != NULL) {
        return sim_capture_op(t, op);
    }
    if (s->kind == SIM_STREAM_LEGACY) {
        const CUresult result = sim_capture_implicit(s->ctx);
        if (result != CUDA_SUCCESS) {
            sim_op_unref(op);
            return result;
        }
    }
    sim_op_queue(t, op);
    return CUDA_SUCCESS;
}

void sim_op_done(struct sim_op *op)
{
    struct sim_stream *s = op->stream;
    op->state = SIM_OP_DONE;
    sim_late_done(op);
    op->done_ns = sim_now_ns();
    last_progress_ns = op->done_ns;
    spin_epoch++;
    s->head = op->next;
    op->next = NULL;
    drop_order(op);
    sim_op_unref(op);
    sim_stream_reap(s);
    sim_cond_wake();
}

static bool is_ready(struct sim_op *op)
{
    if (op == NULL || op->state == SIM_OP_DONE || op->spun == spin_epoch) {
        return false;
    }
    if (op->state == SIM_OP_RUNNING) {
        return op->kind == SIM_OP_KERNEL;
    }
    if (!sim_match_ready(op)) {
        return false;
    }
    for (size_t i = 0; i < op->n_deps; i++) {
        if (op->deps[i]->state != SIM_OP_DONE) {
            return false;
        }
    }
    return op->kind != SIM_OP_WAIT_VALUE || op->ctx->error != CUDA_SUCCESS || sim_value_holds(op);
}

/* One step of one ready operation; false when there is none. */
static bool step(void)
{
    static struct sim_op **ready;
    static size_t capacity;
    size_t n = 0;
    for (struct sim_ctx *ctx = sim_contexts; ctx != NULL; ctx = ctx->next) {
        for (struct sim_stream *s = ctx->streams; s != NULL; s = s->next) {
            if (!is_ready(s->head)) {
                continue;
            }
            if (n == capacity) {
                capacity = capacity == 0 ? 64 : capacity * 2;
                ready = sim_realloc(ready, capacity * sizeof(struct sim_op *));
            }
            ready[n++] = s->head;
        }
    }
    if (n == 0) {
        return false;
    }
    struct sim_op *op = ready[sim_sched_pick(ready, n)];
    op->state = SIM_OP_RUNNING;
    switch (sim_exec_step(op)) {
    case SIM_STEP_DONE:
        sim_op_done(op);
        break;
    case SIM_STEP_MORE:
        last_progress_ns = sim_now_ns();
        spin_epoch++;
        break;
    case SIM_STEP_AGAIN:
        op->spun = spin_epoch;
        break;
    case SIM_STEP_AWAY: /* the callback thread finishes it */
        break;
    }
    return true;
}

void sim_progress(unsigned n)
{
    while (n > 0 && step()) {
        n--;
    }
}

const char *sim_op_describe(const struct sim_op *op, char *buf, size_t size)
{
    static const char *const kinds[] = {
        [SIM_OP_KERNEL] = "kernel",
        [SIM_OP_COPY] = "copy",
        [SIM_OP_FILL] = "fill",
        [SIM_OP_RECORD] = "event record",
        [SIM_OP_WAIT] = "event wait",
        [SIM_OP_HOST] = "host function",
        [SIM_OP_WRITE_VALUE] = "value write",
        [SIM_OP_WAIT_VALUE] = "value wait",
        [SIM_OP_ALLOC] = "allocation",
        [SIM_OP_FREE] = "free",
        [SIM_OP_GRAPH] = "graph",
        [SIM_OP_NOP] = "join",
    };
    snprintf(buf, size, "%s %s on stream %u (#%llu, thread %u)", kinds[op->kind], op->name,
             op->stream->id, (unsigned long long)op->serial, op->thread);
    return buf;
}

void sim_check_deadlock(void)
{
    const uint64_t idle_ns = sim_now_ns() - last_progress_ns;
    const bool all = n_blocked == sim_n_threads && sim_hostfn_running() == 0;
    const uint64_t limit_s = all && !sim_deadlock_polls() ? 1 : sim_options.hang_s;
    if (idle_ns > limit_s * 1000000000u && sim_hostfn_running() == 0) {
        sim_deadlock();
    }
}

CUresult sim_wait_op(struct sim_thread *t, struct sim_op *op, const char *what)
{
    struct sim_ctx *ctx = op->ctx;
    (void)sim_op_ref(op);
    while (op->state != SIM_OP_DONE) {
        if (step()) {
            sim_unlock(); /* let another thread in between two steps */
            sim_lock();
            continue;
        }
        t->waiting = what;
        n_blocked++;
        sim_sched_blocked(t, true);
        sim_cond_wait(2);
        if (op->state != SIM_OP_DONE) {
            sim_check_deadlock();
        }
        sim_sched_blocked(t, false);
        n_blocked--;
        t->waiting = NULL;
        spin_epoch++;
    }
    sim_check_host_saw(t, op);
    sim_op_unref(op);
    return ctx->error;
}

static bool reaches(const struct sim_op *from, const struct sim_op *target, unsigned *budget)
{
    if (from == NULL || from->state == SIM_OP_DONE || *budget == 0) {
        return false;
    }
    (*budget)--;
    if (from == target) {
        return true;
    }
    if (from->serial < target->serial) {
        return false; /* whatever it waits for was queued earlier still */
    }
    for (size_t i = 0; i < from->n_deps; i++) {
        if (reaches(from->deps[i], target, budget)) {
            return true;
        }
    }
    return reaches(from->prev, target, budget);
}

bool sim_op_precedes(const struct sim_op *op, const struct sim_stream *s)
{
    if (op->stream == s) {
        return true;
    }
    unsigned budget = 4096;
    return reaches(s->tail, op, &budget);
}
