#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks of an expert-parallel job (jobs/two_ranks.py, NCCL, two GPUs) plain and under `pagedstash run`, compared.

Rank 0 gets a --cuda-budget so small that it spills to the host; rank 1 has the defaults. Checked of both: every step's
loss and grad_norm are plain's, as hexadecimal numbers; something was stashed and came back; no driver call of ours
failed. Of rank 0: it spilled. That rank 1 did not is reported. The preloaded object may call no collective of its own:
it asks the loader for no function of NCCL.

Writes one JSON object, as it goes: command, GPUs, driver, date, one row a pair. A pair that hangs or fails has the last
lines of both ranks' stderr (of a hang, with where each thread was). If a pair differs, plain is run once more, to tell
whether it repeats itself. Exit 1 on any difference or failed check.
"""
import argparse
import datetime
import glob
import json
import math
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = (0, 1)
FROM_RANGE = "--send-from-range"
PAIRS = [
    ("skewed, empty", ["--padding", "empty", "--skew", "4"]),
    ("balanced, zeros", ["--padding", "zeros", "--skew", "1"]),
    # Groups that another stream reads stay while it does: that much moves is not asked for here.
    ("skewed, sent from the range", ["--padding", "empty", "--skew", "4", FROM_RANGE]),
]
# NVLink multicast stays off on lent machines; python3 is not to take all cores, two of it run.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1",
               "OMP_NUM_THREADS": "4"}
A_STEP = ("bytes_stashed", "bytes_restored", "bytes_spilled", "unplanned_touches", "remaps", "map_calls", "plan_misses",
          "prefetches", "restores_on_demand", "kept_resident", "host_syncs", "unplanned_waits", "throttle_waits",
          "idle_waits")

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--pagedstash", required=True, help="the command, as built")
ap.add_argument("--out", required=True, help="the JSON file to write")
ap.add_argument("--library", default="", help="libpagedstash.so; else where the command finds it")
ap.add_argument("--job", default=os.path.join(HERE, "jobs", "two_ranks.py"))
ap.add_argument("--pairs", type=int, default=2, choices=range(1, len(PAIRS) + 1),
                help="how many to run, of: " + "; ".join(name for name, _ in PAIRS))
ap.add_argument("--steps", type=int, default=64, help="host memory is pinned while they run: some seconds")
ap.add_argument("--budget-mib", type=int, default=-1,
                help="rank 0's --cuda-budget; -1: half of what the rows of its experts come to in plain")
ap.add_argument("--job-option", action="append", default=[], metavar="OPTION", help="one more of the job's, as in "
                "--job-option=--layers=4")
ap.add_argument("--option", action="append", default=[], help="one more of `pagedstash run`, for both ranks, as in "
                "--option=--plan=n")
ap.add_argument("--timeout", type=float, default=150, help="seconds a run of both ranks may take")
ap.add_argument("--total", type=float, default=300, help="seconds after which no pair is begun")
a = ap.parse_args()


class Stuck(Exception):
    """A rank does not go although it was killed, so nothing can be run beside it."""


class Rank:
    """One process, in a session of its own. why: what went wrong, None as long as nothing has."""

    def __init__(self, rank, args, folder, port, options):
        self.rank, self.why = rank, None
        self.folder = os.path.join(folder, str(rank))
        self.metrics = os.path.join(self.folder, "metrics")
        os.makedirs(self.metrics)
        command = [sys.executable, a.job, *args]
        env = {k: v for k, v in os.environ.items() if not k.startswith("PAGEDSTASH_")}
        env |= ENVIRONMENT | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONUNBUFFERED": "1"}
        if options is not None:
            command = [a.pagedstash, "run", "--log-level=info", f"--metrics={self.metrics}", "--metrics-ranges=step*",
                       *options, "--", *command]
        else:
            # The like baseline: the allocator that the stash needs.
            env["PYTORCH_ALLOC_CONF"] = env["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
        with open(os.path.join(self.folder, "out"), "w") as out, open(os.path.join(self.folder, "err"), "w") as err:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            start_new_session=True)

    def runs(self):
        return self.process.poll() is None

    def kill(self):
        """Its whole process group."""
        if self.runs():
            os.killpg(self.process.pid, signal.SIGKILL)

    def gone(self):
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            raise Stuck(f"rank {self.rank} was killed and is still there") from None

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

    def said(self):
        with open(os.path.join(self.folder, "err"), errors="replace") as f:
            return f.read().splitlines()

    def result(self):
        rows = list(self.written("out"))
        lines = [x for x in self.written("metrics/*.jsonl") if "counters" in x]
        last = [x for x in lines if x.get("type") == "summary"] or lines
        said = self.said()
        return {"exit": self.process.returncode, "why": self.why, "steps": [r for r in rows if "step" in r],
                "end": next((r for r in rows if "median_ms" in r), None),
                "counters": last[-1]["counters"] if last else {},
                "by_step": [x["counters"] for x in lines if str(x.get("range", "")).startswith("step")],
                "log": [x for x in said if "pagedstash" in x][-20:], "stderr": said[-150:]}


def await_all(ranks):
    """Until all have ended, or one has failed and the others have had 15 s since, or it takes too long."""
    until = time.monotonic() + a.timeout
    failed = False
    while any(r.runs() for r in ranks):
        if not failed and any(r.process.poll() not in (None, 0) for r in ranks):
            failed = True
            until = min(until, time.monotonic() + 15)
        if time.monotonic() > until:
            for r in ranks:
                if r.runs():
                    r.why = "still there 15 s after the other failed" if failed else f"hangs: no end in {a.timeout:g} s"
                    os.kill(r.process.pid, signal.SIGUSR1)  # the job says on stderr where its threads are
            time.sleep(2)
            break
        time.sleep(0.05)
    for r in ranks:
        if not r.runs() and r.process.returncode != 0 and r.why is None:
            waited = any("collective operation timeout" in line for line in r.said())
            r.why = ("hangs: a collective did not end, " if waited else "") + f"exit {r.process.returncode}"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(args, options):
    """Both ranks, side by side; options: what each gets of `pagedstash run`, None: plain. Their results."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ranks = []
        try:
            port = free_port()
            for rank in RANKS:
                ranks.append(Rank(rank, args, folder, port, None if options is None else options[rank]))
            await_all(ranks)
        finally:
            for r in ranks:
                r.kill()
            for r in ranks:
                r.gone()
        return [r.result() for r in ranks], round(time.monotonic() - start, 1)


