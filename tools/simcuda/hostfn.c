/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: host callbacks. One thread of the driver's own runs them without the big lock, in the order their streams
 * reach them, so that a callback may block on something the job's threads do later. The queue is guarded by the
 * big lock.
 */
#include <stdlib.h>

#include "tools/simcuda/core.h"

static struct sim_op **queue;
static size_t n_queue;
static unsigned n_running; /* posted and not finished */
static bool started;

static void run(struct sim_op *op)
{
    const struct sim_host_call call = op->host;
    const CUresult error = op->ctx->error;
    sim_unlock();
    if (call.callback != NULL) {
        call.callback(call.handle, error, call.data);
    } else {
        call.fn(call.data);
    }
    sim_lock();
}

static void *serve(void *unused)
{
    (void)unused;
    sim_lock();
    /* Not a thread of the job: it is never counted among those that can wait for each other. */
    struct sim_thread *t = sim_thread_self();
    t->in_callback = true;
    sim_n_threads--;
    for (;;) {
        if (n_queue == 0) {
            sim_cond_wait(1000);
            continue;
        }
        struct sim_op *op = queue[0];
        n_queue--;
        for (size_t i = 0; i < n_queue; i++) {
            queue[i] = queue[i + 1];
        }
        run(op);
        n_running--;
        sim_op_done(op);
    }
    return NULL;
}

void sim_hostfn_post(struct sim_op *op)
{
    if (!started) {
        pthread_t thread;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        if (pthread_create(&thread, &attr, serve, NULL) != 0) {
            sim_report("cannot start the callback thread");
            abort();
        }
        pthread_attr_destroy(&attr);
        started = true;
    }
    struct sim_op **grown = sim_realloc(queue, (n_queue + 1) * sizeof(struct sim_op *));
    queue = grown;
    queue[n_queue++] = op;
    n_running++;
    sim_cond_wake();
}

unsigned sim_hostfn_running(void)
{
    return n_running;
}
