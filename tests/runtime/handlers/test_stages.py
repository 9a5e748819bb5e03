"""Stages of a pipeline on two processes: what nobody reads, what is gathered ahead, and ends that must not hang."""

from dataclasses import replace

import pytest

from tests.helpers.steps import plan_of
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import EXPERTS, MODEL
from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import StepVerdict, judged_step
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import DROP, SEND, Operations
from zbench.step.passes.build import whole_step
from zbench.step.passes.recompute import SomeLayers
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step

PAIR = StepCombination(1, 1, 1, 1, 0, 1, "even", 2, 1, "whole", "own", "3", 0, "none", 3, "carry", "uneven")


def executed(fleet: LocalFleet, case: StepCase) -> StepVerdict:
    prove_step(case.step)
    return judged_step(PAIR, fleet.call("run", case), stated_bytes(case.step))


def test_a_message_that_is_let_go_unread_is_received(fleet: LocalFleet) -> None:
    """x goes on to the second stage and, once more, back to the first, which forgets it before it may have arrived."""
    case = PAIR.case(0)
    number = [template.name for template in case.step.templates].index("send_x.1")
    template = case.step.templates[number]
    (row,) = template.operations.table[template.operations.kind == SEND].tolist()
    gone, back = [DROP, *row[1:3], -1, *row[4:]], [SEND, row[1], row[3], row[2], *row[4:]]
    more = replace(template, operations=Operations.of([row, gone, back]))
    step = replace(case.step, templates=(*case.step.templates[:number], more, *case.step.templates[number + 1 :]))
    found, plain = executed(fleet, replace(case, step=step)), executed(fleet, case)
    assert (found.fault, plain.fault) == ("", "")
    tokens = int(case.tokens[1].sizes.sum())
    assert found.bytes["stages"] == plain.bytes["stages"] + tokens * MODEL.hidden * MODEL.element_bytes


@pytest.mark.parametrize("layers", [4, 5])
def test_a_stage_gathers_as_many_layers_ahead_as_it_has(fleet: LocalFleet, layers: int) -> None:
    """With a window of three layers, of which the stages have two or three: those of the other stage are not there."""
    model = replace(EXPERTS, num_layers=layers)
    plans = [plan_of([5, 3], 1, 4), plan_of([2], 1, 4, first=2)]
    how = ExpertParallel(1, 3, 1.0)
    case = StepCase.of(whole_step(model, plans, 1, "3", 3, "full", how, 2), model, plans, 1, 0, how)
    assert case.step.stages[1].layer == 2
    assert executed(fleet, case).fault == ""


def test_stages_of_which_some_layers_are_recomputed(fleet: LocalFleet) -> None:
    """All of the first stage's three layers, one of the second's two, as a run says."""
    model = replace(EXPERTS, num_layers=5, pipeline_parallel=2, stage_layers=(3, 2))
    plans = [plan_of([5, 3], 1, 4), plan_of([2], 1, 4, first=2)]
    how = ExpertParallel(1, 3, 1.0)
    step = whole_step(model, plans, 1, "1", 1, SomeLayers("full", (3, 1)), how, 2)
    assert step.stages[1].layer == 3
    assert executed(fleet, StepCase.of(step, model, plans, 1, 0, how)).fault == ""


def test_every_process_plays_its_own_stage(fleet: LocalFleet) -> None:
    """Only what goes on between stages is sent, and each way as often as there are micro-batches."""
    case = PAIR.case(0)
    (first, second) = (rank.bytes for rank in fleet.call("run", case))
    tokens = sum(int(one.sizes.sum()) for one in case.tokens)
    assert first == second == {"stages": (tokens * MODEL.hidden * MODEL.element_bytes,) * 2}


def test_a_killed_stage_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    told = r"rank 1 was killed by signal 9 \(SIGKILL.*\) in backward.1, layer 2, "
    with (
        LocalFleet(2, "tests.runtime.dying:DyingStep", (1, "backward.1, layer 2"), timeout=60) as fleet,
        pytest.raises(RankFailed, match=told),
    ):
        fleet.call("run", PAIR.case(0))
