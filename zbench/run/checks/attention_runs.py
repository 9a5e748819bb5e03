"""The whole steps that say what runs of attention's plans take. Pure: no torch.

executor=torch_attention and desk_attention run plans of attention and train everything round them in a way of their own
(zbench.runtime.training.parameters). What a whole step is told, so that it is theirs: parameters, gradients and
optimizer state are whole on every rank, or cut over all, whatever `sharding` is; a layer's gradients are reduced as
soon as its backward has made them, on CPUs in two levels; and as much is recomputed as in the step that was measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zbench.cost.cost import Cost
from zbench.describe.model import RECOMPUTE
from zbench.describe.overlap import FLAT, HIERARCHICAL
from zbench.describe.units import with_noun
from zbench.plans.plan import Plan
from zbench.record.record import Line
from zbench.runtime.job.settings import kind_of
from zbench.simulated.executor import Simulated
from zbench.simulated.recomputation import recomputing

SHARDED = "sharded"


@dataclass(frozen=True, slots=True)
class AttentionRun:
    """The way in which a run of attention's plans trains. parameters: of zbench.runtime.job.job.PARAMETERS. on_cpus:
    gloo reduces gradients between nodes, ranks being processes on CPUs."""

    parameters: str
    on_cpus: bool

    @staticmethod
    def of(executor: Mapping[str, Any], cost: Cost, about: Line | None) -> "AttentionRun":
        """Reads it off a record. executor: as its configuration has it. about: what ranks found; None: not told."""
        ranks = [{}] if about is None else about.get("ranks") or [{}]
        over_gloo = ranks[0].get("backend") == "gloo" and not ranks[0].get("staged")
        return AttentionRun(kind_of(executor.get("parameters"), cost.model), over_gloo)

    def whole_steps(self, cost: Cost) -> Simulated:
        """Returns what plays its steps. cost: of the run, whatever its `sharding`."""
        model = replace(cost.model, sharding="zero3" if self.parameters == SHARDED else "none")
        cluster = cost.cluster
        in_levels = self.on_cpus and self.parameters != SHARDED and min(cluster.num_nodes, cluster.gpus_per_node) > 1
        return Simulated(replace(cost, model=model), collectives=HIERARCHICAL if in_levels else FLAT)


def of_line(executor: Simulated, plans: tuple[Plan, ...], line: Line) -> Simulated:
    """Returns what plays one step of such a run as it was measured.

    Raises:
        ValueError: it did what there is no whole step of.
    """
    model, where = executor.cost.model, f"step {line['step']} of run {line['run']}"
    level = (line.get("recompute") or {}).get("level", model.recompute)
    if level not in RECOMPUTE:
        raise ValueError(
            f"{where} recomputed {level!r}, all of a layer but its attention; whole steps, which predict what runs "
            f"take, know {', '.join(RECOMPUTE)}"
        )
    if model.sharding == "zero3" and len(plans) > 1 and executor.cost.cluster.num_ranks > 1:
        raise ValueError(
            f"{where} has {with_noun(len(plans), 'micro-batch')} and sharded parameters; executor=torch_attention "
            "reduces gradients in the last one alone, and whole steps, which predict what runs take, in each"
        )
    return executor if level == model.recompute else replace(executor, cost=recomputing(executor.cost, level))
