#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build.sh [--tests] [--all] FOLDER [MESON ARGUMENT...]: installs what is missing (Debian and Ubuntu, by apt), finds or
# fetches a CUDA toolkit, and builds into FOLDER. --tests: what the tests need too; --all: and what the further stages of
# check.sh need. Used by quickstart.sh and check.sh.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

commands='gcc:gcc g++:g++ meson:meson ninja:ninja-build pkg-config:pkg-config python3:python3'
files='/usr/include/uthash.h:uthash-dev /usr/include/json-c/json.h:libjson-c-dev'
while :; do
  case ${1:-} in
    --tests)
      commands="$commands readelf:binutils clang-format:clang-format codespell:codespell
        shellcheck:shellcheck"
      files="$files /usr/include/check.h:check"
      ;;
    --all)
      commands="$commands clang:clang clang-tidy:clang-tidy cppcheck:cppcheck valgrind:valgrind"
      files="$files /usr/share/doc/libclang-rt-14-dev:libclang-rt-14-dev"
      ;;
    *) break ;;
  esac
  shift
done
if [ $# -lt 1 ]; then
  echo "usage: build.sh [--tests] [--all] FOLDER [MESON ARGUMENT...]" >&2
  exit 2
fi
folder=$1
shift

say() {
  printf '== %s\n' "$*"
}

# Prints the packages whose command or file is not there.
missing_packages() {
  for pair in $commands; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || printf ' %s' "${pair#*:}"
  done
  for pair in $files; do
    [ -e "${pair%%:*}" ] || printf ' %s' "${pair#*:}"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

install_packages() {
  [ $# -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing: $* (Debian's names); install them, then run this again" >&2
    return 1
  fi
  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
    echo "missing: $*; as root: apt-get install $*" >&2
    return 1
  fi
  say "installing $*"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" \
    >/dev/null
}

# shellcheck disable=SC2046 # one word a package
install_packages $(missing_packages)

mkdir -p "$folder"
if ! home=$("$root/tools/find_cuda.sh" "$(cd "$folder" && pwd)" "${PS_CUDA_HOME:-}" 2>/dev/null); then
  python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip
  # One copy serves all build folders of this tree.
  home=$root/build/toolkit
  "$root/tools/fetch_cuda.sh" "$home"
fi
say "CUDA toolkit: $home"

if [ -f "$folder/build.ninja" ]; then
  meson configure "$folder" "-Dcuda-home=$home" "$@"
else
  say "setting up $folder"
  meson setup "$folder" "$root" "-Dcuda-home=$home" "$@" >"$folder/setup.log" 2>&1 || {
    cat "$folder/setup.log" >&2
    exit 1
  }
fi
say "building"
exec ninja -C "$folder"
