# What values a saved tensor may have: zeros, constants, the ends of the range, NaN; and operators
# whose gradient hangs on an exact value, sign or order.
#
# SPDX-License-Identifier: MIT
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from . import held_bytes, program, totals


def product_with(x):
    """The gradient of this is x, as it was saved."""
    w = torch.ones(x.shape, dtype=x.dtype, requires_grad=True)
    (x * w).backward(torch.ones(x.shape, dtype=x.dtype))
    return w.grad


@program(tolerance=0)
def forward_is_exact(record):
    x = torch.randn(64, 8, 16, 16)
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
                          nn.Flatten(), nn.Linear(4096, 128), nn.GELU(), nn.LayerNorm(128),
                          nn.Dropout(0.2), nn.Linear(128, 128), nn.Softmax(-1))
    for i in range(3):
        h = x
        for j, layer in enumerate(model):
            h = layer(h)
            record.digest(f"{i} {j}", h)
    model.eval()
    with torch.no_grad():
        record.value("no_grad", model(x))
    with torch.inference_mode():
        record.value("inference", model(x).clone())
    record.digest("statistics", model[1].running_mean, model[1].running_var)


@program()
def zero_and_constant_blocks(record):
    x = torch.randn(8, 64, 128)
    x[0], x[1], x[2] = 0, 3.25, -7.5
    x[3, :, :64] = 0
    x[4, 5] = 1e-6
    record.gradients_of("mixed", list(product_with(x)))
    record.gradient("zeros", product_with(torch.zeros(256, 256)))
    record.gradient("constant", product_with(torch.full((256, 256), 0.1)))
    ones = torch.ones(256, 256)
    ones[200, 3] = 1.5
    record.gradient("one outlier", product_with(ones))
    last = torch.zeros(4099)
    last[-1] = 1e-3
    record.gradient("last element", product_with(last))


@program()
def zeros_and_signs(record):
    """An exact zero comes back as a zero, and a sign never changes."""
    x = torch.randn(256, 256)
    x[x.abs() < 0.5] = 0
    got = product_with(x)
    record.check(bool((got[x == 0] == 0).all()), "zeros stay zeros")
    record.gradient("sparse", got)


@program()
def tiny_and_huge(record):
    for scale in (1e-45, 1e-40, 1e-38, 1e-30, 1.0, 1e30, 1e37, 8e37):
        x = torch.randn(128, 256).clamp(-4, 4) * scale
        if scale == 1e-45:
            x = torch.full((128, 256), 1e-45)  # the smallest number
        w = torch.ones(128, 256, requires_grad=True)
        (x * w).backward(torch.full((128, 256), 0.5 if scale > 1e-44 else 1.0))
        record.gradient(str(scale), w.grad)


@program()
def tiny_and_huge_in_half(record):
    for kind in (torch.float16, torch.bfloat16):
        for scale in (6e-8, 1e-5, 1.0, 1e4):
            x = (torch.randn(128, 256).clamp(-4, 4) * scale).to(kind)
            record.gradient(f"{kind} {scale}", product_with(x))


@program()
def not_numbers(record):
    """They reach the gradient, stay where they are, and do not spread."""
    for bad in (float("nan"), float("inf"), -float("inf")):
        x = torch.randn(128, 512)
        x[5, 7] = x[100, 300] = bad
        got = product_with(x)
        where = (~torch.isfinite(got)).nonzero().tolist()
        record.fact(f"{bad} places", where)
        record.gradient(f"{bad}", got)
        record.fact(f"{bad} values", [str(v) for v in got[~torch.isfinite(got)].tolist()])
    record.gradient("all of them", product_with(torch.full((128, 256), float("nan"))))


@program()
def not_numbers_through_operators(record):
    for name, f in {"gelu": F.gelu, "softmax": lambda t: t.softmax(-1), "relu": F.relu,
                    "layer_norm": lambda t: F.layer_norm(t, (256,)), "silu": F.silu,
                    "max_pool": lambda t: F.max_pool1d(t[None], 2), "tanh": torch.tanh}.items():
        x = torch.randn(128, 256)
        x[3, 5], x[4, 6], x[5, 7] = float("nan"), float("inf"), -float("inf")
        x.requires_grad_()
        y = f(x * 1.0)
        y.backward(torch.randn(y.shape))
        record.gradient(name, x.grad)


