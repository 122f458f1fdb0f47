#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coverage.py INCLUDE ROOT: every function of cuda.h that names device memory is hooked, or listed with the reason.

A function names device memory when a parameter is a CUdeviceptr (any version of it), a structure that holds one at any
depth, a launch's parameters, or when it is called as one that does (copies, fills, launches, look-ups). A name that is
hooked must be hooked at every version and variant that cudaTypedefs.h has. hooks.def must be sorted, since it is
searched by halves. Reasons for what is not there stay true only if each is needed: a line that no function needs fails.
"""
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[2])
sys.path.insert(0, str(ROOT / "tests" / "preload"))
import cuda_names  # noqa: E402

BY_NAME = re.compile(r"^cu(Launch|Memcpy|Memset|Mem[A-Z]\w*Async|GetProcAddress)")
LAUNCHES = re.compile(r"\bkernelParams\b|\bglobalAddress\b")


def holders(include):
    """Names of types that hold a device address, found by going round until nothing is added."""
    text = cuda_names.strip_comments((Path(include) / "cuda.h").read_text())
    bodies = {}
    for m in re.finditer(r"typedef\s+(?:struct|union)\s*(\w*)\s*(\{)", text):
        depth, end = 1, m.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        names = re.match(r"\s*(\w+)\s*;", text[end:])
        if names:
            bodies[names[1]] = text[m.end():end]
            bodies[m[1] or names[1]] = text[m.end():end]
    aliases = re.findall(r"typedef\s+(?:struct\s+)?(\w+)\s+\*?\s*(\w+)\s*;", text)
    found = {"CUdeviceptr", "CUdeviceptr_v1", "CUdeviceptr_v2"}
    # They hold addresses as plain pointers.
    found |= {"CUmemDecompressParams", "CUDA_KERNEL_NODE_PARAMS_v1", "CUDA_KERNEL_NODE_PARAMS_v2",
              "CUDA_KERNEL_NODE_PARAMS_v3", "CUDA_LAUNCH_PARAMS_v1"}
    while True:
        before = len(found)
        for name, body in bodies.items():
            if set(re.findall(r"\w+", body)) & found:
                found.add(name)
        for old, new in aliases:
            if old in found:
                found.add(new)
        if len(found) == before:
            return found


def listed(path):
    reasons = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].rstrip()
        if not line:
            continue
        name, _, reason = line.partition(" ")
        if not reason.strip():
            yield_error(f"{path.name}:{number}: '{name}' has no reason")
        reasons[name] = reason.strip()
    return reasons


ERRORS = []


def yield_error(text):
    ERRORS.append(text)


def check_functions(include, rows, reasons):
    hooked = {(r["name"], r["version"], r["variant"]) for r in rows}
    hooked_names = {r["name"] for r in rows}
    addressed = holders(include)
    used = set()
    for f in cuda_names.read(include):
        versioned = f"{f.name}@{f.version}"
        names_memory = (set(re.findall(r"\w+", f.params)) & addressed or BY_NAME.match(f.name)
                        or LAUNCHES.search(f.params))
        if (f.name, f.version, f.variant) in hooked:
            continue
        if f.name not in hooked_names and not names_memory:
            continue
        if versioned in reasons:
            used.add(versioned)
        elif f.name in reasons and f.name not in hooked_names:
            used.add(f.name)
        else:
            yield_error(f"{f.symbol} ({f.name} of version {f.version}, {f.variant}) is neither hooked nor listed")
    # Functions that have no typedef yet.
    typed = {f.symbol for f in cuda_names.read(include)} | {f.name for f in cuda_names.read(include)}
    for name, params in cuda_names.declared(include).items():
        if name in typed or not set(re.findall(r"\w+", params)) & addressed:
            continue
        if name in reasons:
            used.add(name)
        else:
            yield_error(f"{name} has no typedef and is not listed")
    for name in sorted(set(reasons) - used):
        yield_error(f"'{name}' is listed and need not be")


def check_order(rows):
    order = {"legacy": 0, "ptds": 1, "ptsz": 1}
    keys = [(r["name"], r["version"], order[r["variant"]]) for r in rows]
    for before, after in zip(keys, keys[1:]):
        if before >= after:
            yield_error(f"hooks.def: {after[0]} of version {after[1]} stands out of order")


def main():
    rows = cuda_names.hooks(ROOT / "shim" / "hooks.def")
    if len(rows) < 200:
        yield_error(f"only {len(rows)} rows of hooks.def were read")
    check_order(rows)
    check_functions(sys.argv[1], rows, listed(ROOT / "tests" / "lint" / "unhooked.txt"))
    print("\n".join(ERRORS))
    return 1 if ERRORS else 0


sys.exit(main())
