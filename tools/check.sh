#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh [--all|--stage NAME]: installs what is missing, builds, and runs the tests. The last line counts them.
# --all adds the further stages: asan, tsan, clang, release, valgrind, tidy. The command line's tests and the campaigns of
# many processes run in the first stage only; under sanitizers there are half as many schedules, and under the thread
# sanitizer neither failing calls (near their own time limits) nor what has one thread.
set -u
cd "$(dirname "$0")/.." || exit 1
n_passed=0
n_failed=0
counts=$(mktemp)
complaints=$(mktemp)
trap 'rm -f "$counts" "$complaints"' EXIT

# Adds up what `meson test` logged: the subtests of a TAP test, or the test itself.
count() {
  python3 tools/count_tests.py "$1" >"$counts"
  read -r passed failed <"$counts"
  sed "1d; s/^/$2: /" "$counts" >>"$complaints"
  n_passed=$((n_passed + passed))
  n_failed=$((n_failed + failed))
  echo "== $2: $passed passed, $failed failed"
}

# stage NAME FOLDER "MESON ARGUMENTS" [TEST ARGUMENT...]
stage() {
  name=$1
  folder=$2
  args=$3
  shift 3
  echo "== stage $name"
  # shellcheck disable=SC2086 # several arguments
  if ! sh tools/build.sh $packages "$folder" $args; then
    echo "== $name: does not build"
    n_failed=$((n_failed + 1))
    return
  fi
  rm -f "$folder"/meson-logs/testlog*.json
  meson test -C "$folder" --no-rebuild --print-errorlogs "$@"
  status=$?
  count "$folder/meson-logs" "$name"
  if [ "$status" != 0 ] && [ "$failed" = 0 ]; then
    echo "== $name: the test run failed ($status)"
    n_failed=$((n_failed + 1))
  fi
}

run_stage() {
  case $1 in
    default) stage default build "" --no-suite slow ;;
    asan)
      stage asan build-asan \
        "-Db_sanitize=address,undefined -Db_lundef=false -Dexpensive-checks=true" \
        --setup sanitized --no-suite slow --no-suite lint --no-suite campaign --no-suite cli --no-suite coverage
      ;;
    tsan)
      stage tsan build-tsan "-Db_sanitize=thread -Db_lundef=false" \
        --setup sanitized --no-suite slow --no-suite lint --no-suite campaign --no-suite cli --no-suite coverage \
        --no-suite faults --no-suite single
      ;;
    clang) CC=clang stage clang build-clang "-Dwerror=true" --suite unit --suite preload --suite tapes --suite fuzz ;;
    release)
      stage release build-release "-Dbuildtype=release -Dwerror=true" \
        --no-suite slow --no-suite lint --no-suite cli --no-suite campaign --no-suite faults --no-suite coverage
      ;;
    valgrind) stage valgrind build "" --setup valgrind --suite unit ;;
    tidy) stage tidy build "" --suite slow ;;
    *)
      echo "check.sh: no stage '$1'" >&2
      exit 2
      ;;
  esac
}

packages=--tests
case ${1:-} in
  "") run_stage default ;;
  --all)
    packages='--tests --all'
    for name in default asan tsan clang release valgrind tidy; do
      run_stage "$name"
    done
    ;;
  --stage)
    packages='--tests --all'
    run_stage "${2:?check.sh: --stage needs a name}"
    ;;
  *)
    echo "usage: check.sh [--all|--stage NAME]" >&2
    exit 2
    ;;
esac

cat "$complaints"
echo "$n_passed passed, $n_failed failed"
[ "$n_failed" = 0 ]
