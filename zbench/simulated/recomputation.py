"""The recomputation of a batch's step, where a run leaves it open: the least with which it fits.

Whether a step fits is what its memory account says (zbench.simulator.steps.account), before it is played, of GPUs and,
where something that layers keep waits there, of host memories. Where nothing need be recomputed, nothing is; else each
level is tried with as few layers of every stage as will do, and of these the one whose recomputation takes the fewest
seconds is taken. Where activations wait in host memory, what is not recomputed is copied, which a step may wait for: so
no recomputation, each level with as few layers as will do, and with all, are played, and the quickest is taken. Where
nothing fits, all layers are recomputed in full. Parameters are where they were whatever is recomputed, so steps that
differ follow each other as others do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.model import WHOLE, Model
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.plans.plan import Plan
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.breakdown import recomputation_seconds
from zbench.simulator.steps.play import step_seconds
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.memory.host_memory import HostFull
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.passes.pipeline import stage_starts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.recompute import SomeLayers

NONE, FULL = "none", "full"
_NEVER = 2**62  # bytes of what has no room on hosts


@dataclass(frozen=True, slots=True)
class ChosenRecompute:
    """The recomputation of a batch's step. layers: of every stage, how many are recomputed. of_layers: how many there
    are. peak_bytes: of the fullest GPU, by the account."""

    level: str
    layers: tuple[int, ...]
    of_layers: int
    peak_bytes: int

    @property
    def part(self) -> str | SomeLayers:
        """The recomputation that a step is built with."""
        everywhere = sum(self.layers) in (0, self.of_layers)
        return self.level if everywhere else SomeLayers(self.level, self.layers)

    @property
    def forwards_again(self) -> float:
        """The share of layers whose whole forward runs again."""
        return sum(self.layers) / self.of_layers if self.level == FULL else 0.0

    @property
    def told(self) -> dict[str, Any]:
        """The fields of a record."""
        layers = list(self.layers)
        return {"level": self.level, "layers": layers, "of_layers": self.of_layers, "peak_bytes": self.peak_bytes}


def recomputing(cost: Cost, level: str) -> Cost:
    """Returns a cost model whose model recomputes by another level, in all layers."""
    single = None if cost.single is None else recomputing(cost.single, level)
    model = replace(cost.model, recompute=level, recompute_layers=ALL_LAYERS)  # type: ignore[arg-type]
    return replace(cost, model=model, single=single)


def forwards_again(model: Model) -> float:
    """Returns the share of layers whose whole forward runs again."""
    return model.recomputed_layers / model.num_layers if model.recompute == FULL else 0.0


def chosen_recompute(
    steps: ProvenSteps, batch: Batch, plans: Sequence[Plan], cost: Cost, all_or_none: bool = False
) -> ChosenRecompute:
    """Returns the recomputation of a batch's step. steps: of the run; cost: of GPUs. all_or_none: whether of layers
    some alone cannot be recomputed, as where gradients go between experts' messages of the next layer."""
    of = _Accounts(steps, batch, plans, cost, all_or_none)
    first = of.account(NONE, 0)
    fits = first.peak_bytes <= of.room
    if fits and not of.waits:
        return first.chosen
    found, everything = [first] if fits else list[_Account](), first
    for level in ("selective" if steps.model.mlp_chunk_tokens == WHOLE else "chunked", FULL):
        everything = of.account(level, of.most)
        if everything.peak_bytes <= of.room:
            found += [everything] if of.waits else []
            found += [] if fits else [of.fewest(level, first, everything)]
    return min(found, key=lambda one: one.seconds, default=everything).chosen


@dataclass(frozen=True, slots=True)
class _Account:
    """A step with some recomputation. count: layers of the longest stage that are recomputed; peak_bytes: _NEVER where
    hosts have no room; seconds: of recomputation, on the GPU that has most; of the step, where it may wait for copies
    to and from hosts and fits."""

    chosen: ChosenRecompute
    count: int
    peak_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Accounts:
    """The accounts of a batch's steps, which differ in what is recomputed."""

    steps: ProvenSteps
    batch: Batch
    plans: Sequence[Plan]
    cost: Cost
    all_or_none: bool

    @property
    def room(self) -> float:
        """The bytes of a GPU."""
        return self.cost.cluster.device.memory_bytes

    @property
    def waits(self) -> bool:
        """Whether what is not recomputed is copied to hosts, so that a step may take less time with more of it."""
        return self.steps.model.activations_on_hosts

    @property
    def stages(self) -> tuple[int, ...]:
        """How many layers every stage has; of plans with pipelines of their own all layers are one."""
        count = self.steps.model.num_layers
        starts = stage_starts(self.steps.model, self.steps.stages, 1)
        return tuple(end - one for one, end in pairwise([*(start.layer for start in starts), count]))

    @property
    def most(self) -> int:
        """The layers of the longest stage."""
        return max(self.stages)

    def account(self, level: str, count: int) -> _Account:
        """Returns the account of a step with at most so many layers of every stage recomputed."""
        layers = tuple(min(count, one) for one in self.stages)
        chosen = ChosenRecompute(level, layers, sum(self.stages), 0)
        try:
            step = self.steps.with_recompute(chosen.part).built(self.batch, self.plans)
        except HostFull:
            return _Account(chosen, count, _NEVER, inf)
        parts = StepParts(step, plans_of_layouts(self.plans), self.cost)
        memory, room = step_memory(parts), self.cost.cluster.host_memory
        peak = int(memory.peak[: self.cost.cluster.num_ranks].max())
        if room is not None and memory.of_nodes(self.cost.cluster).max(initial=0) > room:
            return _Account(replace(chosen, peak_bytes=peak), count, _NEVER, inf)
        seconds = step_seconds(parts) if self.waits and peak <= self.room else recomputation_seconds(parts)
        return _Account(replace(chosen, peak_bytes=peak), count, peak, seconds)

    def fewest(self, level: str, none: _Account, every: _Account) -> _Account:
        """Returns the account with the fewest layers with which the step fits; of plans with pipelines, of models with
        two kinds of layers, and where it is all or none, all.

        none, every: with no layer, which does not fit, and with all, which do. What a layer saves is about the same, so
        the next to be tried is where that says; in the middle where it is hosts that have no room.
        """
        if self.plans[0].pipelines is not None or self.steps.model.dense_layers or self.all_or_none:
            return every
        low, high = none, every
        while high.count - low.count > 1:
            saved = (low.peak_bytes - self.room) / max(low.peak_bytes - high.peak_bytes, 1)
            saved = 0.5 if low.peak_bytes == _NEVER else saved
            guess = low.count + int(saved * (high.count - low.count)) + 1
            tried = self.account(level, min(max(guess, low.count + 1), high.count - 1))
            low, high = (low, tried) if tried.peak_bytes <= self.room else (tried, high)
        return high
