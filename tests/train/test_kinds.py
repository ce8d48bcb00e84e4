# Tensors that are not plain dense ones, memory of others (programs/kinds.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("kinds", ("default", "lossless", "observe"))
def test_kind(program, policy, compare):
    compare(program, policy)


@cases("kinds", ("* mask",), only=lambda p: p.name.endswith("wide_elements_with_gaps"))
def test_kind_by_masks_alone(program, policy, compare):
    compare(program, policy)
