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
from zbench.runtime.transport.arrivals import Arrival, AwaitedBytes
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import QUEUES
from zbench.step.passes.build import whole_step
from zbench.step.passes.two_levels import in_two_levels
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
    """Messages that are posted, of which a queue's do not come but for its first `come`."""

    def __init__(self, queue: str, come: int = 0) -> None:
        ends: Any = [SimpleNamespace(peers=[False] * 4)] * len(QUEUES)
        super().__init__(ends, torch.device("cpu"), StepTimes(NoClock()))
        self.lost, self.come, self.passed = QUEUES.index(queue), come, list[int]()

    def receive(self, queue: int, size: int, peer: int, into: Tensor | None = None, relayed: bool = False) -> Arrival:
        self.come -= queue == self.lost
        never = queue == self.lost and self.come < 0
        return Arrival(torch.zeros(size, dtype=torch.uint8), [NeverComes()] if never else [])

    def send(self, queue: int, data: Tensor, peer: int) -> None:
        """Posts it."""

    def pass_on(self, queue: int, coming: AwaitedBytes, peer: int, part: slice = WHOLE) -> None:
        self.passed.append(peer)

    def turn(self) -> None:
        """Waits for nothing."""


def run_until_late(case: StepCase, model: Model, messages: Posted, lengths: list[int]) -> tuple[str, set[str]]:
    """Runs a step on process 1 until it waits for what does not come; returns where it was, and what it had by then."""
    said = bytearray(SLOT_BYTES)
    machine = StepMachine(model, torch.device("cpu"), Matmul(), messages, NoUpdate())
    words = {number: np.zeros(length, np.int64) for number, length in enumerate(lengths)}
    prepared = PreparedStep.of(case.step, 1, machine, case.tokens, [TokenWords(words, words)])
    runner = StepRunner(machine, Board(said, 0))
    runner.begin(prepared, InitialWeights(model, 0))
    with pytest.raises(Late):
        runner.run(prepared)
    return bytes(said[10:]).rstrip(b"\0").decode(), {key[0] for key in runner.stores[1].held}


def test_own_tokens_are_computed_while_others_are_on_their_way_and_passed_on() -> None:
    """Process 1 of a ring of four passes on two of the three slices that come to it before it needs one: when it has
    computed queries, keys and values of its own tokens. The embedding's three come."""
    case, messages = case_of(HOWS["commfuse"], [50, 1, 13]), Posted("tensor_parallel", 3)
    where, held = run_until_late(case, FOUR, messages, [50, 1, 13])
    assert where.endswith("layer 0, q"), where
    assert messages.passed == [2, 2]
    assert {"q", "kv", "n"} <= held


def test_a_layers_backward_does_not_wait_for_gradients_of_the_layer_after_it() -> None:
    """Sums of a node's gradients go on to the other node when contributions have come, which nothing waits for before
    parameters are updated: a thread sends them."""
    model = replace(FOUR, num_layers=2)
    plans = [plan_of([40, 7], 4, 4)]
    step = in_two_levels(whole_step(model, plans, 1, "none"), 2)
    prove_step(step)
    messages = Posted("gradients")
    where, _ = run_until_late(StepCase.of(step, model, plans, 1), model, messages, [40, 7])
    assert "optimizer" in where
    assert messages.passed
