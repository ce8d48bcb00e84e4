# The ways to run a training step (programs/modes.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("modes")
def test_mode(program, policy, compare):
    compare(program, policy)
