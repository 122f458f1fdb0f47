#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layering.py ROOT: includes go only in the direction policy/base <- policy <- kernels <- shim, policy <- tools, and carry
their folder; policy includes no CUDA header; only tests include tests."""
import pathlib
import re
import sys

ALLOWED = {
    "policy/base": {"policy/base"},
    "policy": {"policy/base", "policy"},
    "kernels": {"policy/base", "policy", "kernels"},
    "shim": {"policy/base", "policy", "kernels", "shim"},
    # simcuda and the demo build kernels for the host through the headers that nvcc uses too.
    "tools": {"policy/base", "policy", "kernels", "tools"},
    "tests": {"policy/base", "policy", "kernels", "shim", "tools", "tests"},
}
# Of kernels/, tools see only how a kernel is written and found.
TOOLS_KERNELS = {"kernels/dual.h", "kernels/simkernel.h", "kernels/layout.h"}


def layer(path):
    if path.startswith("policy/base/"):
        return "policy/base"
    return path.split("/")[0]


def problems(root, path):
    source = path.relative_to(root).as_posix()
    own = layer(source)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if not match:
            continue
        quoted, target = match.group(1) == '"', match.group(2)
        where = f"{source}:{number}: "
        if quoted:
            if not (root / target).is_file():
                yield where + f'"{target}" is not given from the root'
            elif layer(target) not in ALLOWED[own]:
                yield where + f"{own} must not include {target}"
            elif own == "tools" and layer(target) == "kernels" and target not in TOOLS_KERNELS:
                yield where + f"tools must not include {target}"
        elif own.startswith("policy") and re.match(r"(cuda|cu[A-Z]|nvtx|nvrtc)", target):
            yield where + f"policy must not include <{target}>"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    found = []
    n_files = 0
    for folder in ("policy", "kernels", "shim", "tools", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".def"):
                n_files += 1
                found += problems(root, path)
    print("\n".join(found))
    return 1 if found or n_files == 0 else 0


sys.exit(main())
