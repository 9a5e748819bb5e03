"""A cluster of two link classes, NVLink and NICs, is simulated to the bit as before there were any number of them.

The digests were made by the simulator of before, whose clusters could have no others. They change where the cost model's
formulas do; a change of link classes alone must not touch them.
"""

import hashlib
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from oracles import H100, MODELS
from variants import SYSTEMS, Variant

from zbench.batch import Batch
from zbench.cluster import Cluster
from zbench.cost import Cost
from zbench.groups import grouped
from zbench.simulate import Simulated

LENGTHS = np.exp(np.random.default_rng(5).uniform(np.log(64), np.log(40_000), 24)).astype(np.int64)
WIDE = Cluster("wide", 2, 8, 8, 5e10, 0.8, 1.5e-5, 4.5e11, 0.78, 1e-5, H100, nic_channels=2)
SHARED = Cluster("shared", 3, 4, 2, 2.5e10, 0.915, 1.5e-5, 2e11, 0.6, 1e-5, H100)
COSTS = {
    "wide": Cost(WIDE, MODELS["gqa"]),
    "shared": Cost(SHARED, replace(MODELS["mha"], sharding="zero1", recompute="full")),
    "grouped": grouped(Cost(replace(SHARED, nvlink_channels=2), MODELS["gqa"]), 2),
}
DIGESTS: dict[str, dict[str, str]] = {}


def digest(cost: Cost, system: Variant) -> str:
    """Of a step's result, every number to its last bit."""
    batch = Batch(LENGTHS, 0, 0)
    result = asdict(Simulated(cost).step(batch, system.make(cost).plan(batch)))
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
@pytest.mark.parametrize("name", COSTS)
def test_results_are_those_of_before(name: str, system: Variant) -> None:
    assert digest(COSTS[name], system) == DIGESTS[name][str(system)]
