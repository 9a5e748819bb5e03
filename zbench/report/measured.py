"""A measured step's own trace (zbench.runtime.measured_trace) as columns for the page. Pure: no torch.

Ranks note what they do, not which blocks it is about: runs of programs are numbered, attends have their operation's
number and messages their hop's, and the plans, made again, say the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from zbench.cost.cost import Cost
from zbench.describe.model import TENSOR_NAMES
from zbench.plans.plan import Ints, Ops, Plan
from zbench.report.columns import MOST_EVENTS, Columns, blocks_of
from zbench.report.overview import Table
from zbench.simulator.hops import hops
from zbench.trace.file import Event

INSIDE, BETWEEN = "message inside the node", "message between nodes"


@dataclass(slots=True)
class _Runs:
    """Knows which micro-batch, pass and layer each run of a program is of.

    A micro-batch's runs are its layers forward, then backward from the last; with model.recompute "full" each of these
    comes after a forward of that layer again. of: runs of a micro-batch. _hops: operations of hops, once asked for.
    """

    plans: Sequence[Plan]
    cost: Cost
    of: int
    _hops: dict[tuple[int, bool], Ints] = field(default_factory=dict)

    @staticmethod
    def among(events: Sequence[Event], plans: Sequence[Plan], cost: Cost) -> "_Runs | None":
        """Finds the runs of programs among a step's events; None where their number is not the plans' (other sources
        made them)."""
        count = 1 + max((event["args"]["run"] for event in events if "run" in event.get("args", {})), default=-1)
        of, rest = divmod(count, len(plans))
        layers = cost.model.num_layers
        return _Runs(plans, cost, of) if not rest and of in (2 * layers, 3 * layers) else None

    def place(self, run: int) -> tuple[int, int, bool]:
        """Returns (micro-batch, layer, whether it is a backward)."""
        micro, turn = divmod(run, self.of)
        layers = self.cost.model.num_layers
        if turn < layers:
            return micro, turn, False
        each = self.of // layers - 1  # runs of a layer's backward
        return micro, layers - 1 - (turn - layers) // each, (turn - layers) % each == each - 1

    def ops(self, micro: int, backward: bool) -> Ops:
        return self.plans[micro].backward if backward else self.plans[micro].forward

    def operation(self, micro: int, backward: bool, hop: int) -> int:
        if (micro, backward) not in self._hops:
            plan, ops = self.plans[micro], self.ops(micro, backward)
            size = self.cost.message_bytes(plan, ops)
            self._hops[micro, backward] = hops(plan, ops, size, self.cost.cluster).op
        return int(self._hops[micro, backward][hop])


def measured_timeline(events: Sequence[Event], plans: tuple[Plan, ...], cost: Cost | None) -> Table | None:
    """Makes the table that zbench.report.inside.timeline makes, of what the ranks noted.

    It is None where there are more than MOST_EVENTS events.
    plans, cost: () and None where they cannot be made again; then blocks are not named.
    """
    runs = None if cost is None else _Runs.among(events, plans, cost)
    columns = Columns()
    named = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    tracks = [name for place in sorted(named) for name in (named[place], f"{named[place]} receives")]
    number = {name: i for i, name in enumerate(tracks)}
    for event in events:
        if len(columns) == MOST_EVENTS:
            return None
        if event["ph"] == "X":
            _span(columns, number[named[event["pid"], event["tid"]]], event, runs)
    for begin, end in _messages(events):
        if len(columns) == MOST_EVENTS:
            return None
        _message(columns, number, begin, end["ts"] - begin["ts"], runs)
    per_node = 2 * sum(node == 0 for node, _ in named)
    return {"measured": True, "tracks": tracks, "per_node": per_node, **columns.table(plans)}


def _span(columns: Columns, track: int, event: Event, runs: _Runs | None) -> None:
    run, op, micro, layer, lists = event["args"]["run"], event["args"]["operation"], -1, -1, list[int]()
    if runs is not None and run >= 0:
        micro, layer, backward = runs.place(run)
        lists = blocks_of(runs.ops(micro, backward), op) if op >= 0 else []
    columns.add(track, event["name"], (event["ts"], event["dur"]), (micro, layer), [(micro, one) for one in lists])


def _message(columns: Columns, number: Mapping[str, int], begin: Event, length: float, runs: _Runs | None) -> None:
    args, (sender, _, receiver) = begin["args"], begin["name"].partition(" to ")
    name, micro, layer, lists = INSIDE if begin["cat"] == "inside the node" else BETWEEN, -1, -1, list[int]()
    if runs is not None:
        micro, layer, backward = runs.place(args["run"])
        ops, op = runs.ops(micro, backward), runs.operation(micro, backward, args["leg"])
        name, lists = f"{name}: {TENSOR_NAMES[int(ops.tensor[op])]}", [int(ops.blocks[op])]
    track, route, what = (
        number[f"GPU {receiver} receives"],
        [int(sender), int(receiver)],
        [(micro, one) for one in lists],
    )
    columns.add(track, name, (begin["ts"], length), (micro, layer), what, args["bytes"], route)


def _messages(events: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """Yields the beginnings and ends of asynchronous events, paired."""
    ends = {one["id"]: one for one in events if one["ph"] == "e"}
    return ((one, ends[one["id"]]) for one in events if one["ph"] == "b")