@program()
def masked_scores(record):
    """-inf, the smallest float and -1e9 beside ordinary scores."""
    mask = torch.ones(128, 128).tril().bool()
    for fill in (float("-inf"), torch.finfo(torch.float32).min, -1e9):
        q = torch.randn(4, 128, 128, requires_grad=True)
        (q * 1.0).masked_fill(~mask, fill).softmax(-1).backward(torch.randn(4, 128, 128))
        record.gradient(f"{fill} softmax", q.grad)
        logits = torch.randn(128, 256, requires_grad=True)
        keep = torch.ones(128, 256, dtype=torch.bool)
        keep[:, 200:] = False
        F.cross_entropy((logits * 3).masked_fill(~keep, fill), torch.arange(128)).backward()
        record.gradient(f"{fill} cross entropy", logits.grad)
    bias = torch.zeros(128, 128).masked_fill(~mask, torch.finfo(torch.float32).min)
    q = torch.randn(4, 128, 128, requires_grad=True)
    (q * 2 + bias).softmax(-1).backward(torch.randn(4, 128, 128))
    record.gradient("added", q.grad)


@program(tolerance=0)
def float64_is_exact(record):
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 128),
                          nn.ReLU(), nn.Softmax(-1)).double()
    x = torch.randn(128, 128, dtype=torch.float64, requires_grad=True)
    model(x).backward(torch.randn(128, 128, dtype=torch.float64))
    record.gradient("gradient", x.grad)
    record.model("model", model)


@program()
def complex_numbers(record):
    x = torch.randn(64, 128, dtype=torch.complex64, requires_grad=True)
    y = torch.fft.ifft(torch.fft.fft(x) * x.conj()) * x.abs()
    y.abs().square().sum().backward()
    record.gradient("gradient", x.grad)


@program()
def order_and_ties(record):
    """Formulas that compare two saved tensors: amax, maximum, norms."""
    other = torch.randn(256, 256)
    for name, f in {
            "amax": lambda x: x.amax(-1), "amin": lambda x: x.amin(0), "max": lambda x: x.max(-1)[0],
            "max of all": lambda x: x.max(), "median": lambda x: x.median(-1)[0],
            "maximum": lambda x: torch.maximum(x, other), "fmax": lambda x: torch.fmax(x, other),
            "minimum": lambda x: torch.minimum(x, x.flip(0).detach()),
            "norm inf": lambda x: x.norm(float("inf"), -1), "norm 1": lambda x: x.norm(1, -1),
            "norm": lambda x: x.norm(2, -1),
            "logaddexp": lambda x: torch.logaddexp(x, x.detach() * 0.5),
            "logsumexp": lambda x: x.logsumexp(-1), "cummax": lambda x: x.cummax(-1)[0],
            "cumsum amax": lambda x: x.cumsum(-1).amax(-1), "kthvalue": lambda x: x.kthvalue(5)[0],
            "sort": lambda x: x.sort(-1)[0], "std": lambda x: x.std(-1), "abs": torch.abs,
            "renorm": lambda x: x.renorm(2, 0, 5.0), "cdist": lambda x: torch.cdist(x, other),
            "ties": lambda x: x.round().amax(-1), "scatter amax": lambda x: torch.zeros(
                256, 16).scatter_reduce(1, torch.arange(256).expand(256, 256) % 16, x, "amax"),
            "aminmax": lambda x: x.aminmax(dim=-1)[0],
    }.items():
        if name == "aminmax" and not hasattr(torch._C._functions, "AminmaxBackward0"):
            continue  # before 2.11
        p = torch.randn(256, 256, requires_grad=True)
        y = f(p * 1.0)
        y.backward(torch.linspace(0.5, 1.5, y.numel()).view_as(y))
        record.gradient(name, p.grad)


@program()
def division_by_what_was_saved(record):
    """Values over four decades; compared in the logarithm, so that the small ones count."""
    for name, f in {"log": torch.log, "reciprocal": torch.reciprocal, "sqrt": torch.sqrt,
                    "rsqrt": torch.rsqrt, "pow -0.5": lambda x: x.pow(-0.5), "1/x": lambda x: 1.0 / x,
                    "div": lambda x: torch.ones(256, 256) / x, "log1p": torch.log1p,
                    "log10": torch.log10, "log2": torch.log2, "pow 1.5": lambda x: x.pow(1.5),
                    "div self": lambda x: x / x.detach().flip(0)}.items():
        p = (10 ** (torch.rand(256, 256) * 4 - 4)).requires_grad_()
        f(p * 1.0).backward(torch.ones(256, 256))
        record.check(bool(torch.isfinite(p.grad).all()), f"{name}: finite")
        record.gradient(name, p.grad.abs().clamp_min(1e-30).log10())


