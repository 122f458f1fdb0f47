#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme_options.py README COMMAND: the README's table holds every setting with its flag and default, and no other."""
import json
import os
import re
import subprocess
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as readme:
        rows = dict(re.findall(r"^\| `(PAGEDSTASH_\w+)` \| (.*)$", readme.read(), re.M))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PAGEDSTASH_")}
    clean["HOME"] = "/nonexistent"
    out = subprocess.run([sys.argv[2], "config", "--json"], check=True, capture_output=True, env=clean)
    found = []
    settings = json.loads(out.stdout)["settings"]
    for name, setting in settings.items():
        row = rows.pop(name, None)
        flag = "--" + name[len("PAGEDSTASH_"):].lower().replace("_", "-")
        if row is None:
            found.append(f"{name} is not in the README")
        elif f"| `{flag}` |"[2:] not in row:
            found.append(f"{name}: the README does not name {flag}")
        elif setting["default"] and f"`{setting['default']}`" not in row:
            found.append(f"{name}: the README does not give the default {setting['default']}")
    found += [f"{name} is in the README only" for name in rows]
    print("\n".join(found))
    return 1 if found else 0


sys.exit(main())
