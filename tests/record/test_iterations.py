"""Figures of iterations of rollouts, by hand."""

import pytest

from tests.record.test_metrics import TINY, step
from zbench.record.iterations import LAYOUTS, STAGES, iteration_figures
from zbench.record.metrics import figures
from zbench.rollouts.iteration import GENERATE, RESHARD, SCORE, TRAIN

FIRST = {
    "seconds": {"reshard": 1.0, "generate": 6.0, "score": 1.0, "train": 2.0},
    "tokens": {"generate": 60, "score": 200, "train": 100},
    "waited_seconds": 6.0,
    "generation_imbalance": 2.0,
    "response_tokens": 50,
    "given_up_tokens": 10,
    "off_policy_tokens": 0,
    "policy_age": 0,
}
SECOND = {**FIRST, "seconds": {**FIRST["seconds"], "generate": 2.0}, "off_policy_tokens": 50, "policy_age": 1}  # type: ignore[dict-item]


def test_figures_are_totals_over_totals() -> None:
    found = iteration_figures([{"rollouts": FIRST}, {"rollouts": SECOND}])
    assert found == pytest.approx({
        "reshard_seconds": 1.0,
        "generate_seconds": 4.0,
        "score_seconds": 1.0,
        "train_seconds": 2.0,
        "generate_tokens_per_second": 120 / 8,
        "score_tokens_per_second": 200.0,
        "train_tokens_per_second": 50.0,
        "generation_imbalance": 2.0,
        "off_policy": 0.5,
        "policy_age": 1.0,
        "given_up": 20 / 120,
    })  # fmt: skip
    assert iteration_figures([{"rollouts": FIRST}])["policy_age"] == 0.0


def test_layouts_are_means_of_the_iterations() -> None:
    layouts = {"prefill": 1.0, "decode": 4.0, "change": 0.5, "changes": 3}
    found = iteration_figures(
        [{"rollouts": {**FIRST, "layouts": layouts}}, {"rollouts": {**FIRST, "layouts": layouts}}]
    )
    told = {name: found[name] for name in LAYOUTS.values()}
    assert told == {"prefill_seconds": 1.0, "decode_seconds": 4.0, "layout_change_seconds": 0.5, "layout_changes": 3.0}


def test_steps_that_are_no_iterations_have_none() -> None:
    assert iteration_figures([{"rollouts": FIRST}, {}]) == iteration_figures([{"rollouts": {}}]) == {}
    assert figures(TINY, [step()]).generate_seconds is None
    assert figures(TINY, [step(rollouts=FIRST)]).generate_seconds == 6.0


def test_stages_are_called_as_they_are_played() -> None:
    assert STAGES == (RESHARD, GENERATE, SCORE, TRAIN)
