"""Lets go of cells after their last use: memory is free as soon as nothing of the template reads them. Pure."""

from collections.abc import Mapping, Sequence

from zbench.runtime.steps.instructions import Cell, Compute, Exchange, Forget, Instruction

Items = Mapping[tuple[int, int, int], set[Cell]]  # by (place, tensor, offset of its layer)


def with_last_uses(instructions: Sequence[Instruction], needs: Items, leaves: Items) -> tuple[Instruction, ...]:
    """Returns instructions with a Forget after the last use of all that is there and is not left.

    needs, leaves: the cells that a template's contract names on places of the process.
    """
    last: dict[tuple[int, int, int, Cell], int] = {}  # of what is there: the number of what used it last
    for where, named in needs.items():
        last |= {(*where, cell): -1 for cell in named}
    for number, one in enumerate(instructions):
        _use(one, number, last)
    forgotten: dict[tuple[int, int, int, int], list[Cell]] = {}
    for (place, tensor, layer, cell), number in last.items():
        if cell not in leaves.get((place, tensor, layer), ()):
            forgotten.setdefault((number, place, tensor, layer), []).append(cell)
    after: dict[int, list[Instruction]] = {}
    for (number, place, tensor, layer), cells in forgotten.items():
        after.setdefault(number, []).append(Forget(place, tensor, layer, tuple(cells)))
    found: list[Instruction] = after.get(-1, [])
    for number, one in enumerate(instructions):
        found += [one, *after.get(number, [])]
    return tuple(found)


def _use(one: Instruction, number: int, last: dict[tuple[int, int, int, Cell], int]) -> None:
    """Notes what an instruction reads, makes and takes away."""
    if isinstance(one, Compute):
        for cells in (*one.reads, *one.writes):
            last |= {(one.place, cells.tensor, cells.layer, cell): number for cell in cells.pairs()}
    elif isinstance(one, Forget):
        for cell in one.cells:
            last.pop((one.place, one.tensor, one.layer, cell), None)
    elif isinstance(one, Exchange):
        for parcel in (*one.sends, *one.copies):
            for cell in parcel.cells.pairs():
                key = (parcel.src, parcel.cells.tensor, parcel.cells.layer, cell)
                if one.takes:
                    last.pop(key, None)
                else:
                    last[key] = number
        for parcel in (*one.receives, *one.copies):
            for cell in parcel.cells.pairs():
                last[parcel.dst, parcel.cells.tensor, parcel.cells.layer, cell] = number
