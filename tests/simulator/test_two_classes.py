"""With two classes of links and one channel each, a step is bit for bit what it was before there were others.

The digests are those of the simulator of commit 22ccc36^, the last whose links had neither channels nor classes: this
file was run there (`python tests/simulator/test_two_classes.py` prints them; tests/ on PYTHONPATH), without the line
that leaves out nodewise's rivals, which it had not got then. They are of every number of a step's result to the last
bit, but for a group's memory, which is told of one GPU since and of the group before. Systems whose planners were
changed since (both of hybrid data parallelism) and later ones have none. A change of links, queues, clock or planners'
estimates must not touch them; one of a system's planner or of the cost model's formulas does, and says so here.
So did the rule that a next layer hides what is still being sent: exposed seconds are of that change, at which every
other number was the same. nodewise's are of plans that are compared beside gathers and reductions, hydraulis' of
strategies that are charged the change from pipelines that fill a node, and with the memory of pipelines that is told
moment by moment (zbench.cost.memory.moments), in which nothing else differs. So have all the others: every other number
of theirs was the same.
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
    "allgather": ("1e317cb337b5f09b", "cc2da42b0ad330f5", "100a3c36ae4aaaa3"),
    "bytescale": ("2d6a99ad8baa2551", "3234a45530724d7b", "a2af9b93fbd324b0"),
    "distca": ("3ec1d3a960093b9a", "e0f1134c771759eb", "789c80e54dabc649"),
    "fcp": ("a133a8162ba0eea6", "40d4167df6ad099c", "f004cfc58372f51c"),
    "flexsp": ("401ad2a3e7b3a318", "84d90fc8dc639fd2", "003dcbd106ad6a38"),
    "flexsp_batch_ada": ("01773545931637c5", "e6d245db52319319", "ca6238d9c59bc160"),
    "hydraulis": ("76bd3e80708b512a", "ef274fb2afbcd27a", "f317b31643c4c7be"),
    "local_packing": ("613e27283a433b76", "9994bd2adadba564", "a05981a876b73b4a"),
    "loongtrain": ("a609379f7751388b", "a261bc3662706483", "58fb9adbfa52acb9"),
    "nodewise": ("3304cc78863146dd", "fb97322fb04ec3f1", "0f38bddbadf38627"),
    "ring": ("e1954c59dc37e774", "31b40956321f8d13", "8c07d241560ce6a4"),
    "ulysses": ("e1acbe346135c451", "dacdabae8cc14943", "0132a3f37efe8013"),
    "ulysses_deepspeed": ("e1acbe346135c451", "dacdabae8cc14943", "0132a3f37efe8013"),
    "usp": ("a609379f7751388b", "dacdabae8cc14943", "eb611599f345d4ec"),
    "wlb_llm": ("cd51df700dbf2a6f", "33c4523b33b718a1", "a01b22db5f907fc6"),
    "zeppelin": ("0d9bc7391326b49a", "e7ab20b8c0a63f08", "3b2c50fb6f952499"),
}


def digest(cost: Cost, system: Variant) -> str:
    """Returns the digest of every number of a step's result, to the last bit; of a group's without its memory."""
    batch = Batch(LENGTHS, 0, 0)
    if str(system) == "nodewise":  # whose own plans these are
        system = replace(system, changes=(("adopt_rivals", False),))
    plans = system.make(cost).plan(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Totals, "repack", lambda *_: None, raising=False)  # repacking was booked as attention then
        result = asdict(StepEstimate(cost).step(batch, plans))
    left_out = (*LATER, *MEMORY) if cost is COSTS["grouped"] else LATER
    result = {name: value for name, value in result.items() if name not in left_out}
    return hashlib.sha256(json.dumps(bits(result), sort_keys=True).encode()).hexdigest()[:16]


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
