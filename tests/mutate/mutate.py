#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes out each wait, record, pin and lock site of the engine, one at a time: at least one run must report it.

mutate.py [--work FOLDER] [--seeds N] [--jobs N] [--limit SECONDS] [--kind wait|record|pin|clean|restore|lock|atomic] [--only NAME]...
          [--only-unseen FILE] [--first FILE] [--json FILE] [--list]
mutate.py --build FOLDER ...: builds all mutants into a package, which may be carried to another machine.
mutate.py --run FOLDER ...: runs such a package.
mutate.py --table FILE: results as a table for docs/campaigns.md.

The sources are copied, a site is taken out (sites.py; locks: all of one function), the shim is built, and scenarios run
until one reports (bench.py). A row of the table that no longer fits the sources, and a site in the sources that no row
covers, are errors. Ends with 1 if a mutation was not reported. --only-unseen: those that FILE, the --json of an earlier
run, has no report of; its other results are taken over. --first: what FILE has a report of is tried there first.
"""
import argparse
import concurrent.futures
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench import UNCHANGED, folder_of, run_package  # noqa: E402
from sites import EXPLAINED, PAIRS, SITES, UNITS, UNORDERED  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENGINE = ["engine.c", "engine_adopt.c", "engine_alloc.c", "engine_move.c", "engine_plan.c", "engine_query.c",
          "engine_region.c", "engine_release.c", "engine_return.c", "engine_squeeze.c", "engine_touch.c", "hostpages.c", "memory.c",
          "pagepool.c", "copies.c", "sinks.c", "places.c",
          "places_aside.c", "places_make.c", "rows.c", "demand.c", "window.c"]
# What a site looks like. Each in the engine's sources must lie in a row of the table, or in one of HELPERS.
SITE = re.compile(r"ps_fence_wait\(|ps_fence_record\(|ps_fence_done\(|ready_for\(|ready_done\(|cuEventSynchronize|"
                  r"cuStreamSynchronize|cuCtxSynchronize|pins\+\+|pinned = true|crowded = true|pthread_cond_wait|"
                  r"ps_wait_bounded\(|ps_wait_within\(|may_evict\(|order_slot\(|first_pending\(|\bscanned = |"
                  r"busy = true|elsewhere = |runs_on = true")
HELPERS = {"ready_for", "ready_done", "ps_wait_bounded", "ps_wait_within", "ps_pool_push", "idle_stream",
           "ps_first_pending", "first_pending", "ps_places_pending", "ps_sinks_pending", "ps_places_open_elsewhere", "may_evict", "order_slot"}


def copy_changed(source, target):
    """What is the same keeps its time: it need not be built again."""
    if os.path.exists(target) and filecmp.cmp(source, target, shallow=False):
        return target
    shutil.copyfile(source, target)
    shutil.copymode(source, target)
    return target


class Bench:
    """A copy of the sources with a build, and where its results go."""

    def __init__(self, work, to, options, again):
        name = os.path.basename(to)
        self.source, self.build, self.to = f"{work}/{name}", f"{work}/{name}/build", to
        ignore = shutil.ignore_patterns(".git", ".gpu", "build*", "__pycache__")
        part = "/tests" if again else ""
        shutil.copytree(ROOT + part, self.source + part, copy_function=copy_changed, ignore=ignore, dirs_exist_ok=True)
        if os.path.exists(self.build):
            self.call("ninja", "-C", self.build, "build.ninja")
        else:
            self.call("meson", "setup", self.build, self.source, "--buildtype=debugoptimized", *options)
        programs = self.programs()
        units = sorted({f"tests/unit/{u}" for u in UNITS.values()})
        self.call("ninja", "-C", self.build, "shim/libpagedstash.so", *programs, *units)
        os.makedirs(to, exist_ok=True)
        for name in programs + ["tools/simcuda/libcuda.so.1"]:
            self.keep(name, os.path.basename(name))
        self.keep_shim(UNCHANGED)
        for unit in units:
            self.keep(unit, f"{folder_of(UNCHANGED)}/{os.path.basename(unit)}")
        self.names = sorted(os.path.basename(p) for p in programs)

    def programs(self):
        """Targets: the jobs, and with them the software driver."""
        done = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"], capture_output=True, text=True)
        return re.findall(r"^(tests/sim/(?:scenario_\w+|faults_job|memory_job)): ", done.stdout, re.M)

    def call(self, *command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")

    def keep(self, name, under):
        # The watcher of failing calls reads the symbols.
        self.call("strip", "-g", "-o", f"{self.to}/{under}", f"{self.build}/{name}")

    def keep_shim(self, mutant):
        # The watcher goes by the name.
        folder = folder_of(mutant)
        os.makedirs(f"{self.to}/{folder}", exist_ok=True)
        self.keep("shim/libpagedstash.so", folder + "/libpagedstash.so")

    def keep_sanitizer(self):
        """Its library is a compiler's, which another machine may have none of."""
        done = subprocess.run(["ldd", f"{self.build}/tests/sim/{self.names[0]}"], capture_output=True, text=True)
        path = re.search(r"libtsan\S* => (\S+)", done.stdout).group(1)
        shutil.copy(path, self.to)

    def mutant(self, name, rows):
        """A shim of the changed sources; of kernels the software driver, with the shim as it was; and unit tests."""
        originals = apply(self, rows)
        folder = folder_of(name)
        parts = {f"tests/unit/{UNITS[r[2]]}": UNITS[r[2]] for r in rows if r[2] in UNITS}
        kernels = rows[0][2].startswith("kernels/")
        if kernels:
            parts["tools/simcuda/libcuda.so.1"] = "libcuda.so.1"
        else:
            parts["shim/libpagedstash.so"] = "libpagedstash.so"
        os.makedirs(f"{self.to}/{folder}", exist_ok=True)
        try:
            self.call("ninja", "-C", self.build, *parts)
            for part, under in parts.items():
                self.keep(part, f"{folder}/{under}")
            if kernels:
                shutil.copy(f"{self.to}/{folder_of(UNCHANGED)}/libpagedstash.so", f"{self.to}/{folder}")
        finally:
            restore(originals)


