/* SPDX-License-Identifier: Apache-2.0 */
/* The other preloaded tool of the tests. */
#ifndef PS_TESTS_TOOL_H
#define PS_TESTS_TOOL_H

/* Calls of cuMemsetD8Async that it has seen. */
int tool_calls(void);

#endif
