"""Moves messages ahead of computes that have nothing to do with them. Pure.

A process goes through its instructions one by one, and begins a message where it stands. A GPU's links, and those of
the clock, begin it once what it carries is there. So what a process sends goes as far ahead as its cells allow: in a
ring it would else send its own keys only behind an attend that waits for those of the one before, and one message at a
time would go round. Of tensor-parallel groups what comes goes ahead, too: a gather stands beside matmuls before the one
that it is for, a reduction directly behind what it sums. What comes otherwise stays where it is: keys and values that
came earlier would be in memory beside what the account has there. Exchanges stay in the order of the step among each
other, which is what names their messages, and so do all that touch a cell.
"""

from collections.abc import Sequence
from dataclasses import replace

from zbench.runtime.steps.instructions import Cell, Cells, Compute, Exchange, Instruction, Parcel
from zbench.step.operations import QUEUES

EARLY = QUEUES.index("tensor_parallel")

Where = tuple[int, int, int]  # (place, tensor, offset of its layer)
Touched = dict[Where, set[Cell]]


def with_early_exchanges(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Returns a template's instructions with messages that leave, and tensor parallelism's exchanges, as early as they
    can be.

    An exchange that sends on what has come, and that no compute has read yet, stays: the process would wait for it.
    None goes ahead of a drop: what it brings would be in memory beside what the step has dropped by then.
    """
    found: list[Instruction] = []
    coming: Touched = {}  # cells that messages bring, until something reads them
    for one in instructions:
        at = len(found)
        if isinstance(one, Exchange):
            moves = one.purpose == EARLY or not (one.receives or one.copies)
            if moves and not any(_of(_cells(part.src, part.cells), coming) for part in one.sends):
                touched = _touched(one)
                while at and isinstance(found[at - 1], Compute) and not _of(_touched(found[at - 1]), touched):
                    at -= 1
            for parcel in one.receives:
                _add(coming, parcel.dst, parcel.cells)
        else:  # what a compute adds to a sum waits for nothing
            there = replace(one, writes=()) if isinstance(one, Compute) else one
            for where, cells in _touched(there).items():
                coming.get(where, set()).difference_update(cells)
        found.insert(at, one)
    return found


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
