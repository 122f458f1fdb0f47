#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lines.py N TEXT COMMAND...: the command succeeds and writes N lines of ours to stderr, the first with TEXT in it."""
import subprocess
import sys


def main():
    n, text, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("pagedstash: ")]
    if done.returncode != 0 or len(lines) != n or (n > 0 and text not in lines[0]):
        sys.exit(f"exit status {done.returncode}, stderr:\n{done.stderr}")


if __name__ == "__main__":
    main()
