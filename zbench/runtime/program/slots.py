"""Facts about a program's slots that are known when all operations have been walked. No torch."""

from dataclasses import replace

from zbench.describe.model import KV, Q
from zbench.runtime.program.holders import HolderState
from zbench.runtime.program.program import HOME, Collect, Fill, KernelCall, Relay, Send, Slot, is_run


def received_in_place(state: HolderState, attends: list[KernelCall], arrivals: set[int]) -> list[KernelCall]:
    """Lets messages that fill a run of rows of a filled slot, all heads of it, arrive there; no part copies them."""
    out = []
    for step in attends:
        fills = []
        for fill in step.fills:
            target, parts = state.slots[fill.slot], []
            for part in fill.parts:
                slot = state.slots[part.slot] if part.slot != HOME else None
                if (
                    slot
                    and slot.inside is None
                    and part.slot in arrivals
                    and slot.tensor in (Q, KV)
                    and (slot.lo, slot.hi) == (target.lo, target.hi)
                    and is_run(part.rows, slice(0, slot.rows))
                    and isinstance(part.to, slice)
                ):
                    state.slots[part.slot] = replace(slot, inside=(fill.slot, part.to.start))
                else:
                    parts.append(part)
            fills.append(Fill(fill.slot, tuple(parts)))
        out.append(replace(step, fills=tuple(fills)))
    return out


def uses_of(
    slots: list[Slot], attends: list[KernelCall], sends: tuple[Send | Relay, ...], collects: tuple[Collect, ...]
) -> tuple[int, ...]:
    """Returns how often each slot is read, so that its memory can go after the last time."""
    uses = [0] * len(slots)
    parts = [part for step in attends for fill in step.fills for part in fill.parts]
    parts += [part for send in sends if isinstance(send, Send) for part in send.parts]
    parts += [part for collect in collects for part in collect.parts]
    places = [part.slot for part in parts] + [send.whole for send in sends if isinstance(send, Send)]
    places += [read.slot for step in attends for read in (step.q, step.kv, step.do) if read]
    for slot in places:
        if slot != HOME:
            uses[slot] += 1
    return tuple(uses)
