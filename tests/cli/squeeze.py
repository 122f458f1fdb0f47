#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo with less and less device memory. Speaks TAP.

squeeze.py --command FILE --demo FILE --simcuda FOLDER [--levels N] [--seeds N] [--jobs NAME[,NAME...]]

`pagedstash replay` tells the floor of a job: what it holds outside its regions, one group, one lane. From more than the
plain job needs down to the floor, each step gives the plain job's bits or ends with the driver's "out of memory". It
may not end so where the plain job fits with what we take, nor above what is promised: the floor and, while learning, a
second group, since what is out must find room to come back in; and what the library and the driver take for themselves.
Between that and the floor the job may fail; how far it got is printed. Nothing is promised to jobs without padding, and
to those that name saved tensors on several streams, which are not paged."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tap

SETTINGS = {"PAGEDSTASH_MIN_BYTES": "8K", "PAGEDSTASH_PAGE_BYTES": "2K", "PAGEDSTASH_WINDOW_BYTES": "1G"}
UNIT = 4096
PLENTY = 64 << 20
OURS = 512 << 10  # free lists, counters and page tables: 16 bytes a tensor that may be out make half of it
JOBS = {
    "padded": ("--steps=4", "--layers=8", "--tokens=64"),
    "wide": ("--steps=4", "--layers=8", "--tokens=64", "--hidden=64", "--ffn=64"),
    "spikes": ("--steps=4", "--layers=8", "--tokens=64", "--routing=spikes", "--seed=2"),
    "full-first": ("--steps=4", "--layers=8", "--tokens=64", "--routing=spikes"),
    "alternating": ("--steps=6", "--layers=8", "--tokens=64", "--routing=alternating"),
    "one-rank": ("--steps=6", "--layers=8", "--tokens=64", "--routing=one-rank"),
    "deep": ("--steps=4", "--layers=24", "--tokens=32"),
    "pipeline": ("--steps=3", "--layers=4", "--tokens=64", "--schedule=1f1b", "--stages=2", "--microbatches=6"),
}


class Run:
    """The demo, plain or under `pagedstash run` with flags; `out`: it ran out of memory."""

    def __init__(self, args, mem, job, flags=None, seed=0, fail=None, others=0):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
        sim = f"va=8G,granularity={UNIT},hang=60,check=1,mem={mem + others},seed={seed}"
        sim += (f",fail={fail}" if fail else "") + (f",others={others}" if others else "")
        env |= SETTINGS | {"LD_LIBRARY_PATH": args.simcuda, "SIMCUDA": sim}
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
        with tempfile.TemporaryDirectory() as folder:
            under = [] if flags is None else [args.command, "run", f"--metrics={folder}", *flags, "--"]
            done = subprocess.run([*under, args.demo, *job], env=env, capture_output=True, text=True, timeout=300)
            self.what = f"{job} {mem} seed {seed}: ended with {done.returncode}: {done.stderr}"
            self.said = done.stderr
            self.out = done.returncode == 1 and "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr
            assert done.returncode == 0 or self.out, self.what
            lines = [json.loads(text) for text in done.stdout.splitlines()]
            if not self.out:
                self.results = [line["loss"] for line in lines[:-1]] + [lines[-1]["weights"]]
                self.peak = lines[-1]["peak_bytes"]
            if flags is not None:
                (metrics,) = pathlib.Path(folder).glob("*.jsonl")
                self.counters = json.loads(metrics.read_text().splitlines()[-1])["counters"]
                assert self.out or fail or self.counters["errors"] == 0, f"{self.what} {self.counters}"

    def __getitem__(self, name):
        return self.counters[name]


