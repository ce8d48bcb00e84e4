# How long something is held: exactly as long as plain PyTorch holds it, and no step keeps more
# than the one before.
#
# SPDX-License-Identifier: MIT
import gc
import weakref

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import held_bytes, map_large_blocks, program, resident_bytes, totals

MIB = 1 << 20


def would_bytes():
    got = totals()
    return got.would_bytes if got else 0


@program()
def released_when_plain_releases(record):
    """After backward, with the last reference to a graph, with a part of it; not before."""
    x = torch.randn(256, 256, requires_grad=True)
    start = held_bytes()

    def graph():
        return F.layer_norm(F.gelu((x * 1.0) @ torch.ones(256, 256)), (256,)).softmax(-1)

    graph()  # of the first saves, arguments may not be told apart
    y = graph()
    held = held_bytes() - start
    record.check(totals() is None or would_bytes() > 0, "something is saved")
    y.sum().backward()
    record.check(held_bytes() == start, "nothing is held after backward")
    y = graph()
    record.check(held_bytes() - start == held, "the same is held again")
    y.sum().backward(retain_graph=True)
    record.check(held_bytes() - start == held, "retain_graph keeps all of it")
    del y
    record.check(held_bytes() == start, "nothing is held when the graph is gone")
    y, z = graph(), graph()
    del y
    record.check(held_bytes() - start == held, "one graph of two is left")
    cycle = [z]
    cycle.append(cycle)
    del z, cycle
    gc.collect()
    record.check(held_bytes() == start, "the collector has found the rest")
    with torch.no_grad():
        graph()
    record.check(held_bytes() == start, "nothing is saved without gradients")
    record.gradient("gradient", x.grad)


@program()
def a_comparison_takes_two_bits(record):
    """Of maximum's two inputs nothing stays but how they compare, unless only one can be taken."""
    p = torch.randn(2, 512, 256, requires_grad=True)
    limit = nn.Parameter(torch.randn(512, 256))
    for known in (False, False, True):  # the first saves may not be taken, or not told apart
        start = held_bytes()
        x, y = (p * 1.0).unbind()
        z = torch.maximum(x + 1.0, y * 1.0)
        record.check(totals() is None or not known or held_bytes() - start == p.numel() // 2 // 4,
                     f"{held_bytes() - start} bytes are held of two tensors")
        z.sum().backward()
        record.check(held_bytes() == start, "nothing is held after backward")
    z = torch.minimum(p[0] * 1.0, limit)
    record.check(totals() is None or held_bytes() - start <= limit.nbytes, "held in the usual way")
    z.sum().backward()
    record.gradient("gradient", p.grad)
    record.gradient("limit", limit.grad)


@program()
def originals_die_as_in_plain(record):
    """A tensor that plain PyTorch keeps alive as saved may die earlier, never later."""
    x = torch.randn(256, 256, requires_grad=True)
    alive = []
    for f in (torch.exp, F.gelu, lambda t: t.softmax(-1), F.relu, lambda t: t * t):
        h = x * 1.0
        y = f(h)
        watch = weakref.ref(h)
        del h
        y.sum().backward()
        del y
        alive.append(watch() is not None)
    record.fact("alive after backward", alive)
    storage = (x * 1.0).untyped_storage()
    record.fact("storage", storage.nbytes())
    record.gradient("gradient", x.grad)


@program()
def graphs_are_dropped(record):
    """Evaluation without no_grad, an early break: memory of the process does not grow."""
    map_large_blocks()
    linear = nn.Linear(512, 1024)
    sizes = []
    for i in range(18):
        y = F.layer_norm(F.gelu(linear(torch.randn(1024, 512))), (1024,)).softmax(-1)
        if i % 3 == 0:
            y = y[:1].tanh()
        del y
        sizes.append(resident_bytes())
    record.check(sizes[-1] - sizes[8] < 24 * MIB, f"resident: {[s // MIB for s in sizes]} MiB")
    record.check(held_bytes() == 0, f"{held_bytes()} bytes held")


@program()
def hooks_of_the_program_in_a_loop(record):
    map_large_blocks()
    linear = nn.Linear(512, 1024)
    sizes = []
    for _ in range(16):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            y = F.gelu(F.relu(linear(torch.randn(1024, 512))))
        linear.zero_grad()
        y.sum().backward()
        del y
        sizes.append(resident_bytes())
    record.check(sizes[-1] - sizes[6] < 24 * MIB, f"resident: {[s // MIB for s in sizes]} MiB")
    record.gradient("gradient", linear.weight.grad)


