"""Instructions of steps: what can be seen without running them; that they are right, tests of the command see."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from tests.helpers.steps import MODEL, plan_of
from tests.step.test_small_steps import OFFLOAD
from zbench.correctness.steps.byte_law import stated_bytes
from zbench.runtime.steps.compiler import blocks, compile_step
from zbench.runtime.steps.instructions import Compute, Exchange, Forget, TemplateProgram, holders
from zbench.step.operations import COMPUTE
from zbench.step.passes.build import whole_step
from zbench.step.reading import read_step
from zbench.step.template import Step

CASES = [(1, 3, "3", "none"), (2, 2, "none", "full"), (2, 1, "1", "none"), (1, 4, "2", "selective")]


def step_of(degree: int, ranks: int, zero: str, recompute: str) -> Step:
    plans = [plan_of(lengths, ranks, 4 // degree, "carry", 1, 2 * at) for at, lengths in enumerate(([9, 4], [1, 2]))]
    return whole_step(MODEL, plans, degree, zero, 1, recompute)


def compiled(step: Step) -> list[tuple[TemplateProgram, ...]]:
    return [compile_step(step, process, holders(step)) for process in range(step.num_gpus)]


def exchanges(program: TemplateProgram) -> list[Exchange]:
    return [one for one in program.instructions if isinstance(one, Exchange)]


@pytest.mark.parametrize("case", CASES)
def test_what_is_sent_is_received_in_the_same_order(case: tuple[int, int, str, str]) -> None:
    """Messages between two processes have no names but their order, over NCCL."""
    programs = compiled(step_of(*case))
    messages = 0
    for one, other in permutations(range(len(programs)), 2):
        for mine, theirs in zip(programs[one], programs[other], strict=True):
            sent = [(e.queue, e.takes, p.cells) for e in exchanges(mine) for p in e.sends if p.peer == other]
            received = [(e.queue, e.takes, p.cells) for e in exchanges(theirs) for p in e.receives if p.peer == one]
            assert sent == received
            messages += len(sent)
    assert messages > 0


@pytest.mark.parametrize("case", CASES)
def test_every_compute_is_on_the_process_of_its_place(case: tuple[int, int, str, str]) -> None:
    step = step_of(*case)
    programs = compiled(step)
    for number, template in enumerate(step.templates):
        wanted = np.bincount(template.operations.src[template.operations.kind == COMPUTE], minlength=step.num_gpus)
        found = [sum(isinstance(x, Compute) for x in mine[number].instructions) for mine in programs]
        assert found == wanted.tolist()


def test_what_is_not_left_is_forgotten_once_after_its_last_use() -> None:
    step, names = step_of(2, 2, "3", "none"), set()
    for program in (program for mine in compiled(step) for program in mine):
        gone = set()
        for one in program.instructions:
            if isinstance(one, Forget):
                cells = {(one.place, one.tensor, one.layer, cell) for cell in one.cells}
                assert not gone & cells
                gone |= cells
            elif isinstance(one, Compute):
                assert not gone & {(one.place, of.tensor, of.layer, cell) for of in one.reads for cell in of.pairs()}
        if program.name == "forward.0":
            names |= {(step.layouts[0].tensors[tensor].name, layer) for _, tensor, layer, _ in gone}
    assert {("a", 0), ("b", 0), ("wq", 0)} <= names
    assert not {("x", 0), ("y", 0), ("wq", 1)} & names


def test_cells_are_told_in_few_pairs_of_lists() -> None:
    assert blocks([(0, 1), (0, 2), (3, 1), (3, 2), (4, 2)]) == [((0, 3), (1, 2)), ((4,), (2,))]
    assert blocks([]) == []


def test_host_memory_is_held_by_the_first_process_of_its_node() -> None:
    step = read_step(OFFLOAD)
    assert holders(step) == (0, 0)
    assert holders(replace(step, num_gpus=4, num_hosts=2)) == (0, 1, 2, 3, 0, 2)
    with pytest.raises(ValueError, match="2 host memories for 3 GPUs; to run it takes as many GPUs a node"):
        holders(replace(step, num_gpus=3, num_hosts=2))
    copies = [e.copies for program in compiled(step)[0] for e in exchanges(program)]
    assert [(one[0].src, one[0].dst) for one in copies] == [(0, 1), (1, 0)]
    assert stated_bytes(step) == [{"host": (2 * 3 * 32, 2 * 3 * 32)}]
