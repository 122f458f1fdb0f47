#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs into a folder and uses what lies there: install.py BUILD PREFIX. Speaks TAP."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tap


def run(command, *args):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "LD_LIBRARY_PATH")}
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
    done = subprocess.run([command, *args], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{args} ended with {done.returncode}: {done.stdout} {done.stderr}"
    return done.stdout


def check_install(build, folder):
    env = os.environ | {"DESTDIR": folder}
    done = subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet"], env=env,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"meson install ended with {done.returncode}: {done.stdout} {done.stderr}"


def check_places(root):
    for name in ("libpagedstash.so", "pagedstash-demo", "libcuda.so.1"):
        found = [path.relative_to(root).as_posix() for path in root.rglob(name)]
        assert len(found) == 1 and "/pagedstash/" in found[0], f"{name} is at {found}"


def check_run(command):
    probe = run(command, "run", "--", command, "probe")
    assert "preloaded 1" in probe.splitlines(), f"the probe says {probe}"


def check_demo(command):
    result = json.loads(run(command, "demo", "--device=simcuda", "--json", "--steps=2", "--layers=4"))
    assert result["loss_identical"] is True and result["bytes_restored"] > 0, f"{result}"


def main():
    build, prefix = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve() / prefix.lstrip("/")
        command = root / "bin" / "pagedstash"
        tests = [
            ("it_can_be_installed_elsewhere", lambda: check_install(build, folder)),
            ("only_the_command_is_outside_our_own_folder", lambda: check_places(root)),
            ("run_preloads_the_installed_library", lambda: check_run(command)),
            ("the_demo_finds_its_parts", lambda: check_demo(command)),
        ]
        tap.run(tests)


main()
