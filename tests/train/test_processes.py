# Workers, distributed training, fork in the middle of training (programs/processes.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("processes")
def test_process(program, policy, compare):
    compare(program, policy)
