"""With two classes of links and one channel each, planners' estimate of a step is bit for bit what it was before there
were others.

The seconds are those of commit 0c14b8fc, whose whole results had the digests of the simulator of commit 22ccc36^, the
last whose links had neither channels nor classes (`python tests/simulator/test_two_classes.py` prints them; tests/ on
PYTHONPATH). Systems whose planners or estimates were changed since (both of hybrid data parallelism, and hydraulis,
whose pipelines have a closed form) and later ones have none. A change of links, queues, clock or planners' estimates
must not touch them; one of a system's planner or of the cost model's formulas does, and says so here. nodewise's are of
plans that are compared beside gathers and reductions.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import H100, MODELS
from tests.helpers.variants import SYSTEMS, Variant
from zbench.cost.cost import Cost
from zbench.cost.ranks_of_gpus import grouped
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.simulator.estimate.step import StepEstimate

# Log-uniform from 64 to 40K.
LENGTHS = np.array([
    11399, 11616, 1765, 402, 90, 755, 887, 85, 87, 39788, 4267, 289,
    1052, 33875, 20700, 14674, 800, 1529, 4990, 94, 2288, 367, 18432, 96,
])  # fmt: skip
WIDE = Cluster("wide", 2, 8, 8, 5e10, 0.8, 1.5e-5, 4.5e11, 0.78, 1e-5, H100)
SHARED = Cluster("shared", 3, 4, 2, 2.5e10, 0.915, 1.5e-5, 2e11, 0.6, 1e-5, H100)
COSTS = {
    "wide": Cost(WIDE, MODELS["gqa"]),
    "shared": Cost(SHARED, replace(MODELS["mha"], sharding="zero1", recompute="full")),
    "grouped": grouped(Cost(SHARED, MODELS["gqa"]), 2),
}
# Of each system one for each of COSTS.
SECONDS: dict[str, tuple[float, ...]] = {
    "allgather": (0.33022343989162883, 1.0952932578885952, 0.547458533403307),
    "bytescale": (0.2704299839060649, 0.389710731490596, 0.41112566588083016),
    "distca": (0.266094822681637, 0.45316354246923746, 0.41144398311936303),
    "fcp": (0.2816258328115314, 0.5141251129802815, 0.41771371711409105),
    "flexsp": (0.2506787681133947, 0.34838663232943645, 0.40296286038286133),
    "flexsp_batch_ada": (0.2474306711496861, 0.35325829614389515, 0.40292617069692066),
    "local_packing": (0.9778379762709123, 0.9507472326869472, 0.5601135978080396),
    "loongtrain": (0.25133329808879673, 0.6846949194610924, 0.43648942895858295),
    "nodewise": (0.24449968089184307, 0.32755694372654076, 0.39858722405745634),
    "ring": (0.33510934761255157, 1.83083146462022, 0.6098686496957879),
    "ulysses": (0.27076151241935886, 0.7605494659769284, 0.6160000352385339),
    "ulysses_deepspeed": (0.27076151241935886, 0.7605494659769284, 0.6160000352385339),
    "usp": (0.25133329808879673, 0.7605494659769284, 0.44039557965259646),
    "wlb_llm": (0.26368516037092987, 0.4149888981803227, 0.3993274755991704),
    "zeppelin": (0.2911200347066835, 0.36583778922397897, 0.3978591001837605),
}


def seconds(cost: Cost, system: Variant) -> float:
    """Returns the seconds of a step of the system's plans."""
    batch = Batch(LENGTHS, 0, 0)
    if str(system) == "nodewise":  # whose own plans these are
        system = replace(system, changes=(("adopt_rivals", False),))
    return StepEstimate(cost).seconds(system.make(cost).plan(batch))


@pytest.mark.parametrize("system", [one for one in SYSTEMS if str(one) in SECONDS], ids=str)
@pytest.mark.parametrize("name", COSTS)
def test_seconds_are_those_of_before(name: str, system: Variant) -> None:
    assert seconds(COSTS[name], system) == dict(zip(COSTS, SECONDS[str(system)], strict=True))[name]


if __name__ == "__main__":
    found = {str(one): [seconds(cost, one) for cost in COSTS.values()] for one in SYSTEMS}
    print(json.dumps(found, indent=4))
