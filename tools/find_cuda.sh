#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the CUDA toolkit to build with: one that has nvcc, cuda.h and the NVTX headers.
# find_cuda.sh BUILD_DIR [GIVEN]   GIVEN (from -Dcuda-home) is taken alone when it is not empty.
# PS_HIDE_TOOLKIT=1 leaves installed toolkits out, so that only a fetched one counts.
set -u
build=$1
given=${2:-}

is_toolkit() {
  [ -x "$1/bin/nvcc" ] && [ -f "$1/include/cuda.h" ] && [ -f "$1/include/nvtx3/nvToolsExt.h" ]
}

if [ -n "$given" ]; then
  if is_toolkit "$given"; then
    printf '%s\n' "$given"
    exit 0
  fi
  echo "no bin/nvcc, include/cuda.h and include/nvtx3 under cuda-home '$given'" >&2
  exit 1
fi
if [ "${PS_HIDE_TOOLKIT:-0}" != 1 ]; then
  for home in "${CUDA_HOME:-}" /usr/local/cuda; do
    if [ -n "$home" ] && is_toolkit "$home"; then
      printf '%s\n' "$home"
      exit 0
    fi
  done
fi
if is_toolkit "$build/toolkit"; then
  printf '%s\n' "$build/toolkit"
  exit 0
fi
echo "no CUDA toolkit found: set CUDA_HOME, or run tools/fetch_cuda.sh $build/toolkit" >&2
exit 1
