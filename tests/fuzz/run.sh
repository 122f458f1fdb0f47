#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh TARGET SECONDS [BUILD]: a libFuzzer campaign on one target (options, regions, environment, calls), beginning
# with its corpus. BUILD (default: build-fuzz) is set up with clang when it is not there. New inputs go to BUILD/found,
# failures to BUILD/crash-*, which entries of hooks.def were called to BUILD/wrappers.
set -eu
target=$1
seconds=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${3:-$root/build-fuzz}

if [ ! -e "$build/build.ninja" ]; then
  CC=clang meson setup "$build" "$root" -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false \
    "-Dc_args=-fsanitize=fuzzer-no-link -fsanitize-coverage-ignorelist=$root/tests/fuzz/uncounted.txt -O1"
fi
ninja -C "$build" -j "${JOBS:-2}" "tests/fuzz/fuzz_$target" shim/libpagedstash.so >&2
mkdir -p "$build/found/$target"
cd "$build"
export FUZZ_COVERAGE="$build/wrappers"
# The driver in software handles the faults of its own pages.
export ASAN_OPTIONS=detect_leaks=0:handle_segv=0:allow_user_segv_handler=1:verify_asan_link_order=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
exec "tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=60 -handle_segv=0 -rss_limit_mb=0 -max_len=2048 \
  -print_final_stats=1 -entropic=0 -detect_leaks=0 "found/$target" "$root/tests/fuzz/corpus/$target"
