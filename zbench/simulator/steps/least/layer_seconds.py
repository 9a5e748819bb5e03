"""Seconds of a step by a closed form: of numbers of layers that are recomputed, and of which something rests on hosts.

AutoHete's (arXiv 2503.01890), derived again: a layer's forward and backward take as long as what they compute, or as
its parameters take to come; CPUs update a layer when its gradients have come, one after another, and what is left of
that when a GPU ends is waited for. A batch is even on all GPUs; state of layers that stay is updated on GPUs.

With stages each has its layers, its part of the GPUs, and these their part of their nodes' CPUs and links. The first
forward goes through all stages, each layer behind its update where its gradients are of the step before; then the
slowest stage's micro-batches follow one another; then the last backward goes back through all stages, and updates of
each stage follow its own gradients, those of the later stages beside the backward of the earlier ones. What stages send
each other is left out.
"""

from dataclasses import dataclass, replace
from math import inf

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, degrees_of
from zbench.describe.layers.on_hosts import ACROSS_STEPS, AS_GRADIENTS_COME
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.simulator.steps.least.work import step_work
from zbench.step.passes.memory.at_hosts import HostLayers


@dataclass(frozen=True, slots=True)
class LayerSeconds:
    """Seconds of a layer of a batch that is even on all GPUs. forward, backward: of what it computes; again: of what is
    made again. brought: its parameters come from a host, or go back, and for a backward once more (again_brought),
    where no parts of them stay on GPUs for it; sent: its gradients go there. on_hosts, on_gpus: it is updated. head,
    table: CPUs update these. Of a step that updates `when` (zbench.describe.layers.on_hosts), as if each layer had all
    GPUs and nodes; stages: the layers of each, which has an even part of them."""

    stages: tuple[int, ...]
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
    again_brought: bool = True

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
            model.with_stages(cost.pp).layers_of_stages,
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
            degrees_of(model.sharding).secondary == WORLD,
        )

    def of_stage(self, micro_batches: int) -> "LayerSeconds":
        """Returns the seconds on a stage's part of the GPUs and nodes, of a micro-batch."""
        count, parameters = len(self.stages), ("brought", "sent", "on_hosts", "on_gpus", "head", "table")
        part = {name: count * getattr(self, name) for name in parameters}
        work = {name: count * getattr(self, name) / micro_batches for name in ("forward", "backward", "again")}
        return replace(self, **part, **work)

    def step(self, recomputed: int, resting: HostLayers, micro_batches: int = 1) -> float:
        """Returns the seconds of a step's layers, forward and backward, and of what is waited for at its end.

        recomputed: how many first layers of every stage. resting: of which layers something rests on hosts.
        """
        own, last = self.of_stage(micro_batches), len(self.stages) - 1
        first, ends = 0, 0.0
        late = self.when not in (AS_GRADIENTS_COME, ACROSS_STEPS)
        table = resting.outside(False)
        cpus, passes = [own.table if table.gradients and not stage else 0.0 for stage in range(last + 1)], (0.0, 0.0)
        for stage, count in enumerate(self.stages):
            ends, cpus[stage] = own._forward(range(first, first + count), resting, max(ends, cpus[stage]), cpus[stage])
            both = own._computed(range(first, first + count), resting, recomputed)
            passes, first = (max(passes[0], both[0]), max(passes[1], both[1])), first + count
        begin, found = ends + (micro_batches - 1) * sum(passes), 0.0
        for stage in range(last, -1, -1):
            first -= self.stages[stage]
            head = own.head * (stage == last and resting.optimizer > 0)
            busy = max(begin, cpus[stage]) + head * (not late)
            begin, link, busy = own._backward((first, self.stages[stage]), resting, recomputed, (begin, busy, head))
            if stage == 0 and table.state and not table.gradients:
                busy = max(busy, link) + own.table
            stay = sum(not resting.of_layer(layer).state for layer in range(first, first + self.stages[stage]))
            updated = begin + stay * (own.on_gpus + 2 * own.brought * (resting.parameters > 0))
            found = max(found, updated, link, busy + own.brought if stay < self.stages[stage] or head else 0.0)
        return found

    def _forward(self, layers: range, resting: HostLayers, ends: float, cpus: float) -> tuple[float, float]:
        """Returns when the first forward of a stage's layers ends, and its CPUs have updated what a step begins with.
        ends, cpus: when it can begin, and CPUs do."""
        for layer in layers:
            kind = resting.of_layer(layer)
            if kind.gradients:
                cpus += self.on_hosts
                ends = max(ends, cpus + self.brought)
            ends += max(self.forward, self.brought * kind.parameters)
        return ends, cpus

    def _computed(self, layers: range, resting: HostLayers, recomputed: int) -> tuple[float, float]:
        """Returns the seconds of a micro-batch on a stage, forward and backward."""
        rest = [self.brought * resting.of_layer(layer).parameters for layer in layers]
        back = (self.backward + self.again * (at < recomputed) for at in range(len(layers)))
        again = [one * self.again_brought for one in rest]
        return sum(max(self.forward, one) for one in rest), sum(map(max, back, again))

    def _backward(
        self, layers: tuple[int, int], resting: HostLayers, recomputed: int, begun: tuple[float, float, float]
    ) -> tuple[float, float, float]:
        """Returns when a stage's last backward ends, its last gradients are on hosts, and CPUs have updated its layers.
        layers: the first one, and how many; begun: when it begins, when CPUs are free, and for how long these update
        the head where they begin after the backward."""
        (first, count), (ends, cpus, head) = layers, begun
        kinds = [resting.of_layer(first + at) for at in range(count)]
        late = self.when not in (AS_GRADIENTS_COME, ACROSS_STEPS)
        late_ones = late and (head > 0 or any(kind.state for kind in kinds))
        link, waiting = ends, 0.0
        for at, kind in reversed(list(enumerate(kinds))):
            brought = self.brought * (kind.parameters and self.again_brought)
            ends += max(self.backward + self.again * (at < recomputed), brought)
            link = max(link, ends) + self.sent if kind.state else link
            if kind.state and not kind.gradients:
                waiting += self.on_hosts
                cpus = cpus if late else max(cpus, link) + self.on_hosts
        return ends, link, max(link, ends) + waiting + head if late_ones else cpus
