/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of the engine, for tests of the hooks alone: every call is written to a log, and what it
 * answers is set by the test. Exported from the test object, found by dlsym. One thread at a time.
 */
#ifndef PS_TESTS_ENGINE_DOUBLE_H
#define PS_TESTS_ENGINE_DOUBLE_H

#include <stdint.h>

#define DOUBLE_LOG_MAX 8192

struct engine_double {
    char log[DOUBLE_LOG_MAX]; /* "enter 7f0000000000 s2;" and so on */
    uint64_t alloc;           /* address that ps_engine_alloc gives; 0: refuses */
    int owned;                /* addresses of the window are live tensors */
    int give_back;            /* so often something can be given back */
    int enter_result;         /* of ps_touch_enter and ps_touch_pin */
    uint64_t used, reserved;  /* of the pool */
    unsigned depth, n_pushes; /* regions */
};

struct engine_double *engine_double(void);
void engine_double_window(uint64_t base, uint64_t size);
void engine_double_reset(void);

#endif
