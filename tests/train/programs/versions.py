# Writing into what was saved: the error comes when it comes in plain PyTorch, with the same words.
#
# SPDX-License-Identifier: MIT
import torch
import torch.nn.functional as F
from torch import nn

from . import error_text, program


def add_one(victim):
    with torch.no_grad():
        victim.add_(1)


def overwrite(victim):
    add_one(victim) if victim.dtype != torch.bool else victim.logical_not_()


# name -> h -> (result, what is saved of it). One for each way of holding and then some.
SAVED = {
    "exp result": lambda h: two(h.exp()),
    "sigmoid result": lambda h: two(h.sigmoid()),
    "tanh result": lambda h: two(h.tanh()),
    "softmax result": lambda h: two(h.softmax(-1)),
    "relu result": lambda h: two(h.relu()),
    "gelu input": lambda h: (F.gelu(h), h),
    "silu input": lambda h: (F.silu(h), h),
    "mul input": lambda h: (h * h, h),
    "mm input": lambda h: (h @ torch.ones(256, 256, requires_grad=True), h),
    "layer norm input": lambda h: (F.layer_norm(h, (256,)), h),
    "log_softmax result": lambda h: two(h.log_softmax(-1)),
    "pow input": lambda h: (h ** 3, h),
    "log input": lambda h: (h.abs().add(1).log(), h),
    "batch norm input": lambda h: (F.batch_norm(h, None, None, training=True), h),
    "float64 input": lambda h: (lambda d: (d.sin(), d))(h.double()),
    "bfloat16 input": lambda h: (lambda d: (d.sin(), d))(h.bfloat16()),
}


def two(y):
    return y * 2, y


def mask_of(h):
    mask = torch.rand(128, 256) > 0.5
    return torch.where(mask, h, 0.0), mask


def index_of(h):
    index = torch.randint(0, 256, (128, 256))
    return h.gather(1, index), index


SAVED["boolean mask"] = mask_of
SAVED["int64 index"] = index_of


@program()
def written(record):
    """The victim is alive when backward finds out."""
    x = torch.randn(128, 256, requires_grad=True)
    for name, f in SAVED.items():
        y, victim = f(x * 1.0)
        overwrite(victim)
        record.fact(name, error_text(y.sum().backward))


@program()
def written_and_gone(record):
    """The victim itself is gone; so is everything else that shares its storage."""
    x = torch.randn(128, 256, requires_grad=True)
    for name, f in SAVED.items():
        y, victim = f(x * 1.0)
        overwrite(victim)
        del victim
        record.fact(name, error_text(y.sum().backward))


@program()
def written_at_another_time(record):
    """Written between two backwards, written twice, written before it is saved."""
    x = torch.randn(128, 256, requires_grad=True)
    for name, f in SAVED.items():
        y, victim = f(x * 1.0)
        y.sum().backward(retain_graph=True)
        for _ in range(2):
            overwrite(victim)
        record.fact(name, error_text(y.sum().backward))
    h = x * 1.0
    add_one(h)
    add_one(h)
    y = h.sin()
    record.fact("before", error_text(lambda: y.sum().backward(retain_graph=True)))
    add_one(h)
    record.fact("after", error_text(y.sum().backward))


