#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# quickstart.sh: installs what is missing, builds into ./build, and runs the demo. Arguments go to the demo.
set -eu
cd "$(dirname "$0")/.."

sh tools/build.sh build
echo "== running the demo: build/tools/pagedstash demo $*"
exec build/tools/pagedstash demo "$@"
