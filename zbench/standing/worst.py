"""Sets a system's cells beside the fastest other system's, the worst first. Pure: no torch.

Systems that chose other keys of the model than the run has (a layout of their own) are told of beside, as no planner of
sequences could have their plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from zbench.console.sheet import Sheet
from zbench.describe.worlds import NOMINAL
from zbench.record.interval import LEVEL
from zbench.standing.cells import Place, Worlds, gain
from zbench.standing.survival import gain_words, place_words

LEAST = 0.99  # times as fast as the fastest other system: what is nearer counts as equal (a choice)


@dataclass(frozen=True, slots=True)
class Beside:
    """A cell and the fastest of some others there. ratio: how many times as fast as that one the system is; factor: of
    its interval over batches, None with too few."""

    place: str
    workload: str
    other: str
    ratio: float
    factor: float | None

    @property
    def won(self) -> bool:
        """Whether the system is as fast as the other, or may be by the interval of the batches' ratios."""
        return self.ratio * (self.factor or 1.0) >= LEAST


def beside(worlds: Worlds, place: str, name: str, layouts: bool) -> list[Beside]:
    """Returns every cell of the nominal world (or of the only one) in which the system and another fit memory.

    layouts: beside those with layouts of their own, else beside the others.
    """
    systems = worlds.get(NOMINAL) or next(iter(worlds.values()))
    found = []
    for workload, mine in systems.get(name, {}).items():
        others = {other: cells[workload] for other, cells in systems.items() if other != name and workload in cells}
        fits = {
            other: cell for other, cell in others.items() if not cell.out_of_memory and bool(cell.layout) == layouts
        }
        if mine.out_of_memory or not fits:
            continue
        best = min(fits, key=lambda one: sum(fits[one].seconds))
        faster = gain({workload: mine}, {workload: fits[best]})
        assert faster is not None, "both fit memory"
        told = f"{best} ({fits[best].layout})" if layouts else best
        found.append(Beside(place, workload, told, *faster))
    return found


def worst(found: Mapping[Place, Worlds], name: str) -> Sheet:
    """Returns a row for every cell, the least ratio first; below what the title says of all."""
    cells = [one for place, worlds in found.items() for one in beside(worlds, place_words(place), name, False)]
    apart = {
        (one.place, one.workload): one
        for place, worlds in found.items()
        for one in beside(worlds, place_words(place), name, True)
    }
    rows = []
    for one in sorted(cells, key=lambda one: one.ratio):
        other = apart.get((one.place, one.workload))
        beaten = f"{other.other} {gain_words(other.ratio, other.factor, None)}" if other and other.ratio < LEAST else ""
        rows.append((one.place, one.workload, one.other, gain_words(one.ratio, one.factor, None), _word(one), beaten))
    title = f"{name} beside the fastest other system: {_counts(cells)}{_layouts(cells, apart)}"
    columns = ("cluster, model", "workload", "fastest other", f"{name} x that", "won", "faster by another layout")
    return Sheet(title, columns, tuple(rows))


def _counts(cells: Sequence[Beside]) -> str:
    if not cells:
        return "no cells"
    ratios = [one.ratio for one in cells]
    lost = sum(not one.won for one in cells)
    return (
        f"{len(cells)} cells, {sum(ratio < LEAST for ratio in ratios)} below {LEAST} of it, {lost} of them beyond the "
        f"{LEVEL:.0%} interval over batches; geometric mean {geometric_mean(ratios):.2f}, {min(ratios):.2f} to "
        f"{max(ratios):.2f}"
    )


def _layouts(cells: Sequence[Beside], apart: Mapping[tuple[str, str], Beside]) -> str:
    """Tells of cells in which another layout is faster, in words to be added to a title."""
    mine = {(one.place, one.workload) for one in cells}
    faster = [one for where, one in apart.items() if where in mine and one.ratio < LEAST]
    if not faster:
        return ""
    lost = sum(not one.won for one in faster)
    return (
        f". By another layout another system is faster in {len(faster)}, beyond the interval in {lost}; least "
        f"{min(one.ratio for one in faster):.2f}"
    )


def _word(one: Beside) -> str:
    if one.ratio >= LEAST:
        return "yes"
    return "within the interval" if one.won else "no"
