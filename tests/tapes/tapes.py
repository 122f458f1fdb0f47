#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tapes on the software driver. Speaks TAP.

tapes.py --simcuda FOLDER --shim FILE --tape PROGRAM record JOB              what is on the tape is what the job did
tapes.py ... play [--seeds N] [--set NAME=VALUE]... JOB [ARGUMENT]...        a job's tape, plain and under the stash
tapes.py ... played [--seeds N] [--scale N] FILE.tape[.xz]                   a tape that was recorded elsewhere
tapes.py ... broken JOB                                                      cut and damaged tapes are told as such

Played plain and under the stash, with the checker on, all data read must have the same hash, and touches, stale touches
and frees must be those that the recorder counted.
"""
import argparse
import glob
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile

SIM = "mem=256M,va=8G,granularity=4K,check=1,hang=120"
SETTINGS = {"PAGEDSTASH_MIN_BYTES": "16K", "PAGEDSTASH_PAGE_BYTES": "2K", "PAGEDSTASH_WINDOW_BYTES": "1G"}


def run(args, command, sim=SIM, **settings):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env |= {"LD_LIBRARY_PATH": args.simcuda, "SIMCUDA": sim} | settings
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
    return subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=600)


def record(args, folder, job, settings=None):
    """The tape of a job on the software driver, and what the job printed."""
    settings = SETTINGS | (settings or {}) | {"LD_PRELOAD": args.shim, "PAGEDSTASH_TAPE": folder}
    done = run(args, job, **settings)
    tapes = glob.glob(folder + "/*.tape")
    if done.returncode != 0 or done.stderr or len(tapes) != 1:
        sys.exit(f"recording ended with {done.returncode}, {len(tapes)} tapes:\n{done.stderr}")
    return tapes[0], done.stdout


class Tap:
    def __init__(self, n):
        self.number, self.failed = 0, False
        print(f"1..{n}")

    def say(self, name, wrong):
        self.number += 1
        self.failed |= wrong is not None
        print(f"{'ok' if wrong is None else 'not ok'} {self.number} - {name}", flush=True)
        for line in str(wrong or "").splitlines():
            print(f"# {line}")


# ---- record ----

def on_tape(args, path):
    """The tape's records as tape_job.c prints them: names in place of numbers, all of a launch's bytes."""
    strings, functions, images = {}, {}, {}
    for line in run(args, [args.tape, "--records", path]).stdout.splitlines():
        _, _, kind, *fields = line.split(" ")
        if kind == "STRING":
            strings[fields[0]] = " ".join(fields[1:])
        elif kind == "FUNCTION":
            functions[fields[0]] = strings[fields[1]]
        elif kind in ("PUSH", "CALL"):
            yield f"{kind} {strings[fields[0]]}"
        elif kind == "LAUNCH":
            n = int(fields[10], 16)
            image = images.setdefault(fields[0], bytearray()).ljust(n, b"\0")
            at, data = 0, bytes.fromhex(fields[12] if len(fields) > 12 else "")
            while data:
                at, words = at + 4 * data[0], data[1]
                image[at:at + 4 * words] = data[2:2 + 4 * words]
                at, data = at + 4 * words, data[2 + 4 * words:]
            images[fields[0]] = image
            yield f"LAUNCH {functions[fields[0]]} {' '.join(fields[1:11])} raw {image[:n].hex()}"
        elif kind == "END":
            yield kind
        elif kind != "CONTEXT":
            yield " ".join([kind] + fields)


def check_record(args):
    tap = Tap(1)
    with tempfile.TemporaryDirectory() as folder:
        path, printed = record(args, folder, args.rest)
        want = printed.splitlines()
        want = want[want.index("begin") + 1:]
        # What comes before is the program's start.
        found = list(on_tape(args, path))
        first = next((i for i, line in enumerate(found) if line == want[0]), len(found))
        found = found[first:]
    wrong = [f"want {a}\n have {b}" for a, b in zip(want, found) if a != b][:3]
    if len(want) != len(found):
        wrong.append(f"{len(want)} records are wanted, {len(found)} on the tape")
    tap.say("every call is on the tape", "\n".join(wrong) or None)
    return tap.failed


# ---- play ----

def play(args, path, sim, **settings):
    done = run(args, [args.tape, f"--scale={args.scale}", path], sim=sim, **settings)
    if done.returncode != 0:
        return None, f"ended with {done.returncode}:\n{done.stderr[-3000:]}"
    # A sanitizer may have a word to say about coroutines.
    said = [line for line in done.stderr.splitlines() if "WARNING: ASan doesn't fully support" not in line]
    if said and not args.noisy:
        return None, "was not silent:\n" + "\n".join(said)[-3000:]
    return json.loads(done.stdout), None


def counters(folder):
    total = {}
    for name in glob.glob(folder + "/*.jsonl"):
        with open(name, encoding="utf-8") as f:
            for line in f:
                for key, value in json.loads(line)["counters"].items():
                    total[key] = total.get(key, 0) + value
    return total


def stashed(args, path, plain, seed):
    with tempfile.TemporaryDirectory() as folder:
        settings = SETTINGS | {"PAGEDSTASH_MIN_BYTES": str(plain["min_bytes"]), "LD_PRELOAD": args.shim,
                               "PAGEDSTASH_METRICS": folder}
        settings |= dict(item.split("=", 1) for item in args.set)
        found, wrong = play(args, path, f"{SIM},seed={seed},{args.sim}".rstrip(","), **settings)
        told = counters(folder)
    if wrong:
        return wrong
    if found["played"] != plain["played"]:
        return f"played {found['played']} instead of {plain['played']}"
    read = found["read"]
    # Each tensor is filled once, and what is never freed is read in the end. Memory that the stash gives out again at
    # the same address makes a stale word name a tensor that lives.
    own = read["tensors"] + read["tensors"] - read["tensor_frees"]
    if told["tensors"] + told["passed_through"] != read["tensors"] or (not args.stays and told["stashes"] == 0):
        return f"not all tensors were taken over, or none was stashed: {told}"
    if not told["passed_through"] and told["touches"] < read["touches"] + own:
        return f"{told['touches']} touches were seen, {read['touches']} are on the tape, {own} are the replay's"
    return None


def check_played(args, path):
    tap = Tap(args.seeds + 1)
    plain, wrong = play(args, path, f"{SIM},seed=0,{args.sim}".rstrip(","))
    if not wrong and (plain["recorded"] != plain["read"] or plain["read"]["tensors"] == 0):
        wrong = f"not as recorded, or nothing to page: {plain}"
    tap.say("plain", wrong)
    for seed in range(args.seeds):
        tap.say(f"under the stash, seed {seed}",
                "no plain run" if plain is None else stashed(args, path, plain, seed))
    return tap.failed


def check_play(args):
    with tempfile.TemporaryDirectory() as folder:
        path, _ = record(args, folder, args.rest, dict(item.split("=", 1) for item in args.set))
        return check_played(args, path)


def check_elsewhere(args):
    opener = lzma.open if args.rest[0].endswith(".xz") else open
    with tempfile.NamedTemporaryFile(suffix=".tape") as whole, opener(args.rest[0], "rb") as packed:
        whole.write(packed.read())
        whole.flush()
        return check_played(args, whole.name)


# ---- broken ----

def check_broken(args):
    tap = Tap(3)
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        path, _ = record(args, folder, args.rest)
        with open(path, "rb") as f:
            whole = f.read()

        def told(data):
            with open(folder + "/broken", "wb") as f:
                f.write(data)
            done = run(args, [args.tape, "--check", folder + "/broken"])
            return done.returncode, done.stderr

        cuts = [0, 1, 7, 8, 9, 20, len(whole) - 1] + [rng.randrange(len(whole)) for _ in range(40)]
        wrong = [n for n in cuts if told(whole[:n])[0] != 1 or not told(whole[:n])[1].startswith("pagedstash-tape: ")]
        tap.say("cut tapes are told as such", f"cut at {wrong}" if wrong else None)
        code, message = told(whole[:8] + b"\x02" + whole[9:])
        tap.say("another version is told as such", None if code == 1 and "another version" in message else message)
        wrong = []
        for i in range(120):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 5)):
                data[rng.randrange(8, len(data))] = rng.randrange(256)
            code, message = told(bytes(data))
            if code not in (0, 1) or (code == 1) != message.startswith("pagedstash-tape: "):
                wrong.append(f"{i}: status {code}, {message[-500:]}")
        tap.say("damaged tapes do no harm", "\n".join(wrong) or None)
    return tap.failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--simcuda", required=True)
    parser.add_argument("--shim", required=True)
    parser.add_argument("--tape", required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--sim", default="", help="more options of the software driver")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--stays", action="store_true", help="nothing need be stashed")
    parser.add_argument("--noisy", action="store_true", help="something may be said")
    parser.add_argument("what", choices=["record", "play", "played", "broken"])
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    checks = {"record": check_record, "play": check_play, "played": check_elsewhere, "broken": check_broken}
    return 1 if checks[args.what](args) else 0


if __name__ == "__main__":
    sys.exit(main())
