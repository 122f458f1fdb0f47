# SPDX-License-Identifier: Apache-2.0
"""Runs the mutants of a package that mutate.py built: on any machine with Python, on many cores, within a time limit.

A mutant's runs are tried in the order of what finds most, all mutants in turn, until one run reports it: the checker of
the software driver, another output, an error, a crash, an assertion or a hang, or that nothing goes out any more; for
locks, the thread sanitizer. The unchanged sources are a mutant among them. A report counts only if the same run of the
unchanged sources is clean, which is looked at twice for each.
"""
import collections
import concurrent.futures
import ctypes
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time

SIM = "va=8G,granularity=4K,check=1,hang=5"
SETTINGS = {"PAGEDSTASH_MIN_BYTES": "16K", "PAGEDSTASH_PAGE_BYTES": "2K", "PAGEDSTASH_WINDOW_BYTES": "1G"}
UNCHANGED = "unchanged"
UNIT = "unit"  # in place of a fault: a unit test
# Of faults_job: made while tensors are out, or all with '!' (tests/sim/fault_watch.h).
FAULTS = ["cuEventRecord:~10", "cuStreamWaitEvent:~40", "cuMemsetD32Async:~30", "cuEventQuery:~20", "cuMemMap:~10",
          "cuStreamWaitEvent:1+", "cuEventRecord:1+", "cuStreamGetCtx:~50", "cuLaunchKernel:~10", "!cuEventRecord:~20",
          "!cuEventRecord:~40", "cuFuncGetParamInfo:~5", "cuEventRecord:~20;cuStreamSynchronize:~50",
          "!cuEventRecord:~5;!cuStreamSynchronize:~50"]
# Of every scenario.
FAULTS_ALL = ["!cuEventRecord:~10", "!cuEventRecord:~40", "!cuEventRecord:1+", "!cuStreamWaitEvent:~40",
              "!cuStreamWaitEvent:1+", "!cuMemsetD32Async:~30", "!cuMemMap:~20", "!cuLaunchKernel:~10",
              "!cuEventRecord:~30;!cuStreamWaitEvent:~30", "!cuEventQuery:~30", "!cuMemUnmap:~30",
              "!cuEventRecord:~20;!cuStreamSynchronize:~50",
              "!cuEventRecord:~40;!cuStreamSynchronize:2+;!cuCtxSynchronize:1+"]
# Calls that take long, for other threads to get in front of them.
SLOW = ["cuMemMap:~100:0;cuMemUnmap:~100:0", "!cuMemMap:~20:0;!cuMemCreate:~50:0;!cuMemSetAccess:~10:0"]
# Of these in every round.
OFTEN = {"scenario_plan_aside": ["cuMemMap:~20", "cuMemUnmap:~80", "cuEventRecord:~20;cuStreamSynchronize:~50",
                                 "cuStreamWaitEvent:~40", "cuMemsetD32Async:~40",
                                 "cuEventRecord:~10;cuStreamSynchronize:~80;cuCtxSynchronize:~80"],
         "scenario_plan_beside": SLOW,
         "scenario_b11_refused_return": FAULTS + FAULTS_ALL, "scenario_b11_lost_stash": FAULTS_ALL[-2:],
         "scenario_c4_growth_and_drop": FAULTS_ALL[:2]}
# Of what moves pages to the host; of a mutation there they come first.
SQUEEZE_FILE = "shim/engine_squeeze.c"
SQUEEZE = ["", "!cuMemcpyDtoHAsync:~5", "!cuMemsetD32Async:~2", "!cuMemsetD32Async:~10", "!cuLaunchKernel:~10",
           "!cuStreamSynchronize:~50", "!cuStreamSynchronize:~80;!cuEventRecord:~40", "!cuEventRecord:~40",
           "!cuStreamSynchronize:~80:0;!cuMemcpyDtoHAsync:~5:0", "!cuMemMap:~50:0;!cuMemCreate:~50:0"]
# Calls in the middle of a move, or drops before one.
SQUEEZE_ONCE = [("both", "!cuLaunchKernel:11;!cuLaunchKernel:37;!cuLaunchKernel:58;!cuLaunchKernel:97"),
                ("both", "!cuLaunchKernel:52;!cuLaunchKernel:74;!cuLaunchKernel:101;!cuLaunchKernel:102"),
                ("moved", "!cuMemsetD32Async:49"), ("moved", "!cuMemsetD32Async:117"),
                ("moved", "!cuStreamSynchronize:16+"), ("moved", "!cuStreamSynchronize:16+;!cuEventRecord:~60"),
                ("moved", "!cuMemHostRegister:2+"), ("moved", "!cuMemHostRegister:3+"), ("both", "!cuMemHostRegister:3+")]
