#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a plan costs and saves: an unmodified PyTorch job plain and under `pagedstash run`, alternating, one at a time.

Plain is measured with cudaMallocAsync and with PyTorch's own allocator; the better one is what the stash is held
against. Steps count from the one after the last change of plan on, memory (driver-reported, sampled every millisecond)
as their maximum, time as their median. Writes one JSON object, as it goes.
"""
import argparse
import datetime
import glob
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
JOB = os.path.join(HERE, "jobs", "moe12.py")
ASYNC, OWN = "backend:cudaMallocAsync", "expandable_segments:True"
ONE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
# name: arguments, environment, limits of memory in MiB and of time over plain (None: a share over plain's memory)
ROWS = {
    f"capacity {cap}{more}": (["--capacity", cap, *args], env)
    for cap in "24"
    for more, args, env in (("", [], {}), (" sync-free", ["--sync-free"], {}), (" one connection", [], ONE),
                            (" marked", ["--mark-rows"], {}))
}
ROWS["exact"] = ([], {})
ROWS["adam"] = (["--adam", "--vocab", "131072", "--capacity", "1.2"], {})
ROWS["emptied"] = (["--capacity", "2", "emptied"], {})

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--pagedstash", required=True, help="the command, as built")
ap.add_argument("--out", required=True, help="the JSON file to write")
ap.add_argument("--only", default="", help="run only rows whose name matches this regular expression")
ap.add_argument("--steps", type=int, default=24)
ap.add_argument("--pairs", type=int, default=2)
ap.add_argument("--own", type=int, default=1, help="plain runs with PyTorch's own allocator, a row")
ap.add_argument("--timeout", type=int, default=120, help="seconds a job")
a = ap.parse_args()


def run(args, env, stash, allocator, metrics):
    wrap = [os.path.join(HERE, "jobs", "emptied.py")] if "emptied" in args else []
    command = [sys.executable, *wrap, JOB, "--sample-memory", "--steps", str(a.steps), *(x for x in args if x != "emptied")]
    env = dict(os.environ, **env)
    if stash:
        command = [a.pagedstash, "run", "--log-level=info", f"--metrics={metrics}", "--metrics-ranges=step*", "--", *command]
    else:
        env["PYTORCH_ALLOC_CONF"] = env["PYTORCH_CUDA_ALLOC_CONF"] = allocator
    try:
        p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=a.timeout)
        out, err = p.stdout, p.stderr
    except subprocess.TimeoutExpired as e:
        out, err = (e.stdout or b"").decode(), (e.stderr or b"").decode() + "\ntimed out"
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    steps = [r for r in rows if "step" in r]
    lines = []
    for path in glob.glob(os.path.join(metrics, "*.jsonl")):
        with open(path) as f:
            lines += [json.loads(line) for line in f]
    return steps, rows[-1] if rows else {}, lines, err


def counters_of(lines):
    """Counters after each step."""
    return [line["counters"] for line in lines if "counters" in line and str(line.get("range", "")).startswith("step")]


def first_planned(counters):
    """The step after which no plan is made any more; None: there was none."""
    at = None
    for i in range(1, len(counters)):
        if counters[i]["plans"] != counters[i - 1]["plans"]:
            at = i + 1
    return at


def judge(steps, end, counters, stash):
    first = first_planned(counters) if stash else None
    start = max(first or 0, len(steps) // 3)
    steady = steps[start:]
    if not steady or "median_ms" not in end:
        return {"failed": True}
    row = {"median_ms": end["median_ms"] if end.get("sync_free") else statistics.median(s["ms"] for s in steady),
           "spread_ms": [min(s["ms"] for s in steady), max(s["ms"] for s in steady)],
           "peak_mib": max(s["used_mib"] for s in steady), "first_steady": start, "steps": len(steady),
           "learning_mib": max((s["used_mib"] for s in steps[:start]), default=0),
           "learning_ms": [s["ms"] for s in steps[:start]], "loss": end["loss"]}
    if stash and len(counters) > start + 1:
        n = len(counters) - 1 - start
        last, before = counters[-1], counters[start]
        row["a_step"] = {k: round((last[k] - before[k]) / n, 1) for k in last
                         if isinstance(last[k], (int, float)) and last[k] != before[k]}
        row["plans"] = last["plans"]
    return row


def keep():
    with open(a.out + ".new", "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    os.replace(a.out + ".new", a.out)


def measure(name, args, env):
    row = {"name": name, "arguments": args, "environment": env, "plain": [], "own": [], "stash": []}
    result["rows"].append(row)
    order = ["own"] * a.own + ["plain", "stash"] * a.pairs
    for kind in order:
        with tempfile.TemporaryDirectory() as metrics:
            steps, end, lines, err = run(args, env, kind == "stash", OWN if kind == "own" else ASYNC, metrics)
        row[kind].append(judge(steps, end, counters_of(lines), kind == "stash"))
        if kind == "stash" or "failed" in row[kind][-1]:
            row.setdefault("log", []).append([l for l in err.splitlines() if "pagedstash" in l or "Error" in l][-12:])
        keep()
    best = {}
    for kind in ("plain", "own", "stash"):
        good = [r for r in row[kind] if "failed" not in r]
        if good:
            best[kind] = [statistics.median(r["median_ms"] for r in good), max(r["peak_mib"] for r in good)]
    plain = [best[k] for k in ("plain", "own") if k in best]
    if plain and "stash" in best:
        row["time_over_plain"] = round(best["stash"][0] / min(p[0] for p in plain) - 1, 4)
        row["time_over_async"] = round(best["stash"][0] / best["plain"][0] - 1, 4) if "plain" in best else None
        row["memory_mib"] = {"stash": best["stash"][1], "plain": min(p[1] for p in plain)}
    row["medians"] = best
    keep()
    print(name, best, "time", row.get("time_over_plain"), row.get("time_over_async"),
          "learning", [r.get("learning_mib") for r in row["stash"]], "first", [r.get("first_steady") for r in row["stash"]], flush=True)


def machine():
    q = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    gpu, driver = (q.stdout.strip().splitlines() or ["?, ?"])[0].split(", ")
    return {"gpu": gpu, "driver": driver, "date": datetime.date.today().isoformat(), "host": socket.gethostname()}


result = {"what": "plan_jobs", "command": " ".join(sys.argv), **machine(), "rows": []}
start = time.time()
for name, (args, env) in ROWS.items():
    if re.search(a.only, name):
        measure(name, args, env)
result["seconds"] = round(time.time() - start)
keep()
