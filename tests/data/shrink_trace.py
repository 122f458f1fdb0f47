#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a recorded trace of jobs/moe12.py small enough to be kept: shrink_trace.py [CAPACITY_ROWS] <TRACE >OUT

Kernel names are cut, ranges that are no region and no step are left out, and so are changes of small allocations by less
than a MiB: nothing that a plan is made of. With CAPACITY_ROWS, the rows that the job's buffers are padded to, `valid`
lines are added where the trace has none: the region's second allocation (ordinal 2) is exactly as long as its rows, all
others of a region are padded and front-packed, so rows / CAPACITY_ROWS of each is valid. That is the job's own count,
no assumption about the routing; a trace with `valid` lines of the stash itself needs none of it.
"""
import sys

EXACT_ORDINAL, ROW_BYTES = 2, 4096
capacity = int(sys.argv[1]) if len(sys.argv) > 1 else 0
out, ranges, region = [], [], {}
small = 0
valid = {}
told = False


def tell(f, group):
    rows = next((b // ROW_BYTES for o, _, b in group if o == EXACT_ORDINAL), None)
    for ordinal, number, size in group:
        part = size if ordinal == EXACT_ORDINAL else size * rows // capacity if rows else size
        valid[number] = part


for line in sys.stdin:
    if line.startswith("#"):
        out.append(line)
        continue
    f = line.rstrip("\n").split("\t")
    event, thread = f[1], f[2]
    told = told or event == "valid"
    if event == "push":
        kept = "experts" in f[6] or f[6].startswith("step")
        ranges.append((thread, kept))
        if "experts" in f[6]:
            region[thread] = []
        if not kept:
            continue
    elif event == "pop":
        at = max(i for i, r in enumerate(ranges) if r[0] == thread)
        kept = ranges.pop(at)[1]
        if thread in region and kept:
            tell(f, region.pop(thread))
        if not kept:
            continue
    elif event == "small":
        if abs(int(f[5]) - small) < 1 << 20:
            continue
        small = int(f[5])
    elif event == "alloc" and thread in region and f[6].startswith("tensor "):
        region[thread].append((int(f[6].split()[1]), f[4], int(f[5])))
    elif event == "launch":
        f[6] = f[6][:16]
    out.append("\t".join(f) + "\n")
    if event == "free" and capacity and not told and f[4] in valid:
        out.append("\t".join([f[0], "valid", thread, "-", f[4], str(valid[f[4]]), "-"]) + "\n")
sys.stdout.writelines(out)
