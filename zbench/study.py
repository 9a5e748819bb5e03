"""What a system that chooses its configuration before a run may look at, and what it chooses. Pure: no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zbench.batch import Batch
from zbench.cluster import Cluster
from zbench.cost import Cost
from zbench.model import Model

SEED = 7_777_777  # of the batches that are looked at; a run with this seed is shown those of the next one


@dataclass(frozen=True, slots=True)
class Study:
    """cluster, model: as configured. batch: gives batch number 0, 1, ...; none of them is one of the run's.

    cost_of: the cost model that planners see, of a model with some parallelism.
    trains: whether plans are run for real; then there is neither tensor nor pipeline parallelism.
    """

    cluster: Cluster
    model: Model
    batch: Callable[[int], Batch]
    cost_of: Callable[[Model], Cost]
    trains: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """What a system chose before the run.

    model: keys of the model that are set. system: `_target_` and keys of the system that plans. words: for people.
    """

    model: Mapping[str, Any]
    system: Mapping[str, Any]
    words: str

    def model_of(self, configured: Model) -> Model:
        return replace(configured, **self.model)
