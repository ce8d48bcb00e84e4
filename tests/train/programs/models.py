# Every model of the zoo, in float32 and under bfloat16 autocast: one gradient, then some training;
# and fifty steps, for what is held after each of them.
#
# SPDX-License-Identifier: MIT
import contextlib

import torch

from . import add, held_bytes, totals
from .zoo import ZOO


def gradient(record, build, bf16, steps_before=0):
    """The gradient of one step, with the weights of the first: later ones differ."""
    model, loss = build()
    for _ in range(steps_before):
        loss().backward()
        model.zero_grad()
    cast = torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext()
    with cast:
        first = loss()
    record.value("loss", first)
    first.backward()
    record.model("model", model)
    # Dropout masks come out of this generator: nobody else may have drawn from it.
    record.digest("random state", torch.get_rng_state())
    buffers = [b for b in model.buffers() if b.dtype.is_floating_point]
    record.digest("buffers", *buffers)


def training(record, build, steps=50):
    """The loss falls, and each step gives back what it held."""
    model, loss = build()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    losses, held, would = [], [], []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
        del value
        held.append(held_bytes())
        would.append(totals().would_bytes if totals() else 0)
    record.check(all(x == x for x in losses), "loss is a number")
    record.check(sum(losses[-10:]) < sum(losses[:10]), f"loss falls: {losses[:3]} {losses[-3:]}")
    record.check(held[1] == held[-1] == min(held), f"held bytes stay: {held}")
    record.check(would[1] == would[-1], f"what PyTorch would hold stays: {would}")


# The default policy tells these by what the process has saved, which begins in the first step: other
# models must not have been there before.
TOLD_BY_SAVES = ("efficientnet_b0", "lora")

for name, (build, tolerance) in ZOO.items():
    alone = name in TOLD_BY_SAVES
    add(f"models.{name}_fp32", lambda record, build=build: gradient(record, build, False), tolerance,
        alone=alone)
    # bfloat16 has 8 bits of mantissa itself.
    add(f"models.{name}_bf16", lambda record, build=build: gradient(record, build, True),
        max(0.012, tolerance), alone=alone)
    add(f"models.{name}_train", lambda record, build=build: training(record, build), tolerance)

for name in TOLD_BY_SAVES:
    build, tolerance = ZOO[name]
    add(f"models.{name}_second_step_fp32",
        lambda record, build=build: gradient(record, build, False, steps_before=1), tolerance,
        alone=True)