class Floor:
    """What replay says of the job, with what the driver rounds up."""

    def __init__(self, args, job):
        self.plain = Run(args, PLENTY, job)
        with tempfile.TemporaryDirectory() as folder:
            Run(args, PLENTY, job, [f"--trace={folder}"])
            (trace,) = pathlib.Path(folder).glob("*.tsv")
            done = subprocess.run([args.command, "replay", "--json", f"--granularity={UNIT}",
                                   f"--page-bytes={SETTINGS['PAGEDSTASH_PAGE_BYTES']}", trace],
                                  capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        least = told["least"]
        assert least["floor_bytes"] == least["outside_bytes"] + least["group_bytes"] + least["lane_bytes"], least
        self.bytes = least["floor_bytes"] + self.plain.peak - told["plan"]["plain_peak_bytes"]
        self.promised = self.bytes + least["group_bytes"] + OURS


def whole(mem):
    return mem // UNIT * UNIT


def check_levels(args, name):
    job = JOBS[name]
    floor = Floor(args, job)
    peak = floor.plain.peak
    assert floor.promised < 0.9 * peak, f"{name} cannot be squeezed: {floor.promised} of {peak}"
    levels = [peak + OURS]
    levels += [peak - (peak - floor.promised) * i // args.levels for i in range(1, args.levels + 1)]
    levels += [floor.bytes + (floor.promised - floor.bytes) * i // args.levels for i in range(args.levels - 1, -1, -1)]
    fits, calls = peak, 0
    for mem in map(whole, levels):
        for seed in range(args.seeds):
            run = Run(args, mem, job, [], seed)
            assert not run.out or mem < whole(floor.promised), f"promised {floor.promised}: {run.what}"
            assert run.out or run.results == floor.plain.results, f"other bits: {run.what}"
            fits = min(fits, mem) if not run.out else fits
            calls += run["give_backs"]
            if mem < peak and not run.out:
                assert run["bytes_restored"] > 0, f"{run.what} {run.counters}"
    assert Run(args, whole(floor.promised), job).out, "the plain job fits where only the stash should"
    assert calls > 0, "memory has never run out"
    print(f"# {name}: plain {peak}, promised {floor.promised}, floor {floor.bytes}; fits into {fits}", flush=True)


def check_first_step(args):
    """What fits only with the stash runs before anything is learned."""
    job = JOBS["padded"]
    floor = Floor(args, job)
    mem, job = whole(floor.promised), ("--steps=1", *job[1:])
    plain = Run(args, PLENTY, job)
    run = Run(args, mem, job, [])
    assert Run(args, mem, job).out, f"fits without the stash into {mem}"
    assert not run.out and run.results == plain.results, run.what
    assert run["plans"] == 0 and run["bytes_spilled"] > 0 and run["give_backs"] > 0, f"{run.counters}"
    # Where there may be no host memory, device pages must do: that is more than this.
    without = Run(args, mem, job, ["--buffer-size-factor-cpu=0"])
    assert without.out or without.results == plain.results, without.what


def check_not_left_alone(args):
    """Where no plan lowers the peak, only a job that fits without the stash is left to its own allocator."""
    job, said = JOBS["one-rank"], "allocations are left to the job's allocator"
    floor = Floor(args, job)
    peak = floor.plain.peak
    alone = Run(args, peak + 2 * OURS, job, ["--log-level=info"])
    assert said in alone.said and alone.results == floor.plain.results, alone.what
    for seed in range(6):
        mem = whole(peak - (peak - floor.promised) * (seed + 1) // 16)
        run = Run(args, mem, job, ["--log-level=info"], seed)
        assert not run.out and run.results == floor.plain.results, run.what
        assert said not in run.said and run["bytes_restored"] > 0, run.what


def check_other_process(args):
    """What another process holds of the device is no room for a plan. Lists are as long as for all of the device."""
    job = ("--steps=10", *JOBS["deep"][1:])
    floor = Floor(args, job)
    plans = 0
    for seed in range(3):
        mem = whole(floor.promised + OURS * (4 + seed) // 4)
        run = Run(args, mem, job, [], seed, others=PLENTY // 4)
        assert not run.out and run.results == floor.plain.results, run.what
        plans += run["plans"]
    print(f"# {plans} plans", flush=True)


def check_refused_copies(args):
    """A copy to the host that the driver refuses, the first or in the middle, leaves all pages where they are."""
    job = JOBS["padded"]
    floor = Floor(args, job)
    for n in (1, 4, 30):
        run = Run(args, whole(floor.promised), job, [], fail=f"cuMemcpyDtoHAsync:{n}")
        assert run["errors"] == 1, f"{run.what} {run.counters}"
        assert run.out or run.results == floor.plain.results, f"other bits: {run.what}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--command", required=True)
    parser.add_argument("--demo", required=True)
    parser.add_argument("--simcuda", required=True)
    parser.add_argument("--levels", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", default="padded")
    args = parser.parse_args()
    tests = [(f"the_bits_are_the_same_with_less_memory_{name}", lambda name=name: check_levels(args, name))
             for name in (JOBS if args.jobs == "all" else args.jobs.split(","))]
    tests.append(("what_fits_only_with_the_stash_runs_from_its_first_step", lambda: check_first_step(args)))
    tests.append(("a_job_that_does_not_fit_is_not_left_alone", lambda: check_not_left_alone(args)))
    tests.append(("what_another_process_holds_is_no_room_for_a_plan", lambda: check_other_process(args)))
    tests.append(("copies_that_are_refused_change_nothing", lambda: check_refused_copies(args)))
    return 1 if tap.run(tests) else 0


if __name__ == "__main__":
    sys.exit(main())
