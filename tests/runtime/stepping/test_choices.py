"""Choices of routers are held to the dense reference's own logits: wrong ones are found, equals are counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.helpers.steps import EXPERTS, plan_of_blocks
from zbench.correctness.steps.seat_functions import SEAT_FUNCTIONS, Seated
from zbench.describe.expert_schedule import EXPERT_CHOICE, TOKEN_CHOICE
from zbench.runtime.handlers.context import Contexts, TokenWords
from zbench.runtime.handlers.functions import FUNCTIONS
from zbench.runtime.handlers.machine import BatchParts, StepMachine
from zbench.runtime.stepping.choices import RouterChoices, Told
from zbench.runtime.steps.seats import SeatParts
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.layers import CHOICES, SHARES
from zbench.step.passes.build import whole_step
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.routing import ExpertParallel

LENGTHS = [9, 4]
MODEL = replace(EXPERTS, gate="softmax_all", element_bytes=8, lse_bytes=8)


ZEROS = {number: np.zeros(length, np.int64) for number, length in enumerate(LENGTHS)}
WORDS = TokenWords(ZEROS, ZEROS)


def parts_of(routing: str, capacity: float) -> tuple[BatchParts, SeatParts]:
    """A micro-batch on two GPUs, each with half of the experts; one of them has two blocks."""
    how, plan = ExpertParallel(2, capacity=capacity, padded=True, routing=routing), plan_of_blocks(LENGTHS, 2, 4)
    layout = whole_step(MODEL, [plan], 1, "1", 1, "none", how).layouts[0]
    tokens = TokenParts.of(PlanParts(plan, MODEL, 1, how))
    machine = StepMachine(MODEL, torch.device("cpu"), None, None, None)  # type: ignore[arg-type]
    found = BatchParts(0, layout, machine, tokens, WORDS)
    assert found.seats is not None
    return found, found.seats


def told_of(parts: BatchParts, routing: str, seed: int) -> tuple[Told, dict[int, np.ndarray]]:
    """Returns choices of one layer as processes tell them, and all logits by sequence."""
    rng, told, every = np.random.default_rng(seed), {}, parts.seats
    assert every is not None
    logits = {number: rng.standard_normal((1, length, 4)) for number, length in enumerate(LENGTHS)}
    contexts = Contexts(parts.layout, MODEL, parts.tokens, WORDS, None, torch.device("cpu"), None, every)  # type: ignore[arg-type]
    for group in range(len(every.room)):
        sequence, position = parts.tokens.rows(tuple(np.flatnonzero(every.group == group).tolist()))
        own = np.array([logits[one][0, at] for one, at in zip(sequence, position, strict=True)])
        seats = FUNCTIONS[CHOICES[routing]](contexts.of({"a": (group,), "k": (0, 1)}), (torch.from_numpy(own),))
        told[0, 0, group] = own, seats.numpy().reshape(4, -1)
    return told, logits


@pytest.mark.parametrize("routing", [TOKEN_CHOICE, EXPERT_CHOICE])
def test_right_choices_fall_short_of_nothing(routing: str) -> None:
    parts, _ = parts_of(routing, 0.75)
    told, logits = told_of(parts, routing, 1)
    choices = RouterChoices([parts], told, 2)
    assert {one for one, _ in choices.faults(logits)} == {0.0}
    assert choices.swapped(logits) == 0
    routes = choices.routes()
    assert [routes[number].shape for number in (0, 1)] == [(1, n, 2 if routing == TOKEN_CHOICE else 4) for n in LENGTHS]
    seated = sum(int((one >= 0).sum()) for one in routes.values())
    assert seated == sum(int((seats >= 0).sum()) for _, seats in told.values())


def test_an_expert_that_is_not_the_largest_is_found() -> None:
    """By as much as it falls short, over the largest logit; of equals but for rounding nothing is, and they count."""
    parts, _ = parts_of(TOKEN_CHOICE, 4.0)
    told, logits = told_of(parts, TOKEN_CHOICE, 1)
    sequence, position = parts.tokens.rows((0,))
    one = logits[int(sequence[0])][0, position[0]]
    order = np.argsort(-one)
    one[order[2]] = one[order[1]] + 0.5
    choices, top = RouterChoices([parts], told, 2), max(np.abs(x).max() for x in logits.values())
    worst, name = max(choices.faults(logits))
    assert (name, choices.swapped(logits)) == ("the experts chosen in layer 0", 1)
    assert 0.5 / top <= worst < 0.5
    one[order[2]] = one[order[1]] * (1 + 1e-15)
    assert max(choices.faults(logits))[0] < 1e-14
    assert choices.swapped(logits) == 1


def test_a_token_in_another_seat_is_found() -> None:
    parts, _ = parts_of(TOKEN_CHOICE, 4.0)
    told, logits = told_of(parts, TOKEN_CHOICE, 1)
    seats = told[0, 0, 1][1]
    seats[:, [0, 1]] = seats[:, [1, 0]]
    assert max(RouterChoices([parts], told, 2).faults(logits)) == (np.inf, "who is in which seat in layer 0")


@pytest.mark.parametrize("routing", [TOKEN_CHOICE, EXPERT_CHOICE])
@pytest.mark.parametrize("kind", ["random", "equal", "all to one"])
def test_handlers_choose_as_the_interpreter_does(routing: str, kind: str) -> None:
    """Token after token and expert after expert; among equals the first; and so they seat, share and sum."""
    parts, every = parts_of(routing, 0.75)
    rng, group = np.random.default_rng(3), 1
    own = tuple(np.flatnonzero(every.group == group).tolist())
    count, room = int(every.tokens[group]), int(every.room[group])
    logits = rng.standard_normal((count, 4)) * (kind != "equal") + 9.0 * (kind == "all to one") * (np.arange(4) == 2)
    contexts = Contexts(parts.layout, MODEL, parts.tokens, WORDS, None, torch.device("cpu"), None, every)  # type: ignore[arg-type]
    home, choose = contexts.of({"t": own, "k": (0, 1)}), CHOICES[routing]
    seats = FUNCTIONS[choose](contexts.of({"a": (group,), "k": (0, 1)}), (torch.from_numpy(logits),))
    each = [Seated(room, span, span, (0, count), count, 2) for span in ((0, 2), (2, 4))]
    wanted = [SEAT_FUNCTIONS[choose](one, logits) for one in each]
    assert seats.tolist() == np.concatenate(wanted).tolist()
    m, rows = rng.standard_normal((count, 3)), rng.standard_normal((len(seats), 3))
    split = np.split(rows, 2)
    assert np.array_equal(
        FUNCTIONS["seat"](home, (torch.from_numpy(m),), (seats,)).numpy(),
        np.concatenate([SEAT_FUNCTIONS["seat"](one, m, to) for one, to in zip(each, wanted, strict=True)]),
    )
    summed = sum(SEAT_FUNCTIONS["unseat"](*three) for three in zip(each, split, wanted, strict=True))
    assert FUNCTIONS["unseat"](home, (torch.from_numpy(rows),), (seats,)).numpy() == pytest.approx(summed, rel=1e-12)
    for share in SHARES.values():
        name = f"{share}_of_seats"
        shares = FUNCTIONS[name](home, (torch.from_numpy(logits),), (seats,)).numpy()
        told = [SEAT_FUNCTIONS[name](one, logits, to) for one, to in zip(each, wanted, strict=True)]
        assert shares == pytest.approx(np.concatenate(told), rel=1e-12)
