#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a PyTorch script, unchanged, and says where its GPU time goes: `profiled.py OUT FIRST N SCRIPT [arguments]`.

The N steps from FIRST on (NVTX ranges "step<K>") are recorded with PyTorch's profiler. OUT becomes one JSON object, in
ms a step: the span; how long the GPU was busy, with anything, with the job's kernels, with ours (`ps_*`), with both at
once; and each kernel's number of launches and time. What a profiler costs the host is in the idle time.
"""
import collections
import json
import runpy
import sys

import torch
from torch.profiler import ProfilerActivity, profile

OUT, FIRST, N = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.argv = sys.argv[4:]
push = torch.cuda.nvtx.range_push
running = []


def covered(spans):
    """The length of their union."""
    total = end = 0
    for a, b in sorted(spans):
        total += max(0, b - max(a, end))
        end = max(end, b)
    return total


def sum_up(events):
    kernels = [(e.start_ns(), e.start_ns() + e.duration_ns(), e.name()) for e in events
               if e.device_type() == torch.autograd.DeviceType.CUDA
               and not getattr(e, "is_user_annotation", lambda: False)()]
    ours = [k[:2] for k in kernels if k[2].startswith("ps_")]
    jobs = [k[:2] for k in kernels if not k[2].startswith("ps_")]
    by_name = collections.defaultdict(lambda: [0, 0])
    for a, b, name in kernels:
        by_name[name[:120]][0] += 1
        by_name[name[:120]][1] += b - a
    busy = covered(jobs + ours)
    ms = {"span": max(k[1] for k in kernels) - min(k[0] for k in kernels), "busy": busy, "busy_job": covered(jobs),
          "busy_ours": covered(ours), "busy_both": covered(jobs) + covered(ours) - busy}
    ms["idle"] = ms["span"] - busy
    rows = sorted(by_name.items(), key=lambda row: -row[1][1])
    return {"what": "profiled", "command": " ".join(sys.argv), "gpu": torch.cuda.get_device_name(), "steps": N,
            "ms_a_step": {k: round(v / N / 1e6, 3) for k, v in ms.items()},
            "kernels": [{"name": name, "launches": round(n / N, 1), "ms": round(t / N / 1e6, 3)}
                        for name, (n, t) in rows]}


def watched(name):
    if name == f"step{FIRST}":
        torch.cuda.synchronize()
        running.append(profile(activities=[ProfilerActivity.CUDA]))
        running[0].__enter__()
    elif name == f"step{FIRST + N}":
        torch.cuda.synchronize()
        running[0].__exit__(None, None, None)
        with open(OUT, "w") as f:
            json.dump(sum_up(running[0].profiler.kineto_results.events()), f, indent=1)
            f.write("\n")
    return push(name)


torch.cuda.nvtx.range_push = watched
runpy.run_path(sys.argv[0], run_name="__main__")
