/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is in force; one thread runs steps, and another reads layers of them on a stream of its own, whatever they are
 * at: what is out comes in unforeseen, while the first thread takes and gives memory, and maps. What the second one
 * reads is not printed: which layers it still finds is chance.
 *
 *   read   that
 *   steps  the second thread also says that a step ends, whenever the first does
 */
#include <pthread.h>

#include "tests/sim/scenario_plan.h"

#ifndef PS_FAULTS
#    error "needs the watcher of failing calls"
#endif

#define N_STEPS 24
#define BEGIN   6 /* of the second thread */

static struct layer {
    struct sc_layer l;
    pthread_mutex_t lock; /* while it is read by the second thread */
    CUevent filled;
    bool alive;
} layers[PL_LAYERS];
static _Atomic unsigned n_begun;
static _Atomic bool ended;
static CUdeviceptr scratch;
static pthread_barrier_t step_ends;
static pagedstash_step_fn *tell_step;

static void read_one(struct layer *l, CUstream s)
{
    pthread_mutex_lock(&l->lock);
    if (l->alive) {
        const uint64_t n = SC_WORDS;

        sc_ok(cuStreamWaitEvent(s, l->filled, 0));
        sc_launch(s, "test_hash", (void *[]){&l->l.x, (void *)&n, &scratch});
        sc_ok(cuStreamSynchronize(s));
    }
    pthread_mutex_unlock(&l->lock);
}

static void *read_layers(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    const CUstream s = sc_stream();

    for (unsigned i = 0; !atomic_load(&ended); i++) {
        usleep(test_mix(i) % 1000);
        if (atomic_load(&n_begun) > BEGIN) {
            read_one(&layers[test_mix(i) % PL_LAYERS], s);
        }
    }
    return NULL;
}

static void *tell_steps(void *arg)
{
    (void)arg;
    sc_ok(cuCtxSetCurrent(sc_ctx));
    for (unsigned step = 0; step < N_STEPS; step++) {
        pthread_barrier_wait(&step_ends);
        if (tell_step != NULL) {
            (void)tell_step();
        }
        pthread_barrier_wait(&step_ends);
    }
    return NULL;
}

static void end_step(bool both)
{
    if (both) {
        pthread_barrier_wait(&step_ends);
        if (tell_step != NULL) {
            (void)tell_step();
        }
        pthread_barrier_wait(&step_ends);
    }
}

static void forward(struct layer *l, uint64_t seed, CUstream s)
{
    pl_forward(&l->l, seed, s);
    pthread_mutex_lock(&l->lock);
    sc_ok(cuEventRecord(l->filled, s));
    l->alive = true;
    pthread_mutex_unlock(&l->lock);
}

static void backward(struct layer *l, CUstream s)
{
    pthread_mutex_lock(&l->lock);
    l->alive = false;
    sc_backward(&l->l, s);
    pthread_mutex_unlock(&l->lock);
}

int main(int argc, char **argv)
{
    const bool both = argc > 1 && strcmp(argv[1], "steps") == 0;
    pthread_t thread;

    sc_start();
    const CUstream s = sc_stream();

    *(void **)&tell_step = dlsym(RTLD_DEFAULT, "pagedstash_step");
    sc_ok(cuMemAlloc(&scratch, 8));
    for (unsigned i = 0; i < PL_LAYERS; i++) {
        pthread_mutex_init(&layers[i].lock, NULL);
        sc_ok(cuEventCreate(&layers[i].filled, CU_EVENT_DISABLE_TIMING));
    }
    pthread_barrier_init(&step_ends, NULL, 2);
    if (pthread_create(&thread, NULL, both ? tell_steps : read_layers, NULL) != 0) {
        return 1;
    }
    for (uint64_t step = 0; step < N_STEPS; step++) {
        /* A layer more now and then, so that plans are made and taken up. */
        const unsigned n = both && step / 6 % 2 == 1 ? PL_LAYERS - 2 : PL_LAYERS;

        if (step == BEGIN) {
            pl_count_failures();
        }
        end_step(both);
        atomic_store(&n_begun, (unsigned)step + 1);
        for (uint64_t i = 0; i < n; i++) {
            forward(&layers[i], step * 100 + i, s);
        }
        for (unsigned i = n; i > 0; i--) {
            backward(&layers[i - 1], s);
        }
    }
    atomic_store(&ended, true);
    pthread_join(thread, NULL);
    sc_results_print("all");
    return sc_end();
}
