#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run_job.py PYTHON_FOLDER SIMCUDA SHIM RANGES: job.py plain, under the stash, and with the stash disabled."""
import os
import subprocess
import sys
import tempfile
import glob
import json

folder, simcuda, shim, ranges = (os.path.abspath(arg) for arg in sys.argv[1:])
SETTINGS = {"SIMCUDA": "mem=64M,granularity=4K,check=1", "PAGEDSTASH_MIN_BYTES": "16K", "PAGEDSTASH_PAGE_BYTES": "2K",
            "PAGEDSTASH_WINDOW_BYTES": "1G"}


def run(job, **more):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env |= SETTINGS | {"LD_LIBRARY_PATH": simcuda, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"} | more
    done = subprocess.run([sys.executable, job, ranges], env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def main():
    job = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.py")
    code, plain, err = run(job)
    assert code == 0 and plain.startswith("plain"), f"plain, ended with {code}: {plain}{err}"
    with tempfile.TemporaryDirectory() as metrics:
        code, out, err = run(job, LD_PRELOAD=shim, PAGEDSTASH_METRICS=metrics)
        assert code == 0, f"under the stash, ended with {code}: {out}{err}"
        (name,) = glob.glob(metrics + "/*.jsonl")
        with open(name, encoding="utf-8") as file:
            counters = json.loads(file.read().splitlines()[-1])["counters"]
    assert out.count("a capacity factor of 3.13 would do") == 1, out  # 200 rows of 64, rounded up
    assert out.count("run again") == 3 and err.count("would have sufficed") > 0, f"{out}{err}"
    assert counters["stashes"] > 0 and counters["restores"] > 0 and counters["errors"] == 0, f"{counters}"
    code, out, err = run(job, LD_PRELOAD=shim, PAGEDSTASH_DISABLE="y")
    assert code != 0 and "passes everything through" in err, f"disabled, ended with {code}: {out}{err}"


main()
