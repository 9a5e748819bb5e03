"""Tied embeddings in stages as they are played: within bounds, and in as much memory as planners reckon with."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.cost.test_stage_memory import job, reckoned_and_found
from tests.helpers.oracles import small
from tests.helpers.steps import MODEL, pipeline_plans
from tests.step.test_optimizer_on_hosts import HOST
from zbench.correctness.reference.step_check import step_faults
from zbench.cost.job import make_cost
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import AUTO, SHARDING
from zbench.simulated.executor import Simulated
from zbench.systems.local_packing import LocalPacking


def tied(tp: int = 1, stages: int = 2, **model: Any) -> dict[str, Any]:
    """A model's keys."""
    of = {"num_layers": 4, "tensor_parallel": tp, "pipeline_parallel": stages, "loss_chunk_tokens": AUTO}
    return of | {"tied_embeddings": True} | model


@pytest.mark.parametrize("sharding", [*SHARDING, ShardDegrees(2, 2, 4, WORLD), ShardDegrees(1, 1, 2, 4)], ids=str)
def test_planners_memory_is_that_of_live_ranges(sharding: Any) -> None:
    """Never less and to 1 %, of few tokens and many, of a table that is most of a model."""
    for tp, length, vocab in product((1, 2), (16, 2048), (1000, 128256)):
        if isinstance(sharding, ShardDegrees) and (tp == 2 or vocab < length):
            continue
        reckoned, found = reckoned_and_found(job(vocab, **tied(tp, sharding=sharding)), length, 6)
        assert (found <= reckoned).all()
        assert vocab < 128256 or found.max() >= 0.99 * reckoned.max()


def test_a_groups_hidden_state_is_whole_where_words_are_looked_up() -> None:
    """Planners' memory is never below live ranges where no tensor-parallel group has all of the table's gradient."""
    for embeddings in (False, True):
        model = tied(2, tied_embeddings=embeddings, recompute="full", sharding="zero2")
        one = job(128256, **model)
        reckoned, found = reckoned_and_found(one, 2048, 6)
        assert (found <= reckoned).all()


@pytest.mark.parametrize("sharding", SHARDING)
def test_a_step_is_within_its_bounds(sharding: str) -> None:
    for tp, stages in ((1, 4), (2, 2)):
        cost = job(128256, nodes=4, **tied(tp, stages, sharding=sharding))
        batch = Batch(np.full(2 * cost.cluster.num_ranks, 512), 0, 0)
        result = Simulated(cost).step(batch, LocalPacking(cost, pack_tokens=512).plan(batch))
        assert list(step_faults(result, cost)) == []


@pytest.mark.parametrize(("sharding", "tp"), [("zero1", 1), ("zero2", 2), ("zero3", 1)])
@pytest.mark.parametrize("layers", [4, 2])
def test_planners_memory_with_optimizer_state_on_hosts(sharding: str, tp: int, layers: int) -> None:
    for length, vocab in product((16, 2048), (1000, 128256)):
        model = tied(tp, sharding=sharding, offload="optimizer", optimizer_layers=layers)
        one = small(2, 4, model="gqa", memory=4e12)
        cost = make_cost(
            replace(one.cluster, **{**HOST, "host_memory": 4e12}), replace(one.model, vocab=vocab, **model), False, True
        )
        reckoned, found = reckoned_and_found(cost, length, 6)
        assert (found <= reckoned).all()


def test_both_tables_are_in_host_memory() -> None:
    one, two = (replace(MODEL, offload="optimizer", tied_embeddings=True, pipeline_parallel=pp) for pp in (1, 2))
    assert two.params_updated_on_hosts - one.params_updated_on_hosts == MODEL.table_params
    assert two.params_updated_on_hosts == two.placed_params


@pytest.mark.parametrize("sharding", ["none", "zero1"])
@pytest.mark.parametrize("shapes", [[(2, 2), (2, 1), (1, 1), (1, 1)], [(1, 1), (1, 4), (1, 2), (1, 1)], [(4, 2)]])
def test_planners_memory_and_bounds_of_pipelines_side_by_side(shapes: list[tuple[int, int]], sharding: str) -> None:
    """Never less, of a table that is most of a model; the fullest GPU is to a twentieth what live ranges say."""
    one = small(2, 4, model="gqa", memory=4e12)
    model = replace(one.model, num_layers=4, vocab=128256, tied_embeddings=True, loss_chunk_tokens=AUTO)
    cost = make_cost(one.cluster, replace(model, sharding=sharding))
    lengths = [256] * len(shapes)
    plans = tuple(pipeline_plans(shapes, [list(zip(lengths, range(len(shapes)), strict=True))], 8, model.num_heads))
    result = Simulated(cost).step(Batch(np.array(lengths), 0, 0), plans)
    reckoned, found = peak_bytes(plans, cost), np.array(result.peak_bytes)
    assert (found <= reckoned).all()
    assert found.max() >= 0.95 * reckoned.max()
    assert list(step_faults(result, cost)) == []
