# Which argument of which operator is this? What libmesa found, beside the names that PyTorch's own
# nodes give to what they saved (grad_fn._saved_X), for every operator of the database.
#
# SPDX-License-Identifier: MIT
import collections
import ctypes
import re
import warnings

import torch

from . import add, mesa
from .operators import SMALL, database, label, samples, seed, tensors_in

CHUNKS = 8


class Trace:
    """mesa_trace() and mesa_trace_read()."""

    def __init__(self):
        self.switch, self.read = mesa("mesa_trace"), mesa("mesa_trace_read")
        self.buffer = ctypes.create_string_buffer(1 << 20)
        if self.read:
            self.read.restype = ctypes.c_size_t
            self.read.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

    def of(self, call):
        """What call() saved: (operator, argument, address), and what call() returned."""
        self.switch(1)
        try:
            result = call()
        finally:
            self.read(self.buffer, len(self.buffer))
            self.switch(0)
        lines = [line.split() for line in self.buffer.value.decode().splitlines()]
        return [(op, argument, int(address, 16)) for op, argument, address, _ in lines], result


def nodes_of(outputs):
    seen, queue = [], [t.grad_fn for t in outputs if t.grad_fn is not None]
    while queue:
        node = queue.pop(0)
        if node not in seen:
            seen.append(node)
            queue += [n for n, _ in node.next_functions if n is not None]
    return seen


def saved_by(node):
    """(attribute, address) for what a node saved and still has."""
    for key in dir(node):
        if not key.startswith("_saved_"):
            continue
        try:
            value = getattr(node, key)
        except RuntimeError:
            continue
        values = value if isinstance(value, (tuple, list)) else [value]
        for each in values:
            if isinstance(each, torch.Tensor) and each.layout == torch.strided and each.numel():
                yield key.removeprefix("_saved_"), each.data_ptr()


def plain_name(text):
    """Without underscores, in lower case, and nll_loss for nll_loss_forward as nodes are named."""
    return text.replace("_", "").lower().removesuffix("forward")


def name_of(node):
    """mul of MulBackward0, softmax of SoftmaxBackward0."""
    return plain_name(re.sub(r"Backward\d*$", "", type(node).__name__))


def compare_sample(trace, call):
    """Counts of right, unknown and wrong arguments and operators, and examples of the wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, result = trace.of(call)
    counts, wrong = collections.Counter(), []
    by_address = collections.defaultdict(list)
    for op, argument, address in found:
        by_address[address].append((op, argument))
    for node in nodes_of(tensors_in(result)):
        for argument, address in saved_by(node):
            candidates = by_address.get(address, [])
            if not candidates:
                counts["not seen"] += 1
                continue
            # One address may have been saved by several nodes, as several arguments.
            own = [c for c in candidates if matches(c[0], node)]
            if any(a == argument for _, a in own):
                counts["right"] += 1
            elif not own and any(a == argument for _, a in candidates):
                counts["argument right, operator named otherwise"] += 1
                counts[f"  {candidates[0][0]} for {type(node).__name__}"] += 1
            elif any(a in ("?", "-") for _, a in candidates):
                counts["unknown"] += 1
            else:
                counts["wrong"] += 1
                wrong.append(f"{type(node).__name__}.{argument} was called {candidates}")
    return counts, wrong


def matches(op, node):
    op = plain_name(op.split(".")[0])
    return op == name_of(node)


def run_chunk(record, chunk):
    trace = Trace()
    if not trace.read:
        return
    total, wrong = collections.Counter(), []
    for op in database()[chunk::CHUNKS]:
        for sample in samples(op)[:6]:
            seed()
            try:
                counts, bad = compare_sample(
                    trace, lambda: op(sample.input, *sample.args, **sample.kwargs))
            except Exception:
                continue  # an error of the sample itself; operators.py compares those
            total += counts
            wrong += [f"{label(op)}: {b}" for b in bad]
    print(f"chunk {chunk}:", dict(total))
    record.check(not wrong, "\n    ".join(list(dict.fromkeys(wrong))[:40]))
    known = total["right"] + total["argument right, operator named otherwise"]
    record.check(known >= 0.8 * (known + total["unknown"] + total["not seen"]),
                 f"most are known: {dict(total)}")


for chunk in range(CHUNKS):
    add(f"arguments.chunk{chunk}", lambda record, chunk=chunk: run_chunk(record, chunk),
        slow=chunk != 0, environment=SMALL)
