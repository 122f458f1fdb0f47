#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# shell.sh ROOT: shellcheck on every script. The cases of tests/cli are given their variables by the runner.
set -u
cd "$1" || exit 1
sh tests/lint/sources.sh . '*.sh' | grep -v '^tests/cli/cases/' | xargs -d '\n' shellcheck &&
  shellcheck .ci/run
