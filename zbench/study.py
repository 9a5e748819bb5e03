"""What a system that chooses its configuration before a run may look at, and what it chooses. Pure: no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zbench.batch import Batch
from zbench.cluster import Cluster
from zbench.cost import Cost
from zbench.model import Model


@dataclass(frozen=True, slots=True)
class Study:
    """cluster, model: as configured. batch: gives batch number 0, 1, ...; none of them is one of the run's.

    cost_of: the cost model that planners see, of a model with some parallelism (ValueError: it does not divide).
    trains: whether plans are run for real; then the model stays as configured.
    tell: takes a word on what is being done, as choosing may take a minute.
    """

    cluster: Cluster
    model: Model
    batch: Callable[[int], Batch]
    cost_of: Callable[[Model], Cost]
    trains: bool = False
    tell: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a system chose before a run: keys of the model, keys of whatever makes its plans, and both in words."""

    model: Mapping[str, Any]
    keys: Mapping[str, Any]
    words: str
