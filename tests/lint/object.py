#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""object.py LIBRARY MAP: the preloaded object needs libc only, exports what the version script names and nothing else,
takes no symbol of a glibc newer than 2.34, keeps thread-local storage small, and cannot be unloaded."""
import fnmatch
import re
import subprocess
import sys

NEWEST_GLIBC = (2, 34)
TLS_BYTES = 256


def readelf(*args):
    return subprocess.run(["readelf", "-W", *args], check=True, capture_output=True, text=True).stdout


def symbols(library):
    """(defined?, name, version) of the dynamic symbols."""
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit() or fields[4] == "LOCAL":
            continue
        name, _, version = fields[7].partition("@")
        if fields[6] == "ABS":
            continue  # the name of a version
        yield fields[6] != "UND", name, version.lstrip("@")


def patterns(path):
    with open(path, encoding="utf-8") as script:
        text = re.sub(r"/\*.*?\*/|#[^\n]*", "", script.read(), flags=re.S)
    shared = re.search(r"global:(.*?)(local:|\})", text, re.S).group(1)
    return [name.strip() for name in shared.split(";") if name.strip()]


def check_symbols(library, version_script):
    wanted = patterns(version_script)
    exported = set()
    for defined, name, version in symbols(library):
        if defined:
            exported.add(name)
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted):
                yield f"exports {name}, which the map does not name"
        match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
        if not defined and match and (int(match[1]), int(match[2])) > NEWEST_GLIBC:
            yield f"takes {name}@{version}"
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in exported):
            yield f"does not export {pattern}, which the map names"


def check_dynamic(library):
    dynamic = readelf("-d", library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) - {"libc.so.6"}
    # The loader itself may be named for thread-local storage; it is always there.
    needed = {name for name in needed if not name.startswith("ld-linux")}
    if needed:
        yield f"needs {', '.join(sorted(needed))}"
    if "(SONAME)" in dynamic:
        yield "has a soname"
    if "NODELETE" not in dynamic:
        yield "can be unloaded: -z nodelete is missing"
    if "BIND_NOW" not in dynamic and "NOW" not in dynamic:
        yield "binds lazily: -z now is missing"
    for line in readelf("-l", library).splitlines():
        fields = line.split()
        if fields and fields[0] == "TLS" and int(fields[5], 16) > TLS_BYTES:
            yield f"has {int(fields[5], 16)} bytes of thread-local storage"


def main():
    library, version_script = sys.argv[1:3]
    found = list(check_symbols(library, version_script)) + list(check_dynamic(library))
    print("\n".join(found))
    return 1 if found else 0


sys.exit(main())
