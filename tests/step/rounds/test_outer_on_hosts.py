"""The end of a round with state or parameters in host memory: proven by two walks, of every shape of workers, layers
and fragments; what it sends to and from hosts, where things rest, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import EXPERTS, MODEL, fault, rejected_mutants
from tests.step.test_optimizer_on_hosts import HOST
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.sync import CO2, NO_PENALTY, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.rounds.outer_on_hosts import outer_on_hosts
from zbench.step.passes.rounds.outer_parameters import OuterParameters
from zbench.step.passes.rounds.outer_step import LATER, NOW, PHASES, SHARE, outer_step
from zbench.step.passes.rounds.worker_steps import WorkerSteps
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

FOUR = replace(MODEL, num_layers=4)
CLUSTER = replace(small(2, 2).cluster, **HOST)
DENSE_FIRST = replace(EXPERTS, num_layers=4, dense_layers=1, dense_ffn_hidden=20, shared_experts=1)
SHAPES = [(2, 1), (4, 2), (6, 3), (4, 1)]


def made(kind: str, shape: tuple[int, int], counts: tuple[int, int], stage: str = "3", outside: bool = True) -> Step:
    step = outer_step(FOUR, OuterParameters.of(FOUR, shape, stage), kind, outside)
    return outer_on_hosts(step, HostLayers(4, *counts), range(4), shape[1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize("counts", [(4, 0), (1, 0), (4, 4), (2, 3), (0, 2)])
def test_every_shape_of_workers_and_layers(kind: str, counts: tuple[int, int]) -> None:
    """counts: layers whose state is in host memory, the last ones, and whose parameters rest there, the first ones."""
    for shape in SHAPES:
        for outside in (True, False):
            step = made(kind, shape, counts, "3" if counts[1] else "1", outside)
            assert (fault(step), unrolled_fault(step)) == ("", "")
            assert step_text(read_step(step_text(step))) == step_text(step)


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("gpus", "worker", "degree"), [(4, 2, 1), (8, 4, 2)])
def test_stages_of_every_worker(kind: str, tied: bool, gpus: int, worker: int, degree: int) -> None:
    """Each GPU has a part of its node's memory, where its stage's layers are, the table or the head among them."""
    model = replace(FOUR, num_layers=5, tied_embeddings=tied, pipeline_parallel=2).with_stages(2)
    for counts in ((5, 0), (2, 0), (5, 5), (1, 4), (0, 2)):
        of = OuterParameters.of(model, (gpus, worker), "3" if counts[1] else "1", TOGETHER, (degree, 2))
        for outside in (True, False):
            plain = outer_step(model, of, kind, outside, (0, 5), (0, 2))
            step = outer_on_hosts(plain, HostLayers(5, *counts), range(5), worker, tied)
            assert (fault(step), unrolled_fault(step)) == ("", "")
            assert step_text(read_step(step_text(step))) == step_text(step)
            assert step.num_hosts == gpus
            for one, other in zip(stated_bytes(plain), stated_bytes(step), strict=True):
                assert one == {name: sizes for name, sizes in other.items() if name != "host"}


def test_state_of_a_stage_is_on_its_own_hosts() -> None:
    """State of the last two of five layers, and of the head: of the second stage, of three layers, alone."""
    model = replace(FOUR, num_layers=5, sharding="zero1", offload="optimizer", optimizer_layers=2)
    model = replace(model, pipeline_parallel=2)
    steps = WorkerSteps("test", model, (8, 4), RoundSync(SLOWMO, 2), degrees=(1, 2))
    step = steps.whole
    layout, hosts = step.layouts[0], set[int]()
    for row, first, last in step.resting(step.begins):
        if row[2] >= 0 and layout.tensors[row[0]].name[0] in "sp" and layout.tensors[row[0]].name != SHARE:
            there = np.asarray(layout.lists[row[2]]) - step.num_gpus
            shifts = {int(step.shifts[0, layer]) for layer in range(first, last + 1)} or {0}
            found = {int(one) + shift for one in there[there >= 0] for shift in shifts}
            hosts |= found
    assert hosts == {2, 3, 6, 7}


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_fragments_of_a_model_whose_first_layers_are_dense(kind: str, fragments: int) -> None:
    """A fragment's layers are on hosts by the numbers that they have in the model, experts' slices among them."""
    for optimizer in (4, 2):
        model = replace(DENSE_FIRST, sharding="zero3", offload="optimizer", optimizer_layers=optimizer)
        sync = RoundSync(STREAMING_DILOCO, 6, fragments=fragments)
        steps = WorkerSteps("test", model, (4, 2), sync, experts=ExpertParallel(2))
        for fragment in range(fragments):
            end = steps.end(fragment, kind)
            assert unrolled_fault(end.step) == ""
            layout = end.step.layouts[0]
            outer = {f"p{name}" for name in ("wq", "ez", "wzf")} & set(layout.number)
            for row, first, last in end.step.resting(end.step.begins):
                if layout.tensors[row[0]].name in outer:
                    numbers = [end.layers[at] for at in range(first, last + 1)]
                    is_there = row[2] >= 0 and int(layout.lists[row[2]][0]) >= 4
                    assert {number >= 4 - optimizer for number in numbers} <= {is_there}


@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_fragments_with_parameters_of_dense_layers_on_hosts(fragments: int) -> None:
    """Of the dense one alone, of one with experts behind it, or of all; beside state of the last two or of none."""
    for parameters, offload in ((1, "none"), (2, "optimizer"), (4, "none")):
        state: dict[str, Any] = {"offload": offload, "optimizer_layers": 2 if offload == "optimizer" else "all"}
        model = replace(DENSE_FIRST, sharding="zero3", parameter_layers=parameters, **state)
        steps = WorkerSteps("test", model, (4, 2), RoundSync(STREAMING_DILOCO, 6, fragments=fragments))
        for fragment in range(fragments):
            end = steps.end(fragment, NOW)
            assert unrolled_fault(end.step) == ""
            layout = end.step.layouts[0]
            found = {
                end.layers[at]
                for row, first, last in end.step.resting(end.step.begins)
                if layout.tensors[row[0]].name == "wq" and row[2] >= 0 and int(layout.lists[row[2]][0]) >= 4
                for at in range(first, last + 1)
            }
            layers = end.layers[:-1]  # the last number is of what is after all layers
            hosted = {at for at in layers if at < parameters or (offload == "optimizer" and at >= 2)}
            assert found == hosted


@pytest.mark.parametrize("shape", SHAPES)
def test_what_goes_to_and_from_hosts(shape: tuple[int, int]) -> None:
    """Every worker sends its share of the average, and gets parameters; the average and the outer parameter go over one
    of them, and the others get the latter."""
    workers, size = shape[0] // shape[1], FOUR.element_bytes
    every, some = (sum(one["host"][0] for one in stated_bytes(made(NOW, shape, (count, 0), "1"))) for count in (4, 1))
    each = workers * (4 + size) + (workers - 1) * 4 + 2 * 4
    assert every == each * FOUR.total_params
    assert some == each * (FOUR.layer_params + FOUR.head_params + FOUR.hidden)
    plain = outer_step(FOUR, OuterParameters.of(FOUR, shape, "1"), NOW)
    for one, other in zip(stated_bytes(plain), stated_bytes(made(NOW, shape, (4, 0), "1")), strict=True):
        assert one == {name: sizes for name, sizes in other.items() if name != "host"}  # between GPUs nothing is new
    rests = made(NOW, shape, (0, 2))
    assert sum(one["host"][0] for one in stated_bytes(rests)) == 2 * workers * size * 2 * FOUR.layer_params
    both = made(NOW, shape, (4, 4))
    assert sum(one["host"][0] for one in stated_bytes(both)) == every - workers * size * 4 * FOUR.layer_params


def test_outer_parameters_rest_where_state_does() -> None:
    step = made(LATER, (4, 2), (4, 0))
    layout = step.layouts[0]
    on_gpus = set()
    for row in step.begins.rows():
        places = layout.tensors[row[0]].home if row[2] < 0 else layout.lists[row[2]]
        on_gpus |= {layout.tensors[row[0]].name} if (np.asarray(places) < 4).any() else set()
    weights = {name for name in layout.number if f"s{name}" in layout.number}
    assert on_gpus == weights | {f"d{name}" for name in weights} | {"share"}  # the average under way among them


def test_mutants() -> None:
    for kind in (NOW, LATER):
        for counts in ((4, 0), (2, 1)):
            assert rejected_mutants(made(kind, (4, 2), counts), 3, 56) > 20


@pytest.mark.parametrize("method", [SLOWMO, CO2])
def test_what_a_worker_has_in_host_memory_has_to_fit(method: str) -> None:
    sync = RoundSync(method, 2, "node", penalty="constant" if method == CO2 else NO_PENALTY)
    model = replace(FOUR, sharding="zero1", offload="optimizer")
    rests = (12 + model.element_bytes + 2 * 4 // 2) * model.total_params  # a half of outer parameters and momentum
    cluster = replace(CLUSTER, host_memory=float(rests - 1))
    told = r"^cluster.host_memory is [0-9.]+ KiB a worker; memory.offload is optimizer, and what a worker has there of "
    with pytest.raises(ValueError, match=told):
        WorkerSteps("test", model, (4, 2), sync, cluster=cluster)
    WorkerSteps("test", model, (4, 2), sync, cluster=replace(cluster, host_memory=float(rests)))
