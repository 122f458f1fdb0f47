# SPDX-License-Identifier: Apache-2.0
"""What the Python tests of this folder share: they say what they found in TAP."""
import subprocess


def run(tests):
    """tests: (name, function). One that raises has failed, and what it raised is told. Returns how many have."""
    n_failed = 0
    print(f"1..{len(tests)}", flush=True)
    for number, (name, test) in enumerate(tests, 1):
        try:
            test()
            print(f"ok {number} - {name}", flush=True)
        except (AssertionError, OSError, subprocess.TimeoutExpired, ValueError, KeyError) as problem:
            n_failed += 1
            print(f"not ok {number} - {name}", flush=True)
            for line in (str(problem) or repr(problem)).splitlines():
                print(f"# {line}", flush=True)
    return n_failed
