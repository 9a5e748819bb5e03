"""Experts that routers choose while a step runs, on one to eight processes: one dense process that is told the choices
comes to the same, chooses the same, and every process sends what the step says."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.steps import plan_of
from zbench.correctness.steps.cases import ProcessOptions, StepCase
from zbench.correctness.steps.choices import EXPERTS
from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import RANK, judged_step
from zbench.correctness.steps.dense import dense_step, drawn_weights
from zbench.describe.expert_schedule import EXPERT_CHOICE, TOKEN_CHOICE
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step

RANKS = StepCombination(
    1, 4, 1, 1, 4, 1, "router", 1, 1, "whole", "own", "1", 0, "none", 1, "carry", "uneven"
)  # in words
TO_ONE = 27  # a seed of parameters and words by which the seven tokens of two sequences go to one expert


def fleet_of(size: int) -> LocalFleet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return LocalFleet(size, RANK, ProcessOptions(), timeout=60)


def case_of(
    lengths: list[int],
    how: tuple[str, float],
    gate: str = "softmax",
    recompute: str = "none",
    per_token: int = 2,
    places: tuple[int, int] = (4, 4),
    seed: int = 0,
    **of_model: Any,
) -> StepCase:
    """how: who chooses, and the capacity; places: ranks, and those that hold all experts together."""
    model, (size, degree) = replace(EXPERTS, experts_per_token=per_token, gate=gate, **of_model), places
    plans = [plan_of(lengths, size, 4)]
    experts = ExpertParallel(degree, capacity=how[1], padded=True, routing=how[0])
    step = whole_step(model, plans, 1, "3" if recompute == "full" else "1", 1, recompute, experts)
    prove_step(step)
    return StepCase.of(step, model, plans, 1, seed, experts)


def fault_on(fleet: LocalFleet, case: StepCase, is_small: bool = False) -> str:
    """is_small: parameters are no number to compare, as some gradients are rounding errors, by whose size Adam
    divides."""
    found = fleet.call("run", case)
    if is_small:
        found = [replace(one, parameters=0.0) for one in found]
    return judged_step(RANKS, found, stated_bytes(case.step)).fault


@pytest.mark.parametrize(
    ("how", "gate", "recompute"),
    [((TOKEN_CHOICE, 0.3), "sigmoid", "selective"), ((EXPERT_CHOICE, 1.0), "softmax_all", "full")],
    ids=["few seats", "experts choose"],
)
def test_exact_with_the_bytes_of_the_step(ranks: LocalFleet, how: tuple[str, float], gate: str, recompute: str) -> None:
    assert fault_on(ranks, case_of([50, 1, 13], how, gate, recompute)) == ""


def test_routers_of_cosines(ranks: LocalFleet) -> None:
    cosine = {"router": "cosine", "router_dim": 3, "router_temperature": 0.5}
    assert fault_on(ranks, case_of([50, 1, 13], (TOKEN_CHOICE, 0.75), recompute="full", **cosine)) == ""


def test_a_first_layer_without_a_router(ranks: LocalFleet) -> None:
    dense = {"dense_layers": 1, "dense_ffn_hidden": 10}
    assert fault_on(ranks, case_of([50, 1, 13], (TOKEN_CHOICE, 0.75), recompute="selective", **dense)) == ""


def test_two_runs_have_the_same_bits(ranks: LocalFleet) -> None:
    case = case_of([50, 1, 13], (TOKEN_CHOICE, 1.25), recompute="full")
    first = ranks.call("run", case)
    assert judged_step(RANKS, first, stated_bytes(case.step)).fault == ""
    assert ranks.call("run", case) == first


def test_all_tokens_to_one_expert_and_none_to_three(ranks: LocalFleet) -> None:
    case = case_of([5, 2], (TOKEN_CHOICE, 4.0), per_token=1, seed=TO_ONE)
    ids = [case.sequences[number] for number in sorted(case.sequences)]
    nowhere = [np.zeros((len(one), 1), np.int64) for one in ids]
    dense = dense_step(case.model, drawn_weights(case.model, case.seed), ids, nowhere)
    assert torch.cat([one[0] for one in dense.router_logits]).argmax(1).unique().numel() == 1
    assert fault_on(ranks, case, is_small=True) == ""


@pytest.mark.parametrize("routing", [TOKEN_CHOICE, EXPERT_CHOICE])
def test_one_token_in_all(ranks: LocalFleet, routing: str) -> None:
    assert fault_on(ranks, case_of([1], (routing, 1.0), "softmax_all"), is_small=True) == ""


def test_two_processes_with_half_of_the_experts_each(fleet: LocalFleet) -> None:
    assert fault_on(fleet, case_of([50, 1, 13], (TOKEN_CHOICE, 0.75), places=(2, 2))) == ""


def test_eight_processes_in_two_groups() -> None:
    with fleet_of(8) as fleet:
        assert fault_on(fleet, case_of([50, 1, 13], (TOKEN_CHOICE, 0.75), places=(8, 4))) == ""
