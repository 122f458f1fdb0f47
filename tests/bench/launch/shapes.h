/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that are launched: none does anything; they differ in their parameters alone. For nvcc and the host. */
#ifndef PS_BENCH_SHAPES_H
#define PS_BENCH_SHAPES_H

/* _X(name, number of parameters, bytes of each) */
#define BENCH_SHAPES(_X)                                                                           \
    _X(bench_1x8, 1, 8)                                                                            \
    _X(bench_32x8, 32, 8)                                                                          \
    _X(bench_1x256, 1, 256)                                                                        \
    _X(bench_512x8, 512, 8)                                                                        \
    _X(bench_1x4096, 1, 4096)                                                                      \
    _X(bench_1x32760, 1, 32760)

#endif