# ---- sites

def body_of(text, function, where):
    """(from, to) of a function's definition."""
    head = rf"^(?:[A-Za-z][^\n;=]*\b{function}\(|\w+\({function}, )"
    found = list(re.finditer(head + r"(?:[^;{]*)\)\n{.*?^}$", text, re.M | re.S))
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
    for r in SITES:
        place(read(source, r[2]), r[3], r[4], r[0])
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


def build_bench(bench, work, to, todo, again):
    """(programs, mutants)"""
    tsan = bench == "tsan"
    made = Bench(work, to, ["-Db_sanitize=thread", "-Db_lundef=false"] if tsan else [], again)
    if tsan:
        made.keep_sanitizer()
    mutants = [{"name": UNCHANGED, "kind": "", "file": "", "function": "", "bench": bench}]
    for name, rows in todo:
        if bench_of(rows) == bench:
            if not again:
                made.mutant(name, rows)
            mutants.append({"name": name, "kind": rows[0][1], "file": rows[0][2], "function": rows[0][3],
                            "bench": bench, "units": sorted({UNITS[r[2]] for r in rows if r[2] in UNITS})})
    return made.names, mutants


def build_package(package, work, todo, again):
    """All mutants of todo, with all that running them needs. again: only the scenarios have changed."""
    shutil.rmtree(package, ignore_errors=True)
    os.makedirs(package)
    staged = work + "/staged"
    if not again:
        shutil.rmtree(staged, ignore_errors=True)
    index = {"mutants": [], "programs": []}
    benches = sorted({bench_of(rows) for _, rows in todo})
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for names, mutants in pool.map(lambda b: build_bench(b, work, f"{staged}/{b}", todo, again), benches):
            index["programs"] = names
            index["mutants"] += mutants
    with open(package + "/index.json", "w", encoding="utf-8") as f:
        json.dump(index, f, indent=1)
    # Mutants are almost the same: one window over several of them.
    subprocess.run(f"tar c -C {staged} . | xz -T1 -6 --lzma2=preset=6,dict=64MiB > {package}/mutants.tar.xz",
                   shell=True, check=True)
    for name in ("mutate.py", "bench.py", "sites.py"):
        shutil.copy(os.path.join(ROOT, "tests/mutate", name), package)


