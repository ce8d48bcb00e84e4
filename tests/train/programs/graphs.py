# How often, in which order and by whom a graph is run: partial gradients, second orders,
# functional transforms, forward mode, hooks on gradients, functions of the program's own.
#
# SPDX-License-Identifier: MIT
import gc

import torch
import torch.autograd.forward_ad as forward_mode
import torch.nn.functional as F
from torch import nn

from . import digest, error_text, program


def block(width=256):
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width),
                         nn.Linear(width, width), nn.SiLU(), nn.Dropout(0.1))


@program()
def parts_in_another_order(record):
    x = torch.randn(128, 256, requires_grad=True)
    ws = [torch.randn(256, 256, requires_grad=True) for _ in range(4)]
    layers, h = [], x
    for w in ws:
        h = torch.tanh(h @ w / 16)
        layers.append(h)
    for i in (1, 3, 0, 2):
        record.gradients_of(f"layer {i}", torch.autograd.grad(
            layers[i], [x, ws[0]], torch.randn(128, 256), retain_graph=True))
    record.gradients_of("last", torch.autograd.grad(layers[3], ws[2:], torch.randn(128, 256),
                                                    retain_graph=True))
    layers[3].sum().backward(inputs=[ws[1]])
    record.check(ws[0].grad is None, "only what was asked for has a gradient")
    record.gradient("inputs=", ws[1].grad)


@program()
def three_passes(record):
    """Over one graph, each gives the same bits."""
    model = block()
    loss = model(torch.randn(128, 256)).pow(3).mean()
    parameters = list(model.parameters())
    passes = [torch.autograd.grad(loss, parameters, retain_graph=i < 2) for i in range(3)]
    record.check(all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(*passes)),
                 "three passes give the same bits")
    record.gradients_of("gradient", passes[0])


@program()
def two_losses(record):
    model, one, two = block(), nn.Linear(256, 16), nn.Linear(256, 16)
    h = model(torch.randn(128, 256))
    one(h).pow(3).mean().backward(retain_graph=True)
    record.model("first", model)
    two(h).exp().mean().backward()
    record.model("both", model)


@program()
def graph_is_dropped(record):
    """A graph that never runs backward, one whose half does, one that an exception ends."""
    model = block()
    for i in range(6):
        h = model(torch.randn(128, 256))
        half = model[0:3](h)
        if i % 3 == 1:
            half.pow(3).mean().backward()  # a plain sum over a layer norm has no gradient
        if i % 3 == 2:
            half.register_hook(lambda g: 1 // 0)
            record.fact(f"error {i}", error_text(half.sum().backward))
        del h, half
    gc.collect()
    record.model("model", model)


@program()
def unused_outputs(record):
    """Some outputs of an operator are never used, some saved tensors never asked for."""
    x = torch.randn(64, 256, requires_grad=True)
    values, indices = (x * 1.0).sort(-1)
    top, _ = (x * 2.0).topk(5, -1)
    mean, _ = torch.var_mean(x * 3.0, -1)
    (top.sum() + mean.sum()).backward()
    record.gradient("gradient", x.grad)
    del values, indices


@program()
def gradient_penalty(record):
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 128), nn.Softplus(),
                          nn.Linear(128, 1))
    x = torch.randn(128, 256, requires_grad=True)
    grad, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    penalty = ((grad.norm(dim=1) - 1) ** 2).mean()
    penalty.backward()
    record.gradients_of("gradient", [x.grad] + [p.grad for n, p in model.named_parameters()
                                                if n.endswith("weight")])


