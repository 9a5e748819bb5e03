"""Tied embeddings in stages as they are played: within bounds, and in as much memory as planners reckon with."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.cost.test_stage_memory import job, reckoned_and_found
from zbench.correctness.reference.step_check import step_faults
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import AUTO, SHARDING
from zbench.simulated.executor import Simulated
from zbench.simulated.host_layers import candidate_counts
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


def test_optimizer_state_stays_on_gpus() -> None:
    cost = job(1000, **tied(offload="optimizer", optimizer_layers="auto", sharding="zero1"))
    with pytest.raises(ValueError, match=r"^model.tied_embeddings is true, as of .*; with 2 pipeline stages"):
        candidate_counts(cost, Batch(np.full(16, 512), 0, 0))
