"""Seconds in which links are busy, against a count of whole seconds one by one."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.describe.arrays import Floats
from zbench.describe.links import NIC
from zbench.simulator.clock import Timeline
from zbench.simulator.hops import COMPUTE
from zbench.simulator.steps.trains.occupancy import LinkedHops, LinkUse, Occupancy, TrainPieces

QUEUES = 4  # of a GPU
MOVING = 1  # one of them that is not for computing
INSIDE = 1 - NIC  # a class of links that is none of NICs


@dataclass(frozen=True)
class Told:
    """A hop: the GPUs at its ends, -1 for none, its class of links, -1 where it computes, from when on and how long."""

    gpu: int
    other: int
    link_class: int
    start: int
    seconds: int

    @property
    def computes(self) -> bool:
        return self.link_class < 0

    def runs(self, second: int) -> bool:
        return self.start <= second < self.start + self.seconds


def found_of(told: list[Told], marks: list[int], gpus: int) -> Occupancy:
    """Returns the occupancy of hops in this order, as the module has it."""
    own = np.array([COMPUTE if one.computes else MOVING for one in told], np.int64)
    first = np.array([one.gpu for one in told], np.int64) * QUEUES + own
    second = np.array([one.other * QUEUES + MOVING if one.other >= 0 else -1 for one in told], np.int64)
    classes = np.array([one.link_class for one in told], np.int64)
    start = np.array([one.start for one in told], float)
    release = start + [one.seconds for one in told]
    hops = LinkedHops(np.arange(len(first)), np.flatnonzero(classes >= 0), first, second, classes, QUEUES)
    return LinkUse.of(hops, Timeline(start, release, release), gpus).spans(np.array(marks, float))


def counted(told: list[Told], marks: list[int], gpus: int) -> tuple[Floats, Floats, Floats]:
    """Returns the occupancy counted second by second. What is after the last mark is the last span's."""
    moving, exposed, across = (np.zeros((gpus, len(marks))) for _ in range(3))
    for second in range(max([one.start + one.seconds for one in told], default=0)):
        span = next((at for at, mark in enumerate(marks) if second < mark), len(marks) - 1)
        now = [one for one in told if one.runs(second)]
        for gpu in range(gpus):
            moves = [one for one in now if not one.computes and gpu in (one.gpu, one.other)]
            idle = not any(one.computes and one.gpu == gpu for one in now)
            moving[gpu, span] += bool(moves)
            exposed[gpu, span] += bool(moves) and idle
            across[gpu, span] += idle and any(one.link_class == NIC for one in moves)
    return moving, exposed, across


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Told], list[int], int]:
    """Hops of a few GPUs. Each GPU computes one after the other, in their order; transfers overlap as they like."""
    gpus, few = draw(st.integers(1, 3)), st.integers(0, 6)
    chains: list[list[Told]] = []
    for gpu in range(gpus):
        now, mine = 0, []
        for gap, seconds in draw(st.lists(st.tuples(few, few), max_size=5)):
            mine.append(Told(gpu, -1, -1, now + gap, seconds))
            now += gap + seconds
        chains.append(mine)
    for _ in range(draw(st.integers(0, 8))):
        gpu = draw(st.integers(0, gpus - 1))
        other = draw(st.sampled_from([-1, *(one for one in range(gpus) if one != gpu)]))
        chains.append([Told(gpu, other, draw(st.sampled_from((NIC, INSIDE))), draw(st.integers(0, 25)), draw(few))])
    told: list[Told] = []
    while left := [chain for chain in chains if chain]:
        told.append(draw(st.sampled_from(left)).pop(0))
    return told, sorted(draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))), gpus


@settings(deadline=None, max_examples=150)
@given(cases())
def test_every_second_counts_once(case: tuple[list[Told], list[int], int]) -> None:
    found = found_of(*case)
    for one, want in zip(found, counted(*case), strict=True):
        np.testing.assert_array_equal(one, want)
    assert (found.exposed_nic <= found.exposed).all()
    assert (found.exposed <= found.moving).all()


def test_a_step_by_hand() -> None:
    told = [
        Told(0, -1, -1, 0, 4),
        Told(0, 1, NIC, 2, 4),  # from 2 to 6, of which 2 seconds are behind GPU 0's first compute
        Told(0, -1, -1, 7, 1),
        Told(1, 0, INSIDE, 5, 5),  # to 10, over GPU 0's second compute
    ]
    found = found_of(told, [6, 9], 2)
    assert found.moving.tolist() == [[4, 4], [4, 4]]  # the second after the last mark is the last span's
    assert found.exposed.tolist() == [[2, 3], [4, 4]]
    assert found.exposed_nic.tolist() == [[2, 0], [4, 0]]


def test_between_pieces_that_are_apart_a_train_moves_nothing() -> None:
    """GPU 0 sends three pieces, of which two follow one another at once, and computes from 3 to 7; then a plain hop."""
    ends = np.array([1, 0, 1]), np.array([5, -1, 5])
    hops = LinkedHops(np.arange(3), np.array([2, -1]), *ends, np.array([NIC, -1, INSIDE]), QUEUES)
    start, release = np.array([0.0, 3.0, 9.0]), np.array([8.0, 7.0, 11.0])
    pieces = TrainPieces(np.array([[0, 0, 3, 0]]), np.array([0.0, 2.0, 6.0]), np.array([2.0, 4.0, 8.0]))
    found = LinkUse.of(hops, Timeline(start, release, release), 2, pieces).spans(np.array([5.0, 11.0]))
    assert found.moving.tolist() == [[4, 4], [4, 4]]
    assert found.exposed.tolist() == [[3, 3], [4, 4]]
    assert found.exposed_nic.tolist() == [[3, 1], [4, 2]]
