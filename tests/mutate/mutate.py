#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes out each wait, record, pin and lock site of the engine, one at a time: at least one run must report it.

mutate.py [--work FOLDER] [--seeds N] [--kind wait|record|pin|lock] [--only NAME]... [--json FILE] [--list]
mutate.py --table FILE: results as a table for docs/campaigns.md.

The sources are copied, a site is taken out (sites.py; locks: all of one function), the shim is built, and scenarios run
until one reports: the checker of the software driver, another output, an error, a crash, an assertion or a hang, or that
nothing goes out any more; for locks, the thread sanitizer. First everything runs unchanged and must be clean. A row of the table that no longer fits
the sources, and a site in the sources that no row covers, are errors. Ends with 1 if a mutation was not reported.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sites import EXPLAINED, PAIRS, SITES, UNORDERED  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENGINE = ["engine.c", "engine_alloc.c", "engine_move.c", "engine_query.c", "engine_region.c", "engine_release.c",
          "engine_touch.c", "memory.c", "pagepool.c"]
SIM = "va=8G,granularity=4K,check=1,hang=5"
SETTINGS = {"PAGEDSTASH_MIN_BYTES": "16K", "PAGEDSTASH_PAGE_BYTES": "2K", "PAGEDSTASH_WINDOW_BYTES": "1G"}
# What a site looks like. Each in the engine's sources must lie in a row of the table, or in one of HELPERS.
SITE = re.compile(r"ps_fence_wait\(|ps_fence_record\(|ps_fence_done\(|ready_for\(|ready_done\(|cuEventSynchronize|"
                  r"cuStreamSynchronize|cuCtxSynchronize|pins\+\+|pinned = true|crowded = true|pthread_cond_wait|"
                  r"ps_wait_bounded\(")
HELPERS = {"ready_for", "ready_done", "ps_wait_bounded", "push_fence", "idle_stream"}
# program, arguments, simulator options, settings, FAULT, may end with that error
FAULTS = ["cuEventRecord:~10", "cuStreamWaitEvent:~40", "cuMemsetD32Async:~30", "cuEventQuery:~20", "cuMemMap:~10",
          "cuStreamWaitEvent:1+", "cuEventRecord:1+", "cuStreamGetCtx:~50", "cuLaunchKernel:~10", "!cuEventRecord:~20",
          "!cuEventRecord:~40", "cuFuncGetParamInfo:~5", "cuEventRecord:~20;cuStreamSynchronize:~50",
          "!cuEventRecord:~5;!cuStreamSynchronize:~50"]


def runs(build, seeds):
    """(name, command, environment, whether an error may end it, in the order of what finds most)"""
    programs = sorted(n for n in os.listdir(build + "/tests/sim") if n.startswith("scenario_") and "." not in n)
    for seed in range(seeds):
        for name in ["faults_job"] + programs:
            for options in special(name):
                # Every other seed: the device works only when it is waited for.
                yield row(build, name, [], f"mem={options}" + ",eager=0" * (seed % 2), seed, "")
        for arguments in (["same"],):
            yield row(build, "scenario_a4_two_threads", arguments, "mem=256M", seed, "")
        for mem in ("1M", "1088K", "1280K", "2M"):
            for quarters in ("0", "1"):
                yield row(build, "memory_job", [quarters], f"mem={mem}" + ",eager=0" * (seed % 2), seed, "")
        for fault in FAULTS:
            for mem in ("64M", "6M"):
                yield row(build, "faults_job", [], "mem=" + mem, seed, fault)


def special(name):
    return {"scenario_b9_no_memory_in_region": ["3M"], "scenario_c8_fits_only_stashed": ["8M"],
            "faults_job": ["64M", "6M"], "scenario_c4_growth_and_drop": ["4M"], "scenario_c9_reserve_in_use": ["4M"],
            "scenario_two_contexts": ["256M", "256M,devices=2"]}.get(name, ["256M"])


def row(build, name, arguments, options, seed, fault):
    env = {"SIMCUDA": f"{options},{SIM},seed={seed}", "FAULT_SEED": str(seed)}
    if fault:
        env["FAULT"] = fault
    label = " ".join([name, *arguments, options, f"seed={seed}", fault]).strip()
    return label, [f"{build}/tests/sim/{name}", *arguments], env, bool(fault)


def environment(build, more, preload):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env |= {"LD_LIBRARY_PATH": build + "/tools/simcuda", "TSAN_OPTIONS": "halt_on_error=1:exitcode=66"} | more
    if preload:
        env |= SETTINGS | {"LD_PRELOAD": build + "/shim/libpagedstash.so"}
    return env


def execute(build, command, more, preload, limit):
    try:
        done = subprocess.run(command, env=environment(build, more, preload), capture_output=True, text=True,
                              timeout=limit, errors="replace")
    except subprocess.TimeoutExpired:
        return "hang", "", ""
    return done.returncode, done.stdout, done.stderr


