# Tensors that are not plain dense ones, memory of others (programs/kinds.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("kinds", ("default", "lossless", "observe"))
def test_kind(program, policy, compare):
    compare(program, policy)