def bench_of(rows):
    return "tsan" if rows[0][1] in ("lock", "atomic") else "plain"


def print_table(path):
    with open(path, encoding="utf-8") as f:
        results = json.load(f)["results"]
    seen = {r["name"] for r in results if r["report"]}
    pairs = {n: b if n == a else a for a, b in reversed(PAIRS) if f"{a} and {b}" in seen for n in (a, b)}
    print("| site | kind | function | seen by | in run |\n| --- | --- | --- | --- | --- |")
    for r in results:
        name = r["name"]
        report = r["report"] or EXPLAINED.get(name)
        if report is None:
            report = f"only together with '{pairs[name].replace('_', ' ')}'" if name in pairs else \
                "NOT SEEN" if r["runs"] else "not run yet"
        print(f"| {name.replace('_', ' ')} | {r['kind']} | `{r['function']}` | {report.replace('|', '/')} | "
              f"{r['runs'] if r['report'] else '—'} |")


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", metavar="FOLDER", help="only build the package")
    parser.add_argument("--run", metavar="FOLDER", help="only run a package")
    parser.add_argument("--again", action="store_true", help="keep the mutants of the last build: new scenarios only")
    parser.add_argument("--work", default="/tmp/pagedstash-mutate")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=1e6, help="seconds all runs may take")
    parser.add_argument("--run-limit", type=int, default=40, help="seconds a run may take")
    parser.add_argument("--kind", default=None)
    parser.add_argument("--only", action="append", default=None)
    parser.add_argument("--only-unseen", metavar="FILE", help="results of an earlier run, taken over")
    parser.add_argument("--first", metavar="FILE", help="results of an earlier run, to begin with")
    parser.add_argument("--json", default=None)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", default=None)
    return parser.parse_args()


def main():
    args = options()
    if args.table:
        return print_table(args.table)
    args.old = earlier(args.only_unseen)
    if args.run and not args.first and os.path.exists(args.run + "/first.json"):
        args.first = args.run + "/first.json"
    args.hints = {name: r["report"] for name, r in earlier(args.first).items()}
    if args.run is None:
        check_coverage(ROOT)
        table = {r[0]: r for r in SITES + lock_rows(ROOT)}
        todo = [(name, [r]) for name, r in table.items()] + [(f"{a} and {b}", [table[a], table[b]]) for a, b in PAIRS]
        todo = [(n, rows) for n, rows in todo
                if args.kind in (None, rows[0][1]) and (args.only is None or n in args.only) and n not in args.old]
        if args.list:
            print("\n".join(f"{rows[0][1]:7}{n}" for n, rows in todo))
            return 0
        package = args.build or args.work + "/package"
        build_package(package, args.work, todo, args.again)
        if args.first:
            shutil.copy(args.first, package + "/first.json")
        if args.build:
            return 0
    results = run_package(args.run or args.work + "/package", args)
    unseen = implied(results)
    for r in results:
        if r["report"] is None:
            print(f"{'NOT SEEN' if r['name'] in unseen else 'not alone'}\t{r['kind']}\t{r['name']}\t{r['runs']} runs")
    print(f"{len(results) - len(unseen)} passed, {len(unseen)} failed")
    return 1 if unseen else 0


def earlier(path):
    """By name: results with a report."""
    if path is None:
        return {}
    with open(path, encoding="utf-8") as f:
        return {r["name"]: r for r in json.load(f)["results"] if r["report"]}


def implied(results):
    """Mutations not reported, less those explained and those of a pair that was reported together."""
    seen = {r["name"] for r in results if r["report"]}
    excused = {n for a, b in PAIRS if f"{a} and {b}" in seen for n in (a, b)}
    return [r["name"] for r in results if r["name"] not in seen and r["name"] not in excused | set(EXPLAINED)]


if __name__ == "__main__":
    sys.exit(main())
