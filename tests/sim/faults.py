#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails each driver call of the stash: once at several positions, for ever, at random. Speaks TAP.

faults.py --simcuda FOLDER --shim FILE --functions driver_fns.def [--whole|--brief] [--only NAME] [--seeds N] [--planned] JOB

The job (faults_job.c) sees to it that only calls of the stash fail, and only while tensors are out; where that is not
possible (calls made once, before anything is out) it is said in the test's line. Required: a call failing once
changes nothing. --planned: while a plan is in force, and while the next is made. Failing for ever or at random, the job prints the same, or ends with that very error. Under the checker
of the software driver, and never a wrong byte, a hang or a crash.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

SIM = "va=8G,granularity=4K,check=1,hang=20"
PLENTY = "mem=64M"
SETTINGS = {"PAGEDSTASH_MIN_BYTES": "16K", "PAGEDSTASH_PAGE_BYTES": "2K", "PAGEDSTASH_WINDOW_BYTES": "1G"}
CODES = {999: "CUDA_ERROR_UNKNOWN", 2: "CUDA_ERROR_OUT_OF_MEMORY", 802: "CUDA_ERROR_SYSTEM_NOT_READY",
         400: "CUDA_ERROR_INVALID_HANDLE"}
# Functions that are called only when another one has failed.
COMPANIONS = {
    "cuGetErrorName": "cuLaunchKernel:~10",
    "cuKernelGetParamInfo": "!cuFuncGetParamInfo:1+:400",
    "cuEventSynchronize": "cuStreamWaitEvent:~60",
    "cuStreamSynchronize": "cuEventRecord:~10",
    "cuMemPoolTrimTo": "cuMemCreate:~20:2",
}
IN_FORCE = "fault: a plan is in force"
# Made by the thread that pins host pages: how far it gets while the job runs is chance. test_sim_hostpages fails them.
BESIDE = ("cuMemHostRegister", "cuMemHostUnregister", "cuCtxPushCurrent")
# Made only where the device is behind, so not in each run: what was not reached is tried with other schedules. A
# sanitizer may slow the host so much that none has them.
TRIES = 6
BEHIND = ("cuEventSynchronize",)


