"""zbench.plan_schedule: from lengths to what a framework's engine runs."""

from typing import Any

import pytest

import zbench
from zbench.contracts.check import check_schedule
from zbench.contracts.contract import AlignedPow2Rings
from zbench.contracts.schedule import SampleSchedule, TokenPermutation

LENGTHS = [600, 50, 3, 900, 20, 20, 7, 8]


def test_lengths_become_megatron_s_lists() -> None:
    made = zbench.plan_schedule(LENGTHS, cluster="local_2x2", model="tiny")
    assert isinstance(made, SampleSchedule)
    check_schedule(made, AlignedPow2Rings(4))
    assert sorted({one for ranks in made.lists() for mine in ranks for one in mine}) == list(range(8))


def test_contracts_and_keys_are_named() -> None:
    whole = zbench.plan_schedule(
        LENGTHS, cluster="local_2x2", model="tiny", contract="whole_on_dp", ranks=2, multiple=2
    )
    assert isinstance(whole, SampleSchedule)
    assert (whole.ranks, len(whole.micro_batches) % 2) == (2, 0)
    order = zbench.plan_schedule(LENGTHS, cluster="local_2x2", model="tiny", contract="equal_token_permutation")
    assert isinstance(order, TokenPermutation)
    assert sorted(order.order.tolist()) == list(range(sum(LENGTHS)))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"contract": "rings"}, "contract is 'rings'; it takes one of"),
        ({"ranks": 2}, "ranks is 2; contract aligned_pow2_rings is for the 4 ranks of the cluster"),
        ({"leest": 2}, "leest is no key of contract aligned_pow2_rings; it takes max_tokens"),
        ({"max_tokens": 100}, "sample 3 has 900 tokens; 4 ranks of at most 100"),
        ({"contract": "whole_on_dp", "ranks": 3}, "3 data-parallel ranks, which do not divide the 4"),
        ({"cluster": "a800"}, "cluster"),
    ],
)
def test_what_cannot_be_is_a_sentence(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        zbench.plan_schedule(LENGTHS, **{"cluster": "local_2x2", "model": "tiny", **keys})
