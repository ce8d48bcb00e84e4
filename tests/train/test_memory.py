# Bytes are given back when plain PyTorch gives them back (programs/memory.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("memory")
def test_memory(program, policy, compare):
    compare(program, policy)
