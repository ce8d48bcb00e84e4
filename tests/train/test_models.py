# Real models: forward bit for bit, gradients within the tolerance or bit for bit, nothing left.
#
# SPDX-License-Identifier: MIT
import pytest

from harness import cases

# Under 8 bits these are further from the plain gradient than the goal of 0.6 % (0.8 % with relu, 0.1 %
# of LoRA's), measured on tiny images and batches. They stay listed until they are not.
SHORT_OF_THE_GOAL = {
    "swin_tiny_fp32": "0.604 %, goal 0.6 %",
    "deit_tiny_fp32": "0.605 %, goal 0.6 %",
    "resnet18_fp32": "1.0 % at 64 pixels, goal 0.8 %",
    "efficientnet_b0_fp32": "2.2 %, goal 0.6 %: depthwise convolutions before batch norm",
    "efficientnet_b0_bf16": "3.2 %, goal 1.2 %",
    "lora_fp32": "0.3 %, goal 0.1 %: codes of the frozen layers' inputs",
}


@pytest.fixture(autouse=True)
def known_shortfall(request):
    case = request.node.callspec.params
    reason = SHORT_OF_THE_GOAL.get(case["program"].name.partition(".")[2])
    if reason and case["policy"] == "default":
        request.applymarker(pytest.mark.xfail(reason=reason, strict=False))


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
