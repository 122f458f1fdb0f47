#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs jobs with less and less device memory: the stash must never make one fail that fits without it. Speaks TAP.

memory_steps.py --simcuda FOLDER --shim FILE [--step BYTES] [--seeds N] JOB[,ARGUMENT...]...

At each step the job runs plain and under the stash. Where the plain job fits, so must the other, printing the same;
where it does not, the other prints what it prints with plenty of memory, or ends with the driver's "out of memory".
Steps go on below the point where the plain job stops fitting until the stash stops fitting too. A "squeezed" job
(memory_job.c) runs long enough for a plan and takes memory then: it must say that one was in force, with plenty, where
the plain job only just fits, and somewhere where that does not fit any more.
"""
import argparse
import os
import re
import subprocess
import sys

SIM = "va=8G,granularity=4K,check=1,hang=20"
SETTINGS = {"PAGEDSTASH_MIN_BYTES": "16K", "PAGEDSTASH_PAGE_BYTES": "2K", "PAGEDSTASH_WINDOW_BYTES": "1G"}
PLENTY, LEAST = 64 << 20, 1 << 20
TAKEN_UNDER_A_PLAN = "memory: a plan is in force when memory is taken"
OUT_OF_MEMORY = re.compile(r"^line \d+: .*: CUDA_ERROR_OUT_OF_MEMORY$", re.M)


def run(args, job, mem, seed, settings):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env |= {"LD_LIBRARY_PATH": args.simcuda, "SIMCUDA": f"mem={mem},{SIM},seed={seed}"} | settings
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
    program, *arguments = job.split(",")
    done = subprocess.run([os.path.abspath(program), *arguments], env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def levels(step):
    """Plenty, halves of it, then small steps."""
    mem = PLENTY
    while mem > 4 << 20:
        yield mem
        mem //= 2
    while mem >= LEAST:
        yield mem
        mem -= step


def judge(plain, stash, wanted):
    """What is wrong at one step, or None."""
    code, out, err = stash
    if code == 0 and out == wanted:
        return None
    if code == 0:
        return f"printed\n{out}instead of\n{wanted}{err}"
    if code == 1 and OUT_OF_MEMORY.search(err):
        return None if plain[0] != 0 else f"out of memory, and the plain job fits\n{err}"
    return f"ended with {code}\n{err}"


def no_plan(squeezed):
    """Where a squeezed job should have had a plan and had none. squeezed: (memory, does the plain job fit, was there)"""
    fits = [row for row in squeezed if row[1]]
    for mem, _, planned in fits[:1] + fits[-1:]:
        if not planned:
            yield f"mem={mem}: no plan was in force when memory was taken"
    if not any(planned for _, plain_fits, planned in squeezed if not plain_fits):
        yield "no plan was in force anywhere where the plain job does not fit"


def check(args, job, seed):
    """(problems, least memory plain, least memory with the stash)"""
    wanted = run(args, job, PLENTY, seed, {})[1]
    least = [None, None]
    problems = []
    squeezed = []
    for mem in levels(args.step):
        plain = run(args, job, mem, seed, {})
        if plain[0] == 0 and plain[1] != wanted:
            problems.append(f"mem={mem}: the plain job prints something else")
        stash = run(args, job, mem, seed, SETTINGS | {"LD_PRELOAD": args.shim})
        wrong = judge(plain, stash, wanted)
        if wrong is not None:
            problems.append(f"mem={mem} seed={seed}: {wrong}")
        squeezed.append((mem, plain[0] == 0, TAKEN_UNDER_A_PLAN in stash[2]))
        least = [mem if plain[0] == 0 else least[0], mem if stash[0] == 0 else least[1]]
        if plain[0] != 0 and stash[0] != 0:
            break
    if job.endswith(",squeezed"):
        problems += no_plan(squeezed)
    return problems, *least


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--simcuda", required=True)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--step", type=int, default=64 << 10)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("jobs", nargs="+")
    args = parser.parse_args()
    args.shim = os.path.abspath(args.shim)
    rows = [(job, seed) for job in args.jobs for seed in range(args.seeds)]
    n_bad = 0
    print(f"1..{len(rows)}", flush=True)
    for number, (job, seed) in enumerate(rows, 1):
        problems, plain, stash = check(args, job, seed)
        n_bad += bool(problems)
        name = os.path.basename(job)
        print(f"{'not ok' if problems else 'ok'} {number} - {name} seed {seed}: fits into {plain} plain, {stash} stashed",
              flush=True)
        for problem in problems:
            print("\n".join("# " + line for line in problem.splitlines()), flush=True)
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
