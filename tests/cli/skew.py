#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Too small a pool under skewed routing: skew.py COMMAND DEMO SIMCUDA. Speaks TAP.

Under each sequence of the demo's routing the pool gets half of what it took when it had plenty: without host memory
of its size, which covers the worst case of what is on its way, with it of the bytes that were in pages at once. Each
time the job gives the same bits as a plain one."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tap

SETTINGS = {"PAGEDSTASH_MIN_BYTES": "8K", "PAGEDSTASH_PAGE_BYTES": "1K", "PAGEDSTASH_WINDOW_BYTES": "1G"}
UNIT = 4096
JOB = ("--steps=8", "--layers=8", "--tokens=32", "--hidden=16", "--ffn=16")
SEQUENCES = ["constant", "spikes", "one-rank", "zero", "alternating"]
TOLD = ("kept_resident", "stashes", "bytes_stashed", "bytes_restored", "bytes_spilled", "valid_bytes_peak",
        "pool_bytes_peak", "plans", "plan_misses", "give_backs", "errors")


class Run:
    """The demo, plain if there are no flags for the stash."""

    def __init__(self, args, sim, job, flags=None):
        command, demo, simcuda = args
        env = {k: v for k, v in os.environ.items()
               if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
        env |= SETTINGS | {"LD_LIBRARY_PATH": simcuda, "SIMCUDA": f"va=8G,granularity=4K,hang=60,{sim}"}
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
        with tempfile.TemporaryDirectory() as folder:
            under = [] if flags is None else [command, "run", f"--metrics={folder}", *flags, "--"]
            done = subprocess.run([*under, demo, *job], env=env, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{job} {flags}: ended with {done.returncode}: {done.stderr}"
            lines = [json.loads(text) for text in done.stdout.splitlines()]
            self.results = [line["loss"] for line in lines[:-1]] + [lines[-1]["weights"]]
            if flags is not None:
                (metrics,) = pathlib.Path(folder).glob("*.jsonl")
                self.counters = json.loads(metrics.read_text().splitlines()[-1])["counters"]
                self.told = f"{flags}: " + ", ".join(f"{k} {self.counters[k]}" for k in TOLD)

    def __getitem__(self, name):
        return self.counters[name]


TRIES = 3  # whether anything finds its place taken, or host pages are there in time, is the schedule's


def check_half(args, routing):
    job = (*JOB, f"--routing={routing}")
    no_host = ["--buffer-size-factor-cpu=0"]
    plain = Run(args, "mem=8M", job)
    plenty = Run(args, "mem=8M", job, no_host)
    print(f"# {plenty.told}", flush=True)
    for peak, more in (("pool_bytes_peak", no_host), ("valid_bytes_peak", [])):
        budget = plenty[peak] // 2 // UNIT * UNIT
        for seed in range(TRIES):
            run = Run(args, f"mem=8M,check=1,seed={seed}", job, [f"--cuda-budget={budget}", *more])
            print(f"# {run.told}", flush=True)
            assert run.results == plain.results == plenty.results, f"other bits: {run.told}"
            assert run["errors"] == 0 and 0 < run["pool_bytes_peak"] <= budget, run.told
            assert not more or run["bytes_spilled"] == 0, run.told
            if run["bytes_restored"] > 0 and (more or run["bytes_spilled"] > 0):
                break
        else:
            raise AssertionError(f"nothing came back, or nothing of the host: {run.told}")


def main():
    args = sys.argv[1:]
    tests = [(f"half_of_the_pages_with_routing_{kind}", lambda kind=kind: check_half(args, kind)) for kind in SEQUENCES]
    tap.run(tests)


main()
