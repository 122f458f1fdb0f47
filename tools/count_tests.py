#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what meson logged: count_tests.py LOG_FOLDER prints "PASSED FAILED", then a line for each test that failed. A
test that speaks TAP counts with its subtests; one that failed without a failed subtest counts as one failure. Skipped
tests count as neither."""
import glob
import json
import re
import sys


def subtests(text):
    """(passed, failed) of TAP output, or None if it has no plan."""
    if not re.search(r"^1\.\.\d+", text, re.M):
        return None
    passed = failed = 0
    for line in text.splitlines():
        match = re.match(r"(not )?ok\b(?!.*#\s*SKIP)", line, re.I)
        if match and match.group(1):
            failed += 1
        elif match:
            passed += 1
    return passed, failed


def complaints(test):
    """What a failed test says of its failed subtests, or how it ended."""
    lines = [line for line in test.get("stdout", "").splitlines() if re.match(r"not ok\b|.*:[FE]:", line)]
    return lines or [f"{test['result']} ({test.get('returncode')})"]


def main():
    passed = failed = 0
    names = []
    for path in glob.glob(sys.argv[1] + "/testlog*.json"):
        with open(path, encoding="utf-8", errors="replace") as log:
            for line in log:
                test = json.loads(line)
                good = test["result"] in ("OK", "EXPECTEDFAIL")
                if test["result"] == "SKIP":
                    continue
                if not good:
                    names += [f"{test['name']}: {what}" for what in complaints(test)]
                counts = subtests(test.get("stdout", "")) or (1 if good else 0, 0)
                passed += counts[0]
                failed += counts[1] if counts[1] or good else 1
    print(passed, failed)
    print("".join(name + "\n" for name in names), end="")


main()
