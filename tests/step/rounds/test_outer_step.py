"""What a round ends with is proven for every shape of workers, and broken ones are refused; so are wrong ages."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import EXPERTS, MODEL
from zbench.describe.overlap import StepOverlap
from zbench.describe.sync import CO2, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.step.operations import COMPUTE, GATHER, REDUCE, Operations
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.passes.rounds.order import prove_ages, round_ends, rounds_text, under_way
from zbench.step.passes.rounds.outer_parameters import OuterParameters
from zbench.step.passes.rounds.outer_step import (
    ARRIVED,
    FIRST,
    LATER,
    NOW,
    PHASES,
    SENT,
    outer_step,
)
from zbench.step.passes.rounds.worker_steps import WorkerSteps
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.read import read_step
from zbench.step.template import Step

LATE, IN_TIME = RoundSync(CO2, 2, penalty="constant"), RoundSync(SLOWMO, 2)
STREAMING = RoundSync(STREAMING_DILOCO, 4, fragments=2, delay=3)


def made(kind: str, gpus: int = 4, worker: int = 2, stage: str = "none", outside: bool = True) -> Step:
    return outer_step(MODEL, OuterParameters.of(MODEL, (gpus, worker), stage), kind, outside)


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize(("gpus", "worker"), [(2, 1), (4, 1), (4, 2), (6, 3), (8, 2)])
def test_every_shape_of_workers(kind: str, gpus: int, worker: int) -> None:
    for stage, outside in (("none", True), ("none", False), ("1", True), ("3", True), ("3", False)):
        step = made(kind, gpus, worker, stage, outside)
        assert prove_step(step).touches > 0
        assert is_read_as_written(step)


def test_outer_parameters_are_divided_over_all_gpus() -> None:
    """Each element has one home, of the GPUs that have its share inside their workers; all have about as many."""
    of = OuterParameters.of(MODEL, (8, 2), "1")
    held = np.zeros(8)
    for weight, (sizes, _) in of.shards.items():
        np.add.at(held, of.home(weight), sizes)
        assert (of.home(weight) % 2 == of.inside(weight)).all()
    assert held.max() <= 1.5 * held.min()


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize(("gpus", "worker", "degree", "cut"), [(4, 2, 2, 1), (8, 4, 2, 1), (8, 4, 4, 2), (4, 2, 2, 2)])
def test_experts_over_the_gpus_of_every_worker(kind: str, gpus: int, worker: int, degree: int, cut: int) -> None:
    """A slice of experts is averaged between the GPUs of workers that have it, and each cell has one home."""
    experts = ExpertParallel(degree, tensor_parallel=cut)
    for stage in ("none", "1", "2", "3"):
        of = OuterParameters.of(EXPERTS, (gpus, worker), stage, experts)
        step = outer_step(EXPERTS, of, kind)
        assert prove_step(step).touches > 0
        assert is_read_as_written(step)
        own = ShardedParameters(EXPERTS, worker, 1, stage, StepOverlap(0), degree, gpus // worker)
        for weight in ("ez", "ed", "wq"):
            cells = {home: np.flatnonzero(of.home(weight) == home) for home in range(gpus)}
            assert sum(map(len, cells.values())) == of.home(weight).size
            assert (of.home(weight) % worker == own.home(weight)).all()  # as a worker's own step has its shards
            assert (of.shards[weight][0] == own.shards[weight][0]).all()
        tensors = {one.name: at for at, one in enumerate(step.layouts[0].tensors)}
        lists = step.layouts[0].lists
        for template in step.templates:
            ops = template.operations
            for at in np.flatnonzero(np.isin(ops.kind, (REDUCE, GATHER))).tolist():
                members = lists[int(ops.dst[at])]
                assert len({int(one) % degree for one in members}) == 1 or ops.what[at] not in (
                    tensors["dez"], tensors["ded"], tensors.get("cez"), tensors.get("ced")
                )  # fmt: skip


DENSE_FIRST = replace(EXPERTS, num_layers=5, dense_layers=2, dense_ffn_hidden=20, shared_experts=1)


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize("layers", [(2, 3), (1, 2), (1, 0), (0, 2)])
def test_dense_layers_before_others_are_averaged_by_templates_of_their_own(kind: str, layers: tuple[int, int]) -> None:
    """A fragment may have layers of one kind alone; cells are those of the whole model."""
    for stage in ("none", "1", "3"):
        of = OuterParameters.of(DENSE_FIRST, (4, 2), stage, ExpertParallel(2))
        step = outer_step(DENSE_FIRST, of, kind, layers[0] != 2, layers)
        assert prove_step(step).touches > 0
        assert is_read_as_written(step)
        tensors = {one.name: one for one in step.layouts[0].tensors}
        assert ("wzf" in tensors, "ez" in tensors) == (layers[0] > 0, layers[1] > 0)
        own = ShardedParameters(DENSE_FIRST, 2, 1, stage, StepOverlap(0), 2, 2)
        for name in {"wq", "wzf", "ez", "wzs"} & set(tensors):
            assert (of.home(name) % 2 == own.home(name)).all()
            assert (of.shards[name][0] == own.shards[name][0]).all()


def broken(step: Step, name: str, kind: int, change: str) -> Step:
    """A step of which one template lacks its first operation of a kind, or has it twice."""
    number = next(at for at, one in enumerate(step.templates) if one.name == name)
    template = step.templates[number]
    rows = template.operations.table
    at = int(np.flatnonzero(rows[:, 0] == kind)[0])
    rows = np.delete(rows, at, 0) if change == "lacks" else np.insert(rows, at, rows[at], 0)
    mutant = replace(template, operations=Operations.of(rows.tolist()))
    return replace(step, templates=(*step.templates[:number], mutant, *step.templates[number + 1 :]))


@pytest.mark.parametrize(
    ("name", "kind", "change", "told"),
    [
        ("contribute", COMPUTE, "lacks", "is computed by no operation"),
        ("contribute", COMPUTE, "twice", "a second time"),
        ("reduce", REDUCE, "lacks", "leaves d"),
        ("take", GATHER, "lacks", "which no earlier operation brought there"),
        ("update", COMPUTE, "lacks", "version 1; at the end it is version 0"),
        ("update", COMPUTE, "twice", "it names update 0"),
    ],
)
def test_broken_ends_of_rounds_are_refused(name: str, kind: int, change: str, told: str) -> None:
    for which in (NOW, LATER):
        with pytest.raises(StepError, match=re.escape(told)):
            prove_step(broken(made(which), name, kind, change))


def test_a_layer_whose_average_is_forgotten_is_found() -> None:
    """A sum that is there before the step may go without a contribution in it, but not without being as the step says
    at the end; one that is not there before may not."""
    for kind, told in ((SENT, "computed 1 times|is computed 0 times"), (LATER, "needs dg1")):
        step = made(kind, outside=False)
        at = next(number for number, one in enumerate(step.order) if step.templates[one.template].name == "contribute")
        short = replace(step.order[at], repeats=step.num_layers - 1)
        with pytest.raises(StepError, match=told):
            prove_step(replace(step, order=(*step.order[:at], short, *step.order[at + 1 :])))


def test_fragments_are_averaged_in_turn_and_arrive_before_they_leave_again() -> None:
    """Two fragments of rounds of four steps, three steps late: two averages are under way most of the time."""
    every = [[(one.fragment, one.kind) for one in round_ends(STREAMING, step)] for step in range(8)]
    assert every == [
        [],
        [(1, SENT)],
        [],
        [(0, SENT)],
        [(1, ARRIVED)],
        [(1, SENT)],
        [(0, ARRIVED)],
        [(0, SENT)],
    ]
    late = [set(under_way(STREAMING, steps)) for steps in range(9)]
    assert late == [set(), set(), {1}, {1}, {0, 1}, {0}, {0, 1}, {1}, {0, 1}]
    at_once = replace(STREAMING, delay=0)
    assert [[one.kind for one in round_ends(at_once, step)] for step in range(4)] == [[], [NOW], [], [NOW]]


def test_fragments_have_every_layer_once() -> None:
    steps = WorkerSteps("simulated", replace(MODEL, num_layers=5), (4, 2), STREAMING)
    ends = [steps.end(fragment, SENT) for fragment in range(2)]
    assert [one.layers for one in ends] == [(0, 2, 4, 5), (1, 3, 5)]  # at last what is after all layers
    assert [one.step.num_layers for one in ends] == [3, 2]
    outside = [{"dwe", "dwh"} <= {tensor.name for tensor in one.step.layouts[0].tensors} for one in ends]
    assert outside == [True, False]
    with pytest.raises(ValueError, match=r"^sync.fragments is 2; tiny has 1 layers, and every fragment some of them"):
        WorkerSteps("simulated", replace(MODEL, num_layers=1), (4, 2), STREAMING)


def test_workers_go_on_before_the_next_average_is_there() -> None:
    names = [one.name.removesuffix("_ends") for one in made(LATER).templates[::2]]
    assert names == ["update", "contribute", "take", "reduce"]
    assert [one.name for one in made(FIRST).templates[::2]] == ["contribute", "take", "reduce"]
    assert [one.kind for step in range(6) for one in round_ends(LATE, step)] == [FIRST, LATER, LATER]
    assert {one.kind for step in range(6) for one in round_ends(IN_TIME, step)} == {NOW}
    assert [dict(under_way(LATE, steps)) for steps in (0, 1, 2, 5)] == [{}, {}, {0: LATER}, {0: LATER}]
    assert not any(under_way(IN_TIME, steps) for steps in range(6))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_ages_are_proven(workers: int) -> None:
    for sync in (LATE, IN_TIME, STREAMING):
        prove_ages(sync, workers)
        assert ", version -1" in rounds_text(sync, workers) or sync == IN_TIME


def test_another_age_is_refused() -> None:
    fresh = rounds_text(LATE, 2).replace(", version -1", "")
    with pytest.raises(StepError, match=r"round1, layer 0\) needs p .* update 1 and is there after update 0"):
        prove_step(read_step(fresh))
    beside = rounds_text(STREAMING, 2).replace(", version -1", "")
    with pytest.raises(StepError, match=r"beside1, layer 0\) needs p .* update 1 and is there after update 0"):
        prove_step(read_step(beside))
    stale = rounds_text(IN_TIME, 2).replace(
        "needs p at 0-1\n  leaves p at 0-1\n  leaves d", "needs p at 0-1, version -1\n  leaves p at 0-1\n  leaves d"
    )
    with pytest.raises(StepError):
        prove_step(read_step(stale))
