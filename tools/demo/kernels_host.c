/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.cu for the host compiler: linked into simcuda, which finds them by name. */
#include "tools/demo/kernels.cu"
