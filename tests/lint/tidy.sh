#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tidy.sh ROOT BUILD: clang-tidy 14 and cppcheck on what the build compiles.
set -u
cd "$1" || exit 1
build=$2
tool=
for name in clang-tidy-14 clang-tidy; do
  if command -v "$name" >/dev/null && "$name" --version | grep -q 'version 14\.'; then
    tool=$name
    break
  fi
done
if [ -z "$tool" ] || ! command -v cppcheck >/dev/null; then
  echo "no clang-tidy 14 or no cppcheck here"
  exit 77
fi
files=$(sh tests/lint/sources.sh . '*.c' | while read -r file; do
  # Only what is compiled by itself: some sources are included by others.
  grep -q "/$file\"" "$build/compile_commands.json" && echo "$file"
done)
status=0
# The flags are gcc's; clang-tidy need not know them all. Its counts of what it left out say nothing.
findings=$(mktemp)
trap 'rm -f "$findings"' EXIT
echo "$files" | xargs -d '\n' -n 4 -P 2 "$tool" --quiet -p "$build" \
  --extra-arg=-Wno-unknown-warning-option >"$findings" 2>&1 || status=1
grep -v ' warnings\{0,1\} generated\.$' "$findings"
# comparePointers: ends of an ELF section are two objects to it.
echo "$files" | xargs -d '\n' cppcheck --quiet --suppress=comparePointers --std=c11 --language=c --inline-suppr --error-exitcode=1 -I . \
  --enable=warning,portability --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches || status=1
exit $status
