"""What a run chose for each of its batches, in words and as figures."""

from dataclasses import asdict
from typing import Any

import pytest

from tests.record.test_metrics import TINY, step
from zbench.describe.expert_schedule import AFTER_CHUNKS, ExpertChunks, GradientPieces
from zbench.record.metrics import figures
from zbench.record.step_choices import CHOICES, choice_figures, choice_words
from zbench.simulated.expert_degrees import ChosenChunks
from zbench.simulated.recomputation import ChosenRecompute


def chosen(slices: int = 8, chunks: ExpertChunks | None = None, again: ChosenRecompute | None = None) -> dict[str, Any]:
    return step(
        exchange_slices={"slices": slices, "seconds": {}},
        expert_chunks=ChosenChunks(chunks or ExpertChunks(4, 2), {"4 2": 0.5}).told,
        recompute=(again or ChosenRecompute("selective", (3, 4), 8, 1)).told,
    )


def test_what_all_steps_chose_is_told_once() -> None:
    assert choice_words([chosen(), chosen()]) == (
        "exchanges in 8 slices, tokens to experts in 4 chunks forward and 2 backward, recompute selective of 7 of 8 "
        "layers"
    )
    assert choice_words([chosen(1, ExpertChunks())]).startswith("exchanges in 1 slice, tokens to experts at once, ")
    assert choice_words([chosen(again=ChosenRecompute("full", (4, 4), 8, 1))]).endswith(", recompute full")
    assert choice_words([chosen(again=ChosenRecompute("none", (0, 0), 8, 1))]).endswith(", recompute none")
    assert choice_words([step(recompute={"level": "linear", "predicted_bytes": 1})]) == "recompute linear"
    tokens = step(recompute={"offloaded_tokens": [20, 100], "of_tokens": [80, 200]})
    assert choice_words([tokens]) == "50 % of tokens on hosts"
    pieces = ExpertChunks(4, 4, AFTER_CHUNKS, GradientPieces(count=8, inside=2, beside=6))
    assert (
        ", tokens to experts in 4 chunks, experts' gradients computed after all chunks, of 8 pieces of a layer's "
        "gradients 2 beside experts and 6 beside attention, "
    ) in choice_words([chosen(chunks=pieces)])
    whole = ExpertChunks(4, 4, AFTER_CHUNKS, GradientPieces(count=1, inside=1, beside=0))
    assert "pieces" not in choice_words([chosen(chunks=whole)])


def test_what_a_user_has_set_is_not_chosen() -> None:
    chunks = ChosenChunks(ExpertChunks(4, 4), {}).told
    assert chunks["forward"] == 4
    given = step(expert_chunks=chunks, recompute={"layers": [3, 4], "of_layers": 8})
    assert choice_words([given]) == ""
    assert choice_figures([given]) == {**dict.fromkeys(CHOICES, 4.0), "exchange_slices": None, "recomputed_layers": 7.0}


def test_homes_that_were_chosen_are_in_words() -> None:
    even, planned = (step(plan_notes=[{"homes": homes, "homes_planned_seconds": 1}]) for homes in ("even", "planned"))
    assert choice_words([even]) == "tokens' homes even"
    assert choice_words([even, planned, even]) == "tokens' homes even (2 steps), tokens' homes as planned (1 step)"
    assert choice_words([step(plan_notes=[{"gap": 0.1}])]) == ""


def test_choices_that_differ_are_counted_the_most_frequent_first() -> None:
    found = choice_words([chosen(2), chosen(8), chosen(8), chosen(1), chosen(4), step()])
    assert found.startswith(
        "exchanges in 8 slices (2 steps), exchanges in 2 slices (1 step), exchanges in 1 slice (1 step), "
        "other slices of exchanges (1 step), tokens"
    )
    assert found.endswith("recompute selective of 7 of 8 layers (5 steps)")


def test_figures_are_means_of_steps_that_all_have_them() -> None:
    found = choice_figures([chosen(2), chosen(8, ExpertChunks(2, 8))])
    assert found == {"exchange_slices": 5.0, "forward_chunks": 3.0, "backward_chunks": 5.0, "recomputed_layers": 7.0}
    assert choice_figures([chosen(), step()]) == choice_figures([]) == dict.fromkeys(CHOICES)
    assert choice_words([step()]) == choice_words([]) == ""
    assert choice_figures([step(recompute={"level": "linear"})])["recomputed_layers"] is None


@pytest.mark.parametrize("dead", [False, True])
def test_the_fullest_node_s_host_memory_is_a_figure(dead: bool) -> None:
    steps = [step(host_bytes=[3, 5], out_of_memory=dead), step(host_bytes=[4, 1])]
    assert asdict(figures(TINY, steps))["host_bytes"] == 5
    assert figures(TINY, [step()]).host_bytes is None


def test_the_bytes_of_a_step_are_those_of_its_fullest_process() -> None:
    assert figures(TINY, [step(store_bytes=[3, 5]), step(store_bytes=[4, 1])]).store_bytes == 5
    assert figures(TINY, [step()]).store_bytes is None
