"""Plays a whole step on a described cluster's clock: when every operation of every instance runs.

Layers are alike, so a step is played with fewer of them, as one program from the embedding to the optimizer in which
every instance waits for what it needs and for nothing else; each layer that was left out of a run of instances adds
what one of that run adds in the steady half.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.links import NIC
from zbench.plans.plan import Plan
from zbench.simulator.clock import Free, Timeline, run_hops
from zbench.simulator.steps.account import StepMemory, step_memory
from zbench.simulator.steps.expand import BYTES, CLASS, LINK_A, LINK_B, OP, RANK
from zbench.simulator.steps.occupancy import occupancy_of
from zbench.simulator.steps.parts import Variant
from zbench.simulator.steps.program import StepParts, StepProgram, program
from zbench.step.operations import COMPUTE, QUEUES
from zbench.step.template import Step

LAYERS = (12, 24)  # that are played; the second where the first have not settled
_AGREE = 0.01  # relative: of what layers add in the third and in the last quarter


@dataclass(frozen=True)
class PlayedStep:
    """A step that was played; seconds are the described cluster's, simulated.

    ends: for each entry of the step's order, when all of it has ended. busy: by what for, float64 [GPUs], seconds of
    computes ("attend", "compute") and of sending ports by the operations' queues. nic_tx, nic_rx: by queue, int64
    [NICs], bytes. inside: by queue, bytes on links inside nodes. settled: whether layers had become alike. memory: the
    fullest moments, in plan order. moving, exposed, exposed_nic: seconds [GPUs], as
    zbench.simulator.steps.occupancy.Occupancy has them, of the whole step.
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


def play_step(step: Step, plans: Sequence[Plan], cost: Cost) -> PlayedStep:
    """Plays a step that was proven. plans: of its micro-batches, one a layout, for the work of their attends; () where
    it has no attention. cost: of GPUs, one a place of the step.

    Raises:
        ValueError: the step and the cluster do not fit, or the step has stages or experts over ranks.
    """
    if step.is_staged:
        raise ValueError(f"the step has {len(step.stages)} stages; the clock plays steps of 1")
    parts = StepParts(step, plans, cost)
    for most in LAYERS:
        kept = min(most, step.num_layers)
        played = _Played.of(parts, kept)
        if played.settled:
            break
    return played.result()


def play_layers(step: Step, plans: Sequence[Plan], cost: Cost) -> tuple[StepProgram, Timeline]:
    """Plays all layers of a step as one program, as a trace shows them; as `play_step` otherwise."""
    played = _Played.of(StepParts(step, plans, cost), step.num_layers)
    return played.program, played.timeline


def _shortened(step: Step, kept: int) -> list[tuple[int, int, int]]:
    """Returns the instances of a step with `kept` layers, (entry, template, layer): those in the middle are left
    out."""
    begin, less = kept // 2, step.num_layers - kept
    found = []
    for entry, one in enumerate(step.order):
        for layer in one.layers:
            if begin <= layer < begin + less:
                continue
            found.append((entry, one.template, layer if layer < begin else layer - less))
    return found


