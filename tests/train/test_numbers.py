# Values at the ends of their range, and gradients that hang on an exact value (programs/numbers.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("numbers")
def test_numbers(program, policy, compare):
    compare(program, policy)
