#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the toolkit's headers say of the driver's functions: names, versions, variants, exported symbols.

Independent of shim/hooks.def, so that tests can use it as an oracle.
"""
import re
import sys
from collections import namedtuple
from pathlib import Path

Function = namedtuple("Function", "name version variant symbol params")

TYPEDEF = re.compile(
    r"typedef CUresult\s*\(CUDAAPI \*PFN_(\w+?)_v(\d+)(?:_(ptds|ptsz))?\)\s*\((.*?)\);", re.S)


def strip_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"//[^\n]*", " ", text)


def read(include):
    """All (name, version, variant), with the symbol that libcuda exports for each.

    Exported forms are numbered: the first signature of a name has no suffix, the second is _v2, and so on. A
    per-thread variant has the number of the newest signature not newer than itself.
    """
    text = strip_comments((Path(include) / "cudaTypedefs.h").read_text())
    text += strip_comments((Path(include) / "cudaProfilerTypedefs.h").read_text())
    found = {}
    for m in TYPEDEF.finditer(text):
        found[(m[1], int(m[2]), m[3] or "legacy")] = " ".join(m[4].split())
    functions = []
    for (name, version, variant), params in found.items():
        legacy = sorted(v for (n, v, k) in found if n == name and k == "legacy")
        form = max([i + 1 for i, v in enumerate(legacy) if v <= version], default=1)
        symbol = name + (f"_v{form}" if form > 1 else "") + ("" if variant == "legacy" else "_" + variant)
        functions.append(Function(name, version, variant, symbol, params))
    return sorted(functions)


def declared(include):
    """Names that cuda.h declares, as it spells them (with _v2 and the like), and their parameters."""
    text = strip_comments((Path(include) / "cuda.h").read_text())
    return {m[1]: " ".join(m[2].split())
            for m in re.finditer(r"CUresult\s+CUDAAPI\s+(\w+)\s*\((.*?)\)\s*;", text, re.S)}


def hooks(path):
    """Rows of hooks.def as dictionaries."""
    text = strip_comments(Path(path).read_text())
    rows = []
    for m in re.finditer(r"^HOOK(_BODY)?\((\w+),\s+(\w+),\s+(\d+),\s+(\w+),\s+(\w+),", text, re.M):
        rows.append({"symbol": m[2], "name": m[3], "version": int(m[4]), "variant": m[5], "danger": m[6]})
    return rows


if __name__ == "__main__":
    for function in read(sys.argv[1]):
        print(*function, sep="\t")
