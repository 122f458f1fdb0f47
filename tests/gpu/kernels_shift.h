/* SPDX-License-Identifier: Apache-2.0 */
/* For kernels_gpu.c: pages in a row in device memory, and as many in pinned host memory; shifts copy them. */
#ifndef PS_TESTS_GPU_KERNELS_SHIFT_H
#define PS_TESTS_GPU_KERNELS_SHIFT_H

#include "tests/gpu/kernels_scene.h"

struct shift_scene {
    uint32_t page_bytes, n_pages;
    uint64_t all_bytes;   /* of a side: the pages, and one more before and one behind them */
    unsigned char *host;  /* pinned */
    CUdeviceptr device;   /* of these each a side */
    CUdeviceptr words;    /* poison, the count, poison, the note, poison */
    unsigned char *bytes; /* that a side was filled with; random */
    unsigned char *got;   /* as large */
};

void shift_init(struct shift_scene *s, uint32_t page_bytes, uint32_t n_pages);
void shift_fini(struct shift_scene *s);
/* The side that is copied from holds s->bytes from now on, the other poison, and the count is that. */
void shift_fill(const struct shift_scene *s, bool to_host, uint64_t count);
/* Of all pages from the first on; with a note. */
struct ps_shift shift_of(const struct shift_scene *s, bool to_host, uint32_t first);
/* The device is idle, and the shift has run since shift_fill: what was to be written is, and nothing else. */
void shift_check(const struct shift_scene *s, const struct ps_shift *shift, uint64_t count);

/* Both ways, pages of 4 KiB and 256 KiB, about so many bytes. */
void shift_run_cases(const struct ps_kernels *k, CUstream stream, uint64_t bytes);

#endif
