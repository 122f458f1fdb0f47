/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces (docs/trace.md): reading them, and what they become: recorded steps, as the engine would have seen them.
 * Pure; one thread.
 */
#ifndef PS_POLICY_TRACE_H
#define PS_POLICY_TRACE_H

#define PS_TRACE_MAGIC   "#pagedstash-trace"
#define PS_TRACE_VERSION 1

#endif
