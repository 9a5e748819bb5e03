"""Exchanges of tensor-parallel groups beside matmuls, on four processes: exact, with the bytes that the step says."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.steps import plan_of
from tests.step.test_exchanges import HOWS
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import MODEL
from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import judged_step
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.runtime.clocks.step_times import StepTimes
from zbench.runtime.clocks.times import NoClock
from zbench.runtime.handlers.context import TokenWords
from zbench.runtime.handlers.machine import StepMachine
from zbench.runtime.handlers.messages import WHOLE, GlooMessages
from zbench.runtime.handlers.optimizer import NoUpdate
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.kernels.kernels import Matmul
from zbench.runtime.processes.board import SLOT_BYTES, Board
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.stepping.weights import InitialWeights
from zbench.runtime.transport.arrivals import Arrival, Coming
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import QUEUES
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step

FOUR = replace(MODEL, num_kv_heads=4, vocab=20)
GROUP = StepCombination(
    4, 1, 1, 1, 0, 1, "even", 1, 1, "commfuse", "own", "1", 0, "none", 1, "carry", "uneven"
)  # in words


def case_of(how: ExchangeOverlap, lengths: list[int], recompute: str = "none", model: Model = FOUR) -> StepCase:
    plans = [plan_of(lengths, 1, 1)]
    step = whole_step(model, plans, 4, "1", StepOverlap(exchanges=how), recompute)
    prove_step(step)
    return StepCase.of(step, model, plans, 4, slices=how.token_slices)


FEW = ([1], [2], [5], [23])
COVER = [(how, FEW[(number + turn) % 4]) for number, how in enumerate(HOWS) for turn in (0, 1)]  # each with two of them


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("how", "lengths"), COVER, ids=str)
def test_exact_with_the_bytes_of_the_step(ranks: LocalFleet, how: str, lengths: list[int]) -> None:
    """Fewer tokens than processes, too. The only query of a step has no gradient but rounding errors, which Adam
    divides by their size, so that parameters are no number to compare then."""
    case = case_of(HOWS[how], lengths)
    found, stated = ranks.call("run", case), stated_bytes(case.step)
    if lengths == [1]:
        found = [replace(one, parameters=0.0) for one in found]
    assert judged_step(GROUP, found, stated).fault == ""


LEVELS = ("chunked", "full", "selective", "none")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("how", "lengths"), COVER, ids=str)
def test_feed_forwards_by_chunks_are_exact(ranks: LocalFleet, how: str, lengths: list[int]) -> None:
    """A chunk's own exchanges beside its matmuls, of lengths that chunks do not divide; the same bits twice, of each
    way once."""
    number = list(HOWS).index(how) + FEW.index(lengths)
    model = replace(FOUR, mlp_chunk_tokens=(3, 5)[number % 2], loss_chunk_tokens=4)
    case = case_of(HOWS[how], [*lengths, 20, 6], LEVELS[number % 4], model)
    found = ranks.call("run", case)
    assert judged_step(GROUP, found, stated_bytes(case.step)).fault == ""
    assert number % 2 or ranks.call("run", case) == found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", HOWS)
def test_packed_sequences_are_exact_and_two_runs_have_the_same_bits(ranks: LocalFleet, how: str) -> None:
    """Sums are added in the step's order, not in that of arrival."""
    case = case_of(HOWS[how], [50, 1, 13], "selective")
    found = ranks.call("run", case)
    assert judged_step(GROUP, found, stated_bytes(case.step)).fault == ""
    assert ranks.call("run", case) == found


class Late(Exception):
    """A message was waited for that has not come."""


class NeverComes:
    """A message that does not come."""

    def wait(self) -> None:
        raise Late


class Posted(GlooMessages):
    """Messages that are posted, of which the group's do not come but for the embedding's three."""

    def __init__(self) -> None:
        ends: Any = [SimpleNamespace(peers=[False] * 4)] * len(QUEUES)
        super().__init__(ends, torch.device("cpu"), StepTimes(NoClock()))
        self.of_group, self.passed = 0, list[int]()

    def receive(self, queue: int, size: int, peer: int, into: Tensor | None = None, relayed: bool = False) -> Arrival:
        self.of_group += queue == QUEUES.index("tensor_parallel")
        return Arrival(torch.zeros(size, dtype=torch.uint8), [NeverComes()] if self.of_group > 3 else [])

    def send(self, queue: int, data: Tensor, peer: int) -> None:
        """Posts it."""

    def pass_on(self, queue: int, coming: Coming, peer: int, part: slice = WHOLE) -> None:
        self.passed.append(peer)

    def turn(self) -> None:
        """Waits for nothing."""


def test_own_tokens_are_computed_while_others_are_on_their_way_and_passed_on() -> None:
    """Process 1 of a ring of four passes on two of the three slices that come to it before it needs one: when it has
    computed queries, keys and values of its own tokens."""
    said = bytearray(SLOT_BYTES)
    case, messages = case_of(HOWS["commfuse"], [50, 1, 13]), Posted()
    machine = StepMachine(FOUR, torch.device("cpu"), Matmul(), messages, NoUpdate())
    tokens = [TokenWords({n: np.zeros(50, np.int64) for n in range(3)}, {n: np.zeros(50, np.int64) for n in range(3)})]
    prepared = PreparedStep.of(case.step, 1, machine, case.tokens, tokens)
    runner = StepRunner(machine, Board(said, 0))
    runner.begin(prepared, InitialWeights(FOUR, 0))
    with pytest.raises(Late):
        runner.run(prepared)
    words = bytes(said[10:]).rstrip(b"\0").decode()
    assert words.endswith("layer 0, q"), words
    assert messages.passed == [2, 2]
    assert {"q", "kv", "n"} <= {key[0] for key in runner.stores[1].held}
