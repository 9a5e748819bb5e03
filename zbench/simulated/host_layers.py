"""Layers whose parameters and optimizer state rest in host memory, and that are recomputed, where a run leaves their
numbers open: those of which a step takes least time, of all that fit.

AutoHete (arXiv 2503.01890) has three integers: the first n_c layers are recomputed, of the first n_p parameters are on
hosts, of the last n_o optimizer state. Its closed form, derived again: a layer's forward and backward take as long as
what they compute, or as its parameters take to come; CPUs update a layer when its gradients have come, one after
another, and what is left of that when a GPU ends is waited for. Here the batch is even on all GPUs, memory is what
planners reckon (zbench.cost.memory), which falls with each number, and state of layers that stay is updated on GPUs.
Numbers are of a run, as what a step ends with is what the next one begins with.

The closed form knows no planner. What fits evenly may leave no room for the uneven plans of long sequences, so a run
asks its system: with the closed form's numbers for GPUs that have 1 to 2 times an even share, and with all layers
recomputed, it plans the first batch, the steps are played, and the quickest one's numbers are taken
(`candidate_counts`, `quickest`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, inf
from typing import Any

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.needs import least_bytes, memory_of
from zbench.describe.batch import Batch
from zbench.describe.checks import CHOSEN
from zbench.describe.layers.on_hosts import ACROSS_STEPS, AS_GRADIENTS_COME, NOWHERE
from zbench.describe.model import Model
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.simulator.steps.least.work import step_work
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

    def of(self, model: Model) -> Model:
        """Returns a model with these."""
        if not self.recomputed:
            model = model.keeping_all
        elif model.recompute != "none":
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


@dataclass(frozen=True, slots=True)
class LayerSeconds:
    """Seconds of a layer of a batch that is even on all GPUs. forward, backward: of what it computes; again: of what is
    made again. brought: its parameters come from a host, or go back; sent: its gradients go there. on_hosts, on_gpus:
    it is updated. head, table: CPUs update these. Of a step that updates `when` (zbench.describe.layers.on_hosts)."""

    layers: int
    forward: float
    backward: float
    again: float
    brought: float
    sent: float
    on_hosts: float
    on_gpus: float
    head: float
    table: float
    when: str = AS_GRADIENTS_COME

    @staticmethod
    def of(cost: Cost, batch: Batch) -> "LayerSeconds":
        """Reads them off a job's cost, with the recomputation that it has of all layers."""
        gpus = cost.gpus
        model, cluster = gpus.model, gpus.cluster
        every = replace(model, recompute_layers=ALL_LAYERS)
        plain, again = (step_work(replace(gpus, model=one), 1) for one in (every.keeping_all, every))
        count, tokens = cluster.num_ranks, batch.num_tokens
        (forward, backward), (_, remade) = plain.attention(batch), again.attention(batch)
        link = (cluster.host_bandwidth or 1.0) * (cluster.host_efficiency or 1.0)
        share = model.layer_params / count / link
        cpus = OPTIMIZER_BYTES / cluster.num_nodes / (cluster.host_adam_bandwidth or inf)
        return LayerSeconds(
            model.num_layers,
            (tokens * plain.forward.token + forward) / count,
            (tokens * plain.backward.token + backward) / count,
            (tokens * (again.backward.token - plain.backward.token) + remade - backward) / count,
            model.element_bytes * share,
            GRADIENT_BYTES * share,
            model.layer_params * cpus,
            model.layer_params * OPTIMIZER_BYTES / count / cluster.device.copy_bandwidth,
            (0 if model.tied_embeddings else model.head_params) * cpus,
            model.table_params * cpus,
            model.host_updates,
        )

    def step(self, counts: LayerCounts) -> float:
        """Returns the seconds of a step's layers, forward and backward, and of what is waited for at its end."""
        resting = HostLayers(self.layers, counts.optimizer, counts.parameters, counts.carried)
        kinds = [resting.of_layer(layer) for layer in range(self.layers)]
        cpus = self.table if resting.outside(False).gradients else 0.0
        ends = cpus
        for kind in kinds:
            if kind.gradients:
                cpus += self.on_hosts
                ends = max(ends, cpus + self.brought)
            ends += max(self.forward, self.brought * kind.parameters)
        late = self.when not in (AS_GRADIENTS_COME, ACROSS_STEPS)
        cpus, link, waiting = max(ends, cpus) + self.head * (counts.optimizer > 0 and not late), ends, 0.0
        for layer in reversed(range(self.layers)):
            kind = kinds[layer]
            ends += max(self.backward + self.again * (layer < counts.recomputed), self.brought * kind.parameters)
            link = max(link, ends) + self.sent if kind.state else link
            if kind.state and not kind.gradients:
                waiting += self.on_hosts
                cpus = cpus if late else max(cpus, link) + self.on_hosts
        if late and counts.optimizer:
            cpus = max(link, ends) + waiting + self.head
        if resting.outside(False).state and not resting.outside(False).gradients:
            cpus = max(cpus, link) + self.table
        ends += (self.layers - counts.optimizer) * (self.on_gpus + 2 * self.brought * (counts.parameters > 0))
        return max(ends, link, cpus + self.brought if counts.optimizer else 0.0)


