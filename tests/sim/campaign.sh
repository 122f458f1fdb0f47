#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs N seeds of the scheduler on a small job under the stash, with the checker (campaign_job.c), JOBS processes at a
# time: they sleep more than they compute. Ends with 1 if any seed did not compute what the plain job computes, or anything was said.
#
#   campaign.sh N [FIRST]      BUILD=folder (default: build), JOBS=number (default: 4)
set -eu
n=$1
first=${2:-1}
jobs=${JOBS:-4}
build=$(cd "${BUILD:-build}" && pwd)
job=$build/tests/sim/campaign_job
simcuda=$build/tools/simcuda
options=mem=64M,va=2G,granularity=4K,check=1,hang=30
chunk=50
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

export PAGEDSTASH_MIN_BYTES=16K PAGEDSTASH_PAGE_BYTES=2K PAGEDSTASH_WINDOW_BYTES=512M
export LD_LIBRARY_PATH="$simcuda" SIMCUDA="$options"
export ASAN_OPTIONS="verify_asan_link_order=0:detect_leaks=0"
words=$("$job" print)

# part NUMBER FIRST STEP: every STEP-th chunk from the FIRST on
part()
{
    seed=$2
    while [ "$seed" -lt $((first + n)) ]; do
        count=$chunk
        [ $((seed + count)) -le $((first + n)) ] || count=$((first + n - seed))
        mkdir "$work/m$1"
        # shellcheck disable=SC2086 # a word each
        LD_PRELOAD="$build/shim/libpagedstash.so" PAGEDSTASH_METRICS="$work/m$1" \
            "$job" "$seed" "$count" $words 2>> "$work/said$1" || echo "$seed" >> "$work/failed"
        cat "$work/m$1"/*.jsonl | grep '"summary"' |
            sed -n 's/.*"stashes": *\([0-9]*\).*"restores": *\([0-9]*\).*"cache_hits": *\([0-9]*\).*"plans": *\([0-9]*\).*/\1 \2 \3 \4/p' \
            >> "$work/counts"
        rm -r "$work/m$1"
        seed=$((seed + $3))
    done
}

begin=$(date +%s)
i=0
while [ "$i" -lt "$jobs" ]; do
    : > "$work/said$i"
    part "$i" $((first + i * chunk)) $((jobs * chunk)) &
    i=$((i + 1))
done
wait
seconds=$(($(date +%s) - begin))

cat "$work"/said* >&2
awk -v n="$n" -v first="$first" -v seconds="$seconds" '
    { runs++; stashes += $1; restores += $2; back += $3; idle += $2 == 0; plans += $4 }
    END {
        printf "seeds %d to %d in %d s: %d runs, %d tensors went out, %d came back, %d were taken back, %d runs without a return, %d plans\n",
            first, first + n - 1, seconds, runs, stashes, restores, back, idle, plans
        exit !(runs == n && stashes > n && restores > n / 2 && plans > n / 4)
    }' "$work/counts"
[ ! -s "$work/failed" ] && [ -z "$(cat "$work"/said*)" ]
