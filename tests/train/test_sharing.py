# Views, offsets, strides, addresses that are used again (programs/sharing.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("sharing")
def test_sharing(program, policy, compare):
    compare(program, policy)
