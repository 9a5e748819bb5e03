"""Layers whose parameters and optimizer state rest in host memory, and that are recomputed, where a run leaves their
numbers open: those of which a step takes least time, of all that fit.

AutoHete (arXiv 2503.01890) has three integers: the first n_c layers are recomputed, of the first n_p parameters are on
hosts, of the last n_o optimizer state. Its closed form is in zbench.simulator.steps.least.layer_seconds. Here the batch
is even on all GPUs, memory is what planners reckon (zbench.cost.memory), which falls with each number, and state of
layers that stay is updated on GPUs. Numbers are of a run, as what a step ends with is what the next one begins with.

With stages layers are recomputed of each, the first ones; those on hosts are the model's last ones, whichever stages
have them. A batch goes through in as few micro-batches as it fits with, as planners take it, and no fewer than the
model says.

The closed form knows no planner. What fits evenly may leave no room for the uneven plans of long sequences, so a run
asks its system: with the closed form's numbers for GPUs that have 1 to 2 times an even share, and with all layers
recomputed, it plans the first batch, the steps are played, and the quickest one's numbers are taken
(`candidate_counts`, `quickest`).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, inf
from typing import Any

from zbench.cost.cost import Cost
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.needs import memory_of
from zbench.describe.batch import Batch
from zbench.describe.checks import CHOSEN
from zbench.describe.layers.on_hosts import ACROSS_STEPS, AS_GRADIENTS_COME, NOWHERE
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.simulator.steps.least.layer_seconds import LayerSeconds
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.host_memory import resting_bytes

RECOMPUTED = "recompute.layers"
_KEYS = {  # by field of a model
    "recompute_layers": RECOMPUTED,
    "parameter_layers": "memory.parameter_layers",
    "optimizer_layers": "memory.optimizer_layers",
    "carried_layers": "memory.carried_layers",
}
SHARES = (1.0, 1.25, 1.5, 2.0)  # of an even share, that GPUs have room for in what is tried: a guess, each costs a plan


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """Numbers of layers: how many first ones are recomputed, of how many first ones parameters are on hosts, of how
    many last ones optimizer state, and of how many of these gradients are for the next step."""

    recomputed: int
    parameters: int
    optimizer: int
    carried: int = 0

    def resting(self, layers: int) -> HostLayers:
        """Returns the layers of a model of so many of which something rests on hosts."""
        return HostLayers(layers, self.optimizer, self.parameters, self.carried)

    def of(self, model: Model) -> Model:
        """Returns a model with these."""
        if not self.recomputed:
            model = model.keeping_all
        elif model.recompute != "none" and not isinstance(model.recompute_layers, tuple):  # a number for each stage
            model = replace(model, recompute_layers=_word(self.recomputed, min(model.layers_of_stages)))
        model = replace(model, parameter_layers=self.parameters or NOWHERE)
        if not self.optimizer:
            words = [word for word in model.offload.split("_and_") if word != "optimizer"]
            usual: dict[str, Any] = {"host_updates": AS_GRADIENTS_COME, "offload": words[0] if words else "none"}
            return replace(model, optimizer_layers=ALL_LAYERS, carried_layers=ALL_LAYERS, **usual)
        model = replace(model, optimizer_layers=_word(self.optimizer, model.num_layers))
        if model.host_updates != ACROSS_STEPS:
            return model
        if not self.carried:
            return replace(model, host_updates=AS_GRADIENTS_COME, carried_layers=ALL_LAYERS)
        return replace(model, carried_layers=_word(self.carried, self.optimizer))


def _word(count: int, every: int) -> int | str:
    return ALL_LAYERS if count >= every else count


def open_keys(model: Model) -> tuple[str, ...]:
    """Returns the keys, as they are typed, whose numbers of layers are to be chosen."""
    return tuple(key for field, key in _KEYS.items() if getattr(model, field) == CHOSEN)


def has_room(cost: Cost, batch: Batch) -> bool:
    """Returns whether a batch, even on all GPUs, fits as one micro-batch, or with stages in several: on GPUs, and what
    rests on hosts on these."""
    on_hosts = resting_bytes(cost.gpus.model, cost.gpus.cluster)
    tokens = -(-batch.num_tokens // cost.cluster.num_ranks)
    fits = _micro_batches(memory_of(cost), cost, batch, tokens) is not None
    return on_hosts <= (cost.cluster.host_memory or inf) and fits


def _micro_batches(memory: MemoryLines, cost: Cost, batch: Batch, tokens: int) -> int | None:
    """Returns as few micro-batches as a rank has room for with so many tokens of its own of a batch, one without
    stages; None where it has no room for its share of the longest sequence, which is in one of them."""
    room = int(cost.cluster.device.memory_bytes)
    if cost.pp == 1:
        return 1 if memory.bytes(tokens) <= room else None
    if memory.bytes(-(-int(batch.lengths.max()) // cost.cluster.num_ranks)) > room:
        return None
    return max(ceil(tokens / memory.tokens(room)), cost.model.micro_batches)


def candidate_counts(cost: Cost, batch: Batch, all_or_none: bool = False) -> list[LayerCounts]:
    """Returns the closed form's numbers, those that it has where GPUs need room for more than an even share, as uneven
    plans do, and those with which all layers are recomputed, where their number is open; all different.

    all_or_none: whether of layers some alone cannot be recomputed, as where gradients go between experts' messages of
    the next layer; nor can they where the first layers are dense.
    """
    every = LayerChoices(cost, batch, all_or_none)
    found = [every.best(share) for share in SHARES]
    if cost.model.recompute_layers == CHOSEN:
        again = replace(cost, model=replace(cost.model, recompute_layers=ALL_LAYERS))
        found.append(LayerChoices(again, batch, all_or_none).best(1.0))
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Numbers of layers that were chosen for a run, and the closed form's beside them. seconds, closed_seconds: of the
    first batch's step with each, as the run's system plans it, played; infinite where it does not fit, None where
    nothing was played, as there was one candidate, or no planner to ask."""

    counts: LayerCounts
    closed: LayerCounts
    seconds: float | None = None
    closed_seconds: float | None = None

    @property
    def told(self) -> dict[str, Any]:
        """The closed form's numbers for a record, and, where both fit, its regret: how much longer its step takes, over
        that of the chosen ones."""
        found = dict[str, Any](asdict(self.closed))
        if self.seconds and self.closed_seconds is not None and self.closed_seconds < inf:
            found["regret"] = self.closed_seconds / self.seconds - 1
        return found


