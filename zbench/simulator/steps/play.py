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
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.simulator.steps.left_out import LeftOut
from zbench.simulator.steps.program import StepParts, StepProgram, program
from zbench.simulator.steps.repeating import RepeatingLayers
from zbench.simulator.steps.trains.clock import Halt, Unless, run_unless
from zbench.simulator.steps.trains.columns import TrainTimeline
from zbench.simulator.steps.trains.occupancy import LinkedHops, LinkUse, TrainPieces
from zbench.simulator.steps.trains.paused import PausedHops
from zbench.step.operations import COMPUTE, GATHER, QUEUES
from zbench.step.template import Step

LAYERS = (12, 24)  # that are played; the second where the first do not tell, and all where these do not either
_ROUNDING = 1e-9  # relative: of sums of the same numbers in another order


@dataclass(frozen=True)
class PlayedStep:
    """A step that was played; seconds are the described cluster's, simulated.

    ends: for each entry of the step's order that was not left out whole, when all of it has ended. busy: by what for,
    float64 [GPUs], seconds of computes ("attend", "optimizer", the others "compute") and of sending ports by what
    they send for. nic_tx, nic_rx: the same, int64 [NICs], bytes. inside: the same, bytes on links inside nodes.
    settled: whether layers had become alike. memory: the fullest moments, in plan order. moving, exposed, exposed_nic:
    seconds [GPUs], as zbench.simulator.steps.trains.occupancy.Occupancy has them, of the whole step. spent: what the
    seconds of every GPU go to, as zbench.simulator.steps.breakdown has them.
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
    return play_parts(StepParts(step, plans, cost), least)


def play_parts(parts: StepParts, least: float = 0.0) -> PlayedStep:
    """Plays a step whose templates may have been prepared; as `play_step` otherwise."""
    return _settled(parts, least).result()


def step_seconds(parts: StepParts, least: float = 0.0) -> float:
    """Returns the seconds of a step, and nothing else of what `play_step` tells; a step that is only compared with
    others need not be proven. least: as there."""
    return _settled(parts, least).seconds


def _settled(parts: StepParts, least: float) -> "_Played":
    """Plays a step with as few layers as will do."""
    longest, ahead = parts.order.longest_stage, _layers_ahead(parts.step)
    begin = _Begin(max(ahead, 1))
    if _computes_at_hosts(parts.step):
        # CPUs fall behind GPUs, or GPUs wait for them, by other seconds in each layer: nothing settles, though layers
        # that were played may look as if it did.
        return _Played.of(parts, longest, begin)
    # Reductions of several layers that meet gathers of several ahead are alike over more layers than are played: the
    # last ones of a backward, which gather nothing, added up to 6 % too little where a NIC was the limit.
    alike = parts.order.step.turn_layers == 1 or ahead <= 1
    for kept in LAYERS if alike else ():
        if kept < longest:
            played = _Played.settling(parts, kept, begin)
            if played is not None and played.seconds >= least * (1 - _ROUNDING):
                return played
    return _Played.of(parts, longest, begin)


def _layers_ahead(step: Step) -> int:
    """Returns the most layers by which parameters are gathered ahead of the layer under way."""
    tables = [one.operations for one in step.templates]
    return max((int(np.abs(one.layer[one.kind == GATHER]).max(initial=0)) for one in tables), default=0)


def _computes_at_hosts(step: Step) -> bool:
    """Returns whether anything is computed at a host's memory."""
    every = [one.operations for one in step.templates] if step.num_hosts else []
    return any(((one.kind == COMPUTE) & (one.src >= step.num_gpus)).any() for one in every)


def play_some_layers(step: Step, plans: Sequence[Plan], cost: Cost, kept: int) -> PlayedStep:
    """Plays a step with at most `kept` layers of each stage, whether they settle or not; as `play_step` otherwise."""
    return _Played.of(StepParts(step, plans, cost), kept, _Begin()).result()


def play_layers(step: Step, plans: Sequence[Plan], cost: Cost) -> tuple[HopByHop, Timeline]:
    """Plays all layers of a step as one program, hop by hop, as a trace shows them; as `play_step` otherwise."""
    played = _Played.of(StepParts(step, plans, cost), step.num_layers, _Begin())
    apart = played.program.apart
    return apart, apart.times(played.left_out.timeline)


@dataclass
class _Runs:
    """The runs of a program that have ended, by what is known of them. agree: whether all have settled. tell_all:
    whether all tell what their other layers do (zbench.simulator.steps.repeating)."""

    agree: bool = True
    tell_all: bool = True

    def reasons(self, of: LeftOut) -> list[Unless]:
        """Returns when to stop playing a program: when its runs neither have settled nor tell all. of: what is left out
        of it, without a timeline."""
        return [Unless(of.looked_at(cut), partial(self._stops, of, cut)) for cut in of.cuts]

    def _stops(self, of: LeftOut, cut: int, timeline: TrainTimeline) -> bool:
        of = replace(of, timeline=timeline)
        self.agree = self.agree and of.agrees(cut)
        self.tell_all = self.tell_all and RepeatingLayers(of).tells_all(cut)
        return not (self.agree or self.tell_all)


