# libmesa's totals, read the way any program can read them (include/mesa.h).
#
# SPDX-License-Identifier: MIT
import ctypes


class Totals(ctypes.Structure):
    """struct mesa_totals."""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64) for name in (
            "would_bytes", "held_bytes", "would_bytes_peak", "held_bytes_peak", "tensors",
            "pack_ns", "unpack_ns", "steps")]


def mesa_totals():
    """The totals as a dictionary; empty where libmesa is not loaded. Refuses one that takes no part."""
    program = ctypes.CDLL(None)
    if not hasattr(program, "mesa_totals"):
        return {}
    if program.mesa_active() != 1:
        raise RuntimeError("libmesa is loaded but takes no part")
    totals = Totals(size=ctypes.sizeof(Totals))
    if program.mesa_totals(ctypes.byref(totals)) != 0:
        raise RuntimeError("mesa_totals refused its argument")
    return {name: getattr(totals, name) for name, _ in Totals._fields_[1:]}
