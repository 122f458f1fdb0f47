#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# planted.sh [FOLDER]: does the call-sequence fuzzer find faults? Copies the tree's last commit to FOLDER, plants each
# fault of planted/*.sed in it alone, and lets the fuzzer run until it reports something, at most ten minutes. It
# begins with random inputs of its own, so that no corpus gives the fault away. First a control without a fault.
# A fault is a file of a first line '# PATH: what is broken' and sed commands that must change something.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${1:-$(mktemp -d)}
limit=${LIMIT:-600}

rm -rf "$work/tree" "$work/build"
mkdir -p "$work/tree"
git -C "$root" archive HEAD | tar x -m -C "$work/tree"
CC=clang meson setup "$work/build" "$work/tree" -Dfuzz=true -Db_lundef=false \
  "-Dc_args=-fsanitize=fuzzer-no-link -fsanitize-coverage-ignorelist=$here/uncounted.txt -O1" >"$work/setup.log"

python3 - "$work/start" <<'P'
import os, random, sys
os.makedirs(sys.argv[1], exist_ok=True)
for i in range(64):
    r = random.Random(1000 + i)
    with open(f"{sys.argv[1]}/{i:02}", "wb") as f:
        f.write(r.randbytes(r.choice([60, 200, 600])))
P

# run NAME SECONDS: prints how it ended. 0 when something was found.
run() {
  ninja -C "$work/build" -j "${JOBS:-2}" tests/fuzz/fuzz_calls shim/libpagedstash.so >"$work/build.log" || return 2
  rm -rf "$work/found"
  mkdir -p "$work/found"
  start=$(date +%s)
  code=0
  (cd "$work/found" && "$work/build/tests/fuzz/fuzz_calls" -handle_segv=0 -rss_limit_mb=0 -max_len=1024 -timeout=60 \
    -entropic=0 -detect_leaks=0 -seed=1 -max_total_time="$2" -print_final_stats=1 . "$work/start") >"$work/$1.log" 2>&1 ||
    code=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$1.log")
  said=$(grep -a -m1 -E 'simcuda: check: |not so|ERROR' "$work/$1.log" | cut -c1-110 || true)
  echo "$1: $([ "$code" = 0 ] && echo clean || echo found) after $(($(date +%s) - start)) s, $runs inputs. $said"
  [ "$code" != 0 ]
}

status=0
if run control "${CONTROL:-120}"; then
  status=1
fi
for fault in "$here"/planted/*.sed; do
  path=$(sed -n '1s/^# \([^:]*\):.*/\1/p' "$fault")
  cp "$work/tree/$path" "$work/whole"
  sed -f "$fault" "$work/whole" >"$work/tree/$path"
  if cmp -s "$work/whole" "$work/tree/$path"; then
    echo "$(basename "$fault" .sed): changes nothing"
    status=1
  else
    run "$(basename "$fault" .sed)" "$limit" || status=1
  fi
  cp "$work/whole" "$work/tree/$path"
done
exit $status
