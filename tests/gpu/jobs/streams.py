#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Experts on side streams: plain PyTorch, no knowledge of any stash.

A few layers whose routed part runs on streams of its own, as jobs do that overlap dispatch with compute. Tensors made
on one stream are used on another: told to the allocator by record_stream, and ordered by events. A second thread
copies batches from pinned memory on a stream of its own. The expert part is inside the NVTX range "moe_experts",
every step inside "step<N>". Prints one JSON object a step and one at the end; with --deterministic they are equal
from run to run.
"""
import argparse
import json
import os
import queue
import threading

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=3)
p.add_argument("--layers", type=int, default=4)
p.add_argument("--tokens", type=int, default=16384)
p.add_argument("--hidden", type=int, default=2048)
p.add_argument("--ffn", type=int, default=4096)
p.add_argument("--streams", type=int, default=2, help="side streams; each runs a share of the experts")
p.add_argument("--deterministic", action="store_true", help="bitwise reproducible")
a = p.parse_args()

dev = torch.device("cuda")
torch.manual_seed(0)
if a.deterministic:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
side = [torch.cuda.Stream() for _ in range(a.streams)]
host_rng = torch.Generator().manual_seed(7)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(a.hidden, a.hidden, bias=False)
        self.up = nn.ParameterList(nn.Parameter(torch.randn(a.hidden, a.ffn) * 0.02) for _ in side)
        self.down = nn.ParameterList(nn.Parameter(torch.randn(a.ffn, a.hidden) * 0.02) for _ in side)

    def experts(self, x):
        """Each side stream takes a share of the rows; the shares differ from step to step."""
        main = torch.cuda.current_stream()
        cut = int(a.tokens * (0.5 + 0.1 * torch.randn(1, generator=host_rng).clamp(-2, 2).item()))
        shares = [x[:cut], x[cut:]] if a.streams == 2 else list(x.chunk(a.streams))
        out = []
        torch.cuda.nvtx.range_push("moe_experts")
        for stream, share, up, down in zip(side, shares, self.up, self.down):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                h = share @ up
                o = F.silu(h) @ down
            share.record_stream(stream)
            out.append(o)
        for stream, o in zip(side, out):
            main.wait_stream(stream)
            o.record_stream(main)
        y = torch.cat(out)
        torch.cuda.nvtx.range_pop()
        return y

    def forward(self, x):
        x = x + self.mix(F.rms_norm(x, (a.hidden,)))
        return x + self.experts(F.rms_norm(x, (a.hidden,)))


def load(batches):
    """Batches by another thread, on another stream, from pinned memory."""
    stream = torch.cuda.Stream()
    rng = torch.Generator().manual_seed(1)
    for _ in range(a.steps):
        host = torch.randn(a.tokens, a.hidden, generator=rng).to(torch.bfloat16).pin_memory()
        with torch.cuda.stream(stream):
            x = host.to(dev, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(stream)
        batches.put((x, ready, host))


model = nn.Sequential(*[Layer() for _ in range(a.layers)]).to(dev).to(torch.bfloat16)
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
batches = queue.Queue(maxsize=2)
loader = threading.Thread(target=load, args=(batches,))
loader.start()
for step in range(a.steps):
    torch.cuda.nvtx.range_push(f"step{step}")
    x, ready, host = batches.get()
    torch.cuda.current_stream().wait_event(ready)
    x.record_stream(torch.cuda.current_stream())
    loss = model(x).float().pow(2).mean()
    loss.backward()
    norm = torch.stack([q.grad.float().norm() for q in model.parameters()]).norm()
    opt.step()
    opt.zero_grad(set_to_none=True)
    torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    print(json.dumps({"step": step, "loss": float(loss).hex(), "grad_norm": float(norm).hex()}), flush=True)
loader.join()
free, size = torch.cuda.mem_get_info()
print(json.dumps({"used_mib": round((size - free) / 2**20), "loss": float(loss)}))
