# Functions of the program's own are known by their class: in reports, and to the rules of policies.
#
# SPDX-License-Identifier: MIT
import harness

CLASSES = """
import gc, sys, threading, weakref
import torch
torch.set_num_threads(1)

class MyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

class Other(MyFunction):
    pass

class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            ctx.inner, ctx.result = inner, MyFunction.apply(inner * 2)
        ctx.save_for_backward(x * 3)
        return ctx.result.detach()

    @staticmethod
    def backward(ctx, g):
        return torch.autograd.grad(ctx.result, ctx.inner, g)[0] + 0 * ctx.saved_tensors[0]

x = torch.randn(256, 256, requires_grad=True)
"""


def rows_of(code, tmp_path, policy="include default; custom:MyFunction affine bits=8"):
    """(operator, argument) -> what the report of a program says that was held of it."""
    rows = harness.report_of(CLASSES + code, tmp_path, policy)["records"]
    return {(row["op"], row["argument"]): row for row in rows if row["way"] != "share"}


def test_rule_for_one_class(tmp_path):
    rows = rows_of("for _ in range(3): Other.apply(MyFunction.apply(x * 1)).sum().backward()\n",
                   tmp_path)
    assert rows["MyFunction", "saved"]["way"] == "affine 8"
    assert list(rows) == [("MyFunction", "saved")], "of Other nothing is held"


def test_classes_inside_of_each_other_and_in_threads(tmp_path):
    rows = rows_of("""
def work(): Outer.apply(x * 1).sum().backward()
for _ in range(3):
    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]; [t.join() for t in threads]
""", tmp_path, "include default; custom:Out* bfloat16")
    assert rows["Outer", "saved"]["way"] == "bfloat16"
    assert ("MyFunction", "saved") not in rows


def test_compiled_graph(tmp_path):
    rows = rows_of("""
f = torch.compile(lambda t: torch.sin(torch.sin(t) * 2), backend="aot_eager")
for _ in range(3): f(x * 1).sum().backward()
""", tmp_path, "include default; custom:CompiledFunction affine bits=8")
    assert rows["CompiledFunction", "saved"]["way"] == "affine 8"


def test_asking_for_the_class_leaves_nothing_behind(tmp_path):
    """No reference to a class, a frame or a tensor, and no exception."""
    rows_of("""
Other.apply(MyFunction.apply(x * 1)).sum().backward()
before = sys.getrefcount(MyFunction), sys.getrefcount(Other)
for _ in range(50):
    h = x * 1
    watch = weakref.ref(h)
    gc.disable()
    y = MyFunction.apply(h)
    del h
    # Its node keeps it in no way: what is saved is another tensor.
    assert watch() is None
    gc.enable()
    y.sum().backward()
    del y
gc.collect()
assert (sys.getrefcount(MyFunction), sys.getrefcount(Other)) == before
assert sys.exc_info() == (None, None, None)
""", tmp_path)
