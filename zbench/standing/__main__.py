"""python -m zbench.standing FILE... [--over SYSTEM] [--worlds | --worst SYSTEM] [--markdown]: recorded systems by how
near the bound.

For every cluster and size a row a system: bound ratio by workload with its interval over batches, their geometric mean,
and how much faster the system is than another on the same batches (geometric mean over workloads of summed seconds),
with the range over worlds where there are some. Where there are several tables of a model, a last one has the means of
all. Runs that differ in tokens, seed, steps, executor or sources have tables of their own. --worlds tells instead which
order of systems survives all worlds, and which world turns which pair, --worst in which cells a system is slowest
beside the fastest other one. An edge: reads records, prints.
"""

import sys

from zbench.console.command import Parser, loading, ran
from zbench.describe.units import with_noun

with loading(__name__):
    from collections.abc import Mapping

    import numpy as np

    from zbench.console.console import say, show
    from zbench.console.sheet import Sheet
    from zbench.describe.worlds import NOMINAL
    from zbench.record.interval import LEVEL, interval
    from zbench.record.records import read_all
    from zbench.standing.cells import Cell, Place, Systems, Worlds, cells_by_world, gain
    from zbench.standing.ranges import over_worlds
    from zbench.standing.survival import Survival, gain_words, of_one_world, place_words, survivals
    from zbench.standing.worst import worst


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "nothing was written")


