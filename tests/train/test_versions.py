# In-place errors are those of plain PyTorch, to the letter (programs/versions.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("versions", ("default", "lossless", "observe"))
def test_version(program, policy, compare):
    compare(program, policy)
