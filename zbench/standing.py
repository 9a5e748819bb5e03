"""python -m zbench.standing FILE... [--over SYSTEM] [--markdown]: recorded systems by how near the bound they are.

For every cluster and size a row a system: bound ratio by workload with its interval over batches, their geometric mean,
and how much faster the system is than another on the same batches (geometric mean over workloads of summed seconds).
Where there are several of a model, a last table has the means of all. Runs that differ in tokens, seed, steps, executor
or sources have tables of their own. An edge: reads records, prints.
"""

import sys

from zbench.command import Parser, loading, ran

with loading(__name__):
    from collections.abc import Sequence
    from dataclasses import dataclass
    from math import exp, hypot

    import numpy as np
    from rich.table import Table

    from zbench.console import show
    from zbench.interval import LEVEL, interval, log_ratio
    from zbench.record import Run
    from zbench.records import read_all
    from zbench.rows import label, setting


@dataclass(frozen=True, slots=True)
class Cell:
    """A system on a workload: seconds and bound of every step, batches' digests, whether any was out of memory."""

    seconds: tuple[float, ...]
    bound: tuple[float, ...]
    digests: tuple[str, ...]
    out_of_memory: bool

    @staticmethod
    def of(run: Run) -> "Cell":
        column = {name: tuple(step[name] for step in run.steps) for name in ("seconds", "bound_seconds", "batch")}
        full = any(step["out_of_memory"] for step in run.steps)
        return Cell(column["seconds"], column["bound_seconds"], column["batch"], full)

    @property
    def ratio(self) -> float:
        return sum(self.bound) / sum(self.seconds)


Place = tuple[str, ...]  # cluster, model, simulated or measured, and what else differs between tables
Table_ = dict[Place, dict[str, dict[str, Cell]]]  # -> system -> workload


def table(runs: Sequence[Run], mix_sources: bool = False) -> Table_:
    """The last complete run of every system and workload, runs of other settings in tables of their own.

    mix_sources: runs that other sources made may stand in one table.
    """
    whole = [(run, setting(run.start)) for run in runs if run.status == "finished" and run.steps]
    titled = {"cluster", "model", "executor", *(["sources"] if mix_sources else [])}
    differing = [key for key in (whole[0][1] if whole else ()) if len({of[key] for _, of in whole}) > 1]
    found: Table_ = {}
    for run, of in whole:
        kind = "simulated" if run.start["facts"]["simulated"] else f"measured, executor {of['executor']}"
        place = of["cluster"], of["model"], kind, *(f"{key} {of[key]}" for key in differing if key not in titled)
        cells = found.setdefault(place, {}).setdefault(label(run.start, "system"), {})
        cells[label(run.start, "workload")] = Cell.of(run)
    return found


def gain(mine: dict[str, Cell], other: dict[str, Cell]) -> tuple[float, float | None] | None:
    """(how many times as fast as `other`, the factor that its interval reaches either way), over workloads of both.

    It is the geometric mean. The interval is of log ratios over batches, paired, workload by workload, errors added in
    squares; None where a workload has too few batches for one (zbench.interval).

    Raises:
        ValueError: the two saw different batches of a workload.
    """
    both = [name for name in mine if name in other and not mine[name].out_of_memory and not other[name].out_of_memory]
    if not both:
        return None
    found = []
    for name in both:
        if mine[name].digests != other[name].digests:
            raise ValueError(f"the systems saw different batches of {name}; they can only be compared on the same ones")
        found.append(log_ratio(mine[name].seconds, other[name].seconds))
    widths = [half for _, half in found if half is not None]
    factor = exp(hypot(*widths) / len(both)) if len(widths) == len(both) else None
    return exp(sum(log for log, _ in found) / len(both)), factor


def main() -> int:
    return ran(_main, "nothing was written")


