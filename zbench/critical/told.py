"""A critical path as a list that a person reads: runs of the same operation are one row. Pure: no torch.

Hops of one operation are one row. Then what repeats is told once: an operation that follows itself, a few that take
turns, and layers, which have the same operations in the same order. What rows say is summed; nothing is left out, so
their seconds sum to the step's. The command, the report and a trace's track all say it with these rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, pairwise
from operator import add

import numpy as np

from zbench.console.sheet import Sheet
from zbench.critical.path import PathHop, critical_path
from zbench.record.record import Line
from zbench.record.rows import label
from zbench.simulator.clock import Timeline
from zbench.simulator.steps.expand import CLASS, OP, RANK
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.step.operations import COMPUTE
from zbench.trace.whole_step import played_operation

_LONGEST = 64  # rows that repeat together: a layer has about 40
_LITTLE = 0.01  # of the step: what takes less is told together
_MOST_SPANS = 6  # of numbers that are told one by one


@dataclass(frozen=True)
class PathRow:
    """Operations of the path. begin, end: seconds, of the first of them and of the last; seconds: of all of them.
    times: how many there are. layers, gpus: which. waited: what for, and how often."""

    name: str
    template: str
    layers: frozenset[int]
    gpus: frozenset[int]
    begin: float
    end: float
    seconds: float
    times: int
    waited: Counter[str]

    @property
    def reasons(self) -> str:
        """The words for what was waited for, the most frequent first."""
        return ", ".join(word for word, _ in self.waited.most_common())

    def __add__(self, other: "PathRow") -> "PathRow":
        """Returns both as one row, with what the first is called."""
        return replace(
            self,
            layers=self.layers | other.layers,
            gpus=self.gpus | other.gpus,
            begin=min(self.begin, other.begin),
            end=max(self.end, other.end),
            seconds=self.seconds + other.seconds,
            times=self.times + other.times,
            waited=self.waited + other.waited,
        )


@dataclass(frozen=True, slots=True)
class ToldPath:
    """A critical path for a person. head: what it is of, in sentences; made: what it is made of; listed: from its end
    back to its begin."""

    head: str
    made: Sheet
    listed: Sheet


def told_path(program: HopByHop, timeline: Timeline, start: Line, line: Line) -> ToldPath:
    """Returns the critical path of a recorded step that was played again, with all its layers. start, line: of its run
    and of itself, as in the record, whose seconds may be of fewer layers."""
    seconds = float(timeline.done.max())
    made, listed = path_sheets(path_rows(program, critical_path(program, timeline)), seconds)
    head = (
        f"Critical path of step {line['step']}, {label(start, 'system')} on {label(start, 'workload')}: "
        f"{seconds:.6g} s, simulated with all layers played out (the record has {line['seconds']:.6g}). "
        "Each row waited for the one below it."
    )
    return ToldPath(head, made, listed)


def path_rows(program: HopByHop, path: Sequence[PathHop]) -> list[PathRow]:
    """Returns the rows of a path, from the step's begin to its end."""
    rows = path_operations(program, path)
    for period in range(1, _LONGEST + 1):
        rows = _folded(rows, period)
    return rows


def path_operations(program: HopByHop, path: Sequence[PathHop]) -> list[PathRow]:
    """Returns a row for every operation of a path, from the step's begin to its end."""
    bounds, owned = program.begin, [one.hop for one in path]
    instances = np.searchsorted(bounds, owned, "right") - 1
    marks = [(int(instance), int(program.table[OP, hop])) for instance, hop in zip(instances, owned, strict=True)]
    rows = [
        _row(program, instance, operation, [one for _, one in hops])
        for (instance, operation), hops in groupby(zip(marks, path, strict=True), key=lambda pair: pair[0])
    ]
    return [row for row in rows if row.seconds > 0]  # else members met, and nobody waited for it


def path_sheets(rows: Sequence[PathRow], seconds: float) -> tuple[Sheet, Sheet]:
    """Returns (what the path is made of, the longest first, and what takes less than a hundredth of the step together;
    its rows from the step's end back to its begin)."""
    names: dict[str, PathRow] = {}
    for row in rows:
        names[row.name] = names[row.name] + row if row.name in names else row
    longest = sorted(names.values(), key=lambda row: -row.seconds)
    most = [row for row in longest if row.seconds >= _LITTLE * seconds]
    if others := longest[len(most) :]:
        name = others[0].name if len(others) == 1 else f"{len(others)} others"
        most.append(replace(reduce(add, others), name=name))
    made = tuple((row.name, _time(row.seconds), f"{row.seconds / seconds:.1%}", str(row.times)) for row in most)
    listed = tuple(
        (
            _time(row.end),
            _time(row.seconds),
            row.name,
            str(row.times),
            row.template,
            written_numbers(row.layers),
            written_numbers(row.gpus),
            row.reasons,
        )
        for row in reversed(rows)
    )
    columns = ("end, ms", "ms", "operation", "times", "template", "layers", "GPUs", "waited for")
    return (
        Sheet("What the critical path is made of", ("operation", "ms", "of the step", "times"), made),
        Sheet("From the step's end back to its begin", columns, listed),
    )


def _row(program: HopByHop, instance: int, operation: int, hops: Sequence[PathHop]) -> PathRow:
    """Returns the row of an operation. Members that meet are on no GPU; what the operation waited for is what the first
    of its hops on the path did."""
    name, args = played_operation(program.instances[instance], operation)
    table, kinds = program.table, program.kinds
    gpus = {int(table[RANK, one.hop]) for one in hops if table[CLASS, one.hop] >= 0 or kinds[one.hop] == COMPUTE}
    gpus = {gpu for gpu in gpus if gpu < program.instances[0].variant.of.step.num_gpus}  # a node's CPUs are none
    return PathRow(
        name,
        args["template"],
        frozenset({args["layer"]}),
        frozenset(gpus),
        hops[0].begin,
        hops[-1].end,
        sum(one.end - one.begin for one in hops),
        1,
        Counter([hops[0].waited]),
    )


def _folded(rows: Sequence[PathRow], period: int) -> list[PathRow]:
    """Returns rows of which so many that repeat, once or more often, are there once, with the sums of all."""
    names, found, at = [(row.name, row.template) for row in rows], [], 0
    while at < len(rows):
        here, until = names[at : at + period], at + period
        while len(here) == period and names[until : until + period] == here:
            until += period
        if until == at + period:
            found.append(rows[at])
            at += 1
            continue
        found += [reduce(add, rows[at + turn : until : period]) for turn in range(period)]
        at = until
    return found


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def written_numbers(of: frozenset[int]) -> str:
    """Writes numbers as ranges, '0-2 5', or how many of which: '14 of 1-31'."""
    found = sorted(of)
    breaks = [0, *(at + 1 for at, (a, b) in enumerate(pairwise(found)) if b != a + 1), len(found)]
    spans = [(found[a], found[b - 1]) for a, b in pairwise(breaks) if a < b]
    if len(spans) > _MOST_SPANS:
        return f"{len(found)} of {found[0]}-{found[-1]}"
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