def numbers(results):
    return [[(s["step"], s["loss"], s["grad_norm"]) for s in r["steps"]] for r in results]


def first_difference(plain, stash):
    """The first step at which a rank's numbers are not plain's."""
    for rank, (one, other) in enumerate(zip(numbers(plain), numbers(stash))):
        for x, y in zip(one, other):
            if x != y:
                return {"rank": rank, "plain": x, "stash": y}
    return None


def first_planned(by_step):
    """The step after which no plan is made any more; None: there was none."""
    at = None
    for i in range(1, len(by_step)):
        if by_step[i]["plans"] != by_step[i - 1]["plans"]:
            at = i + 1
    return at


def measured(result, first):
    steady = [s for s in result["steps"] if s["step"] >= first]
    row = {"exit": result["exit"], "steps": len(result["steps"]), "end": result["end"]}
    if steady:
        row["median_ms"] = round(statistics.median(s["ms"] for s in steady), 2)
        row["peak_mib"] = max(s["used_mib"] for s in steady)
        row["peak_mib_all_steps"] = max(s["used_mib"] for s in result["steps"])
    if result["why"] is not None:
        row["why"] = result["why"]
    return row


def a_step(by_step, first):
    """What was counted a step, from that one on; counters are those a step begins with."""
    if len(by_step) < first + 2:
        return None
    n = len(by_step) - 1 - first
    return {k: round((by_step[-1][k] - by_step[first][k]) / n, 1) for k in A_STEP}


