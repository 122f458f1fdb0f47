#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""emptied.py JOB ARGUMENTS: runs a job unchanged, but for torch.cuda.empty_cache() after each step of its optimizer, as jobs do that
are short of memory."""
import runpy
import sys

import torch

for optimizer in (torch.optim.SGD, torch.optim.AdamW):

    def emptied(self, *args, zero_grad=optimizer.zero_grad, **kwargs):
        zero_grad(self, *args, **kwargs)
        torch.cuda.empty_cache()

    optimizer.zero_grad = emptied
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
