#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where nothing can be paged the job runs as without us, and one line says why: degraded.py COMMAND DEMO SIMCUDA. TAP."""
import json
import os
import subprocess
import sys

# name, what SIMCUDA adds, settings, words of the one line (None: no line)
CASES = [
    ("a region pattern that never matches", "", {"PAGEDSTASH_REGIONS": "*attention*"}, "matched PAGEDSTASH_REGIONS"),
    ("a device without virtual memory management", "vmm=0", {"PAGEDSTASH_MIN_BYTES": "64K"}, "no virtual memory management"),
    ("a driver older than what tells parameter layouts", "version=12030", {}, "older"),
    ("a setting that does not parse", "", {"PAGEDSTASH_MIN_BYTES": "many", "PAGEDSTASH_DISABLE": "y"}, "bad value 'many'"),
    ("a misspelled setting", "", {"PAGEDSTASH_REGION": "x", "PAGEDSTASH_DISABLE": "y"}, "did you mean 'PAGEDSTASH_REGIONS'"),
    ("a page size that is no power of two", "", {"PAGEDSTASH_PAGE_BYTES": "5000"}, "bad value '5000'"),
    ("switched off", "", {"PAGEDSTASH_DISABLE": "y"}, None),
    ("too few addresses", "", {"PAGEDSTASH_WINDOW_BYTES": "128M", "PAGEDSTASH_MIN_BYTES": "64K"}, "window is full"),
    ("no pinned memory", "fail=cuMemHostAlloc:1+", {"PAGEDSTASH_MIN_BYTES": "64K"}, "page pool"),
    ("kernels that cannot be loaded", "fail=cuModuleLoadData:2+", {"PAGEDSTASH_MIN_BYTES": "64K"}, "stash kernels"),
]


def run(command, simcuda, sim, settings):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env |= settings
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
    env["LD_LIBRARY_PATH"] = simcuda
    env["SIMCUDA"] = "mem=128M,granularity=4K,check=1" + ("," + sim if sim else "")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line["loss"] for line in lines[:-1]] + [lines[-1]["weights"]], done.stderr


def check(pagedstash, demo, simcuda, sim, settings, words):
    job = [demo, "--steps=2", "--layers=8"]
    # The stash's own failures must not be the job's: the job alone loads its module first.
    plain, _ = run(job, simcuda, "" if "fail=" in sim else sim, {})
    stash, said = run([pagedstash, "run", "--", *job], simcuda, sim, settings)
    assert stash == plain, f"results differ: {plain} {stash}"
    said = [line for line in said.splitlines() if "pagedstash" in line]
    if words is None:
        assert said == [], f"silence wanted: {said}"
    else:
        assert len(said) == 1 and words in said[0], f"one line with '{words}' wanted: {said}"


pagedstash, demo, simcuda = sys.argv[1:]
n_failed = 0
print(f"1..{len(CASES)}")
for i, (name, sim, settings, words) in enumerate(CASES, 1):
    try:
        check(pagedstash, demo, simcuda, sim, settings, words)
        print(f"ok {i} - {name}")
    except (AssertionError, subprocess.TimeoutExpired, ValueError, KeyError) as e:
        print(f"not ok {i} - {name}\n# {str(e)[:1500]}")
        n_failed += 1
    sys.stdout.flush()
sys.exit(1 if n_failed else 0)
