"""Received copies that a forward leaves for the backward. No torch: numpy only."""

from dataclasses import dataclass, replace

import numpy as np

from zbench.plans.plan import Plan
from zbench.runtime.program.holders import Holder, HolderState
from zbench.runtime.program.program import HOME, Program, Slot


@dataclass(frozen=True)
class Kept:
    """The slots that the forward leaves for the backward, and where they have which copies."""

    slots: tuple[Slot, ...]
    number: tuple[int, ...]
    copies: tuple[tuple[int, Holder], ...]  # (tensor, holder), slots by their new numbers
    made: dict[tuple[int, int, int, int], int]


def kept_of(plan: Plan, rank: int, forward: Program, state: HolderState) -> Kept:
    """Returns the received copies marked `keep`, and filled slots made of nothing else."""
    ops = plan.forward
    kept = np.flatnonzero((ops.keep == 1) & (ops.dst == rank))
    wanted = {(int(ops.tensor[op]), int(ops.blocks[op]), int(ops.head_lo[op]), int(ops.head_hi[op])) for op in kept}
    arrived = [
        (tensor, holder)
        for (tensor, _), places in state.copies.items()
        for holder, at in places
        if at == 0 and _is_arrival(plan, holder, tensor, wanted)
    ]
    stays = {holder.slot for _, holder in arrived}
    made = {}
    for key, slot in state.made.items():
        sources = {
            part.slot for step in forward.attends for fill in step.fills if fill.slot == slot for part in fill.parts
        } - {HOME}
        inner = {at for at, one in enumerate(state.slots) if one.inside and one.inside[0] == slot}
        if sources | inner and sources | inner <= stays:
            made[key] = slot
    parents = {one.inside[0] for one in (state.slots[slot] for slot in stays) if one.inside}
    numbers = sorted(stays | set(made.values()) | parents)
    new = {number: at for at, number in enumerate(numbers)}
    slots = [state.slots[number] for number in numbers]
    slots = [replace(one, inside=(new[one.inside[0]], one.inside[1])) if one.inside else one for one in slots]
    copies = tuple((tensor, replace(holder, slot=new[holder.slot])) for tensor, holder in arrived)
    return Kept(tuple(slots), tuple(numbers), copies, {key: new[slot] for key, slot in made.items()})


def _is_arrival(plan: Plan, holder: Holder, tensor: int, wanted: set[tuple[int, int, int, int]]) -> bool:
    rows = plan.lists
    return any(
        (tensor, holder.lo, holder.hi) == (t, lo, hi) and np.array_equal(rows[row], holder.blocks)
        for t, row, lo, hi in wanted
    )
