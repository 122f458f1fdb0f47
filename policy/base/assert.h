/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants. Never assert on input, environment or driver results. Not evaluated, but compiled, where it is off. */
#ifndef PS_BASE_ASSERT_H
#define PS_BASE_ASSERT_H

#include <assert.h>

#define PS_UNEVALUATED(_x) ((void)(0 && (_x)))

#ifdef NDEBUG
#    define ps_assert(_x) PS_UNEVALUATED(_x)
#else
#    define ps_assert(_x) assert(_x)
#endif
/* For checks that take more than constant time. */
#ifdef PS_EXPENSIVE_CHECKS
#    define ps_assert_slow(_x) ps_assert(_x)
#else
#    define ps_assert_slow(_x) PS_UNEVALUATED(_x)
#endif

#endif
