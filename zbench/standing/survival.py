"""Tells what survives all worlds of a place: ranges, orders of systems, pairs that turn. Pure: no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zbench.describe.units import with_noun
from zbench.describe.worlds import NOMINAL
from zbench.record.record import Run
from zbench.record.rows import label
from zbench.standing.cells import Place, Worlds, gain
from zbench.standing.ranges import SAME, Range, Reversal, over_worlds, reversals, scores, surviving_order, uncounted

ALL = "all workloads"
_NEAR = 0.005  # what two decimals do not show of a ratio near 1


@dataclass(frozen=True, slots=True)
class Survival:
    """The findings about the worlds of one place. worlds: what each changes, by name. gains: by system (ratio, factor
    of its interval, range), best first.

    orders, turned: on each workload, and first on all of them where there are several. uncounted: what no range has.
    left_out: systems that lack a workload or memory somewhere, which no order has.
    """

    title: str
    over: str
    worlds: Mapping[str, str]
    gains: Mapping[str, tuple[float, float | None, Range | None]]
    orders: Mapping[str, Sequence[Sequence[str]]]
    turned: Mapping[str, Sequence[Reversal]]
    uncounted: Sequence[str]
    left_out: Sequence[str]

    @staticmethod
    def of(title: str, worlds: Worlds, over: str, words: Mapping[str, str]) -> "Survival":
        """Works out what survives the worlds of a place. words: what each world changes."""
        nominal = worlds[NOMINAL]
        gains = {}
        for name, cells in nominal.items():
            faster = gain(cells, nominal[over]) if over in nominal else None
            if faster is not None:
                gains[name] = (*faster, over_worlds(worlds, name, over))
        best = sorted(gains, key=lambda name: -gains[name][0])
        names = sorted({workload for cells in nominal.values() for workload in cells})
        asked = {**({ALL: names} if len(names) > 1 else {}), **{name: [name] for name in names}}
        found = {on: scores(worlds, workloads) for on, workloads in asked.items()}
        return Survival(
            title,
            over,
            {name: words[name] for name in worlds},
            {name: gains[name] for name in best},
            {on: surviving_order(one) for on, one in found.items()},
            {on: reversals(one) for on, one in found.items()},
            uncounted(worlds, over),
            [name for name in nominal if name not in next(iter(found.values()))[NOMINAL]],
        )

    def ranges(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Returns (columns, rows) of a table: how many times as fast as `over`; the least and greatest, with their
        worlds."""
        rows = [
            (name, gain_words(ratio, factor, None), *(_end(over_all, end) for end in ("least", "greatest")))
            for name, (ratio, factor, over_all) in self.gains.items()
        ]
        return ("system", f"x {self.over}", "least", "greatest"), tuple(rows)

    def lines(self) -> list[str]:
        """Writes sentences: which worlds, which order survives them, which pairs turn, and what is in neither."""
        changed = [f"{name} ({words})" for name, words in self.worlds.items() if name != words]
        out = [f"Worlds: {', '.join([NOMINAL, *changed])}."]
        for on, groups in self.orders.items():
            out.append(f"Survives all of them on {on}: {in_line(groups)}.")
            out += [f"Turns on {on}: {turned_words(turn)}." for turn in self.turned[on]]
        if self.left_out:
            out.append(f"In no order, as they lack a workload or memory somewhere: {', '.join(self.left_out)}.")
        if self.uncounted:
            out.append(f"In no range, as they lack a workload or memory there: {', '.join(self.uncounted)}.")
        return out


def _end(over_all: Range | None, end: str) -> str:
    return "" if over_all is None else f"{getattr(over_all, end):.2f} in {getattr(over_all, end + '_world')}"


def survivals(runs: Sequence[Run], found: Mapping[Place, Worlds], over: str | None = None) -> list[Survival]:
    """Returns what survives, of every place with a nominal and other worlds.

    over: the system that ranges are over; None for the recorded baseline, or, where a place has none, its first system.
    """
    baselines = [str(run.start["baseline"]["name"]) for run in runs if run.start.get("baseline")]
    out = []
    for place, worlds in found.items():
        if NOMINAL in worlds and len(worlds) > 1:
            name = over or next((one for one in baselines if one in worlds[NOMINAL]), next(iter(worlds[NOMINAL])))
            out.append(
                Survival.of(
                    f"{place_words(place)}: over {with_noun(len(worlds), 'world')}", worlds, name, words_of(runs)
                )
            )
    return out


def of_one_world(found: Mapping[Place, Worlds]) -> list[str]:
    """Returns the places, in words, of which nothing survives, as they lack the nominal world or any other."""
    return [place_words(place) for place, worlds in found.items() if NOMINAL not in worlds or len(worlds) < 2]


def place_words(place: Place) -> str:
    """Describes a place in words."""
    cluster, model, *rest = place
    return f"{model} on {cluster}, {', '.join(rest)}"


def words_of(runs: Sequence[Run]) -> dict[str, str]:
    """Returns what each recorded world changes, by its label."""
    return {label(run.start, "world"): run.start["facts"].get("world", NOMINAL) for run in runs}


def in_line(groups: Sequence[Sequence[str]]) -> str:
    """Writes an order that survives: 'a > (b, c) > d', with those in brackets whose order does not."""
    return " > ".join(group[0] if len(group) == 1 else f"({', '.join(group)})" for group in groups)


def turned_words(turn: Reversal) -> str:
    """Writes a pair that turns: 'a over b is 1.31, and 0.86 in nvlink_7, 0.97 in nvlink_3'."""
    there = ", ".join(f"{_digits(ratio)} in {world}" for world, ratio in turn.worlds.items())
    return f"{turn.ahead} over {turn.behind} is {_digits(turn.nominal)}, and {there}"


def _digits(ratio: float) -> str:
    """Writes two decimals, and four where those would not tell it from 1."""
    return f"{ratio:.2f}" if abs(ratio - 1) >= _NEAR or abs(ratio - 1) <= SAME else f"{ratio:.4f}"


def gain_words(ratio: float, factor: float | None, over_all: Range | None) -> str:
    """Writes a ratio, its interval over batches, its range over worlds: '1.31 (1.25-1.37) [0.86-1.40]'."""
    interval = "" if factor is None else f" ({ratio / factor:.2f}-{ratio * factor:.2f})"
    return f"{ratio:.2f}{interval}" + ("" if over_all is None else f" [{over_all.least:.2f}-{over_all.greatest:.2f}]")