# With no device memory for pages, so that a plan's tails go to the host by stages and sinks: in front of the options.
SUNK = "sunk,"
SUNK_FILES = ("shim/sinks.c", "shim/copies.c", "shim/engine_adopt.c", "shim/engine_move.c", "shim/engine_return.c")
SUNK_NAMES = ("scenario_plan_touches", "scenario_plan_streams", "scenario_plan_aside", "scenario_plan_drifts",
              "scenario_plan_signal", "scenario_plan_threads", "scenario_plan_contexts", "scenario_plan_beside",
              "scenario_a6_ranks")
# Only so many steps are planned.
SUNK_ARGUMENTS = {"scenario_a6_ranks": [[k, "9"] for k in ("early", "posted", "1f1b", "foreign", "record", "behind")]}
# In every other one the device works only when it is waited for.
SUNK_FAULTS = ["", "", "!cuMemcpyDtoHAsync:~40", "!cuMemcpyHtoDAsync:~40", "!cuEventRecord:~20",
               "!cuEventRecord:~20;!cuStreamSynchronize:~50", "!cuStreamWaitEvent:~20", "!cuLaunchKernel:~10"]
# Where the stages' lists are made; once they are behind a fault that is drawn, nothing is planned.
SUNK_ONCE = ["!cuMemsetD32Async:84", "!cuMemsetD32Async:87", "!cuMemsetD32Async:90"]
# Where no event can be recorded the host waits for the device, and what waits for the host stands still (a6, c4, signal);
# others are short of memory or done in another process, and what fails there is not always the refused call.
NO_FAULTS = ("scenario_a6_", "scenario_plan_signal", "scenario_c4_growth_beside_drop", "scenario_forked_worker", "scenario_b6_", "scenario_b9_",
             "scenario_c8_", "scenario_c9_", "scenario_locks_", "scenario_a1_product_elsewhere")
MEMORY = {"scenario_b9_no_memory_in_region": ["3M"], "scenario_c8_fits_only_stashed": ["8M"],
          "faults_job": ["64M", "6M"], "scenario_c4_growth_and_drop": ["4M"], "scenario_c9_reserve_in_use": ["4M"],
          "scenario_two_contexts": ["256M", "256M,devices=2"], "scenario_b9_memory_in_use": ["3M"],
          "scenario_b6_unknown_version": ["256M,version=14000"], "scenario_c4_growth_beside_drop": ["6M"],
          "scenario_b6_ends_while_moving": ["6M,version=14000"], "scenario_b6_ends_in_a_move": ["6M,version=14000"],
          "scenario_locks_waits": ["6M,version=14000"], "scenario_locks_contexts": ["256M,devices=2"],
          "scenario_locks_questions": ["256M,devices=8"], "scenario_locks_ends_paging": ["64M,version=14000"],
          "scenario_b11_refused_return": ["6M"], "scenario_squeeze": ["12M"]}
ARGUMENTS = {"scenario_a4_two_threads": [[], ["same"]],
             "scenario_a6_ranks": [["early"], ["1f1b"], ["foreign"], ["record"], ["posted", "9"], ["record", "9"]],
             "scenario_plan_touches": [["early"], ["stale"], ["late"], ["aside"], ["written"]],
             "scenario_plan_streams": [["pair"], ["frees"], ["mixed"], ["backward"], ["alternate"]],
             "scenario_plan_drifts": [["batches"], ["sizes"], ["parts"], ["layers"], ["rows"], ["names"], ["unread"]],
             "scenario_plan_memory": [["trim"], ["lack"], ["immortal"], ["open"]],
             "scenario_plan_contexts": [["ends"], ["turns"], ["models"], ["two"], ["reset"]],
             "scenario_plan_threads": [[], ["ahead"]],
             "scenario_plan_aside": [["freed"], ["aside"], ["turns"], ["spare"], ["prepared"]],
             "scenario_plan_beside": [["read"], ["steps"]],
             "scenario_squeeze": [["moved"], ["cached"], ["freed"], ["both"], ["beside"], ["writes"], ["leaves"]],
             "scenario_rows": [["i64"], ["over"], ["zeros"], ["side"], ["thread"], ["many"]],
             "scenario_api": [["steps"], ["reset"], ["pages"], ["need"], ["untold"]],
             "scenario_locks_waits": [["end"], ["pin"], ["use"], ["back"], ["restore"], ["undo"], ["pages"]]}
