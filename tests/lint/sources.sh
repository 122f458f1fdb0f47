#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sources.sh ROOT PATTERN...: the project's files with such names, one a line, without build folders.
set -eu
cd "$1"
shift
names=
for pattern in "$@"; do
  names="$names${names:+ -o }-name $pattern"
done
set -f
# shellcheck disable=SC2086 # words of find's expression
find . -name 'build*' -prune -o -name '.git' -prune -o -type f \( $names \) -print | sed 's|^\./||' | sort
