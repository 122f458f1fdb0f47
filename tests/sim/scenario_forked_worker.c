/* SPDX-License-Identifier: Apache-2.0 */
/* A launcher that never came to CUDA forks its worker: the worker is a job like any other. */
#include <sys/wait.h>

#include "tests/sim/scenario.h"

#define N_LAYERS 6
#define N_STEPS  3

static int work(void)
{
    struct sc_layer layers[N_LAYERS];

    sc_start();
    const CUstream s = sc_stream();

    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < N_LAYERS; i++) {
            sc_forward(&layers[i], step * 100 + (uint64_t)i, s);
        }
        for (int i = N_LAYERS - 1; i >= 0; i--) {
            sc_backward(&layers[i], s);
        }
        sc_results_print("step");
    }
    return sc_end();
}

int main(void)
{
    const pid_t child = fork();
    int status = 1;

    if (child == 0) {
        exit(work());
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
