"""The ring as it is and as Transformer Engine has it: what is padded, what of that counts, and what is proven."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zbench
from tests.helpers.strategies import batches, costs
from tests.plans.test_exact import TOLERANCE
from zbench.correctness.reference.interpreter import Results, Tensors, dense_attention, execute
from zbench.correctness.reference.judge import CorrectStep, judge
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.mask import FULL
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.proof.verify import PlanError, verify, verify_step
from zbench.simulated.executor import Simulated
from zbench.systems.ring import Ring

BATCH = Batch(np.array([600, 64, 61, 3, 1]), 0, 0)
RANKS = 15  # of the cluster `uneven`


def padded(cost: Cost, batch: Batch = BATCH) -> Plan:
    (plan,) = Ring(cost, padding="published").plan(batch)
    return plan


@given(st.data())
def test_sequences_are_padded_to_chunks_of_one_size(data: st.DataObject) -> None:
    cost, batch = data.draw(costs(3, 4)), data.draw(batches(3000, 12))
    plan, chunks = padded(cost, batch), 2 * cost.cluster.num_ranks
    assert plan.padding is not None
    assert (plan.lengths == -(-batch.lengths // chunks) * chunks).all()
    assert (plan.own_lengths == batch.lengths).all()
    pieces = plan.blocks.stop - plan.blocks.start
    if cost.cluster.num_ranks > 1:
        assert (pieces == plan.lengths[plan.blocks.seq] // chunks).all()
    assert len(set(plan.tokens_per_rank.tolist())) == 1
    verify_step(batch, (plan,), cost, memory=False)


def test_the_batch_s_tokens_get_what_they_get_without_padding(uneven: Cost) -> None:
    """Outputs of all tokens, and gradients where no loss counts padding, against dense attention of the batch alone."""
    plan = padded(uneven)
    own = np.concatenate([np.arange(size) < mine for size, mine in zip(plan.lengths, plan.own_lengths, strict=True)])
    model = uneven.model
    given_all = Tensors.random(model.num_heads, model.num_kv_heads, len(own), model.head_dim)
    given_all = replace(given_all, do=given_all.do * own[None, :, None])
    found = execute(plan, given_all)
    alone = Tensors(*(getattr(given_all, name)[:, own] for name in ("q", "k", "v", "do")))
    wanted = dense_attention(plan.own_lengths, alone, model.mask)
    assert Results(*(getattr(found, name)[:, own] for name in ("o", "dq", "dk", "dv"))).difference(wanted) < TOLERANCE
    assert not found.dq[:, ~own].any()
    assert not found.dk[:, ~own].any()


def test_padding_is_charged_and_no_part_of_the_bound(uneven: Cost) -> None:
    plain = Simulated(uneven).step(BATCH, Ring(uneven).plan(BATCH))
    more = Simulated(uneven).step(BATCH, (padded(uneven),))
    assert more.bound_seconds == plain.bound_seconds
    assert sum(more.linear_seconds) > sum(plain.linear_seconds)
    assert sum(more.nic_tx_bytes) > sum(plain.nic_tx_bytes)
    assert max(more.peak_bytes) > max(plain.peak_bytes)


def test_the_price_of_a_step_has_all_chunks_of_padded_sequences(uneven: Cost) -> None:
    for keys in ({}, {"padding": "published"}):
        system = Ring(uneven, **keys)  # type: ignore[arg-type]
        (plan,) = system.plan(BATCH)
        assert system.size(BATCH.lengths, len(BATCH.lengths)).pieces == len(plan.blocks.seq)


def test_a_batch_that_needs_none_is_charged_as_without(uneven: Cost) -> None:
    batch = Batch(np.array([2 * RANKS, 20 * RANKS]), 0, 0)
    plan = padded(uneven, batch)
    assert plan.padding is not None
    assert not plan.padding.any()
    plain = Simulated(uneven).step(batch, Ring(uneven).plan(batch))
    assert Simulated(uneven).step(batch, (plan,)) == plain


def test_padding_that_is_not_so_is_refused(uneven: Cost) -> None:
    plan = padded(uneven)
    assert plan.padding is not None
    for other, told in (
        (None, "plan.lengths[1] is 90, and sequence 1 has 64 tokens"),
        (np.zeros(5, np.int64), "plan.lengths[1] is 90, of which 0 are padding, and sequence 1 has 64 tokens"),
        (plan.padding[:-1].copy(), "plan.padding has 4 entries and plan.lengths has 5; they have to have as many"),
        (
            plan.padding.astype(np.int32),
            "plan.padding is an array of int32 and shape (5,); it takes a contiguous int64",
        ),
        (plan.lengths, "plan.padding[0] is 600; of 600 tokens it takes 0 to 599, as one at least is the batch's"),
        (-plan.padding, "plan.padding[1] is -26; of 90 tokens it takes 0 to 89"),
    ):
        with pytest.raises(PlanError) as caught:
            verify_step(BATCH, (plan.with_(padding=other),), uneven, memory=False)
        assert told in str(caught.value)
    with pytest.raises(PlanError, match=r"^plan.padding is given under the mask full, where all tokens would see it"):
        verify(plan.with_(mask=FULL))
    with pytest.raises(ValueError, match=r"^system.padding is published, which a full mask would have all tokens see"):
        Ring(replace(uneven, model=replace(uneven.model, mask=FULL)), padding="published")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("wait", True, "system.wait is True; it takes overlapped or published"),
        ("run_ahead", "none", "system.run_ahead is 'none'; it takes overlapped or published"),
        ("padding", "overlapped", "system.padding is 'overlapped'; it takes none or published"),
    ],
)
def test_a_key_has_one_of_its_values(key: str, value: object, told: str, uneven: Cost) -> None:
    with pytest.raises(ValueError, match=f"^{told}$"):
        Ring(uneven, **{key: value})  # type: ignore[arg-type]


def test_the_judge_that_shares_no_code_takes_it_and_refuses_other_padding(uneven: Cost) -> None:
    cost = replace(uneven, model=Model("small", 2, 16, 2, 1, 2, 32, 64))
    batch = Batch(np.array([70, 9]), 0, 0)
    (plan,) = Ring(cost, wait="published", run_ahead="published", padding="published").plan(batch)
    case = CorrectStep("ring", cost, batch, (plan,))
    taken = judge(case, (plan.with_(notes={"a": 1}),))
    assert (taken.wrong, taken.rejected) == ("", "")
    assert plan.padding is not None
    others = [plan.with_(padding=one) for one in (None, plan.padding + 1, plan.padding[:1].copy(), plan.lengths)]
    for other in (*others, plan.with_(in_rounds=1), plan.with_(until_sent=None)):
        verdict = judge(case, (other,))
        assert verdict.wrong
        assert verdict.rejected


def test_who_has_no_words_for_padding_refuses_it() -> None:
    from zbench.runtime.steps.tokens import TokenParts
    from zbench.step.passes.parts import PlanParts

    found = zbench.plan([60, 5], cluster="local_2x2", model="tiny", system="ring", padding="published")
    with pytest.raises(ValueError, match=r"^plan.padding is given; steps that are executed have no words for padding"):
        TokenParts.of(PlanParts(found.plans[0], found.model, 1))
