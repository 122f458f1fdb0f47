#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_cases.sh COMMAND FOLDER SIMCUDA: runs each FOLDER/NAME.sh and compares, speaking TAP. NAME.stdout and NAME.stderr
# are patterns as of the shell's `case`, for the whole output; a missing one means no output. NAME.exit holds the status,
# 0 if it is missing. A case that says "needs: plain" is skipped in sanitizer builds, since it loads the library into
# programs that are not instrumented. In a case: $P is the command, $SIMCUDA_DIR the folder of the software driver.
set -u
P=$(realpath "$1")
cases=$2
SIMCUDA_DIR=$(realpath -m "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in $(env | sed -n 's/^\(PAGEDSTASH_[A-Z_]*\)=.*/\1/p') LD_PRELOAD NVTX_INJECTION64_PATH RANK \
  PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF SLURM_PROCID NO_COLOR; do
  unset "$name"
done
HOME=$work/home
LC_ALL=C
export P SIMCUDA_DIR HOME LC_ALL

set -- "$cases"/*.sh
echo "1..$#"
n=0
for script in "$@"; do
  n=$((n + 1))
  name=$(basename "$script" .sh)
  base=${script%.sh}
  if [ "${PS_SANITIZED:-none}" != none ] && grep -q '^# needs: plain' "$script"; then
    echo "ok $n - $name # SKIP sanitizer build"
    continue
  fi
  rm -rf "${work:?}/home" "${work:?}/cwd"
  mkdir -p "$work/home" "$work/cwd"
  (cd "$work/cwd" && sh "$script" >"$work/stdout" 2>"$work/stderr" </dev/null)
  status=$?
  want=0
  [ ! -f "$base.exit" ] || want=$(cat "$base.exit")
  bad=
  [ "$status" = "$want" ] || bad=" exit status $status instead of $want;"
  for stream in stdout stderr; do
    pattern=
    [ ! -f "$base.$stream" ] || pattern=$(cat "$base.$stream")
    # shellcheck disable=SC2254 # it is a pattern
    case $(cat "$work/$stream") in
      $pattern) ;;
      *) bad="$bad $stream differs;" ;;
    esac
  done
  if [ -z "$bad" ]; then
    echo "ok $n - $name"
  else
    echo "not ok $n - $name:$bad"
    sed 's/^/# stdout: /' "$work/stdout"
    sed 's/^/# stderr: /' "$work/stderr"
  fi
done
