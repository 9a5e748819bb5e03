"""Steps that no pass builds yet, plans of systems, and steps that are wrong, on two processes."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.helpers.steps import plan_of
from tests.helpers.variants import FOLDER, Variant
from tests.runtime.test_conformance import DEVICE
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import EXPERTS, MODEL
from zbench.correctness.steps.combination import StepCombination
from zbench.correctness.steps.command import StepVerdict, judged_step
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.runtime.clocks.step_times import StepTimes
from zbench.runtime.clocks.times import NoClock
from zbench.runtime.handlers.context import TokenWords
from zbench.runtime.handlers.machine import StepMachine
from zbench.runtime.handlers.messages import GlooMessages
from zbench.runtime.handlers.optimizer import AdamWUpdate
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.job.job import AdamW
from zbench.runtime.kernels.kernels import Matmul
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import REDUCE
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

RING = StepCombination(1, 2, 1, 1, 0, 1, "even", 1, 1, "whole", "own", "1", 0, "none", 1, "carry", "uneven")
COST = Cost(Cluster("test", 1, 2, 2, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE), MODEL)


def executed(fleet: LocalFleet, case: StepCase) -> StepVerdict:
    return judged_step(RING, fleet.call("run", case), stated_bytes(case.step))


def test_activations_wait_in_host_memory(fleet: LocalFleet) -> None:
    """Gate and up of a layer leave the GPUs for the host memory of their node, and come back in the backward."""
    case = RING.case(0)
    text = step_text(case.step).replace("on 2 GPUs and 0 host memories", "on 2 GPUs and 1 host memories")
    text = re.sub(r"( to| at|reduce \S+ of) \*", r"\1 0-1", text)  # all places were the GPUs
    begin, middle, end = text.index("template forward"), text.index("template backward"), text.index("play embedding")
    forward, backward = text[begin:middle], text[middle:end]
    kept = re.findall(r"  leaves (z\[.*?\]) at (\d)\n", forward)
    assert len(kept) == 2
    for cells, gpu in kept:
        forward = forward.replace(f"leaves {cells} at {gpu}\n", f"leaves {cells} at 2\n")
        backward = backward.replace(f"needs {cells} at {gpu}\n", f"needs {cells} at 2\n")
        forward = re.sub(rf"(  compute: compute u\[.*?\] at {gpu}\n)", rf"\1  host: send {cells} {gpu} -> 2\n", forward)
        backward = re.sub(
            rf"(  compute: compute dz\[.*?\] at {gpu}\n)", rf"  host: send {cells} 2 -> {gpu}\n\1", backward
        )
    step = read_step(text[:begin] + forward + backward + text[end:])
    prove_step(step)
    found = executed(fleet, replace(case, step=step))
    assert found.fault == ""
    z = MODEL.num_layers * sum((23, 1, 7, 2, 5, 3)) * 2 * MODEL.ffn_hidden * MODEL.element_bytes
    assert found.bytes["host"] == 2 * z  # there and back


@pytest.mark.parametrize("name", ["zeppelin", "allgather"])
def test_plans_of_systems(fleet: LocalFleet, name: str) -> None:
    system = Variant(FOLDER / f"{name}.yaml").make(COST)
    plans = list(system.plan(Batch(np.array([40, 3, 1, 17, 8]), seed=0, step=0)))
    case = StepCase.of(whole_step(MODEL, plans, 1, "3", 1, "selective"), MODEL, plans, 1)
    prove_step(case.step)
    assert executed(fleet, case).fault == ""


def routed_case(lengths: list[list[int]], degree: int, seed: int, skew: float, zero: str = "3") -> StepCase:
    """Experts over two ranks. Of each micro-batch the lengths."""
    firsts = np.cumsum([0, *map(len, lengths)]).tolist()
    plans = [plan_of(one, 2, 4, first=first) for one, first in zip(lengths, firsts, strict=False)]
    how = ExpertParallel(degree, seed, skew)
    step = whole_step(EXPERTS, plans, 1, zero, 1, "selective", how)
    prove_step(step)
    return StepCase.of(step, EXPERTS, plans, 1, seed, how)


def to_slices(case: StepCase) -> np.ndarray:
    """The tokens that go to each slice of the experts, of the first micro-batch."""
    layout = case.step.layouts[0]
    amounts = layout.tensors[layout.number["i"]].amounts
    assert amounts is not None
    return amounts.reshape(-1, len(layout.index["k"])).sum(axis=0)


@pytest.mark.parametrize("zero", ["none", "2", "3"])
def test_all_tokens_go_to_one_slice(fleet: LocalFleet, zero: str) -> None:
    """One of two ranks has no row in any expert, and both of its experts have gradients of zeros."""
    case = next(
        case for seed in range(50) if 0 in to_slices(case := routed_case([[5, 3]], 2, seed, 50.0, zero)).tolist()
    )
    assert sorted(to_slices(case).tolist()) == [0, 8]
    assert executed(fleet, case).fault == ""


@pytest.mark.parametrize("degree", [1, 2])
def test_one_token_in_all(fleet: LocalFleet, degree: int) -> None:
    """In a micro-batch, and in a step: one rank has no token, and two of four experts have none.

    The query of a step's only token has a gradient of rounding errors, which Adam divides by their size: that update is
    no number to compare.
    """
    assert executed(fleet, routed_case([[1], [3]], degree, 0, 0.0)).fault == ""
    case = routed_case([[1]], degree, 0, 0.0)
    found, stated = fleet.call("run", case), stated_bytes(case.step)
    assert judged_step(RING, [replace(one, parameters=0.0) for one in found], stated).fault == ""


def test_sums_over_experts_have_the_same_bits_in_every_run(fleet: LocalFleet) -> None:
    """Every rank's loss and its differences to the dense process, in three runs; of another draw they are others."""
    case = routed_case([[9, 4], [6]], 2, 1, 1.0)
    first, *others = (fleet.call("run", case) for _ in range(3))
    assert others == [first, first]
    assert first != fleet.call("run", routed_case([[9, 4], [6]], 2, 2, 1.0))