THREADS = ("scenario_locks_", "scenario_a4_", "scenario_a3_stale_beside", "scenario_two_contexts",
           "scenario_b1_thread_streams", "scenario_plan_beside", "scenario_plan_threads", "scenario_squeeze")
# Of a mutation in one of these files, these come first.
PLANNED_FILES = ("shim/places.c", "shim/places_aside.c", "shim/places_make.c", "shim/engine_adopt.c", "shim/engine_plan.c",
                 "shim/hostpages.c", "shim/engine_move.c")
PLANNED = ("scenario_plan_", "scenario_a6_ranks")
ADDR_NO_RANDOMIZE = 0x40000

Run = collections.namedtuple("Run", "bench label program arguments sim fault seed")
Result = collections.namedtuple("Result", "report n_out seconds")


def runs(bench, programs, file=""):
    """All runs of a bench, without end: each seed of the scheduler in turn."""
    scenarios = sorted(n for n in programs if n.startswith("scenario_"))
    scenarios.sort(key=lambda n: n.startswith(PLANNED) != (file in PLANNED_FILES))
    if file == SQUEEZE_FILE:
        yield from squeeze_runs(bench)
    if file in SUNK_FILES and bench != "tsan":
        yield from sunk_runs(bench, 6 if file == "shim/sinks.c" else 1)
    if bench == "tsan":
        scenarios.sort(key=lambda n: not n.startswith(THREADS))
        for seed in range(8):
            yield from calm_runs(bench, [n for n in scenarios if n.startswith(THREADS)], seed, ())
    for seed in itertools.count():
        # First all without faults, twice, then those with; and so on.
        for calm in (2 * seed, 2 * seed + 1):
            yield from calm_runs(bench, scenarios, calm)
        lazy = ",eager=0" * (seed % 2)
        if bench == "tsan" and seed % 4 > 0:
            continue
        for fault in FAULTS:
            for mem in ("64M", "6M"):
                yield a_run(bench, "faults_job", [], "mem=" + mem, seed, fault)
            yield a_run(bench, "faults_job", ["planned"], "mem=64M", seed, fault)
        for name, faults in OFTEN.items():
            for fault, arguments in itertools.product(faults, ARGUMENTS.get(name, [[]])):
                yield a_run(bench, name, arguments, f"mem={MEMORY.get(name, ['256M'])[0]}{lazy}", seed, fault)
        for at, name in enumerate(n for n in scenarios if not n.startswith(NO_FAULTS)):
            for turn in range(4):
                fault = FAULTS_ALL[(at + seed * 4 + turn) % len(FAULTS_ALL)]
                arguments = ARGUMENTS.get(name, [[]])
                options = f"mem={MEMORY.get(name, ['256M'])[0]}{lazy}"
                yield a_run(bench, name, arguments[(seed + turn) % len(arguments)], options, seed, fault)


def squeeze_runs(bench):
    for kind, fault in SQUEEZE_ONCE:
        yield a_run(bench, "scenario_squeeze", [kind], "mem=12M,eager=0", 1, fault)
    for seed, fault in itertools.product(range(6), SQUEEZE):
        for arguments in ARGUMENTS["scenario_squeeze"]:
            yield a_run(bench, "scenario_squeeze", arguments, "mem=12M" + ",eager=0" * (seed % 2), seed, fault)


def sunk_runs(bench, seeds):
    for seed, (at, fault) in itertools.product(range(seeds), enumerate(SUNK_FAULTS)):
        for name in SUNK_NAMES:
            every = (ARGUMENTS | SUNK_ARGUMENTS).get(name, [[]])
            for arguments in every if not (fault and name.startswith(NO_FAULTS)) else []:
                yield a_run(bench, name, arguments, SUNK + "mem=256M" + ",eager=0" * ((seed + at) % 2), seed, fault)
        for fault in SUNK_ONCE if (seed, at) == (0, 1) else []:
            yield a_run(bench, "scenario_plan_touches", ["stale"], SUNK + "mem=256M,eager=0", 1, fault)