@program()
def higher_orders(record):
    """Second derivatives of what networks are made of."""
    for name, f in {"gelu": F.gelu, "silu": F.silu, "softmax": lambda t: t.softmax(-1),
                    "log_softmax": lambda t: t.log_softmax(-1), "tanh": torch.tanh,
                    "layer_norm": lambda t: F.layer_norm(t, (256,)), "mul": lambda t: t * t.sin(),
                    "matmul": lambda t: t @ t.t(), "sigmoid": torch.sigmoid,
                    "exp": torch.exp}.items():
        x = torch.randn(64, 256, requires_grad=True)
        y = f(x * 1.0)
        grad, = torch.autograd.grad(y, x, torch.randn(y.shape), create_graph=True)
        second, = torch.autograd.grad(grad, x, torch.randn(64, 256))
        record.gradient(f"{name} first", grad)
        record.gradient(f"{name} second", second)


@program()
def per_sample_gradients(record):
    model = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8))
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p, x, t):
        return F.cross_entropy(torch.func.functional_call(model, p, (x[None],)), t[None])

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
        parameters, torch.randn(256, 128), torch.randint(0, 8, (256,)))
    record.gradients_of("gradient", grads.values())


@program()
def functional_transforms(record):
    """grad, vjp, jvp, jacrev, jacfwd, hessian, and vmap over each other."""
    from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

    a, v = torch.randn(64, 64), torch.randn(64)
    x = torch.randn(64)

    def f(t):
        return F.gelu(a @ t).softmax(0)

    record.gradient("jacrev", jacrev(f)(x))
    record.gradient("jacfwd", jacfwd(f)(x))
    record.gradient("grad", grad(lambda t: f(t).square().sum())(x))
    record.gradient("hessian", jacfwd(jacrev(lambda t: f(t).square().sum()))(x))
    record.gradient("jvp", jvp(f, (x,), (v,))[1])
    record.gradient("vjp", vjp(f, x)[1](v)[0])
    record.gradient("vmap of grad", vmap(grad(lambda t: f(t).max()))(torch.randn(128, 64)))
    record.gradient("grad of vmap", grad(lambda m: vmap(f)(m).square().sum())(torch.randn(128, 64)))
    linear, tangent = torch.func.linearize(f, x)
    record.gradient("linearize", tangent(v))


@program()
def transforms_around_training(record):
    """A transform inside a training step, and a training step inside of a transform's function."""
    model = block()
    x = torch.randn(128, 256, requires_grad=True)
    h = model(x)
    inner = torch.func.grad(lambda t: (t.sin() * h.detach()).sum())(x.detach())
    (h * inner).sum().backward()
    record.gradient("outer", x.grad)
    record.model("model", model)


@program()
def forward_mode_derivatives(record):
    x, v = torch.randn(128, 256), torch.randn(128, 256)

    def f(a):
        return (F.gelu(a) * a.sigmoid()).softmax(-1)

    with forward_mode.dual_level():
        record.value("tangent", forward_mode.unpack_dual(f(forward_mode.make_dual(x, v))).tangent)
    with forward_mode.dual_level():
        # A dual tensor that requires grad is saved together with its tangent.
        y = f(forward_mode.make_dual(x.clone().requires_grad_(), v))
        value, tangent = forward_mode.unpack_dual(y)
        record.value("tangent with a graph", tangent)
    _, product = torch.func.jvp(torch.func.grad(lambda a: (f(a) * v).sum()), (x,), (v,))
    record.gradient("hessian times vector", product)


@program()
def forward_over_reverse_by_hand(record):
    x, v = torch.randn(64, 128), torch.randn(64, 128)
    leaf = x.clone().requires_grad_()
    with forward_mode.dual_level():
        dual = forward_mode.make_dual(leaf, v)
        grad, = torch.autograd.grad((dual.sin() * dual).sum(), leaf, create_graph=True)
        record.gradient("gradient", grad)
        tangent = forward_mode.unpack_dual(grad).tangent
        if tangent is not None:
            record.gradient("tangent", tangent)


@program(tolerance=0)
def hessian_in_float64(record):
    x = torch.randn(128, dtype=torch.float64)
    a = torch.randn(128, 128, dtype=torch.float64)
    record.gradient("func", torch.func.hessian(lambda t: (torch.tanh(a @ t) ** 3).sum())(x))
    record.gradient("autograd", torch.autograd.functional.hessian(
        lambda t: (a @ t).softmax(0).pow(2).sum(), x))


