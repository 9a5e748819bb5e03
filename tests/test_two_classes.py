"""A cluster of two link classes, NVLink and NICs, is simulated as before there were any number of them.

The digests were made by the simulator of before, whose clusters could have no others. They change where the cost
model's formulas do, and a system whose planner was changed has none any more; a change of link classes alone must not
touch them. They are of twelve digits, as processors round exponentials differently.
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
from zbench.totals import Totals

LENGTHS = np.exp(np.random.default_rng(5).uniform(np.log(64), np.log(40_000), 24)).astype(np.int64)
WIDE = Cluster("wide", 2, 8, 8, 5e10, 0.8, 1.5e-5, 4.5e11, 0.78, 1e-5, H100)
SHARED = Cluster("shared", 3, 4, 2, 2.5e10, 0.915, 1.5e-5, 2e11, 0.6, 1e-5, H100)
COSTS = {
    "wide": Cost(WIDE, MODELS["gqa"]),
    "shared": Cost(SHARED, replace(MODELS["mha"], sharding="zero1", recompute="full")),
    "grouped": grouped(Cost(SHARED, MODELS["gqa"]), 2),
}
DIGESTS: dict[str, dict[str, str]] = {
    "wide": {
        "allgather": "f55bb85cc80bfed6", "bytescale": "7fe1acf10e1de2cb", "distca": "189dd2645fc1a4cc",
        "fcp": "251a010f42c443df", "flexsp": "751924b280066e16", "flexsp_batch_ada": "baa4d8a3054cfff7",
        "hydraulis": "b8b2af04a9562497",
        "local_packing": "2ee31a997b51299c", "loongtrain": "fc3e0e1387400e19", "nodewise": "d35502e722df31a1",
        "ring": "fef864d8a1294422", "ulysses": "d70db8ac310aa043", "ulysses_deepspeed": "d70db8ac310aa043",
        "usp": "fc3e0e1387400e19", "wlb_llm": "9bd348db9ef46e67", "zeppelin": "f2c1e130fd4e7a84",
    },
    "shared": {
        "allgather": "3891a56c6fece864", "bytescale": "52591eb99952eced", "distca": "a472bb99a05bea51",
        "fcp": "707021e0bc2ba737", "flexsp": "4f76b978dd77560e", "flexsp_batch_ada": "52f0095c11d50679",
        "hydraulis": "7cef6867b7c4de60",
        "local_packing": "c259b20040bac54e", "loongtrain": "6c208e031a4bcbd1", "nodewise": "0ebb554dbfc3a4b8",
        "ring": "f096599df929f9ba", "ulysses": "6b511b15ea07b4f8", "ulysses_deepspeed": "6b511b15ea07b4f8",
        "usp": "6b511b15ea07b4f8", "wlb_llm": "4b355cd23ff6a06a", "zeppelin": "eb423bc5ffc20e0f",
    },
    "grouped": {
        "allgather": "5e2a950402ab0962", "bytescale": "cea664ca64f15afd", "distca": "d5a2e7c907b9f877",
        "fcp": "d9d8f8cf356c669d", "flexsp": "c8f1e2933c6a873a", "flexsp_batch_ada": "c29393dbe4147e14",
        "hydraulis": "f03c1c5c04f04a55",
        "local_packing": "f0038ae2724002a0", "loongtrain": "b75d9fb0962017bb", "nodewise": "9ac59c1bda16d451",
        "ring": "a4dc290d43a96d24", "ulysses": "37459a268044ae96", "ulysses_deepspeed": "37459a268044ae96",
        "usp": "4b20e75c8593a2ec", "wlb_llm": "fb985dafebc1211e", "zeppelin": "c46ad147ec279730",
    },
}  # fmt: skip


def digest(cost: Cost, system: Variant) -> str:
    """Of every number of a step's result."""
    batch = Batch(LENGTHS, 0, 0)
    if str(system) == "nodewise":  # whose own plans these are
        system = replace(system, changes=(("rivals", False),))
    plans = system.make(cost).plan(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Totals, "repack", lambda *_: None)  # repacking was booked as attention then
        result = asdict(Simulated(cost).step(batch, plans))
    del result["ceiling_seconds"]  # results of before had none
    return hashlib.sha256(json.dumps(shortened(result), sort_keys=True).encode()).hexdigest()[:16]


def shortened(value: object) -> object:
    """The same with floats of twelve digits, as text."""
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    return [shortened(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("system", [one for one in SYSTEMS if str(one) in DIGESTS["wide"]], ids=str)  # not later ones
@pytest.mark.parametrize("name", COSTS)
def test_results_are_those_of_before(name: str, system: Variant) -> None:
    assert digest(COSTS[name], system) == DIGESTS[name][str(system)]