class Bench:
    """A copy of the sources with a build."""

    def __init__(self, work, name, options):
        self.source, self.build = f"{work}/{name}", f"{work}/{name}/build"
        shutil.rmtree(self.source, ignore_errors=True)
        ignore = shutil.ignore_patterns(".git", "build*", "__pycache__")
        shutil.copytree(ROOT, self.source, ignore=ignore)
        self.call("meson", "setup", self.build, self.source, "--buildtype=debugoptimized", *options)
        self.call("ninja", "-C", self.build, "shim/libpagedstash.so", *self.programs())
        self.plain = {}
        self.usual = {}  # tensors that go out in a run of the unchanged sources

    def programs(self):
        """Targets: the jobs, and with them the software driver."""
        done = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"], capture_output=True, text=True)
        return re.findall(r"^(tests/sim/(?:scenario_\w+|\w+_job)): ", done.stdout, re.M)

    def call(self, *command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")

    def shim(self):
        done = subprocess.run(["ninja", "-C", self.build, "shim/libpagedstash.so"], capture_output=True, text=True)
        return done.returncode == 0, done.stdout[-2000:]

    def wanted(self, command, more):
        """What the plain job prints with plenty of memory, whatever the seed."""
        key = tuple(command) + ("devices=2" in more["SIMCUDA"],)
        if key not in self.plain:
            devices = ",devices=2" if key[-1] else ""
            code, out, err = execute(self.build, command, {"SIMCUDA": f"mem=256M,{SIM},seed=0{devices}"}, False, 60)
            if code != 0:
                sys.exit(f"the plain job {command} ended with {code}: {err}")
            self.plain[key] = out
        return self.plain[key]

    def report(self, run, limit):
        """What a run reports, or None."""
        label, command, more, may_fail = run
        wanted = self.wanted(command, more)
        with tempfile.TemporaryDirectory() as folder:
            code, out, err = execute(self.build, command, more | {"PAGEDSTASH_METRICS": folder}, True, limit)
            n_out = stashes(folder)
        if code == 0 and out == wanted:
            usual = self.usual.setdefault(label, n_out)
            return f"{label}: nothing goes out" if n_out == 0 and usual > 0 and not may_fail else None
        if may_fail and code == 1 and re.search(r"^line \d+: .*: CUDA_ERROR_UNKNOWN$", err, re.M):
            return None
        if code == 0:
            return f"{label}: other output"
        kinds = {87: "checker", 86: "deadlock", 66: "thread sanitizer", 1: "the job's call fails", "hang": "hang"}
        return f"{label}: {kinds.get(code, f'ends with {code}')}{said(err)}"


def stashes(folder):
    n = 0
    for name in os.listdir(folder):
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as f:
            n += sum(int(m) for m in re.findall(r'"stashes":(\d+)', f.read()))
    return n


def said(err):
    for pattern in (r"simcuda: (?:race|use|stale|unordered)[^\n]*", r"WARNING: ThreadSanitizer: [^\n]*",
                    r"line \d+: .*: (CUDA_\w+)", r"BUG[^\n]*", r"Assertion[^\n]*"):
        hit = re.search(pattern, err)
        if hit:
            return ": " + hit.group(0)[:100]
    return ""


# ---- sites

def body_of(text, function, where):
    """(from, to) of a function's definition."""
    found = [m for m in re.finditer(rf"^[A-Za-z][^\n;=]*\b{function}\((?:[^;{{]*)\)\n{{.*?^}}$", text, re.M | re.S)]
    if len(found) != 1:
        sys.exit(f"{where}: function {function} found {len(found)} times")
    return found[0].start(), found[0].end()


def place(text, function, old, where):
    """Where a row's text stands; the row must fit."""
    start, end = body_of(text, function, where)
    if text.count(old, start, end) != 1:
        sys.exit(f"{where}: found {text.count(old, start, end)} times in {function}: {old}")
    at = text.index(old, start, end)
    return at, at + len(old)


def read(source, name):
    with open(f"{source}/{name}", encoding="utf-8") as f:
        return f.read()


def lock_rows(source):
    """One row a function that takes the lock: all its locking is taken out."""
    rows = []
    for name in ENGINE:
        text = read(source, "shim/" + name)
        for m in re.finditer(r"^[A-Za-z][^\n;=]*\b(\w+)\((?:[^;{]*)\)\n{.*?^}$", text, re.M | re.S):
            if "pthread_mutex_lock(&ps_lock)" in m.group(0):
                rows.append((f"lock_of_{m.group(1)}", "lock", "shim/" + name, m.group(1), None, None))
    return rows


def check_coverage(source):
    """Every site of the sources lies in a row, or in a helper whose callers are rows."""
    missing = []
    for name in ENGINE:
        text = read(source, "shim/" + name)
        spans = [place(text, r[3], r[4], r[0]) for r in SITES if r[2] == "shim/" + name]
        spans += [body_of(text, h, h) for h in HELPERS if re.search(rf"^[A-Za-z][^\n;=]*\b{h}\([^;{{]*\)\n{{", text, re.M)]
        for m in SITE.finditer(text):
            line = text[text.rindex("\n", 0, m.start()) + 1:text.index("\n", m.start())]
            excused = any(line.strip() == e for e in UNORDERED.get("shim/" + name, {}))
            comment = line.lstrip().startswith(("*", "/*"))
            if not comment and not excused and not any(a <= m.start() < b for a, b in spans):
                missing.append(f"shim/{name}:{text.count(chr(10), 0, m.start()) + 1}: {line.strip()}")
    if missing:
        sys.exit("sites that no row of sites.py covers:\n" + "\n".join(missing))


def mutated(text, r):
    _, kind, _, function, old, new = r
    if kind == "lock":
        start, end = body_of(text, function, r[0])
        part = re.sub(r"pthread_mutex_(un)?lock\(&ps_lock\)", "(void)ps_lock", text[start:end])
        return text[:start] + part + text[end:]
    start, end = place(text, function, old, r[0])
    return text[:start] + new + text[end:]


def apply(bench, rows):
    originals = {}
    for r in rows:
        path = f"{bench.source}/{r[2]}"
        text = read(bench.source, r[2])
        originals.setdefault(path, text)
        with open(path, "w", encoding="utf-8") as f:
            f.write(mutated(text, r))
    return originals


def restore(originals):
    for path, text in originals.items():
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


def try_one(bench, name, rows, args):
    """The report of one mutation, and after how many runs."""
    originals = apply(bench, rows)
    built, why = bench.shim()
    report, n = None, 0
    if not built:
        restore(originals)
        sys.exit(f"{name} does not build:\n{why}")
    for run in runs(bench.build, args.seeds):
        n += 1
        report = bench.report(run, args.limit)
        if report is not None:
            break
    restore(originals)
    return report, n


def check_unchanged(bench, args):
    bench.shim()
    n = 0
    for run in runs(bench.build, args.seeds):
        report = bench.report(run, args.limit)
        n += 1
        if report is not None:
            sys.exit(f"unchanged: {report}")
    print(f"# unchanged: {n} runs clean", flush=True)


def print_table(path):
    with open(path, encoding="utf-8") as f:
        results = json.load(f)
    print("| site | kind | function | seen by | in run |\n| --- | --- | --- | --- | --- |")
    for r in results:
        report = r["report"] or EXPLAINED.get(r["name"], "not alone, see PAIRS")
        print(f"| {r['name'].replace('_', ' ')} | {r['kind']} | `{r['function']}` | {report.replace('|', '/')} | "
              f"{r['runs'] if r['report'] else '—'} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="/tmp/pagedstash-mutate")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--limit", type=int, default=40, help="seconds a run may take")
    parser.add_argument("--kind", default=None)
    parser.add_argument("--only", action="append", default=None)
    parser.add_argument("--json", default=None)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", default=None)
    args = parser.parse_args()
    if args.table:
        return print_table(args.table)
    check_coverage(ROOT)
    table = {r[0]: r for r in SITES + lock_rows(ROOT)}
    todo = [(name, [r]) for name, r in table.items()] + [(f"{a} and {b}", [table[a], table[b]]) for a, b in PAIRS]
    todo = [(n, rows) for n, rows in todo
            if args.kind in (None, rows[0][1]) and (args.only is None or n in args.only)]
    if args.list:
        print("\n".join(f"{rows[0][1]:7}{n}" for n, rows in todo))
        return 0
    benches = {}
    for kind in sorted({rows[0][1] == "lock" for _, rows in todo}):
        options = ["-Db_sanitize=thread", "-Db_lundef=false"] if kind else []
        benches[kind] = Bench(args.work, "tsan" if kind else "plain", options)
        check_unchanged(benches[kind], args)
    results = []
    for name, rows in todo:
        began = time.time()
        report, n = try_one(benches[rows[0][1] == "lock"], name, rows, args)
        results.append({"name": name, "kind": rows[0][1], "file": rows[0][2], "function": rows[0][3],
                        "report": report, "runs": n})
        print(f"{'seen' if report else 'NOT SEEN'}\t{rows[0][1]}\t{name}\t{report or ''}\t{n} runs\t"
              f"{time.time() - began:.0f} s", flush=True)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump(results, f, indent=1)
    unseen = implied(results)
    print(f"{len(results) - len(unseen)} passed, {len(unseen)} failed")
    return 1 if unseen else 0


def implied(results):
    """Mutations not reported, less those explained and those of a pair that was reported together."""
    seen = {r["name"] for r in results if r["report"]}
    excused = {n for a, b in PAIRS if f"{a} and {b}" in seen for n in (a, b)}
    return [r["name"] for r in results if r["name"] not in seen and r["name"] not in excused | set(EXPLAINED)]


if __name__ == "__main__":
    sys.exit(main())
