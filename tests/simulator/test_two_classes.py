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
since zbench.cost.stage_memory, in which nothing else differs.
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
from zbench.simulator.simulate import SimulatedAttention
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
DIGESTS: dict[str, dict[str, str]] = {
    "wide": {
        "allgather": "8c22cb587b5b163e", "bytescale": "ca92e5e935e58fa2", "distca": "9cfbf39759134d53",
        "fcp": "91e278e5352a7985", "flexsp": "8346c4cf2ea2c441", "flexsp_batch_ada": "357ab14c0731e43c",
        "hydraulis": "3a9cc57904e4c96e", "local_packing": "5e9eb85096cfb6ed", "loongtrain": "b0971f0f12c37824",
        "nodewise": "bb1be16d615ec57c", "ring": "50b0a25e84160f5c", "ulysses": "6660686808ae41e4",
        "ulysses_deepspeed": "6660686808ae41e4", "usp": "b0971f0f12c37824", "wlb_llm": "3b53ae31f8238705",
        "zeppelin": "6a7e60972d44ae97",
    },
    "shared": {
        "allgather": "2750c8b9fe949f51", "bytescale": "0f6ba53b023ebe23", "distca": "5907eb9a1ac72985",
        "fcp": "de5e39725a793f31", "flexsp": "4ab0e230dfaf2863", "flexsp_batch_ada": "ae35d9630974cdf6",
        "hydraulis": "7872186af790be7f", "local_packing": "f0d1e10a81e74b6f", "loongtrain": "e093ba4bf959ccd0",
        "nodewise": "3932ea78b896c5a1", "ring": "d4104887d6921675", "ulysses": "284f05228b990e84",
        "ulysses_deepspeed": "284f05228b990e84", "usp": "284f05228b990e84", "wlb_llm": "6c57f39e87eaa1e2",
        "zeppelin": "6d51e3104412a234",
    },
    "grouped": {
        "allgather": "100a3c36ae4aaaa3", "bytescale": "a2af9b93fbd324b0", "distca": "789c80e54dabc649",
        "fcp": "f004cfc58372f51c", "flexsp": "003dcbd106ad6a38", "flexsp_batch_ada": "ca6238d9c59bc160",
        "hydraulis": "f317b31643c4c7be", "local_packing": "a05981a876b73b4a", "loongtrain": "58fb9adbfa52acb9",
        "nodewise": "0f38bddbadf38627", "ring": "8c07d241560ce6a4", "ulysses": "0132a3f37efe8013",
        "ulysses_deepspeed": "0132a3f37efe8013", "usp": "eb611599f345d4ec", "wlb_llm": "a01b22db5f907fc6",
        "zeppelin": "3b2c50fb6f952499",
    },
}  # fmt: skip


def digest(cost: Cost, system: Variant) -> str:
    """Of every number of a step's result, floats to the last bit; of a group's without its memory."""
    batch = Batch(LENGTHS, 0, 0)
    if str(system) == "nodewise":  # whose own plans these are
        system = replace(system, changes=(("adopt_rivals", False),))
    plans = system.make(cost).plan(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Totals, "repack", lambda *_: None, raising=False)  # repacking was booked as attention then
        result = asdict(SimulatedAttention(cost).step(batch, plans))
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


@pytest.mark.parametrize("system", [one for one in SYSTEMS if str(one) in DIGESTS["wide"]], ids=str)
@pytest.mark.parametrize("name", COSTS)
def test_results_are_those_of_before(name: str, system: Variant) -> None:
    assert digest(COSTS[name], system) == DIGESTS[name][str(system)]


if __name__ == "__main__":
    found = {name: {str(one): digest(cost, one) for one in SYSTEMS} for name, cost in COSTS.items()}
    print(json.dumps(found, indent=4))