@program()
def resident_memory_follows_held_bytes(record):
    """With malloc as it is: what was packed is no longer in memory, freed in the middle or not."""
    layers = []
    for _ in range(20):
        layers += [nn.Linear(384, 384), nn.GELU()]
    model = nn.Sequential(*layers)
    x = torch.randn(2048, 384)  # 3 MiB
    for _ in range(2):
        before = resident_bytes()
        y = model(x)
        grown, held = resident_bytes() - before, held_bytes()
        y.sum().backward()
    if totals():
        record.check(grown < held + 30 * MIB, f"{grown // MIB} MiB more, {held // MIB} are held")
    record.gradient("gradient", model[0].weight.grad)


@program()
def checkpoints_throw_away(record):
    """What checkpointing throws away must not be kept by somebody else."""
    map_large_blocks()

    def block(t):
        for _ in range(5):
            t = F.gelu(t) * 1.1
        return t

    x = torch.randn(128, 4096, requires_grad=True)  # 2 MiB
    checkpoint(block, x, use_reentrant=False).sum().backward()
    x.grad = None
    before = resident_bytes()
    h = x
    for _ in range(6):
        h = checkpoint(block, h, use_reentrant=False)
    grown = (resident_bytes() - before) // MIB
    h.sum().backward()
    record.check(grown < 48, f"{grown} MiB more, 12 are needed and 130 without checkpoints")
    record.gradient("gradient", x.grad)


@program()
def frozen_weights(record):
    """They are held by the model: nobody may copy them."""
    map_large_blocks()
    base = [nn.Linear(1024, 1024, bias=False).requires_grad_(False) for _ in range(16)]
    down, up = nn.Linear(1024, 8, bias=False), nn.Linear(8, 1024, bias=False)
    x = torch.randn(4, 1024, requires_grad=True)
    for _ in range(2):
        before = resident_bytes()
        h = x
        for b in base:
            h = b(h) + up(down(h))
        grown = (resident_bytes() - before) // MIB
        record.check(held_bytes() < 2 * MIB, f"{held_bytes()} bytes held, base has 64 MiB")
        h.pow(3).mean().backward()
        record.check(grown < 16, f"{grown} MiB more")
    record.gradients_of("gradient", [x.grad, down.weight.grad, up.weight.grad])


class TwiceSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, times):
        h = x.sin()
        ctx.save_for_backward(*[h] * times)
        return h * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[-1], None


@program()
def saved_twice_is_held_once(record):
    x = torch.randn(512, 1024, requires_grad=True)
    held = []
    for times in (1, 4):
        start = held_bytes()
        y = TwiceSaved.apply(x, times)
        held.append(held_bytes() - start)
        y.sum().backward()
        record.gradient(str(times), x.grad)
        del y
    record.check(held[1] <= held[0] * 1.1, f"held once: {held}")


class ViewOfOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y[0].unsqueeze(-1))
        return y

    @staticmethod
    def backward(ctx, g):
        v, = ctx.saved_tensors
        return g * v.squeeze(-1)


@program(leaks=True)
def view_of_an_output_is_saved(record):
    """Makes a cycle in plain PyTorch; it must not become worse, and the values are right."""
    map_large_blocks()
    x = torch.randn(64, 4096, requires_grad=True)
    for _ in range(20):
        ViewOfOutput.apply(x).sum().backward()
    record.gradient("gradient", x.grad)


@program()
def steps_of_many_shapes(record):
    """Buffers are used again across sizes; nothing piles up."""
    map_large_blocks()
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256),
                          nn.Softmax(-1))
    sizes, held = [], []
    for i in range(60):
        rows = 64 + 37 * (i * 7 % 23)
        model(torch.randn(rows, 256)).square().sum().backward()
        sizes.append(resident_bytes())
        held.append(held_bytes())
    record.check(max(held) == 0, f"held after a step: {held}")
    record.check(sizes[-1] - sizes[30] < 24 * MIB, f"resident: {[s // MIB for s in sizes]} MiB")
    record.model("model", model)


@program()
def held_is_less_than_would(record):
    """What the library is for: a transformer block in half of the bytes, or less."""
    model = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, "gelu", batch_first=True, norm_first=True)
    y = model(torch.randn(4, 128, 256))
    got = totals()
    if got:
        record.check(got.held_bytes <= got.would_bytes,
                     f"held {got.held_bytes}, would {got.would_bytes}")
    y.pow(3).mean().backward()
    record.model("model", model)
