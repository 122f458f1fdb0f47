#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles device code and notes what it takes: fatbin.py REPORT NVCC ARGUMENTS...

The report has a line for each kernel and architecture. Registers that do not fit and are kept in memory are an error:
the kernels are written for what there is.
"""

import re
import subprocess
import sys


def parse(text):
    """Yields (kernel, architecture, registers, bytes of shared memory, bytes spilled)."""
    name = arch = None
    spilled = 0
    for line in text.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            name, arch = m.groups()
        elif m := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(m.group(1)) + int(m.group(2))
        elif m := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            yield name, arch, int(m.group(1)), int(shared.group(1)) if shared else 0, spilled


def main():
    report, *command = sys.argv[1:]
    done = subprocess.run([*command, "-Xptxas", "-v"], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        return done.returncode
    rows = sorted(parse(done.stderr))
    with open(report, "w", encoding="ascii") as f:
        for name, arch, registers, shared, spilled in rows:
            f.write(f"{name} {arch}: {registers} registers, {shared} bytes of static shared memory, "
                    f"{spilled} bytes spilled\n")
    bad = [row for row in rows if row[4] != 0]
    for name, arch, _, _, spilled in bad:
        sys.stderr.write(f"{name} spills {spilled} bytes of registers on {arch}\n")
    if not rows:
        sys.stderr.write("no kernel was reported:\n" + done.stderr)
    return 1 if bad or not rows else 0


sys.exit(main())
