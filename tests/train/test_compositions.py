# Random graphs (programs/compositions.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("compositions")
def test_composition(program, policy, compare):
    compare(program, policy)
