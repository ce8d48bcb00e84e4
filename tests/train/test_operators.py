# Every operator of PyTorch's database (programs/operators.py): those that networks are made of in
# each run, all of them with --slow.
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("operators", ("default", "lossless", "observe"))
def test_operators(program, policy, compare):
    compare(program, policy)
