"""Rows that ranks send to experts: as many as are expected of the law by which experts are drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.oracles import small
from tests.simulator.estimate.test_expert_layer import job
from zbench.simulator.estimate.expert_rows import rows_to, send_seconds
from zbench.step.passes.routing import ExpertParallel


def test_rows_of_popular_experts_leave_the_gpus_that_have_none() -> None:
    """Nobody sends to its own experts, so those send least that have the popular ones."""
    cost, how = job(1, 4, 2), ExpertParallel(degree=2, skew=4.0)
    sent, rows = send_seconds(cost, how, np.full(4, 1000)), rows_to(how, cost.model, 1)
    assert rows.max() > 0.9  # nearly every token has one of its two experts there
    assert sent[rows.argmax()] < sent[rows.argmin()]


@given(st.sampled_from([1, 2, 4, 8]), st.floats(0, 3))
def test_a_token_has_as_many_rows_as_experts_at_most(degree: int, skew: float) -> None:
    cost = job(2, 4, degree)
    rows = rows_to(ExpertParallel(degree=degree, skew=skew), cost.model, 1)
    assert len(rows) == degree
    assert (rows <= 1 + 1e-9).all()
    assert 1 - 1e-9 <= rows.sum() <= cost.model.experts_per_token + 1e-9


@given(st.lists(st.integers(0, 5000), min_size=8, max_size=8))
def test_a_rank_sends_for_its_own_tokens_alone(tokens: list[int]) -> None:
    """A NIC that ranks share is the exception: of that each rank has what all of its ranks send."""
    cost, how = job(2, 4, 8), ExpertParallel(degree=8)
    sent = send_seconds(cost, how, np.array(tokens))
    of_node = send_seconds(cost, how, np.repeat(np.reshape(tokens, (2, 4)).mean(axis=1), 4))
    assert sent == pytest.approx(of_node)  # these have one NIC a node, which is busier than any port inside it


def test_who_has_all_experts_sends_nothing() -> None:
    assert not send_seconds(small(1, 4), ExpertParallel(), np.full(4, 100)).any()