def calm_runs(bench, scenarios, seed, jobs=("1M", "1088K", "1280K", "2M")):
    """Every other seed: the device works only when it is waited for."""
    lazy = ",eager=0" * (seed % 2)
    for name in scenarios[:4] + ["faults_job"] * bool(jobs) + scenarios[4:]:
        for mem in MEMORY.get(name, ["256M"]):
            for arguments in ARGUMENTS.get(name, [[]]):
                yield a_run(bench, name, arguments, f"mem={mem}{lazy}", seed, "")
    for mem in jobs:
        for quarters in ("0", "1"):
            yield a_run(bench, "memory_job", [quarters], f"mem={mem}{lazy}", seed, "")


def told(bench, programs, hints, seeds):
    """By label: those of the runs that a report of an earlier campaign names."""
    wanted = {h.split(": ")[0] for h in hints}
    found = {}
    for run in itertools.chain(squeeze_runs(bench), sunk_runs(bench, 6), itertools.islice(runs(bench, programs), 400 * seeds)):
        if run.label in wanted:
            found[run.label] = run
    return found


def a_run(bench, name, arguments, options, seed, fault):
    label = " ".join([name, *arguments, options, f"seed={seed}", fault]).strip()
    return Run(bench, label, name, tuple(arguments), options, fault, seed)


def folder_of(mutant):
    """LD_PRELOAD ends a name at a space."""
    return mutant.replace(" ", "_")


# ---- one run, in a process of the pool

def environment(folder, run, shim):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH", "FAULT")}
    # A mutant of kernels has a driver of its own.
    env |= {"LD_LIBRARY_PATH": f"{os.path.dirname(shim)}:{folder}" if shim else folder, "TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}
    env |= {"SIMCUDA": f"{run.sim.removeprefix(SUNK)},{SIM},seed={run.seed}", "FAULT_SEED": str(run.seed)}
    if run.sim.startswith(SUNK) and shim:
        env |= {"PAGEDSTASH_CUDA_BUDGET": "0", "SC_SLOW": "1"}
    if run.fault:
        env["FAULT"] = run.fault
    return env | (SETTINGS | {"LD_PRELOAD": shim} if shim else {})


def execute(folder, run, shim, metrics, limit):
    """(code or "hang", output, errors); what the program left running ends with it."""
    env = environment(folder, run, shim)
    if metrics:
        env["PAGEDSTASH_METRICS"] = metrics
    # The thread sanitizer knows few layouts of the address space.
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE if run.bench == "tsan" else 0)
    with subprocess.Popen([f"{folder}/{run.program}", *run.arguments], env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=max(limit, 0.1))
            code = process.returncode
        except subprocess.TimeoutExpired:
            code, out, err = "hang", b"", b""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return code, out.decode(errors="replace"), err.decode(errors="replace")


def unit_run(bench, name):
    return Run(bench, name.replace("_", " "), name, (), "", UNIT, 0)


def judged_unit(folder, run, shim, limit):
    """A unit test of the mutant's own sources."""
    began = time.monotonic()
    env = environment(folder, run._replace(fault=""), None) | {"PS_VALGRIND": "1"}  # the short form of long ones
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE if run.bench == "tsan" else 0)
    try:
        code = subprocess.run([f"{os.path.dirname(shim)}/{run.program}"], env=env, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=max(limit, 0.1), check=False).returncode
    except subprocess.TimeoutExpired:
        code = "hang"
    return Result(None if code == 0 else f"{run.label}: ends with {code}", 1, time.monotonic() - began)


def judged(folder, run, shim, wanted, limit):
    """Runs it with a shim."""
    if run.fault == UNIT:
        return judged_unit(folder, run, shim, limit)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as metrics:
        code, out, err = execute(folder, run, shim, metrics, limit)
        n_out = stashes(metrics)
    if "cannot be preloaded" in err:
        raise RuntimeError(err)
    return Result(what_is_wrong(run, code, out, err, wanted), n_out, time.monotonic() - began)


