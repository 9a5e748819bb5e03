"""Plays a whole step on a described cluster's clock: when every operation of every instance runs.

Layers are alike, so a step is played with fewer of them, as one program from the embedding to the optimizer in which
every instance waits for what it needs and for nothing else. Those in the middle of each stage are left out, and
what waits for them is later by what they would have added (zbench.simulator.steps.left_out).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.plans.plan import Plan
from zbench.simulator.clock import Free, Timeline
from zbench.simulator.steps.account import StepMemory, step_memory
from zbench.simulator.steps.amounts import ATTEND, OPTIMIZER, amounts_of
from zbench.simulator.steps.breakdown import breakdown
from zbench.simulator.steps.left_out import LeftOut
from zbench.simulator.steps.occupancy import LinkedHops, LinkUse
from zbench.simulator.steps.program import StepParts, StepProgram, program
from zbench.simulator.steps.trains.clock import Unless, run_unless
from zbench.step.operations import QUEUES
from zbench.step.template import StageStart, Step

LAYERS = (12, 24)  # that are played; the second where the first have not settled, and all where these have not either
_ROUNDING = 1e-9  # relative: of sums of the same numbers in another order
TURNS = 4  # of several layers that are played at least, two before and two after those that are left out


@dataclass(frozen=True)
class PlayedStep:
    """A step that was played; seconds are the described cluster's, simulated.

    ends: for each entry of the step's order that was not left out whole, when all of it has ended. busy: by what for,
    float64 [GPUs], seconds of computes ("attend", "optimizer", the others "compute") and of sending ports by the
    operations' queues. nic_tx, nic_rx: by queue, int64 [NICs], bytes. inside: by queue, bytes on links inside nodes.
    settled: whether layers had become alike. memory: the fullest moments, in plan order. moving, exposed, exposed_nic:
    seconds [GPUs], as zbench.simulator.steps.occupancy.Occupancy has them, of the whole step. spent: what the seconds
    of every GPU go to, as zbench.simulator.steps.breakdown has them.
    """

    seconds: float
    ends: tuple[tuple[str, float], ...]
    busy: Mapping[str, Floats]
    nic_tx: Mapping[str, Ints]
    nic_rx: Mapping[str, Ints]
    inside: Mapping[str, int]
    settled: bool
    memory: StepMemory
    moving: Floats
    exposed: Floats
    exposed_nic: Floats
    spent: Mapping[str, Floats]


def play_step(step: Step, plans: Sequence[Plan], cost: Cost, least: float = 0.0) -> PlayedStep:
    """Plays a step that was proven. plans: of its micro-batches, one a layout, for the work of their attends; () where
    it has no attention. cost: of GPUs, one a place of the step. least: the seconds that any such step takes; what comes
    to less with some layers, as where a port's queue still grows, has not settled.

    Raises:
        ValueError: the step and the cluster do not fit.
    """
    return _settled(StepParts(step, plans, cost), least).result()


def step_seconds(parts: StepParts, least: float = 0.0) -> float:
    """Returns the seconds of a step, and nothing else of what `play_step` tells; a step that is only compared with
    others need not be proven. least: as there."""
    return _settled(parts, least).seconds


def _settled(parts: StepParts, least: float) -> "_Played":
    """Plays a step with as few layers as will do."""
    longest = _longest_stage(parts.step)
    for most in sorted({min(most, longest) for most in LAYERS} - {longest}):
        played = _Played.settling(parts, most)
        if played is not None and played.settled and played.seconds >= least * (1 - _ROUNDING):
            return played
    return _Played.of(parts, longest)


def play_some_layers(step: Step, plans: Sequence[Plan], cost: Cost, kept: int) -> PlayedStep:
    """Plays a step with at most `kept` layers of each stage, whether they settle or not; as `play_step` otherwise."""
    return _Played.of(StepParts(step, plans, cost), kept).result()


def play_layers(step: Step, plans: Sequence[Plan], cost: Cost) -> tuple[StepProgram, Timeline]:
    """Plays all layers of a step as one program, as a trace shows them; as `play_step` otherwise."""
    played = _Played.of(StepParts(step, plans, cost), step.num_layers)
    return played.program, played.left_out.timeline


def _longest_stage(step: Step) -> int:
    """Returns the most layers that are on the same stages of all pipelines and play the same templates."""
    return max(end - begin for begin, end in pairwise([*step.cuts, step.num_layers]))


def with_fewer_layers(step: Step, kept: int) -> tuple[Step, list[tuple[int, int]], Ints]:
    """Returns a step with at most `kept` layers in each stage, the instances of it, (entry, layer), and for each how
    many layers before it in its run were left out: those in the middle of a stage are, or of what stages of several
    pipelines have in common.

    Where gradients are reduced several layers together these are left out together, and a few more may be kept.
    """
    number, firsts, which = 0, {}, {}
    for first, end in pairwise([*step.cuts, step.num_layers]):
        firsts[first] = number
        begin, less = _left_out(end - first, kept, step.turn_layers)
        for layer in (*range(first, first + begin), *range(first + begin + less, end)):
            which[layer] = number
            number += 1
    which[step.num_layers] = number
    stages = [StageStart(firsts[one.layer], one.place) for one in step.stages]
    order, skipped = [], []
    before, since = dict.fromkeys(step.runs, -1), dict.fromkeys(step.runs, -1)  # by run: the last one kept, and of all
    for entry, (of, run) in enumerate(zip(step.order, step.runs, strict=True)):
        for layer in of.layers:
            since[run] += 1
            if layer in which:
                order.append((entry, which[layer]))
                skipped.append(since[run] - before[run] - 1)
                before[run] = since[run]
    leading = firsts[step.leading] if step.leading else 0
    return replace(step, num_layers=number, stages=tuple(stages), leading=leading), order, np.array(skipped, np.int64)


def _left_out(count: int, kept: int, turn: int) -> tuple[int, int]:
    """Returns how many of a stage's layers stand before those that are left out, and how many these are. turn: the
    layers that are left out together, counted from the last."""
    kept = max(kept, TURNS * turn + count % turn) if turn > 1 else kept
    begin, less = min(kept, count) // 2, max(count - kept, 0)
    begin += (count - begin) % turn
    return begin, less // turn * turn


def _reasons(made: StepProgram, skipped: Ints, turn: int) -> list[Unless]:
    """Returns when to stop playing a program, as a run of layers has not settled."""
    nothing = np.zeros(0)
    of = LeftOut(made, Timeline(nothing, nothing, nothing), skipped, turn)
    return [Unless(of.looked_at(cut), partial(_differs, of, cut)) for cut in of.cuts]


def _differs(of: LeftOut, cut: int, timeline: Timeline) -> bool:
    """Returns whether the run of a cut has not settled."""
    return not replace(of, timeline=timeline).agrees(cut)


@dataclass(frozen=True)
class _Played:
    """A program that was played, with what was left out of it."""

    parts: StepParts
    left_out: LeftOut

    @staticmethod
    def of(parts: StepParts, kept: int) -> "_Played":
        """Plays a step with at most `kept` layers of each stage."""
        found = _Played.settling(parts, kept, False)
        assert found is not None
        return found

    @staticmethod
    def settling(parts: StepParts, kept: int, only: bool = True) -> "_Played | None":
        """Plays a step with at most `kept` layers of each stage; None where a run of layers has not settled. only:
        whether to stop there."""
        short, order, skipped = with_fewer_layers(parts.step, kept)
        made = program(parts, order, short)
        cluster = parts.cost.cluster
        free, turn = Free.of(cluster, made.queues), parts.step.turn_layers
        reasons = _reasons(made, skipped, turn) if only else []
        timeline = run_unless(made, cluster.num_ranks, free, reasons)
        if timeline is None:
            return None
        if not np.isfinite(timeline.done).all():
            raise AssertionError("hops wait for each other")
        return _Played(parts, LeftOut(made, timeline, skipped, turn))

    @property
    def program(self) -> StepProgram:
        return self.left_out.program

    @cached_property
    def ends(self) -> Floats:
        """When all hops of each instance have ended, with all layers, as `_ends`."""
        return _ends(self.program, self.left_out.done)

    @property
    def settled(self) -> bool:
        """Whether layers had become alike."""
        return self.left_out.settled

    @property
    def seconds(self) -> float:
        """The seconds of the step with all its layers."""
        return float(self.ends.max(initial=0.0))

    def result(self) -> PlayedStep:
        """Returns the step with all its layers."""
        last = {one.entry: float(end) for one, end in zip(self.program.instances, self.ends.tolist(), strict=True)}
        ends = [
            (self.parts.step.templates[one.template].name, last[entry])
            for entry, one in enumerate(self.parts.step.order)
            if entry in last
        ]
        busy, sent, received, inside = self._sums()
        memory = step_memory(self.parts)
        spent = breakdown(self.left_out, self.seconds, self.parts.step.num_gpus)
        moving, exposed, across = self._occupied()
        told = moving, exposed, across, spent
        return PlayedStep(self.seconds, tuple(ends), busy, sent, received, inside, self.settled, memory, *told)

    def _occupied(self) -> list[Floats]:
        """Returns the seconds in which transfers are under way and exposed, in all layers: of each stage's GPUs, from
        the end of an instance on them to that of the next."""
        step, timeline, times = self.parts.step, self.left_out.timeline, self.left_out.times
        ends, found = _ends(self.program, timeline.done), [np.zeros(step.num_gpus) for _ in range(3)]
        places = np.array([one.variant.place for one in self.program.instances], np.int64)
        edges, made = [*np.unique(places[places >= 0]).tolist(), step.num_gpus], self.program
        row, rows = made.hops
        hops = LinkedHops(row, rows.queue_a, rows.queue_b, rows.link_class, made.gpu_queues)
        use = LinkUse.of(hops, timeline, step.num_gpus, made.trains)
        for first, last in pairwise(edges):
            mine = np.flatnonzero((places == first) | (places < 0))
            mine = mine[np.argsort(ends[mine], kind="stable")]  # they ascend, but for those across pipelines
            for total, one in zip(found, use.spans(ends[mine]), strict=True):
                total[first:last] = one[first:last] @ times[mine]
        return found

    def _sums(self) -> tuple[dict[str, Floats], dict[str, Ints], dict[str, Ints], dict[str, int]]:
        """Returns what is busy and sent in all layers."""
        cluster = self.parts.cost.cluster
        variants, which = self.parts.of_step
        times = np.bincount(which, minlength=len(variants)).tolist()
        rows = {"attend": ATTEND, "optimizer": OPTIMIZER, **{name: row for row, name in enumerate(QUEUES)}}
        busy = {name: np.zeros(cluster.num_ranks) for name in rows}
        sent, received = ({name: np.zeros(cluster.num_nics, np.int64) for name in QUEUES[1:]} for _ in range(2))
        inside = dict.fromkeys(QUEUES[1:], 0)
        for variant, count in zip(variants, times, strict=True):
            amounts = amounts_of(variant, cluster)
            for name, row in rows.items():
                busy[name] += count * amounts.busy[row]
            for row, name in enumerate(QUEUES[1:], start=1):
                sent[name] += count * amounts.sent[row]
                received[name] += count * amounts.received[row]
                inside[name] += count * int(amounts.inside[row])
        return busy, sent, received, inside


def _ends(made: StepProgram, done: Floats) -> Floats:
    """Returns when all hops of each instance have ended, as `_Played.ends`."""
    found, some = np.zeros(len(made.instances)), np.flatnonzero(np.diff(made.begin))
    if len(some):
        found[some] = np.maximum.reduceat(done, made.begin[some])
    places = np.array([one.variant.place for one in made.instances], np.int64)
    for place in np.unique(places).tolist():
        found[places == place] = np.maximum.accumulate(found[places == place])
    return found
