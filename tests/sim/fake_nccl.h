/* SPDX-License-Identifier: Apache-2.0 */
/* What scenario_nccl.c calls of fake_nccl.c: NCCL's own declarations, and a switch. */
#ifndef PS_TESTS_SIM_FAKE_NCCL_H
#define PS_TESTS_SIM_FAKE_NCCL_H

#include <cuda.h>
#include <stddef.h>

#define FAKE_API __attribute__((visibility("default")))

enum { FAKE_SUCCESS, FAKE_CUDA_ERROR, FAKE_IN_PROGRESS = 7 };

FAKE_API int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm,
                           CUstream stream);
FAKE_API int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm,
                           CUstream stream);
FAKE_API int ncclSend(const void *from, size_t count, int type, int peer, void *comm,
                      CUstream stream);
FAKE_API int ncclRecv(void *to, size_t count, int type, int peer, void *comm, CUstream stream);
FAKE_API int ncclGroupStart(void);
FAKE_API int ncclGroupEnd(void);
FAKE_API int ncclCommRegister(const void *comm, void *buffer, size_t bytes, void **handle);
/* Operations begin at fake_begin, as those of a communicator that does not block may. */
FAKE_API void fake_hold(int hold);
FAKE_API void fake_begin(void);
/* Writes the registered buffers, twice mixed with themselves, one behind the other to `to`. */
FAKE_API void fake_use_registered(void *to, CUstream stream);

#endif
