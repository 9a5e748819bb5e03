"""A static configuration, chosen once before a run, that a careful user would put in a launch script.

It is chosen once, before the run, from the distribution of lengths alone: batches of another seed are drawn, and
candidates are played on the simulated clock (zbench.systems.static_best.search). Then it stays as it is, whatever a
batch looks like. A candidate is a degree of tensor parallelism inside nodes, a number of stages, and on the ranks that
this leaves a mesh (zbench.systems.mesh): a method and a degree of context parallelism, data parallelism over the rest,
and the tokens of a micro-batch. It has to have room for all but one in a thousand batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from zbench.cost.cost import Cost
from zbench.describe.checks import check_choice
from zbench.interfaces.study import Choice, Study
from zbench.run.fastest import FREE
from zbench.systems.common.mesh_packs import Batching
from zbench.systems.mesh import Mesh
from zbench.systems.static_best.by_layer import search_by_layer
from zbench.systems.static_best.search import search_layouts

UNIFORM, LAYERS = "uniform", "layers"


@dataclass(frozen=True, slots=True)
class StaticBest:
    """The static configuration that is fastest over the workload's lengths. free_groups: groups that are chosen too, of
    sharding and recompute; else they stay the run's, unless all systems choose them (the run's own `free_groups`).

    batching: how sequences are packed (zbench.systems.mesh). search: "uniform", all layers have one strategy and stages
        as many layers each; "layers", layers may differ as far as whole steps have it
        (zbench.systems.static_best.by_layer), which chooses what is recomputed.

    Raises:
        ValueError: a key has no such value.
    """

    cost: Cost
    free_groups: Sequence[str] = ()
    batching: Batching = "balanced"
    search: str = UNIFORM

    def __post_init__(self) -> None:
        if not isinstance(self.free_groups, list | tuple) or set(self.free_groups) - set(FREE):
            takes = f"it takes a list of {' and '.join(FREE)}, or []"
            raise ValueError(f"system.free_groups is {self.free_groups!r}; {takes}")
        if self.batching not in get_args(Batching):
            raise ValueError(f"system.batching is {self.batching!r}; it takes {', '.join(get_args(Batching))}")
        check_choice("system.search", self.search, (UNIFORM, LAYERS))

    def choose(self, study: Study) -> Choice:
        """Returns the fastest of the candidates that fit.

        Raises:
            ValueError: none does.
        """
        free = [name for name in FREE if name in {*self.free_groups, *study.free}]
        if self.search == LAYERS:
            return search_by_layer(study, free, self.batching)
        return search_layouts(study, free, self.batching)

    def planner(self, choice: Choice, cost: Cost) -> Mesh:
        """Makes the mesh that was chosen, which makes the plans. cost: of the model with the choice's keys."""
        return Mesh(cost, **choice.keys)