@program(tolerance=0)
def gradcheck(record):
    """Numerical and analytical gradients agree in float64, first and second order."""
    x = torch.randn(128, 128, dtype=torch.float64, requires_grad=True)
    for name, f in {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu,
                    "softmax": lambda t: t.softmax(-1),
                    "layer_norm": lambda t: F.layer_norm(t, (128,)),
                    "mul": lambda t: t * t.exp()}.items():
        record.check(torch.autograd.gradcheck(f, x, fast_mode=True, raise_exception=False), name)
        record.check(torch.autograd.gradgradcheck(f, x, fast_mode=True, raise_exception=False),
                     name + " twice")


@program()
def saved_attributes(record):
    """grad_fn._saved_X reads what was saved."""
    x = torch.randn(128, 256, requires_grad=True)
    h = x * 1.0
    y = h.exp()
    z = y * h
    for name, read, want in (("result", y.grad_fn._saved_result, y),
                             ("self", z.grad_fn._saved_self, y),
                             ("other", z.grad_fn._saved_other, h)):
        record.gradient(name, read)
        record.fact(name + " metadata", (read.shape, read.stride(), str(read.dtype),
                                         read.requires_grad, read.is_leaf,
                                         type(read.grad_fn).__name__))
        record.check((read - want).norm() <= 0.01 * want.norm(), f"{name} is what was saved")
    z.backward(torch.randn(128, 256))
    record.fact("afterwards", error_text(lambda: z.grad_fn._saved_self))
    record.gradient("gradient", x.grad)


