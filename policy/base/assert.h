/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants. Never assert on input, environment or driver results. */
#ifndef PS_BASE_ASSERT_H
#define PS_BASE_ASSERT_H

#include <assert.h>

#define ps_assert(_x) assert(_x)
#ifdef PS_EXPENSIVE_CHECKS
#    define ps_assert_slow(_x) assert(_x)
#else
#    define ps_assert_slow(_x) ((void)0)
#endif

#endif
