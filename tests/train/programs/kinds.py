# Kinds of tensors that are not plain dense ones, and memory that torch did not allocate.
#
# SPDX-License-Identifier: MIT
import ctypes
import mmap
import tempfile

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from . import program


@program()
def nested_jagged(record):
    rows = [torch.randn(n, 128) for n in (300, 17, 128, 256)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    linear, norm = nn.Linear(128, 128), nn.LayerNorm(128)
    y = norm(F.gelu(linear(nested)))
    y.values().pow(3).mean().backward()
    record.gradients_of("gradient", [p.grad for m in (linear, norm) for p in m.parameters()])
    record.gradient("input", nested.grad.values())


@program()
def nested_strided(record):
    rows = [torch.randn(n, 128) for n in (300, 17, 128)]
    nested = torch.nested.nested_tensor(rows, requires_grad=True)
    linear = nn.Linear(128, 128)
    y = F.gelu(linear(nested)).softmax(-1)
    torch.nested.to_padded_tensor(y, 0.0).square().sum().backward()
    record.gradients_of("gradient", [p.grad for p in linear.parameters()])
    record.gradients_of("input", nested.grad.unbind())


@program()
def sparse(record):
    dense = torch.randn(512, 512) * (torch.rand(512, 512) < 0.05)
    x = torch.randn(512, 128, requires_grad=True)
    coo, csr = dense.to_sparse().requires_grad_(), dense.to_sparse_csr()
    for i, y in enumerate((torch.sparse.mm(coo, x), csr @ x)):
        y.backward(torch.ones(512, 128))
        record.gradient(f"{i} dense", x.grad)
    record.gradient("sparse", coo.grad)
    soft = torch.sparse.softmax(dense.to_sparse().requires_grad_(), 1)
    torch.sparse.sum(soft * 1.5).backward()
    embed = nn.Embedding(1000, 64, sparse=True)
    embed(torch.randint(0, 1000, (4096,))).backward(torch.ones(4096, 64))
    record.fact("sparse gradient", embed.weight.grad.is_sparse)
    record.gradient("embedding", embed.weight.grad)
    bag = nn.EmbeddingBag(1000, 64, mode="sum")
    bag(torch.randint(0, 1000, (512, 32))).backward(torch.ones(512, 64))
    record.gradient("bag", bag.weight.grad)


@program()
def quantized(record):
    """A quantized tensor is saved by a function, and one is made while training to simulate it."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, q):
            ctx.save_for_backward(q)
            return x * q.dequantize()

        @staticmethod
        def backward(ctx, g):
            q, = ctx.saved_tensors
            return g * q.dequantize(), None

    x = torch.randn(128, 256, requires_grad=True)
    q = torch.quantize_per_tensor(torch.randn(128, 256), 0.05, 10, torch.quint8)
    c = torch.quantize_per_channel(torch.randn(128, 256), torch.rand(128) * 0.1 + 0.01,
                                   torch.zeros(128), 0, torch.qint8)
    y = Scale.apply(x * 1.0, q) + Scale.apply(x * 2.0, c)
    y = torch.fake_quantize_per_tensor_affine(y, 0.1, 0, -128, 127)
    y.pow(3).mean().backward()
    record.gradient("gradient", x.grad)


# Views with gaps between their elements, of a matrix with an even number of rows and columns: an
# operator may take other instructions, which round otherwise, if it gets its input back dense.
GAPS = {
    "every other column": lambda x: x[:, ::2],
    "every other row": lambda x: x[::2],
    "every third of both": lambda x: x[1::3, 2::3],
    "middle columns": lambda x: x[:, 3:-5],
    "columns of the transposed": lambda x: x.t()[:, ::2],
    "one of a pair": lambda x: x.view(x.shape[0], -1, 2)[..., 1],
    "heads": lambda x: x.view(16, -1, 8, x.shape[1] // 8).transpose(1, 2)[:, ::3],
    "expanded": lambda x: x[:, :1].expand(-1, x.shape[1]),
    "windows": lambda x: x.unfold(1, 16, 8),
}

READERS = {
    "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "exp": torch.exp, "relu": F.relu,
    "elu": F.elu, "erf": torch.erf, "softmax": lambda x: x.softmax(-1), "cube": lambda x: x.pow(3),
    "log": lambda x: (x * x + 1).log(), "product": lambda x: x * x.flip(0),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]), "matmul": lambda x: x @ x.mT,
    "dropout": lambda x: F.dropout(x, 0.3), "maximum": lambda x: torch.maximum(x, -x),
}


@program()
def gaps(record):
    """What is saved is the view itself, not something computed from it."""
    for view, take in GAPS.items():
        for reader, f in READERS.items():
            x = torch.randn(512, 768, requires_grad=True)
            y = f(take(x * 1.0))
            y.backward(torch.randn_like(y))
            record.gradient(f"{reader} of {view}", x.grad)


@program(tolerance=0)
def wide_elements_with_gaps(record):
    """16 bytes an element are more than some ways take; they must say so before they look."""
    x = torch.randn(256, 256, 2, dtype=torch.complex128, requires_grad=True)
    for _ in range(2):  # the first save of a process is not taken
        h = x * 1.0
        y = h[:, :, 0] * h[:, :, 1]
        del h
        x.grad = None
        y.abs().sum().backward()
    record.gradient("gradient", x.grad)


@program(tolerance=0)
def meta(record):
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512), nn.Softmax(-1),
                          nn.ReLU()).to("meta")
    x = torch.randn(256, 512, device="meta", requires_grad=True)
    model(x).sum().backward()
    record.fact("shapes", [tuple(p.grad.shape) for p in model.parameters()])
    record.fact("device", str(x.grad.device))


@program(tolerance=0)
def fake(record):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.ReLU(), nn.LayerNorm(512))
        model(torch.randn(256, 512)).sum().backward()
        record.fact("shapes", [tuple(p.grad.shape) for p in model.parameters()])
    real = torch.randn(256, 512)
    made = mode.from_tensor(real)
    made.requires_grad_()
    with mode:
        (made.exp() * made).sum().backward()
    record.fact("shape", tuple(made.grad.shape))


@program()
def functional_tensors(record):
    """What compilers trace with: functionalization and make_fx over a backward pass."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def loss(x, w):
        h = x @ w
        h.add_(1).relu_()
        return F.layer_norm(F.gelu(h), (128,)).pow(3).mean()

    step = torch.func.grad(loss, (0, 1))
    x, w = torch.randn(64, 128), torch.randn(128, 128)
    traced = make_fx(torch.func.functionalize(step))(x, w)
    record.gradients_of("traced", traced(x, w))
    record.gradients_of("direct", step(x, w))


class Wrapper(torch.Tensor):
    """Has no data of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, strides=inner.stride(),
            requires_grad=inner.requires_grad)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        from torch.utils._pytree import tree_map

        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, Wrapper) else t,
                                (args, kwargs or {}))
        return tree_map(lambda t: Wrapper(t) if isinstance(t, torch.Tensor) else t,
                        func(*args, **kwargs))


class Named(torch.Tensor):
    pass


class Counting(torch.Tensor):
    """A subclass that sees each operator, and has ordinary data."""

    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


@program()
def subclasses(record):
    x = Wrapper(torch.randn(256, 256)).requires_grad_()
    ((x * 2).tanh() * x.exp()).sum().backward()
    record.gradient("wrapper", x.grad.inner)
    for kind in (Named, Counting):
        p = torch.randn(256, 256).as_subclass(kind).requires_grad_()
        z = F.gelu(p * 1.5) * p
        z.sum().backward()
        record.fact(kind.__name__, (type(z).__name__, type(p.grad).__name__))
        record.gradient(kind.__name__, p.grad.as_subclass(torch.Tensor))
    record.fact("calls", Counting.calls)


@program()
def dispatch_mode(record):
    """Everything runs under a mode of the program that sees each operator."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))
    with Log() as log:
        model(torch.randn(64, 256)).pow(3).mean().backward()
    record.fact("operators", log.names)
    record.model("model", model)


@program()
def flop_counter(record):
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(64, 256)).pow(3).mean().backward()
    record.fact("flops", counter.get_total_flops())
    record.model("model", model)