@program()
def attributes_of_many_nodes(record):
    """Every attribute of every node of a graph can be read, and again, while its tensor lives."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Flatten(), nn.Linear(16 * 225, 64), nn.GELU(), nn.LayerNorm(64),
                          nn.Dropout(0.1), nn.Softmax(-1))
    alive = [torch.randn(8, 3, 32, 32)]
    for layer in model:
        alive.append(layer(alive[-1]))
    y = alive[-1]
    seen, queue = [], [y.grad_fn]
    while queue:
        node = queue.pop(0)
        for key in sorted(dir(node)):
            if key.startswith("_saved_"):
                value = getattr(node, key)
                again = getattr(node, key)
                if isinstance(value, torch.Tensor):
                    record.gradient(f"{len(seen)} {type(node).__name__}{key}", value)
                    record.check(torch.equal(value, again) or value.isnan().any(), key)
                    seen.append((type(node).__name__, key, value.shape, value.stride()))
        queue += [n for n, _ in node.next_functions if n is not None]
    record.fact("attributes", seen)
    y.square().sum().backward()
    record.model("model", model)


@program()
def attribute_of_what_nobody_holds(record):
    """Of the input of a pool only the shape is held: reading its values says so, does no harm, and has
    them kept from then on."""
    x = torch.randn(8, 16, 32, 32, requires_grad=True)
    for step in range(3):
        y = F.max_pool2d(x * 1.0, 2)
        try:
            record.check(torch.equal(y.grad_fn._saved_self, x), "what is read is what was saved")
        except RuntimeError as error:
            record.check("libmesa holds only" in str(error) and step == 0, error)
        y.sum().backward()
    record.gradient("gradient", x.grad)


@program()
def hooks_on_one_saved_tensor(record):
    """_raw_saved_X.register_hooks after the forward pass: the hook sees the tensor."""
    x = torch.randn(128, 256, requires_grad=True)
    h = x * 1.0
    y = h.exp()
    z = y * h
    seen = []

    def pack(t):
        seen.append((tuple(t.shape), t.stride(), str(t.dtype), bool(torch.allclose(t, h, 0.05, 0.05))))
        return t.clone()

    z.grad_fn._raw_saved_other.register_hooks(pack, lambda t: t)
    record.fact("seen", list(seen))
    again = z.grad_fn._raw_saved_other
    record.fact("again", error_text(lambda: again.register_hooks(pack, lambda t: t)))
    z.backward(torch.randn(128, 256))
    record.fact("seen at the end", seen)
    record.gradient("gradient", x.grad)


@program(tolerance=0)
def hooks_on_one_of_two_that_were_compared(record):
    """What the hook gets must compare with what is held of the other as the original did."""
    x, y = torch.randn(2, 128, 256, requires_grad=True).unbind()
    for read in ("self", "other", None):
        for lives in (False, True):
            p, q = x.detach().requires_grad_(), y.detach().requires_grad_()
            a, b = p * 1.0, q * 1.0
            alive = (a, b) if lives else None
            z = torch.maximum(a, b)
            del a, b
            if read:
                getattr(z.grad_fn, "_raw_saved_" + read).register_hooks(torch.clone, torch.clone)
            elif lives:
                record.check(torch.equal(z.grad_fn._saved_self, p), "a look shows the original")
                record.check(torch.equal(z.grad_fn._saved_other, q), "of both")
            z.sum().backward()
            record.gradient(f"{read} {lives} self", p.grad)
            record.gradient(f"{read} {lives} other", q.grad)
            del alive


@program()
def hooks_on_a_saved_output(record):
    x = torch.randn(128, 256, requires_grad=True)
    y = (x * 1.0).exp()
    y.grad_fn._raw_saved_result.register_hooks(lambda t: t * 2, lambda t: t / 2)
    y.sum().backward()
    record.gradient("gradient", x.grad)


@program()
def hooks_on_the_saved_tensor_of_the_dead(record):
    """As above, when nothing but the graph knows the tensor any more."""
    x = torch.randn(128, 256, requires_grad=True)
    z = (x * 1.0).exp() * x.sin()
    seen = []
    raw = z.grad_fn._raw_saved_self
    raw.register_hooks(lambda t: (seen.append(tuple(t.shape)), t.detach().clone())[1], lambda t: t)
    z.backward(torch.randn(128, 256))
    record.fact("seen", seen)
    record.gradient("gradient", x.grad)


@program()
def hooks_on_gradients(record):
    one, two = nn.Linear(256, 256), nn.Linear(256, 256)
    one.register_full_backward_hook(
        lambda m, gi, go: tuple(None if g is None else g * 0.5 for g in gi))
    two.register_full_backward_pre_hook(lambda m, go: tuple(g * 2 for g in go))
    x = torch.randn(128, 256, requires_grad=True)
    h = F.gelu(one(x))
    h.retain_grad()
    h.register_hook(lambda g: g.clamp(-0.01, 0.01))
    h.register_hook(lambda g: g * 3)
    y = two(h).tanh()
    y.grad_fn.register_prehook(lambda go: tuple(g * 1.5 for g in go))
    y.backward(torch.randn(128, 256) * 0.1)
    record.gradients_of("gradient", [x.grad, h.grad] + [p.grad for m in (one, two)
                                                        for p in m.parameters()])


@program()
def anomaly_mode(record):
    """Names the function whose backward gave NaN, and gives no false alarm."""
    with torch.autograd.detect_anomaly(check_nan=True):
        x = torch.rand(128, 256, requires_grad=True)
        record.fact("fine", error_text((F.gelu(x).softmax(-1) * x.sqrt()).sum().backward))
        z = torch.zeros(128, 256, requires_grad=True)
        record.fact("found", error_text((torch.sqrt(z * 1.0) * 0.0).sum().backward))


class Everything(torch.autograd.Function):
    """Saves inputs, outputs, intermediates and None; keeps one tensor as an attribute."""

    @staticmethod
    def forward(ctx, x, y):
        middle = x.sin()
        out = middle * y
        second = (x - y).tanh()
        ctx.attribute = x
        ctx.save_for_backward(x, None, middle, y, out, second)
        return out, second

    @staticmethod
    def backward(ctx, g, h):
        x, none, middle, y, out, second = ctx.saved_tensors
        assert none is None and ctx.attribute.shape == x.shape == out.shape
        inner = h * (1 - second * second)
        return g * x.cos() * y + inner, g * middle - inner


@program()
def custom_function(record):
    x = torch.randn(128, 256, requires_grad=True)
    w = torch.randn(256, 256, requires_grad=True)
    out, second = Everything.apply(x * 1.0, (x @ w) / 16)
    record.value("output", out)
    (out.pow(3).mean() + second.mean()).backward()
    record.gradients_of("gradient", [x.grad, w.grad])


class NewStyle(torch.autograd.Function):
    """setup_context, vmap by generation, double backward by once-differentiable parts."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, k):
        return x.exp() * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0])
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y + 0 * x, None

    @staticmethod
    def jvp(ctx, t, _):
        x, = ctx.saved_tensors
        return t * x.exp() * ctx.k