@dataclass(frozen=True)
class _Played:
    """A program that was played. left_out: for each entry of the order, how many instances of it were not."""

    parts: StepParts
    program: StepProgram
    timeline: Timeline
    left_out: tuple[int, ...]

    @staticmethod
    def of(parts: StepParts, kept: int) -> "_Played":
        """Plays a step with `kept` of its layers."""
        order = _shortened(parts.step, kept)
        made = program(parts, order, kept)
        cluster = parts.cost.cluster
        timeline = run_hops(made.graph, np.zeros(cluster.num_ranks), Free.of(cluster, made.queues))
        if not np.isfinite(timeline.done).all():
            raise AssertionError("hops wait for each other")
        counts = np.bincount([entry for entry, _, _ in order], minlength=len(parts.step.order))
        left_out = tuple(one.repeats - int(count) for one, count in zip(parts.step.order, counts, strict=True))
        return _Played(parts, made, timeline, left_out)

    def _entry(self, entry: int) -> Ints:
        """Returns the instances of an entry."""
        return np.array([at for at, one in enumerate(self.program.instances) if one.entry == entry], np.int64)

    @property
    def marks(self) -> Floats:
        """When all hops of each instance have ended; at least when those of the one before it have."""
        ends = np.maximum.reduceat(self.timeline.done, self.program.begin[:-1])
        return np.maximum.accumulate(ends)

    def adds(self, entry: int) -> tuple[float, bool]:
        """Returns what a layer adds in the steady half of an entry, and whether its quarters agree."""
        mine = self._entry(entry)
        if not self.left_out[entry] or len(mine) < 4:
            return 0.0, not self.left_out[entry]
        variants = [id(self.program.instances[at].variant) for at in mine.tolist()]
        same = mine[np.array(variants) == variants[len(mine) // 2]]
        marks = self.marks[same]
        half, last = len(same) // 2, len(same) - 1
        middle = (half + last) // 2
        mean = (marks[last] - marks[half - 1]) / (last - half + 1)
        first = (marks[middle] - marks[half - 1]) / (middle - half + 1)
        second = (marks[last] - marks[middle]) / max(last - middle, 1)
        return float(mean), bool(abs(first - second) <= _AGREE * max(mean, 1e-12) * 2)

    def _steady(self, entry: int) -> Ints:
        """Returns the instances of an entry whose layers stand for those that were left out."""
        mine = self._entry(entry)
        variants = np.array([id(self.program.instances[at].variant) for at in mine.tolist()])
        same = mine[variants == variants[len(mine) // 2]] if len(mine) else mine
        return same[len(same) // 2 :]

    @property
    def settled(self) -> bool:
        """Whether all entries are."""
        return all(self.adds(entry)[1] for entry in range(len(self.left_out)))

    def result(self) -> PlayedStep:
        """Returns the step with all its layers."""
        step, later = self.parts.step, 0.0
        ends: list[tuple[str, float]] = []
        marks = self.marks
        for entry, one in enumerate(step.order):
            later += self.left_out[entry] * self.adds(entry)[0]
            mine = self._entry(entry)
            end = float(marks[mine[-1]]) if len(mine) else (ends[-1][1] - later if ends else 0.0)
            ends.append((step.templates[one.template].name, end + later))
        busy, sent, received, inside = self._sums()
        seconds = float(self.timeline.done.max(initial=0.0)) + later
        memory = step_memory(self.parts)
        return PlayedStep(seconds, tuple(ends), busy, sent, received, inside, self.settled, memory, *self._occupied())

    def _occupied(self) -> list[Floats]:
        """Returns the seconds in which transfers are under way and exposed, in all layers."""
        spans = occupancy_of(self.program.graph.hops, self.timeline, self.marks, self.parts.cost.cluster.num_ranks)
        times = np.ones(len(self.program.instances))
        for entry, left_out in enumerate(self.left_out):
            steady = self._steady(entry)
            if left_out and len(steady):
                times[steady] += left_out / len(steady)
        return [one @ times for one in spans]

    def _sums(self) -> tuple[dict[str, Floats], dict[str, Ints], dict[str, Ints], dict[str, int]]:
        """Returns what is busy and sent in all layers."""
        cluster, step = self.parts.cost.cluster, self.parts.step
        times: dict[int, tuple[Variant, int]] = {}
        for one in step.order:
            for layer in one.layers:
                variant = self.parts.variant(one.template, layer, step.num_layers)
                times[id(variant)] = (variant, times.get(id(variant), (variant, 0))[1] + 1)
        busy = {name: np.zeros(cluster.num_ranks) for name in ("attend", *QUEUES)}
        sent, received = ({name: np.zeros(cluster.num_nics, np.int64) for name in QUEUES[1:]} for _ in range(2))
        inside = dict.fromkeys(QUEUES[1:], 0)
        for variant, count in times.values():
            table, lowered = variant.lowered.table, variant.lowered
            computes = (variant.ops[:, 0] == COMPUTE)[table[OP]]
            attends = computes & variant.attends[table[OP]]
            for number, name in enumerate(QUEUES):
                mine = (lowered.purpose == number) & ~attends
                busy[name] += count * np.bincount(table[RANK][mine], lowered.busy[mine], cluster.num_ranks)
                if number == 0:
                    continue
                nic = mine & (table[CLASS] == NIC)
                for found, link in ((sent, LINK_A), (received, LINK_B)):
                    at = table[link][nic] // 2 - cluster.num_ranks
                    found[name] += count * np.bincount(at, table[BYTES][nic], cluster.num_nics).astype(np.int64)
                inside[name] += count * int(table[BYTES][mine & (table[CLASS] >= 0) & ~nic].sum())
            busy["attend"] += count * np.bincount(table[RANK][attends], lowered.busy[attends], cluster.num_ranks)
        return busy, sent, received, inside
