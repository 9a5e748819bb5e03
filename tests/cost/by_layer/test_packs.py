"""Packs of a batch: equal lengths are dealt evenly, others by seconds, and the heaviest ones go together."""

import numpy as np
import pytest

from zbench.api.parts import cluster_named, model_named
from zbench.cost.by_layer.packs import SequencePacks
from zbench.cost.cost import Cost

COST = Cost(cluster=cluster_named("a800_2x8", {}), model=model_named("llama_3b", {}))


@pytest.mark.parametrize(("groups", "micro_batches"), [(1, 1), (8, 2), (4, 8)])
def test_equal_lengths_are_even_packs(groups: int, micro_batches: int) -> None:
    lengths = np.full(32, 2048)
    found = SequencePacks(COST, lengths).slowest(groups, micro_batches)
    even = 32 * 2048 / groups / micro_batches
    assert (found.tokens, found.fullest) == (even, even)
    there, back = (float(COST.whole_seconds(lengths, way).sum()) / groups / micro_batches for way in (False, True))
    assert (found.forward, found.backward) == pytest.approx((there, back))


def test_a_long_sequence_is_what_its_micro_batch_waits_for() -> None:
    lengths = np.array([32768, *[1024] * 31])
    found = SequencePacks(COST, lengths).slowest(2, 1)
    there = COST.whole_seconds(lengths, False)
    assert found.fullest >= 32768
    assert found.forward == pytest.approx(there[0], rel=0.3)
    assert found.forward > 1.5 * there.sum() / 2


def test_packs_that_take_longest_make_a_micro_batch_together() -> None:
    """In other orders every micro-batch would wait for one of them."""
    lengths = np.array([8000, 7900, 7800, 7700, 100, 110, 120, 130])
    packs = SequencePacks(COST, lengths)
    assert packs.slowest(4, 2).tokens == pytest.approx((8000 + 130) / 2)
    assert packs.slowest(8, 1).tokens == 8000
    assert packs.slowest(1, 8).tokens == pytest.approx(lengths.mean())
