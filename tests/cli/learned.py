#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is learned of the demo's steps, as settings ask: learned.py COMMAND DEMO SIMCUDA. Speaks TAP."""
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tap

SETTINGS = {"SIMCUDA": "mem=128M,granularity=4K,check=1", "PAGEDSTASH_MIN_BYTES": "32K", "PAGEDSTASH_PAGE_BYTES": "4K"}
JOB = ("--steps=6", "--layers=4", "--tokens=256")


def environment(simcuda, **more):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
    return env | SETTINGS | {"LD_LIBRARY_PATH": simcuda} | more


class Run:
    """The demo once under `pagedstash run`: its losses, what it said, its metrics file and its trace."""

    def __init__(self, command, demo, simcuda, *flags, job=JOB, **more):
        with tempfile.TemporaryDirectory() as folder:
            line = [command, "run", f"--metrics={folder}", "--metrics-ranges=step*", *flags]
            line += [f"--trace={folder}"] if "trace" in more else []
            more.pop("trace", None)
            done = subprocess.run([*line, "--", demo, *job], env=environment(simcuda, **more), capture_output=True,
                                  text=True, timeout=300)
            assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
            self.losses = [json.loads(text).get("loss") for text in done.stdout.splitlines()]
            self.said = done.stderr
            (metrics,) = pathlib.Path(folder).glob("*.jsonl")
            self.lines = [json.loads(text) for text in metrics.read_text().splitlines()]
            self.counters = self.lines[-1]["counters"]
            self.phases = [line["phase"] for line in self.lines[:-1]]
            traces = list(pathlib.Path(folder).glob("*.trace.tsv"))
            self.trace = traces[0].read_text() if traces else ""


def check_valid(command, demo, simcuda, *job, seed=1):
    """Each tensor that was stashed has its valid bytes in the trace, and replay uses them."""
    settings = SETTINGS["SIMCUDA"] + f",seed={seed}"
    run = Run(command, demo, simcuda, job=job, trace=True, SIMCUDA=settings)
    tensors, valid = {}, collections.defaultdict(list)
    for row in (text.split("\t") for text in run.trace.splitlines() if not text.startswith("#")):
        if row[1] == "alloc" and row[6].startswith("tensor"):
            tensors[row[4]] = int(row[5])
        elif row[1] == "valid":
            valid[row[4]].append(int(row[5]))
    assert len(valid) > len(tensors) // 4, f"{len(valid)} of {len(tensors)} tensors have valid bytes"
    strange = [(i, told, tensors.get(i)) for i, told in valid.items() if not 0 <= max(told) <= tensors.get(i, -1)]
    assert not strange, f"more valid than there is: {strange[:5]}"
    torn = [(i, told) for i, told in valid.items() if len(set(told)) != 1]
    assert not torn, f"nothing is written between two stashes, but their valid bytes differ: {torn[:5]}"
    told, counted = sum(map(sum, valid.values())), run.counters["valid_bytes_stashed"]
    assert told == counted, f"{told} valid bytes in the trace, {counted} counted"
    padded = sum(max(told) < tensors[i] // 2 for i, told in valid.items())
    assert padded > len(valid) // 2, f"at capacity 4 only {padded} of {len(valid)} are less than half full"
    with tempfile.NamedTemporaryFile("w", suffix=".trace.tsv") as file:
        file.write(run.trace)
        file.flush()
        done = subprocess.run([command, "replay", "--json", "--granularity=4K", "--page-bytes=4K", file.name],
                              capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)
    assert told["trace"]["valid_told"] == len(valid) and told["trace"]["valid_assumed"] == 0, f"{told['trace']}"
    assert told["plan"]["adopt"] is True, f"{told['plan']}"


def check_step_range(command, demo, simcuda):
    """Two microbatches are a step each when steps are found; by the range they are one."""
    job = (*JOB, "--microbatches=2")
    found = Run(command, demo, simcuda, job=job)
    named = Run(command, demo, simcuda, "--step=step[0-9]*", job=job)
    assert found.losses == named.losses, f"{found.losses} {named.losses}"
    assert found.counters["step_ranges"] == 0 and named.counters["step_ranges"] == 6, f"{named.counters}"
    first = [run.phases.index("captured") for run in (found, named)]
    assert first[0] < first[1] < 6, f"planned from steps {first} on: {found.phases} {named.phases}"
    steady = [named.lines[i]["counters"] for i in (first[1], 6)]
    differ = {k: steady[1][k] - steady[0][k] for k in ("map_calls", "host_syncs", "plan_misses", "idle_waits")}
    assert not any(differ.values()), f"{differ}"
    assert "PAGEDSTASH_STEP" not in named.said, named.said


def check_no_step_range(command, demo, simcuda):
    """No such range: nothing is planned, and that is said."""
    run = Run(command, demo, simcuda, "--step=epoch*")
    assert "captured" not in run.phases and run.counters["plans"] == 0, f"{run.phases}"
    assert "PAGEDSTASH_STEP='epoch*'" in run.said, run.said


def main():
    args = sys.argv[1:]
    pipeline = ("--schedule=1f1b", "--stages=2", "--microbatches=4", "--steps=6", "--layers=4", "--tokens=256")
    tests = [
        ("a_trace_holds_the_valid_bytes", lambda: check_valid(*args, *JOB)),
        ("a_trace_of_a_pipeline_holds_them", lambda: check_valid(*args, *pipeline)),
        ("whatever_the_order", lambda: check_valid(*args, *pipeline, seed=5)),
        ("the_range_that_is_named_begins_steps", lambda: check_step_range(*args)),
        ("a_range_that_never_comes_is_said", lambda: check_no_step_range(*args)),
    ]
    tap.run(tests)


main()