def _main() -> int:
    parser = Parser(prog="python -m zbench.standing", description="Recorded systems, nearest the bound first.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="records, as written by python -m zbench out=FILE")
    parser.add_argument("--over", help="the system that the others are compared with; zeppelin where it is not given")
    parser.add_argument("--markdown", action="store_true", help="tables for a document")
    parser.add_argument("--mix-sources", action="store_true", help="runs by different sources in one table")
    arguments = parser.parse_args()
    found = table(read_all(arguments.files), arguments.mix_sources)
    if not found:
        raise ValueError(f"no complete run in {', '.join(arguments.files)}")
    names = sorted({name for systems in found.values() for name in systems})
    if arguments.over not in (None, *names):
        raise ValueError(f"--over is {arguments.over!r}; the records have {', '.join(names)}")
    over = arguments.over or "zeppelin"
    tables = [
        shown(f"{model} on {cluster}, {', '.join(rest)}", at, over) for (cluster, model, *rest), at in found.items()
    ]
    kinds = dict.fromkeys(place[1:] for place in found)
    alike = [{place: at for place, at in found.items() if place[1:] == kind} for kind in kinds]
    tables += [together(some, over) for some in alike if len(some) > 1]
    for one in tables:
        print(one.markdown()) if arguments.markdown else show(one.rich())
    return 0


@dataclass(frozen=True, slots=True)
class Standing:
    """A table: rows of as many cells as there are columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def rich(self) -> Table:
        out = Table(*self.columns, title=self.title)
        for row in self.rows:
            out.add_row(*row)
        return out

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", *("| " + " | ".join(row) + " |" for row in (self.columns, *self.rows)), ""]
        return "\n".join([*lines[:3], "|" + "---|" * len(self.columns), *lines[3:]])


def shown(title: str, systems: dict[str, dict[str, Cell]], over: str) -> Standing:
    """The systems of one cluster and size, nearest the bound first."""
    workloads = sorted({name for cells in systems.values() for name in cells})
    means, rows = {name: _mean(cells) for name, cells in systems.items()}, []
    for name in sorted(systems, key=lambda one: -_place(systems[one], len(workloads))):
        cells = systems[name]
        ratio = [_ratio(cells[w]) if w in cells else "" for w in workloads]
        faster = gain(cells, systems[over]) if over in systems else None
        rows.append((name, *ratio, _starred(means[name], cells, len(workloads)), _told(faster)))
    columns = ("system", *workloads, "mean", f"x {over}")
    return Standing(f"{title}: bound ratio, {LEVEL:.0%} intervals over batches", columns, tuple(rows))


def together(found: Table_, over: str) -> Standing:
    """Geometric means of all tables, and over all of their cells."""
    names = list(dict.fromkeys(name for systems in found.values() for name in systems))
    every = {
        name: {f"{w} {p}": cell for p, systems in found.items() for w, cell in systems.get(name, {}).items()}
        for name in names
    }
    most, rows = max(len(cells) for cells in every.values()), []
    for name in sorted(names, key=lambda one: -_place(every[one], most)):
        means = [
            _starred(_mean(s[name]), s[name], max(map(len, s.values()))) if name in s else "" for s in found.values()
        ]
        faster = gain(every[name], every[over]) if over in every else None
        rows.append((name, *means, _starred(_mean(every[name]), every[name], most), _told(faster)))
    columns = ("system", *(place[0] for place in found), "all", f"x {over}")
    return Standing("Geometric means over workloads (*: of those that fit memory)", columns, tuple(rows))


def _place(cells: dict[str, Cell], workloads: int) -> float:
    """What tables are in the order of: the arithmetic mean; a workload that does not fit memory adds nothing."""
    return sum(cell.ratio for cell in cells.values() if not cell.out_of_memory) / workloads


def _starred(mean: float, cells: dict[str, Cell], workloads: int) -> str:
    """Writes a mean, with a star where a workload is missing or did not fit memory."""
    return f"{mean:.3f}{' *' if sum(not cell.out_of_memory for cell in cells.values()) < workloads else ''}"


def _told(faster: tuple[float, float | None] | None) -> str:
    if faster is None:
        return ""
    mean, factor = faster
    return f"{mean:.2f}" if factor is None else f"{mean:.2f} ({mean / factor:.2f}-{mean * factor:.2f})"


def _mean(cells: dict[str, Cell]) -> float:
    """Geometric mean of bound ratios over the workloads that fit memory; 0 where none does."""
    ratios = [cell.ratio for cell in cells.values() if not cell.out_of_memory]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else 0.0


def _ratio(cell: Cell) -> str:
    if cell.out_of_memory:
        return "out of memory"
    _, half = interval((np.array(cell.bound) / np.array(cell.seconds)).tolist())
    return f"{cell.ratio:.3f}" if half is None else f"{cell.ratio:.3f} ±{half:.3f}"


if __name__ == "__main__":
    sys.exit(main())
