# Trains one model of the zoo in this process, one command a line from standard input, one JSON object
# a line as the answer. The driver runs one worker plainly and one with libmesa loaded, and steps them
# in turns, so that what disturbs the machine disturbs both.
#
#   step           one training step: {"seconds", "loss"}
#   gradient FILE  the gradients of the last step as one vector of float32, saved as .npy: {"norm"}
#   memory         peak of resident memory since the first step, above what it was before:
#                  {"peak_bytes"}, and libmesa's totals where it is loaded
#
# SPDX-License-Identifier: MIT
import argparse
import contextlib
import ctypes
import json
import sys
import time

import numpy
import torch

import saves
import zoo
from totals import mesa_totals

THREADS = 2


def status_bytes(field):
    """A line of /proc/self/status: VmRSS, or VmHWM, its peak."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return 1024 * int(line.split()[1])
    raise KeyError(field)


class Training:
    """One model with its optimizer, and the measurements around its steps."""

    def __init__(self, options):
        torch.manual_seed(0)
        build = zoo.ZOO[options.model]
        self.warm_up(build, options)
        torch.manual_seed(0)
        self.model, self.forward = build(options.batch)
        self.model.train()
        if options.checkpoint:
            self.model.set_grad_checkpointing(True)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-3)
        self.precision = precision(options)
        # Resetting the peak (proc(5), clear_refs) makes it start from what is resident now.
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
        self.base_bytes = status_bytes("VmRSS")
        torch.manual_seed(1)

    @staticmethod
    def warm_up(build, options):
        """One step of one sample loads what a first step loads, which is no activation."""
        model, forward = build(1 if options.model != "relu_net" else 2)
        model.train()
        with precision(options)():
            loss = forward()
        loss.backward()

    def step(self):
        started = time.perf_counter()
        self.optimizer.zero_grad()
        with self.precision():
            loss = self.forward()
        loss.backward()
        self.gradient_ready = [p.grad for p in self.parameters]
        self.optimizer.step()
        return {"seconds": time.perf_counter() - started, "loss": loss.item()}

    def gradient(self, path):
        vector = torch.cat([g.float().flatten() for g in self.gradient_ready if g is not None])
        numpy.save(path, vector.numpy())
        return {"norm": vector.norm().item()}

    def memory(self):
        return {"peak_bytes": status_bytes("VmHWM") - self.base_bytes, **mesa_totals()}


def precision(options):
    """The context of a forward pass."""
    if options.bf16:
        return lambda: torch.autocast("cpu", torch.bfloat16)
    return contextlib.nullcontext


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=[*zoo.ZOO, *saves.CHAINS])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    elements = saves.CHAINS.get(options.model)
    job = saves.Chain(elements) if elements else Training(options)
    answer = {"ready": True}
    while True:
        print(json.dumps(answer), flush=True)
        words = sys.stdin.readline().split()
        if not words:
            return
        answer = getattr(job, words[0])(*words[1:])


if __name__ == "__main__":
    main()