def what_is_wrong(run, code, out, err, wanted):
    if code == 0 and out == wanted:
        return None
    if run.fault and code == 1 and re.search(r"^line \d+: .*: CUDA_ERROR_UNKNOWN$", err, re.M):
        return None
    if code == 0:
        return f"{run.label}: other output"
    kinds = {87: "checker", 86: "deadlock", 66: "thread sanitizer", 1: "the job's call fails", "hang": "hang"}
    return f"{run.label}: {kinds.get(code, f'ends with {code}')}{said(err)}"


def plain(folder, run):
    """What the plain job prints with plenty of memory, whatever the seed."""
    run = run._replace(sim=",".join(["mem=256M", *device_of(run)]), fault="", seed=0)
    code, out, err = execute(folder, run, None, None, 60)
    return out if code == 0 else f"ended with {code}: {err[-500:]}"


def stashes(folder):
    n = 0
    for name in os.listdir(folder):
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as f:
            n += sum(int(m) for m in re.findall(r'"stashes":(\d+)', f.read()))
    return n


def said(err):
    for pattern in (r"simcuda: (?:race|use|stale|unordered)[^\n]*", r"WARNING: ThreadSanitizer: [^\n]*",
                    r"FATAL: ThreadSanitizer[^\n]*", r"line \d+: .*: (CUDA_\w+)", r"BUG[^\n]*", r"Assertion[^\n]*"):
        hit = re.search(pattern, err)
        if hit:
            return ": " + hit.group(0)[:100]
    return ""


# ---- all runs

class Mutant:
    def __init__(self, row, programs, first):
        self.row, self.bench = row, row["bench"]
        units = [unit_run(row["bench"], name) for name in row.get("units", [])]
        self.runs = itertools.chain(first, units, runs(row["bench"], programs, row["file"]))
        self.n, self.report, self.suspected = 0, None, False

    def result(self):
        return {k: self.row[k] for k in ("name", "kind", "file", "function")} | {"report": self.report, "runs": self.n}


