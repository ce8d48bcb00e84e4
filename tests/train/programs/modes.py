# The ways in which people run a training step: attention kernels, checkpointing, hooks of their
# own, compilers, memory formats, loss scaling.
#
# SPDX-License-Identifier: MIT
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import TOLERANCE, add, digest, program
from .zoo import bert, deit_tiny, digits, gpt2, llama, resnet18, t5, timm_classifier, unet


def one_step(record, build, prepare=None):
    model, loss = build()
    if prepare:
        model = prepare(model) or model
    value = loss()
    record.value("loss", value)
    value.backward()
    record.model("model", model)
    record.digest("random state", torch.get_rng_state())


for name, build, tolerance in (("gpt2", gpt2, 0.006), ("llama", llama, 0.006),
                               ("bert", bert, 0.006), ("t5", t5, 0.008)):
    for attention in ("sdpa", "eager"):
        add(f"modes.{name}_{attention}",
            lambda r, build=build, attention=attention: one_step(r, lambda: build(attention)),
            tolerance)


@program(tolerance=0.006)
def deit_without_fused_attention(record):
    def prepare(model):
        for block in model.blocks:
            block.attn.fused_attn = False

    one_step(record, deit_tiny, prepare)


@program()
def scaled_dot_product_attention(record):
    """Causal, with a boolean mask, with a float mask, grouped heads; fewer queries than keys."""
    project = nn.Linear(128, 384)
    x = torch.randn(4, 128, 128, requires_grad=True)
    q, k, v = project(x).view(4, 128, 3, 4, 32).permute(2, 0, 3, 1, 4)
    mask = (torch.rand(128, 128) > 0.3) | torch.eye(128, dtype=torch.bool)
    bias = torch.randn(4, 1, 128, 128).requires_grad_()
    outs = [F.scaled_dot_product_attention(q, k, v, is_causal=True),
            F.scaled_dot_product_attention(k, q, v, attn_mask=mask),
            F.scaled_dot_product_attention(v, k, q, attn_mask=bias),
            F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
            F.scaled_dot_product_attention(q[:, :, :50], k, v)]
    for i, out in enumerate(outs):
        record.value(f"attention {i}", out)
    sum(o.square().sum() for o in outs).backward()
    record.gradients_of("gradient", [x.grad, project.weight.grad, project.bias.grad, bias.grad])


@program()
def multihead_attention(record):
    attend = nn.MultiheadAttention(128, 4, dropout=0.1, batch_first=True)
    x = torch.randn(4, 96, 128, requires_grad=True)
    out, weights = attend(x, x, x, average_attn_weights=False)
    record.value("attention", out)
    (out.pow(3).mean() + weights.pow(3).mean()).backward()
    record.gradients_of("gradient", [x.grad, attend.in_proj_weight.grad])


def recompute(reentrant):
    def prepare(model):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()

    return prepare


for kind in (True, False):
    add(f"modes.checkpoint_{'reentrant' if kind else 'not_reentrant'}",
        lambda r, kind=kind: one_step(r, gpt2, recompute(kind)), 0.006)


@program()
def checkpoint_repeats_dropout(record):
    """Masks that are drawn again are the first ones: with and without recomputing is the same."""
    block = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.3), nn.Linear(256, 256),
                          nn.Dropout(0.3))
    start = torch.randn(128, 256)
    for way in (None, False, True):
        torch.manual_seed(7)
        block.zero_grad()
        x = start.clone().requires_grad_()
        h = F.dropout(x, 0.2)
        y = block(h) if way is None else checkpoint(block, h, use_reentrant=way)
        record.value(f"{way} output", y)
        (y.pow(3).mean() + F.dropout(y, 0.5).mean()).backward()
        record.gradients_of(f"{way}", [x.grad] + [p.grad for p in block.parameters()])


@program()
def checkpoint_in_checkpoint(record):
    a, b, c = (nn.Sequential(nn.Linear(256, 256), nn.SiLU(), nn.LayerNorm(256)) for _ in range(3))
    x = torch.randn(128, 256, requires_grad=True)

    def inner(t):
        return checkpoint(b, a(t), use_reentrant=False)

    def outer(t):
        return c(checkpoint(inner, t, use_reentrant=False)) + t

    y = checkpoint(outer, x, use_reentrant=False, determinism_check="default")
    y.pow(3).mean().backward()
    record.gradients_of("gradient", [x.grad] + [p.grad for m in (a, b, c) for p in m.parameters()])


