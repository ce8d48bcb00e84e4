# What the report says of tensors that were left to PyTorch: how many, and why.
#
# SPDX-License-Identifier: MIT
import pytest

import harness

START = """
import torch
torch.set_num_threads(1)
x = torch.randn(256, 256, requires_grad=True)
for _ in range(2): (x * 1).cos().sum().backward()  # the first saves of a process are left to PyTorch
"""

# Reason -> a program in which it is the one for which two tensors of 256 KiB are kept, the policy,
# and whether their bytes are known.
REASONS = {
    "policy": ("for _ in range(2): (x * 1).exp().sum().backward()",
               "include default; exp keep", True),
    "exact": ("bits = torch.randint(2**31 - 2**24, (256, 256), dtype=torch.int32)\n"
              "for _ in range(2): (bits.view(torch.float32) + 0 * x).amax(0).sum().backward()",
              "default", True),
    "frozen": ("w = torch.randn(256, 256)\n"
               "for _ in range(2): ((x * 1) @ w).sum().backward()", "default", False),
    "dtype": ("y = x.cfloat()\n"
              "for _ in range(2): y.exp().abs().sum().backward(retain_graph=True)",
              "include default; abs keep; exp affine", True),
    "layout": ("for _ in range(2):\n"
               "    (x * 1).as_strided((100, 100), (300, 299)).sin().sum().backward()", "default", True),
    "looked_at": ("i = torch.randint(256, (256, 256))\n"
                  "for _ in range(4):\n"
                  "    h = x * 1\n"
                  "    y = h.gather(0, i)\n"
                  "    y.grad_fn._saved_self\n"
                  "    y.sum().backward()", "default", True),
    "alive": ("data = torch.randn(256, 256)\n"
              "for _ in range(5): (x * data).sum().backward()", "default", False),
    "hooked": ("with torch.autograd.graph.save_on_cpu():\n"
               "    for _ in range(2): (x * 1).sin().sum().backward()", "default", False),
    "hooked, forbidden": ("with torch.autograd.graph.disable_saved_tensors_hooks('none here'):\n"
                          "    for _ in range(2): (x * 1).sin().sum().backward()", "default", True),
    "kind": ("a = torch.eye(256).to_sparse().requires_grad_()\n"
             "for _ in range(2): torch.sparse.mm(a, x + 1).sum().backward()", "default", False),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_a_tensor_was_kept(reason, tmp_path):
    code, policy, known = REASONS[reason]
    reason = reason.partition(",")[0]
    report = harness.report_of(START + code, tmp_path, policy)
    kept = {entry["reason"]: entry["tensors"] for entry in report["kept"]}
    assert kept.get(reason, 0) >= 2, report["kept"]
    sizes = [r["would_bytes_peak"] for r in report["records"] if r["kept"] == reason]
    if known:
        assert sum(sizes) >= 256 * 256 * 4, report["records"]


def test_hooks_are_forbidden_for_a_while_only(tmp_path):
    report = harness.report_of(START + """
for forbidden in (False, True, False):
    if forbidden:
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            y = (x * 1).sin()
    else:
        y = (x * 1).sin()
    y.sum().backward()
""", tmp_path)
    sines = [r for r in report["records"] if r["op"] == "sin"]
    assert sum(r["tensors"] for r in sines) == 3
    assert sum(r["tensors"] for r in sines if r["way"] == "keep") == 1, "held before and after"