class View(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(256, 128)

    @staticmethod
    def backward(ctx, g):
        return g.view(128, 256)


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def with_mode(mode, f):
    def view(base):
        with mode():
            return f(base)
    return view


VIEWS = {
    "transposed": lambda h: h.t(), "row": lambda h: h[3:, ::2],
    "diagonal blocks": lambda h: h.unfold(0, 16, 16),
    "split": lambda h: h.split(32)[1], "of split": lambda h: h.split(32)[1].t()[3:],
    "chunk": lambda h: h.chunk(2, 1)[1], "unbind": lambda h: h.view(2, 64, 256).unbind(0)[1],
    "split with sizes": lambda h: h.split([50, 78])[0],
    "iterated": lambda h: list(h.view(2, 64, 256))[1],
    "tensor_split": lambda h: h.tensor_split(2)[1], "hsplit": lambda h: h.hsplit(2)[0],
    "detached": lambda h: h.detach(), "of a function": View.apply,
    "of that": lambda h: View.apply(h).t(),
    "same": Same.apply, "no_grad": with_mode(torch.no_grad, lambda h: h.t()),
    "of no_grad": lambda h: with_mode(torch.no_grad, lambda h: h.view(256, 128))(h).t(),
    "inference": with_mode(torch.inference_mode, lambda h: h.t()),
}


@program()
def views_of_what_is_written(record):
    """libtorch would have to give a view a new node then, and refuses to for some."""
    for name, view in VIEWS.items():
        for mode in (torch.no_grad, torch.enable_grad):
            for again in range(3):  # what is never written is held from its second save on
                h = torch.randn(128, 256, requires_grad=True) * 1.0
                v = view(h)
                y = v * torch.randn(v.shape, requires_grad=True)
                with mode():
                    h.mul_(2)
                del h, v
                record.fact(f"{name}, {mode.__name__}, {again}", error_text(y.sum().backward))


@program()
def second_output_is_written(record):
    """The message calls every input output 0 of its op, whichever it is."""
    x = torch.randn(128, 256, 32, requires_grad=True)
    for name, f in {"std_mean": lambda: torch.std_mean(x, 2)[1],
                    "aminmax": lambda: torch.aminmax(x, dim=2)[1],
                    "frexp": lambda: torch.frexp(x.sum(2))[0]}.items():
        h = f()
        y = h.tanh() * h * torch.randn(128, 256, requires_grad=True)
        add_one(h)
        del h
        record.fact(name, error_text(y.sum().backward))


@program()
def written_through_something_else(record):
    """Views, bases and detach() share the counter."""
    x = torch.randn(128, 256, requires_grad=True)
    writes = {"row": lambda y: y[0].zero_(), "flat": lambda y: y.view(-1)[7:9].fill_(2),
              "detached": lambda y: y.detach().mul_(2), "transposed": lambda y: y.t().add_(1),
              "copied": lambda y: y.copy_(torch.zeros(())), "filled": lambda y: y.index_fill_(
                  0, torch.tensor([3]), 1.0), "out=": lambda y: torch.sin(x.detach(), out=y)}
    for name, write in writes.items():
        y = (x * 1.0).exp()
        z = y * 3
        with torch.no_grad():
            write(y.detach() if name == "out=" else y)
        record.fact(name, error_text(z.sum().backward))
    for gone in (False, True):
        base = x * 1.0
        z = base[2:100].sigmoid() * base[2:100]  # a view is saved, the base is written
        with torch.no_grad():
            base.zero_()
        if gone:
            del base
        record.fact(f"base, gone: {gone}", error_text(z.sum().backward))


@program()
def written_without_a_trace(record):
    """.data does not count, and gives the gradient of what was there in each run of plain."""
    x = torch.randn(128, 256, requires_grad=True)
    h = x * 1.0
    y = h.exp()
    z = y * 3
    y.data.zero_()
    # Plain PyTorch silently uses the zeros. A held copy has the values of forward. Both are
    # outside of what anyone may rely on: it must not raise and not crash.
    record.fact("error", error_text(z.sum().backward))


@program()
def written_leaf(record):
    """An optimizer step between forward and backward."""
    linear = nn.Linear(256, 256)
    x = torch.randn(128, 256, requires_grad=True)
    y = linear(x)
    add_one(linear.weight)
    record.fact("error", error_text(y.sum().backward))


@program()
def read_after_write(record):
    """Reading grad_fn._saved_... tells the same."""
    x = torch.randn(128, 256, requires_grad=True)
    h = x * 1.0
    y = h.exp()
    add_one(h)
    z = y * y
    add_one(y)
    record.fact("exp", error_text(lambda: z.grad_fn._saved_self))
    record.fact("both", error_text(z.sum().backward))


@program()
def second_backward(record):
    """Without retain_graph a second backward raises, in the same words."""
    x = torch.randn(128, 256, requires_grad=True)
    for name, f in SAVED.items():
        y, _ = f(x * 1.0)
        y.sum().backward()
        record.fact(name, error_text(y.sum().backward))
        record.fact(name + " attributes", sorted(
            (key, error_text(lambda: getattr(y.grad_fn, key)))
            for key in dir(y.grad_fn) if key.startswith("_saved")))


@program()
def inference_tensors(record):
    """They may not be saved for backward."""
    with torch.inference_mode():
        t = torch.randn(128, 256)
    w = torch.randn(128, 256, requires_grad=True)
    record.fact("mul", error_text(lambda: t * w))
    record.fact("linear", error_text(lambda: F.linear(t, w)))


class ExpInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g * y


@program()
def custom_function_in_place(record):
    p = torch.randn(256, 256, requires_grad=True)
    h = p * 0.5
    y = ExpInPlace.apply(h)
    record.check(y is h, "the function returned its input")
    (y[10:200] * 2).backward(torch.randn(190, 256))
    record.gradient("gradient", p.grad)
    later = ExpInPlace.apply(torch.randn(256, 256, requires_grad=True) * 1.0)
    later.mul_(2)
    record.fact("written later", error_text(later.sum().backward))


@program()
def activations_in_place(record):
    """Each after an operator that does not need its own output."""
    for name, f in {
            "relu_": torch.relu_, "leaky_relu_": lambda t: F.leaky_relu_(t, 0.1), "elu_": F.elu_,
            "hardtanh_": F.hardtanh_, "silu": lambda t: F.silu(t, inplace=True),
            "hardswish": lambda t: F.hardswish(t, inplace=True),
            "relu6": lambda t: F.relu6(t, inplace=True), "sigmoid_": torch.sigmoid_,
            "tanh_": torch.tanh_, "exp_": torch.exp_, "mish": lambda t: F.mish(t, inplace=True),
            "celu": lambda t: F.celu(t, inplace=True), "selu": lambda t: F.selu(t, inplace=True),
            "dropout": lambda t: F.dropout(t, 0.3, inplace=True)}.items():
        p = torch.randn(128, 256, requires_grad=True)
        f(p + 0.0).backward(torch.randn(128, 256))
        record.gradient(name, p.grad)


@program()
def activations_in_place_on_views(record):
    p = torch.randn(128, 256, requires_grad=True)
    h = p + 0.0
    F.silu(h[:, ::2], inplace=True)  # saves a clone of its input
    h[3:50].mul_(torch.linspace(0.5, 1.5, 256))
    F.relu_(h[60:])
    h.backward(torch.randn(128, 256))
    record.gradient("gradient", p.grad)
