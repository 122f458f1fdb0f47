#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""limits.py ROOT: no C file over 800 lines (flat tables, *.def, aside), no line over 120 columns, no function over 80 lines (unless its first line's
comment says NOLINT with a reason), and every file begins with its licence and says what it is for."""
import pathlib
import re
import sys

FILE_LINES = 800
FUNCTION_LINES = 80
COLUMNS = 120  # clang-format keeps code to 100; comments may run a little over


def functions(lines):
    """(first line, number of lines) of each body that starts with '{' in the first column."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            yield start, number - start + 1
            start = None


def problems(name, lines):
    if len(lines) > FILE_LINES and not name.endswith(".def"):
        yield f"{name}: {len(lines)} lines"
    if not lines or "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
        yield f"{name}:1: no licence line"
    elif len(lines) < 2 or not lines[1].startswith("/*"):
        yield f"{name}:2: no comment that says what the file is for"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            yield f"{name}:{number}: {len(line)} columns"
        if line != line.rstrip() or "\t" in line:
            yield f"{name}:{number}: a tab, or blanks at the end"
    for start, size in functions(lines):
        head = "\n".join(lines[max(0, start - 12):start])
        if size > FUNCTION_LINES and not re.search(r"NOLINT.*:", head):
            yield f"{name}:{start}: function of {size} lines"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    found = []
    n_files = 0
    for folder in ("policy", "kernels", "shim", "tools", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".def"):
                n_files += 1
                name = path.relative_to(root).as_posix()
                found += problems(name, path.read_text(encoding="utf-8").splitlines())
    print("\n".join(found))
    return 1 if found or n_files == 0 else 0


sys.exit(main())
