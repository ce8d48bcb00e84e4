# Names of operators and arguments are those of PyTorch (programs/arguments.py). Under `observe` a
# saved tensor is the original, so that its address tells which one it is.
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("arguments", ("observe",))
def test_arguments(program, policy, compare):
    compare(program, policy)
