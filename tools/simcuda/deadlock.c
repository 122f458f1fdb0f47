/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: what is said when nothing can go on: what each thread and the oldest operation of each stream wait for, and
 * a chain of waits that bites its own tail. Under the big lock.
 */
#include <stdio.h>
#include <unistd.h>

#include "tools/simcuda/core.h"
#include "tools/simcuda/match.h"

/* Something that keeps op from running, or NULL. */
static const struct sim_op *blocker(const struct sim_op *op)
{
    if (op == NULL) {
        return NULL;
    }
    if (op->stream->head != op) {
        return op->stream->head;
    }
    for (size_t i = 0; i < op->n_deps; i++) {
        if (op->deps[i]->state != SIM_OP_DONE) {
            return op->deps[i];
        }
    }
    return sim_match_ready(op) ? NULL : sim_match_awaited(op);
}

static void tell_head(const struct sim_op *op)
{
    char text[256], other[256];
    sim_report("  %s: %s", sim_op_describe(op, text, sizeof text),
               op->state == SIM_OP_RUNNING ? "is running" : "is queued");
    for (size_t i = 0; i < op->n_deps; i++) {
        if (op->deps[i]->state != SIM_OP_DONE) {
            sim_report("    waits for %s", sim_op_describe(op->deps[i], other, sizeof other));
        }
    }
    if (op->kind == SIM_OP_WAIT_VALUE) {
        sim_report("    waits for value %llu at 0x%llx", (unsigned long long)op->value.value,
                   (unsigned long long)op->value.address);
    }
    if (!sim_match_ready(op)) {
        const struct sim_op *send = sim_match_awaited(op);
        sim_report("    waits for a send on channel %llu: %s",
                   (unsigned long long)sim_match_channel(op),
                   send == NULL ? "none is queued" : sim_op_describe(send, other, sizeof other));
    }
    if (op->kind == SIM_OP_KERNEL && op->spun != 0) {
        sim_report("    spins");
    }
}

/* The cycle that the chain of waits from op on ends in; false if it ends elsewhere. */
static bool tell_cycle(const struct sim_op *op)
{
    char text[256];
    const struct sim_op *fast = op, *slow = op;
    do {
        fast = blocker(blocker(fast));
        slow = blocker(slow);
    } while (fast != NULL && fast != slow);
    if (fast == NULL) {
        return false;
    }
    sim_report("  a cycle of waits:");
    do {
        sim_report("    %s", sim_op_describe(slow, text, sizeof text));
        slow = blocker(slow);
    } while (slow != fast);
    sim_report("    ... and so on");
    return true;
}

void sim_deadlock(void)
{
    bool told = false;
    sim_report("DEADLOCK: nothing can make progress");
    for (const struct sim_thread *t = sim_threads; t != NULL; t = t->next) {
        sim_report("  thread %u: %s", t->id,
                   t->waiting == NULL ? "outside of the driver" : t->waiting);
    }
    for (const struct sim_ctx *ctx = sim_contexts; ctx != NULL; ctx = ctx->next) {
        for (const struct sim_stream *s = ctx->streams; s != NULL; s = s->next) {
            if (s->head != NULL) {
                tell_head(s->head);
                told = told || tell_cycle(s->head);
            }
        }
    }
    fflush(NULL);
    _exit(86);
}

bool sim_deadlock_polls(void)
{
    for (const struct sim_ctx *ctx = sim_contexts; ctx != NULL; ctx = ctx->next) {
        for (const struct sim_stream *s = ctx->streams; s != NULL; s = s->next) {
            if (s->head != NULL && (s->head->kind == SIM_OP_WAIT_VALUE || s->head->spun != 0)) {
                return true;
            }
        }
    }
    return false;
}
