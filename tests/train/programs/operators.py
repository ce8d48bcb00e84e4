# PyTorch's own database of operators: for every sample input the outputs and the gradients of
# first and second order, in-place variants included. Nothing is too small: MESA_MIN_BYTES is 0.
#
# A chunk of operators is a program: there are several hundred, and starting them one by one would
# be most of the time. CORE is what networks are made of, for every day; chunks are for --slow.
#
# SPDX-License-Identifier: MIT
import contextlib
import functools
import io
import math
import random
import warnings

import numpy
import torch

from . import add

CHUNKS = 24
SMALL = (("MESA_MIN_BYTES", "0"),)

# Operators whose plain results differ from run to run, or that leave values undefined.
UNDEFINED = {
    "empty_strided", "new_empty", "new_empty_strided", "empty_like", "empty", "empty_permuted",
    "resize_", "resize_as_", "meshgrid",
    # LAPACK's least squares depend on the alignment of the workspace.
    "linalg.lstsq",
    # The sign of a vector is the choice of the library below.
    "linalg.eig", "linalg.eigh", "linalg.svd", "svd", "svd_lowrank", "pca_lowrank",
}

CORE = """
    abs add addbmm addcdiv addcmul addmm amax atan2 baddbmm bmm cat clamp cos cumprod cumsum div
    einsum erf exp expm1 flip gather index_add index_put index_select
    linalg.norm linalg.vector_norm log log1p log_softmax logsumexp lerp masked_fill matmul max
    maximum mean minimum mm mul native_layer_norm native_batch_norm nn.functional.adaptive_avg_pool2d
    nn.functional.avg_pool2d nn.functional.batch_norm nn.functional.binary_cross_entropy
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv_transpose2d
    nn.functional.cross_entropy nn.functional.dropout nn.functional.elu nn.functional.embedding
    nn.functional.embedding_bag nn.functional.gelu nn.functional.glu nn.functional.group_norm
    nn.functional.hardswish nn.functional.hardtanh nn.functional.huber_loss
    nn.functional.interpolate nn.functional.kl_div nn.functional.layer_norm
    nn.functional.leaky_relu nn.functional.linear nn.functional.logsigmoid
    nn.functional.max_pool2d nn.functional.mish nn.functional.mse_loss nn.functional.nll_loss
    nn.functional.normalize nn.functional.pad nn.functional.prelu nn.functional.relu
    nn.functional.relu6 nn.functional.rms_norm nn.functional.rrelu
    nn.functional.scaled_dot_product_attention nn.functional.silu nn.functional.smooth_l1_loss
    nn.functional.softplus nn.functional.softsign nn.functional.tanhshrink nn.functional.threshold
    norm pow prod reciprocal repeat rsqrt scatter scatter_add scatter_reduce select sigmoid sin
    softmax sort sqrt square std sub sum take_along_dim tanh topk tril var where
""".split()


@functools.cache
def database():
    """Operators with a gradient, in the order of the database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db
            if op.supports_autograd and op.name not in UNDEFINED
            and (torch.float32 in op.supported_dtypes("cpu")
                 or torch.float64 in op.supported_dtypes("cpu"))]


def label(op):
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


def samples(op):
    """The sample inputs of an operator, the same in every run."""
    dtype = torch.float32 if torch.float32 in op.supported_dtypes("cpu") else torch.float64
    seed()
    return list(op.sample_inputs("cpu", dtype, requires_grad=True))


def seed():
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def tensors_in(tree):
    from torch.utils._pytree import tree_leaves

    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def differentiable(tensors):
    return [t for t in tensors if t.requires_grad and t.layout == torch.strided
            and (t.is_floating_point() or t.is_complex())]


def weights_for(tensors):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors]


def run_sample(record, name, call, inputs, scales):
    """Outputs, first and second gradients of one call; an error is a fact like any other."""
    seed()
    try:
        result = call()
    except Exception as error:
        record.fact(f"{name} error", f"{type(error).__name__}: {error}")
        return
    outputs = tensors_in(result)
    for i, out in enumerate(outputs):
        if out.layout == torch.strided and not out.is_quantized:
            record.value(f"{name} output {i}", out)
    outputs = differentiable(outputs)
    inputs = differentiable(inputs)
    if not outputs or not inputs:
        return
    weights = weights_for(outputs)
    seed()
    try:
        alone = torch.autograd.grad(outputs, inputs, weights, retain_graph=True, allow_unused=True)
        for i, g in enumerate(alone):
            if g is not None:
                record.gradient(f"{name} gradient {i}", g, scales[0])
        first = torch.autograd.grad(outputs, inputs, weights, create_graph=True, allow_unused=True)
        first = [g for g in first if g is not None]
        for i, g in enumerate(first):
            record.gradient(f"{name} first {i}", g, scales[0])
        again = differentiable(first)
        if again:
            second = torch.autograd.grad(again, inputs, weights_for(again), allow_unused=True)
            for i, g in enumerate(second):
                if g is not None:
                    record.gradient(f"{name} second {i}", g, scales[1])
    except Exception as error:
        record.fact(f"{name} gradient error", f"{type(error).__name__}: {error}")


def run_operator(record, op):
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        scales = SHARP.get(op.name, (1.0, 1.0))
        for i, sample in enumerate(samples(op)):
            inputs = tensors_in([sample.input, sample.args, sample.kwargs])
            run_sample(record, f"{label(op)} {i}",
                       lambda: op(sample.input, *sample.args, **sample.kwargs), inputs, scales)
            in_place = op.inplace_variant
            if in_place and isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input:
                run_sample(record, f"{label(op)} {i} in place", lambda: in_place(
                    sample.input * 1, *sample.args, **sample.kwargs), inputs, scales)


def run_operators(record, choose):
    for op in choose(database()):
        run_operator(record, op)


# Some formulas are badly conditioned: what a gradient of first or second order makes of an error
# of 8 bits in one of five elements has no common bound. This one finds wrong formulas, not noise;
# upstream gradients are of size 1, and so are the terms of which a gradient is the sum.
BOUND = 0.05

# Operators whose samples amplify: exponentials of products of numbers around 5, negative powers of
# numbers around 0. Size of the terms of a gradient of first and of second order; infinite means no
# bound under lossy policies. Exact policies compare the bits of all of them.
SHARP = {
    "nn.functional.scaled_dot_product_attention": (20.0, math.inf),
    "nn.functional.multi_head_attention_forward": (200.0, math.inf),
    "nn.functional.linear_cross_entropy": (10.0, math.inf),
    "cov": (100.0, math.inf),
    "nn.functional.normalize": (1.0, math.inf),
    "index_reduce": (1.0, math.inf),
    "scatter_reduce": (1.0, math.inf),
    "__rdiv__": (1.0, math.inf),
    "linalg.householder_product": (1.0, math.inf),
}

add("operators.core", lambda record: run_operators(
    record, lambda ops: [op for op in ops if op.name in CORE]), BOUND, environment=SMALL)
for chunk in range(CHUNKS):
    add(f"operators.chunk{chunk:02}", lambda record, chunk=chunk: run_operators(
        record, lambda ops: ops[chunk::CHUNKS]), BOUND, slow=True, environment=SMALL)