@dataclass
class _Begin:
    """The begin that programs of 12, of 24 and of all layers of a step have in common, so that it is played once.

    ahead: the layers by which parameters are gathered ahead. of: the program that was played last. paused: the state of
    its first hops shortly before the end of its first forward, from which one of more layers goes on; None where it was
    not kept.
    """

    ahead: int = 1
    of: StepProgram | None = None
    paused: PausedHops | None = None

    def since(self, made: StepProgram) -> PausedHops | None:
        """Returns where another program may go on, None if nowhere: that begins with the same instances."""
        of = self.of
        if of is None or self.paused is None or of.stacked is not made.stacked:
            return None
        count = int(np.searchsorted(of.begin, len(self.paused.start)))
        return self.paused if (of.which[:count] == made.which[:count]).all() else None

    def halt(self, of: LeftOut) -> Halt | None:
        """Returns when to keep a program that layers are left out of: before what follows its first run has anything
        gathered. One of more layers has that run's layers but the last in common."""
        begin, same = of.program.begin, of.alike(of.cuts[0]) if of.cuts else []
        if len(same) <= self.ahead:
            return None
        at = same[-1 - self.ahead]
        return Halt(np.arange(begin[at], begin[at + 1]), int(begin[same[-1] + 1]))


@dataclass(frozen=True)
class _Played:
    """A program that was played, with what was left out of it."""

    parts: StepParts
    left_out: LeftOut

    @staticmethod
    def of(parts: StepParts, kept: int, begin: _Begin) -> "_Played":
        """Plays a step with at most `kept` layers of each stage. begin: as a program before it has left it."""
        found = _played(parts, kept, begin, None)
        assert found is not None
        return _Played(parts, found)

    @staticmethod
    def settling(parts: StepParts, kept: int, begin: _Begin) -> "_Played | None":
        """Plays a step with at most `kept` layers of each stage; None where these do not tell what the others do, nor
        have settled. begin: as for `of`, and afterwards as this program has left it."""
        runs = _Runs()
        found = _played(parts, kept, begin, runs)
        if found is None:
            return None
        whole = RepeatingLayers(found).left_out() if runs.tell_all else None
        return _Played(parts, whole or found) if whole or runs.agree else None

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
        last = dict(zip(self.program.of.entry.tolist(), self.ends.tolist(), strict=True))
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
        step, timeline, times = self.parts.step, self.left_out.beside, self.left_out.times
        ends, found = _ends(self.program, timeline.done), [np.zeros(step.num_gpus) for _ in range(3)]
        made, places = self.program, self.program.of.place
        edges = [*np.unique(places[places >= 0]).tolist(), step.num_gpus]
        row, rows = made.hops
        hops = LinkedHops(row, timeline.sent, rows.queue_a, rows.queue_b, rows.link_class, made.gpu_queues)
        pieces = TrainPieces(made.assembled.trains, timeline.begun, timeline.ended)
        use = LinkUse.of(hops, timeline, step.num_gpus, pieces)
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
        lowered = {id(one.lowered): one for one in variants}  # those of micro-batches that are alike have the same hops
        amounts_of_hops = {number: amounts_of(one, cluster) for number, one in lowered.items()}
        each = [amounts_of_hops[id(one.lowered)] for one in variants]
        busy, sent, received, inside = (
            sum(count * one for count, one in zip(times, column, strict=True)) for column in zip(*each, strict=True)
        )
        rows = {"attend": ATTEND, "optimizer": OPTIMIZER, **{name: row for row, name in enumerate(QUEUES)}}
        nics = [{name: found[row] for name, row in rows.items() if name in QUEUES[1:]} for found in (sent, received)]
        within = {name: int(inside[row]) for row, name in enumerate(QUEUES[1:], start=1)}
        return {name: busy[row] for name, row in rows.items()}, nics[0], nics[1], within


def _played(parts: StepParts, kept: int, begin: _Begin, runs: _Runs | None) -> LeftOut | None:
    """Plays a step with at most `kept` layers of each stage, and returns what is left out of it; None where it was
    stopped. runs: what is known of its runs, and when to stop; None: it is played to its end, and none follows."""
    made = program(parts, parts.order.instances(kept))
    cluster, turn, none = parts.cost.cluster, parts.order.step.turn_layers, np.zeros(0)
    of = LeftOut(made, TrainTimeline(none, none, none, none, none, np.zeros(0, np.int64)), made.of.skipped, turn)
    reasons, halt, since = runs.reasons(of) if runs else [], begin.halt(of) if runs else None, begin.since(made)
    free = Free.of(cluster, made.queues)
    timeline, begin.paused = run_unless(made, cluster.num_ranks, free, reasons, halt, since)
    begin.of = made
    if timeline is None:
        return None
    if not np.isfinite(timeline.done).all():
        raise AssertionError("hops wait for each other")
    return replace(of, timeline=timeline)


def _ends(made: StepProgram, done: Floats) -> Floats:
    """Returns when all hops of each instance have ended, as `_Played.ends`."""
    found, some = np.zeros(len(made.of)), np.flatnonzero(np.diff(made.begin))
    if len(some):
        found[some] = np.maximum.reduceat(done, made.begin[some])
    places = made.of.place
    for place in made.of.where:
        found[places == place] = np.maximum.accumulate(found[places == place])
    return found