def problems_of_run(which, results):
    for rank, r in enumerate(results):
        what = f"{which}, rank {rank}"
        if r["why"] is not None:
            yield f"{what}: {r['why']}"
        if len(r["steps"]) != a.steps or r["end"] is None:
            yield f"{what}: {len(r['steps'])} of {a.steps} steps" + ("" if r["end"] else ", no end")
        if not all(math.isfinite(float.fromhex(s[k])) for s in r["steps"] for k in ("loss", "grad_norm")):
            yield f"{what}: loss or grad_norm is no number"


def problems_of_counters(results, must_move):
    for rank, r in enumerate(results):
        c = r["counters"]
        if not c:
            yield f"rank {rank}: no counters"
            continue
        if c.get("errors", 0) != 0:
            yield f"rank {rank}: {c['errors']} driver calls of ours failed"
        for name in ("stashes", "bytes_restored") if must_move else ():
            if c.get(name, 0) == 0:
                yield f"rank {rank}: {name} is 0"
        if must_move and rank == 0 and c.get("bytes_spilled", 0) == 0:
            yield "rank 0: nothing was spilled"


def notes_of(results):
    for rank, r in enumerate(results):
        if r["counters"].get("plans") == 0:
            yield f"rank {rank}: no plan was taken up in {a.steps} steps"
    spilled = results[1]["counters"].get("bytes_spilled", 0)
    if spilled != 0:
        yield f"rank 1: {spilled >> 20} MiB were spilled, without a budget"


