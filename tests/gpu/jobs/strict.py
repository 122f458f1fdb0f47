#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a PyTorch script, unchanged, so that its --deterministic holds: `strict.py SCRIPT [arguments]`.

With warn_only=True PyTorch 2.11 keeps the non-deterministic backward of its attention kernels (it warns so), and two
plain runs of such a script differ in their last bits. Here warn_only is taken for False.
"""
import runpy
import sys

import torch

strict = torch.use_deterministic_algorithms
torch.use_deterministic_algorithms = lambda mode, *, warn_only=False: strict(mode)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
