#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What factors and budgets do to the demo: limits.py COMMAND DEMO SIMCUDA. Speaks TAP.

The losses are the same at every setting, and the counters tell what the settings allowed, what the plan wanted, and
where the rest went."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tap

SETTINGS = {"SIMCUDA": "mem=128M,granularity=4K,check=1", "PAGEDSTASH_MIN_BYTES": "32K", "PAGEDSTASH_PAGE_BYTES": "4K"}
JOB = ("--steps=8", "--layers=4", "--tokens=256")
# Of enough layers and steps that a plan sends groups to the host by copies, and has them back, again and again.
SMALL = ("--steps=9", "--tokens=64")
COPIED_JOBS = {
    "in_a_row": SMALL + ("--layers=8",),
    "with_1f1b": SMALL + ("--layers=2", "--schedule=1f1b", "--stages=2", "--microbatches=6"),
    "with_virtual_stages": SMALL + ("--layers=2", "--schedule=interleaved", "--stages=2", "--virtual=2",
                                    "--microbatches=6"),
}
KEPT = ("kept_resident", "errors", "bytes_spilled", "limit_bytes", "limit_wanted_bytes", "limit_short_bytes",
        "pool_bytes_peak", "place_bytes_peak", "plans", "stashes", "copied_out", "copied_in")


