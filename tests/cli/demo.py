#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo on the software driver: demo.py plain|stash COMMAND DEMO SIMCUDA. Speaks TAP.

plain: the job itself is reproducible bit for bit, whatever its padding holds, and its threads are ordered.
stash: `pagedstash demo` finds the same bits under the stash, and less memory.
"""
import json
import os
import subprocess
import sys

CHECKS = "mem=128M,granularity=4K,check=1"
COUNTERS = [
    "valid_bytes_peak", "bytes_stashed", "bytes_restored", "uniform_pages", "kept_resident",
    "unplanned_touches", "remaps", "errors", "padding_bytes", "balanced_bytes", "layer_tail_bytes",
]


def environment(**more):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("PAGEDSTASH_") and k not in ("SIMCUDA", "LD_PRELOAD", "NVTX_INJECTION64_PATH")}
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
    return env | more


def run_job(demo, simcuda, *args):
    """Losses of the steps and the closing object."""
    env = environment(LD_LIBRARY_PATH=simcuda, SIMCUDA=CHECKS)
    done = subprocess.run([demo, "--steps=2", *args], env=env, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f"{args}: ended with {done.returncode}: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line["loss"] for line in lines[:-1]], lines[-1]


def check_plain(demo, simcuda, *args):
    first, first_end = run_job(demo, simcuda)
    losses, end = run_job(demo, simcuda, *args)
    assert len(losses) == 2 and losses == first, f"losses {losses} against {first}"
    assert end["weights"] == first_end["weights"], f"weights {end} against {first_end}"


def check_learns(demo, simcuda):
    losses, _ = run_job(demo, simcuda, "--steps=8", "--layers=3", "--rate=4")
    values = [float.fromhex(loss) for loss in losses]
    assert values[-1] < 0.5 * values[0], f"the loss does not fall: {values}"


def run_command(command, settings, *args):
    done = subprocess.run([command, "demo", "--device=simcuda", "--json", *args],
                          env=environment(**settings), capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise AssertionError(f"ended with {done.returncode}: {done.stdout} {done.stderr}")
    result = json.loads(done.stdout)
    missing = [name for name in COUNTERS if not isinstance(result.get(name), int)]
    assert not missing, f"no {missing} in {result}"
    assert result["loss_identical"] is True, f"results differ: {result}"
    assert "simcuda" in result["device"] and result["errors"] == 0, f"errors: {result}"
    return result


def check_less_memory(command, *args):
    result = run_command(command, {}, *args)
    plain, stash = result["plain"]["peak_bytes"], result["stash"]["peak_bytes"]
    wanted = (result["layers"] - 3) * result["layer_tail_bytes"] // 2
    assert result["bytes_restored"] > 0 and result["uniform_pages"] > 0, f"nothing was paged: {result}"
    assert wanted > 0 and stash <= plain - wanted, f"saved {plain - stash}, wanted {wanted}: {result}"


def check_same(command, settings, *args):
    result = run_command(command, settings, *args)
    assert result["bytes_restored"] > 0, f"nothing was paged: {result}"


def check_exact_sizes(command):
    """Without padding there is nothing to win, and nothing may be lost."""
    run_command(command, {}, "--capacity=0")


def check_no_paging(command, setting, **more):
    """Where nothing can be paged the job goes on as if we were absent."""
    done = subprocess.run([command, "demo", "--device=simcuda", "--json", "--steps=2"],
                          env=environment(**{setting: more["value"]}), capture_output=True, text=True, timeout=900)
    result = json.loads(done.stdout)
    assert result["loss_identical"] is True and not result["bytes_stashed"], f"{result}"


def plain_tests(_, demo, simcuda):
    return [
        ("two_runs_are_equal", lambda: check_plain(demo, simcuda)),
        ("zeros_in_the_padding_change_nothing", lambda: check_plain(demo, simcuda, "--padding=zeros")),
        ("the_capacity_changes_nothing", lambda: check_plain(demo, simcuda, "--capacity=2")),
        ("exact_sizes_change_nothing", lambda: check_plain(demo, simcuda, "--capacity=0")),
        ("a_backward_stream_changes_nothing", lambda: check_plain(demo, simcuda, "--backward-stream=own")),
        ("the_model_learns", lambda: check_learns(demo, simcuda)),
    ]


def stash_tests(command, *_):
    short = "--steps=2"
    return [
        ("same_bits_and_less_memory", lambda: check_less_memory(command)),
        ("same_bits_with_zeroed_padding", lambda: check_less_memory(command, short, "--padding=zeros")),
        ("same_bits_at_capacity_2", lambda: check_same(command, {}, short, "--capacity=2", "--microbatches=4")),
        ("same_bits_with_relu", lambda: check_same(command, {}, short, "--activation=relu")),
        ("same_bits_with_a_backward_stream",
         lambda: check_same(command, {}, short, "--backward-stream=own")),
        ("same_bits_in_another_order",
         lambda: check_same(command, {"SIMCUDA": CHECKS + ",seed=7"}, short)),
        ("same_bits_at_exact_sizes", lambda: check_exact_sizes(command)),
        ("no_virtual_memory_means_no_paging",
         lambda: check_no_paging(command, "SIMCUDA", value=CHECKS + ",vmm=0")),
        ("a_pattern_that_never_matches_means_no_paging",
         lambda: check_no_paging(command, "PAGEDSTASH_REGIONS", value="nothing_is_called_so")),
    ]


def main():
    tests = {"plain": plain_tests, "stash": stash_tests}[sys.argv[1]](*sys.argv[2:])
    print(f"1..{len(tests)}", flush=True)
    for number, (name, test) in enumerate(tests, 1):
        try:
            test()
            print(f"ok {number} - {name}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired, ValueError) as problem:
            print(f"not ok {number} - {name}", flush=True)
            for line in str(problem).splitlines():
                print(f"# {line}", flush=True)


main()