def keep():
    result["all_identical"] = all(r["identical"] for r in result["rows"])
    result["ok"] = not any([*result["problems"], *(r["problems"] for r in result["rows"])])
    with open(a.out + ".new", "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    os.replace(a.out + ".new", a.out)


def mib(counters, name):
    return f"{counters.get(name, 0) >> 20} MiB"


def tell(row):
    failed = any("why" in x for r in row["ranks"] for x in (r["plain"], r["stash"]))
    print("FAILED" if failed else "same  " if row["identical"] else "DIFFER", row["name"], "seconds", row["seconds"])
    for r in row["ranks"]:
        c, both = r.get("counters", {}), (r["plain"], r["stash"])
        print(f"  rank {r['rank']}: plain, stash: ms", *(x.get("median_ms") for x in both), "MiB",
              *(x.get("peak_mib") for x in both), "| stashed", mib(c, "bytes_stashed"), "restored",
              mib(c, "bytes_restored"), "spilled", mib(c, "bytes_spilled"), "| plans", c.get("plans"), "from step",
              r.get("first_planned"), "errors", c.get("errors"), *r["options"])
    for line in row["problems"] + [f"note: {x}" for x in row["notes"]]:
        print("  " + line)
    sys.stdout.flush()


def pair(name, args):
    args = ["--steps", str(a.steps), *args, *a.job_option]
    row = {"name": name, "arguments": args, "identical": False, "problems": [], "notes": [], "seconds": [], "ranks": []}
    result["rows"].append(row)
    plain, seconds = run(args, None)
    row["seconds"].append(seconds)
    row["problems"] += problems_of_run("plain", plain)
    stash = None
    options = [list(a.option) for _ in RANKS]
    if not row["problems"]:
        budget = a.budget_mib if a.budget_mib >= 0 else plain[0]["end"]["valid_mib"] // 2
        options[0].append(f"--cuda-budget={budget}M")
        stash, seconds = run(args, options)
        row["seconds"].append(seconds)
        row["problems"] += problems_of_run("stash", stash)
        row["problems"] += problems_of_counters(stash, FROM_RANGE not in args)
        row["notes"] += notes_of(stash)
        row["identical"] = numbers(plain) == numbers(stash) and all(n for n in numbers(stash))
        if not row["identical"]:
            row["first_difference"] = first_difference(plain, stash)
            row["problems"].append(f"not the same numbers: {row['first_difference']}")
    planned = [first_planned(r["by_step"]) for r in stash] if stash else []
    first = min(max([a.steps // 3, *(x for x in planned if x is not None)]), a.steps - 1)
    row["first_steady"] = first
    for rank in RANKS:
        its = {"rank": rank, "options": options[rank], "plain": measured(plain[rank], first), "stash": {}}
        if stash:
            its |= {"stash": measured(stash[rank], first), "first_planned": planned[rank],
                    "a_step": a_step(stash[rank]["by_step"], first), "counters": stash[rank]["counters"],
                    "log": stash[rank]["log"]}
        if row["problems"]:
            its["stderr"] = {"plain": plain[rank]["stderr"]} | ({"stash": stash[rank]["stderr"]} if stash else {})
        row["ranks"].append(its)
    keep()
    tell(row)
    if row["problems"]:
        for rank in RANKS:
            said = (stash or plain)[rank]["stderr"][-60:]
            head = f"rank {rank}, {'stash' if stash else 'plain'}, its last lines:"
            print(head, *said, sep="\n  ", file=sys.stderr, flush=True)
    if stash and not row["identical"] and not any(r["why"] for r in stash):
        again, _ = run(args, None)
        row["plain_repeats_itself"] = numbers(again) == numbers(plain)
        print("  plain, run again, gives", "the same" if row["plain_repeats_itself"] else "OTHER NUMBERS", flush=True)
        keep()


def find_library():
    if a.library:
        return a.library
    told = subprocess.run([a.pagedstash, "info"], capture_output=True, text=True)
    for line in told.stdout.splitlines():
        if line.startswith("library: ") and os.path.exists(line[len("library: "):]):
            return line[len("library: "):]
    return None


def undefined_symbols(library):
    """Names that the object asks the loader for, and by what tool; None: there is no tool."""
    for tool, *flags in (("nm", "-D", "--undefined-only"), ("readelf", "-W", "--dyn-syms")):
        if shutil.which(tool) is None:
            continue
        told = subprocess.run([tool, *flags, library], capture_output=True, text=True)
        lines = [line.split() for line in told.stdout.splitlines()]
        if told.returncode != 0:
            continue
        if tool == "nm":
            return [words[-1].split("@")[0] for words in lines if words], tool
        return [words[7].split("@")[0] for words in lines if len(words) > 7 and words[6] == "UND"], tool
    return None, None


def check_library():
    library = find_library()
    if library is None:
        result["problems"].append("libpagedstash.so is not found; --library tells where it is")
        return
    names, tool = undefined_symbols(library)
    result["library"] = {"path": library, "tool": tool, "undefined": len(names or [])}
    if names is None:
        result["library"]["note"] = "neither nm nor readelf works here: whether it calls NCCL was not checked"
        print("note:", result["library"]["note"])
    elif not names:
        result["problems"].append(f"{tool} shows no undefined symbol of {library} at all")
    calls = [name for name in names or [] if name.lower().lstrip("_").startswith(("nccl", "pnccl"))]
    if calls:
        result["problems"].append(f"{library} calls collectives of its own: {' '.join(calls)}")


def machine():
    try:
        q = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                           capture_output=True, text=True).stdout
    except OSError:
        q = ""
    lines = [line.split(", ") for line in q.strip().splitlines()]
    return {"gpus": [line[0] for line in lines], "driver": lines[0][-1] if lines else "?",
            "date": datetime.date.today().isoformat(), "host": socket.gethostname()}


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ranks end with us
start = time.monotonic()
result = {"what": "two_ranks", "command": " ".join(sys.argv), **machine(), "environment": ENVIRONMENT, "problems": [],
          "rows": []}
check_library()
keep()
try:
    for name, args in PAIRS[:a.pairs]:
        if time.monotonic() - start < a.total:
            pair(name, args)
        else:
            result.setdefault("not_run", []).append(name)
except Stuck as e:
    result["problems"].append(str(e))
result["seconds"] = round(time.monotonic() - start)
keep()
for line in result["problems"]:
    print(line)
print(json.dumps({"ok": result["ok"], "all_identical": result["all_identical"], "pairs": len(result["rows"]),
                  "not_run": result.get("not_run", []), "seconds": result["seconds"]}))
sys.exit(0 if result["ok"] and result["all_identical"] and result["rows"] else 1)
