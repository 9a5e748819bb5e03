"""With two classes of links and one channel each, a step is bit for bit what it was before there were others.

The digests are those of the simulator of commit 22ccc36^, the last whose links had neither channels nor classes: this
file was run there (`python tests/simulator/test_two_classes.py` prints them; tests/ on PYTHONPATH), without the line
that leaves out nodewise's rivals, which it had not got then. They are of every number of a step's result to the last
bit, but for memory, which whole steps' live ranges decide (tests/cost). A tensor-parallel group had one number then,
which each of its GPUs has since. Systems whose planners were changed since (both of hybrid data parallelism) and later
ones have none. A change of links, queues, clock or planners' estimates must not touch them; one of a system's planner
or of the cost model's formulas does, and says so here.
So did the rule that a next layer hides what is still being sent: exposed seconds are of that change, at which every
other number was the same. nodewise's are of plans that are compared beside gathers and reductions, hydraulis' of
strategies that are charged the change from pipelines that fill a node.
"""

import hashlib
import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.helpers.oracles import H100, MODELS
from tests.helpers.variants import SYSTEMS, Variant
from zbench.cost.cost import Cost
from zbench.cost.groups import grouped
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.simulator.estimate.step import StepEstimate
from zbench.simulator.estimate.totals import Totals

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
MEMORY = ("peak_bytes", "capacity_bytes")
# Of a result, which had none then.
LATER = (
    "ceiling_seconds",
    "nic_tx_for",
    "seconds_for",
    "expert_chunks",
    "exchange_slices",
    "expert_rows",
    "rollouts",
    "host_bytes",
)
# Of each system one for each of COSTS.
DIGESTS: dict[str, tuple[str, ...]] = {
    "allgather": ("02051956fc4afe34", "846d2b18480c780a", "100a3c36ae4aaaa3"),
    "bytescale": ("38a979c37370a3d9", "aa9d216c89733021", "a2af9b93fbd324b0"),
    "distca": ("3112e60f9f1560b5", "47b58bc20e6dfa84", "789c80e54dabc649"),
    "fcp": ("c7bf53637355fa01", "dc6dbb5165049d60", "f004cfc58372f51c"),
    "flexsp": ("c692406976730278", "ab73d6df19e5338d", "003dcbd106ad6a38"),
    "flexsp_batch_ada": ("726578a2a26ccbd8", "ce899e9f75dc6e3f", "ca6238d9c59bc160"),
    "local_packing": ("6109309bf73bacdb", "8a175f73c7ca52e3", "a05981a876b73b4a"),
    "loongtrain": ("9fed404d11958316", "1d3724807c488c53", "58fb9adbfa52acb9"),
    "nodewise": ("b09a1e2131d76b8c", "64b703ee482d97ef", "0f38bddbadf38627"),
    "ring": ("f8d32e2f0c165a03", "0b4ba754044dc5a8", "8c07d241560ce6a4"),
    "ulysses": ("0376f280ea834e67", "7be3a287e8e7e125", "0132a3f37efe8013"),
    "ulysses_deepspeed": ("0376f280ea834e67", "7be3a287e8e7e125", "0132a3f37efe8013"),
    "usp": ("9fed404d11958316", "7be3a287e8e7e125", "eb611599f345d4ec"),
    "wlb_llm": ("52e5d34fcabf8acc", "4570fc699506d383", "a01b22db5f907fc6"),
    "zeppelin": ("53561df9ef13da19", "7b5a2a54fa17b1cd", "3b2c50fb6f952499"),
}


def digest(cost: Cost, system: Variant) -> str:
    """Returns the digest of every number of a step's result but memory, to the last bit."""
    batch = Batch(LENGTHS, 0, 0)
    if str(system) == "nodewise":  # whose own plans these are
        system = replace(system, changes=(("adopt_rivals", False),))
    plans = system.make(cost).plan(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Totals, "repack", lambda *_: None, raising=False)  # repacking was booked as attention then
        result = asdict(StepEstimate(cost).step(batch, plans))
    left_out = (*LATER, *MEMORY)
    result = {name: of_groups(value, cost) for name, value in result.items() if name not in left_out}
    return hashlib.sha256(json.dumps(bits(result), sort_keys=True).encode()).hexdigest()[:16]


def of_groups(value: object, cost: Cost) -> object:
    """Returns a list of GPUs as one of their tensor-parallel groups, whose GPUs are alike; what is no list of GPUs as
    it is."""
    if not isinstance(value, list) or len(value) == cost.cluster.num_ranks:
        return value
    assert all(value[at :: cost.tp] == value[:: cost.tp] for at in range(cost.tp))
    return value[:: cost.tp]


def bits(value: object) -> object:
    """A value with its floats as text in base 16, which leaves out nothing."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {name: bits(one) for name, one in value.items()}
    return [bits(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("system", [one for one in SYSTEMS if str(one) in DIGESTS], ids=str)
@pytest.mark.parametrize("name", COSTS)
def test_results_are_those_of_before(name: str, system: Variant) -> None:
    wanted = dict(zip(COSTS, DIGESTS[str(system)], strict=True))
    assert digest(COSTS[name], system) == wanted[name]


if __name__ == "__main__":
    found = {str(one): [digest(cost, one) for cost in COSTS.values()] for one in SYSTEMS}
    print(json.dumps(found, indent=4))
