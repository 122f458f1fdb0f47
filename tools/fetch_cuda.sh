#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fetch_cuda.sh FOLDER: puts NVIDIA's compiler and headers, as published on PyPI, into FOLDER, laid out as a toolkit.
# Needs python3 with pip. Some 110 MB to download, 350 MB unpacked. Does nothing when FOLDER is there.
set -eu

packages='
nvidia-cuda-nvcc==13.0.88
nvidia-nvvm==13.0.88
nvidia-cuda-crt==13.0.88
nvidia-cuda-runtime==13.0.96
nvidia-cuda-cccl==13.0.85
nvidia-nvtx==13.0.85
'

if [ $# -ne 1 ]; then
  echo "usage: fetch_cuda.sh FOLDER" >&2
  exit 2
fi
target=$1
if [ -x "$target/bin/nvcc" ]; then
  exit 0
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "fetch_cuda.sh: python3 has no pip; install python3-pip" >&2
  exit 1
fi

mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$target.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

echo "fetching NVIDIA's compiler and headers (CUDA 13.0, some 110 MB) into $target" >&2
for package in $packages; do
  echo "  $package" >&2
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$work/wheels" "$package"
done
for wheel in "$work"/wheels/*.whl; do
  python3 -m zipfile -e "$wheel" "$work/unpacked"
done
# Wheels hold no file modes as python unpacks them.
find "$work/unpacked/nvidia/cu13/bin" "$work/unpacked/nvidia/cu13/nvvm/bin" -type f \
  -exec chmod +x {} +
rm -rf "$target"
mv "$work/unpacked/nvidia/cu13" "$target"
"$target/bin/nvcc" --version >/dev/null
echo "fetched: $target/bin/nvcc" >&2
