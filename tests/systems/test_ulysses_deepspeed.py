"""Ulysses as DeepSpeed has it: which plans it makes. tests/runtime/training/test_deepspeed.py runs them.

tests/systems/test_systems.py and tests/plans/test_exact.py hold its plans to what every system owes.
"""

import subprocess
import sys
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import batches, costs
from zbench.correctness.reference.step_check import same_plan
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import TRANSFER
from zbench.systems.ulysses import Ulysses
from zbench.systems.ulysses_deepspeed import UlyssesDeepSpeed


@given(st.data())
def test_with_a_head_a_rank_it_is_the_ulysses_plan(data: st.DataObject) -> None:
    cost, batch = data.draw(costs(3, 4)), data.draw(batches(3000, 20))
    if cost.model.num_heads < cost.cluster.num_ranks:
        cost = replace(cost, model=replace(cost.model, num_heads=cost.cluster.num_ranks, num_kv_heads=1))
    (ours,), (theirs,) = Ulysses(cost).plan(batch), UlyssesDeepSpeed(cost).plan(batch)
    assert theirs.attention == "deepspeed"
    assert same_plan(ours, theirs.with_(attention=""))


@given(st.data())
def test_with_more_ranks_than_heads_groups_share_nothing(data: st.DataObject) -> None:
    cost, batch = data.draw(costs(4, 8)), data.draw(batches(3000, 20))
    heads = data.draw(st.integers(1, 8))
    cost = replace(cost, model=replace(cost.model, num_heads=heads, num_kv_heads=1))
    ranks = cost.cluster.num_ranks
    degree = max(count for count in range(1, heads + 1) if ranks % count == 0)
    (plan,) = UlyssesDeepSpeed(cost).plan(batch)
    for ops in (plan.forward, plan.backward):
        moves = ops.kind == TRANSFER
        assert (ops.src[moves] // degree == ops.dst[moves] // degree).all()
    groups = np.zeros((len(batch.lengths), ranks // degree), bool)
    groups[plan.blocks.seq, plan.blocks.home[plan.blocks.block] // degree] = True
    assert (groups.sum(1) == 1).all()


def test_sequences_go_to_the_group_with_the_fewest_tokens(uneven: Cost) -> None:
    cost = replace(uneven, model=replace(uneven.model, num_heads=5, num_kv_heads=5))
    (plan,) = UlyssesDeepSpeed(cost).plan(Batch(np.array([10, 70, 40, 60, 20]), 0, 0))
    assert plan.tokens_per_rank.reshape(3, 5).sum(1).tolist() == [70, 70, 60]


def test_the_peers_packages_are_imported_by_those_who_need_them_alone() -> None:
    """They take seconds, talk, and set environment variables."""
    program = (
        "import sys, zbench.systems.ulysses_deepspeed, zbench.systems.hybrid_dp_megatron\n"
        "import zbench.runtime.attention_executor\n"
        "assert not {'deepspeed', 'megatron', 'torch'} & set(sys.modules)\n"
        "import zbench.runtime.training.trainer\n"
        "assert not {'deepspeed', 'megatron'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
