"""Optimizer state in host memory where layers are in stages, in pipelines side by side, or of two kinds: proven, exact,
updated stage by stage, and each byte where it should be."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import MODEL, execute, fault, pipeline_plans, plan_of, rejected_mutants
from tests.step.test_leading_layers import CASES, DEEP
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.describe.layers.on_hosts import ACROSS_STEPS, AFTER_BACKWARD, AS_GRADIENTS_COME
from zbench.describe.model import Model
from zbench.describe.overlap import END, StepOverlap
from zbench.plans.plan import Plan
from zbench.simulator.steps.play import play_step
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.host_memory import with_host_memory
from zbench.step.passes.memory.last_update import last_update
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.template import Step

FIVE = replace(MODEL, num_layers=5, num_kv_heads=4, offload="optimizer")
# Layers whose state is on hosts, of which so many are carried, and when CPUs update.
WAYS = [(5, 0, AS_GRADIENTS_COME), (5, 0, AFTER_BACKWARD), (3, 0, AS_GRADIENTS_COME), (5, 2, ACROSS_STEPS)]
WAYS += [(4, 3, ACROSS_STEPS)]
SHAPES = [[(2, 1), (1, 2), (1, 2)], [(2, 2), (1, 3)], [(4, 1)], [(1, 2), (2, 1), (1, 4)]]


def judged(step: Step, plans: Sequence[Plan], model: Model, degree: int = 1, how: ExpertParallel = TOGETHER) -> int:
    """The bytes that a step's copies send, all together, of a step that is right."""
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model, how) < 1e-12
    assert is_read_as_written(step)
    moved = [one.get("host", (0, 0)) for one in stated_bytes(step)]
    sent, received = (sum(column) for column in zip(*moved, strict=True))
    assert sent == received
    return sent


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("layers", "carried", "when"), WAYS)
@pytest.mark.parametrize(
    ("zero", "stages", "degree", "bucket"),
    [("1", 2, 1, "layer"), ("1", 4, 2, END), ("2", 2, 2, 900), ("3", 2, 1, END), ("3", 4, 1, "layer")],
)
def test_stages_are_exact(
    zero: str, stages: int, degree: int, bucket: int | str, layers: int, carried: int, when: str
) -> None:
    plans = [plan_of([9, 2], 2, 4 // degree, first=at * 2) for at in range(3)]
    step = whole_step(FIVE, plans, degree, zero, StepOverlap(1, bucket), "selective", stages=stages)
    step = with_optimizer_on_hosts(step, 2, HostLayers(5, layers, 0, carried), when)
    sent = judged(step, plans, FIVE, degree)
    if layers == 5:  # gradients are summed in float32
        assert sent == FIVE.total_params * (4 + FIVE.element_bytes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("layers", "carried", "when"), WAYS)
@pytest.mark.parametrize(
    ("zero", "stages", "degree", "bucket"), [("1", 2, 1, "layer"), ("2", 2, 2, 900), ("3", 4, 1, END)]
)
def test_two_tables_are_exact(
    zero: str, stages: int, degree: int, bucket: int | str, layers: int, carried: int, when: str
) -> None:
    """Of tied embeddings: gradients are summed up on GPUs, and each stage's hosts update its table by the sum."""
    model, plans = (
        replace(FIVE, tied_embeddings=True),
        [plan_of([9, 2], 2, 4 // degree, first=at * 2) for at in range(3)],
    )
    step = whole_step(model, plans, degree, zero, StepOverlap(1, bucket), "selective", stages=stages)
    for begun in (True, False) if carried else (True,):
        hosts = with_optimizer_on_hosts(step, 2, HostLayers(5, layers, 0, carried, begun), when)
        sent = judged(hosts, plans, model, degree)
        if layers == 5 and begun:
            assert sent == replace(model, pipeline_parallel=stages).placed_params * (4 + FIVE.element_bytes)
    if carried and layers == 5:
        left = last_update(with_optimizer_on_hosts(step, 2, HostLayers(5, layers, 0, carried), when))
        assert (fault(left), unrolled_fault(left)) == ("", "")
        assert "optimizer_tables_first" in [one.name for one in left.templates]


def test_mutants_of_two_tables() -> None:
    model, plans = replace(FIVE, tied_embeddings=True), [plan_of([9, 2], 2, 4, first=at * 2) for at in range(2)]
    step = with_optimizer_on_hosts(whole_step(model, plans, 1, "1", 1, stages=2), 2)
    assert rejected_mutants(step, 2, 24, lambda accepted: execute(accepted, plans, 1, model)) > 6


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("layers", "carried", "when"), WAYS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_pipelines_of_plans_are_exact(shapes: list[tuple[int, int]], layers: int, carried: int, when: str) -> None:
    """Side by side: a gradient is reduced over them, and each updates its part of a layer at its own stage's hosts."""
    last, ranks = len(shapes) - 1, sum(tp * pp for tp, pp in shapes)
    plans = pipeline_plans(shapes, [[(7, 0), (3, last)], [(5, 0), (2, last), (4, 0)]], ranks)
    step = with_optimizer_on_hosts(
        whole_step(FIVE, plans, 1, "1", 1, "selective"), 2, HostLayers(5, layers, 0, carried), when
    )
    sent = judged(step, plans, FIVE)
    if layers == 5:
        assert sent == FIVE.total_params * (4 + FIVE.element_bytes)


@pytest.mark.parametrize(("layers", "carried", "when"), [(4, 0, AS_GRADIENTS_COME), (2, 0, AFTER_BACKWARD)])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_dense_first_layers_are_exact(number: int, layers: int, carried: int, when: str) -> None:
    _dense(number, HostLayers(4, layers, 0, carried), when)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("carried", [(4, 2), (3, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_dense_first_layers_are_exact_across_steps(number: int, carried: tuple[int, int]) -> None:
    """What a step begins with is of ranges of layers that begin before, and behind, the last dense one."""
    _dense(number, HostLayers(4, carried[0], 0, carried[1]), ACROSS_STEPS)


def _dense(number: int, layers: HostLayers, when: str) -> None:
    dense, ranks, degree, stages, zero, recompute, overlap, how = CASES[number]
    model = replace(DEEP, dense_layers=dense)
    plans = [plan_of(lengths, ranks, 4 // degree, first=2 * at) for at, lengths in enumerate(([4, 3], [1]))]
    step = whole_step(model, plans, degree, zero if zero != "none" else "1", overlap, recompute, how, stages)
    step = with_optimizer_on_hosts(step, 2, layers, when)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model, how, overlap.token_slices) < 1e-12
    assert is_read_as_written(step)


@pytest.mark.parametrize(("level", "offload"), [("full", "inputs"), ("selective", "activations")])
@pytest.mark.parametrize("stages", [1, 2])
def test_beside_what_layers_keep(level: str, offload: str, stages: int) -> None:
    model = replace(FIVE, offload=f"{offload}_and_optimizer")
    plans = [plan_of([9, 2], 2, 4, first=at * 2) for at in range(3)]
    step = with_host_memory(whole_step(model, plans, 1, "1", 1, level, stages=stages), model, 2, [4, 2, 3])
    assert judged(step, plans, model) > FIVE.total_params * (4 + FIVE.element_bytes)
    pipelines = pipeline_plans([(2, 2), (1, 3)], [[(7, 0), (3, 1)]], 7)
    built = whole_step(model, pipelines, 1, "1", 1, level)
    judged(with_host_memory(built, model, 2, [2] * len(built.layouts)), pipelines, model)


def test_a_stage_is_updated_as_soon_as_its_gradients_are_complete() -> None:
    """The last stage's layers while the first one's backward is under way; all comes back after that."""
    plans = [plan_of([9, 2], 1, 4, first=at * 2) for at in range(3)]
    step = with_optimizer_on_hosts(whole_step(FIVE, plans, 1, "1", stages=2), 2)
    order = [(step.templates[one.template].name, one.place, layer) for one in step.order for layer in one.layers]
    last = order.index(("backward.2", 0, 1))
    assert [place for name, place, _ in order[:last] if name == "optimizer"] == [1, 1, 1]
    assert ("optimizer_head", 1, 0) in order[:last]
    assert [one for one in order[last:] if one[0].startswith("optimizer")] == [
        ("optimizer", 0, 1),
        ("optimizer", 0, 0),
        ("optimizer_head_back", 1, 0),
        *(("optimizer_back", int(layer > 1), layer) for layer in (4, 3, 2, 1, 0)),
        ("optimizer_embedding", 0, 0),
    ]


def test_mutants_are_found() -> None:
    plans = pipeline_plans([(1, 2), (1, 1)], [[(3, 0), (2, 1)]], 3)
    staged = whole_step(FIVE, [plan_of([3, 2], 1, 4)], 1, "1", stages=2)
    for step in (staged, whole_step(FIVE, plans, 1, "1")):
        assert rejected_mutants(with_optimizer_on_hosts(step, 2), 3, 40) > 12


def test_gpus_of_a_node_share_its_cpus() -> None:
    """Each GPU's part of a node's memory has its share of the node's CPUs, and a GPU has no state."""
    cluster = replace(small(2, 2).cluster, host_bandwidth=1e10, host_efficiency=1.0, host_latency=1e-5, host_memory=1e9)
    plans = [plan_of([400], 2, 4)]
    step = with_optimizer_on_hosts(whole_step(FIVE, plans, 1, "1", stages=2), 2)
    slow, quick = (play_step(step, plans, Cost(replace(cluster, host_adam_bandwidth=one), FIVE)) for one in (1e5, 1e12))
    held = slow.memory.held
    state = sum(size for name, size in held.items() if name[0] == "s" and name[1:] in held)
    assert not state[:4].any()
    assert state[4:].sum() == 12 * FIVE.total_params
    least = OPTIMIZER_BYTES * np.max(state[4:]) / 12 / (1e5 / 2)
    assert least < slow.seconds < least + quick.seconds