def _main() -> int:
    parser = Parser(prog="python -m zbench.standing", description="Recorded systems, nearest the bound first.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="records, as written by python -m zbench out=FILE")
    parser.add_argument("--over", help="the system that the others are compared with; zeppelin where it is not given")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--worlds", action="store_true", help="which order of systems survives every recorded world")
    form.add_argument("--worst", metavar="SYSTEM", help="its cells beside the fastest other system's, the worst first")
    parser.add_argument("--markdown", action="store_true", help="tables for a document")
    parser.add_argument("--mix-sources", action="store_true", help="runs by different sources in one table")
    arguments = parser.parse_args()
    runs = read_all(arguments.files)
    found = cells_by_world(runs, arguments.mix_sources)
    if not found:
        raise ValueError(f"no complete run in {', '.join(arguments.files)}")
    names = sorted({name for worlds in found.values() for systems in worlds.values() for name in systems})
    if arguments.over not in (None, *names):
        raise ValueError(f"--over is {arguments.over!r}; the records have {', '.join(names)}")
    if arguments.worst not in (None, *names):
        raise ValueError(f"--worst is {arguments.worst!r}; the records have {', '.join(names)}")
    over = arguments.over or "zeppelin"
    if arguments.worst:
        _print(worst(found, arguments.worst), arguments.markdown)
        return 0
    if arguments.worlds:
        several = survivals(runs, found, over)
        if not several:
            raise ValueError(
                f"--worlds is of several worlds, the nominal one among them; {', '.join(arguments.files)} has none such"
            )
        for one in several:
            _tell(one, arguments.markdown)
        if others := of_one_world(found):
            say(f"Not here, as they are of one world or lack the nominal one (without --worlds): {'; '.join(others)}.")
        return 0
    for sheet in tables(found, over):
        _print(sheet, arguments.markdown)
    return 0


def _print(sheet: Sheet, markdown: bool) -> None:
    print(sheet.markdown()) if markdown else show(sheet.rich())


def _tell(found: Survival, markdown: bool) -> None:
    """Prints what survives the worlds of a place: a table of ranges, the orders, and the pairs that turn."""
    _print(Sheet(found.title, *found.ranges()), markdown)
    for line in found.lines():
        print(f"- {line}") if markdown else say(line)
    print()


def tables(found: Mapping[Place, Worlds], over: str) -> list[Sheet]:
    """Returns a table of every place, nominal or, where that is not recorded, of each world; then of all places of a
    model."""
    out = []
    for place, worlds in found.items():
        if NOMINAL in worlds:
            out.append(standing_table(place_words(place), worlds[NOMINAL], over, worlds))
        else:
            out += [
                standing_table(f"{place_words(place)}, world {name}", systems, over) for name, systems in worlds.items()
            ]
    nominal = {place: worlds for place, worlds in found.items() if NOMINAL in worlds}
    kinds = dict.fromkeys(place[1:] for place in nominal)
    alike = [{place: worlds for place, worlds in nominal.items() if place[1:] == kind} for kind in kinds]
    return out + [together(some, over) for some in alike if len(some) > 1]


def standing_table(title: str, systems: Systems, over: str, worlds: Worlds | None = None) -> Sheet:
    """Returns the systems of one cluster and size as a table, nearest the bound first. worlds: those that ranges are
    over."""
    workloads = sorted({name for cells in systems.values() for name in cells})
    means, rows = {name: _mean(cells) for name, cells in systems.items()}, []
    for name in sorted(systems, key=lambda one: -_place(systems[one], len(workloads))):
        cells = systems[name]
        ratio = [_ratio(cells[w]) if w in cells else "" for w in workloads]
        rows.append((name, *ratio, _starred(means[name], cells, len(workloads)), _told(systems, name, over, worlds)))
    columns = ("system", *workloads, "mean", f"x {over}")
    return Sheet(f"{title}: bound ratio, {LEVEL:.0%} intervals over batches{_ranged(worlds)}", columns, tuple(rows))


def _ranged(worlds: Worlds | None) -> str:
    return f", [ranges over {with_noun(len(worlds), 'world')}]" if worlds and len(worlds) > 1 else ""


def together(found: Mapping[Place, Worlds], over: str) -> Sheet:
    """Returns the geometric means of all places in their nominal worlds, and over all of their cells.

    A world that a place has not (zbench.describe.worlds) is nominal there.
    """
    worlds = {
        world: _merged({place: of.get(world, of[NOMINAL]) for place, of in found.items()})
        for world in dict.fromkeys(world for of in found.values() for world in of)
    }
    every = worlds[NOMINAL]
    nominal, names = {place: of[NOMINAL] for place, of in found.items()}, list(every)
    most, rows = max(len(cells) for cells in every.values()), []
    for name in sorted(names, key=lambda one: -_place(every[one], most)):
        means = [
            _starred(_mean(s[name]), s[name], max(map(len, s.values()))) if name in s else "" for s in nominal.values()
        ]
        rows.append((name, *means, _starred(_mean(every[name]), every[name], most), _told(every, name, over, worlds)))
    columns = ("system", *(place[0] for place in found), "all", f"x {over}")
    title = f"Geometric means over workloads (*: of those that fit memory){_ranged(worlds)}"
    return Sheet(title, columns, tuple(rows))


def _merged(places: Mapping[Place, Systems]) -> dict[str, dict[str, Cell]]:
    """Merges the cells of all places, by system."""
    out: dict[str, dict[str, Cell]] = {}
    for place, systems in places.items():
        for name, cells in systems.items():
            out.setdefault(name, {}).update({f"{workload} {place}": cell for workload, cell in cells.items()})
    return out


def _place(cells: Mapping[str, Cell], workloads: int) -> float:
    """Returns the value by which tables are ordered: the arithmetic mean; a workload that does not fit memory adds
    nothing."""
    return sum(cell.ratio for cell in cells.values() if not cell.out_of_memory) / workloads


def _starred(mean: float, cells: Mapping[str, Cell], workloads: int) -> str:
    """Writes a mean, with a star where a workload is missing or did not fit memory."""
    return f"{mean:.3f}{' *' if sum(not cell.out_of_memory for cell in cells.values()) < workloads else ''}"


def _told(systems: Systems, name: str, over: str, worlds: Worlds | None) -> str:
    faster = gain(systems[name], systems[over]) if over in systems else None
    if faster is None:
        return ""
    return gain_words(*faster, over_worlds(worlds, name, over) if worlds else None)


def _mean(cells: Mapping[str, Cell]) -> float:
    """Returns the geometric mean of bound ratios over the workloads that fit memory; 0 where none does."""
    ratios = [cell.ratio for cell in cells.values() if not cell.out_of_memory]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else 0.0


def _ratio(cell: Cell) -> str:
    if cell.out_of_memory:
        return "out of memory"
    _, half = interval((np.array(cell.bound) / np.array(cell.seconds)).tolist())
    return f"{cell.ratio:.3f}" if half is None else f"{cell.ratio:.3f} ±{half:.3f}"


if __name__ == "__main__":
    sys.exit(main())
