"""Megatron-LM's scheduler as a system, which systems/hybrid_dp.py re-tells exactly.

tests/systems/test_systems.py and tests/plans/test_exact.py hold its plans to what every system owes.
"""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.strategies import batches
from zbench.cost.cost import Cost
from zbench.plans.plan import Ints
from zbench.systems import hybrid_dp, hybrid_dp_megatron
from zbench.systems.hybrid_dp_megatron import MODULE, HybridDPMegatron

with_megatron = pytest.mark.skipif(find_spec("megatron") is None, reason="needs megatron-core, of the extra `peers`")


def assert_alike(lengths: Ints, limit: int, ranks: int) -> None:
    """The same groups with the same sequences, in the same order, as Megatron's scheduler."""
    degree = np.minimum(2 ** np.ceil(np.log2(-(-lengths // limit))).astype(np.int64), ranks)
    theirs, ours = (
        [[(group.size, group.seqs) for group in groups] for groups in rounds]
        for rounds in (
            hybrid_dp_megatron.scheduler_rounds(lengths, limit, ranks),
            hybrid_dp.rounds(lengths, degree, ranks),
        )
    )
    assert theirs == ours


def test_without_megatron_core_a_sentence_says_what_to_install(uneven: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(ValueError, match="which the extra 'peers' installs"):
        HybridDPMegatron(uneven)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "8"])
def test_tokens_per_rank_is_checked(uneven: Cost, value: object) -> None:
    with pytest.raises(ValueError, match=r"tokens_per_rank is .* takes a whole number"):
        HybridDPMegatron(uneven, tokens_per_rank=value)  # type: ignore[arg-type]


@with_megatron
@given(st.data())
def test_every_sequence_runs_once_on_as_many_ranks_as_it_needs(data: st.DataObject) -> None:
    """Any number of ranks, and limits so small that a sequence needs more than there are."""
    lengths = data.draw(batches(30_000, 40)).lengths
    ranks, limit = data.draw(st.integers(1, 40)), data.draw(st.integers(1, int(lengths.max())))
    world = 2 ** int(np.log2(ranks))
    rounds = hybrid_dp_megatron.scheduler_rounds(lengths, limit, ranks)
    assert sorted(seq for groups in rounds for group in groups for seq in group.seqs) == list(range(len(lengths)))
    for groups in rounds:
        assert sum(group.size for group in groups) == ranks
        for group in groups:
            assert all(group.size * limit >= lengths[seq] or group.size >= world for seq in group.seqs)


@with_megatron
@settings(max_examples=200)
@given(st.data())
def test_the_retold_policy_is_the_scheduler(data: st.DataObject) -> None:
    """The same groups in the same order, for ranks that are a power of two: what the scheduler is made for."""
    lengths = data.draw(batches(30_000, 60)).lengths
    ranks, limit = 2 ** data.draw(st.integers(0, 6)), data.draw(st.integers(1, int(lengths.max())))
    assert_alike(lengths, limit, ranks)


@with_megatron
@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(1, 200), st.floats(0.2, 2.5), st.integers(1, 6), st.floats(0.02, 1.5))
def test_on_long_tailed_batches_too(seed: int, count: int, sigma: float, power: int, share: float) -> None:
    """Log-normal lengths, up to 200 of them; a rank takes `share` of the longest."""
    lengths = np.random.default_rng(seed).lognormal(6, sigma, count).astype(np.int64) + 1
    assert_alike(lengths, max(int(share * lengths.max()), 1), 2**power)
