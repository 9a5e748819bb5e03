"""With two classes of links and one channel each, a step is bit for bit what it was before there were others.

The digests are those of the simulator of commit 22ccc36^, the last whose links had neither channels nor classes: this
file was run there (`python tests/simulator/test_two_classes.py` prints them; tests/ on PYTHONPATH), without the line
that leaves out nodewise's rivals, which it had not got then. They are of every number of a step's result to the last
bit, but for a group's memory, which is told of one GPU since and of the group before. Systems whose planners were
changed since (both of hybrid data parallelism) and later ones have none. A change of links, queues, clock or planners'
estimates must not touch them; one of a system's planner or of the cost model's formulas does, and says so here.
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
from zbench.simulator.simulate import Simulated
from zbench.simulator.totals import Totals

LENGTHS = np.array(
    [
        11399,
        11616,
        1765,
        402,
        90,
        755,
        887,
        85,
        87,
        39788,
        4267,
        289,
        1052,
        33875,
        20700,
        14674,
        800,
        1529,
        4990,
        94,
        2288,
        367,
        18432,
        96,
    ]
)  # log-uniform from 64 to 40K
WIDE = Cluster("wide", 2, 8, 8, 5e10, 0.8, 1.5e-5, 4.5e11, 0.78, 1e-5, H100)
SHARED = Cluster("shared", 3, 4, 2, 2.5e10, 0.915, 1.5e-5, 2e11, 0.6, 1e-5, H100)
COSTS = {
    "wide": Cost(WIDE, MODELS["gqa"]),
    "shared": Cost(SHARED, replace(MODELS["mha"], sharding="zero1", recompute="full")),
    "grouped": grouped(Cost(SHARED, MODELS["gqa"]), 2),
}
MEMORY = ("peak_bytes", "capacity_bytes")
LATER = ("ceiling_seconds",)  # of a result, which had none then
DIGESTS: dict[str, dict[str, str]] = {
    "wide": {
        "allgather": "87e54661f86618d5", "bytescale": "ca92e5e935e58fa2", "distca": "d5e311e413a8426d",
        "fcp": "2442805e2f1fee3c", "flexsp": "5513efa75309c4a2", "flexsp_batch_ada": "357ab14c0731e43c",
        "hydraulis": "ad360b2b2f2b90f5", "local_packing": "5e9eb85096cfb6ed", "loongtrain": "b0971f0f12c37824",
        "nodewise": "eb072409aa898915", "ring": "8341417bbebc7ee2", "ulysses": "6660686808ae41e4",
        "ulysses_deepspeed": "6660686808ae41e4", "usp": "b0971f0f12c37824", "wlb_llm": "cbc48ae208b2ab7a",
        "zeppelin": "b47ed32748e39df9",
    },
    "shared": {
        "allgather": "fd9b26817f77593d", "bytescale": "0f6ba53b023ebe23", "distca": "d936404816922558",
        "fcp": "48d899d911f4ec1e", "flexsp": "4ab0e230dfaf2863", "flexsp_batch_ada": "ae35d9630974cdf6",
        "hydraulis": "3100bc821db371d4", "local_packing": "f0d1e10a81e74b6f", "loongtrain": "89987ad0e5426d89",
        "nodewise": "324c940ea8e35a6c", "ring": "bc6b3788c6e764cb", "ulysses": "898f746a3b8e73be",
        "ulysses_deepspeed": "898f746a3b8e73be", "usp": "898f746a3b8e73be", "wlb_llm": "579c04ac732b8f3e",
        "zeppelin": "6d51e3104412a234",
    },
    "grouped": {
        "allgather": "a38ba2089068ae49", "bytescale": "a2af9b93fbd324b0", "distca": "d67dd1dfdab6b0e9",
        "fcp": "7923ae61e44726cc", "flexsp": "003dcbd106ad6a38", "flexsp_batch_ada": "ca6238d9c59bc160",
        "hydraulis": "f317b31643c4c7be", "local_packing": "a05981a876b73b4a", "loongtrain": "58fb9adbfa52acb9",
        "nodewise": "9a92a2ed844a2851", "ring": "8070cffbf44f1099", "ulysses": "c7189aca232005d3",
        "ulysses_deepspeed": "c7189aca232005d3", "usp": "eb611599f345d4ec", "wlb_llm": "3c2602703ce67a09",
        "zeppelin": "3b2c50fb6f952499",
    },
}  # fmt: skip


def digest(cost: Cost, system: Variant) -> str:
    """Of every number of a step's result, floats to the last bit; of a group's without its memory."""
    batch = Batch(LENGTHS, 0, 0)
    if str(system) == "nodewise":  # whose own plans these are
        system = replace(system, changes=(("rivals", False),))
    plans = system.make(cost).plan(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Totals, "repack", lambda *_: None, raising=False)  # repacking was booked as attention then
        result = asdict(Simulated(cost).step(batch, plans))
    left_out = (*LATER, *MEMORY) if cost is COSTS["grouped"] else LATER
    result = {name: value for name, value in result.items() if name not in left_out}
    return hashlib.sha256(json.dumps(bits(result), sort_keys=True).encode()).hexdigest()[:16]


def bits(value: object) -> object:
    """The same with floats as text in base 16, which leaves out nothing."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {name: bits(one) for name, one in value.items()}
    return [bits(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("system", [one for one in SYSTEMS if str(one) in DIGESTS["wide"]], ids=str)
@pytest.mark.parametrize("name", COSTS)
def test_results_are_those_of_before(name: str, system: Variant) -> None:
    assert digest(COSTS[name], system) == DIGESTS[name][str(system)]


if __name__ == "__main__":
    found = {name: {str(one): digest(cost, one) for one in SYSTEMS} for name, cost in COSTS.items()}
    print(json.dumps(found, indent=4))
