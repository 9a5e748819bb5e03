"""Attention by DeepSpeed's own layer: exact for any lengths and heads, counted and timed like the runtime's own.

That whole models train exactly through it: test_conformance.
"""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import batches
from tests.runtime.attending import Seen
from tests.runtime.test_conformance import DEVICE, MODEL
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.mask import FULL, Mask
from zbench.plans.plan import Plan
from zbench.runtime.attention_executor import TorchAttention
from zbench.runtime.job import settings
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.training.deepspeed import Stream, kv_copies
from zbench.systems.ring import Ring
from zbench.systems.ulysses_deepspeed import UlyssesDeepSpeed
from zbench.workloads.fixed import Fixed

RANKS = 4
CLUSTER = Cluster("test", 2, 2, 1, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE)
HEADS = ((8, 8), (8, 2), (4, 1), (6, 3), (5, 5), (12, 4), (2, 1), (3, 3))  # query heads, kv heads; 2 and 3: groups
LENGTHS = ((37, 1, 5, 64, 9), (16, 16), (3,), (1,), (131, 7))


def planned(heads: tuple[int, int], lengths: tuple[int, ...]) -> tuple[Cost, Plan]:
    cost = Cost(CLUSTER, replace(MODEL, num_heads=heads[0], num_kv_heads=heads[1]))
    return cost, UlyssesDeepSpeed(cost).plan(Batch(np.array(lengths, np.int64), 0, 0))[0]


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed, of the extra `peers`")
def test_exact_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with LocalFleet(RANKS, "tests.runtime.attending:Attending", None, timeout=60) as fleet:
        for heads in HEADS:
            for lengths in LENGTHS:
                cost, plan = planned(heads, lengths)
                seen: list[Seen] = fleet.call("attend", cost.model, plan)
                assert max(one.worst for one in seen) < 1e-12, (heads, lengths)
                check_counts(seen, heads, plan)
        for mask in (FULL, Mask(window=5)):
            others = fleet.call("attend", cost.model, plan.with_(mask=mask))
            assert max(one.worst for one in others) < 1e-12, mask


def check_counts(seen: list[Seen], heads: tuple[int, int], plan: Plan) -> None:
    """What is sent is received; with even heads it is a formula; seconds are of the same work."""
    assert sum(sum(one.sent) for one in seen) == sum(sum(one.received) for one in seen)
    ranks = max(count for count in (1, 2, 4) if count <= heads[0])
    kv_heads = heads[1] * kv_copies(*heads, ranks)
    for rank, one in enumerate(seen):
        if kv_heads % ranks == 0:
            first = rank - rank % ranks
            longest = max(1, *plan.tokens_per_rank[first : first + ranks].tolist())
            # Twice (forward and backward) q, o and kv, in two layers of float64; a rank's own share stays.
            share = 2 * 2 * (2 * heads[0] + 2 * kv_heads) // ranks * longest * MODEL.head_dim * 8
            inside = share if ranks > 1 else 0
            assert one.sent == one.received == (inside, share * max(ranks - 2, 0))
        assert 0 < one.seconds["kernel"] + one.seconds["waiting"] < one.seconds["total"]
        assert one.seconds["waiting"] == one.seconds["under_way"]


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 24))
def test_kv_heads_are_repeated_as_little_as_possible(num_kv_heads: int, group: int, ranks: int) -> None:
    heads = num_kv_heads * group
    if heads < ranks:
        return
    copies = kv_copies(heads, num_kv_heads, ranks)
    assert group % copies == 0
    assert num_kv_heads * copies >= ranks
    most = -(-num_kv_heads * copies // ranks) * (group // copies)  # query heads of the rank with the most
    assert most <= -(-num_kv_heads * group // ranks)


@given(st.data())
def test_a_stream_is_the_sequences_of_a_group(data: st.DataObject) -> None:
    heads = data.draw(st.integers(1, 9))
    cost = Cost(replace(CLUSTER, num_nodes=3), replace(MODEL, num_heads=heads, num_kv_heads=1))
    batch = data.draw(batches(500, 12))
    plan = UlyssesDeepSpeed(cost).plan(batch)[0]
    degree = max(count for count in (1, 2, 3, 6) if count <= heads)
    streams = [Stream.of(plan, range(first, first + degree)) for first in range(0, 6, degree)]
    assert np.concatenate([stream.tokens for stream in streams]).tolist() == plan.tokens_per_rank.tolist()
    assert sorted(np.concatenate([stream.lengths for stream in streams])) == sorted(batch.lengths)
    for stream in streams:
        assert stream.tokens.max() - stream.tokens.min() <= 1


def test_other_plans_have_no_stream() -> None:
    plan = Ring(Cost(CLUSTER, MODEL)).plan(Batch(np.array([50, 60]), 0, 0))[0]
    with pytest.raises(AssertionError, match="consecutive shares"):
        Stream.of(plan, range(4))
    with pytest.raises(AssertionError, match="in their group"):
        Stream.of(planned((4, 2), (50, 60))[1], range(2))


@pytest.mark.parametrize(
    ("attention", "check", "installed", "told"),
    [
        ("deepspeed", ("exact", "bytes"), True, "check=bytes cannot be where deepspeed computes attention"),
        ("deepspeed", (), False, "has deepspeed compute attention, and it is missing; the extra 'peers' installs it"),
        ("megatron", (), True, "plan.attention is 'megatron'; it takes"),
    ],
)
def test_what_cannot_be_is_told_before_the_step(
    attention: str, check: tuple[str, ...], installed: bool, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "find_spec", lambda name: object() if installed else None)
    cost, plan = planned((4, 2), (50, 60))
    torch = TorchAttention(cost, Fixed(seed=0, tokens=110, length=60), check=check)
    monkeypatch.setattr(torch, "_fleet", object())  # which nobody calls
    with pytest.raises(ValueError, match=told):
        torch.step(Batch(plan.lengths, 0, 0), (plan.with_(attention=attention),))
