#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a file as a C array: embed.py NAME INPUT OUTPUT."""

import sys


def main():
    name, source, target = sys.argv[1:]
    with open(source, "rb") as f:
        data = f.read()
    with open(target, "w", encoding="ascii") as f:
        f.write(f"extern const unsigned char {name}[];\n")
        f.write(f"const unsigned char {name}[] __attribute__((aligned(64))) = {{\n")
        for at in range(0, len(data), 32):
            f.write(",".join(str(b) for b in data[at:at + 32]) + ",\n")
        f.write("};\n")


main()