@program()
def profiled(record):
    """The profiler lists the same operators, no more."""
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))
    with torch.profiler.profile(record_shapes=True) as profile:
        model(torch.randn(64, 256)).pow(3).mean().backward()
    counts = {e.key: e.count for e in profile.key_averages() if e.key.startswith("aten::")}
    record.fact("has linear", counts.get("aten::addmm"))
    record.model("model", model)


@program()
def foreign_memory(record):
    """NumPy, mapped files, shared memory, DLPack, buffers, odd addresses. Nobody writes to it."""
    a = numpy.random.default_rng(0).standard_normal(70000).astype(numpy.float32)
    kept = a.copy()
    sources = {"numpy": torch.from_numpy(a[:65536]), "dlpack": torch.from_dlpack(a.copy())}
    raw = bytearray(b"\0" + a.tobytes())
    sources["unaligned"] = torch.from_numpy(
        numpy.frombuffer(raw, dtype=numpy.float32, offset=1, count=65536))
    sources["bytearray"] = torch.frombuffer(bytearray(a.tobytes()), dtype=torch.float32,
                                            offset=12)[:65536]
    with tempfile.NamedTemporaryFile() as file:
        file.write(a.tobytes())
        file.flush()
        sources["memmap"] = torch.from_numpy(
            numpy.memmap(file.name, dtype=numpy.float32, mode="c")[8:65544])
        sources["from_file"] = torch.from_file(file.name, shared=False, size=70000,
                                               dtype=torch.float32)[100:65636]
    with tempfile.NamedTemporaryFile() as file:
        torch.save(torch.from_numpy(a), file.name)
        sources["loaded by mmap"] = torch.load(file.name, mmap=True)
    sources["shared"] = torch.from_numpy(a.copy()).share_memory_()
    for name, x in sources.items():
        before = x.clone()
        w = torch.ones(x.shape, requires_grad=True)
        y = x * w
        (y + y.tanh() * 0).backward(torch.ones(x.shape))
        record.gradient(name, w.grad)
        record.check(torch.equal(before, x), f"{name} was not written to")
    record.check((a == kept).all(), "the NumPy array was not written to")


