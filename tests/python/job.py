# SPDX-License-Identifier: Apache-2.0
"""job.py RANGES: a job in Python on the software driver, through libcuda and pagedstash.py, with the example's runner.
What it computes and what it is told it checks itself."""
import ctypes
import hashlib
import os
import sys

import pagedstash
import rerun_example

cuda = ctypes.CDLL("libcuda.so.1")
ranges = ctypes.CDLL(sys.argv[1])
BYTES, N_LAYERS, CAPACITY, BALANCED = 0x10000, 6, 128, 64
PRELOADED = "libpagedstash" in os.environ.get("LD_PRELOAD", "")


def ok(result):
    assert result == 0, f"CUDA error {result}"


def alloc(stream):
    pointer = ctypes.c_uint64()
    ok(cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(BYTES), stream))
    return pointer


class Job:
    """Layers whose rows are one byte each repeated; a step may need more rows than there is room for."""

    def __init__(self):
        context, device = ctypes.c_void_p(), ctypes.c_int()
        ok(cuda.cuInit(0))
        ok(cuda.cuDeviceGet(ctypes.byref(device), 0))
        ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        ok(cuda.cuCtxSetCurrent(context))
        self.stream = ctypes.c_void_p()
        ok(cuda.cuStreamCreate(ctypes.byref(self.stream), 1))
        self.counter = ctypes.c_uint64()
        ok(cuda.cuMemAlloc_v2(ctypes.byref(self.counter), ctypes.c_size_t(8)))
        self.digest = hashlib.sha256()
        self.capacity = CAPACITY
        self.gradient = self.n_cleared = self.n_passes = 0

    def fill(self, at, value, n):
        ok(cuda.cuMemsetD8Async(at, ctypes.c_ubyte(value), ctypes.c_size_t(n), self.stream))

    def forward(self, rows, layer):
        """Rows beyond the capacity are dropped."""
        kept = min(rows, self.capacity)
        ok(cuda.cuMemsetD32Async(self.counter, rows if self.capacity == CAPACITY else 0, ctypes.c_size_t(1), self.stream))
        ok(cuda.cuMemsetD32Async(ctypes.c_uint64(self.counter.value + 4), 0, ctypes.c_size_t(1), self.stream))
        name = f"layer {layer} experts;need={self.counter.value:#x};capacity={CAPACITY};balanced={BALANCED}"
        ranges.range_push(name.encode())
        saved = alloc(self.stream)
        self.fill(saved, 0, BYTES)
        self.fill(saved, layer + 1, min(kept, CAPACITY) * BYTES // CAPACITY)
        ranges.range_pop()
        return saved, min(kept, CAPACITY), kept

    def backward(self, layer, saved, rows):
        host = ctypes.create_string_buffer(BYTES)
        ok(cuda.cuMemcpyDtoHAsync_v2(host, saved, ctypes.c_size_t(BYTES), self.stream))
        ok(cuda.cuStreamSynchronize(self.stream))
        ok(cuda.cuMemFreeAsync(saved, self.stream))
        n = rows * BYTES // CAPACITY
        assert host.raw == bytes([layer + 1]) * n + bytes(BYTES - n), f"layer {layer} is not as it was written"
        self.digest.update(host.raw)
        self.gradient += sum(host.raw[::512])

    def run(self, batches, training):
        (rows,) = batches
        self.n_passes += 1
        layers = [self.forward(rows, layer) for layer in range(N_LAYERS)]
        for layer in reversed(range(N_LAYERS)):
            saved, n_rows, _ = layers[layer]
            if training:
                self.backward(layer, saved, n_rows)
            else:
                ok(cuda.cuMemFreeAsync(saved, self.stream))
        return sum(kept for _, _, kept in layers)

    def synchronize(self):
        ok(cuda.cuCtxSynchronize())

    def clear(self):
        self.gradient = 0
        self.n_cleared += 1

    def __enter__(self):
        self.capacity = 1 << 40

    def __exit__(self, *_):
        self.capacity = CAPACITY


def main():
    job = Job()
    n_collectives = 0

    def all_reduce_max(numbers):
        nonlocal n_collectives
        n_collectives += 1
        return numbers

    assert pagedstash.loaded() == PRELOADED, pagedstash.why_not()
    assert (pagedstash.why_not() is None) == PRELOADED, pagedstash.why_not()
    runner = rerun_example.Runner(job.run, synchronize=job.synchronize, all_reduce_max=all_reduce_max,
                                  clear_gradients=job.clear, without_capacity=lambda: job)
    # Rows of each step, and whether it is one of training. Dropped in two of training and one of evaluation.
    steps = [(60, True)] * 6 + [(200, True), (64, True), (90, False), (129, False), (128, True), (150, True)]
    for number, (rows, training) in enumerate(steps):
        job.gradient = 0
        delivered = runner([rows], training)
        if PRELOADED:
            assert delivered == rows * N_LAYERS, f"step {number}: {delivered} of {rows * N_LAYERS} rows"
            job.synchronize()
            told = pagedstash.status()
            assert told.complete and told.enabled, told
    assert n_collectives == len(steps), f"{n_collectives} collectives"
    if PRELOADED:
        assert (runner.n_reruns, job.n_cleared, job.n_passes) == (3, 2, len(steps) + 3), vars(runner)
        with pagedstash.disabled():
            assert not pagedstash.status().enabled
            saved, rows, _ = job.forward(60, 0)
            job.backward(0, saved, rows)
        assert pagedstash.status().enabled
        assert pagedstash.reset() and pagedstash.status().step == 0
        assert pagedstash.version().count(".") == 2 and pagedstash.why_not() is None
    else:
        assert runner.n_reruns == 0 and pagedstash.status() is None and not pagedstash.step()
        assert not pagedstash.enable(False) and not pagedstash.reset() and pagedstash.version() is None
        assert "pagedstash run" in pagedstash.why_not()
    print("stash" if PRELOADED else "plain", job.digest.hexdigest())


main()
