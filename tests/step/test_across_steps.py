"""What a run begins and ends with where CPUs update across steps: a first step without gradients, a last update."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers import dense_step
from tests.helpers.oracles import small
from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import execute, fault, pipeline_plans, plan_of, rejected_mutants
from tests.step.test_leading_layers import CASES as DENSE_FIRST
from tests.step.test_leading_layers import DEEP
from tests.step.test_optimizer_of_stages import FIVE, SHAPES
from tests.step.test_optimizer_on_hosts import HOST
from tests.step.test_some_layers_on_hosts import CARRIED
from zbench.correctness.steps.interpreter import StepInterpreter
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import Cost
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.describe.exchanges import UNCUT, TokenSlices
from zbench.describe.model import Model
from zbench.describe.overlap import END, StepOverlap
from zbench.plans.plan import Plan
from zbench.simulator.steps.play import play_step
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.last_update import begun_gradients, last_update
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.memory.resting_step import resting_step
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.template import ACROSS, Step


def both(step: Step, each: int, counts: tuple[int, int, int]) -> tuple[Step, Step]:
    """A run's first step and one that follows. each: GPUs of a node; counts: layers, as of HostLayers."""
    first, settled = (
        with_optimizer_on_hosts(step, each, HostLayers(step.num_layers, *counts, begun)) for begun in (False, True)
    )
    return first, settled


def judge(
    first: Step,
    settled: Step,
    plans: Sequence[Plan],
    degree: int,
    model: Model,
    experts: ExpertParallel = TOGETHER,
    slices: TokenSlices = UNCUT,
) -> None:
    """A first step is right, and so is the last update; together they send what a step in the midst does, and what is
    left between steps has a text. experts, slices: as tests.helpers.steps.execute has them."""
    last = last_update(settled)
    for one in (first, last):
        assert (fault(one), unrolled_fault(one)) == ("", "")
        assert is_read_as_written(one)
    assert execute(first, list(plans), degree, model, experts, slices) < 1e-12
    assert updated(last, model) < 1e-12
    for one, begin, end in zip(*map(stated_bytes, (settled, first, last)), strict=True):
        pairs = {queue: [side.get(queue, (0, 0)) for side in (begin, end)] for queue in one}
        assert one == {queue: (a[0] + b[0], a[1] + b[1]) for queue, (a, b) in pairs.items()}
    assert not begun_gradients(first)
    rests = resting_step(settled)
    assert is_read_as_written(rests)


