#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A deterministic job with less and less device memory: the bits are plain's at every size, until the job does not fit.

Another process holds all but so many MiB of the device. The job is run plain with all of it first, then under
`pagedstash run` at each size, one after the other (jobs/turn.py: they prepare side by side). Writes one JSON object;
ends with 1 if a run gave other bits, or ended otherwise than well or with CUDA's out of memory.
"""
import argparse
import ctypes
import datetime
import fcntl
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
JOBS = [os.path.join(HERE, "jobs", name) for name in ("turn.py", "strict.py", "moe12.py")]
ASYNC = {name: "backend:cudaMallocAsync" for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
KEPT = ("plans", "give_backs", "bytes_stashed", "bytes_restored", "bytes_spilled", "copied_out", "copied_in", "kept_resident",
        "errors", "steps", "host_pages_bytes")

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--pagedstash", help="the command, as built")
ap.add_argument("--out", help="the JSON file to write")
ap.add_argument("--mib", default="40000,30000,26000,22000,19000", help="device memory that is left, one run each")
ap.add_argument("--steps", type=int, default=12)
ap.add_argument("--timeout", type=float, default=45, help="seconds a run may have the GPU")
ap.add_argument("--total", type=float, default=float("inf"), help="seconds after which no run is begun")
ap.add_argument("--hold", type=int, help=argparse.SUPPRESS)
ap.add_argument("job", nargs="*", default=["--capacity", "2", "--layers", "8"], help="arguments of jobs/moe12.py, behind --")
a = ap.parse_args()


def hold(left_mib):
    """Takes what is free but for so many MiB, says so, and waits for the end of its input."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    for unit in (1 << 30, 32 << 20, 2 << 20):
        while cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0 and free.value > (left_mib << 20) + unit:
            if cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(unit)) != 0:
                break
    print(free.value >> 20, flush=True)
    sys.stdin.read()


class Run:
    def __init__(self, mib, folder):
        self.mib, self.folder = mib, folder
        os.makedirs(os.path.join(folder, "metrics"))
        self.lock = open(os.path.join(folder, "lock"), "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        command = [sys.executable, JOBS[0], self.lock.name, *JOBS[1:], "--deterministic", "--steps", str(a.steps), *a.job]
        env = {**os.environ, "OMP_NUM_THREADS": "3"}
        if mib is None:
            env |= ASYNC
        else:
            command = [a.pagedstash, "run", "--log-level=info", f"--metrics={folder}/metrics", "--", *command]
        with open(f"{folder}/out", "w") as out, open(f"{folder}/err", "w") as err:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            start_new_session=True)

    def turn(self):
        holder, self.left = None, None
        if self.mib is not None:
            holder = subprocess.Popen([sys.executable, __file__, "--hold", str(self.mib)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
            self.left = int(holder.stdout.readline() or 0)
        begun = time.monotonic()
        self.lock.write("go")
        self.lock.close()
        try:
            self.code = self.process.wait(a.timeout)
        except subprocess.TimeoutExpired:
            self.code = "time"
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.seconds = round(time.monotonic() - begun, 1)
        if holder is not None:
            holder.communicate()

    def told(self):
        with open(f"{self.folder}/out") as f:
            rows = [json.loads(line) for line in f if line.startswith("{")]
        with open(f"{self.folder}/err", errors="replace") as f:
            err = f.read().splitlines()
        counters = {}
        for path in glob.glob(f"{self.folder}/metrics/*.jsonl"):
            with open(path) as f:
                counters = json.loads(f.readlines()[-1]).get("counters", {})
        steps = [r for r in rows if "step" in r]
        return {"mib": self.mib, "free_mib": self.left, "code": self.code, "seconds": self.seconds,
                "bits": [[r["loss"], r["grad_norm"]] for r in steps], "ms": [r.get("ms") for r in steps],
                "out_of_memory": any("out of memory" in line.lower() for line in err),
                "counters": {k: counters[k] for k in KEPT if k in counters},
                "log": [x for x in err if "pagedstash" in x][-8:] + err[-2:]}


def main():
    start = time.monotonic()
    query = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                           text=True)
    gpu, driver = (query.stdout.strip().splitlines() or ["?, ?"])[0].split(", ")
    result = {"what": "squeeze_jobs", "command": " ".join(sys.argv), "gpu": gpu, "driver": driver,
              "date": datetime.date.today().isoformat(), "runs": []}
    wrong = False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        sizes = [None, *map(int, a.mib.split(","))]
        runs = [Run(mib, f"{folder}/{i}") for i, mib in enumerate(sizes)]
        while any(r.process.poll() is None and not os.path.exists(r.lock.name + ".ready") for r in runs):
            time.sleep(0.1)
        for run in runs:
            if time.monotonic() - start > a.total:
                os.killpg(run.process.pid, signal.SIGKILL)
                continue
            run.turn()
            told = run.told()
            result["runs"].append(told)
            plain = result["runs"][0]["bits"]
            told["identical"] = told["bits"] == plain[:len(told["bits"])]
            whole = told["code"] == 0 and len(told["bits"]) == a.steps
            bad = not told["identical"] or not (whole or (told["out_of_memory"] and run.mib is not None))
            wrong = wrong or bad
            print(run.mib, told["free_mib"], "code", told["code"], "identical", told["identical"], len(told["bits"]), "of", a.steps,
                  told["seconds"], "s", told["counters"], "WRONG" if bad else "", flush=True)
            with open(a.out, "w") as f:
                json.dump(result, f, indent=1)
                f.write("\n")
    return wrong


if a.hold is not None:
    hold(a.hold)
else:
    sys.exit(main())
