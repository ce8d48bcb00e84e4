# A custom function in C++. test_cpp.py builds it and says where it is.
#
# SPDX-License-Identifier: MIT
import os

import torch

from . import held_bytes, program


def swish():
    torch.ops.load_library(os.environ["TRAIN_TEST_EXTENSION"])
    return torch.ops.mesa_test.swish


@program()
def function(record):
    f = swish()
    x = torch.randn(128, 256, requires_grad=True)
    scale = torch.rand(256, requires_grad=True)
    y = f(x * 1.0, scale)
    record.value("output", y)
    y.square().mean().backward()
    record.gradients_of("gradient", [x.grad, scale.grad])


@program()
def function_many_times(record):
    """One address saves tensors of many shapes, in a graph that is kept, and again."""
    f, scale = swish(), torch.rand(256, requires_grad=True)
    for rows in (1, 16, 128, 129):
        x = torch.randn(rows, 256, requires_grad=True)
        y = f(f(x, scale), scale)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        record.gradient(f"{rows}", x.grad)
    record.gradient("scale", scale.grad)
    del x, y  # what is kept as it is counts for as long as it is alive
    record.check(held_bytes() == 0, f"{held_bytes()} bytes held")


@program()
def written(record):
    """Errors about writing are those of plain PyTorch here too."""
    from . import error_text

    f, scale = swish(), torch.rand(256, requires_grad=True)
    h = torch.randn(128, 256, requires_grad=True) * 1.0
    y = f(h, scale)
    with torch.no_grad():
        h.add_(1)
    record.fact("error", error_text(y.sum().backward))
