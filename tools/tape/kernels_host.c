/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.cu for the host compiler: linked into simcuda, which finds it by name. */
#include "tools/tape/kernels.cu"
