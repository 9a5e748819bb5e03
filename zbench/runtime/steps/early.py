"""Moves messages ahead of what has nothing to do with them. Pure.

A process goes through its instructions one by one, and begins a message where it stands. A GPU's links, and those of
the clock, begin it once what it carries is there. So what a process sends goes as far ahead as its cells allow: in a
ring it would else send its own keys only behind an attend that waits for those of the one before, and one message at a
time would go round. Of tensor-parallel groups what comes goes ahead, too: a gather stands beside matmuls before the one
that it is for, a reduction directly behind what it sums. What comes otherwise stays where it is: keys and values that
came earlier would be in memory beside what the account has there.

Messages that leave together with those that come (over NCCL) stay in the order of the step among each other. Where each
queue has names of its own and nobody waits for what is sent on, messages that leave go ahead of those that come and of
those of other queues, too, as from the queues of the clock: those of one queue leave in the order of the step.
"""

from collections.abc import Sequence
from dataclasses import replace

from zbench.runtime.steps.instructions import Cell, Cells, Compute, Exchange, Instruction, Parcel
from zbench.step.operations import QUEUES

EARLY = QUEUES.index("tensor_parallel")

Where = tuple[int, int, int]  # (place, tensor, offset of its layer)
Touched = dict[Where, set[Cell]]


def with_early_exchanges(instructions: Sequence[Instruction], apart: bool = False) -> list[Instruction]:
    """Returns a template's instructions with messages that leave, and tensor parallelism's exchanges, as early as they
    can be. apart: what leaves needs no common order with what comes, and is waited for by nobody.

    Else an exchange that sends on what has come, and that no compute has read yet, stays: the process would wait for
    it. None that brings something goes ahead of a drop: what it brings would be in memory beside what the step has
    dropped by then.
    """
    found: list[Instruction] = []
    touching: list[Touched] = []  # by each of these
    coming: Touched = {}  # cells that messages bring, until something reads them
    for one in (part for whole in instructions for part in (_parts(whole) if apart else (whole,))):
        at, touched = len(found), _touched(one)
        if isinstance(one, Exchange):
            leaves = not (one.receives or one.copies or one.relays)
            if leaves and apart and one.purpose != EARLY and one.encoding is None:
                while at and not _stays_behind(one, touched, found[at - 1], touching[at - 1]):
                    at -= 1
            elif (leaves or one.purpose == EARLY) and not any(
                _of(_cells(part.src, part.cells), coming) for part in one.sends
            ):
                while at and isinstance(found[at - 1], Compute) and not _of(touching[at - 1], touched):
                    at -= 1
            for parcel in one.receives:
                _add(coming, parcel.dst, parcel.cells)
        else:  # what a compute adds to a sum waits for nothing
            there = _touched(replace(one, writes=())) if isinstance(one, Compute) else touched
            for where, cells in there.items():
                coming.get(where, set()).difference_update(cells)
        found.insert(at, one)
        touching.insert(at, touched)
    return found


def _parts(one: Instruction) -> tuple[Instruction, ...]:
    """Returns what leaves in an exchange, and what comes or is passed on for others, each by itself; but of
    tensor-parallel groups both together."""
    if not isinstance(one, Exchange) or one.purpose == EARLY or not one.sends:
        return (one,)
    if not (one.receives or one.copies or one.relays):
        return (one,)
    return replace(one, receives=(), copies=(), relays=()), replace(one, sends=())


def _stays_behind(one: Exchange, touched: Touched, before: Instruction, touching: Touched) -> bool:
    """Returns whether an exchange that only sends stays behind an instruction: one that sends something of its queue,
    or makes or takes away what it sends; who but reads a copy has nothing to do with its being sent. touched, touching:
    of both."""
    if isinstance(before, Exchange) and before.purpose == one.purpose and before.sends:
        return True
    if isinstance(before, Compute) and not one.takes:
        touching = _touched(replace(before, reads=()))
    return _of(touching, touched)


def _touched(one: Instruction) -> Touched:
    """Returns the cells that an instruction reads, makes or takes away."""
    found: Touched = {}
    if isinstance(one, Compute):
        for cells in (*one.reads, *one.writes):
            _add(found, one.place, cells)
    elif isinstance(one, Exchange):
        parcels: tuple[Parcel, ...] = (*one.sends, *one.copies)
        for parcel in parcels:
            _add(found, parcel.src, parcel.cells)
        for parcel in (*one.receives, *one.copies):
            _add(found, parcel.dst, parcel.cells)
    else:
        found[one.place, one.tensor, one.layer] = set(one.cells)
    return found


def _cells(place: int, cells: Cells) -> Touched:
    found: Touched = {}
    _add(found, place, cells)
    return found


def _add(touched: Touched, place: int, cells: Cells) -> None:
    touched.setdefault((place, cells.tensor, cells.layer), set()).update(cells.pairs())


def _of(one: Touched, other: Touched) -> bool:
    """Returns whether two have a cell in common."""
    return any(not cells.isdisjoint(other.get(where, ())) for where, cells in one.items())