def test_a_gradient_that_is_not_reduced_is_seen(fleet: LocalFleet) -> None:
    """The proof rejects the step, and executed it comes to wrong gradients."""
    case = RING.case(0)
    number = [template.name for template in case.step.templates].index("backward")
    template = case.step.templates[number]
    reductions = np.flatnonzero(template.operations.kind == REDUCE)
    kept = np.delete(np.arange(len(template.operations)), reductions[1])
    broken = replace(template, operations=template.operations.take(kept))
    step = replace(case.step, templates=(*case.step.templates[:number], broken, *case.step.templates[number + 1 :]))
    with pytest.raises(StepError):
        prove_step(step)
    assert "the gradients differ by" in executed(fleet, replace(case, step=step)).fault


def prepared(step: Step, tokens: tuple[TokenParts, ...], model: Model = MODEL) -> PreparedStep:
    cpu = torch.device("cpu")
    messages = GlooMessages([], cpu, StepTimes(NoClock()))
    machine = StepMachine(model, cpu, Matmul(), messages, AdamWUpdate(AdamW(), 1, 1))
    return PreparedStep.of(step, 0, machine, tokens, [TokenWords({}, {})])


def test_what_does_not_run_is_told() -> None:
    case, other = RING.case(0), replace(RING, lengths="short").case(0)
    assert prepared(case.step, case.tokens).programs
    with pytest.raises(ValueError, match=r"of micro-batch 0 are in parts of \[1, 2\]; the step has parts of \["):
        prepared(case.step, other.tokens)
    text = step_text(case.step)
    with pytest.raises(ValueError, match="has function normalise; those that run are norm, "):
        prepared(read_step(text.replace("= norm(", "= normalise(")), case.tokens)
    encoded = re.sub(
        "(attention: send .*)",
        r"\1, encoding int8",
        text.replace("\nlayout\n", "\nencoding int8: 8 bits, lossy\nlayout\n"),
    )
    with pytest.raises(
        ValueError, match="encoding int8 has 8 bits and no blocks; those that run have 4 or 8, in blocks"
    ):
        prepared(read_step(encoded), case.tokens)
    routed, again = routed_case([[5, 3]], 2, 0, 1.0), routed_case([[5, 3]], 2, 1, 1.0)
    with pytest.raises(ValueError, match="the tokens of micro-batch 0 have no experts; tensor p takes some"):
        prepared(routed.step, (replace(routed.tokens[0], chosen=None),), EXPERTS)
    with pytest.raises(ValueError, match=r"of micro-batch 0 go to k as \[.*\]; tensor p of the step has \["):
        prepared(routed.step, again.tokens, EXPERTS)
