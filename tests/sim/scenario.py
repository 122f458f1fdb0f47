#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario plain and under the stash on the software driver: what it prints must be the same. Speaks TAP.

scenario.py --simcuda FOLDER --shim FILE [--seeds N] [--sim OPTIONS] [--plain-sim OPTIONS] [--set NAME=VALUE]...
            [--expect COUNTER<OP>NUMBER]... [--noisy] [--fail FUNCTION:N]... [--plain-fails OPTIONS]
            [--deadlocks OPTIONS]...
            PROGRAM [ARGUMENT]...

A run that the checker has something to say about ends with 87 and fails.
"""
import argparse
import glob
import json
import operator
import os
import re
import subprocess
import sys
import tempfile

SIM = "mem=256M,va=8G,granularity=4K,check=1,hang=60"
SETTINGS = {"PAGEDSTASH_MIN_BYTES": "16K", "PAGEDSTASH_PAGE_BYTES": "2K", "PAGEDSTASH_WINDOW_BYTES": "1G"}
TESTS = {">": operator.gt, "=": operator.eq, "<": operator.lt}


def run(args, sim, settings):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env |= {"LD_LIBRARY_PATH": args.simcuda, "SIMCUDA": sim} | settings
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
    done = subprocess.run([args.program, *args.arguments], env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def counters(folder):
    total = {}
    for name in glob.glob(folder + "/*.jsonl"):
        with open(name, encoding="utf-8") as f:
            for line in f:
                record = json.loads(line)
                if record["type"] == "summary":
                    for key, value in record["counters"].items():
                        total[key] = total.get(key, 0) + value
    return total


def unmet(expected, found):
    """Expectations that do not hold, as text."""
    for text in expected:
        name, test, number = re.fullmatch(r"(\w+)([<>=])(\d+)", text).groups()
        if name not in found or not TESTS[test](found[name], int(number)):
            yield f"{text} (is {found.get(name)})"


def stashed(args, plain, seed, total, failure=None):
    """What is wrong with the run under the stash, or None; its counters are added to total. failure: a driver call of
    the stash's that fails."""
    with tempfile.TemporaryDirectory() as folder:
        settings = SETTINGS | {"LD_PRELOAD": args.shim, "PAGEDSTASH_METRICS": folder}
        settings |= dict(item.split("=", 1) for item in args.set)
        sim = [SIM, f"seed={seed}", args.sim, f"fail={failure}" if failure else ""]
        code, out, err = run(args, ",".join(filter(None, sim)), settings)
        found = counters(folder)
    if code != 0:
        return f"ended with {code}:\n{err}"
    if out != plain:
        return f"printed\n{out}instead of\n{plain}{err}"
    if failure:
        return None
    noise = [line for line in err.splitlines() if line.startswith("pagedstash:") and not args.noisy]
    if noise:
        return "was not silent:\n" + "\n".join(noise)
    for name, value in found.items():
        total[name] = total.get(name, 0) + value
    # What must have happened may have happened under another seed: which touch finds a tensor out is the schedule's.
    every = [e for e in args.expect if ">" not in e]
    missed = list(unmet(["errors=0"] * (not args.noisy) + every, found))
    return f"counters: {', '.join(missed)} in {found}" if missed else None


def deadlocked(args, options):
    """What is wrong with a run under the stash that must hang, or None."""
    sim = ",".join(filter(None, [SIM, "seed=3", args.sim, options]))
    code, _, err = run(args, sim, SETTINGS | {"LD_PRELOAD": args.shim})
    if code != 86:
        return f"ended with {code} and was to hang:\n{err}"
    return None if "DEADLOCK" in err else f"nothing is told:\n{err}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--simcuda", required=True)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--sim", default="")
    parser.add_argument("--plain-sim", default=None)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("--fail", action="append", default=[], help="one more run, with this call failing")
    parser.add_argument("--noisy", action="store_true", help="the stash may say something")
    parser.add_argument("--plain-fails", default=None, help="options under which the plain job must fail")
    parser.add_argument("--deadlocks", action="append", default=[], help="one more run, with this it must hang")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    args.program = os.path.abspath(args.program)
    args.shim = os.path.abspath(args.shim)
    print(f"1..{args.seeds + len(args.fail) + len(args.deadlocks) + 2}")
    plain_sim = args.sim if args.plain_sim is None else args.plain_sim
    code, plain, err = run(args, f"{SIM},seed=0,{plain_sim}".rstrip(","), {})
    failed = code != 0
    if args.plain_fails is not None and run(args, f"{SIM},seed=0,{args.plain_fails}", {})[0] == 0:
        print("# the plain job does not fail under", args.plain_fails)
        failed = True
    print(f"{'not ok' if failed else 'ok'} 1 - plain")
    for line in err.splitlines():
        print(f"# {line}")
    total = {}
    runs = [(seed, None) for seed in range(args.seeds)] + [(3, failure) for failure in args.fail]
    for number, (seed, failure) in enumerate(runs, 2):
        wrong = stashed(args, plain, seed, total, failure)
        failed |= wrong is not None
        what = f"{failure} fails" if failure else f"seed {seed}"
        print(f"{'ok' if wrong is None else 'not ok'} {number} - under the stash, {what}")
        for line in (wrong or "").splitlines():
            print(f"# {line}")
    for number, options in enumerate(args.deadlocks, len(runs) + 2):
        wrong = deadlocked(args, options)
        failed |= wrong is not None
        print(f"{'ok' if wrong is None else 'not ok'} {number} - a deadlock with {options}")
        for line in (wrong or "").splitlines():
            print(f"# {line}")
    missed = list(unmet([e for e in args.expect if ">" in e], total))
    failed |= bool(missed)
    number = len(runs) + len(args.deadlocks) + 2
    print(f"{'not ok' if missed else 'ok'} {number} - counters over all seeds")
    if missed:
        print(f"# {', '.join(missed)} in {total}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
