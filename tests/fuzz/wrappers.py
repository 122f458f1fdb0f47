#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do the kept inputs of the call fuzzer call every wrapper with arguments that mean something, and every wrapper that
looks at addresses while something it is told of is out? Runs each input in a process of its own, with learned plans and
without, and some with each function that ends paging. The inputs named plan-* must each take up a plan.

usage: wrappers.py REPLAY FOLDER | wrappers.py --sum REPORT..."""
import os
import re
import subprocess
import sys
import tempfile

LAST = ["cuCtxDetach", "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync"]


def add(path, rows):
    with open(path) as f:
        for line in f:
            name, called, out, zeros, memory = line.split()
            row = rows.setdefault(name, [0, 0, 0, memory == "memory"])
            for i, n in enumerate((called, out, zeros)):
                row[i] += int(n)


def plans_of(folder):
    n = 0
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            n += sum(int(m) for m in re.findall(r'"plans": *([0-9]+)', f.read()))
    return n


def run(replay, path, rows, last=None, plan="y"):
    """How many plans were taken up."""
    with tempfile.NamedTemporaryFile() as report, tempfile.TemporaryDirectory() as metrics:
        env = dict(os.environ, FUZZ_COVERAGE=report.name, FUZZ_PLAN=plan, PAGEDSTASH_METRICS=metrics)
        if last is not None:
            env["FUZZ_LAST"] = last
        done = subprocess.run([replay, path], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode != 0:
            sys.exit(f"{path}{' and ' + last if last else ''}: {done.stderr.decode(errors='replace')[-2000:]}")
        add(report.name, rows)
        return plans_of(metrics)


def lacking(rows):
    """The wrappers never called; those that look at addresses and were never told of something that is out."""
    return (sorted(name for name, row in rows.items() if row[0] == 0),
            sorted(name for name, row in rows.items() if row[3] and row[0] > 0 and row[1] == 0))


def judge(rows, unplanned):
    never, at_home = lacking(rows)
    for name in never:
        print(f"never called: {name}")
    for name in at_home:
        print(f"never called with what it names out: {name}")
    for name in unplanned:
        print(f"takes up no plan: {name}")
    memory = sum(row[3] for row in rows.values())
    print(f"{len(rows) - len(never)} of {len(rows)} wrappers called; {memory - len(at_home) - sum(rows[n][3] for n in never)}"
          f" of the {memory} that look at addresses with what they name out; {sum(r[0] for r in rows.values())} calls,"
          f" {sum(r[1] for r in rows.values())} of them with something out")
    return not rows or never or at_home or unplanned


def main():
    rows, unplanned = {}, []
    if sys.argv[1] == "--sum":
        for path in sys.argv[2:]:
            add(path, rows)
    else:
        replay, folder = sys.argv[1:]
        names = sorted(os.listdir(folder))
        for last in LAST:
            for name in [n for n in names if n.startswith("cover-")][:3]:
                run(replay, os.path.join(folder, name), rows, last)
        for attempt in range(3):  # what is out at a call depends on how far the device has got
            if attempt > 0 and not any(lacking(rows)) and not unplanned:
                break
            unplanned = []
            for name in names:
                path = os.path.join(folder, name)
                if run(replay, path, rows) == 0 and name.startswith("plan-"):
                    unplanned.append(name)
                if run(replay, path, rows, plan="n") > 0:
                    sys.exit(f"{path}: a plan, and there shall be none")
    sys.exit(1 if judge(rows, unplanned) else 0)


main()
