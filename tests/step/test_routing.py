"""Laws by which experts are popular: their concentration, their drift, and numbers of experts a token."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, execute, fault, plan_of
from zbench.describe.expert_schedule import DIRICHLET, ZIPF, ExpertChunks
from zbench.describe.overlap import StepOverlap
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel


def shares(how: ExpertParallel, num_experts: int) -> np.ndarray:
    odds = np.exp(how.odds(num_experts))
    return np.asarray(odds / odds.sum())


def top_fifth(share: np.ndarray) -> float:
    return float(np.sort(share)[::-1][: round(len(share) / 5)].sum())


def test_zipf_has_the_concentration_that_was_told_of_models_in_use() -> None:
    assert top_fifth(shares(ExpertParallel(skew=1.0), 128)) == pytest.approx(0.70, abs=0.06)  # Qwen3-235B: 0.65
    assert 0.3 < top_fifth(shares(ExpertParallel(skew=0.3), 256)) < 0.4  # DeepSeek-V3: 0.3 to 0.4
    assert shares(ExpertParallel(), 8) == pytest.approx(1 / 8)


def test_dirichlet_s_shares_have_its_variance() -> None:
    """(1 - 1/n) / n / (n alpha + 1) with a concentration of alpha = 1 / skew; over many seeds."""
    for skew in (0.5, 4.0):
        every = [shares(ExpertParallel(seed=seed, skew=skew, popularity=DIRICHLET), 16) for seed in range(400)]
        wanted = (1 - 1 / 16) / 16 / (16 / skew + 1)
        assert np.var(every) == pytest.approx(wanted, rel=0.1)
    assert np.isfinite(ExpertParallel(skew=99.0, popularity=DIRICHLET).odds(64)).all()


@pytest.mark.parametrize("popularity", [ZIPF, DIRICHLET])
def test_popularity_drifts(popularity: str) -> None:
    """From step to step little, after `drift` steps it is another one; the law stays the same in all of them."""

    def alike(drift: int, apart: int) -> float:
        every = []
        for seed in range(30):
            how = ExpertParallel(seed=seed, skew=1.0, popularity=popularity, drift=drift)
            one, other = (replace(how, step=step).odds(64).argsort().argsort() for step in (7, 7 + apart))
            every.append(np.corrcoef(one, other)[0, 1])
            laws = [np.sort(shares(replace(how, step=step), 64)) for step in (7, 7 + apart)]
            assert np.allclose(*laws)
        return float(np.mean(every))

    assert alike(50, 1) > 0.99
    assert 0.6 < alike(50, 25) < 0.8  # cos 45 degrees
    assert abs(alike(50, 50)) < 0.1
    assert abs(alike(1, 1)) < 0.1


@pytest.mark.parametrize("per_token", [1, 4, 8])
def test_a_token_has_one_to_eight_experts(per_token: int) -> None:
    model = replace(EXPERTS, num_experts=8, experts_per_token=per_token)
    how, overlap = ExpertParallel(4, 1, 1.0, popularity=DIRICHLET), StepOverlap(experts=ExpertChunks(2, 2))
    plans = [plan_of([9, 4], 4, 4)]
    step = whole_step(model, plans, 1, "1", overlap, "none", how)
    assert fault(step) == ""
    assert execute(step, plans, 1, model, how, overlap.token_slices) < 1e-12
