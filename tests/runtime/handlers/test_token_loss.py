"""A policy's losses by hand, and their slopes by torch's autograd."""

import numpy as np
import pytest
import torch

from zbench.runtime.handlers.token_loss import PolicyLoss, PolicyTokens


def test_losses_are_clipped_where_that_makes_them_larger() -> None:
    """Ratios of 1, 1.5 and 0.5, each with an advantage of 2 and of -2; a clipped ratio is 1.2 or 0.8."""
    before = torch.zeros(6, dtype=torch.float64)
    now = -torch.tensor([1.0, 1.5, 0.5] * 2, dtype=torch.float64).log()
    loss = PolicyLoss(torch.tensor([2.0] * 3 + [-2.0] * 3, dtype=torch.float64), before, 0.2)
    assert loss.values(now).tolist() == pytest.approx([-2, -2.4, -1, 2, 3, 1.6])
    assert loss.slopes(now).tolist() == pytest.approx([2, 0, 1, -2, -3, 0])


def test_slopes_are_those_of_autograd() -> None:
    rng = torch.Generator().manual_seed(1)
    now, before, advantages = torch.randn(3, 500, dtype=torch.float64, generator=rng)
    loss, leaf = PolicyLoss(advantages, before, 0.2), now.clone().requires_grad_()
    loss.values(leaf).sum().backward()
    torch.testing.assert_close(loss.slopes(now), leaf.grad, rtol=1e-12, atol=1e-12)


def test_tokens_have_what_is_theirs_and_prompts_nothing() -> None:
    of = PolicyTokens({4: np.array([0.0, 2.0]), 7: np.array([3.0])}, {4: np.array([0.0, 0.5]), 7: np.array([0.1])}, 0.2)
    found = of.of(np.array([7, 4, 4]), np.array([0, 1, 0]), torch.ones(1, dtype=torch.float32))
    assert found.advantages.tolist() == [3, 2, 0]
    assert found.before.tolist() == pytest.approx([0.1, 0.5, 0])
    assert found.values(torch.ones(3))[2] == 0
    assert found.advantages.dtype == torch.float32
