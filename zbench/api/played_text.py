"""Plays a written step (zbench.planned.written_step) on a cluster's clock, and tells what came of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.describe.units import in_bytes, with_noun
from zbench.describe.worlds import Machine
from zbench.planned.step import StepPlans
from zbench.planned.written_step import WrittenStep
from zbench.simulated.executor import Simulated
from zbench.simulated.traced import write_whole_step
from zbench.simulator.steps.play import PlayedStep, play_layers, play_step
from zbench.step.operations import QUEUES

_GPUS_A_LINE = 8


@dataclass(frozen=True)
class PlayedText:
    """A written step that was played. cost: of GPUs, each one a place of the step."""

    written: WrittenStep
    cost: Cost
    played: PlayedStep

    @staticmethod
    def of(written: WrittenStep, machine: Machine, strategy: StepStrategy) -> "PlayedText":
        """Plays a step that was proven and that fits the machine (`check_fits`). strategy: what it was built with,
        which says what no step can beat; the step itself has all else of it.

        Raises:
            ValueError: the strategy cannot be, or an operation is where the cluster has nothing for it.
        """
        batch = written.batch
        if batch is None:
            cost = make_cost(*machine).gpus
            return PlayedText(written, cost, play_step(written.step, written.plans, cost))
        whole = StepPlans((), batch.lengths, *machine, strategy=strategy).cost
        run = Simulated(whole, **strategy.arguments)
        ceiling = run.ceiling_seconds(batch, len(written.step.pipelines) > 1)
        least = run.bound_seconds(batch) if ceiling is None else ceiling
        return PlayedText(written, whole.gpus, play_step(written.step, written.plans, whole.gpus, least))

    def write_trace(self, path: str) -> None:
        """Writes a trace of the step with all its layers, and its critical path, as of a run.

        Raises:
            ValueError: as zbench.simulated.traced.write_whole_step.
        """
        step, plans = self.written.step, self.written.plans
        write_whole_step(path, *play_layers(step, plans, self.cost), self.cost.cluster)

    def lines(self) -> Iterator[str]:
        """Yields what it took: seconds, bytes by what they are for, and the most memory of every GPU and node."""
        played, cluster, batch = self.played, self.cost.cluster, self.written.batch
        rate = "" if batch is None else f", {batch.num_tokens / played.seconds:,.0f} tokens/s"
        yield f"simulated on {cluster.name}, model {self.cost.model.name}: {played.seconds:.4g} s a step{rate}"
        for name in QUEUES[1:]:
            across, inside = int(played.nic_tx[name].sum()), played.inside[name]
            if across or inside:
                yield f"  {name}: {in_bytes(across)} over NICs, {in_bytes(inside)} inside nodes"
        peak, capacity = played.memory.peak[: cluster.num_ranks], cluster.device.memory_bytes
        for first in range(0, len(peak), _GPUS_A_LINE):
            some = peak[first : first + _GPUS_A_LINE].tolist()
            told = f"GPU {first}" if len(some) == 1 else f"GPUs {first} to {first + len(some) - 1}"
            yield f"  most memory of {told}: {', '.join(map(in_bytes, some))}"
        for node, size in enumerate(played.memory.of_nodes(cluster).tolist() if self.written.step.num_hosts else ()):
            yield f"  most host memory of node {node}: {in_bytes(size)}"
        if len(full := np.flatnonzero(peak > capacity)):
            first = int(full[0])
            yield (
                f"out of memory on {with_noun(len(full), 'GPU')}: GPU {first} takes {in_bytes(int(peak[first]))} of "
                f"{in_bytes(capacity)}"
            )


def check_fits(written: WrittenStep, cluster: Cluster, model: Model) -> None:
    """Refuses to play a step on another machine than it is of.

    Raises:
        ValueError: it is of other GPUs, layers, heads or sizes than cluster and model have, or nothing says which
            tokens its attention is over.
    """
    step = written.step
    if untold := written.untold:
        raise ValueError(
            f"layout {untold[0]} of the step's text has attention, and no line 'tokens of layout {untold[0]}: ...' "
            "with the tokens of its blocks; zbench step PLAN --out FILE writes them (docs/step.md)"
        )
    if step.num_gpus != cluster.num_ranks:
        raise ValueError(
            f"cluster is {cluster.name}, of {with_noun(cluster.num_ranks, 'GPU')}; the step is on "
            f"{with_noun(step.num_gpus, 'GPU')}, and takes a cluster of as many (cluster.num_nodes, "
            "cluster.gpus_per_node)"
        )
    if step.num_layers != model.num_layers:
        raise ValueError(
            f"model is {model.name}, of {with_noun(model.num_layers, 'layer')}; the step has "
            f"{with_noun(step.num_layers, 'layer')}: model.num_layers={step.num_layers}"
        )
    for layout in step.layouts:
        heads = layout.size_of.get("h", model.num_heads)
        if heads != model.num_heads:
            raise ValueError(f"model is {model.name}, with num_heads={model.num_heads}; the step has {heads} heads")
        number = layout.number.get("x")
        size = model.hidden * model.element_bytes
        if number is not None and layout.tensors[number].axes == ("t",) and layout.tensors[number].unit != size:
            raise ValueError(
                f"model is {model.name}, of which a token's x has {in_bytes(size)} (hidden={model.hidden}); it has "
                f"{in_bytes(layout.tensors[number].unit)} in the step"
            )
