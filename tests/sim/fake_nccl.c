/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library with NCCL's names for one rank. As NCCL does, it writes the buffers' addresses to pinned memory, and its
 * kernel is told where that is, so no parameter of a launch names a buffer. Each operation mixes what is sent with
 * itself into what receives; a receive takes what the last send before it in the group sent. Not thread-safe.
 */
#include "tests/sim/fake_nccl.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/sim_kernels.h"

#define OPERATIONS_MAX 4096u

static struct test_product *list; /* pinned */
static CUstream streams[OPERATIONS_MAX];
static unsigned n_listed, n_begun, depth;
static int held;
static const void *sent, *registered;

static void must(CUresult r)
{
    if (r != CUDA_SUCCESS) {
        fprintf(stderr, "fake_nccl: %d\n", (int)r);
        exit(3);
    }
}

static void launch(const struct test_product *p, CUstream stream)
{
    static CUmodule module;
    CUfunction f;
    uint64_t at = (uint64_t)(uintptr_t)p, n = 1;

    if (module == NULL) {
        must(cuModuleLoadData(&module, ""));
    }
    must(cuModuleGetFunction(&f, module, "test_grouped"));
    must(cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, stream, (void *[]){&at, &n}, NULL));
}

void fake_begin(void)
{
    for (; n_begun < n_listed; n_begun++) {
        launch(&list[n_begun], streams[n_begun]);
    }
}

void fake_hold(int hold)
{
    held = hold;
}

static int add(const void *from, void *to, size_t count, CUstream stream)
{
    if (list == NULL) {
        must(cuMemHostAlloc((void **)&list, OPERATIONS_MAX * sizeof(*list), 0));
    }
    if (n_listed == OPERATIONS_MAX || from == NULL) {
        return FAKE_CUDA_ERROR;
    }
    streams[n_listed] = stream;
    list[n_listed++] = (struct test_product){(uint64_t)(uintptr_t)from, (uint64_t)(uintptr_t)from,
                                             (uint64_t)(uintptr_t)to, count};
    if (held) {
        return depth > 0 ? FAKE_SUCCESS : FAKE_IN_PROGRESS;
    }
    if (depth == 0) {
        fake_begin();
    }
    return FAKE_SUCCESS;
}

/* NOLINTNEXTLINE(readability-function-size): NCCL's parameters */
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm,
                  CUstream stream)
{
    (void)type, (void)op, (void)comm;
    return add(from, to, count, stream);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, CUstream stream)
{
    (void)type, (void)comm;
    return add(from, to, count, stream);
}

int ncclSend(const void *from, size_t count, int type, int peer, void *comm, CUstream stream)
{
    (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    sent = from;
    return FAKE_SUCCESS;
}

int ncclRecv(void *to, size_t count, int type, int peer, void *comm, CUstream stream)
{
    (void)type, (void)peer, (void)comm;
    return add(sent, to, count, stream);
}

int ncclGroupStart(void)
{
    depth++;
    return FAKE_SUCCESS;
}

int ncclGroupEnd(void)
{
    if (--depth > 0) {
        return FAKE_SUCCESS;
    }
    if (held) {
        return FAKE_IN_PROGRESS;
    }
    fake_begin();
    return FAKE_SUCCESS;
}

int ncclCommRegister(const void *comm, void *buffer, size_t bytes, void **handle)
{
    (void)comm, (void)bytes;
    registered = buffer;
    *handle = buffer;
    return FAKE_SUCCESS;
}

void fake_use_registered(void *to, CUstream stream)
{
    (void)add(registered, to, 64, stream);
}
