# Real models: forward bit for bit, gradients within the tolerance or bit for bit, nothing left.
#
# SPDX-License-Identifier: MIT
import pytest

from harness import cases


@cases("models", ("default", "lossless"), only=lambda p: p.name.endswith("fp32"))
def test_fp32(program, policy, compare):
    compare(program, policy)


@cases("models", ("default", "lossless"), only=lambda p: p.name.endswith("bf16"))
def test_bf16_autocast(program, policy, compare):
    compare(program, policy)


@cases("models", ("observe", "off"), only=lambda p: p.name.endswith("fp32"))
def test_untouched(program, policy, compare):
    compare(program, policy)


@cases("models", ("default",), only=lambda p: p.name.endswith("train"))
def test_fifty_steps(program, policy, compare):
    compare(program, policy)


@pytest.mark.slow
@cases("models", ("lossless", "observe"), only=lambda p: p.name.endswith("train"))
def test_fifty_steps_of_other_policies(program, policy, compare):
    compare(program, policy)
