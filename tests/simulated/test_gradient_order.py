"""Gradients between experts' messages in a run: how many pieces go where, and what that gains where it is played."""

from dataclasses import replace
from functools import cache

import pytest

from tests.cost.fsmoe_planner import divided_gradients
from tests.simulated.test_expert_degrees import BATCH, given
from zbench.cost.fsmoe import ExpertLayerSeconds, LinearSeconds, gradient_shares
from zbench.describe.expert_schedule import DEGREES, Experts, ExpertSchedule, GradientPieces
from zbench.simulated.executor import Simulated
from zbench.simulated.gradient_order import GradientSeconds, common_pieces


@cache
def played(schedule: str, gradients: str = "between") -> tuple[float, dict[str, object], int, int]:
    """Seconds, what a record has of the choice, and the bytes that NICs send for gradients, and for experts."""
    cost, plans = given()
    experts = Experts(schedule, 2 if schedule in ("lina", "pipemoe") else "auto", gradients=gradients)
    found = Simulated(cost, expert_parallel=8, experts=experts).step(BATCH, plans)
    sent = found.nic_tx_for
    return found.seconds, found.expert_chunks, sum(sent["gradients"]), sum(sent["experts"])


def test_bytes_are_those_of_gradients_by_layer() -> None:
    """Whole bytes of a message are a share of it, rounded: pieces are more messages. Those in experts' queue are told
    as gradients'."""
    for schedule, other in (("lina", "pipemoe"), ("fsmoe", "fsmoe")):
        found, wanted = played(schedule), played(other, "layer")
        assert found[2] == pytest.approx(wanted[2], rel=1e-4)
        assert found[3] == pytest.approx(wanted[3], rel=1e-4)


def test_a_record_says_what_was_chosen() -> None:
    told = played("lina")[1]
    assert (told["forward"], told["backward"], told["seconds"]) == (2, 2, {})
    assert told["gradients"] == {"count": 13, "inside": 3, "beside": 10, "apart": True}
    assert "gradients" not in played("fsmoe", "layer")[1]
    assert len(played("fsmoe")[1]["seconds"]) == len(DEGREES)  # type: ignore[arg-type]


def test_the_clock_is_never_slower() -> None:
    assert played("clock")[0] <= min(played(one)[0] for one in ("fsmoe", "lina"))
    assert played("clock")[0] <= played("clock", "layer")[0]


def test_pieces_of_one_size_fill_gaps() -> None:
    """Seven pieces of 30 MB, of 1 ms each: as many as begin in 2.5 ms inside, in 1.2 ms beside, and what is over."""
    gradients = GradientSeconds(7e-3, 1e-4, 1.2e-3, 200e6)
    assert gradients.in_fixed_pieces(2.5e-3) == GradientPieces(7, 3, 2)
    assert gradients.in_fixed_pieces(1.0) == GradientPieces(7, 7, 0)
    assert replace(gradients, dense=1.0).in_fixed_pieces(0.0) == GradientPieces(7, 0, 7)
    assert replace(gradients, size=1.0, seconds=0.0, start=0.0).in_fixed_pieces(0.0) == GradientPieces(1, 1, 0)


def test_pieces_that_workers_have_in_common() -> None:
    """As many as each number divides that a schedule may choose: 13 of Lina's size here, eighths of FSMoE's."""
    cost, _ = given()
    parameters = Simulated(cost, expert_parallel=8).steps.parameters
    for name, gradients, count in (
        ("lina", "between", 13), ("fsmoe", "between", 8), ("clock", "between", 104), ("fsmoe", "layer", 1),
        ("tutel", "layer", 1),
    ):  # fmt: skip
        assert common_pieces(ExpertSchedule(name, "auto", gradients), parameters) == count


def test_shares_are_both_steps_of_the_partition() -> None:
    """Where layers are alike no division of what no slack hides is better than the same for each."""
    layer = ExpertLayerSeconds(LinearSeconds(1e-4, 4e-3), LinearSeconds(1e-4, 9e-3))
    reduction = LinearSeconds(1e-4, 1.0)
    for gradient, dense in ((2e-3, 5e-3), (8e-3, 3e-3), (30e-3, 3e-3)):
        degree = layer.best_degree()
        inside, beside = gradient_shares(layer, degree, gradient, dense, reduction)
        assert beside == pytest.approx(min(gradient, dense - reduction.start))
        hidden = min(gradient - beside, layer.slack(degree) - reduction.start)
        assert hidden <= inside + 1e-12 <= gradient - beside + 2e-12
        left = gradient - beside - hidden
        each = sum(divided_gradients([left] * 4, layer, reduction)) / 4 if left > 1e-9 else 0.0
        told = [layer.makespan(degree, reduction.start + one) - one for one in (inside, hidden + each)]
        assert told[0] <= told[1] + 1e-9
    assert gradient_shares(layer, 2, 1e-3, 5e-3, reduction) == (0.0, 1e-3)
    nothing = GradientSeconds(0.0, 0.0, 1.0, 0.0)
    assert nothing.pieces(*nothing.shares(layer, 2)) == GradientPieces(8, 0, 8, apart=False)
