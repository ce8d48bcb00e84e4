# Several threads train (programs/threads.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("threads")
def test_thread(program, policy, compare):
    compare(program, policy)
