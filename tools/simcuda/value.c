/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: stream-ordered writes of and waits for 32- and 64-bit words, host callbacks. Under the big lock. */
#include <stdlib.h>

#include "tools/simcuda/core.h"

static CUresult submit_value(struct sim_thread *t, CUstream stream, enum sim_op_kind kind,
                             struct sim_value v)
{
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, stream, &s);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const bool there = sim_va_is_device(v.address)
                           ? sim_va_mapped(v.address, v.bytes)
                           : sim_hostmem_pinned((void *)(uintptr_t)v.address, v.bytes);
    if (!there || v.address % v.bytes != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_op *op = sim_op_new(
        kind, s, kind == SIM_OP_WRITE_VALUE ? "cuStreamWriteValue" : "cuStreamWaitValue");
    op->value = v;
    return sim_submit(t, op);
}

CUresult CUDAAPI cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                        unsigned int flags)
{
    SIM_ENTER(0, t);
    return sim_leave(
        submit_value(t, stream, SIM_OP_WAIT_VALUE, (struct sim_value){addr, value, 4, flags}));
}

CUresult CUDAAPI cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                        unsigned int flags)
{
    SIM_ENTER(0, t);
    return sim_leave(
        submit_value(t, stream, SIM_OP_WAIT_VALUE, (struct sim_value){addr, value, 8, flags}));
}

CUresult CUDAAPI cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                         unsigned int flags)
{
    SIM_ENTER(0, t);
    return sim_leave(
        submit_value(t, stream, SIM_OP_WRITE_VALUE, (struct sim_value){addr, value, 4, flags}));
}

CUresult CUDAAPI cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                         unsigned int flags)
{
    SIM_ENTER(0, t);
    return sim_leave(
        submit_value(t, stream, SIM_OP_WRITE_VALUE, (struct sim_value){addr, value, 8, flags}));
}

static CUresult submit_batch_item(struct sim_thread *t, CUstream stream,
                                  const CUstreamBatchMemOpParams *p)
{
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return submit_value(
            t, stream, SIM_OP_WAIT_VALUE,
            (struct sim_value){p->waitValue.address, p->waitValue.value, 4, p->waitValue.flags});
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return submit_value(
            t, stream, SIM_OP_WAIT_VALUE,
            (struct sim_value){p->waitValue.address, p->waitValue.value64, 8, p->waitValue.flags});
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return submit_value(
            t, stream, SIM_OP_WRITE_VALUE,
            (struct sim_value){p->writeValue.address, p->writeValue.value, 4, p->writeValue.flags});
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return submit_value(t, stream, SIM_OP_WRITE_VALUE,
                            (struct sim_value){p->writeValue.address, p->writeValue.value64, 8,
                                               p->writeValue.flags});
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                                       CUstreamBatchMemOpParams *paramArray, unsigned int flags)
{
    SIM_ENTER(0, t);
    if (flags != 0 || count > 256 || (count > 0 && paramArray == NULL)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = submit_batch_item(t, stream, &paramArray[i]);
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS || fn == NULL) {
        return sim_leave(fn == NULL ? CUDA_ERROR_INVALID_VALUE : result);
    }
    struct sim_op *op = sim_op_new(SIM_OP_HOST, s, "cuLaunchHostFunc");
    op->host = (struct sim_host_call){.fn = fn, .data = userData, .handle = hStream};
    return sim_leave(sim_submit(t, op));
}

CUresult CUDAAPI cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                                     unsigned int flags)
{
    SIM_ENTER(0, t);
    struct sim_stream *s;
    const CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS || callback == NULL || flags != 0) {
        return sim_leave(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    }
    if (s->capture != NULL) {
        sim_capture_invalidate(s->capture);
        return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    struct sim_op *op = sim_op_new(SIM_OP_HOST, s, "cuStreamAddCallback");
    op->host = (struct sim_host_call){.callback = callback, .data = userData, .handle = hStream};
    return sim_leave(sim_submit(t, op));
}