class Campaign:
    """Deals runs to a pool of processes."""

    def __init__(self, folder, index, args):
        self.folder, self.args, self.began = folder, args, time.monotonic()
        self.end = self.began + args.limit - 2
        self.plain, self.programs, self.told = {}, index["programs"], {}
        self.verdicts = collections.defaultdict(list)  # by bench and label: results of the unchanged sources
        self.waiting = collections.defaultdict(list)  # for these: (mutant, report)
        self.unclean, self.pending, self.saved = {}, {}, 0
        self.all = [Mutant(row, self.programs, self.first(row)) for row in index["mutants"] if self.chosen(row)]
        self.turn = collections.deque(self.all)

    def chosen(self, row):
        args = self.args
        return (args.kind in (None, row["kind"]) or row["name"] == UNCHANGED and
                (row["bench"] == "tsan") == (args.kind in ("lock", "atomic"))) and \
            (args.only is None or row["name"] in args.only + [UNCHANGED]) and row["name"] not in args.old

    def first(self, row):
        """What an earlier campaign has reported it in."""
        if row["bench"] not in self.told:
            self.told[row["bench"]] = told(row["bench"], self.programs, self.args.hints.values(), self.args.seeds)
        run = self.told[row["bench"]].get(self.args.hints.get(row["name"], "").split(": ")[0])
        return [run] if run is not None else []

    def start(self, pool, mutant, run, shim):
        where = f"{self.folder}/{run.bench}"
        limit = min(self.args.run_limit, self.end - time.monotonic())
        shim = f"{where}/{folder_of(shim)}/libpagedstash.so"
        job = pool.submit(judged, where, run, shim, self.plain.get(key(run)), limit)
        self.pending[job] = (mutant, run, limit)

    def fetch_plain(self, pool):
        """The plain output of every program; each must end well."""
        todo = {}
        for bench in {m.bench for m in self.all}:
            for run in itertools.chain(sunk_runs(bench, 1), itertools.islice(runs(bench, self.programs), 1500)):
                todo.setdefault(key(run), run)
        jobs = {k: pool.submit(plain, f"{self.folder}/{r.bench}", r) for k, r in todo.items()}
        self.plain = {k: job.result() for k, job in jobs.items()}
        self.unclean |= {" ".join(map(str, k)): text for k, text in self.plain.items() if text.startswith("ended")}

    def deal(self, pool):
        """Keeps the pool busy."""
        while self.turn and len(self.pending) < self.args.jobs * 5 // 4 + 1:
            mutant = self.turn.popleft()
            if mutant.report is not None or mutant.suspected:
                continue
            run = next(mutant.runs)
            if run.seed >= 2 * self.args.seeds:
                continue
            self.turn.append(mutant)
            if (run.bench, run.label) not in self.unclean and not self.plain.get(key(run), "").startswith("ended"):
                self.start(pool, mutant, run, mutant.row["name"])

    def take(self, pool, job):
        mutant, run, limit = self.pending.pop(job)
        if limit < self.args.run_limit and "hang" in (job.result().report or ""):
            return  # the end of the campaign
        at, result = (run.bench, run.label), job.result()
        if mutant is None or mutant.row["name"] == UNCHANGED:
            self.verdicts[at].append(result)
            self.judge(at)
        if mutant is None or mutant.report is not None or mutant.suspected:
            return
        mutant.n += 1
        report = result.report
        if report is None and result.n_out == 0 and not run.fault and not run.sim.startswith(SUNK):
            report = f"{run.label}: nothing goes out"
        if report is None or mutant.row["name"] == UNCHANGED:
            return
        mutant.suspected = True
        self.waiting[at].append((mutant, report))
        for _ in range(2 - len(self.verdicts[at])):
            self.start(pool, None, run, UNCHANGED)
        self.judge(at)

    def judge(self, at):
        """Compares with the unchanged sources, once enough is known of those."""
        found = self.verdicts[at]
        wrong = [r.report for r in found if r.report is not None]
        if wrong and at not in self.unclean:
            self.unclean[at] = wrong[0]
            print(f"# unchanged: {wrong[0]}", flush=True)
        if len(found) < 2:
            return
        for mutant, report in self.waiting.pop(at, []):
            if wrong or (report.endswith(": nothing goes out") and min(r.n_out for r in found) == 0):
                mutant.suspected = False
                self.turn.append(mutant)
                continue
            mutant.report = report
            print(f"seen\t{mutant.row['kind']}\t{mutant.row['name']}\t{report}\t{mutant.n} runs\t"
                  f"{time.monotonic() - self.began:.0f} s", flush=True)

    def run(self):
        context = multiprocessing.get_context("fork")
        pool = concurrent.futures.ProcessPoolExecutor(self.args.jobs, mp_context=context)
        self.fetch_plain(pool)
        while time.monotonic() < self.end:
            self.deal(pool)
            if not self.pending or self.decided():
                break
            done, _ = concurrent.futures.wait(self.pending, 1, concurrent.futures.FIRST_COMPLETED)
            for job in done:
                self.take(pool, job)
            if time.monotonic() > self.saved + 5:
                self.save()
        self.save()
        pool.shutdown(wait=True, cancel_futures=True)

    def decided(self):
        """Every mutant is seen, and the unchanged sources have run as far."""
        far = max((m.n for m in self.all), default=0)
        return all(m.report is not None or m.row["name"] == UNCHANGED and m.n >= far for m in self.all)

    def results(self):
        """Of all mutants but the unchanged, those taken over among them."""
        new = {m.row["name"]: m.result() for m in self.all if m.row["name"] != UNCHANGED}
        return list((self.args.old | new).values())

    def save(self):
        self.saved = time.monotonic()
        if self.args.json is None:
            return
        unclean = {" ".join(at) if isinstance(at, tuple) else at: text for at, text in self.unclean.items()}
        data = {"seconds": round(self.saved - self.began), "unclean": unclean,
                "unchanged_runs": sum(len(v) for v in self.verdicts.values()),
                "results": self.results()}
        with open(self.args.json + ".part", "w", encoding="utf-8") as f:
            json.dump(data, f, indent=1)
        os.replace(self.args.json + ".part", self.args.json)


def key(run):
    """Of a plain output."""
    return run.bench, run.program, run.arguments, device_of(run)


def device_of(run):
    return tuple(o for o in run.sim.split(",") if o.startswith(("devices=", "version=")))


def run_package(package, args):
    """Unpacks and runs; returns all mutants but the unchanged."""
    folder = tempfile.mkdtemp(prefix="pagedstash-mutants-")
    try:
        with open(f"{package}/index.json", encoding="utf-8") as f:
            index = json.load(f)
        with tarfile.open(f"{package}/mutants.tar.xz") as archive:
            archive.extractall(folder)
        campaign = Campaign(folder, index, args)
        campaign.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return campaign.results()
