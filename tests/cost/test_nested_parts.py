"""Planners' memory of nested degrees in stages, beside the live ranges of the steps that plans become."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.cost.test_layers_ahead import ahead, share_of_reckoned
from tests.cost.test_stage_memory import CHUNK, job, reckoned_and_found, with_experts
from tests.helpers.examples import chequered
from zbench.cost.job import make_cost
from zbench.cost.memory.nested_parts import NestedParts
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.describe.model import AUTO
from zbench.simulated.executor import Simulated
from zbench.systems.local_packing import LocalPacking

ZEROPP = ShardDegrees(WORLD, 2, WORLD, WORLD, WORLD, 2, TransferBits(8, 8, 4))
CUTS = [ZEROPP, *(ShardDegrees(*one) for one in ((4, 1, 4, 4), (2, 2, 4, WORLD), (2, 1, 2, 2), (1, 1, 2, 4)))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("degrees", CUTS, ids=str)
@pytest.mark.parametrize(("recompute", "chunk"), [("none", "whole"), ("full", "whole"), ("selective", CHUNK)])
def test_ranks_of_stages_hold_their_parts(recompute: str, chunk: int | str, degrees: ShardDegrees) -> None:
    """Two stages of four GPUs: never less than live ranges and to 2 %, where the table's rank is fullest and where a
    layer is; with few tokens to 3 %."""
    for vocab, loss in product((1000, 128256), ("whole", AUTO)):
        model = {"recompute": recompute, "mlp_chunk_tokens": chunk, "loss_chunk_tokens": loss, "sharding": degrees}
        reckoned, found = reckoned_and_found(job(vocab, num_layers=4, pipeline_parallel=2, **model), 2048, 6)
        assert (found <= reckoned).all()
        assert found.max() >= 0.98 * reckoned.max()
    for length in (16, 1024):
        cost = job(128256, num_layers=4, nodes=4, pipeline_parallel=2, sharding=degrees)
        reckoned, found = reckoned_and_found(cost, length, 6)
        assert (found <= reckoned).all()
        assert found.max() >= 0.97 * reckoned.max()


@pytest.mark.parametrize("window", [0, 2, 8])
def test_layers_of_a_stage_are_gathered_ahead(window: int) -> None:
    for degrees, vocab, length in chequered(CUTS, (1000, 128256), (2 * CHUNK, 4096), offset=window // 2):
        cost = ahead(window, degrees, vocab, pipeline_parallel=2)
        assert share_of_reckoned(cost, length, 5) >= 0.98


@pytest.mark.parametrize("degrees", [ShardDegrees(2, 1, 2, 2), ShardDegrees(1, 1, 2, 2)], ids=str)
def test_groups_and_experts_in_stages_need_no_more_than_is_reckoned(degrees: ShardDegrees) -> None:
    """Two groups of two GPUs a stage to 4 %; experts, which are cut by themselves, are reckoned with all of a layer."""
    cost = job(1000, num_layers=4, tensor_parallel=2, pipeline_parallel=2, mlp_chunk_tokens=CHUNK, sharding=degrees)
    reckoned, found = reckoned_and_found(cost, 2048, 6)
    assert (found <= reckoned).all()
    assert found.max() >= 0.96 * reckoned.max()
    one = with_experts(False, num_layers=4, pipeline_parallel=2, sharding=degrees)
    cost = make_cost(replace(one.cluster, num_nodes=2, gpus_per_node=2, nics_per_node=1), one.model, False)
    batch = Batch(np.full(3 * cost.cluster.num_ranks, 1024), 0, 0)
    plans = LocalPacking(cost, pack_tokens=1024).plan(batch)
    assert (np.array(Simulated(cost).step(batch, plans).peak_bytes) <= peak_bytes(plans, cost)).all()


def test_parts_of_a_row() -> None:
    """A row of 12 on four ranks, three each: of the first seven parameters rank 0 has 3, rank 1 three, rank 2 one; by a
    degree of two ranks 0 and 2 have 4 of them, 1 and 3 three."""
    parts = NestedParts(job(num_layers=4, sharding=ShardDegrees(2, 2, 2, 4)).model, 4)
    assert parts.part(0, 7, 12, WORLD).tolist() == [3, 3, 1, 0]
    assert parts.part(0, 7, 12, 2).tolist() == [4, 3, 4, 3]
    assert parts.part(0, 7, 12, 1).tolist() == [7, 7, 7, 7]
