"""Instructions of steps: what can be seen without running them; that they are right, tests of the command see."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from tests.helpers.steps import MODEL, pipeline_plans, plan_of
from tests.step.test_small_steps import OFFLOAD
from zbench.describe.arrays import Floats
from zbench.runtime.steps.compiler import blocks, start_of
from zbench.runtime.steps.instructions import Compute, Exchange, Forget, Programs, TemplateProgram, holders
from zbench.runtime.steps.recurring import KeptPrograms
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE
from zbench.step.passes.build import whole_step
from zbench.step.reading.read import read_step
from zbench.step.template import ACROSS, Step

# Tensor parallelism, ranks, ZeRO's stage, recomputation, stages of a pipeline.
CASES = [(1, 3, "3", "none", 1), (2, 2, "none", "full", 2), (2, 1, "1", "none", 3), (1, 2, "2", "selective", 2)]
THREE = replace(MODEL, num_layers=3)
FOUR = replace(MODEL, num_layers=4)
PIPELINES = whole_step(FOUR, pipeline_plans([(2, 2), (1, 1)], [[(5, 0), (3, 1)], [(4, 0)]], 5), zero="1")


def step_of(degree: int, ranks: int, zero: str, recompute: str, stages: int, longer: int = 0) -> Step:
    batches = ([9 + longer, 4], [1, 2], [3, 1])
    plans = [plan_of(lengths, ranks, 4 // degree, "carry", 1, 2 * at) for at, lengths in enumerate(batches)]
    return whole_step(THREE, plans, degree, zero, 1, recompute, stages=stages)


def programs_of(step: Step, process: int, seconds: Sequence[Floats | None] = (), apart: bool = False) -> Programs:
    """Returns the instructions of a step for a process, all made anew."""
    return KeptPrograms().of(step, process, holders(step), seconds, apart=apart)


def compiled(step: Step) -> list[Programs]:
    return [programs_of(step, process) for process in range(step.num_gpus)]


def played(step: Step, programs: Programs) -> list[tuple[int, Exchange]]:
    """The exchanges of a process in the order of the step, without those of layers that are not there."""
    found = []
    for instance in step.order:
        for layer in instance.layers:
            program = programs[instance.template, start_of(step, instance, layer)]
            tensors = step.layouts[program.layout].tensors
            for one in exchanges(program):
                cells = (*one.sends, *one.receives, *one.copies)[0].cells
                if step.layer_exists(tensors[cells.tensor], layer, layer + cells.layer, instance.place):
                    found.append((layer, one))
    return found


def exchanges(program: TemplateProgram) -> list[Exchange]:
    return [one for one in program.instructions if isinstance(one, Exchange)]


@pytest.mark.parametrize("case", CASES)
def test_what_is_sent_is_received_in_the_same_order(case: tuple[int, int, str, str, int]) -> None:
    """Messages between two processes have no names but their order: of the whole step, whatever stages they are in."""
    assert_sent_is_received(step_of(*case))


def test_what_is_sent_across_pipelines_is_received_in_the_same_order() -> None:
    assert_sent_is_received(PIPELINES)


def assert_sent_is_received(step: Step) -> None:
    order = [played(step, programs) for programs in compiled(step)]
    messages = 0
    for one, other in permutations(range(len(order)), 2):
        sent = [(at, e.purpose, e.takes, p) for at, e in order[one] for p in e.sends if p.peer == other]
        received = [(at, e.purpose, e.takes, p) for at, e in order[other] for p in e.receives if p.peer == one]
        assert [(*rest, p.cells, p.src, p.dst) for *rest, p in sent] == [
            (*rest, p.cells, p.src, p.dst) for *rest, p in received
        ]
        messages += len(sent)
    assert messages > 0


@pytest.mark.parametrize("case", CASES)
def test_every_compute_is_on_the_process_of_its_place(case: tuple[int, int, str, str, int]) -> None:
    """A template that is played from a place is all of it on the processes from there on, and nothing on others."""
    step = step_of(*case)
    programs = compiled(step)
    assert len({start for _, start in programs[0]}) == case[-1]
    for number, start in programs[0]:
        ops = step.templates[number].operations
        wanted = np.bincount(start[0] + ops.src[ops.kind == COMPUTE], minlength=step.num_gpus)
        computes = [[x for x in mine[number, start].instructions if isinstance(x, Compute)] for mine in programs]
        assert [len(mine) for mine in computes] == wanted.tolist()
        assert all(x.place == process for process, mine in enumerate(computes) for x in mine)


def test_what_is_of_all_pipelines_is_on_the_stages_that_have_the_layer() -> None:
    """A template's updates, once for every pair of stages that have some layers: of four layers the first pipeline has
    two on each of its stages, the second all four on its only one."""
    programs = compiled(PIPELINES)
    names = [one.name for one in PIPELINES.templates]
    starts = [start for number, start in programs[0] if names[number] == "optimizer"]
    assert starts == [(ACROSS, 0, 0), (ACROSS, 2, 0)]
    for start, gpus in zip(starts, ([0, 1, 4], [2, 3, 4]), strict=True):
        there = [mine[names.index("optimizer"), start].instructions for mine in programs]
        assert [gpu for gpu, some in enumerate(there) if any(isinstance(one, Compute) for one in some)] == gpus
        places = {one.place for some in there for one in some if isinstance(one, Compute)}
        assert places == set(gpus)


def test_what_is_not_left_is_forgotten_once_after_its_last_use() -> None:
    step, names = step_of(2, 2, "3", "none", 1), set()
    for program in (program for mine in compiled(step) for program in mine.values()):
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
    copies = [e.copies for program in compiled(step)[0].values() for e in exchanges(program)]
    assert [(one[0].src, one[0].dst) for one in copies] == [(0, 1), (1, 0)]
    assert stated_bytes(step) == [{"host": (2 * 3 * 32, 2 * 3 * 32)}]
