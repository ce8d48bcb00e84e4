# Whose bytes are these? Views, offsets, strides, addresses that are used again: everything that
# makes a saved tensor be taken for another one.
#
# SPDX-License-Identifier: MIT
import torch
import torch.nn.functional as F
from torch import nn

from . import error_text, map_large_blocks, program, resident_bytes


@program()
def addresses_are_reused(record):
    """Temporaries die at once; the allocator hands their addresses to the next ones."""
    weights, losses = [], []
    for i in range(12):
        x = torch.randn(256, 512) * 0.1 * (i + 1)
        w = torch.ones(256, 512, requires_grad=True)
        losses.append((w.exp() * x.cos()).sum())
        weights.append(w)
        del x
    for loss in reversed(losses):
        loss.backward()
    record.gradients_of("gradient", [w.grad for w in weights])


@program()
def addresses_are_reused_by_the_same_site(record):
    """One line saves a tensor of the same shape at the same address again and again."""
    w = torch.ones(256, 256, requires_grad=True)
    losses, addresses = [], set()
    for i in range(40):
        h = torch.full((256, 256), float(i + 1)) + torch.arange(256.0) / 256
        addresses.add(h.data_ptr())
        losses.append((h * w).mean())
        del h
    for i, loss in enumerate(losses):
        grad, = torch.autograd.grad(loss, w)
        record.gradient(str(i), grad)


@program()
def square_and_its_transpose(record):
    base = torch.randn(256, 256, requires_grad=True)
    w1, w2 = torch.randn(256, 64, requires_grad=True), torch.randn(256, 64, requires_grad=True)
    a = base * 1.5
    torch.autograd.backward([a @ w1, a.t() @ w2], [torch.randn(256, 64), torch.randn(256, 64)])
    record.gradients_of("gradient", [w1.grad, w2.grad, base.grad])


@program()
def one_address_many_shapes(record):
    """The same bytes as (B,H,N,D), as (B*N,H*D), reinterpreted as integers, and cut."""
    w = torch.randn(128, 64, requires_grad=True)
    x = torch.randn(4, 32, 128, requires_grad=True)
    h = x * 1.0
    a = h.view(128, 128) @ w
    b = h.view(4, 32, 4, 32).transpose(1, 2)
    c = (b @ b.transpose(-1, -2)).tanh()
    d = h[:, :16].square()
    e = h.flatten()[5:4000] * h.flatten()[6:4001]
    (a.sum() + c.sum() + d.sum() + e.sum()).backward()
    record.gradients_of("gradient", [w.grad, x.grad])


@program()
def offset_of_an_index(record):
    """Shifted labels: an int64 slice with an offset and a stride is saved as an index."""
    tokens = torch.randint(0, 128, (128, 257))
    embed, head = nn.Embedding(128, 64), nn.Linear(64, 128)
    logits = F.log_softmax(head(embed(tokens[:, :-1])), -1)
    (-logits.gather(-1, tokens[:, 1:].unsqueeze(-1)).mean()).backward()
    record.gradients_of("gradient", [embed.weight.grad, head.weight.grad, head.bias.grad])


class ExpandedInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.expand(8192, 65536))
        return x.sum()

    @staticmethod
    def backward(ctx, g):
        t, = ctx.saved_tensors
        return g * 2 * t[17:18]


@program()
def expanded_memory(record):
    """2 GiB that are 256 KiB in truth: nobody may write them out."""
    map_large_blocks()
    x = torch.randn(1, 65536, requires_grad=True)
    before = resident_bytes()
    y = ExpandedInside.apply(x)
    forward = resident_bytes() - before
    y.backward()
    record.check(max(forward, resident_bytes() - before) < 200 << 20, f"{forward} bytes more")
    record.gradient("gradient", x.grad)


@program()
def expanded_values(record):
    p = torch.randn(1, 1, 256, requires_grad=True)
    q = torch.randn(16, 1, 256, requires_grad=True)
    x = torch.randn(16, 128, 256, requires_grad=True)
    outer, middle = (p * 2).expand(16, 128, 256), (q * 3).expand(16, 128, 256)
    (outer * x).backward(torch.randn(16, 128, 256))
    (middle * x.detach().requires_grad_()).backward(torch.randn(16, 128, 256))
    record.gradients_of("gradient", [p.grad, q.grad, x.grad])


