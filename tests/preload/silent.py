#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""silent.py OBJECT: a process that never calls CUDA pays nothing: no thread, no output, no file."""
import os
import subprocess
import sys
import tempfile

PROGRAM = """
import os, sys, threading
print(len(os.listdir("/proc/self/task")), sorted(os.listdir("/proc/self/fd")))
"""


def run(env):
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def main():
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        plain = run(env)
        env.update({"LD_PRELOAD": sys.argv[1], "PAGEDSTASH_METRICS": folder,
                    "PAGEDSTASH_LOG_LEVEL": "trace", "PAGEDSTASH_LOG_FILE": folder + "/log.%p",
                    "PAGEDSTASH_NO_SUCH_SETTING": "1"})
        ours = run(env)
        if ours != plain:
            sys.exit(f"with the object: {ours}\nwithout: {plain}")
        if os.listdir(folder):
            sys.exit(f"files appeared: {os.listdir(folder)}")
        del env["PAGEDSTASH_LOG_FILE"]
        if run(env) != plain:
            sys.exit("it writes to standard error")


if __name__ == "__main__":
    main()
