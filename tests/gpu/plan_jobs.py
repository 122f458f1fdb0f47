#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a plan costs and saves: an unmodified PyTorch job plain and under `pagedstash run`, alternating, one at a time.

Plain is measured with cudaMallocAsync and with PyTorch's own allocator; the better one is what the stash is held
against. Steps count from the one after the last change of plan on, memory (driver-reported, sampled every millisecond)
as their maximum, time as the median over what the same step takes with and without. Sync-free jobs say only how long
their last two thirds took together: a plan that is taken up within them is told as planned_late. Writes one JSON
object, as it goes.

The jobs of a batch make their parameters side by side, on the CPU; then each has the GPU, and the machine, for itself
until it exits (jobs/turn.py).
"""
import argparse
import datetime
import fcntl
import glob
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
JOB, TURN, EMPTIED = (os.path.join(HERE, "jobs", name) for name in ("moe12.py", "turn.py", "emptied.py"))
ASYNC, OWN = "backend:cudaMallocAsync", "expandable_segments:True"
ONE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
THREADS = {"OMP_NUM_THREADS": "3"}  # six jobs prepare side by side on 16 cores
# name: arguments, environment, and if it is not the plain job that the stash is held against: our options, and the
# arguments of what it is held against, which has the stash without these options if there are none
ROWS = {
    f"capacity {cap}{more}": (["--capacity", cap, *args], env)
    for cap in "24"
    for more, args, env in (("", [], {}), (" sync-free", ["--sync-free"], {}), (" one connection", [], ONE),
                            (" marked", ["--mark-rows"], {}))
}
ROWS["exact"] = ([], {})
ROWS["exact sync-free"] = (["--sync-free"], {})
ROWS["adam"] = (["--adam", "--vocab", "131072", "--capacity", "1.2"], {})
ROWS["emptied"] = (["--capacity", "2", "emptied"], {})
ROWS["some on the host"] = (["--capacity", "2"], {}, ["--cuda-budget=11500M"], [])  # about 1.4 GB a step
ROWS["more on the host"] = (["--capacity", "2"], {}, ["--cuda-budget=10700M"], [])  # about 2.3 GB
ROWS["all on the host"] = (["--capacity", "2"], {}, ["--cuda-budget=0"], ["--alternative", "save_on_cpu"])

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--pagedstash", required=True, help="the command, as built")
ap.add_argument("--out", required=True, help="the JSON file to write")
ap.add_argument("--only", default="", help="run only rows whose name matches this regular expression")
ap.add_argument("--steps", type=int, default=22)
ap.add_argument("--sync-free-steps", type=int, default=48, help="a plan is there by step 15, a third of these")
ap.add_argument("--pairs", type=int, default=2)
ap.add_argument("--own", type=int, default=1, help="plain runs with PyTorch's own allocator, a row")
ap.add_argument("--batch", type=int, default=6, help="jobs that prepare side by side (10 GiB of host memory each)")
ap.add_argument("--ready", type=float, default=100, help="seconds a batch may prepare")
ap.add_argument("--timeout", type=float, default=60, help="seconds a job may have the GPU")
ap.add_argument("--total", type=float, default=float("inf"), help="seconds after which no batch is begun")
a = ap.parse_args()


class Stuck(Exception):
    """A job does not go although it was killed, so nothing can be measured beside it."""


class Job:
    """One process, in a folder of its own. why: what went wrong, None as long as nothing has."""

    def __init__(self, row, kind, folder):
        self.row, self.kind, self.folder, self.why = row, kind, folder, None
        self.metrics = os.path.join(folder, "metrics")
        os.makedirs(self.metrics)
        self.lock = open(os.path.join(folder, "lock"), "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        args = [x for x in row["arguments"] if x != "emptied"]
        wrap = [EMPTIED] if "emptied" in row["arguments"] else []
        against = row.get("against") if kind != "stash" else None
        command = [sys.executable, TURN, self.lock.name, *wrap, JOB, "--sample-memory", *args, *(against or [])]
        env = {**os.environ, **THREADS, **row["environment"]}
        if kind == "stash" or (kind == "plain" and against == []):
            options = row.get("options", []) if kind == "stash" else []
            command = [a.pagedstash, "run", "--log-level=info", f"--metrics={self.metrics}", "--metrics-ranges=step*",
                       *options, "--", *command]
        else:
            env["PYTORCH_ALLOC_CONF"] = env["PYTORCH_CUDA_ALLOC_CONF"] = OWN if kind == "own" else ASYNC
        with open(os.path.join(folder, "out"), "w") as out, open(os.path.join(folder, "err"), "w") as err:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            start_new_session=True)

    def preparing(self):
        return self.process.poll() is None and not os.path.exists(self.lock.name + ".ready")

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            raise Stuck(f"{self.row['name']} {self.kind} was killed and is still there") from None

    def turn(self):
        """Lets it on the GPU and waits for its end."""
        if self.why is None and self.process.poll() is not None:
            self.why = f"ended before its turn, exit {self.process.returncode}"
        if self.why is not None:
            return
        self.lock.write("go")
        self.lock.close()
        try:
            self.process.wait(a.timeout)
        except subprocess.TimeoutExpired:
            self.why = f"still there after {a.timeout:g} s on the GPU"
            self.kill()

    def written(self, pattern):
        """The objects in the lines of its files; a line that was cut off counts for none."""
        for path in glob.glob(os.path.join(glob.escape(self.folder), pattern)):
            with open(path, errors="replace") as f:
                for line in f:
                    try:
                        if line.startswith("{"):
                            yield json.loads(line)
                    except ValueError:
                        pass

    def judged(self):
        rows = list(self.written("out"))
        run = judge([r for r in rows if "step" in r], rows[-1] if rows else {},
                    list(self.written("metrics/*.jsonl")))
        if self.why is None and "failed" in run:
            self.why = f"no result, exit {self.process.returncode}"
        return run if self.why is None else {"failed": True, "why": self.why}

    def log(self):
        with open(os.path.join(self.folder, "err"), errors="replace") as f:
            lines = f.read().splitlines()
        return [x for x in lines if self.why is not None or "pagedstash" in x or "Error" in x][-12:]


def first_planned(counters):
    """The step after which no plan is made any more; None: there was none. Counters are those a step begins with."""
    at = None
    for i in range(1, len(counters)):
        if counters[i]["plans"] != counters[i - 1]["plans"]:
            at = i + 1
    return at


def judge(steps, end, lines):
    """lines: the metrics, none of a job without us."""
    counters = [x["counters"] for x in lines if "counters" in x and str(x.get("range", "")).startswith("step")]
    third = len(steps) // 3
    start = third if end.get("sync_free") else max(first_planned(counters) or 0, third)
    steady = steps[start:]
    if not steady or "median_ms" not in end:
        return {"failed": True}
    row = {"median_ms": end["median_ms"] if end.get("sync_free") else statistics.median(s["ms"] for s in steady),
           "spread_ms": [min(s["ms"] for s in steady), max(s["ms"] for s in steady)],
           "peak_mib": max(s["used_mib"] for s in steady), "first_steady": start, "steps": len(steady),
           "learning_mib": max((s["used_mib"] for s in steps[:start]), default=0),
           "learning_ms": [s["ms"] for s in steps[:start]], "steady_ms": [s["ms"] for s in steady], "loss": end["loss"]}
    if len(counters) > start + 1:
        n = len(counters) - 1 - start
        last, before = counters[-1], counters[start]
        row["a_step"] = {k: round((last[k] - before[k]) / n, 1) for k in last
                         if isinstance(last[k], (int, float)) and last[k] != before[k]}
        row["plans"] = last["plans"]
        at_exit = [x["counters"] for x in lines if x.get("type") == "summary"] or [last]
        if end.get("sync_free") and at_exit[-1]["plans"] != before["plans"]:
            row["planned_late"] = True
    return row


def keep():
    with open(a.out + ".new", "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    os.replace(a.out + ".new", a.out)


def over(row, kind):
    """The median of stash over plain, step by step: a step has as many rows in every run, another step has others."""
    shares = []
    for one in (r for r in row["stash"] if "failed" not in r):
        for other in (r for r in row[kind] if "failed" not in r):
            first = max(one["first_steady"], other["first_steady"])
            mine, its = (r["steady_ms"][first - r["first_steady"]:] for r in (one, other))
            shares += [x / y for x, y in zip(mine, its)]
    return round(statistics.median(shares) - 1, 4) if shares else None


def sum_up(row):
    """What the runs of a row come to, as far as they are done."""
    best = {}
    for kind in ("plain", "own", "stash"):
        good = [r for r in row[kind] if "failed" not in r]
        if good:
            best[kind] = [statistics.median(r["median_ms"] for r in good), max(r["peak_mib"] for r in good)]
    plain = [best[k] for k in ("plain", "own") if k in best]
    if plain and "stash" in best:
        row["time_over_async"] = over(row, "plain")
        row["time_over_own"] = over(row, "own")
        both = [x for x in (row["time_over_async"], row["time_over_own"]) if x is not None]
        row["time_over_plain"] = max(both, default=None)
        row["memory_mib"] = {"stash": best["stash"][1], "plain": min(p[1] for p in plain)}
    if any(r.get("planned_late") for r in row["stash"]):
        row["planned_late"] = True
    row["medians"] = best


def tell(row):
    notes = [f"{kind} failed: {r['why']}" for kind in ("own", "plain", "stash") for r in row[kind] if "failed" in r]
    if "planned_late" in row:
        notes.append("planned late")
    if "not_run" in row:
        notes.append("not run: " + " ".join(row["not_run"]))
    print(row["name"], row["medians"], "time", row.get("time_over_plain"),
          "learning", [r.get("learning_mib") for r in row["stash"]],
          "first", [r.get("first_steady") for r in row["stash"]], *notes, flush=True)


def done(job):
    row = job.row
    row[job.kind].append(job.judged())
    if job.kind == "stash" or "failed" in row[job.kind][-1]:
        row.setdefault("log", []).append(job.log())
    row["not_run"].remove(job.kind)
    if not row["not_run"]:
        del row["not_run"]
    sum_up(row)
    keep()
    if "not_run" not in row:
        tell(row)


def measure(batch):
    begun = time.monotonic()
    jobs = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            for i, (row, kind) in enumerate(batch):
                jobs.append(Job(row, kind, os.path.join(folder, str(i))))
            while any(job.preparing() for job in jobs) and time.monotonic() - begun < a.ready:
                time.sleep(0.05)
            for job in jobs:
                if job.preparing():
                    job.why = f"not ready after {a.ready:g} s"
                    job.kill()
            ready = time.monotonic() - begun
            for job in jobs:
                try:
                    job.turn()
                except Stuck:
                    done(job)
                    raise
                done(job)
            print(f"{len(jobs)} jobs ready after {ready:.1f} s, done after {time.monotonic() - begun:.1f} s",
                  file=sys.stderr, flush=True)
        finally:
            for job in jobs:
                if job.process.poll() is None:
                    os.killpg(job.process.pid, signal.SIGKILL)


def batches():
    """Lists of (row, kind). A stash run comes right after its plain one, in the same batch if that holds two."""
    made = []
    pair = [["plain", "stash"]] if a.batch > 1 else [["plain"], ["stash"]]
    for row in result["rows"]:
        for kinds in [["own"]] * row["not_run"].count("own") + pair * a.pairs:
            batch = next((b for b in made if len(b) + len(kinds) <= a.batch), None)
            if batch is None:
                batch = []
                made.append(batch)
            batch += [(row, kind) for kind in kinds]
    return made


def new_row(name, args, env, options=None, against=None):
    steps = a.sync_free_steps if "--sync-free" in args else a.steps
    other = {"options": options, "against": against} if options is not None else {}
    own = a.own if options is None else 0
    return {"name": name, "arguments": ["--steps", str(steps), *args], "environment": env, **other, "plain": [],
            "own": [], "stash": [], "medians": {}, "not_run": ["own"] * own + ["plain", "stash"] * a.pairs}


def machine():
    q = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                       text=True)
    gpu, driver = (q.stdout.strip().splitlines() or ["?, ?"])[0].split(", ")
    return {"gpu": gpu, "driver": driver, "date": datetime.date.today().isoformat(), "host": socket.gethostname()}


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # jobs end with us
start = time.monotonic()
result = {"what": "plan_jobs", "command": " ".join(sys.argv), **machine(), "environment": THREADS,
          "rows": [new_row(name, *how) for name, how in ROWS.items() if re.search(a.only, name)]}
keep()
try:
    for batch in batches():
        if time.monotonic() - start < a.total:
            measure(batch)
except Stuck as e:
    result["stopped"] = str(e)
    print(e, file=sys.stderr, flush=True)
for row in result["rows"]:
    if "not_run" in row:
        tell(row)
result["seconds"] = round(time.monotonic() - start)
keep()