@program()
def siblings_of_one_storage(record):
    """q, k and v are parts of one tensor; two of them are used again after attention."""
    linear = nn.Linear(128, 384)
    q, k, v = linear(torch.randn(8, 64, 128)).chunk(3, dim=-1)
    q, k, v = (t.view(8, 64, 4, 32).transpose(1, 2) for t in (q, k, v))
    a = (q @ k.transpose(-1, -2) / 32**0.5).softmax(-1)
    y = a @ v + q * v
    del a, q, k
    (y.square().sum() + (v * v).sum()).backward()
    record.gradients_of("gradient", [linear.weight.grad, linear.bias.grad])


@program()
def storage_offsets(record):
    """Three slices of very different scale, and one that begins at an odd element."""
    buffer = torch.randn(3, 256, 256) * torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1)
    ws = [torch.ones(256, 256, requires_grad=True) for _ in range(3)]
    odd = torch.ones(40000, requires_grad=True)
    ys = [buffer[i] * w for i, w in enumerate(ws)] + [buffer.view(-1)[70001:110001] * odd]
    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])
    record.gradients_of("gradient", [w.grad for w in ws + [odd]])


@program()
def overlapping_windows(record):
    """unfold and as_strided: saved elements overlap in memory."""
    signal = torch.randn(65536, requires_grad=True)
    window = torch.rand(256, requires_grad=True)
    y = (signal * 1.0).unfold(0, 256, 64) * window
    z = (signal * 2.0).as_strided((300, 200), (7, 11), 5) * window[:200]
    torch.autograd.backward([y, z], [torch.randn(y.shape), torch.randn(z.shape)])
    record.gradients_of("gradient", [signal.grad, window.grad])


class Look(torch.autograd.Function):
    """Passes its input on, and tells how it comes back."""

    seen = []

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.strides = x.stride()
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        t, = ctx.saved_tensors
        Look.seen.append((ctx.strides, t.stride(),
                          t.is_contiguous(memory_format=torch.channels_last)))
        return g


@program()
def channels_last_strides(record):
    Look.seen.clear()
    one = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    two = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.SiLU())
    one, two = (m.to(memory_format=torch.channels_last) for m in (one, two))
    x = torch.randn(4, 8, 32, 32).to(memory_format=torch.channels_last).requires_grad_()
    two(Look.apply(one(x))).pow(3).mean().backward()
    record.fact("strides", Look.seen)
    record.fact("gradient strides", x.grad.stride())
    record.gradients_of("gradient", [x.grad] + [p.grad for m in (one, two)
                                                for p in m.parameters()])


class Metadata(torch.autograd.Function):
    """Compares everything that can be asked of a tensor before and after it was saved."""

    seen = []

    @staticmethod
    def of(t):
        return (tuple(t.shape), t.stride(), str(t.dtype), str(t.device), t.is_contiguous(),
                str(t.layout), t.requires_grad, t.is_leaf, type(t).__name__, t.is_conj(),
                t.is_neg(), t.is_contiguous(memory_format=torch.channels_last) if t.dim() == 4
                else None)

    @staticmethod
    def forward(ctx, *xs):
        ctx.save_for_backward(*xs)
        ctx.before = [Metadata.of(x) for x in xs]
        return sum(x.sum().float() if not x.is_complex() else x.real.sum() for x in xs)

    @staticmethod
    def backward(ctx, g):
        restored = ctx.saved_tensors
        Metadata.seen += list(zip(ctx.before, map(Metadata.of, restored)))
        return tuple(g.to(t.dtype).expand(t.shape) for t in restored)


@program()
def metadata(record):
    Metadata.seen.clear()
    p = torch.randn(64, 64, 32, requires_grad=True)
    h = p * 1.0
    z = torch.randn(64, 64, dtype=torch.complex64, requires_grad=True)
    xs = [p, h, h.transpose(0, 2), h[::2, :, 3:20], h.expand(2, 64, 64, 32), h.half(), h.bfloat16(),
          h.double(), h.view(64, 2, 32, 32).to(memory_format=torch.channels_last),
          h.permute(2, 0, 1), h.detach(), h.unfold(0, 4, 2), h[None], h.flatten(), h[:, :0],
          h.reshape(64, -1, 1, 32), h.view(-1)[1:], z * 1, (z * 1).conj(), h.sum(), h.abs().sqrt()]
    Metadata.apply(*xs).backward()
    record.fact("metadata", Metadata.seen)
    record.check(all(a == b for a, b in Metadata.seen), [x for x in Metadata.seen if x[0] != x[1]])
    record.gradient("gradient", p.grad)


class Unpacked(torch.autograd.Function):
    """Asks for its saved tensors twice."""

    seen = []

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b, a)
        return a + b

    @staticmethod
    def backward(ctx, g):
        a, b, c = ctx.saved_tensors
        d, e, f = ctx.saved_tensors
        Unpacked.seen.append((a.data_ptr() == d.data_ptr() == c.data_ptr() == f.data_ptr(),
                              b.data_ptr() == e.data_ptr(), a.data_ptr() == b.data_ptr()))
        return g * a, g * b


