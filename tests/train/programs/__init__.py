# Programs that train with real PyTorch, and what each of them reports about itself.
#
# A program is a function of one argument, a Record. It trains something small, the same way on
# every run, and records what a user could notice: values that have to be the same bits as without
# libmesa, gradients that may differ a little, facts. The worker runs it (worker.py), the harness
# compares the records of two runs (harness.py). Programs know nothing of libmesa, except for those
# that read its totals.
#
# SPDX-License-Identifier: MIT
import ctypes
import dataclasses
import gc
import hashlib
import os

import torch

PROGRAMS = {}


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    run: object
    tolerance: float  # largest relative L2 error of a gradient under a lossy policy
    alone: bool  # needs a process of its own, because it changes or ends the process
    slow: bool  # runs with --slow only
    leaks: bool  # may leave saved tensors behind when it returns
    environment: tuple  # of (name, value), for the preloaded run and the plain one


# Largest relative error of a single gradient under 8-bit codes, where nothing averages. A whole
# model has to stay within half of that, see zoo.py.
TOLERANCE = 0.012


def program(tolerance=TOLERANCE, alone=False, slow=False, leaks=False, environment=()):
    """Registers a program as MODULE.FUNCTION."""

    def register(run):
        add(run.__module__.rpartition(".")[2] + "." + run.__name__, run, tolerance=tolerance,
            alone=alone, slow=slow, leaks=leaks, environment=environment)
        return run

    return register


def add(name, run, tolerance=TOLERANCE, alone=False, slow=False, leaks=False, environment=()):
    """Registers a program that is made in a loop, such as one model out of the zoo."""
    assert name not in PROGRAMS, name
    PROGRAMS[name] = Program(name, run, tolerance, alone, slow, leaks, tuple(environment))


class Record:
    """What one run of a program has to show. Tensors are copied at once."""

    def __init__(self):
        self.values = {}  # name -> array; the same bits in every run
        self.gradients = {}  # name -> array; each on its own within the tolerance
        self.scales = {}  # name -> what an element of that gradient has to be compared to, if small
        self.models = {}  # name -> {parameter -> array}; as one vector within the tolerance
        self.facts = {}  # name -> anything that compares; equal in every run
        self.failed = []  # what was untrue in this run

    def value(self, name, tensor):
        self._put(self.values, name, as_array(tensor))

    def digest(self, name, *tensors):
        """As value(), for tensors that are too large to be carried around."""
        self._put(self.facts, name, digest(*tensors))

    def gradient(self, name, tensor, scale=0.0):
        """Where a gradient vanishes by cancellation, scale says how large its terms are."""
        self._put(self.gradients, name, as_array(tensor))
        if scale:
            self.scales[name] = scale

    def gradients_of(self, name, tensors):
        for i, tensor in enumerate(tensors):
            self.gradient(f"{name}[{i}]", tensor)

    def model(self, name, module):
        self.as_one(name, {n: p.grad for n, p in module.named_parameters()})

    def as_one(self, name, gradients):
        """A dictionary of gradients, compared as one vector; None where there is none."""
        got = {key: as_array(g) for key, g in gradients.items() if g is not None}
        self._put(self.models, name, got)

    def fact(self, name, fact):
        self._put(self.facts, name, fact)

    def check(self, true, what):
        if not true:
            self.failed.append(str(what))

    @staticmethod
    def _put(where, name, what):
        assert name not in where, f"recorded twice: {name}"
        where[name] = what


def as_array(tensor):
    """A NumPy copy of a tensor of any layout; NumPy has no bfloat16, so that becomes float32."""
    tensor = tensor.detach()
    if tensor.is_nested:
        tensor = tensor.values()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = tensor.float()
    if tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    return tensor.resolve_conj().resolve_neg().cpu().contiguous().clone().numpy()


def digest(*tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        sha.update(str((tuple(tensor.shape), str(tensor.dtype))).encode())
        if tensor.numel():
            sha.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
    return sha.hexdigest()


def error_text(call):
    """Type and text of the exception that a call raises, None if it does not."""
    try:
        call()
    except Exception as error:  # the point is to compare whatever comes
        return f"{type(error).__name__}: {error}"
    return None


class Totals(ctypes.Structure):
    """struct mesa_totals of include/mesa.h"""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in ("would_bytes", "held_bytes", "would_bytes_peak", "held_bytes_peak",
                     "tensors", "pack_ns", "unpack_ns", "steps")]


def mesa(name):
    """A function of libmesa's C API, None where it is not loaded."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except AttributeError:
        return None


def totals():
    """libmesa's totals, None where it is not loaded."""
    read = mesa("mesa_totals")
    if read is None:
        return None
    read.restype, read.argtypes = ctypes.c_int, [ctypes.POINTER(Totals)]
    got = Totals(size=ctypes.sizeof(Totals))
    assert read(ctypes.byref(got)) == 0
    return got


def held_bytes():
    """Bytes that libmesa holds at this moment, 0 where it is not loaded."""
    got = totals()
    return got.held_bytes if got else 0


def resident_bytes():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def map_large_blocks():
    """Makes malloc give large blocks back to the system at once, so that resident_bytes() tells."""
    M_MMAP_THRESHOLD = -3
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 18)
