#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job killed in the middle of a step leaves nothing behind and does not hang. Speaks TAP.

killed.py --simcuda FOLDER --shim FILE [--times N] [--planned] JOB

The job (memory_job.c with many steps) is sent SIGKILL, SIGTERM or SIGINT at random moments after its first step;
--planned: once it has said that a plan is in force. It must end of that signal at once; no file may be left in shared
memory or the folder for temporary files, and none but its own metrics, whole lines only. The next job then runs as if
nothing had been.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

SIM = "mem=64M,va=8G,granularity=4K,check=1,hang=20"
SETTINGS = {"PAGEDSTASH_MIN_BYTES": "16K", "PAGEDSTASH_PAGE_BYTES": "2K", "PAGEDSTASH_WINDOW_BYTES": "1G"}

PLANNED = "memory: a plan is in force"


def environment(args, folder, seed):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env |= SETTINGS | {"LD_LIBRARY_PATH": args.simcuda, "LD_PRELOAD": args.shim, "SIMCUDA": f"{SIM},seed={seed}"}
    env |= {"TMPDIR": folder + "/tmp", "PAGEDSTASH_METRICS": folder + "/metrics"}
    return env | {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}


def shared():
    return {(name, os.stat("/dev/shm/" + name).st_uid) for name in os.listdir("/dev/shm")}


def whole_lines(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    for line in text.splitlines():
        json.loads(line)
    return text == "" or text.endswith("\n")


def left_behind(folder, before):
    """What the job has left, as text."""
    for name in sorted(shared() - before):
        yield f"/dev/shm/{name[0]}"
    for name in os.listdir(folder + "/tmp"):
        yield name
    for name in os.listdir(folder + "/metrics"):
        if not name.startswith("pagedstash-") or not whole_lines(f"{folder}/metrics/{name}"):
            yield f"metrics/{name}"


def has_begun(args, job):
    """Waits for the first step, or for the plan."""
    if not args.planned:
        return job.stdout.readline().startswith("step ")
    late = threading.Timer(60, job.kill)
    late.start()
    begun = any(PLANNED in line for line in job.stderr)
    late.cancel()
    return begun


def kill_one(args, number, seed):
    """What is wrong, or None."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/tmp")
        os.mkdir(folder + "/metrics")
        before = shared()
        job = subprocess.Popen([args.job, "1", "100000"], env=environment(args, folder, seed), text=True,
                               stdout=subprocess.DEVNULL if args.planned else subprocess.PIPE,
                               stderr=subprocess.PIPE if args.planned else subprocess.DEVNULL)
        if not has_begun(args, job):
            job.kill()
            job.wait()
            return "the job did not begin, or had no plan"
        time.sleep(random.Random(seed).uniform(0, 0.05))
        job.send_signal(number)
        try:
            code = job.wait(timeout=30)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
            return "does not end"
        finally:
            (job.stderr if args.planned else job.stdout).close()
        left = list(left_behind(folder, before))
        if code != -number:
            return f"ended with {code}"
        return f"left behind: {left}" if left else None


def check_next(args):
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/tmp")
        os.mkdir(folder + "/metrics")
        steps = "12" if args.planned else "2"
        done = subprocess.run([args.job, "1", steps], env=environment(args, folder, 1), capture_output=True, text=True,
                              timeout=120)
        # ASan says so at the first switch of coroutines; it is told of each.
        said = [line for line in done.stderr.splitlines() if "support makecontext/swapcontext" not in line]
        if args.planned and not any(PLANNED in line for line in said):
            return f"no plan was in force: {done.stderr}"
        said = [line for line in said if PLANNED not in line]
        return None if done.returncode == 0 and not said else f"{done.returncode}: {done.stderr}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--simcuda", required=True)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("job")
    args = parser.parse_args()
    args.shim, args.job = os.path.abspath(args.shim), os.path.abspath(args.job)
    signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
    n_bad = 0
    where = "a planned step" if args.planned else "a step"
    print(f"1..{len(signals) * args.times + 1}", flush=True)
    for i in range(len(signals) * args.times):
        number = signals[i % len(signals)]
        wrong = kill_one(args, number, i)
        n_bad += wrong is not None
        print(f"{'ok' if wrong is None else 'not ok'} {i + 1} - {number.name} in the middle of {where}", flush=True)
        if wrong is not None:
            print(f"# {wrong}", flush=True)
    wrong = check_next(args)
    n_bad += wrong is not None
    print(f"{'ok' if wrong is None else 'not ok'} {len(signals) * args.times + 1} - the next job runs")
    if wrong is not None:
        print("\n".join("# " + line for line in wrong.splitlines()))
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