class Job:
    def __init__(self, args):
        self.args = args
        self.runs = 0
        code, self.plain, err, _ = self.run({}, 1)
        if code != 0:
            sys.exit(f"the plain job ended with {code}: {err}")
        self.settings = SETTINGS | {"LD_PRELOAD": args.shim}
        for seed in range(1, 6):  # a plan comes into force once its host pages are pinned, which takes its time
            code, out, err, _ = self.run(self.settings, seed)
            if code != 0 or out != self.plain:
                sys.exit(f"without a failure the job ended with {code}: {err}")
            if not args.planned or IN_FORCE in err:
                return
        sys.exit(f"no plan came into force: {err}")

    def run(self, settings, seed):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
        sim = ",".join([self.args.mem, SIM, f"seed={seed}"])
        env |= {"LD_LIBRARY_PATH": self.args.simcuda, "SIMCUDA": sim, "FAULT_SEED": str(seed)} | settings
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
        self.runs += 1
        try:
            done = subprocess.run([self.args.job, *["planned"] * self.args.planned], env=env, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired as late:
            return "timeout", "", str(late.stderr), {}
        failed = {name: (int(n), int(out)) for name, n, out in
                  re.findall(r"^fault: (\w+) failed (\d+) of \d+, (\d+) out$", done.stderr, re.M)}
        return done.returncode, done.stdout, done.stderr, failed

    def count(self, name, seed):
        """Calls of a function in a run without failures, and those while tensors are out."""
        with tempfile.NamedTemporaryFile("r") as f:
            settings = {"FAULT_COUNTS": f.name}
            if name in COMPANIONS:
                settings["FAULT"] = COMPANIONS[name]
            self.run(self.settings | settings, seed)
            counts = {line.split()[0]: tuple(map(int, line.split()[1:])) for line in f}
        return counts.get(name, (0, 0))

    def judge(self, name, rule, seed, may_fail, code):
        """None, 'unreached', or what is wrong."""
        rules = [rule] + ([COMPANIONS[name]] if name in COMPANIONS else [])
        settings = self.settings | {"FAULT": ";".join(rules)}
        rc, out, err, failed = self.run(settings, seed)
        text = "\n".join(line for line in err.splitlines() if not line.startswith("simcuda: injected"))[-3000:]
        shown = f"FAULT='{settings['FAULT']}' seed {seed}"
        n, n_out = failed.get(name, (0, 0))
        if rc == 0 and out == self.plain:
            if n == 0:
                return "unreached"
            return None if n_out > 0 or rule.startswith("!") else f"{shown}: nothing was out\n{text}"
        allowed = [CODES[code]] if may_fail else []
        if may_fail and name in COMPANIONS:
            allowed += list(CODES.values())
        if rc == 1 and any(re.search(rf"^line \d+: .*: {c}$", err, re.M) for c in allowed):
            return None
        if rc == 0:
            return f"{shown}: printed\n{out}instead of\n{self.plain}{text}"
        return f"{shown}: ended with {rc}\n{text}"


def positions(n, whole, brief=False):
    if brief:
        return [1 + n // 3]
    if whole and n <= 40:
        return list(range(1, n + 1))
    parts = 40 if whole else 2
    return sorted({1, n} | {1 + i * n // parts for i in range(parts)} if n > 0 else {1})


def rules_of(name, counts, args):
    """(rule, whether the job may end with the error, code)"""
    always = "!" if counts[1] == 0 else ""
    n = counts[0] if always else counts[1]
    codes = [999]
    if re.match(r"cuMem(Create|Map|AddressReserve|HostAlloc)|cuStreamCreate|cuEventCreate|cuModuleLoad", name):
        codes = [2, 802]
    for code in codes:
        for at in positions(n, args.whole, args.brief):
            # With a companion two calls have failed.
            yield f"{always}{name}:{at}:{code}", name in COMPANIONS, code
        for at in positions(n, False, args.brief):
            yield f"{always}{name}:{at}+:{code}", True, code
        if n > 3 and not args.brief:
            yield f"{always}{name}:~{20 if n < 50 else 5}:{code}", True, code


def check(job, name, args):
    """(problems, notes) of one function."""
    problems, notes, reached = [], [], 0
    counts = job.count(name, 1)
    if counts[0] == 0:
        return [], "never called in this job"
    for seed in range(1, args.seeds + 1):
        for rule, may_fail, code in rules_of(name, counts, args):
            wrong = job.judge(name, rule, seed, may_fail, code)
            for more in range(1, TRIES if reached == 0 and name not in BESIDE else 1):
                if wrong != "unreached":
                    break
                wrong = job.judge(name, rule, seed + 100 * more, may_fail, code)
            reached += wrong != "unreached"
            if wrong is not None and wrong != "unreached":
                problems.append(wrong)
    if reached == 0 and (name in BESIDE or name in BEHIND):
        notes.append("not called in time")
    elif reached == 0:
        problems.append("no call has failed")
    note = f"{counts[1]} of {counts[0]} calls with tensors out, {reached} runs"
    return problems, "; ".join([note, *notes]) + ("" if counts[1] > 0 else "; only before any is out")


def functions(path):
    with open(path, encoding="utf-8") as f:
        return re.findall(r"^PS_DRIVER_FN\((\w+),", f.read(), re.M)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--simcuda", required=True)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--functions", required=True)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("--only", default=None)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--mem", default=PLENTY)
    parser.add_argument("job")
    args = parser.parse_args()
    args.shim = os.path.abspath(args.shim)
    args.job = os.path.abspath(args.job)
    job = Job(args)
    names = [n for n in functions(args.functions) if args.only in (None, n)]
    n_bad = 0
    print(f"1..{len(names)}", flush=True)
    for number, name in enumerate(names, 1):
        problems, note = check(job, name, args)
        n_bad += bool(problems)
        print(f"{'not ok' if problems else 'ok'} {number} - {name}: {note}", flush=True)
        for problem in problems:
            print("\n".join("# " + line for line in problem.splitlines()), flush=True)
    print(f"# {job.runs} runs")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