@program()
def checkpoint_policy_of_operators(record):
    """Selective checkpointing keeps the products of matrices and recomputes the rest."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def keep(ctx, op, *args, **kwargs):
        wanted = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if wanted else CheckpointPolicy.PREFER_RECOMPUTE

    block = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256))
    x = torch.randn(128, 256, requires_grad=True)
    y = checkpoint(block, x, use_reentrant=False,
                   context_fn=lambda: create_selective_checkpoint_contexts(keep))
    y.pow(3).mean().backward()
    record.gradients_of("gradient", [x.grad] + [p.grad for p in block.parameters()])


@program(tolerance=2 * TOLERANCE)  # bfloat16 has 8 bits itself
def checkpoint_under_autocast(record):
    block = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256))
    x = torch.randn(256, 256, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = checkpoint(block, block(x), use_reentrant=False)
        loss = y.float().pow(3).mean()
    record.value("loss", loss)
    loss.backward()
    record.fact("types", [str(p.grad.dtype) for p in block.parameters()] + [str(x.grad.dtype)])
    record.gradients_of("gradient", [x.grad] + [p.grad for p in block.parameters()])


@program(tolerance=0)
def hooks_of_the_program(record):
    """The program's own hooks see the real tensors, parameters among them, each exactly once."""
    x = torch.randn(128, 256, requires_grad=True)
    w = nn.Parameter(torch.randn(256, 256))
    packed, unpacked = [], []

    def pack(t):
        packed.append((digest(t), t.data_ptr() in (x.data_ptr(), w.data_ptr())))
        return "box", t.clone()

    def unpack(box):
        unpacked.append(digest(box[1]))
        return box[1]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = F.gelu(x @ w).softmax(-1)
    y.backward(torch.randn(128, 256))
    record.fact("packed", packed)
    record.fact("unpacked", unpacked)
    record.gradients_of("gradient", [x.grad, w.grad])


@program(tolerance=0)
def save_on_cpu(record):
    with torch.autograd.graph.save_on_cpu():
        one_step(record, unet)


@program(tolerance=0)
def hooks_forbidden(record):
    """Where saved tensor hooks are forbidden, training goes on as it would without any. The mean square
    of a layer norm's output has next to no gradient: any rounding would be larger."""
    block = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))
    x = torch.randn(128, 256, requires_grad=True)
    for name, power in (("square", 2), ("cube", 3)):
        with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
            got = torch.autograd.grad(block(x).pow(power).mean(), [x, *block.parameters()])
        record.gradients_of(name, got)


@program()
def hooks_in_part(record):
    """Hooks of the program around the middle layer only."""
    a, b, c = (nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(3))
    x = torch.randn(128, 256, requires_grad=True)
    h = a(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        h = b(h)
    c(h).pow(3).mean().backward()
    record.gradients_of("gradient", [x.grad] + [p.grad for m in (a, b, c) for p in m.parameters()])


@program()
def copies_on_write(record):
    """allow_mutation_on_saved_tensors: the program may write over what is saved."""
    x = torch.randn(128, 256, requires_grad=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        h = x * 1.0
        y = h.sin()
        h.mul_(2)
        (y + h).sum().backward()
        record.gradient("gradient", x.grad)




def compiled_step(record, backend):
    """Two steps of a compiled block; the second runs what the first has compiled."""
    torch._dynamo.reset()
    block = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256),
                          nn.ReLU(), nn.Softmax(-1))
    fast = torch.compile(block, backend=backend)
    for step in range(2):
        block.zero_grad()
        y = fast(torch.randn(128, 256))
        loss = (y * torch.linspace(-1, 1, 256)).sum(-1).pow(3).mean()
        record.value(f"{step} loss", loss)
        loss.backward()
        record.model(f"{step}", block)


add("modes.compile_eager", lambda r: compiled_step(r, "eager"), 0.008)
add("modes.compile_aot_eager", lambda r: compiled_step(r, "aot_eager"), 0.008)
add("modes.compile_inductor", lambda r: compiled_step(r, "inductor"), 0.008, slow=True, alone=True)
add("modes.compile_gpt2_aot_eager", lambda r: one_step_of_compiled(r, "aot_eager"), slow=True)
add("modes.compile_gpt2_inductor", lambda r: one_step_of_compiled(r, "inductor"), slow=True,
    alone=True)


