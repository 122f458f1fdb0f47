#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs an unmodified PyTorch job plain and under `pagedstash run`, and compares.

  identity: every step's loss and grad_norm are the same hexadecimal numbers (--deterministic), over the matrix of
            capacity, padding, microbatches and --sync-free. Several jobs run side by side, as device memory allows.
  memory:   driver-reported peak during the steps (--sample-memory) and step time, one job at a time, plain and stash
            alternating.

Writes one JSON object: the commands, the GPU, the driver, the date, one row a pair. Exit 1 if any pair differs.
"""
import argparse
import concurrent.futures
import datetime
import glob
import itertools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STRICT = os.path.join(HERE, "jobs", "strict.py")
ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--pagedstash", required=True, help="the command, as built")
ap.add_argument("--job", default=os.path.join(HERE, "jobs", "moe12.py"))
ap.add_argument("--out", required=True, help="the JSON file to write")
ap.add_argument("--what", default="identity,memory")
ap.add_argument("--steps", type=int, default=10)
ap.add_argument("--memory-gib", type=int, default=125, help="device memory that jobs side by side may use together")
ap.add_argument("--repeat", type=int, default=2, help="memory: pairs a configuration")
ap.add_argument("--timeout", type=int, default=300, help="seconds a job")
ap.add_argument("--only", default="", help="run only configurations whose name holds this (a regular expression)")
ap.add_argument("--jobs", type=int, default=4, help="identity: pairs side by side")
a = ap.parse_args()

# GiB a plain job of the capacity takes at most, with room for its neighbour's start: moe12 on an H200, rounded up.
NEED = {0.0: 40, 2.0: 50, 4.0: 74}


class Room:
    """Device memory of each GPU that is not spoken for."""

    def __init__(self, n_gpus, gib):
        self.free = [gib] * n_gpus
        self.changed = threading.Condition()

    def take(self, gib):
        with self.changed:
            self.changed.wait_for(lambda: max(self.free) >= gib)
            gpu = self.free.index(max(self.free))
            self.free[gpu] -= gib
            return gpu

    def give(self, gpu, gib):
        with self.changed:
            self.free[gpu] += gib
            self.changed.notify_all()


def keep(kind, row):
    """Written as it comes: a run that is cut short keeps what it has."""
    with saving:
        result.setdefault(kind, []).append(row)
        result["all_identical"] = all(r["identical"] for r in result.get("identity", []))
        with open(a.out + ".new", "w") as f:
            json.dump(result, f, indent=1)
            f.write("\n")
        os.replace(a.out + ".new", a.out)


def run(args, stash, metrics, gpu):
    command = [sys.executable, *([STRICT] if "--deterministic" in args else []), a.job, *args]
    env = dict(os.environ, PAGEDSTASH_METRICS=metrics, CUDA_VISIBLE_DEVICES=str(gpu))
    if stash:
        command = [a.pagedstash, "run", "--", *command]
    else:
        # The like baseline: the allocator that the stash needs.
        env["PYTORCH_ALLOC_CONF"] = env["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    start = time.time()
    try:
        p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=a.timeout)
        code, out, err = p.returncode, p.stdout, p.stderr
    except subprocess.TimeoutExpired as e:
        code, out, err = 124, (e.stdout or b"").decode(), (e.stderr or b"").decode() + "\ntimed out"
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    counters = {}
    for path in glob.glob(os.path.join(metrics, "*.jsonl")):
        with open(path) as f:
            counters = json.loads(f.readlines()[-1])["counters"]
    return {
        "command": " ".join(command), "exit": code, "seconds": round(time.time() - start, 1),
        "steps": [r for r in rows if "loss" in r and "step" in r], "end": rows[-1] if rows else None,
        "counters": counters, "stderr": err[-2000:],
    }


def pair(name, args, gib):
    gpu = room.take(gib)
    try:
        with tempfile.TemporaryDirectory() as m:
            plain = run(args, False, m, gpu)
            stash = run(args, True, m, gpu)
    finally:
        room.give(gpu, gib)
    numbers = [[(s["loss"], s["grad_norm"]) for s in r["steps"]] for r in (plain, stash)]
    same = plain["exit"] == 0 and stash["exit"] == 0 and numbers[0] == numbers[1] and len(numbers[0]) == a.steps
    row = {
        "name": name, "arguments": args, "identical": same, "steps": len(numbers[1]),
        "last_loss": [n[-1][0] if n else None for n in numbers],
        "exit": [plain["exit"], stash["exit"]], "seconds": [plain["seconds"], stash["seconds"]],
        "counters": stash["counters"],
    }
    if not same or stash["stderr"].strip():
        row["stderr"] = [plain["stderr"], stash["stderr"]]
    print(("same  " if same else "DIFFER"), name, "restored", stash["counters"].get("bytes_restored"), row["seconds"], row["exit"], row["last_loss"],
          file=sys.stderr, flush=True)
    keep("identity", row)


def identity():
    todo = []
    for cap, mb, free in itertools.product((0.0, 2.0, 4.0), (1, 4), (False, True)):
        for padding in ("empty", "zeros") if cap else ("empty",):
            args = ["--deterministic", "--steps", str(a.steps), "--capacity", str(cap), "--microbatches", str(mb),
                    "--padding", padding] + (["--sync-free"] if free else [])
            name = f"capacity {cap:g} {padding} microbatches {mb}" + (" sync-free" if free else "")
            if re.search(a.only, name):
                todo.append((name, args, NEED[cap]))
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(lambda t: pair(*t), todo))


def memory_row(name, args):
    gpu = room.take(a.memory_gib)  # alone on its GPU
    got = {False: [], True: []}
    counters = {}
    try:
        for _ in range(a.repeat):
            for stash in (False, True):
                with tempfile.TemporaryDirectory() as m:
                    r = run(args, stash, m, gpu)
                # With --sample-memory the job's own thread may abort the interpreter after its last line, plain too.
                if not r["end"] or "median_ms" not in r["end"]:
                    print(r["stderr"], file=sys.stderr)
                got[stash].append(r["end"] or {})
                counters = r["counters"] if stash else counters
    finally:
        room.give(gpu, a.memory_gib)
    row = {"name": name, "arguments": args, "counters": counters}
    for stash, label in ((False, "plain"), (True, "stash")):
        row[label] = {"peak_mib": [e["used_mib"] for e in got[stash] if "used_mib" in e],
                      "step_ms": [e["median_ms"] for e in got[stash] if "median_ms" in e]}
    if row["plain"]["step_ms"] and row["stash"]["step_ms"]:
        row["time_ratio"] = round(statistics.median(row["stash"]["step_ms"]) / statistics.median(row["plain"]["step_ms"]), 4)
    print(name, "plain", row["plain"], "stash", row["stash"], row.get("time_ratio"), file=sys.stderr, flush=True)
    keep("memory", row)


def memory():
    todo = []
    for cap, free in itertools.product((2.0, 4.0, 0.0), (False, True)):
        name = f"memory capacity {cap:g}" + (" sync-free" if free else "")
        if re.search(a.only, name):
            todo.append((name, ["--sample-memory", "--steps", "14", "--capacity", str(cap)] + (["--sync-free"] if free else [])))
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(lambda t: memory_row(*t), todo))


def machine():
    q = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    lines = q.stdout.strip().splitlines() or ["?, ?"]
    gpu, driver = lines[0].split(", ")
    return {"gpu": gpu, "n_gpus": len(lines), "driver": driver, "date": datetime.date.today().isoformat(), "host": socket.gethostname()}


result = {"what": "compare_jobs", "command": " ".join(sys.argv), **machine()}
room = Room(result["n_gpus"], a.memory_gib)
saving = threading.Lock()
if "identity" in a.what:
    identity()
if "memory" in a.what:
    memory()
ok = result.get("all_identical", True)
print(json.dumps({"all_identical": ok, "pairs": len(result.get("identity", []))}))
sys.exit(0 if ok else 1)