def with_marks(x, nan):
    """Ties, zeros of both signs, infinities and perhaps NaN among ordinary values."""
    x = x.mul(4).round().div(2)
    for step, mark in ((19, math.inf), (23, -0.0), (29, -math.inf), (31, 1e-40)):
        x.flatten()[step // 2::step] = mark
    if nan:
        x.flatten()[::17] = math.nan
    return x


@program(tolerance=0)
def comparisons_of_two_tensors(record):
    """maximum and its kin: both inputs die, one of them lives, or they cannot be compared in memory."""
    views = {"dense": lambda a, b: (a, b), "transposed": lambda a, b: (a.t(), b.t()),
             "gaps": lambda a, b: (a[:, ::2], b[:, ::2]), "row": lambda a, b: (a, b[:1]),
             "another order": lambda a, b: (a, b.t().contiguous().t()), "same": lambda a, b: (a, a),
             "constant": lambda a, b: (a, b.detach()), "a parameter": None, "one lives": None, "nan": None}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for op in (torch.maximum, torch.minimum, torch.fmax, torch.fmin):
            for view, take in views.items():
                a = with_marks(torch.randn(192, 128), view == "nan").to(dtype).requires_grad_()
                b = with_marks(torch.randn(192, 128), view == "nan").to(dtype).requires_grad_()
                x, y = a * 1, b * 1
                lives = x if view == "one lives" else None
                y = b if view == "a parameter" else y
                x, y = take(x, y) if take else (x, y)
                z = op(x, y)
                del x, y
                z.backward(torch.linspace(0.5, 1.5, z.numel()).view_as(z).to(dtype))
                for side, p in (("self", a), ("other", b)):
                    if p.grad is not None:
                        record.gradient(f"{op.__name__} {view} {dtype} {side}", p.grad)
                del lives


@program(tolerance=0)
def masks_are_exact(record):
    """Piecewise linear functions of values from 1e-6 to 100, zeros of both signs among them."""
    for name, f in {
            "relu": F.relu, "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "relu6": F.relu6,
            "hardtanh": F.hardtanh, "clamp": lambda x: x.clamp(-0.5, 0.5),
            # Versions of PyTorch differ in what a tie with the bound gives.
            "clamp_min": lambda x: x.clamp_min(0), "clamp_max": lambda x: x.clamp_max(0.0),
            "clamp_min 0.0": lambda x: x.clamp_min(0.0), "clamp at 0": lambda x: x.clamp(0.0, 1.0),
            "hardtanh at 0": lambda x: F.hardtanh(x, -1.0, 0.0), "hardsigmoid": F.hardsigmoid,
            "threshold": lambda x: F.threshold(x, 0.1, 20.0), "abs": torch.abs,
            "prelu": lambda x: F.prelu(x, torch.tensor([0.25])),
            "softshrink": lambda x: F.softshrink(x, 0.3),
            "hardshrink": lambda x: F.hardshrink(x, 0.3),
            "where": lambda x: torch.where(x > 0.2, x, 0.0),
            "masked_fill": lambda x: x.masked_fill(x < 0.1, 3.0),
    }.items():
        values = torch.randn(256, 256).sign() * 10 ** (torch.rand(256, 256) * 8 - 6)
        values[0, :16], values[1, :16] = 0.0, -0.0
        p = values.requires_grad_()
        f(p + 0.0).backward(torch.ones(256, 256))
        record.gradient(name, p.grad)
    for rate in (0.1, 0.5, 0.9):
        p = torch.randn(256, 256, requires_grad=True)
        F.dropout(p * 1.0, rate).backward(torch.ones(256, 256))
        record.gradient(f"dropout {rate}", p.grad)


@program(tolerance=0)
def clamps_are_masks(record):
    """A bit an element, and one more where elements equal a bound: versions of PyTorch differ in what
    those give."""
    inf = float("inf")
    torch.ones(4, requires_grad=True).exp()  # libmesa starts at the first save of all
    for name, f in {
            "clamp": lambda x: x.clamp(-0.5, 0.5), "only min": lambda x: x.clamp(min=0),
            "only max": lambda x: x.clamp(max=0.25), "in place": lambda x: x.clamp_(-0.5, 2),
            "clamp_min": lambda x: x.clamp_min(0.3), "clamp_max": lambda x: x.clamp_max(-1),
            "clamp_min_": lambda x: x.clamp_min_(0), "clamp_max_": lambda x: x.clamp_max_(2.0),
            "clip": lambda x: torch.clip(x, -1, 1), "turned round": lambda x: x.clamp(1.0, -1.0),
            "one value": lambda x: x.clamp(1.0, 1.0), "not a number": lambda x: x.clamp(float("nan")),
            "infinite": lambda x: x.clamp(-inf, inf), "infinite min": lambda x: x.clamp_min(inf),
            "twice": lambda x: x.clamp(-1, 1) + x.clamp(0, 2),
    }.items():
        for kind in (torch.float32, torch.bfloat16, torch.float64):
            for ends in (False, True):
                p = torch.randn(256, 256, dtype=kind)
                p[0, :4] = torch.tensor([inf, -inf, float("nan"), 1e-30])
                if ends:
                    for i, end in enumerate((-0.5, 0.0, 0.25, 0.5, -1.0, 1.0, 2.0)):
                        p[:, 8 + i] = end
                p.requires_grad_()
                before = held_bytes()
                y = f(p + 0)
                held = held_bytes() - before
                if totals() and name in ("clamp", "only min", "clamp_max", "in place"):
                    bits = 2 if ends or kind == torch.bfloat16 else 1
                    record.check(0 < held <= 256 * 256 / 8 * bits + 64,
                                 f"{name}, {kind}: {held} bytes are held")
                y.backward(torch.ones(256, 256, dtype=kind))
                record.gradient(f"{name} {kind} {ends}", p.grad)
                del y


@program(tolerance=0)
def indices_are_exact(record):
    for name, x, f in (
            ("1d", torch.randn(8, 16, 1024), lambda t: F.max_pool1d(t, 2)),
            ("2d", torch.randn(8, 16, 32, 32), lambda t: F.max_pool2d(t, 3, 2, 1)),
            ("3d", torch.randn(2, 8, 16, 16, 16), lambda t: F.max_pool3d(t, 2)),
            ("adaptive", torch.randn(8, 16, 32, 32), lambda t: F.adaptive_max_pool2d(t, 7)),
            ("unpool", torch.randn(8, 16, 32, 32),
             lambda t: F.max_unpool2d(*F.max_pool2d(t, 2, return_indices=True), 2)),
            ("gather", torch.randn(64, 1000),
             lambda t: t.gather(1, torch.randint(0, 1000, (64, 500)))),
            ("index", torch.randn(5000, 16), lambda t: t[torch.randint(-5000, 5000, (3000,))]),
            ("take", torch.randn(5000, 16), lambda t: t.take(torch.randint(0, 80000, (3000,)))),
            ("embedding", torch.randn(70000, 4),
             lambda t: F.embedding(torch.randint(0, 70000, (2000,)), t)),
            ("int32", torch.randn(700, 4),
             lambda t: F.embedding(torch.randint(0, 700, (2000,), dtype=torch.int32), t)),
            ("scatter", torch.randn(64, 1000),
             lambda t: torch.zeros(64, 10).scatter_add(1, torch.randint(0, 10, (64, 1000)), t))):
        x.requires_grad_()
        y = f(x)
        y.backward(torch.randn(y.shape))
        record.gradient(name, x.grad)


@program()
def norms_with_a_mean(record):
    """Inputs whose mean is far from zero."""
    for offset in (0.0, 100.0):
        x = (torch.randn(16, 32, 16, 16) + offset).requires_grad_()
        c = torch.randn(16, 32, 16, 16)
        for norm in (nn.BatchNorm2d(32), nn.GroupNorm(4, 32), nn.InstanceNorm2d(32, affine=True)):
            x.grad = None
            norm(x * 1.0).backward(c)
            name = f"{offset} {type(norm).__name__}"
            record.gradient(name, x.grad)
            record.model(name, norm)
        y = (torch.randn(256, 256) + offset).requires_grad_()
        for norm in (nn.LayerNorm(256), nn.RMSNorm(256)):
            y.grad = None
            norm(y * 1.0).backward(c.view(-1)[:65536].view(256, 256))
            name = f"{offset} {type(norm).__name__}"
            record.gradient(name, y.grad)
            record.model(name, norm)


@program(tolerance=0)
def state_of_the_processor(record):
    """Subnormal numbers and the rounding mode are as before, in this thread and in another."""
    import threading

    def look(name):
        a = torch.full((4,), 1e-40)
        record.fact(name, (sys.float_info.min / 2 != 0.0, bool((a * 1.0 != 0).all())))
        record.value(name, torch.cat([a * 0.5, torch.tensor([1.0, 3.0]) / torch.tensor([3.0, 7.0])]))

    look("before")
    F.gelu(nn.Linear(256, 256)(torch.randn(256, 256))).sum().backward()
    look("after")
    thread = threading.Thread(target=look, args=("thread",))
    thread.start()
    thread.join()


@program(slow=True, alone=True)
def more_than_two_to_the_31(record):
    """The far end of a tensor of 2^31 + 4096 elements. Needs 12 GiB."""
    import os

    class Far(torch.autograd.Function):
        @staticmethod
        def forward(ctx, big, x):
            ctx.save_for_backward(big, x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            big, x = ctx.saved_tensors
            return None, g * torch.cat([big[:4], big[2**31 - 2:2**31 + 2], big[-4:]]).float()

    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 12 << 30:
        return
    n = 2**31 + 4096
    big = torch.zeros(n, dtype=torch.bfloat16)
    for i, k in enumerate((0, 2**31 - 2, n - 4)):
        big[k:k + 4] = torch.tensor([1.0, 0.5, 0.25, -1.0]) * (-1) ** i
    x = torch.ones(12, requires_grad=True)
    Far.apply(big, x).backward(torch.ones(12))
    record.gradient("gradient", x.grad)