class Run:
    def __init__(self, command, demo, simcuda, *flags, job=JOB, settings=SETTINGS):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
        env |= settings | {"LD_LIBRARY_PATH": simcuda, "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([command, "run", f"--metrics={folder}", *flags, "--", demo, *job], env=env,
                                  capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
            self.losses = [json.loads(text).get("loss") for text in done.stdout.splitlines()]
            (metrics,) = pathlib.Path(folder).glob("*.jsonl")
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            counters = lines[-1]["counters"]
        self.told = {k: counters[k] for k in KEPT}
        self.told["pinned"] = max(line["counters"]["host_pages_bytes"] for line in lines if "counters" in line)
        assert counters["errors"] == 0, f"{counters}"

    def __getattr__(self, name):
        return self.told[name]


def check_budgets(args):
    free = Run(*args)
    assert free.limit_bytes == 0 and free.plans > 0, f"{free.told}"
    wanted = Run(*args, "--cuda-budget=64M").limit_wanted_bytes
    spilled = []
    for budget in (wanted * 2, wanted, wanted // 2 // 4096 * 4096, wanted // 4 // 4096 * 4096, 0):
        run = Run(*args, f"--cuda-budget={budget}")
        assert run.losses == free.losses, f"other losses with a budget of {budget}"
        assert run.limit_bytes == budget, f"{run.told}"
        # What was seen valid is rounded to pages, and in which step a plan is made is the schedule's.
        assert abs(run.limit_wanted_bytes - wanted) <= wanted // 4, f"{wanted} and {run.told}"
        assert run.pool_bytes_peak <= budget, f"{run.told}"
        assert (run.limit_short_bytes > 0) == (budget <= wanted // 2), f"{run.told}"
        spilled.append(run.bytes_spilled)
    assert spilled[-1] > spilled[0], f"{spilled} bytes spilled"


def check_factors(args):
    free = Run(*args)
    for cuda in ("1.5", "0.25", "-1.2", "-0.25", "0"):
        run = Run(*args, f"--buffer-size-factor-cuda={cuda}", "--capacity-factor=4")
        assert run.losses == free.losses, f"other losses with factor {cuda}"
        assert (run.limit_short_bytes > 0) == (abs(float(cuda)) < 1), f"{cuda}: {run.told}"
        assert run.limit_bytes > 0 or cuda == "0", f"{cuda}: {run.told}"


def check_default(args):
    """1.10 of the balanced bytes, where they are known."""
    free = Run(*args)
    run = Run(*args, "--capacity-factor=4")
    same = Run(*args, "--capacity-factor=4", "--buffer-size-factor-cuda=1.1")
    other = Run(*args, "--capacity-factor=2")
    assert free.limit_bytes == 0, f"{free.told}"
    assert run.limit_bytes == same.limit_bytes > 0, f"{run.told} {same.told}"
    assert abs(other.limit_bytes - 2 * run.limit_bytes) <= 2 * 4096, f"{run.told} {other.told}"
    assert free.losses == run.losses == same.losses == other.losses


def check_no_host(args):
    """Without host memory nothing spills or is copied there; what cannot be covered stays."""
    free = Run(*args)
    assert Run(*args, "--cuda-budget=512K").copied_out > 0
    for limit in ("", "--buffer-size-factor-cuda=-0.5", "--cuda-budget=512K"):
        run = Run(*args, "--buffer-size-factor-cpu=0", *limit.split())
        assert run.losses == free.losses and run.bytes_spilled == run.copied_out == 0, f"{run.told}"


def check_copies(args, job):
    """With no device memory, and a fourth of what a plan wants."""
    free = Run(*args, job=job)
    assert free.plans > 0 and free.copied_out == free.copied_in == 0, f"{free.told}"
    none = Run(*args, "--cuda-budget=0", job=job)
    fourth = Run(*args, f"--cuda-budget={none.limit_wanted_bytes // 4 // 4096 * 4096}", job=job)
    for run in (none, fourth):
        assert run.losses == free.losses, f"other losses: {run.told}"
        assert run.plans > 0 and run.limit_short_bytes > 0, f"{run.told}"
        assert run.copied_out > 0 and run.copied_in > 0, f"{run.told}"
        assert run.pool_bytes_peak <= run.limit_bytes, f"{run.told}"


def check_host_budget(args):
    """Pages that were pinned before the plan and its sinks together: at every range that the job pushes."""
    job = COPIED_JOBS["in_a_row"]
    free = Run(*args, job=job)
    for mib in (4, 6):
        run = Run(*args, "--cuda-budget=0", f"--host-budget={mib}M", "--metrics-ranges=*", job=job)
        assert run.losses == free.losses and run.plans > 0, f"{run.told}"
        assert 0 < run.pinned <= mib << 20, f"{mib} MiB: {run.told}"
    assert run.copied_out > 0, f"{run.told}"


def check_begun(args):
    """A stage that was made ready, and then nothing was stashed into, is not unmapped before that is over."""
    job = ("--steps=9", "--tokens=64", "--layers=6", "--seed=58", "--spread=0.5", "--schedule=1f1b", "--stages=3",
           "--microbatches=6", "--stage=2", "--routing=alternating")
    for seed in (1, 3):
        small = {"SIMCUDA": f"mem=64M,granularity=4K,check=1,eager=0,seed={seed}", "PAGEDSTASH_MIN_BYTES": "4K",
                 "PAGEDSTASH_PAGE_BYTES": "1K"}
        run = Run(*args, "--cuda-budget=0", job=job, settings=small)
        assert run.copied_out > 0, f"{run.told}"


def check_inside(args):
    """Not by `run`, which would refuse: one line, and one of the two is left out."""
    command, demo, simcuda = args
    shim = os.path.join(os.path.dirname(os.path.dirname(command)), "shim", "libpagedstash.so")
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env |= SETTINGS | {"LD_LIBRARY_PATH": simcuda, "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}
    env |= {"LD_PRELOAD": shim, "PAGEDSTASH_CUDA_BUDGET": "2M", "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA": "0.5"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([demo, *JOB], env=env | {"PAGEDSTASH_METRICS": folder}, capture_output=True, text=True,
                              timeout=300)
        (metrics,) = pathlib.Path(folder).glob("*.jsonl")
        counters = json.loads(metrics.read_text().splitlines()[-1])["counters"]
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].endswith("leaving out 'PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA'"), done.stderr
    assert counters["limit_bytes"] == 2 << 20, f"{counters}"
    losses = [json.loads(text).get("loss") for text in done.stdout.splitlines()]
    assert losses == Run(*args).losses


def main():
    args = sys.argv[1:]
    tests = [
        ("a_budget_bounds_homes_and_pages", check_budgets),
        ("factors_are_of_the_balanced_or_the_largest_bytes", check_factors),
        ("the_default_bounds_where_the_balanced_bytes_are_known", check_default),
        ("without_host_memory_nothing_spills", check_no_host),
        *((f"what_the_device_does_not_hold_is_copied_to_the_host_{name}", lambda a, job=job: check_copies(a, job))
          for name, job in COPIED_JOBS.items()),
        ("pages_and_sinks_together_keep_to_the_host_budget", check_host_budget),
        ("a_stage_that_was_begun_for_nothing_ends_in_order", check_begun),
        ("inside_a_job_a_contradiction_is_a_line", check_inside),
    ]
    tap.run([(name, lambda test=test: test(args)) for name, test in tests])


main()
