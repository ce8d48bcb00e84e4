"""What `mesa check` runs under libmesa: says line by line what works with this Python's torch.

The exit code is 1 if something does not. Arguments: the launcher's version.

SPDX-License-Identifier: MIT
"""

import ctypes
import os
import platform
import sys

broken = False


def say(good, what, text):
    global broken
    broken = broken or not good
    print(f"{'ok  ' if good else 'FAIL'}  {what:<11} {text}", flush=True)
    return good


class Totals(ctypes.Structure):
    """struct mesa_totals of mesa.h."""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in (
            "would_bytes held_bytes would_bytes_peak held_bytes_peak tensors pack_ns unpack_ns steps"
        ).split()
    ]


def totals(mesa):
    result = Totals(size=ctypes.sizeof(Totals))
    mesa.mesa_totals(ctypes.byref(result))
    return result


def find_libmesa(launcher_version):
    mesa = ctypes.CDLL(None)
    try:
        mesa.mesa_version.restype = ctypes.c_char_p
    except AttributeError:
        say(False, "libmesa", "is not loaded: LD_PRELOAD does not reach this Python")
        return None
    version = mesa.mesa_version().decode()
    same = version == launcher_version
    say(same, "libmesa", version + ("" if same else f", but the launcher is {launcher_version}"))
    return mesa


def find_torch():
    try:
        import torch
    except Exception as error:  # a broken torch may raise anything
        say(False, "torch", f"cannot be imported: {error}")
        return None
    say(True, "torch", f"{torch.__version__} in {os.path.dirname(torch.__file__)}")
    return torch


def gradients(torch, step):
    """Gradients of a small model, with every random number the same."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.LayerNorm(256),
        torch.nn.GELU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(256, 64),
        torch.nn.ReLU(),
    )
    inputs = torch.randn(8, 128, 64, requires_grad=True)
    output = step(model, inputs)
    output.square().mean().backward()
    every = [inputs.grad] + [p.grad for p in model.parameters()]
    return output.detach(), torch.cat([g.float().flatten() for g in every])


def plain(model, inputs):
    return model(inputs)


def paused(mesa, torch, step):
    mesa.mesa_pause()
    try:
        return gradients(torch, step)
    finally:
        mesa.mesa_resume()


def try_step(mesa, torch, what, step):
    try:
        output, found = gradients(torch, step)
        wanted_output, wanted = paused(mesa, torch, step)
    except Exception as error:
        say(False, what, f"{type(error).__name__}: {error}")
        return
    if not torch.equal(output, wanted_output):
        say(False, what, "the forward pass gives other values under libmesa")
        return
    error = ((found - wanted).norm() / wanted.norm()).item()
    say(error < 0.05, what, f"same forward pass, relative error of gradients {error:.2g}")


def steps(torch):
    """Ways in which programs use autograd."""
    from torch.utils.checkpoint import checkpoint

    def autocast(model, inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(inputs).float()

    def checkpointed(model, inputs):
        return checkpoint(model, inputs, use_reentrant=False)

    def hooked(model, inputs):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            return model(inputs)

    return [
        ("training", plain),
        ("autocast", autocast),
        ("checkpoint", checkpointed),
        ("own hooks", hooked),
    ]


def check_memory(mesa, torch):
    """Holds one graph open and compares what is held with what plain PyTorch would hold."""
    torch.manual_seed(1)
    hidden = torch.randn(64, 256, requires_grad=True)
    for _ in range(4):
        hidden = torch.softmax(torch.nn.functional.gelu(hidden), -1) * 100
    now = totals(mesa)
    hidden.sum().backward()
    good = 0 < now.held_bytes < now.would_bytes
    say(good, "memory", f"{now.held_bytes} bytes held instead of {now.would_bytes}")


def check_self_test(mesa):
    active = mesa.mesa_active()
    texts = {
        1: "libmesa found libtorch and its self-test passed",
        0: "libmesa did not notice this libtorch",
        -1: "libmesa stepped aside: this libtorch is not as expected (MESA_LOG=info says more)",
    }
    return say(active == 1, "self-test", texts.get(active, f"mesa_active() is {active}"))


def check(launcher_version):
    say(True, "python", f"{platform.python_version()} {sys.executable}")
    mesa = find_libmesa(launcher_version)
    torch = find_torch()
    if mesa is None or torch is None:
        return
    gradients(torch, plain)  # libmesa looks at libtorch when the first tensor is saved
    if not check_self_test(mesa):
        return
    for what, step in steps(torch):
        try_step(mesa, torch, what, step)
    check_memory(mesa, torch)


check(sys.argv[1])
sys.exit(1 if broken else 0)
