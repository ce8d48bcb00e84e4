# Ways to run and to look at a graph (programs/graphs.py).
#
# SPDX-License-Identifier: MIT
from harness import cases


@cases("graphs")
def test_graph(program, policy, compare):
    compare(program, policy)
