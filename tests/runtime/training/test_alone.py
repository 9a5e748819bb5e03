"""Programs that are one kernel call run without the interpreter's memory, and give what it gives."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import zbench
from zbench.describe.mask import CAUSAL, FULL, Mask
from zbench.describe.model import Model
from zbench.planned.step import StepPlans
from zbench.runtime.kernels.cpu import FlashCPU
from zbench.runtime.kernels.kernels import Kernel, Matmul
from zbench.runtime.kernels.memory import Shape
from zbench.runtime.processes.board import SLOT_BYTES, Board
from zbench.runtime.program.holders import home_pieces
from zbench.runtime.training.alone import calls_alone
from zbench.runtime.training.attention import Attention, programs_of
from zbench.runtime.training.interpreter import Engine
from zbench.runtime.transport.gloo import Sender
from zbench.runtime.transport.transport import Endpoint

LENGTHS = [40, 9, 1, 70]
SENDER = Sender()  # which has nothing to send


@dataclass
class OtherClock:
    """A pacer that does nothing, and which only the interpreter keeps to."""

    overrun = modelled = 0.0

    def begin(self, hurries: bool = False) -> None: ...

    def came(self) -> None: ...

    def work(self) -> None: ...

    def spend(self, seconds: float) -> None: ...


def planned(mask: Mask = CAUSAL, system: str = "dp_balanced", lengths: list[int] = LENGTHS) -> StepPlans:
    """On rank 0 of dp_balanced, sequences of its own alone."""
    model = Model("own", 2, 32, 4, 2, 8, 48, 128, element_bytes=8, lse_bytes=8, mask=mask)
    return zbench.plan(lengths, cluster="local_2x2", model=model, system=system)


def engine(step: StepPlans, kernel: Kernel, **named: Any) -> Engine:
    device = torch.device("cpu")
    post = Endpoint(SimpleNamespace(), [False] * 4)  # type: ignore[arg-type]  # nothing is sent
    return Engine(Shape(step.model, device), kernel, post, SENDER, Board(bytearray(SLOT_BYTES), 0), **named)


def gradients(engine: Engine, programs: Any, inputs: list[Tensor], do: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = Attention.apply(*leaves, engine, programs, "here")
    out.backward(do)
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


@pytest.mark.parametrize("kernel", [FlashCPU(), Matmul()])
@pytest.mark.parametrize("mask", [CAUSAL, FULL, Mask(window=9)])
@pytest.mark.parametrize("is_strided", [False, True])
def test_it_gives_what_the_interpreter_gives(kernel: Kernel, mask: Mask, is_strided: bool) -> None:
    step = planned(mask)
    alone, interpreted = engine(step, kernel), engine(step, kernel, pace=OtherClock())
    programs = programs_of(alone, step.plans[0], 0, step.cost)
    tokens = programs[0].attends[0].q.rows.stop
    assert calls_alone(alone, programs, tokens) is not None
    assert calls_alone(interpreted, programs, tokens) is None
    random = torch.Generator().manual_seed(1)
    made = [torch.randn(tokens, heads, 8, dtype=torch.float64, generator=random) for heads in (4, 2, 2, 4)]
    inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in made[:3]] if is_strided else made[:3]
    pairs = zip(*(gradients(one, programs, inputs, made[3]) for one in (alone, interpreted)), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_calls_are_counted_and_timed() -> None:
    """Runs have the same numbers on every rank, whatever its programs are: messages are told apart by them."""
    step = planned()
    one = engine(step, FlashCPU())
    one.post.events.begin(is_on=True)
    programs = programs_of(one, step.plans[0], 0, step.cost)
    tokens = programs[0].attends[0].q.rows.stop
    gradients(one, programs, [torch.ones(tokens, heads, 8).double() for heads in (4, 2, 2)], torch.ones(tokens, 4, 8))
    assert [(span.name, span.run) for span in one.post.events.spans] == [("attend forward", 0), ("attend backward", 1)]
    assert one.post.events.run() == 2
    assert 0 < one.times.kernel == one.times.total


@pytest.mark.parametrize(("system", "rank"), [("ring", 0), ("ring", 3), ("ulysses", 1), ("dp_balanced", 3)])
def test_what_does_more_or_nothing_is_interpreted(system: str, rank: int) -> None:
    """What comes from other ranks or goes to them; a rank without a token."""
    step = planned(system=system, lengths=[9, 4])
    one = engine(step, FlashCPU())
    programs = programs_of(one, step.plans[0], rank, step.cost)
    pieces = home_pieces(step.plans[0], rank)
    assert calls_alone(one, programs, int((pieces[2] - pieces[1]).sum())) is None
