#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# spelling.sh ROOT: codespell on every text file of the tree.
set -u
cd "$1" || exit 1
sh tests/lint/sources.sh . '*.c' '*.h' '*.cu' '*.def' '*.sh' '*.py' '*.md' '*.build' '*.txt' |
  xargs -d '\n' codespell --ignore-words tests/lint/words.txt
