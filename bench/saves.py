# What one saved tensor costs, without the rest of a training step: a long chain of one cheap operator
# on small tensors, of which each result is saved once.
#
# SPDX-License-Identifier: MIT
import time

import torch

from totals import mesa_totals

OPERATORS = 1000

# Elements of float32. tanh shrinks slowly enough to keep values ordinary over the whole chain.
CHAINS = {
    "saves_not_taken": 256,  # 1 KiB: below MESA_MIN_BYTES
    "saves_4_kib": 1024,
}


class Chain:
    """A job for the worker whose step is a forward pass of OPERATORS saves."""

    def __init__(self, elements):
        torch.set_num_threads(1)
        # libmesa wakes at the first input that is saved, which any training has.
        torch.ones(1 << 16, requires_grad=True).square().sum().backward()
        self.input = torch.linspace(-1, 1, elements).requires_grad_()

    def step(self):
        y, started = self.input, time.perf_counter()
        for _ in range(OPERATORS):
            y = y.tanh()
        return {"seconds": (time.perf_counter() - started) / OPERATORS}

    def memory(self):
        return mesa_totals()
