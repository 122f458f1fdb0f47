#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a PyTorch script, unchanged, but lets it on the GPU only in its turn: `turn.py LOCK SCRIPT [arguments]`.

Where the script first moves a module, before it has a context on the device, LOCK.ready is made and the lock waited
for. Whoever started the script holds the lock (flock) until the turn comes, and has then written something into the
file: if it is still empty, its holder has died, and the script ends. So jobs that must not be on the GPU side by side
can still make their parameters side by side.
"""
import fcntl
import runpy
import sys

import torch

lock, sys.argv = sys.argv[1], sys.argv[2:]
to = torch.nn.Module.to


def in_turn(self, *args, **kwargs):
    torch.nn.Module.to = to
    with open(lock) as f:
        open(lock + ".ready", "w").close()
        fcntl.flock(f, fcntl.LOCK_EX)
        if not f.read():
            sys.exit(f"turn.py: {lock} was let go, but not for us")
    return to(self, *args, **kwargs)


torch.nn.Module.to = in_turn
runpy.run_path(sys.argv[0], run_name="__main__")
