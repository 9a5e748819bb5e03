"""Losses of tokens by hand, and their slopes by torch's autograd."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.runtime.handlers.context import Context
from zbench.runtime.handlers.functions import FUNCTIONS, merge_of
from zbench.runtime.handlers.token_loss import CountedLoss, GivenLosses, NotedScores, PolicyLoss, ValueLoss

ONES = torch.ones(6, dtype=torch.float64)


def test_losses_are_clipped_where_that_makes_them_larger() -> None:
    """Ratios of 1, 1.5 and 0.5, each with an advantage of 2 and of -2; a clipped ratio is 1.2 or 0.8."""
    now = -torch.tensor([1.0, 1.5, 0.5] * 2, dtype=torch.float64).log()
    loss = PolicyLoss(ONES, torch.tensor([2.0] * 3 + [-2.0] * 3, dtype=torch.float64), 0 * ONES, 0.2)
    assert loss.values(now).tolist() == pytest.approx([-2, -2.4, -1, 2, 3, 1.6])
    assert loss.slopes(now).tolist() == pytest.approx([2, 0, 1, -2, -3, 0])


def test_the_kl_term_is_of_tokens_that_count() -> None:
    """Likelihoods twice and half of those under the reference model: 0.5 - ln 0.5 - 1, and 2 - ln 2 - 1."""
    now = -torch.tensor([2.0, 0.5, 0.5], dtype=torch.float64).log()
    counts = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    loss = PolicyLoss(counts, 0 * counts, 0 * counts, 0.2, 10.0, 0 * counts)
    assert loss.values(now).tolist() == pytest.approx([10 * (np.log(2) - 0.5), 10 * (1 - np.log(2)), 0])
    assert loss.slopes(now).tolist() == pytest.approx([-5, 10, 0])


def test_values_are_kept_near_those_before_where_that_makes_losses_larger() -> None:
    """A value of 2 and one of 0.5, from 1: kept within 0.2 it is 1.2 or 0.8; returns 3 and 0."""
    made = torch.tensor([2.0, 2.0, 0.5, 0.5, 1.1, 2.0], dtype=torch.float64)
    returns = torch.tensor([3.0, 0.0, 3.0, 0.0, 0.0, 3.0], dtype=torch.float64)
    counts = torch.tensor([1.0] * 5 + [0.0], dtype=torch.float64)
    loss = ValueLoss(counts, returns, ONES, 0.2)
    assert loss.values(made).tolist() == pytest.approx([1.62, 2, 3.125, 0.32, 0.605, 0])
    assert loss.slopes(made).tolist() == pytest.approx([0, 2, -2.5, 0, 1.1, 0])


@pytest.mark.parametrize("make", [partial(PolicyLoss, kl=0.3), ValueLoss])
def test_slopes_are_those_of_autograd(make: type[PolicyLoss] | type[ValueLoss]) -> None:
    rng = torch.Generator().manual_seed(1)
    made, one, other, reference = torch.randn(4, 500, dtype=torch.float64, generator=rng)
    counts = (torch.rand(500, generator=rng) < 0.7).double()
    rest = {} if make is ValueLoss else {"reference": reference}
    names = ("returns", "before") if make is ValueLoss else ("advantages", "before")
    given = dict(zip(names, (one * counts, other), strict=True))
    loss, leaf = make(counts, **given, clip=0.2, **rest), made.clone().requires_grad_()
    loss.values(leaf).sum().backward()
    torch.testing.assert_close(loss.slopes(made), leaf.grad, rtol=1e-12, atol=1e-12)


def test_tokens_have_what_is_theirs() -> None:
    columns = {
        "counts": {4: np.array([0.0, 1.0]), 7: np.array([1.0])},
        "advantages": {4: np.array([0.0, 2.0]), 7: np.array([3.0])},
        "before": {4: np.array([0.0, 0.5]), 7: np.array([0.1])},
    }
    of = GivenLosses(columns, partial(PolicyLoss, clip=0.2, kl=0.0))
    found = of.of(np.array([7, 4, 4]), np.array([0, 1, 0]), torch.ones(1, dtype=torch.float32))
    assert isinstance(found, PolicyLoss)
    assert found.advantages.tolist() == [3, 2, 0]
    assert found.before.tolist() == pytest.approx([0.1, 0.5, 0])
    assert found.values(torch.ones(3))[2] == 0
    assert found.advantages.dtype == torch.float32


def test_scores_are_noted_with_whose_they_are() -> None:
    scores = NotedScores()
    loss = scores.of(np.array([3, 3]), np.array([0, 1]), torch.ones(1))
    assert loss.values(torch.tensor([0.5, 0.25])).sum() == 0.75
    ((sequence, position, made),) = scores.found
    assert (sequence.tolist(), position.tolist(), made.tolist()) == ([3, 3], [0, 1], [0.5, 0.25])


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.booleans(), max_size=17),
    chunk=st.integers(1, 6),
    cuts=st.lists(st.integers(0, 11), max_size=3),
    seed=st.integers(0, 2**32),
)
def test_labels_that_do_not_count_by_chunks_and_slices_of_the_vocabulary(
    counts: list[bool], chunk: int, cuts: list[int], seed: int
) -> None:
    """Any labels may not count: sums and gradients, of chunks of tokens and of the words that GPUs have, are those of
    torch's cross entropy with ignore_index."""
    rng = torch.Generator().manual_seed(seed)
    hidden, words = torch.randn(len(counts), 5, generator=rng).double(), torch.randn(11, 5, generator=rng).double()
    targets = torch.randint(0, 11, (len(counts),), generator=rng)
    leaves = hidden.clone().requires_grad_(), words.clone().requires_grad_()
    labels = torch.where(torch.tensor(counts, dtype=torch.bool), targets, -100)
    wanted = F.cross_entropy(leaves[0] @ leaves[1].T, labels, ignore_index=-100, reduction="sum")
    wanted.backward()
    edges = [0, *sorted(cuts), 11]
    slices = [slice(a, b) for a, b in pairwise(edges) if a < b]
    loss, to_hidden, to_words = torch.zeros((), dtype=torch.float64), torch.zeros_like(hidden), torch.zeros_like(words)
    for first in range(0, len(counts), chunk):
        some = slice(first, first + chunk)
        own = CountedLoss(torch.tensor(counts[some], dtype=torch.float64))
        contexts = [context_of(targets[some], words, own) for words in slices]
        one: Any = None
        for at, mine in zip(contexts, slices, strict=True):
            more = FUNCTIONS["score"](at, (hidden[some],), (words[mine],))
            one = more if one is None else merge_of("l", "softmax")(one, more)
        loss += FUNCTIONS["lose"](contexts[0], one)
        for at, mine in zip(contexts, slices, strict=True):
            given = at, (hidden[some],), (words[mine],), one
            to_hidden[some] += FUNCTIONS["score_d0"](*given)
            to_words[mine] += FUNCTIONS["score_d1"](*given)
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(to_hidden, leaves[0].grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(to_words, leaves[1].grad, rtol=1e-12, atol=1e-12)


def context_of(targets: torch.Tensor, words: slice, loss: CountedLoss) -> Context:
    """The context of a head's computes: targets as numbers among some words, -1 of others."""
    numbers = torch.where((targets >= words.start) & (targets < words.stop), targets - words.start, -1)
    rest: Any = None  # heads and kernel, which a head does not look at
    return Context((targets, targets), targets, numbers, words.stop - words.start, rest, None, rest, loss=loss)
