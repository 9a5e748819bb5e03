"""Pipelines side by side, of different (tp, pp), come to the loss and gradients of one process, and broken steps of
them are found."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, MODEL, execute, fault, pipeline_plans
from zbench.correctness.steps.mutate import KINDS, step_mutant
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.parameters.pipeline_parameters import PipelineShapes
from zbench.step.reading.read import read_step
from zbench.step.template import ACROSS, StageStart, Step
from zbench.step.text import step_text

FOUR = replace(MODEL, num_layers=4, num_kv_heads=4)
EIGHT = replace(MODEL, num_layers=4, num_heads=8, num_kv_heads=8, ffn_hidden=16, vocab=16)
TIED = replace(FOUR, num_layers=2, tied_embeddings=True)
STAGED = replace(FOUR, tied_embeddings=True)
# Model, (tp, pp) of every pipeline, ZeRO, recomputation, (length, pipeline) of the sequences of every micro-batch.
CASES: tuple[tuple[Model, list[tuple[int, int]], str, str, list[list[tuple[int, int]]]], ...] = (
    (FOUR, [(2, 2), (1, 1), (1, 4)], "1", "full", [[(5, 0), (3, 1)], [(4, 0), (2, 2), (7, 2)], [(6, 0), (1, 2)]]),
    (FOUR, [(2, 2), (1, 1), (1, 4)], "none", "none", [[(5, 0), (3, 1)], [(4, 0), (2, 2)], [(1, 1)]]),
    (EIGHT, [(4, 1), (2, 2), (1, 3), (1, 1)], "3", "selective", [[(9, 0), (4, 1), (3, 2)], [(2, 0), (5, 3), (2, 1)]]),
    (FOUR, [(2, 1), (2, 1)], "1", "none", [[(3, 0)], [(2, 0), (4, 1)]]),
    (TIED, [(2, 1), (1, 1)], "3", "none", [[(3, 0), (5, 1)], [(4, 1)]]),
    (FOUR, [(1, 4), (4, 1), (2, 1)], "1", "none", [[(3, 1)], [(4, 1)]]),  # two of them have no tokens
    (FOUR, [(2, 3)], "1", "elementwise", [[(3, 0)], [(4, 0)]]),
    (EIGHT, [(8, 2), (4, 2), (2, 3), (1, 2)], "1", "none", [[(9, 0), (5, 1), (3, 2)], [(4, 3), (2, 0), (6, 2)]]),
    (STAGED, [(1, 1), (2, 2), (1, 4)], "1", "full", [[(3, 0), (5, 1)], [(4, 2), (2, 1)]]),
    (STAGED, [(2, 2), (1, 1), (1, 4)], "none", "none", [[(5, 0), (3, 1)], [(4, 0), (2, 2)]]),
    (STAGED, [(1, 1), (2, 2)], "none", "none", [[(3, 0)]]),  # nobody uses the table of a last stage
    (STAGED, [(2, 1), (1, 2)], "3", "selective", [[(3, 0)], [(4, 0)]]),
)  # fmt: skip


@cache
def case(number: int) -> tuple[Step, list[Plan]]:
    model, shapes, zero, recompute, batches = CASES[number]
    plans = pipeline_plans(shapes, batches, sum(tp * pp for tp, pp in shapes), model.num_heads)
    return whole_step(model, plans, zero=zero, recompute=recompute), plans


def error(number: int, step: Step) -> float:
    return execute(step, case(number)[1], 1, CASES[number][0])


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact(number: int) -> None:
    step, _ = case(number)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error(number, step) < 1e-12


def elsewhere(step: Step, at: int, rng: np.random.Generator) -> list[Step]:
    """The step with an instance left out, exchanged with the one before, and in places of others."""
    before, one, after = step.order[: at - 1], step.order[at], step.order[at + 1 :]
    starts = sorted({ACROSS, *(one.place for one in step.stages)} - {one.place})
    moved = replace(one, place=int(rng.choice(starts)))
    orders = (*before, one, step.order[at - 1], *after), (*step.order[:at], *after), (*step.order[:at], moved, *after)
    return [replace(step, order=order) for order in orders]


@pytest.mark.parametrize("number", [0, 1, 2, 4, 8, 9])
def test_mutants(number: int) -> None:
    """Steps with a broken operation or a broken instance are refused."""
    step, _ = case(number)
    rng = np.random.default_rng(number)
    broken = [step_mutant(step, KINDS[at % len(KINDS)], rng) for at in range(36)]
    for at in rng.choice(np.arange(1, len(step.order)), 6, replace=False).tolist():
        broken += elsewhere(step, at, rng)
    rejected = 0
    for wrong in filter(None, broken):
        told = fault(wrong)
        # What is of a micro-batch is refused across pipelines, and what reaches out of one, also where it is right.
        refused = "is of all pipelines, and" in told or "reaches into the next" in told
        assert refused or bool(told) == bool(unrolled_fault(wrong)), told
        rejected += bool(told)
        assert told or error(number, wrong) < 1e-12
    assert rejected > 20


def without(name: str, step: Step) -> Step:
    """Returns a step without instances of the first template that is called so."""
    gone = next(at for at, one in enumerate(step.templates) if one.name == name)
    return replace(step, order=tuple(one for one in step.order if one.template != gone))


def test_a_gradient_that_one_pipeline_keeps_for_itself_is_found() -> None:
    """Each pipeline updates by its own gradient alone: no reduction across them."""
    kept = without("reduce", case(0)[0])
    assert "has to be there with 9 contributions and is there with 3 contributions" in fault(kept)
    assert unrolled_fault(kept)


def test_a_tied_table_whose_gradient_is_of_its_own_stage_alone_is_found() -> None:
    """The two tables of a pipeline, and those of others, come apart: no sum over first and last stages."""
    kept = without("sum_tables", case(8)[0])
    assert "formula dwe is computed 0 times for the step, not once" in fault(kept)
    assert unrolled_fault(kept)


def test_a_pipeline_of_one_stage_has_one_table() -> None:
    """GPU 0 is such a pipeline, 1 to 4 are two stages of two GPUs, 5 to 8 four of one: shards of either table are on
    the first or the last stages of these alone."""
    (step, _), held = case(8), dict[str, set[int]]()
    layout = step.layouts[0]
    for row, _, _ in step.resting(step.begins):
        held.setdefault(layout.tensors[row[0]].name, set()).update(layout.lists[row[2]].tolist())
    assert (held["we"], held["swe"]) == ({1, 2, 5}, {1, 2, 5})
    assert (held["wh"], held["swh"]) == ({3, 4, 8}, {3, 4, 8})


def test_tables_on_hosts_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="side by side, pipelines then have one stage each"):
        with_optimizer_on_hosts(case(8)[0], 3)


def test_every_gpu_has_as_much_optimizer_state() -> None:
    """72 elements of wq in each of 4 slices: a twelfth of them on each GPU of pipelines of 4, 4, 3 and 1 GPUs."""
    shapes = PipelineShapes((0, 4, 8, 11), (4, 2, 1, 1), (1, 2, 3, 1))
    sizes, owners = shapes.cut(replace(EIGHT, hidden=9), ["wq", "g1"])["wq"]
    assert shapes.slices == 4
    assert (sizes.tolist(), owners.tolist()) == ([24, 24, 18, 6], [0, 1, 2, 3])


def test_a_step_with_pipelines_reads_back() -> None:
    text = step_text(case(0)[0])
    assert "pipeline 0:0 2:2\npipeline 0:4\npipeline 0:5 1:6 2:7 3:8\n" in text
    assert "play gather for layer 0, across" in text
    assert step_text(read_step(text)) == text


def test_stages_of_pipelines_are_in_places_of_their_own() -> None:
    step, _ = case(0)
    stages = list(step.stages)
    for at, start, told in (
        (1, StageStart(2, 4), "pipeline 0 has places 0 to 3, and a stage that begins elsewhere"),
        (1, StageStart(2, 3), "reaches from one into the next"),
        (1, StageStart(1, 2), "instance"),
        (2, StageStart(0, 5), "the pipelines of a step begin with place 0 and ascend"),
    ):
        assert told in fault(replace(step, stages=(*stages[:at], start, *stages[at + 1 :])))


@pytest.mark.parametrize(
    ("model", "shapes", "told"),
    [
        (EXPERTS, [(1, 1), (2, 1)], r"model.num_experts is 4; plans have pipelines"),
        (
            FOUR,
            [(2, 1), (3, 1)],
            r"degrees \[2, 3\], for which parameters are cut in 6; that has to divide model.num_h",
        ),
        (replace(FOUR, num_kv_heads=2), [(4, 1)], r"cut in 4; that has to divide model.num_kv_heads, 2"),
        (FOUR, [(1, 5)], r"the number of pipeline stages is 5; it takes 1 to model.num_layers, 4"),
    ],
)
def test_what_models_cannot_be_cut_for(model: Model, shapes: list[tuple[int, int]], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        whole_step(model, pipeline_plans(shapes, [[(5, 0)]], 6))
