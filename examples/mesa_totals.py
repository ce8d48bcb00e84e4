"""Asks libmesa from Python what it holds, and works without libmesa as well.

    mesa run python mesa_totals.py

SPDX-License-Identifier: MIT
"""

import ctypes


class Totals(ctypes.Structure):
    """struct mesa_totals of mesa.h."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("would_bytes", ctypes.c_uint64),
        ("held_bytes", ctypes.c_uint64),
        ("would_bytes_peak", ctypes.c_uint64),
        ("held_bytes_peak", ctypes.c_uint64),
        ("tensors", ctypes.c_uint64),
        ("pack_ns", ctypes.c_uint64),
        ("unpack_ns", ctypes.c_uint64),
        ("steps", ctypes.c_uint64),
    ]


def mesa_totals():
    """What libmesa counted so far, or None if it is not loaded."""
    mesa = ctypes.CDLL(None)  # what this process has loaded
    if not hasattr(mesa, "mesa_totals"):
        return None
    totals = Totals(size=ctypes.sizeof(Totals))
    if mesa.mesa_totals(ctypes.byref(totals)) != 0:
        raise RuntimeError("this libmesa is of another version")
    return totals


def train(steps):
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(512, 256)
    for _ in range(steps):
        loss = (model(inputs) - inputs).square().mean()
        totals = mesa_totals()
        if totals is not None:
            print(f"loss {loss.item():.4f}, held {totals.held_bytes} bytes instead of {totals.would_bytes}")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    if mesa_totals() is None:
        print("libmesa is not loaded: mesa run python mesa_totals.py")
    train(steps=3)