def open_keys(model: Model) -> tuple[str, ...]:
    """Returns the keys, as they are typed, whose numbers of layers are to be chosen."""
    return tuple(key for field, key in _KEYS.items() if getattr(model, field) == CHOSEN)


def has_room(cost: Cost, batch: Batch) -> bool:
    """Returns whether a batch, even on all GPUs, fits as one micro-batch: on GPUs, and what rests on hosts on these."""
    on_hosts = resting_bytes(cost.gpus.model, cost.gpus.cluster)
    room = cost.cluster.device.memory_bytes
    return on_hosts <= (cost.cluster.host_memory or inf) and least_bytes(cost, batch.num_tokens) <= room


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
        found = [(seconds.step(one), one) for pair in _pairs(model) for one in self.fitting(tokens, pair)]
        if not found:
            on_hosts = model.parameters_on_hosts, model.layers_updated_on_hosts, model.layers_carried
            return LayerCounts(model.recomputed_layers, *on_hosts)
        return min(found, key=lambda one: one[0])[1]

    def fitting(self, tokens: int, pair: tuple[int, int]) -> Iterator[LayerCounts]:
        """Yields what fits of a pair, on GPUs with so many tokens and on hosts, with the fewest layers that are
        recomputed."""
        cost, model = self.cost, self.cost.model
        on_hosts = resting_bytes(LayerCounts(model.recomputed_layers, *pair).of(cost.gpus.model), cost.gpus.cluster)
        if on_hosts > (cost.cluster.host_memory or inf):
            return
        low, high = -1, model.num_layers
        if model.recompute_layers != CHOSEN:
            low, high = model.recomputed_layers - 1, model.recomputed_layers
        if not self._fits(LayerCounts(high, *pair), tokens):
            return
        if (self.all_or_none or model.dense_layers) and high - low > 1:
            low, high = (low, 0) if self._fits(LayerCounts(0, *pair), tokens) else (high - 1, high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits(LayerCounts(middle, *pair), tokens) else (middle, high)
        most = min(model.layers_carried, pair[1]) if model.host_updates == ACROSS_STEPS else 0
        for carried in range(most + 1) if model.carried_layers == CHOSEN else [most]:
            yield LayerCounts(high, *pair, carried)

    def _fits(self, counts: LayerCounts, tokens: int) -> bool:
        if counts not in self.memory:
            self.memory[counts] = memory_of(replace(self.cost, model=counts.of(self.cost.model)))
        return self.memory[counts].bytes(tokens) <= self.cost.cluster.device.memory_bytes
