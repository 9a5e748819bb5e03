"""python -m zbench.standing FILE... [--over SYSTEM] [--markdown]: recorded systems by how near the bound they are.

For every cluster and size a row a system: bound ratio by workload with its interval over batches, their geometric mean,
and how much faster the system is than another on the same batches (geometric mean over workloads of summed seconds).
Where there are several of a model, a last table has the means of all. An edge: reads records, prints.
"""

import sys

from zbench.command import Parser, loading, ran

with loading(__name__):
    from collections.abc import Sequence
    from dataclasses import dataclass

    import numpy as np
    from rich.console import Console
    from rich.table import Table
    from scipy import stats

    from zbench.record import Run
    from zbench.records import read_all
    from zbench.rows import label

LEVEL = 0.95  # of the intervals


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


Place = tuple[str, str, str]  # cluster, model, and whether simulated or measured
Table_ = dict[Place, dict[str, dict[str, Cell]]]  # -> system -> workload


def table(runs: Sequence[Run]) -> Table_:
    """The last complete run of every combination."""
    found: Table_ = {}
    for run in runs:
        if run.status == "finished" and run.steps:
            kind = "simulated" if run.start["facts"]["simulated"] else "measured"
            place = label(run.start, "cluster"), label(run.start, "model"), kind
            found.setdefault(place, {}).setdefault(label(run.start, "system"), {})[label(run.start, "workload")] = (
                Cell.of(run)
            )
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half the width of its interval by Student's t); 0 wide for a single value, which has none."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, 0.0
    width = stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return mean, float(width)


def gain(mine: dict[str, Cell], other: dict[str, Cell]) -> tuple[float, float, float] | None:
    """(how many times as fast as `other`, lowest, highest), the geometric mean over the workloads of both.

    The interval is of the mean of log ratios over batches, paired, workload by workload, errors added in squares.

    Raises:
        ValueError: the two saw different batches of a workload.
    """
    both = [name for name in mine if name in other and not mine[name].out_of_memory and not other[name].out_of_memory]
    if not both:
        return None
    logs, squares = [], 0.0
    for name in both:
        if mine[name].digests != other[name].digests:
            raise ValueError(f"the systems saw different batches of {name}; they can only be compared on the same ones")
        logs.append(np.log(sum(other[name].seconds) / sum(mine[name].seconds)))
        _, half = interval(np.log(np.array(other[name].seconds) / np.array(mine[name].seconds)).tolist())
        squares += half * half
    mean, half = float(np.mean(logs)), float(np.sqrt(squares)) / len(both)
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


def main() -> int:
    return ran(_main, "nothing was written")


def _main() -> int:
    parser = Parser(prog="python -m zbench.standing", description="Recorded systems, nearest the bound first.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="records, as written by python -m zbench out=FILE")
    parser.add_argument("--over", help="the system that the others are compared with; zeppelin where it is not given")
    parser.add_argument("--markdown", action="store_true", help="tables for a document")
    arguments = parser.parse_args()
    found = table(read_all(arguments.files))
    if not found:
        raise ValueError(f"no complete run in {', '.join(arguments.files)}")
    names = sorted({name for systems in found.values() for name in systems})
    if arguments.over not in (None, *names):
        raise ValueError(f"--over is {arguments.over!r}; the records have {', '.join(names)}")
    over = arguments.over or "zeppelin"
    tables = [shown(f"{model} on {cluster}, {kind}", at, over) for (cluster, model, kind), at in found.items()]
    kinds = dict.fromkeys(place[1:] for place in found)
    alike = [{place: at for place, at in found.items() if place[1:] == kind} for kind in kinds]
    tables += [together(some, over) for some in alike if len(some) > 1]
    for one in tables:
        print(one.markdown()) if arguments.markdown else Console(width=200).print(one.rich())
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
    """With a star where a workload is missing or did not fit memory."""
    return f"{mean:.3f}{' *' if sum(not cell.out_of_memory for cell in cells.values()) < workloads else ''}"


def _told(faster: tuple[float, float, float] | None) -> str:
    return f"{faster[0]:.2f} ({faster[1]:.2f}-{faster[2]:.2f})" if faster else ""


def _mean(cells: dict[str, Cell]) -> float:
    """Geometric mean of bound ratios over the workloads that fit memory; 0 where none does."""
    ratios = [cell.ratio for cell in cells.values() if not cell.out_of_memory]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else 0.0


def _ratio(cell: Cell) -> str:
    if cell.out_of_memory:
        return "out of memory"
    _, half = interval((np.array(cell.bound) / np.array(cell.seconds)).tolist())
    return f"{cell.ratio:.3f} ±{half:.3f}"


if __name__ == "__main__":
    sys.exit(main())
