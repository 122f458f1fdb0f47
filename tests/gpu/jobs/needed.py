#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""needed.py [STEPS]: a PyTorch job whose ranges tell the rows that they need, under the example's runner.

Rows beyond the capacity are dropped; the runner sees that and runs the step again without a capacity, so that the
losses are those of a job that never drops. Prints a line of losses, the same plain and under the stash except that
only the latter notices; under the stash it checks what it is told. Needs a GPU and PYTHONPATH with python/.
"""
import sys

import torch

import pagedstash
import rerun_example

CAPACITY, BALANCED, HIDDEN, LAYERS = 4096, 2048, 8192, 8
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 12


class Layer(torch.nn.Module):
    def __init__(self, number, counter):
        super().__init__()
        self.number, self.counter, self.limit = number, counter, CAPACITY
        self.weight = torch.nn.Parameter(torch.randn(HIDDEN, device="cuda") / HIDDEN ** 0.5)

    def forward(self, x, rows):
        kept = min(rows, self.limit)
        self.counter.fill_(rows if self.limit == CAPACITY else 0)
        torch.cuda.nvtx.range_push(f"layer {self.number} experts;need={self.counter.data_ptr():#x}"
                                   f";capacity={CAPACITY};balanced={BALANCED}")
        buffer = torch.zeros(CAPACITY, HIDDEN, device="cuda")
        buffer[:min(kept, CAPACITY)] = x[:min(kept, CAPACITY)] * self.weight
        out = torch.nn.functional.silu(buffer) * buffer
        torch.cuda.nvtx.range_pop()
        return x + out.sum(0, keepdim=True) / CAPACITY * (kept / rows)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.counter = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.layers = torch.nn.ModuleList(Layer(i, self.counter) for i in range(LAYERS))

    def __enter__(self):
        for layer in self.layers:
            layer.limit = 1 << 40

    def __exit__(self, *_):
        for layer in self.layers:
            layer.limit = CAPACITY


def main():
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    source = torch.randn(CAPACITY, HIDDEN, device="cuda")
    losses, rows_of = [], [1500 + 97 * i for i in range(STEPS)]
    rows_of[STEPS // 2] = 5000  # more than there is room for
    rows_of[STEPS - 2] = 4097

    def forward_backward(batches, training):
        x = source
        for layer in model.layers:
            x = layer(x, batches[0])
        loss = x.square().mean()
        if training:
            loss.backward()
        return loss

    runner = rerun_example.for_torch(model, forward_backward, without_capacity=lambda: model)
    for rows in rows_of:
        optimizer.zero_grad(set_to_none=True)
        losses.append(runner([rows]).item())
        optimizer.step()
    evaluated = runner([4500], training=False).item()
    print("losses", *(f"{loss:.9g}" for loss in losses), f"evaluated {evaluated:.9g}")
    if pagedstash.loaded() and pagedstash.why_not() is None:
        assert runner.n_reruns == 3, f"{runner.n_reruns} steps were run again, not 3"
        assert pagedstash.status().complete, pagedstash.status()
        print("three steps were run again:", pagedstash.status())
    else:
        print(pagedstash.why_not())


main()
