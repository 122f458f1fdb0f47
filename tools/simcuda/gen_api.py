#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what simcuda derives from cuda.h: per-thread-default-stream variants of the functions that the given sources
define, a CUDA_ERROR_NOT_SUPPORTED body for every other function, the table behind cuGetProcAddress, and the names
of results.

usage: gen_api.py CC CUDA_INCLUDE OUTPUT SOURCE..."""
import os
import re
import subprocess
import sys

PROTOTYPE = re.compile(r"\bCUresult\s+(?:__attribute__\s*\(\([^)]*\)\)\s*)?(cu[A-Za-z0-9_]+)\s*\(([^;{}]*)\)\s*;")
TYPEDEF = re.compile(r"typedef\s+CUresult\s*\(\s*\*\s*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\s*\)\s*\(")
DEFINITION = re.compile(r"^CUresult CUDAAPI (cu\w+)\(", re.M)
SUFFIX = re.compile(r"^(cu\w+?)(_v\d+)?(_ptsz|_ptds)?$")
# A result that is no error by name, or one that two names share: the first stands.
ENUMERATOR = re.compile(r"^\s*(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+)", re.M)


def preprocess(compiler, include):
    text = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <cudaTypedefs.h>\n"
    out = subprocess.run([*compiler.split(), "-E", "-P", "-x", "c", "-isystem", include, "-"], input=text,
                         stdout=subprocess.PIPE, check=True, universal_newlines=True)
    return out.stdout


def split_parameters(text):
    text = " ".join(text.split())
    if text in ("", "void"):
        return []
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += c in "(["
        depth -= c in ")]"
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return parts + [text[start:].strip()]


def parameter_name(text):
    return re.search(r"(\w+)\s*(\[\w*\])?$", text).group(1)


def version_rank(suffix):
    return int(suffix[2:]) if suffix else 1


def exports_by_name(functions):
    """(base name, variant) -> exports in the order of their versions."""
    table = {}
    for function in functions:
        base, version, variant = SUFFIX.match(function).groups()
        table.setdefault((base, bool(variant)), []).append((version_rank(version), function))
    return {key: [f for _, f in sorted(rows)] for key, rows in table.items()}


def typed_versions(text):
    table = {}
    for name, version, variant in TYPEDEF.findall(text):
        table.setdefault((name, bool(variant)), set()).add(int(version))
    return {key: sorted(versions) for key, versions in table.items()}


def lookup_rows(functions, versions):
    rows = []
    exports = exports_by_name(functions)
    for (name, ptds), known in sorted(versions.items()):
        have = exports.get((name, ptds), [])
        for i, version in enumerate(known):
            # The newest exports belong to the newest versions; older forms may have lost theirs.
            at = i - (len(known) - len(have))
            if at >= 0:
                rows.append((name, version, ptds, have[at]))
    return rows


def interop_rows(include):
    """(name, version, variant suffix, export) of functions that the runtime looks up and cuda.h does not have: their
    headers want OpenGL's and others', so only their typedefs are read, as text."""
    rows = []
    for part in ("GL", "EGL", "VDPAU", "Profiler"):
        path = os.path.join(include, "cuda%sTypedefs.h" % part)
        if not os.path.exists(path):
            continue
        with open(path) as f:
            table = {}
            for name, version, variant in TYPEDEF.findall(f.read().replace("CUDAAPI", "")):
                table.setdefault(name, {}).setdefault(variant, []).append(int(version))
        for name, variants in sorted(table.items()):
            plain = sorted(variants.get("", []))
            exports = [name if i == 0 else "%s_v%d" % (name, i + 1) for i in range(len(plain))]
            rows += [(name, version, "", export) for version, export in zip(plain, exports)]
            for variant in sorted(set(variants) - {""}):
                rows.append((name, max(variants[variant]), variant, exports[-1] + variant))
    return rows


def main():
    compiler, include, output = sys.argv[1:4]
    header = preprocess(compiler, include)
    functions = {name: split_parameters(args) for name, args in PROTOTYPE.findall(header)}
    defined = set()
    for path in sys.argv[4:]:
        with open(path) as f:
            defined.update(DEFINITION.findall(f.read()))
    unknown = defined - set(functions)
    if unknown:
        sys.exit("gen_api.py: not in cuda.h: " + " ".join(sorted(unknown)))

    lines = ["/* Made by gen_api.py. */", '#include "tools/simcuda/core.h"', ""]
    for name in sorted(set(functions) - defined):
        parameters = functions[name]
        base, version, variant = SUFFIX.match(name).groups()
        plain = base + (version or "")
        lines.append("CUresult CUDAAPI %s(%s)" % (name, ", ".join(parameters) or "void"))
        lines.append("{")
        if variant and plain in defined:
            names = ", ".join(parameter_name(p) for p in parameters)
            lines += ["    sim_in_ptds = true;", "    const CUresult result = %s(%s);" % (plain, names),
                      "    sim_in_ptds = false;", "    return result;"]
        else:
            lines += ["    (void)%s;" % parameter_name(p) for p in parameters]
            lines += ["    SIM_ENTER(SIM_ANYTIME, t);", "    return sim_leave(CUDA_ERROR_NOT_SUPPORTED);"]
        lines += ["}", ""]
    interop = interop_rows(include)
    for export in sorted({row[3] for row in interop}):
        # Nothing can profile: to start and to stop it is no error.
        result = "CUDA_SUCCESS" if re.match("cuProfilerSt", export) else "CUDA_ERROR_NOT_SUPPORTED"
        lines += ["SIM_API CUresult CUDAAPI %s(void);" % export, "CUresult CUDAAPI %s(void)" % export, "{",
                  "    SIM_ENTER(SIM_ANYTIME, t);", "    return sim_leave(%s);" % result, "}", ""]
    lines.append("const struct sim_api_row sim_api_rows[] = {")
    rows = lookup_rows(functions, typed_versions(header))
    rows += [(name, version, variant != "", export) for name, version, variant, export in interop]
    for name, version, ptds, export in rows:
        lines.append('    {"%s", %d, %s, (void (*)(void))%s},' % (name, version, "true" if ptds else "false", export))
    lines += ["};", "const size_t sim_api_n_rows = sizeof sim_api_rows / sizeof sim_api_rows[0];", ""]
    lines.append("const struct sim_error_row sim_error_rows[] = {")
    seen = set()
    for name, value in ENUMERATOR.findall(header):
        if value not in seen:
            seen.add(value)
            lines.append('    {%s, "%s"},' % (value, name))
    lines += ["};", "const size_t sim_error_n_rows = sizeof sim_error_rows / sizeof sim_error_rows[0];", ""]
    with open(output, "w") as f:
        f.write("\n".join(lines))


main()
