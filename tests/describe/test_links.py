"""Transfers over several NICs of a node: shares pass the GPUs that the clock has, and are all there is."""

from itertools import pairwise, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zbench.describe.links import Lanes, share
from zbench.simulator.hops import proxy


@given(st.integers(1, 8), st.integers(1, 8))
def test_carriers_are_those_that_the_clock_plays(gpus: int, nics: int) -> None:
    nics = min(nics, gpus)
    lanes = Lanes(gpus, nics)
    ranks = np.arange(2 * gpus)
    node = ranks // gpus
    nic = node * nics + ranks % gpus * nics // gpus
    for rank, lane in product(ranks.tolist(), range(nics)):
        carrier = lanes.carrier(rank, lane)
        assert carrier == proxy.py_func(rank, lane, nic, node, gpus, nics)
        assert nic[carrier] == node[rank] * nics + lane
    for src, dst in product(range(gpus), range(gpus, 2 * gpus)):
        ways = lanes.ways(src, dst, range(nics))
        assert [(way[0], way[-1]) for way in ways] == [(src, dst)] * nics
        between = [[edge for edge in pairwise(way) if node[edge[0]] != node[edge[1]]] for way in ways]
        assert [len(edges) for edges in between] == [1] * nics, "a share is on one NIC of each node"
        assert len({gpu for way in ways for gpu in way[1:-1]}) == sum(len(way) - 2 for way in ways)
    assert lanes.ways(0, gpus - 1, range(nics)) == [(0, gpus - 1)], "inside a node nothing is spread"


@given(st.integers(0, 10**6), st.integers(1, 9))
def test_shares_are_as_even_as_they_can_be_and_all_there_is(size: int, parts: int) -> None:
    ends = [share(size, part, parts) for part in range(parts)]
    assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == size
    assert max(end - begin for begin, end in ends) - min(end - begin for begin, end in ends) <= 1