@program()
def unpacked_twice_is_one_storage(record):
    """Two unpacks while the restored tensor is alive: the same storage, as in plain PyTorch."""
    Unpacked.seen.clear()
    x = torch.randn(128, 256, requires_grad=True)
    Unpacked.apply(x * 1.0, x.exp()).sum().backward()
    record.fact("same storage", Unpacked.seen)
    record.gradient("gradient", x.grad)


@program()
def unpacked_twice_from_outside(record):
    x = torch.randn(128, 256, requires_grad=True)
    y = (x * 1.0).exp()
    z = y * y.detach().cos()
    del y
    a, b = z.grad_fn._saved_other, z.grad_fn._saved_other
    record.check(a.data_ptr() == b.data_ptr(), "two reads while both are alive: one storage")
    z.backward(torch.ones(128, 256))
    record.gradient("gradient", x.grad)


@program(tolerance=0)
def views_of_weights(record):
    """Weights that are transposed, sliced, reshaped or tied are weights: they are exact."""
    w = nn.Parameter(torch.randn(256, 512))
    ways = (lambda x: x @ w.t()[:, :256][:256],
            lambda x: torch.addmm(torch.zeros(256), x, w[:, :256].t()),
            lambda x: F.linear(x, w[:, 100:356]),
            lambda x: x @ w.view(512, 256)[:256],
            lambda x: torch.einsum("bi,ji->bj", x, w[:, ::2]))
    for i, way in enumerate(ways):
        x = torch.randn(128, 256, requires_grad=True)
        way(x).backward(torch.ones(128, 256))
        record.gradient(str(i), x.grad)
    embed = nn.Embedding(512, 256)
    h = embed(torch.arange(128)).detach().requires_grad_()
    F.linear(h, embed.weight).backward(torch.ones(128, 512))
    record.gradient("tied", h.grad)


@program(tolerance=0)
def weight_storage_is_refilled(record):
    """Sharded training frees the storage of a weight after forward and fills it before backward."""
    w = nn.Parameter(torch.randn(256, 256))
    x = torch.randn(128, 256, requires_grad=True)
    y = F.linear(x, w)
    kept, size = w.detach().clone(), w.untyped_storage().nbytes()
    w.untyped_storage().resize_(0)
    junk = [torch.randn(256, 256) for _ in range(4)]  # takes the memory
    w.untyped_storage().resize_(size)
    w.data.copy_(kept)
    y.backward(torch.randn(128, 256))
    del junk
    record.gradient("gradient", x.grad)


class KeepsAttributes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.w = w
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        KeepsAttributes.seen.append((hasattr(w, "main_grad"), w is ctx.w, type(w).__name__))
        if hasattr(w, "main_grad"):
            w.main_grad.add_(x.t() @ g)
        return g @ w.t(), None


@program()
def parameters_come_back_themselves(record):
    """The same object with its attributes, trained or frozen."""
    KeepsAttributes.seen = []
    x = torch.randn(128, 256, requires_grad=True)
    for i, trained in enumerate((True, False)):
        w = nn.Parameter(torch.randn(256, 256), requires_grad=trained)
        w.main_grad = torch.zeros(256, 256)
        KeepsAttributes.apply(x, w).backward(torch.randn(128, 256))
        record.gradient(f"main_grad {i}", w.main_grad)
    record.fact("seen", KeepsAttributes.seen)
    record.gradient("gradient", x.grad)


@program()
def views_of_what_is_alive(record):
    """The original outlives backward, or dies before it, or a view of it does."""
    x = torch.randn(256, 256, requires_grad=True)
    for i in range(3):
        h = x * (1.0 + i)
        y = h[10:200].sigmoid() * h.t()[20:210]
        if i == 0:
            del h
        elif i == 1:
            h = h[::3]
        grad, = torch.autograd.grad(y, x, torch.ones_like(y))
        record.gradient(str(i), grad)


@program()
def storage_is_swapped(record):
    """.data exchanges what a tensor is made of, behind the back of autograd. Plain PyTorch goes on
    with the new values, who holds a copy with the old ones: it must not raise and not crash."""
    x = torch.randn(128, 256, requires_grad=True)
    h = x * 1.0
    y = h.exp() * h
    h.data = torch.zeros(128, 256)
    record.fact("error", error_text(lambda: y.backward(torch.ones(128, 256))))
    record.check(bool(x.grad.isfinite().all()), "finite")
