/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a tensor's bytes are cut into physical chunks. Chunks are powers of two from the mapping granularity up to
 * 128 times it (2 MiB to 256 MiB on a GPU), so that a tensor needs few mapping calls (30 to 160 us each, H200,
 * driver 580) and chunks fit other tensors later. Pure.
 */
#ifndef PS_POLICY_SIZES_H
#define PS_POLICY_SIZES_H

#include <stdint.h>

#define PS_N_CLASSES 8 /* class k has granularity << k bytes */

/* Rounds up to a multiple of the larger of the granularity and a sixteenth of the size's leading power of two. */
uint64_t ps_size_round(uint64_t bytes, uint64_t granularity);
/* Chunks of each class that make up `rounded` bytes, largest first. */
void ps_size_split(uint64_t rounded, uint64_t granularity, uint32_t n_p[PS_N_CLASSES]);

#endif
