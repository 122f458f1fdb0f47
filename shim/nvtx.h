/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVTX ranges of the job. NVTX loads us through NVTX_INJECTION64_PATH, once for each shared object
 * that uses it; where a tool has set that variable, its entry point is answered with ours, and its
 * callbacks are called from ours. Any thread.
 */
#ifndef PS_SHIM_NVTX_H
#define PS_SHIM_NVTX_H

/* dlsym(handle, "InitializeInjectionNvtx2"): what to answer, or NULL to leave it alone. */
void *ps_nvtx_answer(void *handle);

#endif
