"""Messages as large as routers choose, on two and four processes: one dense process that is told the choices comes to
the same, and every process sends what was chosen, to the byte."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.helpers.steps import plan_of, plan_of_blocks
from zbench.correctness.steps.cases import ProcessOptions, StepCase
from zbench.correctness.steps.choices import EXPERTS
from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import RANK, judged_step
from zbench.correctness.steps.dense import dense_step, drawn_weights
from zbench.describe.arrays import Ints
from zbench.describe.expert_schedule import TOKEN_CHOICE
from zbench.runtime.handlers.counted import CountedRows
from zbench.runtime.handlers.formats import Formats
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.steps.instructions import Cells
from zbench.runtime.steps.seats import SeatParts
from zbench.step.byte_law import chosen_rows, stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step

RANKS = StepCombination(
    1, 4, 1, 1, 4, 1, "router", 1, 1, "whole", "own", "1", 0, "none", 1, "carry", "uneven"
)  # in words
TO_ONE = 27  # a seed of parameters and words by which the seven tokens of two sequences go to one expert


def case_of(
    lengths: list[int],
    recompute: str = "none",
    capacity: float | None = None,
    per_token: int = 2,
    places: tuple[int, int] = (4, 4),
    seed: int = 0,
    gate: str = "softmax",
) -> StepCase:
    """capacity: None, dropless; places: ranks, and those that hold all experts together. Two micro-batches, the second
    of one token; on four ranks some have several blocks."""
    model, (size, degree) = replace(EXPERTS, experts_per_token=per_token, gate=gate), places
    plans = [plan_of_blocks(lengths, size, 4), plan_of([1], size, 4, first=len(lengths))]
    experts = ExpertParallel(degree, capacity=capacity, routing=TOKEN_CHOICE)
    step = whole_step(model, plans, 1, "3" if recompute == "full" else "1", 1, recompute, experts)
    prove_step(step)
    return StepCase.of(step, model, plans, 1, seed, experts)


def judged(fleet: LocalFleet, case: StepCase, is_small: bool = False) -> tuple[str, dict[tuple[int, int], Ints]]:
    """Returns what is wrong, and the rows that routers chose. is_small: parameters are no number to compare, as some
    gradients are rounding errors, by whose size Adam divides."""
    found = fleet.call("run", case)
    if is_small:
        found = [replace(one, parameters=0.0) for one in found]
    rows = chosen_rows(one.rows for one in found)
    return judged_step(RANKS, found, stated_bytes(case.step, rows)).fault, dict(rows)


@pytest.mark.parametrize(
    ("recompute", "capacity", "gate"),
    [("none", None, "sigmoid"), ("selective", 0.5, "softmax_all"), ("full", None, "softmax")],
    ids=["dropless", "a capacity", "all made again"],
)
def test_exact_with_the_bytes_that_were_chosen(
    ranks: LocalFleet, recompute: str, capacity: float | None, gate: str
) -> None:
    case = case_of([50, 1, 13], recompute, capacity, gate=gate)
    fault, rows = judged(ranks, case)
    assert fault == ""
    totals = {key: int(one.sum()) for key, one in rows.items()}
    if capacity is None:
        assert totals == {key: 2 * (64, 1)[key[0]] for key in rows}
    else:
        assert any(total < 2 * (64, 1)[number] for (number, _), total in totals.items())
    most, sent = (
        sum(one.get("experts", (0, 0))[0] for one in stated_bytes(case.step, given)) for given in (None, rows)
    )
    assert 0 < sent < most


def test_all_tokens_to_one_expert_and_none_to_three(ranks: LocalFleet) -> None:
    case = case_of([5, 2], per_token=1, seed=TO_ONE)
    ids = [case.sequences[number] for number in sorted(case.sequences)]
    nowhere = [np.zeros((len(one), 1), np.int64) for one in ids]
    dense = dense_step(case.model, drawn_weights(case.model, case.seed), ids, nowhere)
    assert torch.cat([one[0] for one in dense.router_logits]).argmax(1).unique().numel() == 1
    fault, rows = judged(ranks, case, is_small=True)
    assert fault == ""
    assert sorted((rows[0, 0] > 0).any(axis=0).tolist()) == [False, False, False, True]


def test_one_token_in_all_and_groups_without_one(ranks: LocalFleet) -> None:
    assert judged(ranks, case_of([1], places=(4, 2)), is_small=True)[0] == ""


def test_two_processes_of_two_groups_send_no_rows(fleet: LocalFleet) -> None:
    case = case_of([50, 1, 13], places=(2, 1))
    fault, rows = judged(fleet, case)
    assert fault == ""
    assert len(rows) == 2 * case.model.num_layers
    assert all("experts" not in one for one in stated_bytes(case.step, rows))


def test_messages_in_batches_and_the_same_bits_twice() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with LocalFleet(2, RANK, ProcessOptions(batched=True), timeout=60) as fleet:
            case = case_of([50, 1, 13], "full", places=(2, 2))
            assert judged(fleet, case)[0] == ""
            assert fleet.call("run", case) == fleet.call("run", case)


def test_what_is_known_of_rows() -> None:
    """Rows are known of cells whose numbers have come, layer by layer."""
    case = case_of([5, 2])
    layout = case.step.layouts[0]
    seats = SeatParts.of(layout)
    assert seats is not None
    counted = CountedRows(layout, seats, Formats(layout, case.model).all)
    rows, shares = layout.number["i"], layout.number["ct"]
    assert counted.know_of(Cells(shares, 0, (0,), (1,)), 0)
    assert not counted.know_of(Cells(rows, 0, (0,), (1,)), 0)
    counted.note(0, Cells(shares, 0, (0,), (1,)), torch.tensor([2]))
    assert counted.know_of(Cells(rows, 0, (0,), (1,)), 0)
    assert not counted.know_of(Cells(rows, 0, (0,), (1, 2)), 0)
    assert not counted.know_of(Cells(rows, 0, (0,), (1,)), 1)
    assert counted.format(rows, 0).num_bytes((0,), (1,)) == 2 * case.model.hidden * 8