@program()
def custom_function_of_new_style(record):
    x = torch.randn(128, 256, requires_grad=True)
    grad, = torch.autograd.grad(NewStyle.apply(x * 0.5, 2.0).sum(), x, create_graph=True)
    grad.pow(3).mean().backward()
    record.gradients_of("gradient", [grad, x.grad])
    record.gradient("vmap", torch.func.vmap(torch.func.grad(
        lambda t: NewStyle.apply(t, 3.0).sum()))(torch.randn(128, 256)))


class OnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.x, ctx.k = x, k
        ctx.save_for_backward(None)
        return x * x * k

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x * ctx.k * g, None


@program(tolerance=0)
def tensors_on_the_context(record):
    """What never went through save_for_backward is nobody's business."""
    x = torch.randn(128, 256, requires_grad=True)
    OnContext.apply(x, 3.0).backward(torch.randn(128, 256))
    record.gradient("gradient", x.grad)


class Reenters(torch.autograd.Function):
    """Rebuilds a piece of the network inside of its own backward and runs backward over it."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x)
        torch.autograd.backward(y, g)
        return x.grad, None


@program()
def backward_inside_of_backward(record):
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)) for _ in range(3)]
    x = torch.randn(128, 256, requires_grad=True)
    h = x
    for layer in layers:
        h = Reenters.apply(h, layer)
    h.pow(3).mean().backward()
    record.gradients_of("gradient", [x.grad] + [p.grad for l in layers for p in l.parameters()])


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        ctx.saved_tensors
        raise ValueError("in the middle of backward")


@program()
def exception_in_backward(record):
    """It arrives as it is, and the graph can be used again, or dropped."""
    model = block()
    x = torch.randn(128, 256, requires_grad=True)
    good = model(x)
    bad = Raises.apply(good)
    record.fact("error", error_text(lambda: bad.sum().backward(retain_graph=True)))
    record.fact("again", error_text(lambda: bad.sum().backward(retain_graph=True)))
    del bad
    good.sum().backward()
    record.model("model", model)


@program(tolerance=0)
def saved_before_it_is_filled(record):
    """rrelu hands its noise to autograd before the kernel has written it."""
    for shape in ((128, 256), (64, 1024)):
        x = torch.randn(shape, requires_grad=True)
        y = F.rrelu(x, 0.1, 0.4, training=True)
        y.backward(torch.ones(shape))
        slope = torch.where(x > 0, torch.ones_like(x), y / x).detach()
        record.check((x.grad - slope).norm() < 0.02 * slope.norm(), "the slope is that of forward")
        record.gradient(str(shape), x.grad)
    x = torch.randn(128, 256, requires_grad=True)
    F.rrelu_(x * 1.0, 0.1, 0.4, True).backward(torch.ones(128, 256))
    record.gradient("in place", x.grad)
