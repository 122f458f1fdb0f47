# SPDX-License-Identifier: Apache-2.0
"""An example: a runner like Megatron-LM's, which runs a step again when its dispatchers had to drop rows.

A job whose expert buffers are padded to a capacity drops rows when routing is more skewed than that. Its dispatcher has
the rows that were to be delivered in a counter on the device; where the job's expert ranges name it,

    torch.cuda.nvtx.range_push(f"layer {i} experts;need={counter.data_ptr():#x};capacity={rows};balanced={balanced}")

the library reads it without a synchronisation, and `pagedstash.status()` tells. That the *stash* overflows, the other
reason for Megatron-LM's rerun, does not happen here: no step is run again for want of pages.

On the good path a step costs one collective of two numbers, since all ranks have to agree; a dropped step is run once
more, with its gradients cleared and without the capacity. Evaluation has no gradients to clear. Everything that
belongs to a framework is handed in, so that the class needs none; `for_torch` hands in PyTorch's.
"""
import contextlib

import pagedstash


class Runner:
    """Runs steps: `runner(batches)` gives what `forward_backward(batches, training)` gives, rows dropped nowhere.

    synchronize()          returns when the device has done the step's work
    all_reduce_max(list)   the maximum of each number over all ranks
    clear_gradients()      undoes what a backward has accumulated
    without_capacity()     a context in which dispatchers take any number of rows (slower: they wait for the count)
    """

    def __init__(self, forward_backward, *, synchronize, all_reduce_max, clear_gradients,
                 without_capacity=contextlib.nullcontext):
        self.forward_backward = forward_backward
        self.synchronize = synchronize
        self.all_reduce_max = all_reduce_max
        self.clear_gradients = clear_gradients
        self.without_capacity = without_capacity
        self.n_reruns = 0

    def _dropped(self):
        """Over all ranks: were rows dropped in the step that has just been run, and the factor it would have taken."""
        self.synchronize()
        pagedstash.step()
        told = pagedstash.status()
        mine = [0, 0] if told is None else [told.over_budget, told.factor_needed]
        over, factor = self.all_reduce_max(mine)
        return over > 0, factor / 100

    def __call__(self, batches, training=True):
        batches = list(batches)  # a rerun needs them again
        result = self.forward_backward(batches, training)
        dropped, factor = self._dropped()
        if not dropped:
            return result
        self.n_reruns += 1
        told = f": a capacity factor of {factor:.2f} would do" if factor else ""
        print(f"rows were dropped, the step is run again without a capacity{told}", flush=True)
        if training:
            self.clear_gradients()
        with self.without_capacity():
            result = self.forward_backward(batches, training)
        pagedstash.step()
        return result


def for_torch(model, forward_backward, without_capacity=contextlib.nullcontext):
    """A Runner for a PyTorch model, over the default process group if there is one."""
    import torch
    import torch.distributed as dist

    def all_reduce_max(numbers):
        if not dist.is_initialized():
            return numbers
        on_device = torch.tensor(numbers, dtype=torch.int64, device="cuda")
        dist.all_reduce(on_device, op=dist.ReduceOp.MAX)
        return on_device.tolist()

    def run(batches, training):
        with contextlib.nullcontext() if training else torch.no_grad():
            return forward_backward(batches, training)

    return Runner(run, synchronize=torch.cuda.synchronize, all_reduce_max=all_reduce_max,
                  clear_gradients=lambda: model.zero_grad(set_to_none=True), without_capacity=without_capacity)