def updated(last: Step, model: Model) -> float:
    """The largest error of parameters and their state after updates alone, wherever they are."""
    given, layout = dense_step.weights(model), last.layouts[0]
    draw, carried = np.random.default_rng(5), begun_gradients(last)
    run = StepInterpreter(last, model, [], given)
    run.gradients = {name: draw.normal(size=value.shape) for name, value in given.items()}
    there, worst, seen = run.run(), 0.0, set()
    for name, layers, first, cell in run.resting(layout, last.ends):
        weight = name if name in given else name[1:]
        for layer in layers:
            outside = weight in dense_step.OUTSIDE
            at = ... if outside else layer
            place = first if outside else int(last.where(ACROSS, layer)[first])
            seen.add((weight, layer))
            used = run.gradients[weight][at] * ((weight, layer) in carried)
            wanted = given[weight][at] - 0.5 * used if name == weight else used
            want = run.shards(layout, name, wanted, cell[0])[cell[1]]
            worst = max(worst, float(np.abs(there[name, layer, -1][place, cell] - want).max()))
    assert carried <= seen
    return worst


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", CARRIED)
@pytest.mark.parametrize(
    ("zero", "degree", "batches", "tied", "bucket", "window", "level"),
    [
        ("1", 2, 1, False, "layer", 1, "none"),
        ("2", 1, 2, True, 2000, 1, "full"),
        ("3", 1, 1, False, END, 2, "none"),
        ("3", 2, 2, True, "layer", 0, "selective"),
    ],
)
def test_first_steps_and_last_updates_are_exact(
    kind: tuple[int, int, int],
    zero: str,
    degree: int,
    batches: int,
    tied: bool,
    bucket: int | str,
    window: int,
    level: str,
) -> None:
    if kind[1] and zero != "3":
        kind = (kind[0], 0, kind[2])  # parameters rest on hosts with ZeRO-3 alone
    model = replace(FIVE, tied_embeddings=tied)
    plans = [plan_of([9, 2], 4 // degree, 4 // degree, first=at * 2) for at in range(batches)]
    step = whole_step(model, plans, degree, zero, StepOverlap(window, bucket), level)
    judge(*both(step, 2, kind), plans, degree, model)


@pytest.mark.parametrize("kind", [(5, 0, 5), (5, 0, 2), (4, 0, 3)])
@pytest.mark.parametrize(("zero", "stages", "degree"), [("1", 2, 1), ("2", 4, 1), ("3", 2, 2)])
def test_in_stages(zero: str, stages: int, degree: int, kind: tuple[int, int, int]) -> None:
    plans = [plan_of([9, 2], 4 // stages, 4 // degree, first=at * 2) for at in range(3)]
    step = whole_step(FIVE, plans, degree, zero, stages=stages)
    first, settled = both(step, 2, kind)
    judge(first, settled, plans, degree, FIVE)


@pytest.mark.parametrize("shapes", SHAPES)
def test_in_pipelines_side_by_side(shapes: list[tuple[int, int]]) -> None:
    plans = pipeline_plans(shapes, [[(7, 0), (3, len(shapes) - 1)]], sum(tp * pp for tp, pp in shapes))
    judge(*both(whole_step(FIVE, plans, 1, "1"), 2, (5, 0, 3)), plans, 1, FIVE)


@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_dense_layers_before_others(number: int) -> None:
    dense, ranks, degree, stages, zero, recompute, overlap, how = DENSE_FIRST[number]
    model = replace(DEEP, dense_layers=dense)
    plans = [plan_of(lengths, ranks, 4 // degree, first=2 * at) for at, lengths in enumerate(([4, 3], [1]))]
    step = whole_step(model, plans, degree, zero if zero != "none" else "1", overlap, recompute, how, stages)
    judge(*both(step, 2, (4, 0, 3)), plans, degree, model, experts=how, slices=overlap.token_slices)


@pytest.mark.parametrize("kind", [(5, 0, 5), (5, 0, 2), (3, 0, 3)])
def test_gradients_in_fewer_bits_are_lossy_where_they_are_read(kind: tuple[int, int, int]) -> None:
    """Of those that are all for the next step, a first step reads none."""
    degrees = ShardDegrees(WORLD, 2, WORLD, WORLD, WORLD, 2, TransferBits(8, 8, 4, 8))
    step = whole_step(FIVE, [plan_of([9, 2], 4, 4)], 1, degrees)
    first, settled = both(step, 2, kind)
    for one in (first, settled, last_update(settled)):
        assert (fault(one), unrolled_fault(one)) == ("", "")
    hops = [one.layouts[0].tensors[one.layouts[0].number["dwq"]].hops for one in (first, settled, last_update(settled))]
    assert hops == [0 if kind[2] == 5 else 2, 2, 2]


def test_mutants_of_both_are_found() -> None:
    first, settled = both(whole_step(FIVE, [plan_of([3, 2], 2, 4)], 1, "3"), 2, (5, 2, 3))
    assert rejected_mutants(first, 3) > 7
    assert rejected_mutants(last_update(settled), 3) > 4


def test_a_step_without_gradients_leaves_nothing_to_update() -> None:
    first, _ = both(whole_step(FIVE, [plan_of([3, 2], 2, 4)], 1, "3"), 2, (5, 0, 3))
    with pytest.raises(ValueError, match=r"^the step begins without gradients, so that nothing is left to update$"):
        last_update(first)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_first_step_waits_for_no_update_and_the_last_one_is_played_by_itself(stages: int) -> None:
    """Where CPUs are what is slow, a settled step waits for them by what the last update takes of all layers; a node's
    CPUs, or a GPU's part of them, take updates one after another."""
    plans = [plan_of([400], 4 // stages, 4, first=at) for at in range(stages)]
    first, settled = both(whole_step(FIVE, plans, 1, "1", stages=stages), 2, (5, 0, 5))
    cost = Cost(replace(small(2, 2).cluster, **{**HOST, "host_adam_bandwidth": 1e7}), FIVE)
    seconds = [play_step(one, plans, cost).seconds for one in (first, settled)]
    last = play_step(last_update(settled), (), cost).seconds
    assert seconds[0] < seconds[1] <= seconds[0] + last * (1 + 1e-9)
    assert last > 0.5 * (seconds[1] - seconds[0])