def quickest(candidates: Sequence[LayerCounts], seconds: Callable[[LayerCounts], float]) -> LayerChoice:
    """Returns the candidate of fewest seconds, the first of those that are as quick; the first, the closed form's,
    where none fits. seconds: of a step, infinite where it does not fit."""
    first = candidates[0]
    if len(candidates) == 1:
        return LayerChoice(first, first)
    played = {one: seconds(one) for one in candidates}
    best = min(candidates, key=lambda one: played[one])
    return LayerChoice(best, first, played[best], played[first])


def _pairs(model: Model) -> Iterator[tuple[int, int]]:
    """Yields the numbers of layers, (with parameters, with optimizer state), that may be on hosts."""
    layers = model.num_layers
    some = range(layers + 1) if model.parameter_layers == CHOSEN else [model.parameters_on_hosts]
    last = range(layers + 1) if model.optimizer_layers == CHOSEN else [model.layers_updated_on_hosts]
    yield from ((parameters, optimizer) for parameters in some for optimizer in last)


@dataclass(frozen=True, slots=True)
class LayerChoices:
    """The numbers that a job may have. cost, batch, all_or_none: as of `candidate_counts`. memory: of a rank, by
    numbers, once it was asked for."""

    cost: Cost
    batch: Batch
    all_or_none: bool
    memory: dict[LayerCounts, MemoryLines] = field(default_factory=dict)

    def best(self, share: float) -> LayerCounts:
        """Returns the numbers of least seconds that fit, by the closed form, where a GPU has room for so much of an
        even share of the tokens; with those that a model has. Where nothing fits, all that may be on hosts or
        recomputed is: a batch is then in micro-batches."""
        seconds, model = LayerSeconds.of(self.cost, self.batch), self.cost.model
        tokens = -(-ceil(share * self.batch.num_tokens) // self.cost.cluster.num_ranks)
        found = [
            (seconds.step(one.recomputed, one.resting(model.num_layers), parts), one)
            for pair in _pairs(model)
            for one, parts in self.fitting(tokens, pair)
        ]
        if not found:
            on_hosts = model.parameters_on_hosts, model.layers_updated_on_hosts, model.layers_carried
            return LayerCounts(self._most_recomputed, *on_hosts)
        return min(found, key=lambda one: one[0])[1]

    def fitting(self, tokens: int, pair: tuple[int, int]) -> Iterator[tuple[LayerCounts, int]]:
        """Yields what fits of a pair, on GPUs with so many tokens and on hosts, with the fewest layers that are
        recomputed, and in how many micro-batches; with stages every number of layers, as more take fewer of these."""
        cost, model = self.cost, self.cost.model
        on_hosts = resting_bytes(LayerCounts(model.recomputed_layers, *pair).of(cost.gpus.model), cost.gpus.cluster)
        if on_hosts > (cost.cluster.host_memory or inf):
            return
        most = min(model.layers_carried, pair[1]) if model.host_updates == ACROSS_STEPS else 0
        carried = range(most + 1) if model.carried_layers == CHOSEN else [most]
        for recomputed in self._recomputed(tokens, pair):
            parts = self._parts(LayerCounts(recomputed, *pair), tokens)
            if parts is not None:
                yield from ((LayerCounts(recomputed, *pair, one), parts) for one in carried)

    def _recomputed(self, tokens: int, pair: tuple[int, int]) -> Sequence[int]:
        """Returns the numbers of recomputed layers that are compared for a pair."""
        model, high = self.cost.model, self._most_recomputed
        if model.recompute_layers != CHOSEN:
            return [high]
        if self.all_or_none or model.dense_layers:
            found = [0, high]
        elif self.cost.pp > 1:
            return range(high + 1)
        else:
            found = list(range(high + 1))
        fewest = bisect_left(found, True, key=lambda one: self._parts(LayerCounts(one, *pair), tokens) is not None)
        return found[fewest : fewest + 1]

    @property
    def _most_recomputed(self) -> int:
        """The layers, of every stage, that are recomputed at most, of numbers that are open; else as the model says."""
        return max(self.cost.model.with_stages(self.cost.pp).recomputed_of_stages)

    def _parts(self, counts: LayerCounts, tokens: int) -> int | None:
        """Returns in how many micro-batches a batch fits, None if in none, a rank having so many tokens of it."""
        if counts not in self.memory:
            self.memory[counts] = memory_of(replace(self.cost, model=counts.of(self.cost.model)))
        return _micro_batches(self.memory[counts], self.cost, self.batch, tokens)
