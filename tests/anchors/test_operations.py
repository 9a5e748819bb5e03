"""What FlexSP's published steps go to: played parts sum to the step, constants to what FlexSP's own model says."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from zbench.anchors import __main__
from zbench.anchors.anchor import published_rows
from zbench.anchors.flexsp_constants import FIXED, operations_by_constants, published_objective
from zbench.anchors.operations import StepOperations, played_operations, step_operations
from zbench.anchors.presets import cluster, workload
from zbench.anchors.show import show_operations, show_training_operations
from zbench.anchors.steps import batch, flexsp_systems, published_cost
from zbench.anchors.training import anchors, training_operations
from zbench.simulated.executor import Simulated
from zbench.systems.flexsp.batches import total_seconds


@pytest.fixture(scope="module")
def found() -> list[StepOperations]:
    """The three steps, of one batch."""
    return step_operations(cluster, workload, batches=1)


def test_played_operations_sum_to_the_seconds_of_the_step(found: list[StepOperations]) -> None:
    cost, one = published_cost(cluster), batch(workload("wikipedia"), 0)
    assert [step.system for step in found] == ["static", "flexsp_batch_ada", "flexsp"]
    for step, system in zip(found, flexsp_systems(cost).values(), strict=True):
        seconds = Simulated(cost).step(one, system.plan(one)).seconds
        assert sum(step.played.values()) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("name", ["static", "flexsp_batch_ada", "flexsp"])
def test_constants_sum_to_what_the_published_objective_says(name: str) -> None:
    """Planned by the published constants, parts add up to the objective's seconds of the slowest groups."""
    of = published_objective(cluster)
    system = flexsp_systems(published_cost(cluster))[name]
    object.__setattr__(system, "objective", of)
    lengths = batch(workload("wikipedia"), 0).lengths
    parts = system.micro_batches(lengths)
    found = operations_by_constants(parts, lengths, of.degree)
    assert sum(found.values()) == pytest.approx(total_seconds((part.found for part in parts), of), rel=1e-9)
    assert found["constant"] == pytest.approx(FIXED * len(parts))
    assert all(seconds >= -1e-12 for seconds in found.values())


def test_compute_is_alike_and_a_static_degree_exchanges_most(found: list[StepOperations]) -> None:
    static, one_a_batch, mixed = found
    for step in found:
        played, by_constants = (side["attention"] + side["linear"] for side in (step.played, step.constants))
        assert played == pytest.approx(by_constants, rel=0.15)
    for side in ("played", "constants"):
        exchanged = [getattr(step, side)["all-to-alls"] for step in (static, one_a_batch, mixed)]
        assert exchanged == sorted(exchanged, reverse=True)


def test_without_a_window_gathers_are_waited_for_and_exchanges_have_the_links(found: list[StepOperations]) -> None:
    ahead, (waited, *_) = found[0], step_operations(cluster, workload, window=0, batches=1)
    assert waited.played["collectives"] > 10 * ahead.played["collectives"]
    assert waited.played["all-to-alls"] < 0.8 * ahead.played["all-to-alls"]
    assert waited.constants == ahead.constants


def test_what_gpus_wait_for_collectives_longer_than_one_is_waiting_for_others() -> None:
    """GPU 0 waits 1 s for parameters and gradients, GPU 1 waits 3 s."""
    told = {"linear": [5.0, 3.0], "waiting_parameters": [0.75, 2.5], "waiting_gradients": [0.25, 0.5]}
    found = played_operations(told)
    assert found == {"linear": 4.0, "collectives": 1.0, "other GPUs": 1.0}


def test_the_command_prints_and_writes_what_is_missing(
    found: list[StepOperations], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(__main__, "step_operations", lambda *_, **__: found)
    monkeypatch.setattr(sys, "argv", ["zbench.anchors", "--operations", "--json"])
    assert __main__.main() == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["published"] for row in rows] == [8.2, 6.1, 4.75]
    for row, step in zip(rows, found, strict=True):
        assert row["predicted"] == pytest.approx(sum(step.played.values()))
        assert row["predicted_by_constants"] == pytest.approx(sum(step.constants.values()))
    show_operations([replace(found[0], published=100.0)])
    printed = capsys.readouterr().out
    missing = [float(word) for word in printed[printed.index("missing") :].split()[1:3]]
    assert missing == pytest.approx(100 - np.array([rows[0]["predicted"], rows[0]["predicted_by_constants"]]), abs=0.01)


def test_as_published_documents_have_more_tokens_and_steps_are_longer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A document is padded to a multiple of 128 tokens, for all three alike; the word is of --operations."""
    cost, one = published_cost(cluster), batch(workload("wikipedia"), 0)
    tokens = {
        name: sum(int(plan.lengths.sum()) for plan in system.plan(one))
        for name, system in flexsp_systems(cost, True).items()
    }
    assert set(tokens.values()) == {int((-(-one.lengths // 128) * 128).sum())}
    assert 1.02 < tokens["flexsp"] / one.num_tokens < 1.12
    monkeypatch.setattr(sys, "argv", ["zbench.anchors", "--as-published"])
    assert __main__.main() == 2
    assert "--as-published is of the operations of steps, so give --operations as well" in capsys.readouterr().err


def test_training_steps_by_operation_are_those_of_their_anchors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Published seconds are to predicted ones as predicted rates to measured ones; parts sum to the step. With all
    parameters gathered ahead of a step nothing is computed beside them."""
    few = [row for row in published_rows("training") if row["num_gpus"] in ("8", "16")]
    monkeypatch.setattr("zbench.anchors.training.published_rows", lambda _: few)
    found, waiting = training_operations(cluster), training_operations(cluster, as_published=True)
    for one, anchor in zip(found, anchors(cluster), strict=True):
        assert one.published / sum(one.played.values()) == pytest.approx(1 + anchor.error, rel=1e-9)
        assert anchor.case.startswith(f"{one.case}, ")
    for one, other in zip(found, waiting, strict=True):
        assert other.published == one.published
        if not one.case.startswith("internevo"):
            assert other.played == one.played
            continue
        assert other.played["linear"] == pytest.approx(one.played["linear"], rel=1e-9)
        assert other.played["waiting_parameters"] > 5 * one.played["waiting_parameters"]
    show_training_operations([replace(found[0], published=100.0)])
    printed = capsys.readouterr().out.split("GPUs", 1)[1].split("\n")[0].split()
    assert [float(word) for word in printed[-2:]] == [100, pytest.approx(100 - sum(found[0].played.values()), abs=1e-3)]
    monkeypatch.setattr(sys, "argv", ["zbench.anchors", "--operations", "training", "--json"])
    assert __main__.main() == 0
    assert [row["predicted"] for row in json.loads(capsys.readouterr().out)] == [
        pytest.approx(sum(one.played.values())) for one in found
    ]
