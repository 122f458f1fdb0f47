/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: fills in all forms. None of them waits when the memory is the device's. Under the big lock. */
#include "tools/simcuda/core.h"

static bool is_there(const struct sim_fill *f)
{
    const size_t bytes = f->width * f->unit;
    for (size_t y = 0; y < f->height; y++) {
        const CUdeviceptr row = f->dst + y * f->pitch;
        if (sim_va_is_device(row) ? !sim_va_mapped(row, bytes)
                                  : !sim_hostmem_pinned((const void *)(uintptr_t)row, bytes)) {
            return false;
        }
    }
    return true;
}

static CUresult submit(struct sim_thread *t, CUstream hStream, const struct sim_fill *f, bool sync)
{
    struct sim_stream *s;
    CUresult result = sim_stream_get(t, hStream, &s);
    if (result != CUDA_SUCCESS || f->width == 0 || f->height == 0) {
        return result;
    }
    if (f->dst % f->unit != 0 || f->pitch % f->unit != 0 || !is_there(f)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_op *op = sim_op_new(SIM_OP_FILL, s, "cuMemset");
    op->fill = *f;
    (void)sim_op_ref(op);
    result = sim_submit(t, op);
    if (result == CUDA_SUCCESS && sync && !sim_va_is_device(f->dst)) {
        result = sim_wait_op(t, op, "cuMemset");
    }
    sim_op_unref(op);
    return result;
}

static struct sim_fill row(CUdeviceptr dst, unsigned unit, uint32_t value, size_t n)
{
    return (struct sim_fill){
        .dst = dst, .pitch = 0, .width = n, .height = 1, .unit = unit, .value = value};
}

static struct sim_fill rows(CUdeviceptr dst, size_t pitch, unsigned unit, uint32_t value,
                            size_t width, size_t height)
{
    return (struct sim_fill){
        .dst = dst, .pitch = pitch, .width = width, .height = height, .unit = unit, .value = value};
}

#define FILL(_fill, _stream, _sync)                                                                \
    SIM_ENTER(0, t);                                                                               \
    const struct sim_fill f = _fill;                                                               \
    return sim_leave(submit(t, _stream, &f, _sync))

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    FILL(row(dstDevice, 1, uc, N), NULL, true);
}

CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
    FILL(row(dstDevice, 2, us, N), NULL, true);
}

CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    FILL(row(dstDevice, 4, ui, N), NULL, true);
}

CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                 size_t Width, size_t Height)
{
    FILL(rows(dstDevice, dstPitch, 1, uc, Width, Height), NULL, true);
}

CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                  size_t Width, size_t Height)
{
    FILL(rows(dstDevice, dstPitch, 2, us, Width, Height), NULL, true);
}

CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                  size_t Width, size_t Height)
{
    FILL(rows(dstDevice, dstPitch, 4, ui, Width, Height), NULL, true);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                                 CUstream hStream)
{
    FILL(row(dstDevice, 1, uc, N), hStream, false);
}

CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N,
                                  CUstream hStream)
{
    FILL(row(dstDevice, 2, us, N), hStream, false);
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                  CUstream hStream)
{
    FILL(row(dstDevice, 4, ui, N), hStream, false);
}

CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                   size_t Width, size_t Height, CUstream hStream)
{
    FILL(rows(dstDevice, dstPitch, 1, uc, Width, Height), hStream, false);
}

CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                    size_t Width, size_t Height, CUstream hStream)
{
    FILL(rows(dstDevice, dstPitch, 2, us, Width, Height), hStream, false);
}

CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                    size_t Width, size_t Height, CUstream hStream)
{
    FILL(rows(dstDevice, dstPitch, 4, ui, Width, Height), hStream, false);
}