@program()
def foreign_memory_goes_away(record):
    """The owner of the memory lets go of it between forward and backward."""
    x = torch.randn(128, 256, requires_grad=True)
    a = numpy.arange(32768, dtype=numpy.float32).reshape(128, 256) / 32768
    y = x * torch.from_numpy(a)
    del a
    y.sum().backward()
    record.gradient("numpy", x.grad)
    x.grad = None
    region = mmap.mmap(-1, 131072)
    shared = torch.frombuffer(region, dtype=torch.float32).view(128, 256).fill_(0.5)
    y = x * shared
    del shared, region
    y.sum().backward()
    record.gradient("mapped", x.grad)


@program()
def read_only_memory(record):
    """Pages that nobody may write: reading them is all that is allowed."""
    region = mmap.mmap(-1, 1 << 18)
    view = torch.frombuffer(region, dtype=torch.float32).view(256, 256)
    view.copy_(torch.randn(256, 256))
    libc = ctypes.CDLL(None)
    PROT_READ, PROT_BOTH = 1, 3
    address, size = ctypes.c_void_p(view.data_ptr()), ctypes.c_size_t(1 << 18)
    assert libc.mprotect(address, size, PROT_READ) == 0
    x = torch.randn(256, 256, requires_grad=True)
    (x * view).sin().sum().backward()
    libc.mprotect(address, size, PROT_BOTH)
    record.gradient("gradient", x.grad)


@program()
def strange_dtypes(record):
    """Functions save whatever they like."""

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *others):
            ctx.save_for_backward(*others)
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            Saves.back = [t.clone() for t in ctx.saved_tensors]
            return (g, *[None] * len(Saves.back))

    base = torch.randint(-100, 100, (128, 256))
    others = [base.to(k) for k in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
                                   torch.bool, torch.float16, torch.complex64, torch.complex128)]
    others += [base.to(torch.uint16), base.to(torch.uint32), base.to(torch.uint64)]
    others += [(base * 2**40), torch.full((128, 256), -2**63), torch.empty(0, 5), torch.ones(())]
    x = torch.randn(8, 8, requires_grad=True)
    Saves.apply(x, *others).sum().backward()
    for i, (before, after) in enumerate(zip(others, Saves.back)):
        record.fact(f"{i} {before.dtype}", (str(after.dtype), after.shape, after.stride()))
        if not before.dtype.is_floating_point and not before.dtype.is_complex:
            record.check(torch.equal(before.view(torch.uint8), after.view(torch.uint8))
                         if before.dim() else True, f"{before.dtype} comes back exactly")


@program()
def float8(record):
    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.to(torch.float8_e4m3fn), x.to(torch.float8_e5m2))
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g * a.float() + b.float()

    x = torch.randn(128, 256, requires_grad=True)
    Saves.apply(x).sum().backward()
    record.gradient("gradient", x.grad)


@program()
def empty_and_small(record):
    for shape in ((), (0,), (1,), (0, 5), (5, 0, 3), (1, 1, 1, 1), (3, 1)):
        x = torch.randn(shape, requires_grad=True)
        y = (x * 1.0).exp() * x.tanh()
        y.sum().backward()
        record.gradient(str(shape), x.grad)