def one_step_of_compiled(record, backend):
    torch._dynamo.reset()
    model, loss = gpt2()
    model.transformer.forward = torch.compile(model.transformer.forward, backend=backend)
    value = loss()
    record.value("loss", value)
    value.backward()
    record.model("model", model)


@program(tolerance=0.008)
def channels_last_resnet(record):
    model, _ = resnet18()
    model = model.to(memory_format=torch.channels_last)
    images, labels = digits(64)
    x = images[:8].to(memory_format=torch.channels_last).requires_grad_()
    loss = F.cross_entropy(model(x), labels[:8])
    record.value("loss", loss)
    loss.backward()
    record.model("model", model)
    record.fact("strides", [x.grad.stride()] + [p.grad.stride() for p in model.parameters()])


@program(tolerance=0.006)
def channels_last_convnext(record):
    one_step(record, lambda: timm_classifier("convnext_atto", 64),
             lambda model: model.to(memory_format=torch.channels_last))


@program(tolerance=0)
def infinite_gradients(record):
    """Loss scaling relies on overflow arriving: scales go down until gradients are finite."""
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000,
                                  backoff_factor=2.0**-20)
    scales, finite = [], []
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 256) * 1e4).pow(3).mean()
        scaler.scale(loss).backward()
        finite.append(all(bool(p.grad.isfinite().all()) for p in model.parameters()))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    record.fact("scales", scales)
    record.fact("finite", finite)
    record.check(not finite[0] and finite[-1], f"overflow first, then none: {finite}")


@program()
def gradient_accumulation(record):
    """Micro-batches add up to the gradient of the whole; gradients keep their strides."""
    model = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(16, 16, 3, padding=1), nn.GELU(), nn.Flatten(),
                          nn.Linear(16 * 256, 32))
    x, t = torch.randn(32, 4, 16, 16), torch.randint(0, 32, (32,))
    F.cross_entropy(model(x), t).backward()
    record.model("whole", model)
    model.zero_grad()
    for i in range(0, 32, 8):
        (F.cross_entropy(model(x[i:i + 8]), t[i:i + 8]) / 4).backward()
    record.model("parts", model)
    record.fact("strides", [p.grad.stride() for p in model.parameters()])


@program()
def optimizer_in_backward(record):
    """Parameters are stepped as soon as their gradient is there, while other nodes still run."""
    model = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 256),
                          nn.LayerNorm(256))
    start = [p.detach().clone() for p in model.parameters()]
    optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        model(torch.randn(128, 256)).pow(3).mean().backward()
    record.gradients_of("moved", [p.detach() - q for p, q in zip(model.parameters(), start)])


@program(tolerance=0)
def evaluation(record):
    """Without gradients nothing is saved, and results are the same bits."""
    model, loss = gpt2()
    model.eval()
    with torch.no_grad():
        record.value("no_grad", loss())
    with torch.inference_mode():
        record.value("inference", loss().clone())
    record.value("with a graph", loss())


@program(tolerance=0.008)
def frozen_batch_norm(record):
    """Statistics of evaluation, frozen layers in front of trained ones."""
    model, loss = resnet18()
    model.eval()
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith(("layer3", "layer4", "fc")))
    value = loss()
    record.value("loss", value)
    value.backward()
    record.model("model", model)


@program()
def recurrent_layers(record):
    """LSTM and GRU over packed sequences, both directions."""
    lstm, gru = nn.LSTM(64, 64, 2, bidirectional=True), nn.GRU(128, 64)
    x = torch.randn(40, 32, 64, requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.arange(40, 8, -1))
    first, (h, c) = lstm(packed)
    second, _ = gru(first)
    y, _ = nn.utils.rnn.pad_packed_sequence(second)
    record.value("output", y)
    (y.pow(3).mean() + h.pow(3).mean() + c.mean()).backward()
    record.gradients_of("gradient", [x.grad] + [p.grad for m in (lstm, gru)
                                                for p in m.parameters()])


@program(tolerance=0.006)
def two_threads_inside_operators(record):
    torch.set_num_threads(2)
    one_step(record, deit_tiny)
